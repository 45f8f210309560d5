"""What the hardware counts while a kernel runs: NVIDIA's profiler ``ncu``, in total and by instruction of the machine.

``ncu`` runs a program and every kernel of it as often as it has counters to read (it puts memory back in between), and keeps
them in a report, which is read back here as CSV. Counters need a permission that the driver may deny
(``ERR_NVGPUCTRPERM``), and clocks are left alone: to fix them is another permission, and counts do not depend on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import LaunchError, UnavailableError
from ...runtime.gpu.nvrtc import Compiled
from ...simulator.counters.hardware_names import LABELS
from . import launched
from .launched import StoredLaunch
from .ncu_pages import CountedInstruction, Profile, read_raw, read_source

#: The counters that the microscope predicts.
COUNTERS = tuple(LABELS)
#: Counters asked for at once. Where these are more than the hardware counts in one pass, ncu runs the kernel again; what it
#: adds up from several (sectors: hits and misses) is then off, for hits do not repeat: 4,267 stored sectors for 4,096.
AT_ONCE = 8
#: Sections of ncu that count by instruction; sampling is part of the first, and what it says is not read.
_SECTIONS = ("SourceCounters", "MemoryWorkloadAnalysis_Tables")


def find_ncu() -> Path:
    """Where ncu is: on PATH, else under CUDA_HOME or /opt/nvidia/nsight-compute. Raises UnavailableError if nowhere."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    found = shutil.which("ncu") or next((at for p in places if (at := shutil.which("ncu", path=str(p)))), None)
    if found is None:
        raise UnavailableError("ncu: not found; it is part of NVIDIA's CUDA toolkit (Nsight Compute)")
    return Path(found)


# ---- run it ----------------------------------------------------------------------------------------------------------


def ncu_counters(
    command: Sequence[str],
    kernel: str | None = None,
    metrics: Sequence[str] = COUNTERS,
    *,
    timeout: float | None = None,
) -> list[dict[str, float]]:
    """Counters of every launch that ``command`` makes, in order; of one kernel alone with its name in the binary.

    Raises what ``profile`` raises.
    """
    return [found.counters for found in profile(command, kernel, metrics, lines=False, timeout=timeout)]


def profile(
    command: Sequence[str],
    kernel: str | None = None,
    metrics: Sequence[str] = COUNTERS,
    *,
    lines: bool = True,
    timeout: float | None = None,
) -> list[Profile]:
    """Run a program under ncu, several times: what was counted in each launch, with ``lines`` also by instruction.

    ``timeout`` is in seconds, for each run of ncu. Raises UnavailableError, with ncu's words, where ncu is missing or
    refused; LaunchError, with the program's, where the program itself failed or launched no such kernel.
    """
    chosen = ["--kernel-name-base", "mangled", "--kernel-name", kernel] if kernel else []
    found: list[Profile] = []
    for first in range(0, len(metrics), AT_ONCE):
        names = metrics[first : first + AT_ONCE]
        totals = read_raw(_page([*chosen, "--metrics", ",".join(names)], command, "raw", timeout))
        found = _together(
            found, [replace(t, counters={n: t.counters[n] for n in names if n in t.counters}) for t in totals]
        )
    if lines:
        asked = [*chosen, *(part for section in _SECTIONS for part in ("--section", section))]
        _add_instructions(found, read_source(_page(asked, command, "source", timeout)))
    return found


def _page(asked: Sequence[str], command: Sequence[str], page: str, timeout: float | None) -> str:
    """One page, as CSV, of the report of one run of ncu."""
    ncu = str(find_ncu())
    with tempfile.TemporaryDirectory(prefix="tilewright-ncu-") as folder:
        report = Path(folder, "report.ncu-rep")
        how = ["--clock-control", "none", "--target-processes", "all", *asked, "--export", str(report)]
        said = _run([ncu, *how, *command], timeout)
        if not report.is_file():
            raise LaunchError(f"{' '.join(command)}: launched no such kernel: {said}")
        units = ["--print-units", "base"] if page == "raw" else []
        return _run([ncu, "--import", str(report), "--page", page, "--csv", *units], timeout)


