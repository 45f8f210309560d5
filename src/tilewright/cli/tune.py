"""``tune``: the best parameters of a CUDA kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import app
from .options import check_writeable


@app.command()
def tune(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help="A name, such as cuda/shared_tile, or a file of your own: my.cu.")
    ],
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="N, or MxNxK (C is M×N).")] = "4096",
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: float32, or what the kernel takes.")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Try combinations for so long, such as 30s or 5min.")
    ] = "60s",
    limit: Annotated[str, typer.Option(metavar="TIME", help="Give up on a combination that takes longer.")] = "1s",
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the operands and of the order of trial.")] = 1,
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
    """Find the best parameters of a CUDA kernel on this GPU.

    The combinations that its header allows are tried in random order, for as long as the budget lasts, and each result is
    verified; then the best eight are measured in turns. What was found is kept for this kernel, GPU, dtype and sizes near
    this one. The exit code is 1 if a result is wrong.
    """
    from ..lab import tune_session
    from ..terminal import show_tuned

    check_writeable("json", json_file, dash=True)
    request = tune_session.Request(kernel=kernel, size=size, dtype=dtype, budget=budget, limit=limit, seed=seed)
    tuned = tune_session.run(request, json_file=json_file, console=Console(stderr=True))
    show_tuned(
        Console(stderr=json_file is not None and str(json_file) == "-"), tuned.finalists, tuned.failed, tuned.tried
    )
    if any(r.verdict == "wrong" for r in [*tuned.finalists, *tuned.failed]):
        raise typer.Exit(1)
