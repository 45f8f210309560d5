"""The command ``tune``: finds the best parameters of a kernel on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .application import Console, app, check_writeable

_Kernel = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL",
        help="The name of a kernel, such as cpu/packed or cuda/shared_tile, or a file, such as my.cu or my.py.",
    ),
]
_Size = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="SIZE", help="The size of the product: N, or MxNxK (C is M×N). Default: 2048, on a GPU 4096."
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The dtype to tune for. Default: float32, or another one if the kernel does not take float32.",
    ),
]
_Budget = Annotated[
    str, typer.Option(metavar="TIME", help="How long to try combinations of parameters, such as 30s or 5min.")
]
_Limit = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Skip a combination if one product takes longer than this. Default: 10s, on a GPU 1s."
    ),
]
_Seed = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", help="The seed of the random operands, and of the order in which combinations are tried."
    ),
]
_Threads = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="The number of threads while a kernel on the CPU is measured. Default: 1."),
]
_Reset = Annotated[
    bool,
    typer.Option(
        "--reset",
        help="Measure nothing. Remove the cached block sizes for the CPU, and compute them from the caches again.",
    ),
]
_Records = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write one line with a record for each combination; tilewright compare and tilewright report read the "
        "file. - is standard output; the table then goes to standard error.",
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

    For a CUDA kernel, the combinations of parameters that its header allows are tried in random order until the budget
    is used up. After the trials, the best eight combinations are measured in turns. The best combination is cached for
    this kernel, GPU and dtype, and for similar sizes.

    For a CPU kernel, the sizes of tile and blocks are computed from the caches. Similar sizes are measured in turns
    with the computed sizes. If the best sizes are faster than the computed sizes by more than the noise, they are
    cached for this machine, for all dtypes and sizes of products.

    Each result is verified. The exit code is 1 if a result is wrong.
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
