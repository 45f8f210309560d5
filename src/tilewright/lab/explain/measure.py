"""Counters of this machine's GPU for a kernel that was explained: ``tilewright explain --measure``."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ...errors import LaunchError, UnavailableError, UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...records.explanation import Explanation
from ...runtime.gpu.boxes import Mapped
from ...runtime.gpu.device import open_device
from ...runtime.gpu.nvrtc import compiler
from ...runtime.gpu.plain_launch import plain_launch
from ...simulator.assembly.disassembly import MachineInstruction, disassemble, parse_sass
from ...simulator.assembly.source_files import file_label
from ...simulator.gpus import find_gpu
from . import hardware, ncu_pages
from .result import operands, verified
from .stored_launches import StoredLaunch

#: Counts of each source line.
BY_LINE = ("sectors", "wavefronts", "executed")


def measured(kernel: CudaKernel, explanation: Explanation, seed: int) -> dict[str, Any]:
    """Launch ``kernel`` as ``explanation`` explains it, under NVIDIA's profiler, on the operands of ``seed``; plain JSON
    values.

    ``counters``: name → count. ``by_line``: source line, as "7" or of an included file as "tile.cuh:7" → counts of its
    instructions (``BY_LINE``, without zeros).
    ``verified``: ok, reason, error_over_bound of the GPU's own C (the last is None where it is infinite). ``environment``:
    gpu, driver, ncu, compiler, arch, command. Raises what ``check_gpu`` raises, and LaunchError where the GPU refuses or
    stops the kernel.

    >>> explanation = explain(kernel, 64, 64, 64)  # doctest: +SKIP
    >>> measured(kernel, explanation, seed=1)["counters"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]  # doctest: +SKIP
    40960
    """
    return measured_together(kernel, [explanation], seed)[0]


def measured_together(kernel: CudaKernel, explanations: Sequence[Explanation], seed: int) -> list[dict[str, Any]]:
    """``measured`` for several sizes of a kernel with the same parameters; the profiler runs all of them together."""
    check_gpu(explanations[0].gpu["name"])
    params, environment = explanations[0].params, explanations[0].environment
    arch = environment["arch"]
    options = {"defines": environment.get("defines", {}), "include": environment.get("include", ())}
    plains = []
    for e in explanations:
        if e.params != params or e.environment["arch"] != arch:
            raise UsageError(
                f"{kernel.name}: measured together must have the same parameters, got {e.params} and {params}"
            )
        shape, sms = (e.m, e.n, e.k), e.gpu["sms"]
        plains.append(plain_launch(kernel, shape, kernel.dtypes[0], params, arch=arch, sms=sms, **options))
    compiled, entry = plains[0].compiled, plains[0].entry
    if any(p.compiled.cubin != compiled.cubin for p in plains):  # of the engine: each size has a binary of its own
        return [measured(kernel, e, seed) for e in explanations]
    launches = []
    for e, p in zip(explanations, plains, strict=True):
        given = p.arguments(operands(kernel, e.m, e.n, e.k, seed))
        maps = {i: each.operand for i, each in enumerate(given) if isinstance(each, Mapped)}
        args = tuple(each.memory if isinstance(each, Mapped) else each for each in given)
        launches.append(StoredLaunch(entry, p.launch.grid, p.launch.block, args, p.launch.shared_bytes, maps))
    of_units = tuple(name for name in hardware.HOPPER_COUNTERS if any(name in e.counters for e in explanations))
    profiles = hardware.profile_launches(compiled, launches, hardware.COUNTERS + of_units)
    code = parse_sass(disassemble(compiled.cubin))[entry]
    measured_on = {
        **tools(),
        "compiler": compiler(),
        "arch": arch,
        "command": shlex.join(["tilewright", *sys.argv[1:]]),
    }
    return [
        _counted(kernel, stored, p.result, profile, code) | {"environment": measured_on}
        for stored, p, profile in zip(launches, plains, profiles, strict=True)
    ]


def _counted(
    kernel: CudaKernel,
    launch: StoredLaunch,
    result: int,
    profile: ncu_pages.Profile,
    code: Sequence[MachineInstruction],
) -> dict[str, Any]:
    if not ncu_pages.is_name_of(profile.kernel, launch.entry):
        raise LaunchError(f"{kernel.name}: {launch.entry} was launched, but ncu counted {profile.kernel}")
    a, b = launch.args[:2]
    by_line = {
        _place(file_label(file, str(kernel.path)), line): {name: counts[name] for name in BY_LINE if counts[name]}
        for (file, line), counts in ncu_pages.by_line(profile.instructions, code).items()
        if file
    }
    verdict = verified(kernel, a, b, profile.arrays[result]).as_dict()
    return {"counters": profile.counters, "by_line": by_line, "verified": verdict}


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if file else str(line)


def check_gpu(name: str) -> None:
    """Check that this machine's GPU is the card ``name``, and can be profiled.

    Raises UnavailableError without a GPU or without ncu, UsageError where the GPU is another card.
    """
    gpu = open_device()
    hardware.find_ncu()
    try:
        card = find_gpu(gpu.name)
    except UsageError:
        unknown = f"--measure counts on this machine's {gpu.name}, and of that card nothing is known here"
        raise UnavailableError(unknown) from None
    if find_gpu(name) is not card:
        raise UsageError(f"--measure counts on this machine's {gpu.name}: give --gpu {shlex.quote(card.name)}")


def gpu_and_driver() -> dict[str, str]:
    """The first GPU's name, and the version of its driver."""
    query = "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"
    gpu, _, driver = _printed("nvidia-smi", *query).partition(", ")
    return {"gpu": gpu, "driver": driver}


def tools() -> dict[str, str]:
    """The same, and the version of the profiler."""
    return {**gpu_and_driver(), "ncu": _printed(str(hardware.find_ncu()), "--version").rpartition("\n")[2]}


def _printed(*command: str) -> str:
    """What a command prints; if it fails, its error, so that the measurement is not lost."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
