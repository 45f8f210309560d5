"""``tune``: the best parameters of a kernel on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import app
from .console import Console
from .options import check_writeable


@app.command()
def tune(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL", help="A name, such as cpu/packed or cuda/shared_tile, or a file: my.cu, my.py."
        ),
    ],
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="N, or MxNxK (C is M×N). Default: 2048, on a GPU 4096."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: float32, or what the kernel takes.")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Try combinations for so long, such as 30s or 5min.")
    ] = "60s",
    limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Give up on a combination that takes longer. Default: 10s, on a GPU 1s."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the operands and of the order of trial.")] = 1,
    threads: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Of a kernel on the CPU, while it is measured. Default: 1.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Try nothing: forget what was kept for the CPU, and compute it again.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write a record a line, of each combination; compare and report take the file. "
            "- is standard output, and the table goes to standard error.",
        ),
    ] = None,
) -> None:
    """Find the best parameters of a kernel on this machine.

    CUDA kernels: the combinations that the header allows are tried in random order, for as long as the budget lasts; then
    the best eight are measured in turns. What was found is kept for this kernel, GPU, dtype and sizes near this one.

    CPU kernels: tile and blocks are computed from the caches; others around that choice are measured in turns with it, and
    kept for this machine, for all dtypes and sizes, if they beat it by more than the noise.

    Each result is verified. The exit code is 1 if one is wrong.
    """
    from ..lab.tune import session as tune_session
    from ..terminal import show_tuned, show_tuned_blocking

    check_writeable("json", json_file, dash=True)
    request = tune_session.Request(kernel, size, dtype, budget, limit, seed, threads)
    if reset:
        had = tune_session.forget(request)
        print("Forgotten: tile and blocks are computed again." if had else "Nothing was kept for this machine.")
        return
    console, progress = Console(stderr=json_file is not None and str(json_file) == "-"), Console(stderr=True)
    if request.on_cpu:
        found = tune_session.run_on_cpu(request, json_file=json_file, console=progress)
        finalists, failed = [one.record for one in found.finalists], found.failed
        show_tuned_blocking(console, finalists, failed, found.tried, analytic=found.analytic.numbers, why=found.why)
    else:
        tuned = tune_session.run(request, json_file=json_file, console=progress)
        finalists, failed = tuned.finalists, tuned.failed
        show_tuned(console, finalists, failed, tuned.tried)
    if any(r.verdict == "wrong" for r in [*finalists, *failed]):
        raise typer.Exit(1)
