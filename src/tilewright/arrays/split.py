"""Products of float32 whose operands are split for tensor cores of float16: when they can be, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

from ..planning.choice import PLANES, SPLIT
from ..planning.plan import Rows
from ..problem import RESIDUES_IN
from ..runtime.gpu.residue_operand import ResidueProduct
from ..runtime.gpu.split_operand import WIDEST, SplitOperand, SplitProduct, allowed_excess, split_bound
from .layouts import given_by_strides
from .order import Order
from .residues import can_be_residues, residues_of, residues_seconds

#: Bytes a second that splitting moves where four neighbours can be read at once, and elsewhere; the seconds of its launch
#: and of that for flagged parts, and those of each block of the latter that has nothing to do. Fitted to records of an H200.
_MOVED, _MOVED_SINGLY, _LAUNCHES_S, _BLOCK_S = 2.95e12, 2.15e12, 2e-6, 2.4e-9
#: Lines longer than this are mostly read twice, which takes so many times as long.
_LONG, _TWICE = 24576, 1.4


def can_split(order: Order, compute: str = SPLIT) -> bool:
    """Whether the whole batch is one launch, and the classical bound holds for lines whose magnitudes are alike if they are
    split in two. Of float64 as residues, what ``can_be_residues`` says."""
    if compute in RESIDUES_IN:
        return can_be_residues(order)
    return len(order.axes) < 2 and (compute != SPLIT or allowed_excess(order.mnk[2], 1) >= 0)


def split_of(order: Order, compute: str = SPLIT) -> SplitProduct | ResidueProduct:
    """The products of an order for which ``can_split`` holds."""
    return residues_of(order, compute) if compute in RESIDUES_IN else _split_of(order, compute)


def _split_of(order: Order, compute: str) -> SplitProduct:
    planes = PLANES[compute]
    batch, *nexts = (order.axes or [(1, 0, 0, 0)])[0]
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    factors = (given_by_strides(*each) for each in zip((a, b.transposed), nexts, strict=False))
    of_a, of_b = (SplitOperand(x, batch if x.next else 1, planes) for x in factors)
    return SplitProduct(of_a, of_b, c._replace(next=nexts[2]), batch)


def split_seconds(order: Order, compute: str, memory_ratio: float) -> float:
    """The predicted time of splitting the operands, and of the launch for flagged parts where none is flagged."""
    if compute in RESIDUES_IN:
        return residues_seconds(order, compute, memory_ratio)
    product = _split_of(order, compute)
    moved = ((x, (4 + 2 * x.planes) * x.plane * x.matrices) for x in (product.a, product.b))
    split = sum(size / (_MOVED if x.is_whole else _MOVED_SINGLY) for x, size in moved)
    twice = _TWICE if product.a.k > _LONG else 1
    return _LAUNCHES_S + memory_ratio * split * twice + _BLOCK_S * product.tiles


def rounded_rows(k: int) -> Rows:
    """What a plan says of the accuracy where each number becomes one float16."""
    return [
        ("in", "float32, its rows and columns scaled by powers of two and rounded to float16, summed in float32"),
        (
            "flagged",
            f"from the operands, where a row of A or a column of B spans more than 28 binades: by three products of TF32, "
            f"or by multiply-adds where they span more than {WIDEST} beyond that together, or have an infinity or a NaN; "
            f"the GPU decides for each tile, whose error is then at most {k}·2⁻²⁴·|A||B|",
        ),
    ]


def split_rows(k: int, params: Mapping[str, int], step: int | None = None) -> Rows:
    """What a plan says of the accuracy; if it adds sums over ``step`` of k, with one rounding each."""
    step = min(k, step or k)
    excess = allowed_excess(step, params["CHUNK"])
    factor = split_bound(step, params["CHUNK"]) + -(-k // step) - 1
    return [
        ("in", "float32 as two float16, by three products on tensor cores, summed in float32"),
        ("error", f"at most {factor:.0f}·2⁻²⁴·|A||B| where a row of A, and a column of B, spans up to 28 binades"),
        (
            "flagged",
            f"from the operands, where a row of A and a column of B span more than {excess} binades beyond 28 together: by "
            f"three products of TF32, and beyond {WIDEST}, or with an infinity or a NaN, by multiply-adds; the GPU "
            f"decides for each tile, so that the classical bound {k}·2⁻²⁴·|A||B| always holds",
        ),
    ]
