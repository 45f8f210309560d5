"""Compiles CUDA C++ for any GPU, on any machine, by NVRTC through ``cuda.core``. NVRTC and ``cuda.core`` are on PyPI;
neither a toolkit nor a GPU is needed.

The result is the cubin, which a GPU runs; the PTX, which the microscope runs; and the kernel's resources, which are
read from the cubin. It is cached on disk. The key of the cache covers everything that determines the result, also all
files that the source includes.
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
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import CompileError, UnavailableError, UsageError, did_you_mean, how_to_install
from ...host.cached_property import cached_property
from ...host.disk import CacheFile, fingerprint
from ...host.sources import PACKAGE
from ...host.steps import announced
from ...kernels.cuda_kernel import CudaKernel
from .cubin import Resources, demangled, found_entry, is_identifier, read_resources
from .host_code import TORCH, DeviceCode
from .nvcc import compile_by_nvcc, nvcc

# ---- which files a source includes, and where the compiler looks for them --------------------------------------------

#: Where ``prelude.cuh`` is, for the kernels of the package and for those of users.
PRELUDE = PACKAGE / "kernels" / "cuda"
#: Where the headers of asynchronous instructions are, for the same.
ENGINE = PACKAGE / "gpu" / "kernels"

#: Replacements for the host's headers that sources for nvcc include: NVRTC has none of these.
HOST_HEADERS = PRELUDE / "host_headers"

#: The names that nvcc has in every source without an include.
NVCC_NAMES = HOST_HEADERS / "nvcc_names.h"

#: The first NVRTC that brings CUDA's own headers and libcu++.
_BRINGS_HEADERS = (13, 3)

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(.*))$', re.MULTILINE)


def folders_of(name: str, include: Sequence[str | Path]) -> list[Path]:
    """The folders that are searched for included files: the folder of the source, the caller's folders, the folders of
    the package's kernels, and the folder of replaced host headers. Raises UsageError if one of the caller's folders
    does not exist."""
    if isinstance(include, str | Path):
        raise UsageError(f"include must be a list of folders, such as [{str(include)!r}], given {include!r}")
    for folder in include:
        if not Path(folder).is_dir():
            raise UsageError(f"include: {folder} is not a folder")
    own = [Path(name).absolute().parent] if "/" in name or os.sep in name else []
    return [*own, *(Path(folder).absolute() for folder in include), PRELUDE, ENGINE, HOST_HEADERS]


@dataclass(frozen=True)
class Includes:
    """The files that a source includes, directly or through other files, each with its digest.

    ``missing`` are names of included files that are not in the searched folders. Files that are ``missing`` come with
    the compiler, whose version is in the cache key. ``complete`` means that no ``#include`` gets its file name from a
    macro, so that all included files are known.
    """

    files: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    complete: bool


def included(source: str, folders: Sequence[Path]) -> Includes:
    """The files that a source includes from these folders. Conditions of the preprocessor are not evaluated."""
    found: dict[Path, str] = {}
    missing: dict[str, None] = {}
    complete = True
    waiting: list[tuple[str, Sequence[Path]]] = [(source, folders)]
    while waiting:
        text, places = waiting.pop()
        for quoted, angled, macro in _INCLUDE.findall(text):
            path = next((p for folder in places if (p := folder / (quoted or angled)).is_file()), None)
            complete = complete and not macro.strip()
            if path is None:
                missing[quoted or angled] = None
            elif path not in found:
                content = path.read_bytes()
                found[path] = hashlib.sha256(content).hexdigest()
                waiting.append((content.decode(errors="replace"), [path.parent, *folders]))
    return Includes(tuple(sorted((str(path), digest) for path, digest in found.items())), tuple(missing), complete)


def headers_needed(includes: Includes, compiler: str) -> list[Path] | None:
    """The folders of CUDA's headers that a source needs: no folders, those of a toolkit, or None for the headers within
    NVRTC.

    Raises UnavailableError if the source includes a CUDA header that this NVRTC is too old to contain, and no toolkit
    is installed.
    """
    if not includes.missing:
        return []
    found = re.search(r"(\d+)\.(\d+)", compiler)
    if found is None or (int(found[1]), int(found[2])) >= _BRINGS_HEADERS:
        return None
    folders = toolkit_headers()
    for header in includes.missing:
        if (package := _package_of(header)) and not any((folder / header).is_file() for folder in folders):
            newest = ".".join(map(str, _BRINGS_HEADERS))
            raise UnavailableError(
                f"{header}: not found, and {compiler} brings no headers: pip install {package}, or an nvidia-cuda-nvrtc "
                f"from {newest} on"
            )
    return folders


def toolkit_headers() -> list[Path]:
    """The installed folders with CUDA's headers and libcu++: from wheels, else from a toolkit."""
    from importlib import metadata  # slow, and only needed to compile for a GPU

    folders = []
    for package in ("nvidia-cuda-runtime", "nvidia-cuda-cccl"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            for file in metadata.files(package) or []:
                if file.name in ("cuda_fp16.h", "pipeline") and "include" in file.parts:
                    at = Path(str(file.locate()))
                    folders.append(at.parent if file.name == "cuda_fp16.h" else at.parents[1])
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            folders += [Path(home, "include"), Path(home, "include", "cccl")]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


@functools.cache  # each line of a listing asks
def is_library(file: str) -> bool:
    """Whether a source file is a header of CUDA, its libraries, CUTLASS or this package, and not the user's.

    >>> is_library("/usr/local/cuda-13.0/targets/x86_64-linux/include/cuda_fp16.hpp"), is_library("/home/me/tile.cuh")
    (True, False)
    >>> is_library("third_party/cutlass/include/cute/arch/copy.hpp"), is_library("/home/me/cutlass/examples/tile.cuh")
    (True, False)
    """
    own = file.startswith((f"{PRELUDE}/", f"{ENGINE}/")) and not file.endswith(".cu")
    return own or _LIBRARIES.search(file) is not None


_LIBRARIES = re.compile(
    r"/(nvrtc-bundled-headers|cuda(-[\d.]+)?/(targets/[^/]+/)?include|nvidia/(cu\d+|cuda_\w+)/include)/"
    r"|(^|/)include/(cutlass|cute|cub|thrust|cuda|nv)/"
)

#: Beginnings of the names of headers, and the package that has them.
_PACKAGES = {
    "cuda/": "nvidia-cuda-cccl",
    "nv/": "nvidia-cuda-cccl",
    "cub/": "nvidia-cuda-cccl",
    "thrust/": "nvidia-cuda-cccl",
    "cuda_": "nvidia-cuda-runtime",
    "cooperative_groups": "nvidia-cuda-runtime nvidia-cuda-cccl",
    "mma.h": "nvidia-cuda-runtime nvidia-cuda-crt",
    "curand": "nvidia-curand",
}


def _package_of(header: str) -> str:
    return next((package for start, package in _PACKAGES.items() if header.startswith(start)), "")


def _may_come_with_compiler(header: str) -> bool:
    """Whether a header may be one of CUDA's own headers, which come with NVRTC. Headers of the host are not, and
    neither is Thrust, which is for the host."""
    return (
        re.match(r"cu[dA-Z]|cuda|crt/|nv/|cub/|mma\.h|cooperative_groups|vector_types|math_constants", header)
        is not None
    )


def hint_for(header: str, quoted: bool) -> str:
    """A hint on what to do about a header that the compiler does not find; empty for headers of the host, which kernels
    do not need.

    ``quoted`` means that the source includes the header in quotation marks, as it includes its own files.
    """
    for folder in toolkit_headers():
        if (folder / header).is_file():
            return f"it is in {folder}: give this folder as include=[…], or with -I"
    if package := _package_of(header):
        return f"pip install {package}"
    if header.startswith(TORCH):
        return "they are PyTorch's, for host code; of their types kernels have only at::Half and at::BFloat16"
    if quoted or "/" in header or header.endswith((".cuh", ".hpp", ".inl", ".cu")):
        return "give the folder that has it as include=[…], or with -I"
    return ""


# ---- the compiler ----------------------------------------------------------------------------------------------------

#: H100 and H200, with the instructions that only they have.
DEFAULT_ARCH = "sm_90a"

#: The macro with which a kernel adds its product to C.
_ADD = {"ACCUMULATE": 1}

#: Part of the cache key: to be changed with the content of the cache or the way of compiling.
_FORMAT = 3


@dataclass(frozen=True)
class Compiled:
    """A compiled source: its PTX, or a function that makes it, and its binary for ``arch``.

    ``lowered`` maps the C++ names that were requested to their names in the binary. ``entries`` are the names of the
    kernels in the binary, in the order of the source. ``waits`` says whether the kernels themselves wait until the
    launch before them has ended, so that they may be started before that launch has ended."""

    name: str
    arch: str
    text: str | Callable[[], str]
    cubin: bytes
    log: str
    lowered: Mapping[str, str] = field(default_factory=dict)
    entries: tuple[str, ...] = ()
    waits: bool = False

    @cached_property
    def ptx(self) -> str:
        """The PTX of the source."""
        return self.text if isinstance(self.text, str) else self.text()

    @cached_property
    def resources(self) -> dict[str, Resources]:
        """The resources of each kernel. The resources are read only when needed, because reading the binary takes 0.1
        s."""
        return read_resources(self.cubin)

    def entry(self, function: str) -> str:
        """The name in the binary of the kernel that the source calls ``function``. The kernel may be ``extern "C"`` or
        not, in a namespace, or an instance of a template, such as ``ns::k<8>``.

        Raises UsageError if there is no such kernel, or several (overloads, instances of a template).
        """
        return found_entry(self.name, self.entries, self.lowered.get(function, function))

    def readable(self, entry: str) -> str:
        """The name of a kernel as it was requested, or its C++ name if it was not requested by name. ``entry`` is the
        kernel's name in the binary."""
        return next((name for name, lowered in self.lowered.items() if lowered == entry), demangled(entry))


# ---- compile ---------------------------------------------------------------------------------------------------------


def compile_kernel(
    kernel: CudaKernel,
    given: Collection[str] = (),
    /,
    *,
    arch: str = DEFAULT_ARCH,
    add: bool | int = False,
    **params: int,
) -> Compiled:
    """``kernel``, compiled with ``params`` and with the defaults of all other parameters. With ``add`` the kernel adds
    its product to C. The macros of ``kernel.given`` remove code that is not needed for sizes and addresses that fulfil
    certain conditions.

    Raises any error of ``compile_with``, and UsageError for a kernel that cannot ``add`` or has no macro of that name.
    """
    if add and not kernel.adds:
        raise UsageError(f"{kernel.name} cannot add to C")
    if unknown := set(given) - kernel.given.keys():
        raise UsageError(f"{kernel.name}: {', '.join(sorted(unknown))} is not in the table given of its header")
    return compile_with(kernel, params, arch, (_ADD if add else {}) | dict.fromkeys(given, 1))


def compile_with(
    kernel: CudaKernel,
    params: Mapping[str, int],
    arch: str,
    defines: Mapping[str, object],
    include: Sequence[str | Path] = (),
    *,
    optimised: bool = True,
) -> Compiled:
    """Compile a kernel like ``compile_kernel``, also with macros, folders of included files and ``optimised`` (see
    ``compile_source``).

    Raises UsageError for a forbidden parameter, a macro that is a parameter, an architecture below the kernel's least,
    and a function that is not in the file. ``compile_with`` also raises any error of ``compile_source``.
    """
    values = kernel.checked(params)
    _check_capability(kernel, arch)
    for name in defines:
        if name in values:
            raise UsageError(f"{name} is a parameter of {kernel.name}: give --param {name}=… in place of -D {name}=…")
    names = () if is_identifier(kernel.entry) else (kernel.entry,)
    options: dict[str, Any] = {"defines": {**defines, **values}, "include": include, "optimised": optimised}
    compiled = compile_source(kernel.source, name=str(kernel.path), arch=arch, names=names, **options)
    compiled.entry(kernel.entry)
    return compiled


def compile_source(
    source: str,
    *,
    name: str = "kernel.cu",
    arch: str = DEFAULT_ARCH,
    defines: Mapping[str, object] | None = None,
    include: Sequence[str | Path] = (),
    names: Sequence[str] = (),
    optimised: bool = True,
) -> Compiled:
    """Compile CUDA C++ text for ``arch`` with line numbers, or load the result from the cache on disk.

    ``name`` is the file of the text: messages and line numbers use it, and files in the same folder can be included.
    ``defines`` are macros, and ``include`` are folders that are searched for included files. ``names`` are kernels by
    their C++ names, such as ``ns::k<8>``; templates are instantiated for them, and ``Compiled.entry`` finds them. Code
    that is not ``optimised`` keeps every variable in memory, and performs every access to it.

    Raises CompileError with the compiler's message. Raises UsageError for an architecture that this NVRTC does not
    support, for a folder that does not exist, and for a name that the source does not have. Raises UnavailableError
    without ``cuda.core`` or NVRTC.

    >>> compile_source('extern "C" __global__ void one(float* x) { *x = 1; }').resources["one"].local_bytes  # doctest: +SKIP
    0
    """
    macros = {key: str(value) for key, value in sorted((defines or {}).items())}
    check_macros(macros)
    check_arch(arch)
    folders = folders_of(name, include)
    includes = included(source, folders)
    modes = () if optimised else ("not optimised",)
    key = fingerprint(
        _FORMAT, source, name, arch, macros, includes, compiler(), str(nvcc()), [*map(str, include)], [*names], *modes
    )
    result = _cached(key) if includes.complete else None
    if result is None:
        job = _Job(name, arch, macros, folders, names, optimised)
        with announced(f"compiling {Path(name).name} for {arch}"):
            result = _compile_any(source, job, includes)
        if includes.complete:
            _cache(key, result)
    ptx, cubin, log, lowered = result
    return compiled_of(name, arch, ptx, cubin, log, lowered)


def compiled_of(
    name: str, arch: str, ptx: str, cubin: bytes, log: str = "", lowered: Mapping[str, str] | None = None
) -> Compiled:
    """The result of a compilation, with the facts that its PTX states."""
    entries = re.findall(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", ptx, re.MULTILINE)
    return Compiled(name, arch, ptx, cubin, log, lowered or {}, tuple(entries), "griddepcontrol.wait" in ptx)


def compile_alone(path: Path, arch: str, macros: Mapping[str, str]) -> Compiled:
    """A file of kernels, compiled for an archive: without line numbers, and not cached."""
    source, folders = path.read_text(encoding="utf-8-sig"), folders_of(str(path), ())
    job = _Job(str(path), arch, macros, folders, lines=False)
    ptx, cubin, *_ = _compile(source, job, headers_needed(included(source, folders), compiler()))
    return compiled_of(str(path), arch, ptx, cubin)


def compile_file(
    path: str | Path, *, arch: str = DEFAULT_ARCH, defines: Mapping[str, object] | None = None
) -> Compiled:
    """Like ``compile_source``, for a file. Raises UsageError if the file cannot be read."""
    try:
        source = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from None
    return compile_source(source, name=str(path), arch=arch, defines=defines)


def check_macros(macros: Mapping[str, str]) -> None:
    """Raise UsageError for a name that no macro can have."""
    for macro in macros:
        if not re.fullmatch(r"[A-Za-z_]\w*", macro):
            raise UsageError(f"{macro!r} cannot be the name of a macro: give NAME=VALUE, such as TILE=32")


_Result = tuple[str, bytes, str, dict[str, str]]


@dataclass(frozen=True)
class _Job:
    """What is compiled, and how. ``folders`` are searched for included files. With ``lines``, the PTX contains the
    source lines, which are most of its text, and the source can use the names that nvcc defines without an include.
    With ``on_device``, functions without a marker are compiled for the GPU."""

    name: str
    arch: str
    macros: Mapping[str, str]
    folders: Sequence[Path]
    names: Sequence[str] = ()
    optimised: bool = True
    lines: bool = True
    on_device: bool = False


def _compile_any(source: str, job: _Job, includes: Includes) -> _Result:
    """Compile a source as it is; if NVRTC refuses it and it has host code, compile it by nvcc if that is installed,
    else without the host code. Raises CompileError with the messages of the last attempt, and with all headers that are
    missing."""
    headers = headers_needed(includes, compiler())
    try:
        return _compile(source, job, headers)
    except CompileError as refused:
        log = str(refused)
    if job.name.startswith(f"{PACKAGE}/"):  # it has no host code
        raise CompileError(log)
    code = DeviceCode(source, job.name, job.folders, (PRELUDE, ENGINE, HOST_HEADERS), _may_come_with_compiler)
    if not code.has_kernel:
        raise CompileError(log)
    with tempfile.TemporaryDirectory() as folder:
        changed = code.learn(log) or code.written(Path(folder)) != source
        if changed and job.optimised and (result := _by_nvcc(source, job)):
            return result
        while changed:
            try:
                result = _compile(code.written(Path(folder)), replace(job, on_device=True), headers)
                return *result[:2], "\n".join([result[2], *_not_found(code)]).strip("\n"), result[3]
            except CompileError as refused:
                log = str(refused)
                changed = code.learn(log)
    raise CompileError("\n".join([log, *(f"hint: {hint}" for hint in [*_not_found(code), *_not_marked(code, log)])]))


def _not_found(code: DeviceCode) -> list[str]:
    """Hints on what to do about missing headers, with one line for all headers that have the same remedy."""
    hints: dict[str, list[str]] = {}
    for header, quoted in code.missing.items():
        if hint := hint_for(header, quoted=quoted):
            hints.setdefault(hint, []).append(header)
    return [f"not found: {', '.join(headers)}: {hint}" for hint, headers in hints.items()]


def _not_marked(code: DeviceCode, log: str) -> list[str]:
    """Functions that a kernel calls, but that do not say that they are for the GPU."""
    unknown = list(dict.fromkeys(re.findall(r'error: identifier "(\w+)" is undefined', log)))
    return [
        f"{name} at {place} is a function of the host: mark it __device__"
        for name, place in code.host_functions(unknown).items()
    ]


def _by_nvcc(source: str, job: _Job) -> _Result | None:
    """The result of nvcc; None if nvcc is not installed or refuses the source, or if the result lacks a requested
    kernel."""
    folders = [folder for folder in job.folders if folder != HOST_HEADERS]
    made = compile_by_nvcc(source, job.name, job.arch, job.macros, folders)
    if made is None:
        return None
    compiled = compiled_of(job.name, job.arch, *made)
    try:
        return *made, {name: compiled.entry(name) for name in job.names}
    except UsageError:
        return None


def _compile(source: str, job: _Job, headers: Sequence[Path] | None) -> _Result:
    """PTX, cubin, log and lowered names of one run of the compiler. ``headers``: folders of CUDA's own headers
    (``cuda_fp16.h``, …); None for those that come with NVRTC. Raises CompileError with its log, and UsageError for a
    name that is not one of a kernel."""
    core, nvrtc = _cuda()
    options = core.ProgramOptions(
        name=job.name,
        arch=job.arch,
        lineinfo=job.optimised and job.lines,
        debug=not job.optimised,
        define_macro=list(job.macros.items()) or None,
        include_path=[str(folder) for folder in [*job.folders, *(headers or ())]],
        use_bundled_headers=headers is None,
        pre_include=str(NVCC_NAMES) if job.lines else None,
        device_as_default_execution_space=job.on_device or None,
    )
    program = core.Program(source, "c++", options)
    try:
        log = io.StringIO()
        try:
            code = program.compile("cubin", name_expressions=tuple(job.names), logs=log)
        except Exception as error:  # cuda.core's own class, not public
            raise _refusal(_log(nvrtc, program) or str(error), job.name) from None
        # Not by cuda.core, which would compile again for PTX and needs a driver for it.
        _, size = nvrtc.nvrtcGetPTXSize(program.handle)
        ptx = bytearray(size)
        nvrtc.nvrtcGetPTX(program.handle, ptx)
        lowered = {key: value.decode() for key, value in code.symbol_mapping.items()} if job.names else {}
        return ptx.decode().rstrip("\0"), bytes(code.code), log.getvalue().rstrip("\0\n"), lowered
    finally:
        program.close()


def _log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program.handle)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program.handle, log)
    return log.decode(errors="replace").strip("\0\n ")


