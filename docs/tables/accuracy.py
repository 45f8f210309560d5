"""Generates the tables of accuracy: typical errors, grades, and errors for each distribution of the operands."""

from __future__ import annotations

import json
from typing import Any

from tilewright.records.bench import BenchRecord
from tilewright.records.report import accuracy
from tilewright.records.report.words import digits

from .common import RECORDS, command, lines_of, linked, made_by, records_of, table


def error_table(name: str) -> str:
    """Return tables of typical errors, one for each dtype and precision, with rows for kernels and columns for sizes.

    Kernels whose shown errors are equal share a row.
    """
    records = [r for r in records_of(name) if accuracy.in_units(r)]
    parts = []
    for dtype, precision in dict.fromkeys((r.dtype, r.precision) for r in records):
        of = {(r.kernel, r.n): r for r in records if (r.dtype, r.precision) == (dtype, precision)}
        sizes = sorted({n for _, n in of})
        alike: dict[tuple[str, ...], list[str]] = {}
        for kernel in dict.fromkeys(kernel for kernel, _ in of):
            alike.setdefault(tuple(in_units(of.get((kernel, n))) for n in sizes), []).append(f"`{kernel}`")
        rows = [["kernel", *(f"{n:,}" for n in sizes)], *([", ".join(who), *errors] for errors, who in alike.items())]
        said = f"{dtype}{'' if precision == 'standard' else f', {precision}'}, u = 2^{accuracy.UNITS[dtype]}"
        parts.append(f"{said}:\n\n{table(rows)}")
    return "\n\n".join([*parts, f"The errors were measured on {made_by(name)}"])


def in_units(record: BenchRecord | None) -> str:
    """Return the typical error of a record in units of u as text, or a dash if there is none."""
    error = None if record is None else accuracy.in_units(record)
    return "–" if error is None else digits(error)


def error_orders() -> str:
    """Return the table of orders of addition and sizes: the measured error, and in brackets the predicted one."""
    of = {(r.kernel, r.k): r for r in records_of("cpu-error-orders") if "leaf" not in r.params}
    sizes = sorted({k for _, k in of})
    rows = [["order of addition", *(f"{k:,}" for k in sizes)]]
    for order in dict.fromkeys(order for order, _ in of):
        params = "".join(f" {name}={value}" for name, value in of[order, sizes[0]].params.items())
        cells = [f"{in_units(of[order, k])} ({digits(of[order, k].about['expected'])})" for k in sizes]
        rows.append([f"`{order}{params}`", *cells])
    return f"{table(rows)}\n\nThe errors were measured with {made_by('cpu-error-orders')}"


def error_levels() -> str:
    """Return the table of recursion levels: measured errors of Strassen-like kernels, and in brackets predicted ones.

    The last column has a classical product whose sums are as long as those in the leaves.
    """
    classical = {r.params["leaf"]: r for r in records_of("cpu-error-orders") if "leaf" in r.params}
    of = {(r.kernel, r.params["leaf"]): r for r in records_of("cpu-error-strassen")}
    kernels = list(dict.fromkeys(kernel for kernel, _ in of))
    rows = [["levels (leaf)", *(f"`{kernel}`" for kernel in kernels), "classical, sums as long as in the leaves"]]
    for level, (leaf, alike) in enumerate(sorted(classical.items(), reverse=True)):
        known = [alike.about.get(kernel.replace("_buffer", "")) for kernel in kernels]
        cells = [f"{in_units(of[kernel, leaf])} ({digits(e)})" for kernel, e in zip(kernels, known, strict=True)]
        rows.append([f"{level} ({leaf:,})", *cells, f"{in_units(alike)} ({digits(alike.about['expected'])})"])
    said = "The products have n = 4,096 and are float32. The errors were measured on"
    return f"{table(rows)}\n\n{said} {made_by('cpu-error-strassen')}"


def error_of_s1() -> str:
    """Return a sentence that compares the errors of CUDA kernels with those of Strassen's scheme, as source S1 did."""
    cuda = next(r for r in records_of("cuda-error-h200") if (r.kernel, r.n) == ("cuda/coalesced", 4096))
    leaves = {r.params["leaf"]: r for r in records_of("cpu-error-strassen") if r.kernel == "cpu/strassen_buffer"}
    said = [f"{in_units(r)} u, {(cuda.rms_error or 0) / (r.rms_error or 1):.1f} times smaller" for r in leaves.values()]
    whole, level = said[list(leaves).index(4096)], said[list(leaves).index(2048)]
    return (
        "Tilewright's kernels also have larger errors on the GPU than on the CPU. For n = 4,096 every CUDA kernel of "
        f"the ladder has an error of {in_units(cuda)} u. Without recursion, `cpu/strassen_buffer` has an error of "
        f"{whole}. With one level of recursion the error of `cpu/strassen_buffer` is {level}."
    )


