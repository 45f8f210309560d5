"""``explain``: what a CUDA kernel does, and why it is as fast as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import app
from .options import Param, check_apart, check_writeable

if TYPE_CHECKING:
    from ..explanation import Explanation


def _list_gpus(name: str) -> str:
    if name == "list":
        from ..lab.gpus import GPUS

        print("\n".join(gpu.name for gpu in GPUS))
        raise typer.Exit
    return name


@app.command()
def explain(
    kernels: Annotated[
        list[str],
        typer.Argument(
            metavar="KERNEL",
            help="Names, such as cuda/coalesced or coalesced (see: tilewright ladder), or CUDA files of your own, "
            "such as my.cu, whose kernel takes (const T* a, const T* b, T* c, int m, int n, int k). For any other "
            "there is tilewright.microscope in Python.",
        ),
    ],
    size: Annotated[
        str, typer.Option(metavar="LIST", help="Sizes joined by commas: N, or MxNxK (C is M×N), as bench takes them.")
    ] = "64",
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=_list_gpus,
            is_eager=True,
            help="The card to explain it for; it need not be here. The word list names all that are known.",
        ),
    ] = "H200",
    param: Param = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the table of all, a line each.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Run every block, also where a sample would do (beyond 512).")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Count on this machine's GPU too, with ncu, and compare.")
    ] = False,
    max_steps: Annotated[
        int, typer.Option(metavar="NUMBER", help="Stop a run that takes more steps of a warp than this.")
    ] = 50_000_000,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random operands.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write as JSON instead; - is standard output.")
    ] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML) with pictures too.")
    ] = None,
) -> None:
    """Count what a CUDA kernel does to memory; say what limits it.

    No GPU is needed: the kernel is run on the CPU, instruction by instruction. Its result is verified, and races, accesses
    out of bounds and the like are reported at their source lines. The exit code is 1 if something is wrong, or cannot be
    launched on the card. An interrupt keeps what is finished.
    """
    from ..lab import explain_session
    from ..terminal import show_explanations

    check_writeable("json", json_file, dash=True)
    check_writeable("report", report_file)
    check_apart(json=json_file, report=report_file)
    request = explain_session.Request(
        kernels=kernels,
        size=size,
        gpu=gpu,
        params=param or [],
        whole=whole,
        measure=measure,
        seed=seed,
        max_steps=max_steps,
    )
    found: list[Explanation] = []

    def finished(explanation: Explanation) -> None:
        found.append(explanation)
        if json_file is None and not brief:
            show_explanations(Console(), [explanation])

    interrupted = False
    try:
        explain_session.run(request, console=Console(stderr=True), finished=finished)
    except KeyboardInterrupt:
        interrupted = True
    if found and json_file is None and (brief or len(found) > 1):
        show_explanations(Console(), found, brief=True)
    _write(found, json_file, report_file)
    if interrupted:
        raise typer.Exit(130)
    measured_wrong = any(e.measured and not e.measured["verified"]["ok"] for e in found)
    if measured_wrong or any(e.defects or not e.verified["ok"] or e.unrated for e in found):
        raise typer.Exit(1)


def _write(found: list[Explanation], json_file: Path | None, report_file: Path | None) -> None:
    """The files asked for; none where nothing was finished."""
    if not found:
        return
    if json_file is not None:
        from ..explanation import to_json

        if str(json_file) == "-":
            sys.stdout.write(to_json(found))
        else:
            json_file.write_text(to_json(found), encoding="utf-8")
    if report_file is not None:
        from ..report import write_explanation

        print(f"page: {write_explanation(found, report_file)}", file=sys.stderr if json_file else None)


@app.command()
def occupancy(
    threads: Annotated[int, typer.Argument(metavar="THREADS", help="Threads a block.")],
    registers: Annotated[int, typer.Option(metavar="NUMBER", help="Registers a thread.")] = 0,
    shared: Annotated[int, typer.Option(metavar="BYTES", help="Shared memory a block, static and dynamic.")] = 0,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The card, such as T4. Repeatable. Default: all known.")
    ] = None,
) -> None:
    """How many blocks a multiprocessor holds, and what limits it."""
    from ..lab.gpus import GPUS, find_gpu
    from ..lab.occupancy import occupancy as occupancy_of
    from ..terminal import show_occupancy

    cards = [find_gpu(name) for name in gpu] if gpu else GPUS
    show_occupancy(Console(), [occupancy_of(card, threads, registers, shared) for card in cards])
