"""Compiles CUDA C++ for any GPU, on any machine: NVRTC through ``cuda.core``, both from PyPI, no toolkit and no GPU needed.

The result is the cubin, which a GPU runs, the PTX, which the microscope runs, and the kernel's resources, read from the
cubin. It is cached on disk under a key of everything that determines it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...errors import CompileError, UnavailableError, UsageError, did_you_mean
from ...host.disk import CacheFile, fingerprint
from ...host.sources import PACKAGE
from ...host.steps import announced
from ...kernels.cuda_kernel import CudaKernel
from .cubin import Resources, read_resources

#: H100 and H200, with the instructions that only they have.
DEFAULT_ARCH = "sm_90a"

#: Where ``prelude.cuh`` is, for the kernels of the package and for those of users.
PRELUDE = PACKAGE / "kernels" / "cuda"

#: Replacements for the host's headers that sources for nvcc include: NVRTC has none of these.
HOST_HEADERS = PRELUDE / "host_headers"

#: Part of the cache key: to be changed with the content of the cache or the way of compiling.
_FORMAT = 1


@dataclass(frozen=True)
class Compiled:
    """A compiled source: its PTX and its binary for ``arch``."""

    name: str
    arch: str
    ptx: str
    cubin: bytes
    log: str

    @functools.cached_property
    def resources(self) -> dict[str, Resources]:
        """The resources of each of its kernels. Products do not need them: reading the binary takes 0.1 s."""
        return read_resources(self.cubin)

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels in it, by their names in the binary, in the order of the source."""
        return tuple(re.findall(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", self.ptx, re.MULTILINE))

    def entry(self, function: str) -> str:
        """The name in the binary of the kernel that the source calls ``function``, ``extern "C"`` or not.

        Raises UsageError if there is none, or several (overloads, instances of a template).
        """
        if function in self.entries:
            return function
        mangled = f"_Z{len(function)}{function}"
        matches = [entry for entry in self.entries if entry.startswith(mangled)]
        if len(matches) != 1:
            what = "is not one" if not matches else f"names several ({', '.join(matches)})"
            names = ", ".join(dict.fromkeys(map(demangled, self.entries)))
            raise UsageError(f"{self.name}: {function} {what} of its kernels: {names or 'it has none'}")
        return matches[0]


def demangled(entry: str) -> str:
    """The name of a function as its source has it, without types; other than plain C++ names stay as they are.

    >>> demangled("_Z5scalePfi"), demangled("plain"), demangled("_ZN2my5scaleEPf")
    ('scale', 'plain', '_ZN2my5scaleEPf')
    """
    match = re.match(r"_Z([1-9]\d*)", entry)
    return entry[match.end() :][: int(match[1])] if match else entry


# ---- compile ---------------------------------------------------------------------------------------------------------


def compile_kernel(kernel: CudaKernel, *, arch: str = DEFAULT_ARCH, add: bool | int = False, **params: int) -> Compiled:
    """``kernel`` compiled with ``params``, and defaults for the others; with ``add`` its product is added to C.

    Raises UsageError for a forbidden parameter, for an architecture below the least that it needs, for a kernel that cannot
    ``add``, and if its function is not in the file; and what ``compile_source`` raises.
    """
    values = kernel.checked(params)
    _check_capability(kernel, arch)
    if add and not kernel.adds:
        raise UsageError(f"{kernel.name} cannot add to C")
    defines = values | {"ACCUMULATE": 1} if add else values
    compiled = compile_source(kernel.source, name=str(kernel.path), arch=arch, defines=defines)
    compiled.entry(kernel.entry)
    return compiled


def compile_source(
    source: str, *, name: str = "kernel.cu", arch: str = DEFAULT_ARCH, defines: Mapping[str, object] | None = None
) -> Compiled:
    """CUDA C++ text, compiled for ``arch`` with line numbers, or loaded from the cache on disk.

    ``name`` is the file of the text: it is in messages and line numbers, and files in the same folder can be included. Each
    of ``defines`` is a macro. Raises CompileError with the compiler's message, UsageError for an architecture that this
    NVRTC does not support, UnavailableError without ``cuda.core`` or NVRTC.

    >>> compile_source('extern "C" __global__ void one(float* x) { *x = 1; }').resources["one"].local_bytes  # doctest: +SKIP
    0
    """
    macros = {key: str(value) for key, value in sorted((defines or {}).items())}
    check_arch(arch)
    includes = _included(source, name)
    key = fingerprint(_FORMAT, source, name, arch, macros, includes, compiler())
    result = _cached(key) if includes.complete else None
    if result is None:
        with announced(f"compiling {Path(name).name} for {arch}"):
            result = _compile(source, name, arch, macros, headers=includes.elsewhere)
        if includes.complete:
            _cache(key, result)
    ptx, cubin, log = result
    return Compiled(name, arch, ptx, cubin, log)


def compile_file(
    path: str | Path, *, arch: str = DEFAULT_ARCH, defines: Mapping[str, object] | None = None
) -> Compiled:
    """``compile_source`` of a file. Raises UsageError if it cannot be read."""
    try:
        source = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from None
    return compile_source(source, name=str(path), arch=arch, defines=defines)


def _compile(source: str, name: str, arch: str, macros: Mapping[str, str], headers: bool) -> tuple[str, bytes, str]:
    """PTX, cubin and log of one run of the compiler; ``headers`` adds CUDA's own (``cuda_fp16.h``, …)."""
    core, nvrtc = _cuda()
    options = core.ProgramOptions(
        name=name,
        arch=arch,
        lineinfo=True,
        define_macro=list(macros.items()) or None,
        include_path=[str(folder) for folder in _folders(name)],
        use_bundled_headers=headers,
    )
    program = core.Program(source, "c++", options)
    try:
        log = io.StringIO()
        try:
            cubin = bytes(program.compile("cubin", logs=log).code)
        except Exception as error:  # cuda.core's own class, not public
            raise CompileError(_message(nvrtc, program, error)) from None
        # Not by cuda.core, which would compile again for PTX and needs a driver for it.
        _, size = nvrtc.nvrtcGetPTXSize(program.handle)
        ptx = bytearray(size)
        nvrtc.nvrtcGetPTX(program.handle, ptx)
        return ptx.decode().rstrip("\0"), cubin, log.getvalue().rstrip("\0\n")
    finally:
        program.close()


def _message(nvrtc: Any, program: Any, error: Exception) -> str:
    """The compiler's log, with a hint for missing headers; if the log is empty, the message of ``cuda.core``."""
    _, size = nvrtc.nvrtcGetProgramLogSize(program.handle)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program.handle, log)
    text = log.decode(errors="replace").strip("\0\n ") or str(error)
    missing = re.search(r'cannot open source file "([^"]+)"', text)
    if missing is None and "host function" not in text:
        return text
    guarded = f"#include <{missing[1]}>" if missing else "int main() { … }"
    return f"{text}\n{_HINT.format(guarded)}"


_HINT = """hint: the compiler is NVRTC, without the host's headers and functions; keep them from it:
    #ifndef __CUDACC_RTC__
    {}
    #endif"""


# ---- the compiler ----------------------------------------------------------------------------------------------------


@functools.cache
def _cuda() -> tuple[Any, Any]:
    """``cuda.core`` and the bindings of NVRTC; raises UnavailableError if one of them, or NVRTC itself, is missing."""
    try:
        core = importlib.import_module("cuda.core")
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except Exception as error:  # a library that does not load may raise any class
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnavailableError(
            f"cuda.core with NVRTC cannot be loaded ({reason}); pip install 'tilewright[cuda]'"
        ) from None
    return core, nvrtc


@functools.cache
def compiler() -> str:
    """The compiler's name and version, as records and cache keys have it, such as "NVRTC 13.4.92"."""
    _, nvrtc = _cuda()
    _, major, minor = nvrtc.nvrtcVersion()
    for package in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        with contextlib.suppress(PackageNotFoundError):
            if version(package).startswith(f"{major}.{minor}."):
                return f"NVRTC {version(package)}"
    return f"NVRTC {major}.{minor}"


@functools.cache
def architectures() -> tuple[str, ...]:
    """Every architecture that this NVRTC compiles for, oldest first, such as "sm_75"."""
    _, nvrtc = _cuda()
    _, known = nvrtc.nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in sorted(known))


