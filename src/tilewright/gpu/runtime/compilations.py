"""Compiled kernels of the engine. The kernels come from an archive that was built before, or are compiled when a
product first needs them.

``python -m tilewright.prebuilt --gpu sm_90a`` writes an archive: an SQLite database with one row for each kernel. A
process reads only the kernels that it launches. Kernels that the archive lacks are compiled on other threads, each
kernel once; all threads that need it wait for the same compilation.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import UnavailableError
from ...host import sources
from ...host.disk import fingerprint
from ...host.sources import PACKAGE
from ...kernels.cuda_kernel import CudaKernel
from ...kernels.header import code_of
from .nvrtc import Compiled, compile_file, compile_with

if TYPE_CHECKING:
    import zstandard

# ---- archives, one for each architecture -----------------------------------------------------------------------------

#: The folders of archives: of this package, and of one that has nothing else.
_BUILT, _OTHER = PACKAGE / "prebuilt" / "built", "tilewright_cuda"
#: The files that kernels of the engine are compiled from.
SOURCES = ("gpu/kernels/*.cu", "gpu/kernels/*.cuh", "gpu/kernels/pack/*.cu", "kernels/cuda/*.cuh")
#: To be changed with the tables or the way of compiling.
FORMAT = 2
#: ``base``: the key of a kernel of the same file that the cubin differs from in few bytes or in none, so that the
#: difference is stored. ``binaries``: cubins of a file, one after the other: the dictionary by which Zstandard compresses
#: all others.
TABLES = """
PRAGMA page_size = 1024;
CREATE TABLE about (sources TEXT, compiler TEXT);
CREATE TABLE dictionaries (file TEXT PRIMARY KEY, binaries BLOB);
CREATE TABLE kernels (key TEXT PRIMARY KEY, entries TEXT, waits INTEGER, base TEXT, cubin BLOB);
"""


class Request(NamedTuple):
    """A kernel that a product needs: its file, the architecture, and the macros with their values."""

    path: Path
    arch: str
    macros: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """The name of the kernel in an archive."""
        return fingerprint(self.path.relative_to(PACKAGE).as_posix(), self.macros)


def engine_kernel(kernel: CudaKernel, values: Mapping[str, int], arch: str, macros: Mapping[str, object]) -> Compiled:
    """A kernel of the engine with these parameters and macros, from the archive or compiled. Raises any error of
    ``compile_with``."""
    found = _found(kernel.path, arch, {**macros, **kernel.checked(values)}, kernel.source)
    if found is None:
        _check_compiles(kernel.path)
    return found or compile_with(kernel, values, arch, macros)


def engine_file(path: Path, arch: str, macros: Mapping[str, object]) -> Compiled:
    """The kernels of a file without a header, such as a file that copies operands, from the archive or compiled."""
    found = _found(path, arch, macros, None)
    if found is None:
        _check_compiles(path)
    return found or compile_file(path, arch=arch, defines=macros)


@contextlib.contextmanager
def requests() -> Iterator[dict[Request, None]]:
    """Within the ``with`` block, kernels that products need are collected, not compiled."""
    global _asked
    asked: dict[Request, None] = {}
    _asked = asked
    try:
        yield asked
    finally:
        _asked = None


_asked: dict[Request, None] | None = None


@contextlib.contextmanager
def archived_only() -> Iterator[None]:
    """Within the ``with`` block, a kernel that is in no archive is not compiled; UnavailableError is raised instead."""
    global _compiles
    _compiles = False
    try:
        yield
    finally:
        _compiles = True


_compiles = True


def _check_compiles(path: Path) -> None:
    if not _compiles:
        raise UnavailableError(f"{path.name}: no archive has it with these macros")


def archive_key() -> str:
    """A key of the code from which an archive is compiled. The key leaves out the kernels' headers, which predict times
    and are not compiled."""
    return fingerprint(FORMAT, *(code_of(path.read_text(encoding="utf-8-sig")) for path in sources.files(SOURCES)))


def _found(path: Path, arch: str, macros: Mapping[str, object], source: str | None) -> Compiled | None:
    """The kernel from the archive. ``source`` is the text of the file, if it may differ from the text from which the
    archive was made."""
    request = Request(path, arch, tuple(sorted((name, str(value)) for name, value in macros.items())))
    if _asked is not None:
        _asked[request] = None
        return Compiled(str(path), arch, "", b"", "", entries=_Any(), waits=False)
    archive = _archive(arch)
    if archive is None or (source is not None and source != _text(path)):
        return None
    return archive.find(request)


class _Any(tuple[str, ...]):
    """The kernels of a file that was not compiled: a collection that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


@functools.cache  # the package's files do not change
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig") if path.is_relative_to(PACKAGE) else ""


@functools.cache  # reads it once
def _archive(arch: str) -> _Archive | None:
    """The archive of an architecture, if there is a readable archive that was made from these sources."""
    for path in (folder / archive_name(arch) for folder in _folders()):
        if path.is_file():
            with contextlib.suppress(ImportError, OSError, *_damages()):
                archive = _Archive(path)
                if archive.sources == archive_key():
                    return archive
    return None


def _folders() -> list[Path]:
    other = importlib.util.find_spec(_OTHER)
    return [_BUILT, *map(Path, (other and other.submodule_search_locations) or ())]


def archive_name(arch: str) -> str:
    """The file name of the archive for an architecture."""
    return f"{arch}.kernels"


def describe_archives() -> str:
    """A line of text: which archives there are, and whether they are used."""
    archs = sorted({path.stem for folder in _folders() for path in folder.glob(archive_name("*"))})
    reads = importlib.util.find_spec("zstandard") is not None
    useless = "of other sources, or damaged: not used" if reads else "not used without zstandard: pip install zstandard"
    texts = [f"{arch}: {found.count:,}" if (found := _archive(arch)) else f"{arch}: {useless}" for arch in archs]
    return "; ".join(texts) or "none: the first product that needs a kernel compiles it"


