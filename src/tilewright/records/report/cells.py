"""The rows that charts draw: which kernels have colours, and which sizes a curve goes through."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from ..bench import BenchRecord
from ..compare.reference import busy
from .views import View, is_library_call, is_reference, spread, threads_of
from .words import digits, duration, finite

#: Charts draw up to this many kernels, references aside, in colour; of more kernels only the emphasised ones.
FEW_KERNELS = 4
#: Sizes closer than this part of the axis share one place on it: their marks overlap.
ONE_PLACE = 1 / 80


def best_kernel(records: Iterable[BenchRecord]) -> BenchRecord | None:
    """The fastest of some measured records in the largest shape there is; squares before other shapes."""
    sized = [((r.m == r.n == r.k, r.flops), r.gflops or 0.0, r) for r in records]
    return max(sized, key=lambda entry: entry[:2])[2] if sized else None


def best_rung(view: View) -> BenchRecord | None:
    """The fastest kernel of the largest shape, references and the library's call aside."""
    return best_kernel(r for r in view.measured if not is_reference(r.kernel) and not is_library_call(r.kernel))


def emphasised(view: View) -> list[str]:
    """The kernels that charts draw in colour: the library's call, the best rung and the references; of few kernels all.

    More lines than that cannot be told apart: the page draws the others grey until the reader points at them or picks them.
    """
    kernels = [kernel for kernel in view.kernels if not is_reference(kernel)]
    if len(kernels) <= FEW_KERNELS:
        return view.kernels
    best = best_rung(view)
    coloured = [kernel for kernel in kernels if is_library_call(kernel)] + ([best.kernel] if best else [])
    return coloured + [kernel for kernel in view.kernels if is_reference(kernel)]


def curve_sizes(sizes: Iterable[int]) -> set[int]:
    """The sizes that a curve goes through: of sizes in one place on the axis the one with the largest power of two.

    4095, 4096 and 4097 stand for how much an edge costs. A line through all three is a vertical spike that hides the
    difference; as three marks, with the line through 4096, they show it.

    >>> sorted(curve_sizes([1000, 1024, 2048, 4095, 4096, 4097, 8192]))
    [1024, 2048, 4096, 8192]
    >>> sorted(curve_sizes([4095, 4096, 4097]))
    [4095, 4096, 4097]
    """
    ordered = sorted(sizes)
    if not ordered:
        return set()
    least = (ordered[-1] / ordered[0]) ** ONE_PLACE
    places = [[ordered[0]]]
    for before, size in itertools.pairwise(ordered):
        if size > before * least:
            places.append([])
        places[-1].append(size)
    return {max(place, key=lambda size: size & -size) for place in places}


def chart_rows(view: View) -> list[dict[str, Any]]:
    """The rows that charts draw: one for each measured cell, with its numbers and the texts of its tooltip.

    ``strong`` says whether its kernel is emphasised (these come last and are drawn on top), ``joined`` whether the kernel's
    curve goes through it.
    """
    strong = set(emphasised(view))
    joined = curves(view.measured)
    rows = [
        _cell(r) | {"strong": r.kernel in strong, "joined": r.m == r.n == r.k and (r.kernel, r.n) in joined}
        for r in view.measured
    ]
    return sorted(rows, key=lambda row: row["strong"])


def curves(records: Iterable[BenchRecord]) -> set[tuple[str, int]]:
    """Kernel and size of each square product that a curve goes through."""
    sizes: dict[str, set[int]] = {}
    for r in records:
        if r.m == r.n == r.k:
            sizes.setdefault(r.kernel, set()).add(r.n)
    return {(kernel, n) for kernel, found in sizes.items() for n in curve_sizes(found)}


def _cell(r: BenchRecord) -> dict[str, Any]:
    samples = [s for s in r.samples_s if finite(s)]
    median, gflops, ratio = finite(r.median_s) or 0.0, finite(r.gflops) or 0.0, None if busy(r) else finite(r.ratio)
    fraction = finite(r.peak_fraction)
    row: dict[str, Any] = {
        "kernel": r.kernel,
        "shape": r.shape.replace("x", " × "),
        "square": r.m == r.n == r.k,
        "n": r.n,
        "time": median,
        "gflops": round(gflops, 6),
        "ratio": None if ratio is None else round(ratio, 6),
        "Time": duration(median),
        "GFLOPS": digits(gflops) + (f" ({fraction:.0%} of peak)" if fraction else ""),
        "R": _ratio_words(r),
        "Spread": spread(samples),
        "Samples": ", ".join(filter(None, [str(len(samples)), threads_of(r)])),
    }
    return row


def _ratio_words(r: BenchRecord) -> str:
    if finite(r.ratio) is None:
        return "not compared"
    return f"?: {busy(r)}" if busy(r) else f"{digits(r.ratio or 0)} against {r.reference or 'the reference'}"