#: Instructions that one generation of GPUs has: where, and a card of that generation.
_GENERATIONS = {"tcgen05": ("sm_100a", "B200"), "wgmma": ("sm_90a", "H200")}


def _other_architecture(log: str) -> list[str]:
    """A hint, if the log complains about an instruction of another generation than the one that is compiled for.

    >>> _other_architecture("Instruction 'tcgen05.alloc' not supported on .target 'sm_90a'")
    ['hint: tcgen05 needs sm_100a: choose a card that has it (--gpu B200), or give arch="sm_100a"']
    """
    found = re.search(r"Instruction '(tcgen05|wgmma)[^']*' not supported on .target", log)
    if found is None:
        return []
    arch, card = _GENERATIONS[found[1]]
    return [f'hint: {found[1]} needs {arch}: choose a card that has it (--gpu {card}), or give arch="{arch}"']


def _refusal(log: str, file: str) -> CompileError | UsageError:
    """The error for a log of the compiler. If the log says that a kernel's name is unknown, the message is one line
    about this name."""
    unknown = re.search(r"\A__nv_name_map\(\d+\): error: (.*)\n.*mangled_name (.*)", log)
    if unknown is None:
        return CompileError("\n".join([log, *_other_architecture(log)]))
    name = unknown[2].strip()
    if "non-__global__" in unknown[1]:
        return UsageError(f"{file}: {name} is not a kernel (__global__)")
    what = f"; name an instance, such as {name}<8>" if "function template" in unknown[1] else ""
    return UsageError(f"{file}: there is no kernel {name}: {unknown[1]}{what}")