def difference(cubin: bytes, base: bytes) -> bytes:
    """The bits in which two binaries of the same length differ. Applied to the difference and one of the binaries, the
    function returns the other binary.

    >>> difference(b"mma.f16", b"mma.bf6")
    b'\\x00\\x00\\x00\\x00\\x04W\\x00'
    """
    return (np.frombuffer(cubin, np.uint8) ^ np.frombuffer(base, np.uint8)).tobytes()


def dictionary(binaries: bytes) -> zstandard.ZstdCompressionDict:
    """The dictionary with which the kernels of a source file are compressed. It is made from ``binaries``, cubins of
    that file."""
    import zstandard

    return zstandard.ZstdCompressionDict(binaries, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _damages() -> tuple[type[Exception], ...]:
    """The exceptions that reading a damaged archive raises. A Python without SQLite or Zstandard reads no archive."""
    try:
        import sqlite3

        import zstandard
    except ImportError:
        return ()
    return sqlite3.Error, zstandard.ZstdError


class _Archive:
    """An archive, open for reading."""

    def __init__(self, path: Path) -> None:
        import sqlite3  # these take 10 ms, and only a GPU needs them

        import zstandard

        self._zstd, self._dictionaries = zstandard, dict[str, zstandard.ZstdCompressionDict]()
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        self.sources: str = self._row("SELECT sources FROM about")[0]

    @property
    def count(self) -> int:
        """How many kernels it has."""
        found: int = self._row("SELECT count(*) FROM kernels")[0]
        return found

    def find(self, request: Request) -> Compiled | None:
        """The kernel, if it is in the archive and undamaged. The PTX of the kernel, which the microscope reads, is
        compiled when it is first read."""
        try:
            row = self._row("SELECT entries, waits, base, cubin FROM kernels WHERE key = ?", request.key)
            if row is None:
                return None
            entries, waits, *stored = row
            cubin = self._unpacked(request.path.name, *stored)
        except _damages():
            return None
        path, arch, macros = request

        def ptx() -> str:
            return compile_file(path, arch=arch, defines=dict(macros)).ptx

        return Compiled(str(path), arch, ptx, cubin, "", entries=tuple(entries.split()), waits=bool(waits))

    def _unpacked(self, file: str, base: str | None, packed: bytes) -> bytes:
        cubin = self._zstd.ZstdDecompressor(self._dictionary(file)).decompress(packed)
        if base is None:
            return cubin
        return difference(
            cubin, self._unpacked(file, *self._row("SELECT base, cubin FROM kernels WHERE key = ?", base))
        )

    def _dictionary(self, file: str) -> zstandard.ZstdCompressionDict:
        if file not in self._dictionaries:
            packed = self._row("SELECT binaries FROM dictionaries WHERE file = ?", file)[0]
            self._dictionaries[file] = dictionary(self._zstd.decompress(packed))
        return self._dictionaries[file]

    def _row(self, query: str, *values: str) -> Any:
        with self._lock:
            return self._rows.execute(query, values).fetchone()


# ---- compilations, each made once ------------------------------------------------------------------------------------

#: Parameters, by name.
Chosen = tuple[tuple[str, int], ...]


def chosen_params(params: Mapping[str, int] | None) -> Chosen:
    """Parameters sorted by their names."""
    return tuple(sorted((params or {}).items()))


class Compilations:
    """Compilations, found by a key. The key contains everything on which a compilation depends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, Future[Compiled]] = {}

    def begin(self, key: Hashable, work: Callable[[], Compiled]) -> Future[Compiled]:
        """The compilation with this ``key``. ``work`` begins once, on another thread, and is repeated only after it has
        failed."""
        job, is_new = self._job(key)
        if is_new:
            threading.Thread(target=_run, args=(job, work), name="compiler").start()
        return job

    def result(self, key: Hashable, work: Callable[[], Compiled]) -> Compiled:
        """The result of the compilation. If the compilation has not begun, the calling thread does ``work`` itself,
        which takes less time than to start another thread."""
        job, is_new = self._job(key)
        if is_new:
            _run(job, work)
        return job.result()

    def _job(self, key: Hashable) -> tuple[Future[Compiled], bool]:
        with self._lock:
            job = self._jobs.get(key)
            is_new = job is None or (job.done() and job.exception() is not None)
            if job is None or is_new:
                job = self._jobs[key] = Future()
            return job, is_new

    def clear(self) -> None:
        """Forget all compilations."""
        with self._lock:
            self._jobs.clear()


class KernelCode(NamedTuple):
    """The code to compile: a kernel of the engine with these parameters, or a file without a header; and the macros."""

    source: CudaKernel | Path
    macros: tuple[tuple[str, object], ...]
    params: Chosen = ()

    def begin(self, arch: str) -> None:
        """Begin to compile the code on another thread, unless this has begun before."""
        _compilations.begin((self, arch), functools.partial(self._compile, arch))

    def compiled(self, arch: str) -> Compiled:
        """The compiled code. At the first call the kernel is loaded from the archive or compiled. Raises
        CompileError."""
        return _compilations.result((self, arch), functools.partial(self._compile, arch))

    def _compile(self, arch: str) -> Compiled:
        macros = dict(self.macros)
        if isinstance(self.source, Path):
            return engine_file(self.source, arch, macros)
        return engine_kernel(self.source, dict(self.params), arch, macros)


_compilations = Compilations()


def _run(job: Future[Compiled], work: Callable[[], Compiled]) -> None:
    try:
        job.set_result(work())
    except BaseException as error:  # raised again by those who wait
        job.set_exception(error)
