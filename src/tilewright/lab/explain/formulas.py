"""Counts by the formulas of a kernel's header and of the sources, compared with what the microscope counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...kernels.cuda_kernel import CudaKernel
from ...records.explanation import Access, Formula
from ..inputs.formats import format_of

SECTOR = 32  # bytes
_SPACES = {"load": ("ld", "cp.async"), "store": ("st",)}


def formulas_of(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    """The formulas of a kernel at m×n×k with these parameters, each with its value and the count of a run."""
    return [*_of_header(kernel, m, n, k, params, accesses), *_s3_1(kernel, m, n, k, params, accesses)]


def counted_value(accesses: Sequence[Access], name: str) -> int:
    """What the microscope counted for the name of a formula, such as ``global_load_sectors``.

    >>> counted_value([Access(7, "global", "ld", 4, requests=2, bytes=256, sectors=8)], "global_load_sectors")
    8
    """
    space, kind, what = name.split("_")
    return sum(getattr(a, what) for a in accesses if a.space == space and a.kind in _SPACES[kind])


def _of_header(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    formulas = []
    for name, formula in kernel.formulas.items():
        space, kind, what = name.split("_")
        value = formula(m=m, n=n, k=k, **params)
        formulas.append(
            Formula(kernel.row, f"{space} {kind}s, {what}", formula.text, value, counted_value(accesses, name))
        )
    return formulas


def _s3_1(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    """S3.1: operations for each element loaded from or stored to global memory, by the tile and as counted."""
    moved = sum(a.sectors for a in accesses if a.space == "global") * SECTOR
    elements = moved / format_of(kernel.dtypes[0]).itemsize
    if not kernel.tile or not elements:
        return []
    w, h = (side(m=m, n=n, k=k, **params) for side in kernel.tile)
    what = f"operations for an element moved, tile {w}×{h}"
    value = operations_per_access(w, h, k) if k else None
    return [Formula("S3.1", what, "2whk / (wh + wk + kh)", value, 2 * m * n * k / elements)]


def operations_per_access(w: float, h: float, k: float | None = None) -> float:
    """S3.1: operations for each access of a block of C of w × h: 2whk/(wh + wk + kh); for large k, 2/(1/w + 1/h).

    >>> operations_per_access(16, 64), round(operations_per_access(16, 64, 1024), 2)
    (25.6, 25.28)
    """
    limit = 2 / (1 / w + 1 / h)
    return limit if k is None else 2 * w * h * k / (w * h + w * k + k * h)
