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
        help="Names of kernels, such as cpu/ikj or ikj (tilewright ladder lists them), or your own files, such as "
        "my.py or my.cu. Default: the ladder of the device. On the CPU also tilewright.matmul itself, and the "
        "engine's kernels for the shapes that suit them.",
    ),
]
_Device = Annotated[str, typer.Option(metavar="NAME", help="Where to run: cpu, or cuda (the first NVIDIA GPU).")]
_Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Sizes, joined by commas: N, MxNxK (C is M×N), FIRST:LAST:xFACTOR or FIRST:LAST:+STEP. An example is "
        "16:4096:x2,1000,6x2000x4. Default: 64,256,512,1000,2048; on a GPU 256,1000,1024,2048,4096.",
    ),
]
_Operands = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.npy B.npy", help="Multiply the matrices in these two files instead of random ones."),
]
_Distribution = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The distribution of the random numbers, if not uniform: normal, lognormal:4, positive, cancelling, "
        "graded:40, graded_rows, vandermonde or subnormal.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Dtypes, joined by commas: float32, float64, complex64, int8, float16 and so on; on a GPU also "
        "bfloat16. Default: float32, or the dtype of --operands; on a GPU the dtypes that each kernel takes.",
    ),
]
_Threads = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Numbers of threads on the CPU, such as 1,2. Default: one for each usable core."),
]
_Against = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Libraries to measure in turns with the kernels, such as openblas,mkl; or none. The column R is the "
        "time of the first library divided by the kernel's. Default: all that are installed, with NumPy's own "
        "first; on a GPU cublas.",
    ),
]
_Repeat = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        help="The least number of samples of each cell, after a warm-up. A cell is one kernel, size, dtype and "
        "number of threads. On the CPU, a cell gets more samples, for up to 0.6 s, until it is clear whether "
        "the kernel or the library is faster.",
    ),
]
_Limit = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="Skip products that are predicted to take longer than this, such as 500ms, 10s or 2min."
    ),
]
_Seed = Annotated[int, typer.Option(metavar="NUMBER", help="The seed of the random operands.")]
_Tuned = Annotated[
    bool,
    typer.Option(
        "--tuned", help="On a GPU, use the parameters that tilewright tune has cached. --param overrides them."
    ),
]
_Records = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write one line with a record for each cell, as soon as the cell is finished. An existing FILE is "
        "replaced. - is standard output; the table then goes to standard error.",
    ),
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="Keep the cells that the --json FILE already has, and measure only the others.")
]
_Page = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write an HTML page with charts.")]


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
    """Measure kernels in turns with the libraries of vendors.

    Every result is verified before its time counts. After Ctrl-C the finished measurements are kept in the --json file,
    and --resume continues with the others. The exit code is 1 if a result is wrong.
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
