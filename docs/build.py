"""Generates the figures in README and docs from the committed records: ``python docs/build.py``.

With ``--check`` the script changes nothing, and exits with 1 if a document is out of date. It makes or compares outputs of
commands and charts only if the installed packages have the versions in ``docs/constraints.txt``. It replaces the text
between the markers ``<!-- generated: NAME -->`` and ``<!-- end -->``. All other text is written by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from unittest import mock

from tables import (
    accuracy,
    advice,
    api,
    bars,
    cluster,
    course,
    cpu,
    front,
    gpu,
    listed,
    numpy_programs,
    pipeline_times,
    pipelines,
    stream,
    warps,
)
from tables.common import ROOT, records_of

from tilewright.__main__ import run_command_line
from tilewright.gpu.runtime.nvrtc import compiler
from tilewright.records.bench import BenchRecord
from tilewright.records.report import save_figures

FIGURES = ROOT / "docs" / "figures"

GENERATED: dict[str, Callable[[], str]] = {
    "advice": advice.changes,
    "api": api.index,
    "bench output": front.bench_output,
    "peers": front.peers,
    "ideas cpu": lambda: cpu.ideas("cpu-ladder-float32"),
    "ideas cuda": lambda: cpu.ideas(course.CUDA),
    "ladder float32": lambda: cpu.ladder_table("cpu-ladder-float32"),
    "ladder float64": lambda: cpu.ladder_table("cpu-ladder-float64"),
    "ladder xeon float32": lambda: cpu.ladder_table("cpu-ladder-xeon-float32"),
    "ladder xeon float64": lambda: cpu.ladder_table("cpu-ladder-xeon-float64"),
    "forced openblas": cpu.forced_openblas,
    "engine": lambda: cpu.engine("cpu-engine", "cpu-engine-sizes"),
    "engine zen4": lambda: cpu.engine("cpu-engine-zen4", "cpu-engine-zen4-large"),
    "engine zen3": lambda: cpu.engine("cpu-engine-zen3"),
    "engine small": lambda: cpu.engine("cpu-engine-small"),
    "engine thin": lambda: cpu.engine("cpu-engine-thin"),
    "engine xeon one thread": lambda: cpu.engine("cpu-engine-xeon-one-thread"),
    "engine xeon sizes": lambda: cpu.ladder_of_sizes("cpu-engine-xeon-sizes"),
    "engine xeon sizes float64": lambda: cpu.ladder_of_sizes("cpu-engine-xeon-sizes", "float64"),
    "engine xeon torch": lambda: cpu.ladder_of_sizes("cpu-engine-xeon-torch"),
    "engine xeon torch float64": lambda: cpu.ladder_of_sizes("cpu-engine-xeon-torch", "float64"),
    "engine layouts": lambda: cpu.layouts("cpu-engine-layouts"),
    "engine narrow": lambda: cpu.narrow("cpu-engine-narrow"),
    "engine narrow zen4": lambda: cpu.narrow("cpu-engine-narrow-zen4"),
    "engine narrow xeon": lambda: cpu.narrow("cpu-engine-narrow-xeon"),
    "engine strassen": lambda: cpu.strassen("cpu-engine-strassen"),
    "precision cpu": lambda: cpu.precision("cpu-precision"),
    "ladder h200": lambda: gpu.cuda_table("cuda-ladder-h200"),
    "rungs h200": lambda: gpu.rungs("cuda-ladder-h200"),
    "rows h200": lambda: gpu.sweep(["cuda-register-rows-h200"], "TILE", "ROWS"),
    "blocks h200": lambda: gpu.sweep(["cuda-block-size-h200"], "BLOCK_X", "BLOCK_Y"),
    "fastest h200": lambda: gpu.fastest("cuda-ladder-h200"),
    "gpu arrays": lambda: gpu.gpu_arrays("gpu-matmul-full-h200", "gpu-matmul-double-h200"),
    "streams h200": lambda: stream.streams("stream-h200"),
    "stream files": lambda: stream.files("stream-h200"),
    "streams x2": lambda: stream.streams("stream-x2-h100"),
    "streams x4": lambda: stream.streams("stream-x4-h200"),
    "scaling x4": lambda: stream.scaling("stream-x4-h200"),
    "largest x4": lambda: stream.largest("stream-x4-131072-h200"),
    "larger than memory": lambda: stream.host("larger-than-memory-cpu"),
    "limits of memory": lambda: stream.limits("memory-limits"),
    "cluster beside": cluster.beside,
    "cluster bytes": cluster.received,
    "cluster gpus": cluster.gpus,
    "cluster simulated": cluster.simulated,
    "cluster scaling": lambda: cluster.scaling("cluster-scaling-workers"),
    "error cpu": lambda: accuracy.error_table("cpu-error"),
    "error h200": lambda: accuracy.error_table("cuda-error-h200"),
    "error orders": accuracy.error_orders,
    "error levels": accuracy.error_levels,
    "error s1": accuracy.error_of_s1,
    "accuracy cpu grades": lambda: accuracy.grades("accuracy-cpu"),
    "accuracy cpu distributions": lambda: accuracy.by_distribution("accuracy-cpu"),
    "accuracy cpu random": lambda: accuracy.random_products(
        "random-products", "random-products-zen4", "random-small-products"
    ),
    "accuracy cpu spans": lambda: accuracy.by_span("accuracy-cpu"),
    "accuracy h100 grades": lambda: accuracy.grades("accuracy-h100"),
    "accuracy h100 distributions": lambda: accuracy.by_distribution("accuracy-h100"),
    "accuracy h100 spans": lambda: accuracy.by_span("accuracy-h100"),
    "counted h200": lambda: gpu.counted("explain-measured-h200"),
    "gpu layers": lambda: gpu.gpu_layers("gpu-matmul-layers-h200"),
    "gpu complex": lambda: gpu.gpu_shapes("gpu-matmul-complex-h200"),
    "gpu complex h100": lambda: gpu.gpu_shapes("gpu-matmul-complex-h100"),
    "gpu grouped": lambda: gpu.gpu_grouped("grouped-h200"),
    "gpu new shapes": lambda: gpu.gpu_new_shapes("new-gpu-shapes-h200"),
    "gpu invariant": lambda: gpu.gpu_invariant("gpu-matmul-invariant-h200", "invariant-rows"),
    "gpu layers h100": lambda: gpu.gpu_layers("gpu-matmul-layers-h100"),
    "gpu shapes": lambda: gpu.gpu_shapes("gpu-matmul-half-h200", "gpu-matmul-full-h200"),
    "gpu shapes h100": lambda: gpu.gpu_shapes("gpu-matmul-half-h100", "gpu-matmul-full-h100"),
    "gpu predicted h100": lambda: gpu.gpu_predicted(*(f"gpu-matmul-{of}-h100" for of in ("half", "full", "layers"))),
    "gpu costs": lambda: gpu.gpu_costs("h200"),
    "gpu near": lambda: gpu.gpu_near("near-blocks-h100"),
    "gpu double": lambda: gpu.gpu_shapes("gpu-matmul-double-h200"),
    "gpu wide": lambda: gpu.gpu_shapes("gpu-matmul-wide-h100"),
    "gpu promised": lambda: gpu.gpu_shapes("gpu-matmul-promised-h100"),
    "gpu gram": lambda: gpu.gpu_gram("gpu-matmul-gram-h200"),
    "gpu narrow": lambda: gpu.gpu_narrow("gpu-matmul-narrow-h200"),
    "gpu narrow h100": lambda: gpu.gpu_narrow("gpu-matmul-narrow-h100"),
    "gpu random": lambda: gpu.gpu_random("random-gpu-products-h200"),
    "gpu transformer": lambda: gpu.transformer("transformer-step-h200"),
    "gpu held out": lambda: gpu.gpu_held_out("gpu-predictions-h200"),
    "gpu held out h100": lambda: gpu.gpu_held_out("gpu-predictions-h100"),
    "gpu random h100": lambda: gpu.gpu_random("random-gpu-products-h100"),
    "gpu predicted": lambda: gpu.gpu_predicted("gpu-matmul-half-h200", "gpu-matmul-full-h200"),
    "pipelines h200": pipeline_times.pipelines,
    **{f"rung {name}": partial(course.rung, name) for name in course.rungs()},
    **{f"gain {name}": partial(course.gain, name) for name in course.rungs()},
    **{f"glance {file}": partial(course.glance, file) for file in course.PAGES},
    "conflicts cpu": lambda: course.conflicts("cpu", (1024,), "cpu/naive", "cpu/transposed"),
    "conflicts cuda": lambda: course.conflicts("cuda", (4000, 4095), "cuda/uncoalesced", "cuda/coalesced"),
    "threads cpu": lambda: course.on_threads("cpu/ikj_threads"),
    "numpy loops": lambda: numpy_programs.accelerated("numpy-loops", "numpy-loops-haswell"),
    "records": listed.records,
}


#: What shapes outputs and charts beside our own code: the compiler fuses and unrolls, the libraries draw.
CONSTRAINTS = ROOT / "docs" / "constraints.txt"


def pinned() -> dict[str, str]:
    """Return the version of each package with which the documents are made."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def differing() -> list[str]:
    """Return a text for each package whose installed version differs from the pinned one."""
    here = {name: version(name) for name in pinned()} | {"nvidia-cuda-nvrtc": compiler().removeprefix("NVRTC ")}
    return [f"{name} {here[name]}, not {wanted}" for name, wanted in pinned().items() if here[name] != wanted]