def _together(before: list[Profile], now: list[Profile]) -> list[Profile]:
    """The launches of two runs of a program, with the counters of both."""
    if not before:
        return now
    if [found.kernel for found in before] != [found.kernel for found in now]:
        raise LaunchError("the program launches other kernels each time: its counters cannot be put together")
    return [replace(new, counters=old.counters | new.counters) for old, new in zip(before, now, strict=True)]


def _add_instructions(totals: Sequence[Profile], code: Sequence[tuple[str, list[CountedInstruction]]]) -> None:
    """Each launch gets its instructions. ncu 2025.3 prints a kernel that was launched several times twice each time."""
    if len(code) == len(totals):
        for found, (_, instructions) in zip(totals, code, strict=True):
            found.instructions.extend(instructions)
        return
    for name in {found.kernel for found in totals}:
        launches = [found for found in totals if found.kernel == name]
        listed = [instructions for kernel, instructions in code if kernel == name]
        times = len(listed) // len(launches)
        same = all(part == listed[i // times * times] for i, part in enumerate(listed)) if times else False
        if len(listed) != times * len(launches) or not same:
            raise UnavailableError(f"ncu: {name} was launched {len(launches)} times, but is listed {len(listed)} times")
        for found, instructions in zip(launches, listed[::times], strict=True):
            found.instructions.extend(instructions)


def profile_launches(
    compiled: Compiled, launches: Sequence[StoredLaunch], metrics: Sequence[str] = COUNTERS, *, lines: bool = True,
    timeout: float | None = None,
) -> list[Profile]:  # fmt: skip
    """Make launches in a process of their own, under ncu: one profile each, in order. Raises what ``profile`` raises.

    >>> source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }'
    >>> code = tilewright.runtime.gpu.nvrtc.compile_source(source)  # doctest: +SKIP
    >>> profile_launches(code, [StoredLaunch("k", 1, 32, (np.zeros(32, np.float32),))])[0].counters[
    ...     "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]  # doctest: +SKIP
    4
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-launch-") as folder:
        spec = Path(folder, "launches.npz")
        launched.save(spec, compiled, launches)
        kept = Path(folder, "results.npz")
        found = profile(command_of(spec, "--results", str(kept)), metrics=metrics, lines=lines, timeout=timeout)
        left = launched.results(kept)
    if not len(found) == len(left) == len(launches):
        raise LaunchError(f"{compiled.name}: {len(launches)} launches were made, but ncu counted {len(found)}")
    return [replace(one, arrays=arrays) for one, arrays in zip(found, left, strict=True)]


def command_of(spec: Path, *more: str) -> list[str]:
    """The command that makes the launches kept in a file."""
    return [sys.executable, "-m", "tilewright.lab.explain.launched", str(spec), *more]


def _run(command: Sequence[str], timeout: float | None) -> str:
    """What a run of ncu printed; raises for its errors and for those of the program it ran."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu: did not end within {timeout:.0f} s") from None
    except OSError as error:
        raise UnavailableError(f"ncu: {error}") from None
    said = done.stdout + "\n" + done.stderr
    wrong = [line.removeprefix("==ERROR==").strip() for line in said.splitlines() if line.startswith("==ERROR==")]
    if any("application returned an error code" in line for line in wrong):
        raise LaunchError(f"the program under ncu failed: {_tail(said)}")
    if done.returncode or wrong:
        raise UnavailableError(f"ncu: {'; '.join(wrong) or _tail(said) or f'exit code {done.returncode}'}")
    return done.stdout


def _tail(said: str) -> str:
    """The last line that is not one of ncu's own."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("==")]
    return lines[-1] if lines else ""
