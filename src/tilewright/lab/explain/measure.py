"""Reads the hardware counters of this machine's GPU for a kernel that was explained (``tilewright explain --measure``).

NVIDIA's profiler ``ncu`` prints the counters as CSV: the counters of each launch, and the counts of each machine
instruction.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LaunchError, UnavailableError, UsageError
from ...gpu.runtime.cubin import demangled
from ...gpu.runtime.device import open_device
from ...gpu.runtime.engine_product import plain_launch
from ...gpu.runtime.launch import Mapped
from ...gpu.runtime.nvrtc import Compiled, compiler
from ...kernels.cuda_kernel import CudaKernel
from ...records.explanation import Explanation
from ...records.unit_counters import UNIT_LABELS
from ...simulator.assembly.disassembly import MachineInstruction, disassemble, parse_sass
from ...simulator.assembly.source_files import file_label
from ...simulator.counters.hardware_names import LABELS
from ...simulator.gpus import find_gpu
from . import stored_launches
from .checked_launch import operands, verified
from .stored_launches import StoredLaunch

#: The names of the counts of a source line.
BY_LINE = ("sectors", "wavefronts", "executed")


def measured(kernel: CudaKernel, explanation: Explanation, seed: int) -> dict[str, Any]:
    """Launch ``kernel`` under NVIDIA's profiler, as it was launched for ``explanation`` and with the operands of ``seed``.

    Returns values for JSON:

    - ``counters``: the count of each hardware counter, by its name.
    - ``by_line``: the counts of the instructions of each source line: those in ``BY_LINE`` that are not 0. A line is
      named "7", or "tile.cuh:7" in an included file.
    - ``verified``: ok, reason and error_over_bound of the C that the GPU computed. An infinite error_over_bound is None.
    - ``environment``: gpu, driver, ncu, compiler, arch, command.

    Raises what ``check_gpu`` raises, and LaunchError if the GPU refuses or stops the kernel.

    >>> explanation = explain(kernel, 64, 64, 64)  # doctest: +SKIP
    >>> measured(kernel, explanation, seed=1)["counters"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]  # doctest: +SKIP
    40960
    """
    return measured_together(kernel, [explanation], seed)[0]


def measured_together(kernel: CudaKernel, explanations: Sequence[Explanation], seed: int) -> list[dict[str, Any]]:
    """Measure a kernel at several sizes with the same parameters, in one run of the profiler; see ``measured``."""
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
    of_units = tuple(name for name in HOPPER_COUNTERS if any(name in e.counters for e in explanations))
    profiles = profile_launches(compiled, launches, COUNTERS + of_units)
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
    profile: Profile,
    code: Sequence[MachineInstruction],
) -> dict[str, Any]:
    if not is_name_of(profile.kernel, launch.entry):
        raise LaunchError(f"{kernel.name}: {launch.entry} was launched, but ncu counted {profile.kernel}")
    a, b = launch.args[:2]
    by_place = {
        _place(file_label(file, str(kernel.path)), line): {name: counts[name] for name in BY_LINE if counts[name]}
        for (file, line), counts in counts_by_line(profile.instructions, code).items()
        if file
    }
    verdict = verified(kernel, a, b, profile.arrays[result]).as_dict()
    return {"counters": profile.counters, "by_line": by_place, "verified": verdict}


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if file else str(line)


def check_gpu(name: str) -> None:
    """Check that this machine's GPU is the one called ``name``, and that it can be profiled.

    Raises UnavailableError if there is no GPU or no ncu, and UsageError if the GPU has another name.
    """
    gpu = open_device()
    find_ncu()
    try:
        card = find_gpu(gpu.name)
    except UsageError:
        unknown = f"--measure counts on this machine's {gpu.name}, and of that card nothing is known here"
        raise UnavailableError(unknown) from None
    if find_gpu(name) is not card:
        raise UsageError(f"--measure counts on this machine's {gpu.name}: give --gpu {shlex.quote(card.name)}")


def gpu_and_driver() -> dict[str, str]:
    """The name of the first GPU, and the version of its driver."""
    query = "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"
    gpu, _, driver = _printed("nvidia-smi", *query).partition(", ")
    return {"gpu": gpu, "driver": driver}


def tools() -> dict[str, str]:
    """The name of the first GPU, the version of its driver, and the version of the profiler."""
    return {**gpu_and_driver(), "ncu": _printed(str(find_ncu()), "--version").rpartition("\n")[2]}


def _printed(*command: str) -> str:
    """The text that a command prints. If the command fails, the text is its error, so that the measurement is not
    lost."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)


