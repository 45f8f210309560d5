"""The commands; no arithmetic here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .errors import UsageError

app = typer.Typer(
    name="tilewright",
    help="Multiply matrices as fast as the machine allows, and see why.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write as JSON; - is standard output.")]


@app.command()
def info(
    measure: Annotated[bool, typer.Option(help="Measure peak and bandwidth now, not from the last time.")] = False,
    json_file: Json = None,
) -> None:
    """What this machine is, and the peak and bandwidth it reaches (measured)."""
    from .machine import machine
    from .peaks import roofs
    from .terminal import show_facts

    measured = roofs(fresh=measure)
    if json_file:
        _write_json(json_file, machine().as_dict() | {"roofs": measured})
    else:
        show_facts(Console(), machine().describe())
        show_facts(Console(), [(r["what"], r["text"]) for r in measured], title="\nmeasured")


@app.command()
def ladder(json_file: Json = None) -> None:
    """The kernels, in reading order, with the idea of each."""
    from .kernels import catalog
    from .terminal import show_facts

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
            metavar="[KERNEL]...",
            help="Names (cpu/ikj, or ikj), or files of your own (my.py). Default: the whole ladder.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu.")] = "cpu",
    sizes: Annotated[
        str, typer.Option(help="N, MxNxK, FIRST:LAST:xFACTOR, FIRST:LAST:+STEP; joined by commas.")
    ] = "64,256,512,1000,2048",
    operands: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.npy B.npy", help="Your own matrices instead of sizes."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float64, or both joined by a comma. Default: float32, or the operands'."),
    ] = None,
    threads: Annotated[
        str | None, typer.Option(help="Thread counts joined by commas. Default: every usable core.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Libraries to measure beside; R refers to the first. Default: all installed, numpy's first; none for none."
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Samples of each cell, after one that is dropped.")] = 4,
    limit: Annotated[str, typer.Option(help="Skip products predicted to take longer than this.")] = "10s",
    seed: Annotated[int, typer.Option(help="Seed of the random operands.")] = 1,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a kernel's parameter, such as leaf=1024."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write a record a line, each as soon as its cell is finished."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the cells that FILE already has, and measure the others.")
    ] = False,
    report_file: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the page (HTML).")] = None,
) -> None:
    """Measure kernels beside the vendor's libraries; every result is verified before its time counts."""
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
    if resume and json_file is None:
        raise UsageError("resume: needs --json FILE, the record file to continue")
    if report_file is not None:
        _check_writeable(report_file)
    done = session.run(asked, json_file=json_file, resume=resume, console=Console(stderr=True))
    if done.records:
        show_bench(Console(), done.records)
        if report_file is not None:
            from .report import write_page

            print(f"page: {write_page(done.records, report_file)}")
    if done.interrupted:
        raise typer.Exit(130)
    if any(r.verdict == "wrong" for r in done.records):
        raise typer.Exit(1)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(help="Record file of before.")],
    new: Annotated[Path, typer.Argument(help="Record file of after.")],
    fail_slower: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Changes within this are none; slower by more exits with 1."),
    ] = "3%",
    json_file: Json = None,
) -> None:
    """FASTER, SLOWER, SAME or UNCLEAR for every cell of two record files, from their raw samples."""
    from .lab.stats import compare as compare_records
    from .records import read
    from .terminal import show_comparison

    comparison = compare_records(read(old), read(new), threshold=_fraction("fail-slower", fail_slower))
    if json_file:
        _write_json(json_file, comparison.as_dict())
    else:
        show_comparison(Console(), comparison)
    if comparison.slower():
        raise typer.Exit(1)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Record files, from any machines.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the charts as SVG and PNG.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """One self-contained page from record files: charts, the ladder, the table, the environment."""
    from .records import read
    from .report import save_figures, write_page

    records = [record for file in files for record in read(file)]
    print(f"page: {write_page(records, output, title=title)}")
    for path in save_figures(records, figures) if figures else []:
        print(f"figure: {path}")


def _fraction(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"{name}: must be a percentage such as 3%, got {text!r}") from None


def _check_writeable(path: Path) -> None:
    """Fail before the measurements, not after them."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(
            f"report: {path} cannot be written: {'it' if path.is_dir() else path.parent} is "
            f"{'a folder' if path.is_dir() else 'no folder'}"
        )


def _write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False, default=str)
    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text + "\n", encoding="utf-8")
