"""Assembles a caller's PTX without a GPU, by ``ptxas`` or, if that is not installed, by nvJitLink, which comes with
``cuda.core``.

The binary shows which accesses the compiler fuses or removes, and how many resources of a multiprocessor the kernel
takes. The driver and ``ptxas`` assemble PTX as a whole program. nvJitLink assembles it as a part of a program. In a
part of a program, the address of shared memory is not known, so fewer accesses to shared memory are fused into wide
ones.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ...errors import UnavailableError, how_to_install
from ...host.disk import CacheFile, fingerprint
from .nvrtc import Compiled, compiled_of

#: Part of the cache key: to be changed with the content of the cache or the way of assembling.
_FORMAT = 1
#: nvJitLink takes no architecture before this one; PTX for an older one is assembled for it.
_OLDEST = 75


#: What a binary of nvJitLink leaves open.
AS_A_PART = "nvJitLink may fuse fewer accesses than ptxas, which is not found or too old: pip install nvidia-cuda-nvcc"


def assemble(ptx: str, name: str) -> tuple[Compiled, str]:
    """The PTX with its binary for the architecture that it names, and a text that says what is doubtful about the
    binary: empty, or AS_A_PART. The binary is assembled, or loaded from the cache on disk. ``name`` is the file of the
    PTX.

    Raises UnavailableError with the reason if there is no assembler, or if all assemblers refuse the PTX, for example
    because its version is later.
    """
    target = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", ptx, re.MULTILINE)
    if target is None:
        raise UnavailableError("the PTX names no .target")
    arch = f"sm_{max(int(target[1]), _OLDEST)}{target[2]}"
    tools = [*_ptxas(), *(["nvJitLink"] if _nvjitlink() else [])]
    file = CacheFile("assembled", f"{fingerprint(_FORMAT, ptx, arch, *map(_version, tools))}.json")
    if (cached := file.read_checked()) is not None:
        known = json.loads(cached)
        return compiled_of(name, arch, ptx, base64.b64decode(known["cubin"]), known["log"]), known["doubt"]
    refused = "" if tools else f"neither ptxas nor nvJitLink is found; {how_to_install('cuda')}"
    for tool in tools:
        try:
            cubin, log = _by_nvjitlink(ptx, arch) if tool == "nvJitLink" else _by_ptxas(tool, ptx, arch)
        except UnavailableError as error:
            refused = str(error)
            continue
        doubt = AS_A_PART if tool == "nvJitLink" else ""
        stored = {"cubin": base64.b64encode(cubin).decode(), "log": log, "doubt": doubt}
        file.write_checked(json.dumps(stored).encode())
        return compiled_of(name, arch, ptx, cubin, log), doubt
    raise UnavailableError(refused)


@functools.cache  # imports it once
def _nvjitlink() -> Any:
    """The bindings of nvJitLink; None if the bindings or the library are not installed."""
    try:
        library = importlib.import_module("cuda.bindings.nvjitlink")
        library.version()
        return library
    except Exception:  # a library that does not load may raise any class
        return None


def _version(tool: str) -> str:
    """A text that identifies the release of an assembler."""
    if tool == "nvJitLink":
        return ".".join(map(str, _nvjitlink().version()))
    release = Path(tool).stat()
    return f"{tool} {release.st_size} {release.st_mtime_ns}"


def _by_nvjitlink(ptx: str, arch: str) -> tuple[bytes, str]:
    library, text = _nvjitlink(), ptx.encode()
    options = [f"-arch={arch}", "-lineinfo"]
    linker = library.create(len(options), options)
    try:
        try:
            library.add_data(linker, library.InputType.PTX, text, len(text), "given.ptx")
            library.complete(linker)
        except library.nvJitLinkError as error:
            log = bytearray(library.get_error_log_size(linker))
            library.get_error_log(linker, log)
            raise UnavailableError(
                f"nvJitLink {_version('nvJitLink')} refuses it: {_first_line(log) or error}"
            ) from None
        cubin = bytearray(library.get_linked_cubin_size(linker))
        library.get_linked_cubin(linker, cubin)
        log = bytearray(library.get_info_log_size(linker))
        if log:
            library.get_info_log(linker, log)
        return bytes(cubin), log.decode(errors="replace").strip("\0\n ")
    finally:
        library.destroy(linker)


def _by_ptxas(tool: str, ptx: str, arch: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "given.ptx"), Path(folder, "given.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [tool, "-lineinfo", f"-arch={arch}", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"{tool} refuses it: {_first_line(done.stderr.encode())}")
        return made.read_bytes(), done.stderr


def _ptxas() -> list[str]:
    """Each ``ptxas`` that is installed: that of the package nvidia-cuda-nvcc, on PATH, under CUDA_HOME, and Triton's."""
    found = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("nvidia-cuda-nvcc") or []
        found = [str(file.locate()) for file in files if file.name == "ptxas"]
    found.append(shutil.which("ptxas") or "")
    if home := os.environ.get("CUDA_HOME"):
        found.append(shutil.which("ptxas", path=str(Path(home, "bin"))) or "")
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        found.append(str(Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"))
    return list(dict.fromkeys(tool for tool in found if tool and Path(tool).is_file()))


def _first_line(log: bytes | bytearray) -> str:
    """The first message of ptxas in a log: an error, or the reason why ptxas ended."""
    lines = [line.strip() for line in log.decode(errors="replace").strip("\0\n ").splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\s+:", line)), lines[0] if lines else "")
