"""Kernels compiled to PTX, without a binary: the microscope executes PTX, and half of NVRTC's time goes into the binary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.gpu.runtime import compilations, nvrtc
from tilewright.gpu.runtime.compilations import Compilations
from tilewright.gpu.runtime.launch import Attributes
from tilewright.gpu.runtime.nvrtc import Compiled

_SHARED = re.compile(r"\.shared\b[^;\n]*?\.b(\d+)\s+[\w$]+(?:\[(\d+)\])?;")
_THREADS = re.compile(r"\.(?:req|max)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_WITH_BINARY = nvrtc._compile
#: What is compiled once in a process; a GPU that the same process uses must not be given any of it.
_compilations = Compilations()


def install(monkeypatch: Any) -> None:
    """From now on, sources are compiled to PTX alone, and cached as such. ``Compiled.resources`` of these raises ValueError,
    for there is no binary to read."""
    monkeypatch.setattr(nvrtc, "_compile", _compile)
    monkeypatch.setattr(nvrtc, "_FORMAT", "PTX alone")
    monkeypatch.setattr(compilations, "_compilations", _compilations)


def attributes(compiled: Compiled, entry: str) -> Attributes:
    """What a kernel needs of a multiprocessor: of its binary, or, as far as that is in the PTX, of that."""
    if compiled.cubin:
        has = compiled.resources[entry]
        return Attributes(has.registers, has.shared_bytes, has.local_bytes, has.max_threads or 1024)
    shared = sum(int(bits) // 8 * int(count or 1) for bits, count in _SHARED.findall(compiled.ptx))
    head = compiled.ptx.partition(f".entry {entry}(")[2].partition("{")[0]
    threads = _THREADS.search(head)
    most = 1
    for axis in threads.groups() if threads else ("1024",):
        most *= int(axis or 1)
    return Attributes(0, shared, 0, most)


def _compile(source: str, job: nvrtc._Job, headers: Sequence[Path] | None) -> tuple[str, bytes, str, dict[str, str]]:
    if headers is None or job != replace(job, optimised=True, lines=True, on_device=False):
        return _WITH_BINARY(source, job, headers)  # cuda.core finds the headers that NVRTC brings
    _, nv = nvrtc._cuda()
    virtual = job.arch.replace("sm_", "compute_")
    options = [f"-arch={virtual}", "-lineinfo", *(f"-D{key}={value}" for key, value in job.macros.items())]
    options = [option.encode() for option in [*options, *(f"-I{folder}" for folder in [*job.folders, *headers])]]
    _, program = nv.nvrtcCreateProgram(source.encode(), job.name.encode(), 0, None, None)
    try:
        for each in job.names:
            nv.nvrtcAddNameExpression(program, each.encode())
        (outcome,) = nv.nvrtcCompileProgram(program, len(options), options)
        _, size = nv.nvrtcGetProgramLogSize(program)
        log = bytearray(size)
        nv.nvrtcGetProgramLog(program, log)
        text = log.decode(errors="replace").strip("\0\n ")
        if int(outcome):
            raise nvrtc._refusal(text, job.name)
        _, size = nv.nvrtcGetPTXSize(program)
        ptx = bytearray(size)
        nv.nvrtcGetPTX(program, ptx)
        lowered = {each: nv.nvrtcGetLoweredName(program, each.encode())[1].decode() for each in job.names}
    finally:
        nv.nvrtcDestroyProgram(program)
    return ptx.decode().rstrip("\0"), b"", text, lowered
