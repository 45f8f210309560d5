"""Products of float64 and complex128 that are computed from residues of integers: the moduli, and the error bounds.

The section "float64 from int8" of ``docs/error-bounds.md`` derives the error bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The number of real numbers in an element.
REALS_PER_ELEMENT = {"float64": 1, "complex128": 2}


class Residues(NamedTuple):
    """A dtype whose numbers are represented by residues; ``moduli`` is the number of moduli. A complex element has two
    residues for each modulus: one for the real part, one for the imaginary part."""

    dtype: str
    moduli: int


#: The dtypes in which float64 and complex128 products are computed from residues.
RESIDUES_IN = {f"int8x{count}": Residues("float64", count) for count in range(5, 14)} | {
    f"complex_int8x{count}": Residues("complex128", count) for count in range(5, 15)
}
#: The moduli, which are ``MODULUS`` in ``gpu/kernels/residues.cuh``. Those for complex numbers are chosen so that −1 is a
#: square modulo each of them.
MODULI = {
    "float64": (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197),
    "complex128": (241, 233, 229, 221, 205, 197, 193, 181, 173, 157, 149, 137, 113, 109, 101),
}
#: The smallest number of moduli with which the classical error bound holds.
CLASSICAL = {"float64": 13, "complex128": 14}
#: With fewer moduli the promised bound is this many times the error of rounding a line of equal magnitudes, so that products
#: whose magnitudes are uneven need not be flagged.
_ROOM = 48
#: The unit roundoff of float64.
_UNIT = 2.0**-53
#: The largest k. With it, the sums of a modulus are below 2^30, and the quotients that the kernel computes are exact.
MOST_K = 65536
#: The largest norm: float64 rounds smaller numbers to whole ones by one addition.
_LARGEST = 2.0**51 - 2
#: Bits of the magnitudes whose sampled products are the lower bound of |A||B|.
_BOUND_BITS = 7


def largest_norm(moduli: int, dtype: str = "float64") -> float:
    """Return the largest 2-norm N of a scaled row of A or column of B for which the residues determine the sums of
    products of the rounded numbers.

    Rounding changes each of n numbers by at most ½, and so the norm of the n numbers by at most ½·√n. So by Cauchy and
    Schwarz a sum of products is at most (N + ½·√n)². N is chosen such that (N + ½·√n)² is less than half the product
    of the moduli, with a margin of 2⁻¹⁵.

    >>> [f"{math.log2(largest_norm(moduli)):.2f}" for moduli in (6, 12, 13)]
    ['23.41', '46.90', '50.76']
    >>> f"{math.log2(largest_norm(13, 'complex128')):.2f}", f"{math.log2(largest_norm(14, 'complex128')):.2f}"
    ('48.33', '51.00')
    """
    half = math.prod(MODULI[dtype][:moduli]) / 2 * (1 - 2.0**-15)
    return min(_LARGEST, math.sqrt(half) - math.sqrt(MOST_K * REALS_PER_ELEMENT[dtype]) / 2)


def residue_bound(k: int, moduli: int, dtype: str = "float64") -> float:
    """Return the bound of |C - Ĉ| / (|A||B|) for each element of a product from residues. For complex numbers the
    bound holds for the real part and for the imaginary part.

    With at least ``CLASSICAL`` moduli the bound is the classical bound. With fewer moduli the bound is ``_ROOM``·√n/N,
    where n is the number of reals in a row of A and N is the norm of ``largest_norm``. In a row of norm N whose numbers
    all have the same magnitude, this magnitude is N/√n; so √n/N is the distance of neighbouring integers relative to
    the numbers that are rounded to integers.

    >>> f"{residue_bound(4096, 13):.1e}", f"{residue_bound(4096, 9):.1e}", f"{residue_bound(4096, 6):.1e}"
    ('4.5e-13', '7.7e-08', '2.8e-04')
    >>> f"{residue_bound(4096, 14, 'complex128'):.1e}", f"{residue_bound(4096, 7, 'complex128'):.1e}"
    ('9.1e-13', '4.1e-05')
    """
    if moduli >= CLASSICAL[dtype]:
        return k * REALS_PER_ELEMENT[dtype] * _UNIT
    return _ROOM * math.sqrt(k * REALS_PER_ELEMENT[dtype]) / largest_norm(moduli, dtype)


def check_factor(k: int, moduli: int, dtype: str = "float64") -> float:
    """Return the factor in the kernel's check of each part of C (``Call.factor`` in ``gpu/kernels/residue_sums.cuh``).

    A *line* of an operand is a row of A or a column of B. ``residue_bound`` holds for a part of C if the factor times
    the sums of magnitudes of its rounded lines is at most the sampled lower bound of |A||B|. Parts of C for which this
    inequality does not hold are flagged. Both sides of the inequality are scaled by the powers of two of the lines
    (``Line.bits`` in ``write_residues.cu``). The factor is infinity if k is so short that every part is flagged.

    The largest element of a scaled line is at least N / (2·√n), because the line is scaled by the largest possible
    power of two. The lower bound of |A||B| is a sum of products of numbers that are at least 1/128 of the largest
    element, and rounding changes each of these numbers by at most ½.
    """
    terms = k * REALS_PER_ELEMENT[dtype]
    cut = 1 + 2.0**_BOUND_BITS * math.sqrt(terms) / largest_norm(moduli, dtype)
    room = residue_bound(k, moduli, dtype) - 3 * _UNIT
    return 1.02 * cut**2 * 0.5 * 4.0**_BOUND_BITS / room if room > 0 else math.inf
