"""Products of float64 as residues of whole numbers, for tensor cores of int8: when they can be, and what it costs."""

from __future__ import annotations

from ..planning.plan import Rows
from ..problem import RESIDUES_IN
from ..runtime.gpu.residue_operand import MOST_K, ResidueOperand, ResidueProduct, residue_bound, whole_bits
from .layouts import given_by_strides
from .order import Order

#: Bytes a second that the launches before and after the product move, and seconds of these launches. Fitted to records of an
#: H200.
_MOVED, _MOVED_AFTER, _LAUNCHES_S = 2.9e12, 2.6e12, 30e-6
#: Bytes of an element of A or B that are read twice, and of a number of C that is written, beside the residues.
_READ, _WRITTEN = 16, 8


def can_be_residues(order: Order) -> bool:
    """Whether this is one product, whose sums the residues determine."""
    return not order.axes and order.mnk[2] <= MOST_K


def residues_of(order: Order, compute: str) -> ResidueProduct:
    """The product of an order for which ``can_be_residues`` holds, in a dtype of ``RESIDUES_IN``."""
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    of_a, of_b = (ResidueOperand(given_by_strides(x), RESIDUES_IN[compute]) for x in (a, b.transposed))
    return ResidueProduct(of_a, of_b, c)


def residues_seconds(order: Order, compute: str, memory_ratio: float) -> float:
    """The predicted time of writing the residues, and of making float64 of those of C, where nothing is flagged."""
    product = residues_of(order, compute)
    moduli = product.a.moduli
    before = sum((_READ + moduli) * x.lines * x.k for x in (product.a, product.b))
    after = (_WRITTEN + moduli) * product.a.lines * product.b.lines
    return _LAUNCHES_S + memory_ratio * (before / _MOVED + after / _MOVED_AFTER)


def residues_rows(k: int, moduli: int) -> Rows:
    """What a plan says of the accuracy."""
    bound = residue_bound(k, moduli)
    kept = f"the classical bound {k}·2⁻⁵³" if bound == k * 2.0**-53 else f"{bound:.2g}"
    return [
        (
            "in",
            f"int8x{moduli}: whole numbers of {whole_bits(k, moduli)} bits, known by residues modulo {moduli} numbers, "
            f"which tensor cores multiply exactly",
        ),
        (
            "flagged",
            f"by float64, where a lower bound of |A||B| does not show the error to be within {kept}·|A||B|, or with an "
            f"infinity or a NaN: the GPU decides for each tile",
        ),
    ]
