"""The command ``bench``: measures kernels in alternation with the vendors' libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from .application import Console, Param, app, check_writeable, say

_Kernels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KERNEL",
        help="Names, such as cpu/ikj or ikj (see: tilewright ladder), or files of your own, such as my.py or my.cu. "
        "Default: the ladder of the device; on the CPU also the library call, and kernels of the engine for the shapes "
        "that they are made for.",
    ),
]
_Device = Annotated[str, typer.Option(metavar="NAME", help="Where to run: cpu, or cuda (the first NVIDIA GPU).")]
_Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Joined by commas: N, MxNxK (C is M×N), FIRST:LAST:xFACTOR, FIRST:LAST:+STEP. "
        "Such as 16:4096:x2,1000,6x2000x4. Default: 64,256,512,1000,2048; on a GPU 256,1000,1024,2048,4096.",
    ),
]
_Operands = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.npy B.npy", help="Multiply your own two matrices instead of random ones."),
]
_Distribution = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Multiply numbers that are not uniform: normal, lognormal:4, positive, cancelling, graded:40, graded_rows, "
        "vandermonde or subnormal.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Joined by commas: float32, float64, complex64, int8, float16 and so on; on a GPU also bfloat16. "
        "Default: float32, or the operands'; on a GPU what each kernel takes.",
    ),
]
_Threads = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Numbers of CPU threads, such as 1,2. Default: one for each usable core."),
]
_Against = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Libraries to measure in turns with the kernels, such as openblas,mkl, or none. R is the time of the "
        "first one over the kernel's. "
        "Default: all that are installed, numpy's own first; on a GPU cublas.",
    ),
]
_Repeat = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        help="The least number of samples of each cell, after a warm-up. On the CPU, a cell gets more samples if it is not "
        "yet clear which is faster, until the time for that (0.6 s a cell) is used up.",
    ),
]
_Limit = Annotated[
    str,
    typer.Option(metavar="TIME", help="Skip products predicted to take longer, such as 500ms, 10s or 2min."),
]
_Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random operands.")]
_Tuned = Annotated[
    bool,
    typer.Option("--tuned", help="On a GPU: use the parameters that tilewright tune cached. --param overrides them."),
]
_Records = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write one record per line, each as soon as its cell is finished; an existing FILE is replaced. "
        "- is standard output, and the table goes to standard error.",
    ),
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="Keep the cells that the --json FILE already has, and measure the others.")
]
_Page = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML) with charts too.")]


@app.command("bench")
def bench_command(
    kernels: _Kernels = None,
    device: _Device = "cpu",
    sizes: _Sizes = None,
    operands: _Operands = None,
    distribution: _Distribution = None,
    dtype: _Dtype = None,
    threads: _Threads = None,
    against: _Against = None,
    repeat: _Repeat = 3,
    limit: _Limit = "10s",
    seed: _Seed = 1,
    param: Param = None,
    tuned: _Tuned = False,
    json_file: _Records = None,
    resume: _Resume = False,
    report_file: _Page = None,
) -> None:
    """Measure kernels in turns with the vendors' libraries.

    Every result is verified before its time counts. Ctrl-C keeps the cells that are finished, and --resume continues.
    The exit code is 1 if a result is wrong.
    """
    from ..bench import session
    from ..terminal import BenchProgress, show_bench

    asked = session.BenchRequest(
        kernels=kernels or [],
        device=device,
        sizes=sizes,
        operands=operands,
        distribution=distribution,
        dtype=dtype,
        threads=threads,
        against=against,
        repeat=repeat,
        limit=limit,
        seed=seed,
        params=param or [],
        tuned=tuned,
    )
    if resume and (json_file is None or str(json_file) == "-"):
        raise UsageError(f"resume: needs --json FILE, the record file to continue, got {json_file or 'none'}")
    check_writeable("json", json_file, dash=True)
    check_writeable("report", report_file, spare=[json_file, *(operands or ())])
    with BenchProgress(Console(stderr=True)) as progress:
        done = session.run_bench(asked, json_file=json_file, resume=resume, say=progress.say, begin=progress.begin)
    if done.records:
        table_beside_records = json_file is not None and str(json_file) == "-"
        show_bench(Console(stderr=table_beside_records), done.records)
        if report_file is not None:
            from ...records.report import write_page

            say(f"page: {write_page(done.records, report_file)}", file=sys.stderr if table_beside_records else None)
    if done.interrupted:
        raise typer.Exit(130)
    if any(r.verdict == "wrong" for r in done.records):
        raise typer.Exit(1)
