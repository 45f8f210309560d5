"""Assembles PTX that was given, without a GPU: by nvJitLink, which comes with ``cuda.core``, else by a ``ptxas``.

The binary says which accesses the compiler fuses or removes, and what the kernel takes of a multiprocessor.
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ...errors import UnavailableError
from ...host.disk import CacheFile, fingerprint
from .nvrtc import Compiled, compiled_of

#: Part of the cache key: to be changed with the content of the cache or the way of assembling.
_FORMAT = 1
#: nvJitLink takes no architecture before this one; PTX for an older one is assembled for it.
_OLDEST = 75


def assemble(ptx: str, name: str) -> Compiled:
    """PTX with its binary for the architecture that it names, or loaded from the cache on disk; ``name`` is its file.

    Raises UnavailableError with the reason if there is no assembler, or it refuses the PTX, such as that of a later version.
    """
    target = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", ptx, re.MULTILINE)
    if target is None:
        raise UnavailableError("the PTX names no .target")
    arch = f"sm_{max(int(target[1]), _OLDEST)}{target[2]}"
    file = CacheFile("assembled", f"{fingerprint(_FORMAT, ptx, arch, _version())}.json")
    cached = file.read_checked()
    if cached is not None:
        known = json.loads(cached)
        return compiled_of(name, arch, ptx, base64.b64decode(known["cubin"]), known["log"])
    cubin, log = _by_nvjitlink(ptx, arch) if _nvjitlink() else _by_ptxas(ptx, arch)
    file.write_checked(json.dumps({"cubin": base64.b64encode(cubin).decode(), "log": log}).encode())
    return compiled_of(name, arch, ptx, cubin, log)


@functools.cache  # imports it once
def _nvjitlink() -> Any:
    """The bindings of nvJitLink; None if they, or the library, are not there."""
    try:
        library = importlib.import_module("cuda.bindings.nvjitlink")
        library.version()
        return library
    except Exception:  # a library that does not load may raise any class
        return None


def _version() -> str:
    return ".".join(map(str, _nvjitlink().version())) if _nvjitlink() else str(_ptxas())


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
            raise UnavailableError(f"nvJitLink {_version()} refuses it: {_first_line(log) or error}") from None
        cubin = bytearray(library.get_linked_cubin_size(linker))
        library.get_linked_cubin(linker, cubin)
        log = bytearray(library.get_info_log_size(linker))
        if log:
            library.get_info_log(linker, log)
        return bytes(cubin), log.decode(errors="replace").strip("\0\n ")
    finally:
        library.destroy(linker)


def _by_ptxas(ptx: str, arch: str) -> tuple[bytes, str]:
    tool = _ptxas()
    if tool is None:
        raise UnavailableError("neither nvJitLink nor ptxas is found; pip install 'tilewright[cuda]'")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "given.ptx"), Path(folder, "given.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [tool, "-lineinfo", f"-arch={arch}", source, "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"{tool} refuses it: {_first_line(done.stderr.encode())}")
        return made.read_bytes(), done.stderr


def _ptxas() -> Path | None:
    """``ptxas``: on PATH, else that of Triton."""
    if found := shutil.which("ptxas"):
        return Path(found)
    triton = importlib.util.find_spec("triton")
    own = Path(triton.origin).parent / "backends/nvidia/bin/ptxas" if triton and triton.origin else None
    return own if own and own.is_file() else None


def _first_line(log: bytes | bytearray) -> str:
    """The first message of ptxas in a log: an error, else why it ended."""
    lines = [line.strip() for line in log.decode(errors="replace").strip("\0\n ").splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\s+:", line)), lines[0] if lines else "")