# ---- the compiler ----------------------------------------------------------------------------------------------------


@functools.cache  # imports them once
def _cuda() -> tuple[Any, Any]:
    """``cuda.core`` and the bindings of NVRTC; raises UnavailableError if one of them, or NVRTC itself, is missing."""
    try:
        core = importlib.import_module("cuda.core")
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except Exception as error:  # a library that does not load may raise any class
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnavailableError(f"cuda.core with NVRTC cannot be loaded ({reason}); {how_to_install('cuda')}") from None
    return core, nvrtc


@functools.cache  # a search for packages, of a millisecond
def compiler() -> str:
    """The name and version of the compiler, as in records and cache keys, such as "NVRTC 13.4.92"."""
    from importlib import metadata  # slow, and only needed on a GPU

    _, nvrtc = _cuda()
    _, major, minor = nvrtc.nvrtcVersion()
    for package in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            if metadata.version(package).startswith(f"{major}.{minor}."):
                return f"NVRTC {metadata.version(package)}"
    return f"NVRTC {major}.{minor}"


def architectures() -> tuple[str, ...]:
    """Every architecture for which this NVRTC compiles, such as "sm_75", with the oldest first."""
    _, nvrtc = _cuda()
    _, known = nvrtc.nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in sorted(known))


def check_arch(arch: str) -> None:
    """Raise UsageError for an architecture that this NVRTC cannot compile for.

    Code for "sm_90" runs on every later GPU of its generation. From 9.0 on, "sm_90a" adds the instructions that only
    this architecture has. From 10.0 on, "sm_100f" adds the instructions that all architectures of its family have.
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


# ---- the cache on disk -----------------------------------------------------------------------------------------------


def _cached(key: str) -> _Result | None:
    """The result that is cached under ``key``; None if there is none, or its file is incomplete."""
    content = CacheFile("nvrtc", f"{key}.json").read_checked()
    if content is None:
        return None
    cached = json.loads(content)
    return cached["ptx"], base64.b64decode(cached["cubin"]), cached["log"], cached["lowered"]


def _cache(key: str, compiled: _Result) -> None:
    ptx, cubin, log, lowered = compiled
    stored = {"ptx": ptx, "cubin": base64.b64encode(cubin).decode(), "log": log, "lowered": lowered}
    CacheFile("nvrtc", f"{key}.json").write_checked(json.dumps(stored).encode())