def check_arch(arch: str) -> None:
    """Raise UsageError for an architecture that this NVRTC cannot compile for.

    Code for "sm_90" runs on every later GPU of its generation. "sm_90a" adds the instructions of this architecture alone
    (from 9.0), "sm_100f" those of its family (from 10.0).
    """
    match = re.fullmatch(r"(sm_(\d+))([af]?)", arch)
    known = architectures()
    if match is None or match[1] not in known or int(match[2]) < {"": 0, "a": 90, "f": 100}[match[3]]:
        suffixed = [f"{name}a" for name in known if int(name[3:]) >= 90]
        raise UsageError(
            f"architecture {arch!r} is not known to {compiler()}: {did_you_mean(arch, [*known, *suffixed])}"
        )


def _check_capability(kernel: CudaKernel, arch: str) -> None:
    """Raise UsageError if ``arch`` is below the least compute capability of the kernel."""
    check_arch(arch)
    needed = kernel.capability.replace(".", "")
    least, exactly = int(needed.rstrip("af")), needed[-1] in "af"
    if arch != f"sm_{needed}" and (exactly or int(arch[3:].rstrip("af")) < least):
        wanted = "exactly" if exactly else "at least"
        raise UsageError(
            f"{kernel.name} needs {wanted} compute capability {kernel.capability} (sm_{needed}), got {arch}"
        )


