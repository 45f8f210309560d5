"""The commands; no arithmetic here."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .errors import UsageError

app = typer.Typer(
    name="tilewright",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write as JSON instead; - is standard output.")
]


def _show_version(asked: bool) -> None:
    if asked:
        import tilewright

        print(f"tilewright {tilewright.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def commands(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Multiply matrices as fast as the machine allows, and see why.

    Begin with: tilewright info, then: tilewright bench --sizes 64:1024:x4
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def info(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure peak and bandwidth anew; they are remembered otherwise.")
    ] = False,
    json_file: Json = None,
) -> None:
    """What this machine is, and what it reaches."""
    from .machine import machine
    from .peaks import roofs
    from .terminal import show_facts

    _check_writeable("json", json_file, dash=True)
    measured = roofs(fresh=measure)
    if json_file:
        _write_json(json_file, machine().as_dict() | {"roofs": measured})
    else:
        show_facts(Console(), machine().describe())
        show_facts(Console(), [(r["what"], r["text"]) for r in measured], title="\nmeasured")


@app.command()
def ladder(json_file: Json = None) -> None:
    """The kernels in reading order, each with its idea."""
    from .kernels import catalog
    from .terminal import show_facts

    _check_writeable("json", json_file, dash=True)
    kernels = catalog().values()
    if json_file:
        _write_json(json_file, [{"name": k.name, "params": k.params} | k.about for k in kernels])
    else:
        show_facts(Console(), [(k.name, k.idea) for k in kernels])


@app.command()
def bench(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KERNEL",
            help="Names, such as cpu/ikj or ikj (see: tilewright ladder), or Python files of your own, such as my.py. "
            "Default: the whole ladder.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to run: cpu.")] = "cpu",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Joined by commas: N, MxNxK (C is M×N), FIRST:LAST:xFACTOR, FIRST:LAST:+STEP. "
            "Such as 16:4096:x2,1000,6x2000x4. Default: 64,256,512,1000,2048.",
        ),
    ] = None,
    operands: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.npy B.npy", help="Multiply your own two matrices instead of random ones."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="float32, float64 or float32,float64. Default: float32, or the operands'."),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Numbers of threads, such as 1,2. Default: one for each usable core."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Libraries to measure beside, such as openblas,mkl; R compares with the first. none measures none. "
            "Default: all that are installed, numpy's own first.",
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(metavar="NUMBER", help="Samples of each cell, at least, after one that is dropped.")
    ] = 4,
    limit: Annotated[
        str,
        typer.Option(metavar="TIME", help="Skip products predicted to take longer, such as 500ms, 10s or 2min."),
    ] = "10s",
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random operands.")] = 1,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Set a parameter of the kernels, such as leaf=1024. Repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write a record a line, each as soon as its cell is finished; what FILE had is replaced. "
            "- is standard output, and the table goes to standard error.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the cells that the --json FILE already has, measure the others.")
    ] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML) with charts too.")
    ] = None,
) -> None:
    """Measure kernels beside the vendor's libraries.

    Every result is verified before its time counts. Ctrl-C keeps the cells that are finished, and --resume continues.
    The exit code is 1 if a result is wrong.
    """
    from .lab import session
    from .terminal import show_bench

    asked = session.Request(
        kernels=kernels or [],
        device=device,
        sizes=sizes,
        operands=operands,
        dtype=dtype,
        threads=threads,
        against=against,
        repeat=repeat,
        limit=limit,
        seed=seed,
        params=param or [],
    )
    if resume and (json_file is None or str(json_file) == "-"):
        raise UsageError(f"resume: needs --json FILE, the record file to continue, got {json_file or 'none'}")
    _check_writeable("json", json_file, dash=True)
    _check_writeable("report", report_file, spare=[json_file, *(operands or ())])
    done = session.run(asked, json_file=json_file, resume=resume, console=Console(stderr=True))
    if done.records:
        table_beside_records = json_file is not None and str(json_file) == "-"
        show_bench(Console(stderr=table_beside_records), done.records)
        if report_file is not None:
            from .report import write_page

            print(f"page: {write_page(done.records, report_file)}", file=sys.stderr if table_beside_records else None)
    if done.interrupted:
        raise typer.Exit(130)
    if any(r.verdict == "wrong" for r in done.records):
        raise typer.Exit(1)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Record file of before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Record file of after.")],
    fail_slower: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Changes within this are none; slower by more exits with 1."),
    ] = "3%",
    json_file: Json = None,
) -> None:
    """Two record files: what became faster or slower.

    Every cell that both files have is FASTER, SLOWER, SAME or UNCLEAR, judged from the raw samples. Files of different
    machines are refused. The exit code is 1 if a cell became slower or wrong, or was lost.
    """
    from .lab.stats import compare as compare_records
    from .records import read
    from .terminal import show_comparison

    _check_writeable("json", json_file, dash=True, spare=[old, new])
    comparison = compare_records(read(old), read(new), threshold=_fraction("fail-slower", fail_slower))
    if json_file:
        _write_json(json_file, comparison.as_dict())
    else:
        show_comparison(Console(), comparison)
    if comparison.slower():
        raise typer.Exit(1)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Record files, from any machines.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the charts as SVG and PNG.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
) -> None:
    """One self-contained page from record files.

    It holds charts, the ladder, the table and the environment, and needs no network.
    """
    from .records import read
    from .report import save_figures, write_page

    _check_writeable("output", output, spare=files)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise UsageError(f"figures: must be a folder, got the file {figures}")
    records = [record for file in files for record in read(file)]
    print(f"page: {write_page(records, output, title=title)}")
    for path in save_figures(records, figures) if figures else []:
        print(f"figure: {path}")


def _fraction(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%?", text.strip())
    if match is None or float(match[1]) >= 100:
        raise UsageError(f"{name}: must be a percentage from 0% to below 100%, such as 3%, got {text!r}")
    return float(match[1]) / 100


def _check_writeable(name: str, path: Path | None, *, dash: bool = False, spare: Iterable[Path | None] = ()) -> None:
    """Fail before the work, not after it; and never write over what is read."""
    if path is None or (dash and str(path) == "-"):
        return
    if str(path) == "-":
        raise UsageError(f"{name}: must be a file, got -")
    if path.is_dir() or not path.parent.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"{path.parent} is no folder"
        raise UsageError(f"{name}: {path} cannot be written: {wrong}")
    if path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in spare):
        raise UsageError(f"{name}: {path} is read by this command, and would be overwritten")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{name}: {path} cannot be written: permission denied")


def _write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False, default=str)
    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text + "\n", encoding="utf-8")
