"""Products of float64 as residues of whole numbers, for tensor cores of int8: when they can be, and what it costs."""

from __future__ import annotations

from ..planning.choice import RESIDUES
from ..planning.plan import Rows
from ..runtime.gpu.residue_operand import MOST_K, ResidueOperand, ResidueProduct, whole_bits
from .gpu_array import Matrix, merged_axes
from .layouts import strides_of
from .order import Order

#: Bytes a second that the launches before and after the product move, and seconds of these launches. Fitted to records of an
#: H200.
_MOVED, _MOVED_AFTER, _LAUNCHES_S = 2.9e12, 2.6e12, 30e-6
#: Bytes of an element of A or B that are read twice, and of a number of C that is written, beside the residues.
_READ, _WRITTEN = 16, 8


def can_be_residues(order: Order) -> bool:
    """Whether this is one product, whose sums the residues determine."""
    return not merged_axes(order.batch, *(place.used_steps for place in (order.p, order.q, order.c))) and (
        order.mnk[2] <= MOST_K
    )


def residues_of(order: Order) -> ResidueProduct:
    """The product of an order for which ``can_be_residues`` holds."""
    a, b, c = (place.used for place in (order.p, order.q, order.c))
    return ResidueProduct(_operand(a), _operand(b.transposed), c.row, c.alignment)


def residues_seconds(order: Order, memory_ratio: float) -> float:
    """The predicted time of writing the residues, and of making float64 of those of C, where nothing is flagged."""
    product = residues_of(order)
    moduli = product.a.moduli
    before = sum((_READ + moduli) * x.lines * x.k for x in (product.a, product.b))
    after = (_WRITTEN + moduli) * product.a.lines * product.b.lines
    return _LAUNCHES_S + memory_ratio * (before / _MOVED + after / _MOVED_AFTER)


def residues_rows(k: int, moduli: int) -> Rows:
    """What a plan says of the accuracy."""
    return [
        (
            "in",
            f"{RESIDUES}: whole numbers of {whole_bits(k, moduli)} bits, known by their residues modulo {moduli} numbers, "
            f"which tensor cores multiply exactly",
        ),
        (
            "flagged",
            f"by float64, where a lower bound of |A||B| does not show the error to be within the classical bound "
            f"{k}·2⁻⁵³·|A||B|, or with an infinity or a NaN: the GPU decides for each tile",
        ),
    ]


def _operand(matrix: Matrix) -> ResidueOperand:
    """The rows of a matrix as lines."""
    laid = strides_of(matrix, 0)
    return ResidueOperand(matrix.rows, matrix.columns, laid.row, laid.column, matrix.alignment)
