"""Compares the microscope's counters with a GPU's for public kernels: ``foreign_counters.py OUT.jsonl FOLDER …``.

``foreign-launches.txt`` has the kernels and their launches. The folders hold the projects as they are published; their
files are not part of this repository, so the record names project, path and hash. Each kernel is compiled once; the
microscope runs this binary, and ncu counts the very same binary with the same arguments, all kernels in one process.

Each counter that is not 0 on both sides is ``equal``, ``marked`` (it differs, and the microscope says that it is not exact)
or ``different``. Exits with 1 if a counter is ``different``, if less than 95 % are equal, if a launch leaves other
results than the microscope, or if fewer than ``LEAST`` kernels were counted. Without a GPU it shows the predictions.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from tilewright.errors import TilewrightError, UnavailableError
from tilewright.gpu.runtime.cubin import is_identifier
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import DEFAULT_ARCH, compile_source, compiler
from tilewright.lab.explain import measure, stored_launches
from tilewright.lab.explain.any_kernel import named_kernel
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.lab.inputs.launches import LaunchOptions, arguments_of, options_of
from tilewright.records.unit_counters import TENSOR_CYCLES, TENSOR_INSTRUCTIONS
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.program import link
from tilewright.simulator.given_kernels import read_source
from tilewright.simulator.machine.options import RunOptions
from tilewright.simulator.microscope import KernelSource, observe

LAUNCHES = Path(__file__).with_name("foreign-launches.txt")
#: Folders of headers of a project, within it.
INCLUDE = {"cuda-samples": ("Common",)}
#: Where the projects are published.
PUBLISHED = {
    "SGEMM_CUDA": "siboehm/SGEMM_CUDA",
    "LeetCUDA": "xlite-dev/LeetCUDA",
    "llm.c": "karpathy/llm.c",
    "fast.cu": "pranjalssh/fast.cu",
    "flash-attention-minimal": "tspeterkim/flash-attention-minimal",
    "cuda-samples": "NVIDIA/cuda-samples",
    "cuda-training-series": "olcf/cuda-training-series",
    "code-samples": "NVIDIA-developer-blog/code-samples",
    "Programming-Massively-Parallel-Processors": "R100001/Programming-Massively-Parallel-Processors",
}
#: The counters that are compared: all that every kernel may have; none of these kernels uses wgmma or the copy engine.
COUNTERS = (*measure.COUNTERS, TENSOR_INSTRUCTIONS, TENSOR_CYCLES)
#: How many kernels must be counted, the least share of equal counters, and the error of results, relative to their root mean
#: square, that other rounding and another order of atomic sums may cause.
LEAST, SHARE, TOLERANCE = 20, 0.95, 1e-3
SEED = 1


@dataclass(frozen=True)
class Case:
    """A kernel of a file ``project/path``, and the options of its launch as text."""

    project: str
    path: str
    kernel: str
    launch: str

    @property
    def options(self) -> LaunchOptions:
        return options_of(shlex.split(self.launch))


@dataclass
class Row:
    """A line of the record: the microscope's counters, those that it marks as not exact, and the GPU's; zeros are left out.

    ``refused``: why the kernel was not compiled, not run by the microscope, or not launched. ``results``: the greatest error
    of the GPU's arrays relative to the microscope's, None if it is infinite. ``seconds``: of the microscope.
    """

    project: str
    published: str
    path: str
    sha256: str
    kernel: str
    launch: str
    predicted: dict[str, int] = field(default_factory=dict)
    marked: list[str] = field(default_factory=list)
    counted: dict[str, float] | None = None
    results: float | None = None
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    refused: str = ""

    def verdicts(self) -> dict[str, str]:
        """Counter → equal, marked or different, of those that are not 0 on both sides."""
        counted = self.counted or {}
        names = [name for name in COUNTERS if self.predicted.get(name) or counted.get(name)]
        return {name: self._verdict(name, counted.get(name, 0)) for name in names}

    def _verdict(self, name: str, counted: float) -> str:
        if self.predicted.get(name, 0) == counted:
            return "equal"
        return "marked" if name in self.marked else "different"


def cases(text: str) -> Iterator[Case]:
    """The launches in a text: one a line, without comments.

    >>> next(cases("# sums\\n'p/a b.cu::k<8>' --grid 2 --arg 1"))
    Case(project='p', path='a b.cu', kernel='k<8>', launch='--grid 2 --arg 1')
    """
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *words = shlex.split(line)
            file, kernel = named_kernel(name) or (Path(), None)
            project, *parts = file.parts
            yield Case(project, "/".join(parts), kernel or "", shlex.join(words))


# ---- the microscope --------------------------------------------------------------------------------------------------


def predicted(case: Case, folders: Sequence[Path], arch: str, spec: Path) -> Row:
    """What the microscope counts. Writes binary and launch to ``spec``, and the arrays after the launch beside it."""
    root = next((f / case.project for f in folders if (f / case.project / case.path).is_file()), None)
    row = Row(case.project, PUBLISHED.get(case.project, ""), case.path, "", case.kernel, case.launch)
    if root is None:
        row.refused = "the file is in none of the folders"
        return row
    row.sha256 = hashlib.sha256((root / case.path).read_bytes()).hexdigest()
    try:
        _predict(case, root, arch, spec, row)
    except TilewrightError as error:
        row.refused = f"{type(error).__name__}: {error}"
    return row


def _predict(case: Case, root: Path, arch: str, spec: Path, row: Row) -> None:
    options = case.options
    args, constants = arguments_of(options.args, SEED), arguments_of(options.constants, SEED).arrays()
    source, name = read_source(root / case.path), str(root / case.path)
    compiled = compile_source(
        source,
        name=name,
        arch=arch,
        include=[root / folder for folder in INCLUDE.get(case.project, ())],
        names=() if is_identifier(case.kernel) else (case.kernel,),
    )
    entry, grid, block, shared = compiled.entry(case.kernel), options.grid or 1, options.block or 1, options.shared or 0
    program = link(parse_ptx(compiled.ptx), entry)
    how = RunOptions(shared, constants=constants)
    seen = observe(KernelSource(source, name, compiled), program, grid, block, args.values, how)
    row.predicted, row.marked = {n: seen.counters[n] for n in sorted(seen.counters)}, sorted(seen.approximate)
    row.notes, row.findings = seen.notes, [f"{f.kind} at line {f.line}" for f in seen.findings]
    row.seconds = round(seen.seconds, 2)
    launch = StoredLaunch(entry, grid, block, tuple(args.values), shared, constants=constants)
    stored_launches.save_launches(spec, compiled, [launch])
    np.savez(_beside(spec), **{str(i): a for i, a in enumerate(seen.arrays) if a is not None})


def _beside(spec: Path) -> Path:
    return spec.with_name(f"after-{spec.name}")


# ---- the GPU ---------------------------------------------------------------------------------------------------------


def tried(row: Row, spec: Path) -> Row:
    """Launch a kernel without the profiler, in a process of its own: one that fails would stop all kernels after it."""
    if not row.refused:
        try:
            subprocess.run(measure.command_of(spec), capture_output=True, text=True, check=True, timeout=120)
        except subprocess.SubprocessError as error:
            row.refused = f"on the GPU: {str(getattr(error, 'stderr', '') or error).strip()}"
    return row


def count(rows: Sequence[Row], specs: Sequence[Path], folder: Path) -> None:
    """Count all launches that are not refused, in one process, and compare what they leave in memory."""
    launched = [(row, spec) for row, spec in zip(rows, specs, strict=True) if not row.refused]
    results = folder / "results.npz"
    first, *others = [str(spec) for _, spec in launched]
    command = measure.command_of(Path(first), *others, "--results", str(results))
    profiles = measure.profile(command, metrics=COUNTERS, lines=False, timeout=180)
    for (row, spec), profile, left in zip(launched, profiles, stored_launches.read_results(results), strict=True):
        entry = stored_launches.load_launches(spec)[1][0].entry
        if not measure.is_name_of(profile.kernel, entry):
            row.refused = f"ncu counted {profile.kernel} where {entry} was launched"
            continue
        missing = [name for name in COUNTERS if name not in profile.counters]
        row.notes += [f"ncu gave no {', '.join(missing)}"] if missing else []
        row.counted = {name: value for name, value in profile.counters.items() if value and name in COUNTERS}
        with np.load(_beside(spec)) as after:
            worst = max((_error(left[int(i)], after[i]) for i in after.files), default=0.0)
        row.results = float(f"{worst:.3g}") if math.isfinite(worst) else None


def _error(actual: np.ndarray, right: np.ndarray) -> float:
    """The greatest difference, relative to the root mean square of what is right."""
    a, b = actual.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    scale = math.sqrt(np.mean(np.square(b[np.isfinite(b)]))) if np.isfinite(b).any() else 0.0
    worst = float(np.max(np.nan_to_num(difference, nan=np.inf), initial=0.0))
    return worst / scale if scale else worst


# ---- what is shown ---------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """A line for each kernel, and below it each counter that is not equal."""
    lines = []
    for row in rows:
        title = f"{row.project}/{Path(row.path).name}::{row.kernel}"
        if row.refused:
            lines.append(f"refused        {title}: {row.refused.splitlines()[0]}")
            continue
        if row.counted is None:
            lines.append(f"{len(row.predicted):2} counters     {title}, {len(row.marked)} marked, {row.seconds} s")
            continue
        verdicts = row.verdicts()
        equal = sum(verdict == "equal" for verdict in verdicts.values())
        lines.append(f"{equal:2} of {len(verdicts):2} equal {title}; results differ by {row.results}")
        lines += [
            f"   {verdict:9} {name}: {row.predicted.get(name, 0):,} predicted, {row.counted.get(name, 0):,.0f} counted"
            for name, verdict in verdicts.items()
            if verdict != "equal"
        ]
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> tuple[str, bool]:
    """The share of equal counters in words, and whether all is as it must be."""
    counted = [row for row in rows if row.counted is not None]
    total = Counter(verdict for row in counted for verdict in row.verdicts().values())
    share = total["equal"] / max(total.total(), 1)
    other = [row.kernel for row in counted if row.results is None or not row.results <= TOLERANCE]
    words = (
        f"{len(counted)} kernels, {total.total()} counters that are not 0: {share:.1%} equal, {total['marked']} differ and "
        f"are marked, {total['different']} differ unmarked; other results: {', '.join(other) or 'none'}"
    )
    return words, len(counted) >= LEAST and share >= SHARE and not total["different"] and not other


def write(out: Path, rows: Sequence[Row], about: Mapping[str, str]) -> None:
    head = {"kind": "foreign counters", "schema": 1, "environment": about, "seed": SEED, "counters": COUNTERS}
    out.write_text("".join(json.dumps(each) + "\n" for each in (head, *map(asdict, rows))))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the microscope's counters with a GPU's, for public kernels.")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="where the public projects are")
    parser.add_argument("--only", default="", help="only kernels whose path or name has this text")
    given = parser.parse_args(argv)
    chosen = [c for c in cases(LAUNCHES.read_text()) if given.only in f"{c.project}/{c.path}::{c.kernel}"]
    try:
        arch, ncu, reason = open_device().arch, measure.find_ncu(), ""
    except UnavailableError as error:
        arch, ncu, reason = DEFAULT_ARCH, None, str(error)
    with tempfile.TemporaryDirectory(prefix="tilewright-foreign-") as name:
        folder = Path(name)
        specs = [folder / f"{i}.npz" for i in range(len(chosen))]
        folders = [each.resolve() for each in given.folders]
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            asked = [
                pool.submit(predicted, case, folders, arch, spec) for case, spec in zip(chosen, specs, strict=True)
            ]
            rows = [each.result() for each in asked]
            if ncu is not None:
                rows = list(pool.map(tried, rows, specs))
        if ncu is None or all(row.refused for row in rows):
            print(f"{table(rows)}\nnot counted: {reason or 'no kernel can be launched'}")
            return 1
        count(rows, specs, folder)
    write(given.out, rows, {
        **measure.tools(), "compiler": compiler(), "arch": arch, "python": sys.version.split()[0],
        "command": "python benchmarks/foreign_counters.py OUT.jsonl FOLDER",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    })  # fmt: skip
    words, right = summary(rows)
    print(f"{table(rows)}\n{words}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