# ---- what a source includes ------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(.*))$', re.MULTILINE)


def _folders(name: str) -> list[Path]:
    """The folders of includes: that of the file, that of the package's kernels, and that of replaced host headers."""
    own = Path(name).absolute().parent
    return [*([own] if "/" in name or os.sep in name else []), PRELUDE, HOST_HEADERS]


@dataclass(frozen=True)
class _Includes:
    """The files that a source includes, directly or through other files, each with its digest.

    ``elsewhere``: some includes are not in these folders. They come with the compiler, whose version is in the cache key.
    ``complete``: no include is named by a macro, so all included files are known.
    """

    files: tuple[tuple[str, str], ...]
    elsewhere: bool
    complete: bool


def _included(source: str, name: str) -> _Includes:
    folders = _folders(name)
    found: dict[Path, str] = {}
    elsewhere, complete = False, True
    waiting = [(source, folders)]
    while waiting:
        text, places = waiting.pop()
        for quoted, angled, macro in _INCLUDE.findall(text):
            path = next((p for folder in places if (p := folder / (quoted or angled)).is_file()), None)
            complete = complete and not macro.strip()
            elsewhere = elsewhere or path is None
            if path is not None and path not in found:
                content = path.read_bytes()
                found[path] = hashlib.sha256(content).hexdigest()
                waiting.append((content.decode(errors="replace"), [path.parent, *folders]))
    return _Includes(tuple(sorted((str(path), digest) for path, digest in found.items())), elsewhere, complete)


# ---- the cache on disk -----------------------------------------------------------------------------------------------


def _cache_file(key: str) -> CacheFile:
    return CacheFile("nvrtc", f"{key}.json")


def _cached(key: str) -> tuple[str, bytes, str] | None:
    """The result that is cached under ``key``; None if there is none, or its file is incomplete."""
    digest, _, body = (_cache_file(key).read() or b"").partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    cached = json.loads(body)
    return cached["ptx"], base64.b64decode(cached["cubin"]), cached["log"]


def _cache(key: str, compiled: tuple[str, bytes, str]) -> None:
    ptx, cubin, log = compiled
    body = json.dumps({"ptx": ptx, "cubin": base64.b64encode(cubin).decode(), "log": log}).encode()
    _cache_file(key).write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