def made_by() -> str:
    """Return a sentence that names the package versions with which outputs of commands are made."""
    names = {"nvidia-cuda-nvrtc": "NVRTC", "rich": "rich", "typer": "typer"}
    versions = ", ".join(f"{word} {pinned()[name]}" for name, word in names.items())
    return f"The outputs on this page were made with {versions}."


def output(command: str) -> str:
    """Return a code block with a command and what it prints on 80 columns.

    The command runs in this process, because a new process would have to import the package again.
    """
    said, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(ROOT),
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        mock.patch.object(sys, "argv", shlex.split(command)),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(errors),
    ):
        code = run_command_line()
    if code > 1:  # 1 says that something is wrong with the kernel, and may be what is shown
        raise RuntimeError(f"{command}: {errors.getvalue()}")
    lines = [line.rstrip() for line in said.getvalue().splitlines()]
    return "\n".join(["", "```console", f"$ {command}", *lines]).rstrip() + "\n```\n"


def filled(text: str, *, outputs: bool = True, above: str = "../") -> str:
    """Return the text of a page with every generated part replaced by its current content.

    ``outputs`` says whether outputs of commands are generated too. ``above`` is the relative path from the page to the
    project's root.
    """

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{GENERATED[match[2]]().replace('](../', f']({above}')}\n{match[3]}"

    text = re.sub(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", fill, text, flags=re.DOTALL)
    text = re.sub(
        r"(<!-- versions -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}\n{made_by()}\n{m[2]}", text, flags=re.DOTALL
    )
    if not outputs:
        return text
    return re.sub(
        r"(<!-- output: (.+?) -->\n).*?(<!-- end -->)", lambda m: m[1] + output(m[2]) + m[3], text, flags=re.DOTALL
    )


def documents() -> list[Path]:
    """Return README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(path: Path, *, outputs: bool = True) -> str:
    """Return the current content of a document."""
    above = "../" * (len(path.relative_to(ROOT).parts) - 1 if path.is_relative_to(ROOT) else 1)
    return filled(path.read_text(encoding="utf-8"), outputs=outputs, above=above)


def stale(*, outputs: bool = False) -> list[Path]:
    """Return the documents that differ from the records or, with ``outputs``, from the outputs of the commands."""
    return [path for path in documents() if written(path, outputs=outputs) != path.read_text(encoding="utf-8")]


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the documents that are out of date. With ``--check`` only name them, and return 1 if there are any."""
    parser = argparse.ArgumentParser(
        description="Build the generated parts of README and docs from the committed records."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 where something is stale")
    parser.add_argument("--no-outputs", action="store_true", help="leave outputs of commands and charts as they are")
    asked = parser.parse_args(arguments)
    others = "" if asked.no_outputs else "; ".join(differing())
    if asked.check:
        if others:
            print(f"the outputs of commands are not compared: {others}", file=sys.stderr)
        found = stale(outputs=not asked.no_outputs and not others)
        for path in found:
            print(f"stale: {path.relative_to(ROOT)}; run python docs/build.py", file=sys.stderr)
        return 1 if found else 0
    if others:
        print(f"{others}: install with -c docs/constraints.txt, or leave outputs with --no-outputs", file=sys.stderr)
        return 2
    for path in documents():
        path.write_text(written(path, outputs=not asked.no_outputs), encoding="utf-8")
    if asked.no_outputs:
        return 0
    front.figure(FIGURES / "front.svg")
    draw("gflops", records_of("cpu-ladder-float32"))
    draw("ladder", [r for r in records_of("cpu-ladder-float32") if r.n == cpu.SIZE])
    bars.save(FIGURES)
    warps.save(FIGURES)
    pipelines.save(FIGURES)
    return 0


def draw(name: str, records: list[BenchRecord]) -> None:
    """Draw a chart of some records as ``NAME.svg``, for a light and for a dark background."""
    with tempfile.TemporaryDirectory() as folder:
        for path in save_figures(records, folder, formats=("svg",), themes=("light", "dark")):
            if path.stem in (name, f"{name}-dark"):
                (FIGURES / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
