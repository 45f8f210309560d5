"""The command ``gram``: computes the Gram matrix or the covariance of a matrix in a file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from .application import Console, app, check_different_files, check_writeable
from .multiply import OPERAND, Overwrite, Threads, file_of, opened_operand, write_record

_A = Annotated[str, typer.Argument(metavar="A", help=OPERAND)]
_Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="C",
        help="The file of the result: .npy, .h5, .zarr or .safetensors. The file appears when it is complete. If a "
        "file of this name exists, --overwrite is needed.",
    ),
]
_Rows = Annotated[
    bool, typer.Option("--rows", help="Compute A·Aᴴ, the Gram matrix of A's rows. Default: Aᴴ·A, that of A's columns.")
]
_Center = Annotated[
    bool, typer.Option("--center", help="Subtract the mean of each column (with --rows of each row), in the same pass.")
]
_Ddof = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Divide by the number of rows minus this number. With --center, 1 gives the covariance of the columns.",
    ),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="The most memory that the command may take, such as 4GiB. Default: four fifths of the free memory.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The dtype of C. Integers wrap around unless C has a dtype such as float64."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and compute nothing.")]
_Record = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a record of the plan, the prediction, the measurement and the machine. - is standard output.",
    ),
]


@app.command("gram")
def gram_command(
    a: _A,
    output: _Output,
    rows: _Rows = False,
    center: _Center = False,
    ddof: _Ddof = None,
    memory: _Memory = None,
    dtype: _Dtype = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    dry_run: _DryRun = False,
    json_file: _Record = None,
) -> None:
    """Compute the Gram matrix Aᴴ·A of a file, or its covariance.

    The file may be larger than memory. The command does half of the operations of a general product. If the result C
    fits in memory, each element of A is read once. The plan is shown before anything runs.

    Example: tilewright gram x.zarr -o covariance.npy --center --ddof 1 --memory 4GiB
    """
    from ...host.limits import get_threads, use_threads
    from ...host.machine import bytes_text, seconds_text
    from ...large.files import path_of_result
    from ...large.gram import gram_job
    from ..terminal import ProductProgress, show_facts, show_plan, steps_shown

    output = path_of_result(output)
    check_writeable("json", json_file, dash=True, spare=[file_of(text) for text in (a, output)])
    check_different_files(json=json_file, output=Path(output))
    console = Console(stderr=json_file is not None and str(json_file) == "-")
    with contextlib.ExitStack() as stack:
        stack.enter_context(steps_shown(Console(stderr=True)))
        stack.enter_context(use_threads(get_threads() if threads is None else threads))
        source = stack.enter_context(opened_operand(a))
        planned = gram_job(
            source, output, rows=rows, center=center, ddof=ddof, memory=memory, dtype=dtype, overwrite=overwrite
        )
        job = stack.enter_context(planned)
        plan = job.plan
        show_plan(console, plan)
        measured = {}
        if not dry_run:
            try:
                with ProductProgress(Console(stderr=True), plan.predicted_s or 0) as progress:
                    job.run(progress)
            except KeyboardInterrupt:
                console.print("interrupted: nothing is kept", highlight=False)
                raise typer.Exit(130) from None
            measured = {"measured": {"seconds": job.seconds, "read_bytes": job.read_bytes}}
            n = plan.problem.m
            facts = [
                ("result", f"{output}: ({n}, {n}) {plan.result}"),
                ("time", seconds_text(job.seconds)),
                ("rate", f"{plan.problem.flops / job.seconds / 1e9:,.0f} GFLOPS"),
                ("read", str(bytes_text(job.read_bytes))),
            ]
            show_facts(console, facts)
    if json_file is not None:
        write_record("gram", {**plan.as_dict(), **measured}, json_file)
