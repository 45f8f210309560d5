"""Products whose operands are converted for tensor cores of a narrower dtype: float32 is split into float16, and
float64 and complex128 are converted to residues in int8. This module decides when such a conversion is possible, and
predicts the time of the product."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...kernels.cuda_kernel import Card
from ...product.plan import Rows
from ...product.precision import PLANES, SPLIT
from ...product.problem import itemsize_of
from ...product.residues import MOST_K, RESIDUES_IN, residue_bound
from ..runtime.residue_product import ResidueOperand, ResidueProduct
from ..runtime.split_product import WIDEST, SplitOperand, SplitProduct, allowed_excess, split_bound
from .layouts import given_by_strides
from .order import Order

#: Bytes a second that splitting moves where four neighbours can be read at once, and elsewhere; the seconds of its launch
#: and of that for flagged parts, and those of each block of the latter that has nothing to do. Fitted to records of an H200.
_MOVED, _MOVED_SINGLY, _LAUNCHES_S, _BLOCK_S = 2.95e12, 2.15e12, 2e-6, 2.4e-9
#: Lines longer than this are mostly read twice, which takes so many times as long.
_LONG, _TWICE = 24576, 1.4
#: Bytes a second that the launches before and after a product of residues move, and seconds of these launches. Fitted to
#: records of an H200.
_MOVED_BEFORE, _MOVED_AFTER, _RESIDUES_S = 2.9e12, 2.6e12, {"float64": 30e-6, "complex128": 45e-6}
#: float64 operations for each real number that is rounded, and for one of C beside four for each modulus; clocks a second.
_TO_ROUND, _TO_SCALE, _CLOCK = 8, 24, 1.4e9
#: The least m, n and k of products from residues, where not all are considered that the kernel suits.
_LEAST = {"float64": 1024}


def can_split(order: Order, compute: str = SPLIT) -> bool:
    """Whether the operands of a product can be split for tensor cores of a narrower dtype.

    For float32 the whole batch must be one launch, and the classical bound must hold for rows and columns whose
    elements have similar magnitudes. For float64 and complex128 there must be a single product, and its residues must
    determine its sums."""
    if compute in RESIDUES_IN:
        is_large = min(order.mnk) >= _LEAST.get(RESIDUES_IN[compute].dtype, 0)
        return not order.axes and is_large and order.mnk[2] <= MOST_K
    return len(order.axes) < 2 and (compute != SPLIT or allowed_excess(order.mnk[2], 1) >= 0)


def is_split_once(order: Order) -> bool:
    """Whether both operands of a Gram matrix are the same memory for the kernel, so that only one of them is split."""
    return order.p.used == order.q.used.transposed and not (order.p.is_copied or order.q.is_copied)


def split_of(
    order: Order, compute: str = SPLIT, *, gram: bool = False, triangle: bool = False
) -> SplitProduct | ResidueProduct:
    """The split products of an order for which ``can_split`` holds. ``gram`` and ``triangle`` have the meaning that
    they have in ``SplitProduct``."""
    batch, *nexts = (order.axes or [(1, 0, 0, 0)])[0]
    a, b, c = (x.used for x in (order.p, order.q, order.c))
    of_a, of_b = given_by_strides(a, nexts[0]), given_by_strides(b.transposed, nexts[1])
    if compute in RESIDUES_IN:
        moduli = RESIDUES_IN[compute].moduli
        return ResidueProduct(ResidueOperand(of_a, moduli), ResidueOperand(of_b, moduli), c, gram, triangle)
    p, q = (SplitOperand(x, batch if x.next else 1, PLANES[compute]) for x in (of_a, of_b))
    return SplitProduct(p, q, c._replace(next=nexts[2]), batch, gram=gram, triangle=triangle)


def split_seconds(order: Order, compute: str, card: Card, *, gram: bool, triangle: bool) -> float:
    """The predicted time of all launches except the multiplication itself: the launches that split the operands,
    compute C from its residues, and look for parts of C that are flagged as too inaccurate. The time holds if no part
    is flagged."""
    product, memory_ratio = split_of(order, compute, gram=gram, triangle=triangle), card.memory_ratio
    if isinstance(product, ResidueProduct):
        planes, size = product.a.planes, itemsize_of(product.c.dtype)
        before = sum((2 * size + planes) * x.lines * x.k for x in product.operands)  # they are read twice
        after = (size + planes) * product.a.lines * product.b.lines / (1 + product.triangle)
        moved_s = memory_ratio * (before / _MOVED_BEFORE + after / _MOVED_AFTER)
        return _RESIDUES_S[product.c.dtype] + moved_s + _units_seconds(product, card)
    moved = ((x, (4 + 2 * x.planes) * x.plane * x.matrices) for x in product.operands)
    split = sum(size / (_MOVED if x.is_whole else _MOVED_SINGLY) for x, size in moved)
    twice = _TWICE if product.a.k > _LONG else 1
    return _LAUNCHES_S + memory_ratio * split * twice + _BLOCK_S * product.tiles


def _units_seconds(product: ResidueProduct, card: Card) -> float:
    """The additional seconds that the float64 operations of these launches take, compared with an H200, where memory
    limits the launches."""
    a, b, each = product.a, product.b, product.a.each
    lines = sum(x.lines for x in product.operands)
    operations = each * (_TO_ROUND * lines * a.k + (4 * a.moduli + _TO_SCALE) * a.lines * b.lines)
    return operations * max(0, 1 / card.rates.float64 - 1 / Card().rates.float64) / (card.sms * _CLOCK)


def rounded_rows(k: int) -> Rows:
    """The rows about accuracy in a printed plan, for operands of which each number becomes one float16 number."""
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
    """The rows about accuracy in a printed plan, for split operands. With ``step``, the sum over each ``step`` elements
    of k is added to the total with one rounding."""
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


def residues_rows(operand: ResidueOperand) -> Rows:
    """The rows about accuracy in a printed plan, for a product by residues with this operand."""
    dtype, moduli, each = operand.matrix.dtype, operand.moduli, operand.each
    bound, terms = residue_bound(operand.k, moduli, dtype), operand.k * each
    kept = f"the classical bound {terms}·2⁻⁵³" if bound == terms * 2.0**-53 else f"{bound:.2g}"
    residues, of_what = (
        ("residues", "") if each == 1 else ("two residues of real and imaginary part together", " of both parts")
    )
    return [
        (
            "in",
            f"int8x{operand.planes}: whole numbers, up to 2^{math.log2(operand.norm):.1f} in the 2-norm of a line, known by "
            f"{residues} modulo {moduli} numbers, which tensor cores multiply exactly",
        ),
        (
            "flagged",
            f"by {dtype}, where a lower bound of |A||B| does not show the error{of_what} to be within {kept}·|A||B|, or "
            f"with an infinity or a NaN: the GPU decides for each tile",
        ),
    ]
