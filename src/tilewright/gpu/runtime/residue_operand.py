"""Matrices of float64 and complex128 as residues of whole numbers: how they lie in memory, and how accurate a product is.

``docs/accuracy.md`` derives the bound of the error, section "float64 from int8".
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from ...product.problem import EACH
from .layout import Matrix, row_major_matrix
from .split_operand import Lines

#: ``MODULUS`` in ``gpu/kernels/residues.cuh``. Of complex numbers −1 is a square modulo each of them.
MODULI = {
    "float64": (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197),
    "complex128": (241, 233, 229, 221, 205, 197, 193, 181, 173, 157, 149, 137, 113, 109, 101),
}
#: With so many moduli the classical bound holds. With fewer the bound leaves so much room: where the lower bound of |A||B|,
#: of a part of k, is much smaller than the norms of row and column suggest, the product would be flagged.
CLASSICAL, _ROOM, _UNIT = {"float64": 13, "complex128": 14}, 48, 2.0**-53
#: The most of k, so that the sums of a modulus are below 2^30, and the quotients that the kernel computes are exact.
MOST_K = 65536
#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 128, 64
#: Real lines that a block handles, whose number is rounded up to that of a tile; real steps of k that it searches, and those
#: of any dtype that it rounds.
_LINES, _TILE, _FOUND, _ROUNDED = 32, 256, 1024, 512
#: Parts of the workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in ``gpu/kernels/pack/write_residues.cu``, and the bytes of a ``Line``.
_OPERAND, _LINE = struct.Struct("<5q8i"), 16
#: The largest whole number, so that float64 rounds to it by one addition; bits of magnitudes whose product is a bound.
_LARGEST, _BOUND_BITS = 2.0**51 - 2, 7


@dataclass(frozen=True)
class ResidueOperand(Lines):
    """Lines of float64 or complex128. Each element has one or two residues for each of the ``moduli``."""

    moduli: int

    @property
    def each(self) -> int:
        """Real numbers of an element."""
        return EACH[self.matrix.dtype]

    @property
    def planes(self) -> int:
        """Residues of an element, each in a plane of its own."""
        return self.moduli * self.each

    @property
    def norm(self) -> float:
        """The largest 2-norm of a line that is scaled."""
        return largest_norm(self.moduli, self.matrix.dtype)

    @property
    def pitch(self) -> int:
        """Bytes from one line of a plane to the next: whole lines of the caches, which boxes are read by."""
        return _up(self.k, 128)

    @property
    def sampled_one_in(self) -> int:
        """One in so many groups of 128 steps of k is sampled for the bound of |A||B|."""
        return max(1, min(4, self.k // 2048))

    @property
    def sampled(self) -> int:
        """Bytes of each line that are sampled."""
        return -(-self.k // (128 * self.sampled_one_in)) * 128

    @property
    def sample_at(self) -> int:
        """Bytes to the magnitudes that are sampled."""
        return _up(self.planes * self.lines * self.pitch, _ALIGNMENT)

    @property
    def found_at(self) -> int:
        """Bytes to the norms of each part of k."""
        return self.sample_at + _up(self.lines * self.sampled, _ALIGNMENT)

    @property
    def lines_at(self) -> int:
        """Bytes to what is known of each line."""
        return self.found_at + _up(8 * self.parts * self.padded, _ALIGNMENT)

    @property
    def parts(self) -> int:
        """Parts of k that are searched apart."""
        return -(-self.k * self.each // _FOUND)

    @property
    def padded(self) -> int:
        """Lines, rounded up to whole tiles."""
        return _up(self.lines, _TILE)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes, of the sample, and of what is found."""
        return self.lines_at + _up(_LINE * self.padded, _ALIGNMENT)

    @property
    def finding_blocks(self) -> int:
        """Blocks that search."""
        return -(-self.lines * self.each // _LINES) * self.parts

    @property
    def rounding_blocks(self) -> int:
        """Blocks that round."""
        return -(-self.lines * self.each // _LINES) * -(-self.k // _ROUNDED)

    def packed(self) -> bytes:
        """``Operand`` in the source of the kernel."""
        at = self.sample_at, self.found_at, self.lines_at
        sizes = self.lines, self.k, self.pitch, self.sampled, self.parts, self.padded
        blocks = self.finding_blocks, self.rounding_blocks
        return _OPERAND.pack(self.matrix.row, self.matrix.column, *at, *sizes, *blocks)


@dataclass(frozen=True)
class ResidueProduct:
    """C = A·B in float64 or complex128."""

    a: ResidueOperand
    b: ResidueOperand
    c: Matrix

    def residues_bytes(self, width: int) -> int:
        """Bytes of the residues of C, of tiles of 128×``width``."""
        return self.a.planes * _up(self.a.lines, FLAGGED[0]) * _up(self.b.lines, width)

    @property
    def parts(self) -> int:
        """Parts of C that may be flagged."""
        rows, columns = FLAGGED
        return -(-self.a.lines // rows) * -(-self.b.lines // columns)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes of both operands, of what is found of them, of the residues of C, and of flags."""
        return self.a.workspace_bytes + self.b.workspace_bytes + self.residues_bytes(_TILE) + 4 * self.parts


def residues_of_rows(m: int, n: int, k: int, moduli: int | None = None, dtype: str = "float64") -> ResidueProduct:
    """The product of A[m×k] and B[k×n] as they lie row by row, without gaps. By default the classical bound holds."""
    a, b, c = (row_major_matrix(*shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    used = CLASSICAL[dtype] if moduli is None else moduli
    return ResidueProduct(ResidueOperand(a, used), ResidueOperand(b.transposed, used), c)


def largest_norm(moduli: int, dtype: str = "float64") -> float:
    """The largest 2-norm N of a line of scaled numbers such that residues determine the sums of products of whole numbers.

    Rounding changes each of n numbers by at most ½, and a line's norm by at most ½·√n. By Cauchy and Schwarz a sum of
    products of two rounded lines is at most (N + ½·√n)². This is below half the product of the moduli, by 2⁻¹⁵ of it.

    >>> [f"{math.log2(largest_norm(moduli)):.2f}" for moduli in (6, 12, 13)]
    ['23.41', '46.90', '50.76']
    >>> f"{math.log2(largest_norm(13, 'complex128')):.2f}", f"{math.log2(largest_norm(14, 'complex128')):.2f}"
    ('48.33', '51.00')
    """
    half = math.prod(MODULI[dtype][:moduli]) / 2 * (1 - 2.0**-15)
    return min(_LARGEST, math.sqrt(half) - math.sqrt(MOST_K * EACH[dtype]) / 2)


def residue_bound(k: int, moduli: int, dtype: str = "float64") -> float:
    """The bound of |C - Ĉ| that products keep, relative to |A||B| and componentwise; of complex numbers that of real and
    imaginary parts: the classical one with ``CLASSICAL`` moduli, else ``_ROOM`` times the error of one rounding to whole
    numbers of a line whose magnitudes are alike and have the largest norm.

    >>> f"{residue_bound(4096, 13):.1e}", f"{residue_bound(4096, 9):.1e}", f"{residue_bound(4096, 6):.1e}"
    ('4.5e-13', '7.7e-08', '2.8e-04')
    >>> f"{residue_bound(4096, 14, 'complex128'):.1e}", f"{residue_bound(4096, 7, 'complex128'):.1e}"
    ('9.1e-13', '4.1e-05')
    """
    if moduli >= CLASSICAL[dtype]:
        return k * EACH[dtype] * _UNIT
    return _ROOM * math.sqrt(k * EACH[dtype]) / largest_norm(moduli, dtype)


def least_bound(k: int, moduli: int, dtype: str = "float64") -> float:
    """By how much sums of magnitudes of a rounded line, times this, may not exceed the sampled lower bound of |A||B|, for
    ``residue_bound`` to hold; infinity for a k so short that all is flagged. Both are relative to ``bits`` of the lines.

    The largest element of a scaled line is at least N / (2·√n): the power of two is the largest possible. Of a number of
    at least 1/128 of that, as the lower bound has, rounding changes no more than ½.
    """
    terms = k * EACH[dtype]
    cut = 1 + 2.0**_BOUND_BITS * math.sqrt(terms) / largest_norm(moduli, dtype)
    room = residue_bound(k, moduli, dtype) - 3 * _UNIT
    return 1.02 * cut**2 * 0.5 * 4.0**_BOUND_BITS / room if room > 0 else math.inf


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