# ---- hardware --------------------------------------------------------------------------------------------------------
# Hardware counters of a kernel on a GPU, by NVIDIA's profiler ``ncu``: in total, and for each machine instruction.
#
# ``ncu`` runs a program, and each of its kernels as often as it takes to read all counters (memory is restored in
# between). It writes a report, which is read here as CSV. Counters need a permission that the driver may deny
# (``ERR_NVGPUCTRPERM``). Clocks are not fixed: that would need another permission, and counts do not depend on them.


#: The counters that the microscope predicts: those that every GPU has, and those of units that only Hopper has.
COUNTERS = tuple(name for name in LABELS if name not in UNIT_LABELS)
HOPPER_COUNTERS = tuple(UNIT_LABELS)
#: The number of counters in one run of ncu. For more counters than the hardware can count in one pass, ncu runs the kernel
#: again. A counter that is a sum over several passes is then wrong. For example, sectors are the sum of hits and misses, and
#: the hits differ from pass to pass: 4,267 stored sectors were counted instead of 4,096.
AT_ONCE = 8
#: The sections of ncu that count each instruction. The first section also samples; its samples are not read.
_SECTIONS = ("SourceCounters", "MemoryWorkloadAnalysis_Tables")


def find_ncu() -> Path:
    """The path of ncu: on PATH, or under CUDA_HOME or /opt/nvidia/nsight-compute. Raises UnavailableError if ncu is in
    none of these places."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    folders += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    ncu = shutil.which("ncu") or next((at for p in folders if (at := shutil.which("ncu", path=str(p)))), None)
    if ncu is None:
        raise UnavailableError("ncu: not found; it is part of NVIDIA's CUDA toolkit (Nsight Compute)")
    return Path(ncu)


# ---- run it ----------------------------------------------------------------------------------------------------------


def ncu_counters(
    command: Sequence[str],
    kernel: str | None = None,
    metrics: Sequence[str] = COUNTERS,
    *,
    timeout: float | None = None,
) -> list[dict[str, float]]:
    """The counters of each launch that ``command`` makes, in order. With ``kernel``, a name in the binary, only the
    counters of this kernel's launches are returned.

    Raises what ``profile`` raises.
    """
    return [launch.counters for launch in profile(command, kernel, metrics, lines=False, timeout=timeout)]


def profile(
    command: Sequence[str],
    kernel: str | None = None,
    metrics: Sequence[str] = COUNTERS,
    *,
    lines: bool = True,
    timeout: float | None = None,
) -> list[Profile]:
    """Run a program under ncu, several times, and return the counts of each launch; with ``lines`` also those of each
    instruction.

    ``timeout`` is the seconds for one run of ncu. Raises UnavailableError, with ncu's message, if ncu is missing or may not
    read the counters. Raises LaunchError, with the program's message, if the program failed or did not launch the kernel.
    """
    chosen = ["--kernel-name-base", "mangled", "--kernel-name", kernel] if kernel else []
    profiles: list[Profile] = []
    for first in range(0, len(metrics), AT_ONCE):
        names = metrics[first : first + AT_ONCE]
        totals = read_raw(_page([*chosen, "--metrics", ",".join(names)], command, "raw", timeout))
        totals = [replace(t, counters={n: t.counters[n] for n in names if n in t.counters}) for t in totals]
        profiles = _merged(profiles, totals)
    if lines:
        sections = [*chosen, *(part for section in _SECTIONS for part in ("--section", section))]
        _add_instructions(profiles, read_instructions(_page(sections, command, "source", timeout)))
    return profiles


def _page(options: Sequence[str], command: Sequence[str], page: str, timeout: float | None) -> str:
    """One page, as CSV, of the report of one run of ncu with these options."""
    ncu = str(find_ncu())
    with tempfile.TemporaryDirectory(prefix="tilewright-ncu-") as folder:
        report = Path(folder, "report.ncu-rep")
        always = ["--clock-control", "none", "--target-processes", "all", *options, "--export", str(report)]
        printed = _run([ncu, *always, *command], timeout)
        if not report.is_file():
            raise LaunchError(f"{' '.join(command)}: launched no such kernel: {printed}")
        units = ["--print-units", "base"] if page == "raw" else []
        return _run([ncu, "--import", str(report), "--page", page, "--csv", *units], timeout)


def _merged(before: list[Profile], now: list[Profile]) -> list[Profile]:
    """The same launches in two runs of a program, with the counters of both."""
    if not before:
        return now
    if [launch.kernel for launch in before] != [launch.kernel for launch in now]:
        raise LaunchError("the program launches other kernels each time: counters of several runs cannot be merged")
    return [replace(new, counters=old.counters | new.counters) for old, new in zip(before, now, strict=True)]


def _add_instructions(totals: Sequence[Profile], code: Sequence[tuple[str, list[CountedInstruction]]]) -> None:
    """Add the instructions of each launch to it. ncu 2025.3 prints each launch of a kernel twice if there are
    several."""
    if len(code) == len(totals):
        for launch, (_, instructions) in zip(totals, code, strict=True):
            launch.instructions.extend(instructions)
        return
    for name in {launch.kernel for launch in totals}:
        launches = [launch for launch in totals if launch.kernel == name]
        listed = [instructions for kernel, instructions in code if kernel == name]
        times = len(listed) // len(launches)
        same = all(part == listed[i // times * times] for i, part in enumerate(listed)) if times else False
        if len(listed) != times * len(launches) or not same:
            raise UnavailableError(f"ncu: {name} was launched {len(launches)} times, but is listed {len(listed)} times")
        for launch, instructions in zip(launches, listed[::times], strict=True):
            launch.instructions.extend(instructions)


def profile_launches(
    compiled: Compiled, launches: Sequence[StoredLaunch], metrics: Sequence[str] = COUNTERS, *, lines: bool = True,
    timeout: float | None = None,
) -> list[Profile]:  # fmt: skip
    """Make launches in a new process under ncu, and return a profile of each, in order. Raises what ``profile`` raises.

    >>> source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }'
    >>> code = tilewright.gpu.runtime.nvrtc.compile_source(source)  # doctest: +SKIP
    >>> profile_launches(code, [StoredLaunch("k", 1, 32, (np.zeros(32, np.float32),))])[0].counters[
    ...     "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]  # doctest: +SKIP
    4
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-launch-") as folder:
        spec = Path(folder, "launches.npz")
        stored_launches.save_launches(spec, compiled, launches)
        results = Path(folder, "results.npz")
        profiles = profile(command_of(spec, "--results", str(results)), metrics=metrics, lines=lines, timeout=timeout)
        left = stored_launches.read_results(results)
    if not len(profiles) == len(left) == len(launches):
        raise LaunchError(f"{compiled.name}: {len(launches)} launches were made, but ncu counted {len(profiles)}")
    return [replace(each, arrays=arrays) for each, arrays in zip(profiles, left, strict=True)]


def command_of(spec: Path, *more: str) -> list[str]:
    """The command that makes the launches in a file that ``save_launches`` wrote."""
    return [sys.executable, "-m", "tilewright.lab.explain.stored_launches", str(spec), *more]


def _run(command: Sequence[str], timeout: float | None) -> str:
    """The text that a run of ncu printed. Raises UnavailableError for errors of ncu, and LaunchError for errors of the
    program that ncu ran."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu: did not end within {timeout:.0f} s") from None
    except OSError as error:
        raise UnavailableError(f"ncu: {error}") from None
    printed = done.stdout + "\n" + done.stderr
    errors = [line.removeprefix("==ERROR==").strip() for line in printed.splitlines() if line.startswith("==ERROR==")]
    if any("application returned an error code" in line for line in errors):
        raise LaunchError(f"the program under ncu failed: {_tail(printed)}")
    if done.returncode or errors:
        raise UnavailableError(f"ncu: {'; '.join(errors) or _tail(printed) or f'exit code {done.returncode}'}")
    return done.stdout


def _tail(printed: str) -> str:
    """The last line that is not one of ncu's own."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith("==")]
    return lines[-1] if lines else ""


# ---- what ncu prints -------------------------------------------------------------------------------------------------

#: The columns of ncu's source page, and their names in this module. Counts of 0 are left out.
COLUMNS = {
    "Instructions Executed": "executed",
    "Thread Instructions Executed": "threads",
    "Predicated-On Thread Instructions Executed": "threads on",
    "L1 Tag Requests Global": "tag requests",
    "L2 Theoretical Sectors Global": "sectors",
    "L2 Theoretical Sectors Local": "local sectors",
    "L1 Wavefronts Shared": "wavefronts",
    "L1 Wavefronts Shared Ideal": "ideal wavefronts",
    "L1 Conflicts Shared N-Way": "ways",
}


#: The columns of ncu's raw page that are counters. The other columns describe the device and the launch.
_METRIC = re.compile(r"(?:sm|smsp|l1tex|lts)__.*[.](?:sum|avg|max|min)")


@dataclass(frozen=True)
class CountedInstruction:
    """A machine instruction: its offset in the function, its text, and its counts by name (``COLUMNS``)."""

    offset: int
    text: str
    counts: dict[str, int]


@dataclass(frozen=True)
class Profile:
    """What ncu reports about a launch: the kernel's name, the blocks, the threads of a block, the counters by name, and the
    instructions in order.

    If ``profile_launches`` made the launch, ``arrays`` has the contents of the arrays after the launch, by the position
    of the argument.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: dict[str, float]
    instructions: list[CountedInstruction] = field(default_factory=list)
    arrays: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)


def is_name_of(printed: str, entry: str) -> bool:
    """Whether the name that ncu ``printed`` is that of the kernel ``entry`` in the binary, in its mangled or demangled
    form.

    >>> names = "plain(const float *, int)", "void plain<32, 4>(float *)", "other(float *)", "plainer(float *)", "plain"
    >>> [is_name_of(name, "_Z5plainPKfi") for name in names]
    [True, True, False, False, False]
    >>> is_name_of("plain", "plain")
    True
    >>> is_name_of("void sum<int, (unsigned int)256, (bool)1>(T1 *, T1 *)", "_Z3sumIiLj256ELb1EEvPT_S1_")
    True
    """
    function = demangled(entry).partition("<")[0]
    in_cpp = rf"(?:[^(<]*\s)?{re.escape(function)}(?:<.*>)?\(.*\)"
    return printed == entry or (function != entry and re.fullmatch(in_cpp, printed) is not None)


def read_raw(text: str) -> list[Profile]:
    """Read the CSV that ncu prints with ``--page raw``. Lines that the program printed may precede it.

    >>> text = 'hello\\n"ID","Kernel Name","Block Size","Grid Size","sm__m.sum"\\n"","","","","inst"\\n'
    >>> read_raw(text + '"0","k","(32, 1, 1)","(2, 1, 1)","1,024"\\n')
    [Profile(kernel='k', grid=(2, 1, 1), block=(32, 1, 1), counters={'sm__m.sum': 1024}, instructions=[])]
    """
    start = re.search(r'^"ID",', text, re.MULTILINE)
    if start is None:
        return []
    profiles = []
    for row in csv.DictReader(io.StringIO(text[start.start() :])):
        if not (row["ID"] or "").isdigit():
            continue  # the row of units
        cells = {name: _number(cell) for name, cell in row.items() if name and _METRIC.fullmatch(name)}
        counters = {name: value for name, value in cells.items() if value is not None}
        profiles.append(Profile(row["Kernel Name"], _extent(row["Grid Size"]), _extent(row["Block Size"]), counters))
    return profiles


def read_instructions(text: str) -> list[tuple[str, list[CountedInstruction]]]:
    """Read the CSV that ncu prints with ``--page source``: for each launch the kernel's name and its instructions in order.

    >>> read_instructions('Kernel Name,k,\\nAddress,Source,Instructions Executed\\n0x7f10,"  EXIT",4\\n')
    [('k', [CountedInstruction(offset=0, text='EXIT', counts={'executed': 4})])]
    """
    launches: list[tuple[str, list[CountedInstruction]]] = []
    names: list[str] = []
    first = 0
    for row in csv.reader(io.StringIO(text)):
        if row[:1] == ["Kernel Name"]:
            launches.append((",".join(row[1:]).rstrip(","), []))  # a C++ name has commas between its types
            names = []
        elif "Address" in row and "Source" in row:
            names = row
        elif names and launches:
            cells = dict(zip(names, row, strict=False))
            address = int(cells["Address"], 16)
            first = address if not launches[-1][1] else first
            values = ((name, _number(cells.get(column))) for column, name in COLUMNS.items())
            counts = {name: int(value) for name, value in values if value}
            launches[-1][1].append(CountedInstruction(address - first, cells["Source"].strip(), counts))
    return launches


def counts_by_line(
    instructions: Iterable[CountedInstruction], code: Iterable[MachineInstruction]
) -> dict[tuple[str, int], Counter[str]]:
    """The counts of each source line in the user's files, by file and line: sums over the instructions of the line. ``code``
    is the disassembly of the binary that ran.

    Raises UnavailableError if ``code`` is the disassembly of another binary: if it has, at the offset of a counted
    instruction, no instruction or a different one.
    """
    known = {ins.offset: ins for ins in code}
    sums: dict[tuple[str, int], Counter[str]] = {}
    for counted in instructions:
        ins = known.get(counted.offset)
        if ins is None or ins.opcode not in counted.text:
            raise UnavailableError(
                f"the disassembly is of another binary: at {counted.offset:#x}, {counted.text} was run"
            )
        sums.setdefault((ins.users.file, ins.users.line), Counter()).update(counted.counts)
    return dict(sorted(sums.items()))


def _number(text: str | None) -> float | None:
    """A number as ncu prints it, with thousands separators; None for other text."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _extent(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in re.findall(r"\d+", text))
