"""Typical errors in units of u."""

from __future__ import annotations

from tilewright.records.bench import BenchRecord
from tilewright.report import accuracy
from tilewright.report.words import digits

from .common import made_by, records_of, table


def error_table(name: str) -> str:
    """Kernels down, sizes across, a table a dtype and precision; kernels whose errors agree share a row."""
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
    return "\n\n".join([*parts, made_by(name)])


def in_units(record: BenchRecord | None) -> str:
    error = None if record is None else accuracy.in_units(record)
    return "–" if error is None else digits(error)


def error_orders() -> str:
    """Orders of addition down, sizes across: the error that NumPy measured, and the expected one in brackets."""
    of = {(r.kernel, r.k): r for r in records_of("cpu-error-orders") if "leaf" not in r.params}
    sizes = sorted({k for _, k in of})
    rows = [["order of addition", *(f"{k:,}" for k in sizes)]]
    for order in dict.fromkeys(order for order, _ in of):
        params = "".join(f" {name}={value}" for name, value in of[order, sizes[0]].params.items())
        cells = [f"{in_units(of[order, k])} ({digits(of[order, k].about['expected'])})" for k in sizes]
        rows.append([f"`{order}{params}`", *cells])
    return f"{table(rows)}\n\n{made_by('cpu-error-orders')}"


def error_levels() -> str:
    """Levels of the recursions down: measured errors with the expected in brackets, beside sums that are cut alike."""
    classical = {r.params["leaf"]: r for r in records_of("cpu-error-orders") if "leaf" in r.params}
    of = {(r.kernel, r.params["leaf"]): r for r in records_of("cpu-error-strassen")}
    kernels = list(dict.fromkeys(kernel for kernel, _ in of))
    rows = [["levels (leaf)", *(f"`{kernel}`" for kernel in kernels), "classical, sums cut alike"]]
    for level, (leaf, alike) in enumerate(sorted(classical.items(), reverse=True)):
        known = [alike.about.get(kernel.replace("_buffer", "")) for kernel in kernels]
        cells = [f"{in_units(of[kernel, leaf])} ({digits(e)})" for kernel, e in zip(kernels, known, strict=True)]
        rows.append([f"{level} ({leaf:,})", *cells, f"{in_units(alike)} ({digits(alike.about['expected'])})"])
    return f"{table(rows)}\n\nn = 4,096, float32. {made_by('cpu-error-strassen')}"


def error_of_s1() -> str:
    """What the source found, in figures."""
    cuda = next(r for r in records_of("cuda-error-h200") if (r.kernel, r.n) == ("cuda/coalesced", 4096))
    leaves = {r.params["leaf"]: r for r in records_of("cpu-error-strassen") if r.kernel == "cpu/strassen_buffer"}
    said = [f"{in_units(r)} u, {(cuda.rms_error or 0) / (r.rms_error or 1):.1f} times less" for r in leaves.values()]
    whole, level = said[list(leaves).index(4096)], said[list(leaves).index(2048)]
    return (
        f"At 4,096 every CUDA rung has {in_units(cuda)} u. `cpu/strassen_buffer` has {whole}, while its leaf is the whole "
        f"product, and after one level {level}."
    )