def grades(name: str) -> str:
    """Return the table of grades: the grade, algorithm, slope and largest error of each path and dtype."""
    rows = [["path", "dtype", "grade", "algorithm found", "slope", "largest error / n·u·(\\|A\\|\\|B\\|)"]]
    for line in lines_of(name)[1]:
        if line["kind"] == "accuracy grade":
            slope = "–" if line["slope"] is None else f"{line['slope'] + 0.0:z.2f}"
            shown = f"**{line['grade']}**", line["algorithm"], slope, _short(line["over"]["A"])
            rows.append([_path(line), line["dtype"], *shown])
    return f"{table(rows)}\n\n{_sizes_of_grades(name)} {made_by_script(name)}"


def _sizes_of_grades(name: str) -> str:
    sizes = next(line["sizes"] for line in lines_of(name)[1] if line["kind"] == "accuracy grade")
    return f"The sizes are n = {', '.join(f'{n:,}' for n in sizes)}."


def by_distribution(name: str) -> str:
    """Return tables of the largest errors, one for each dtype, with rows for distributions and columns for paths."""
    return _errors(name, "distribution", lambda line: not line["distribution"].startswith("graded:"))


def by_span(name: str) -> str:
    """Return tables of the largest errors, with a row for each span of magnitudes along k and a column for each path."""

    def at_the_size(line: dict[str, Any]) -> bool:
        return line["distribution"].startswith("graded") and line["distribution"] != "graded_rows"

    return _errors(name, "binades", at_the_size, lambda line: int(line["distribution"].partition(":")[2] or 40))


def by_size(name: str) -> str:
    """Return tables of the largest errors of uniform operands, with a row for each size and a column for each path."""
    return _errors(name, "n", lambda line: line["distribution"] == "uniform", lambda line: line["n"])


def _errors(name: str, head: str, chosen: Any, key: Any = lambda line: line["distribution"].replace("_", " ")) -> str:
    """Return a table for each dtype, with a row for each ``key`` of the ``chosen`` lines and a column for each path.

    Rows whose keys are numbers are sorted.
    """
    lines = [line for line in lines_of(name)[1] if line["kind"] == "accuracy" and chosen(line)]
    size = max(line["n"] for line in lines) if head == "n" else _size(lines_of(name)[1])
    lines = [line for line in lines if head == "n" or line["n"] == size]
    parts = []
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        of = {(key(line), _path(line)): line for line in lines if line["dtype"] == dtype}
        keys, paths = ([*dict.fromkeys(each)] for each in zip(*of, strict=True))
        keys = sorted(keys) if isinstance(keys[0], int) else keys
        rows = [[f"{head}, {dtype}", *paths]]
        rows += [
            [f"{each:,}" if head == "n" else str(each), *(_error(of.get((each, path))) for path in paths)]
            for each in keys
        ]
        parts.append(table(rows))
    said = "" if head == "n" else f"All products have n = {size:,}. "
    return "\n\n".join([*parts, f"{said}{made_by_script(name)}"])


def _size(lines: list[dict[str, Any]]) -> int:
    """Return the size n of the products that were measured with several distributions of the operands."""
    return next(line["n"] for line in lines if line.get("distribution") == "normal")


def _path(line: dict[str, Any]) -> str:
    """Return a path's name. The names of kernels and of reference libraries are written as code."""
    return f"`{line['path']}`" if "/" in line["path"] else line["path"]


def _error(line: dict[str, Any] | None) -> str:
    """Return the largest error, and in brackets the share of C that the GPU computed from the original operands."""
    if line is None:
        return ""
    text = "none" if not line["as_ieee"] else _short(line["componentwise"])
    share = f" ({100 * line['flagged'] / line['parts']:.3g} %)" if "flagged" in line else ""
    return text + share


def _short(number: float | None) -> str:
    """Return a number as text with three digits, or as a power of ten."""
    if number is None:
        return "–"
    return digits(number) if number < 1e5 else f"{number:.0e}".replace("e+0", "e").replace("e+", "e")


def made_by_script(name: str) -> str:
    """Return where a record was measured, a link to it, and the command that made it."""
    known = lines_of(name)[0]
    where = known.get("gpu") or known["processor"]
    return f"The errors were measured on {where}. Record: {linked(name)}, made by `{command(known)}`."


def random_products(*names: str) -> str:
    """Return a list with one item for each record of random products on the CPU."""
    said = []
    for name in names:
        known = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
        wrong, link = len(known["wrong"]), f"[{name}](../benchmarks/{name}.json)"
        made = f"record {link}, made by `{command(known['environment'])}`"
        said.append(
            f"{known['count']:,} products on {known['environment']['processor']}, {wrong or 'none'} of them wrong: "
            f"{made}."
        )
    return "\n".join(f"- {each}" for each in said)
