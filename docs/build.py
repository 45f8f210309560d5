"""Generates what README and docs say in figures, from the committed records: ``python docs/build.py``.

``--check`` changes nothing and fails when something is stale. Between the markers ``<!-- generated: NAME -->`` and
``<!-- end -->`` stands what this wrote; everything else is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tilewright.kernels import catalog
from tilewright.records import BenchRecord, read
from tilewright.report import save_figures

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks"
FIGURES = ROOT / "docs" / "figures"
#: The size that the tables quote: no power of two, beyond the caches near the core.
SIZE = 1000


def ladder_records(dtype: str) -> list[BenchRecord]:
    return read(RECORDS / f"cpu-ladder-{dtype}.jsonl")


def at(records: list[BenchRecord], kernel: str, n: int, threads: int) -> BenchRecord | None:
    return next((r for r in records if (r.kernel, r.n, r.m, r.threads) == (kernel, n, n, threads)), None)


def table(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def rate(record: BenchRecord | None) -> str:
    """GFLOPS and R, or why there is none."""
    if record is None or record.gflops is None:
        return "–" if record is None else record.reason
    digits = 0 if record.gflops >= 100 else 1
    return f"{record.gflops:.{digits}f}" + (f" ({record.ratio:.2f})" if record.ratio is not None else "")


def ladder_table(dtype: str) -> str:
    """Kernels down; GFLOPS with R in brackets on one thread and on all."""
    records = ladder_records(dtype)
    counts = sorted({r.threads for r in records})
    heads = [f"{count} thread{'s' if count > 1 else ''}" for count in counts]
    rows = [["kernel", *heads]]
    for name in dict.fromkeys(r.kernel for r in records):
        rows.append([f"`{name}`", *(rate(at(records, name, SIZE, count)) for count in counts)])
    first = records[0]
    environment = first.environment
    peaks = ", ".join(
        f"{peak:.0f} on {count}"
        for count in counts
        if (peak := next((r.peak_gflops for r in records if r.threads == count and r.peak_gflops), None))
    )
    note = (
        f"{dtype}, n = {SIZE}: GFLOPS, and in brackets R, the time of numpy's OpenBLAS on as many threads over ours. "
        f"{environment['processor']} ({environment['llvm_cpu']} to LLVM, OpenBLAS's kernels: "
        f"{environment['blas_kernels'].get('openblas', 'unknown')}), {environment['cores']} cores, measured FMA peak "
        f"{peaks} threads. Record: [`benchmarks/cpu-ladder-{dtype}.jsonl`](benchmarks/cpu-ladder-{dtype}.jsonl), "
        f"made by `{environment['command']}`."
    )
    return table(rows) + "\n\n" + note


def ideas() -> str:
    """Every rung with its idea and its parent, from the kernels themselves."""
    lines = []
    for kernel in catalog().values():
        if not kernel.is_reference:
            source = kernel.path.relative_to(ROOT / "src").as_posix()
            lines.append(f"- [`{kernel.name}`](src/{source}) {kernel.idea}")
    return "\n".join(lines)


GENERATED: dict[str, Callable[[], str]] = {
    "ladder float32": lambda: ladder_table("float32"),
    "ladder float64": lambda: ladder_table("float64"),
    "ideas": ideas,
}


def filled(text: str) -> str:
    """The text with every generated part replaced by what it should be now."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{GENERATED[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", fill, text, flags=re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def stale() -> list[Path]:
    """The documents that say something else than the records."""
    return [
        path for path in documents() if filled(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for path in stale():
            print(f"stale: {path.relative_to(ROOT)}; run python docs/build.py", file=sys.stderr)
        return 1 if stale() else 0
    for path in documents():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in save_figures(ladder_records("float32"), FIGURES, formats=("svg",), themes=("light", "dark")):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
