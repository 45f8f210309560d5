"""The command ``tune``: finds the best parameters of a kernel on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .application import Console, app, check_writeable

_Kernel = Annotated[
    str,
    typer.Argument(metavar="KERNEL", help="A name, such as cpu/packed or cuda/shared_tile, or a file: my.cu, my.py."),
]
_Size = Annotated[
    str | None,
    typer.Option("--size", metavar="SIZE", help="N, or MxNxK (C is M×N). Default: 2048, on a GPU 4096."),
]
_Dtype = Annotated[str | None, typer.Option(metavar="NAME", help="Default: float32, or what the kernel takes.")]
_Budget = Annotated[str, typer.Option(metavar="TIME", help="How long to try combinations, such as 30s or 5min.")]
_Limit = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Give up on a combination that takes longer. Default: 10s, on a GPU 1s."),
]
_Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the operands and of the order of trial.")]
_Threads = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="For a kernel on the CPU: threads while it is measured. Default: 1."),
]
_Reset = Annotated[
    bool, typer.Option("--reset", help="Measure nothing: remove the cached blocking for the CPU, and compute it again.")
]
_Records = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write one record per line, for each combination; compare and report read the file. "
        "- is standard output, and the table goes to standard error.",
    ),
]


@app.command("tune")
def tune_command(
    kernel: _Kernel,
    size: _Size = None,
    dtype: _Dtype = None,
    budget: _Budget = "60s",
    limit: _Limit = None,
    seed: _Seed = 1,
    threads: _Threads = None,
    reset: _Reset = False,
    json_file: _Records = None,
) -> None:
    """Find the best parameters of a kernel on this machine.

    CUDA kernels: the combinations that the header allows are tried in random order until the budget is used up. Then the
    best eight are measured in turns. The best one is cached for this kernel, GPU, dtype and sizes near this one.

    CPU kernels: tile and blocks are computed from the caches, and choices near them are measured in turns with them. The
    best one is cached for this machine, for all dtypes and sizes, if it is faster by more than the noise.

    Each result is verified. The exit code is 1 if one is wrong.
    """
    from ..terminal import TuneProgress, show_tuned, show_tuned_blocking
    from ..tune import session as tune_session

    check_writeable("json", json_file, dash=True)
    request = tune_session.TuneRequest(kernel, size, dtype, budget, limit, seed, threads)
    if reset:
        was_cached = tune_session.forget_tuned(request)
        print(
            "Forgotten: tile and blocks are computed again." if was_cached else "Nothing was cached for this machine."
        )
        return
    console = Console(stderr=json_file is not None and str(json_file) == "-")
    try:
        with TuneProgress(Console(stderr=True)) as progress:
            if request.on_cpu:
                blocking = tune_session.run_on_cpu(request, json_file=json_file, tell=progress)
            else:
                tuned = tune_session.run_on_gpu(request, json_file=json_file, tell=progress)
    except KeyboardInterrupt:
        print("interrupted: nothing was cached", file=sys.stderr)
        raise
    if request.on_cpu:
        finalists, failed = [finalist.record for finalist in blocking.finalists], blocking.failed
        analytic = blocking.analytic.numbers
        show_tuned_blocking(console, finalists, failed, blocking.tried, analytic=analytic, why=blocking.why)
    else:
        finalists, failed = tuned.finalists, tuned.failed
        show_tuned(console, finalists, failed, tuned.tried)
    if any(r.verdict == "wrong" for r in [*finalists, *failed]):
        raise typer.Exit(1)
