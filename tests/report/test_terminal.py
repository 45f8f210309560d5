"""Tables for 80 columns: nothing cut short, nothing lost, marks in plain words."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from support.report_records import SIZES
from tilewright.lab.terminal import show_bench, show_comparison, show_facts
from tilewright.records.bench import VERDICTS, BenchRecord
from tilewright.records.compare import compare


def cell(kernel: str = "cpu/strassen_winograd", n: int = 64, **changes: Any) -> BenchRecord:
    known: dict[str, Any] = {"samples_s": [2e-5, 1e-5, 1.5e-5], "reference": "ref/openblas", "peak_gflops": 100.0}
    known |= {"reference_samples_s": [3e-5], "threads": 2, "m": n, "n": n, "k": n}
    return BenchRecord(
        kernel=kernel, device="cpu", **({"dtype": "float32"} | {"verdict": "ok"} | known | changes)
    ).with_rates()


def shown(records: list[BenchRecord], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_bench(console, records)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("sizes", [(64,), (64, 256, 512, 1000, 2048), SIZES])
@pytest.mark.parametrize("speed", [1e-9, 1.0, 1e6])
def test_tables_fit_and_nothing_is_cut_short(width, sizes, speed) -> None:
    scaled = {"samples_s": [2e-5 / speed], "reference_samples_s": [3e-5 / speed]}
    text = shown([cell(kernel, n, **scaled) for n in sizes for kernel in ("cpu/strassen_winograd", "ref/x")], width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    heads = [line.split() for line in text.splitlines() if line.startswith("kernel")]
    assert all(head[:2] == ["kernel", "thr"] for head in heads)
    assert [int(size) for head in heads for size in head[2:]] == list(sizes)


def test_the_default_sizes_stand_side_by_side() -> None:
    sizes = (64, 256, 512, 1000, 2048)
    text = shown([cell(n=n, samples_s=[n**3 / 4e11], reference_samples_s=[n**3 / 2e11]) for n in sizes])
    assert text.splitlines()[1].split() == ["kernel", "thr", *map(str, sizes)]


def test_a_cell_shows_gflops_and_ratio() -> None:
    steady = {"samples_s": [1.49e-5, 1.5e-5, 1.51e-5], "reference_samples_s": [3e-5] * 3}
    text = shown([cell(**steady), cell("ref/openblas", reference=None, reference_samples_s=[])])
    rate = 2 * 64**3 / 1.5e-5 / 1e9
    assert f"cpu/strassen_winograd   2  {rate:.1f} 2.00" in text
    assert f"ref/openblas            2  {rate:.1f}    –" in text
    assert "R: ref/openblas's time over the kernel's" in text
    text = " ".join(text.split())
    assert f"reaches {rate:.0f}% of the measured 100 GFLOPS" in text
    assert "51% in the median, 100% for ref/openblas" in text
    assert "2 of 2 cells measured and verified, 0 wrong." in text


def test_a_ratio_of_samples_that_scatter_is_not_stated() -> None:
    text = shown([cell(), cell("ref/openblas", reference=None, reference_samples_s=[])])
    assert "cpu/strassen_winograd   2  35.0 ?" in text


def test_without_a_reference_there_is_no_column_for_it() -> None:
    text = shown([cell(reference=None, reference_samples_s=[])])
    assert "R" not in text.splitlines()[0]
    assert "–" not in text


@pytest.mark.parametrize("verdict", [verdict for verdict in VERDICTS if verdict != "ok"])
@pytest.mark.parametrize("reason", ["", "\n", "because [/x] of\nmuch more"])
def test_marks_are_explained_in_plain_words(verdict, reason) -> None:
    text = shown([cell(verdict=verdict, reason=reason, samples_s=[], kernel="cpu/[/x]")])
    assert VERDICTS[verdict] in text
    assert "because" not in reason or "because [/x] of" in " ".join(text.split())
    assert "much more" not in text


def test_wrong_cells_are_counted() -> None:
    assert "1 of 2 cells measured and verified, 1 wrong." in shown([cell(), cell(n=8, verdict="wrong", samples_s=[])])


def test_squares_stand_before_rectangles_and_dtypes_apart() -> None:
    text = shown([cell(m=6, n=2000, k=4), cell(n=8), cell(n=16, dtype="float64")])
    assert text.index("8") < text.index("6x2000x4")
    assert text.index("float32: GFLOPS") < text.index("float64: GFLOPS")


def test_names_are_no_markup() -> None:
    assert "my/[red]" in shown([cell("my/[red]")])
    console = Console(file=io.StringIO(), width=80)
    show_facts(console, [("[/a]", "C[i, j] is [bold]")])
    show_comparison(console, compare([cell("[/x]")], [cell("[/x]")]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "C[i, j] is [bold]" in text
    assert "[/x]" in text
