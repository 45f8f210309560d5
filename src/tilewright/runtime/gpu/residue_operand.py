"""Matrices of float64 as residues of whole numbers: how they lie in memory, and how accurate their product is.

``docs/accuracy.md`` derives the bound of the error, section "float64 from int8".
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from .layout import Matrix, row_major_matrix
from .split_operand import Lines

#: ``MODULUS`` in ``engine/cuda/residues.cuh``.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197)
#: With so many moduli the classical bound holds. With fewer the bound leaves so much room: where the lower bound of |A||B|,
#: of an eighth of k, is much smaller than the largest elements of row and column suggest, the product would be flagged.
CLASSICAL, _ROOM, _UNIT = 14, 512, 2.0**-53
#: The most of k, so that the sums of a modulus are below 2^30, and the quotients that the kernel computes are exact.
MOST_K = 65536
#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 128, 64
#: Lines that a block handles, whose number is rounded up to that of a tile; steps of k that it searches, or rounds.
_LINES, _TILE, _FOUND, _ROUNDED = 32, 256, 1024, 512
#: Parts of the workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in ``engine/cuda/pack/write_residues.cu``, and the bytes of a ``Line``.
_OPERAND, _LINE = struct.Struct("<5q8i"), 16
#: The most bits of a whole number, so that float64 rounds to it by one addition; of magnitudes whose product is a bound.
_MOST_BITS, _BOUND_BITS = 50, 7


@dataclass(frozen=True)
class ResidueOperand(Lines):
    """Lines of float64. ``moduli``: how many residues each element has."""

    moduli: int = CLASSICAL

    @property
    def pitch(self) -> int:
        """Bytes from one line of a plane to the next: whole lines of the caches, which boxes are read by."""
        return _up(self.k, 128)

    @property
    def every(self) -> int:
        """One in so many groups of 128 steps of k is sampled for the bound of |A||B|."""
        return max(1, min(8, self.k // 1024))

    @property
    def sampled(self) -> int:
        """Bytes of each line that are sampled."""
        return -(-self.k // (128 * self.every)) * 128

    @property
    def sample_at(self) -> int:
        """Bytes to the magnitudes that are sampled."""
        return _up(self.moduli * self.lines * self.pitch, _ALIGNMENT)

    @property
    def found_at(self) -> int:
        """Bytes to the largest magnitudes of each part of k."""
        return self.sample_at + _up(self.lines * self.sampled, _ALIGNMENT)

    @property
    def lines_at(self) -> int:
        """Bytes to what is known of each line."""
        return self.found_at + _up(8 * self.parts * self.padded, _ALIGNMENT)

    @property
    def parts(self) -> int:
        """Parts of k that are searched apart."""
        return -(-self.k // _FOUND)

    @property
    def padded(self) -> int:
        """Lines, rounded up to whole tiles."""
        return _up(self.lines, _TILE)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes, of the sample, and of what is found."""
        return self.lines_at + _up(_LINE * self.padded, _ALIGNMENT)

    @property
    def finding(self) -> int:
        """Blocks that search."""
        return -(-self.lines // _LINES) * self.parts

    @property
    def rounding(self) -> int:
        """Blocks that round."""
        return -(-self.lines // _LINES) * -(-self.k // _ROUNDED)

    def packed(self) -> bytes:
        """``Operand`` in the source of the kernel."""
        at = self.sample_at, self.found_at, self.lines_at
        sizes = self.lines, self.k, self.pitch, self.sampled, self.parts, self.padded, self.finding, self.rounding
        return _OPERAND.pack(self.matrix.row, self.matrix.column, *at, *sizes)


@dataclass(frozen=True)
class ResidueProduct:
    """C = A·B in float64."""

    a: ResidueOperand
    b: ResidueOperand
    c: Matrix

    def residues_bytes(self, width: int) -> int:
        """Bytes of the residues of C, of tiles of 128×``width``."""
        return self.a.moduli * _up(self.a.lines, FLAGGED[0]) * _up(self.b.lines, width)

    @property
    def parts(self) -> int:
        """Parts of C that may be flagged."""
        rows, columns = FLAGGED
        return -(-self.a.lines // rows) * -(-self.b.lines // columns)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the planes of both operands, of what is found of them, of the residues of C, and of flags."""
        return self.a.workspace_bytes + self.b.workspace_bytes + self.residues_bytes(_TILE) + 4 * self.parts


def residues_of_rows(m: int, n: int, k: int, moduli: int = CLASSICAL) -> ResidueProduct:
    """The product of A[m×k] and B[k×n] as they lie row by row, without gaps."""
    a, b, c = (row_major_matrix(*shape, "float64") for shape in ((m, k), (k, n), (m, n)))
    return ResidueProduct(ResidueOperand(a, moduli), ResidueOperand(b.transposed, moduli), c)


def whole_bits(k: int, moduli: int) -> int:
    """The bits of whole numbers whose sums of ``k`` products ``moduli`` residues determine.

    >>> whole_bits(8192, 14), whole_bits(16384, 14), whole_bits(8192, 13)
    (48, 47, 44)
    """
    most = math.log2(math.prod(MODULI[:moduli])) - 1 - 2.0**-15
    return min(_MOST_BITS, math.floor((most - math.log2(k)) / 2))


def residue_bound(k: int, moduli: int) -> float:
    """The bound of |C - Ĉ| that products keep, relative to |A||B| and componentwise: the classical one with 14
    moduli, else ``_ROOM`` times the error of one rounding to whole numbers.

    >>> f"{residue_bound(4096, 14):.1e}", f"{residue_bound(4096, 9):.1e}", f"{residue_bound(4096, 7):.1e}"
    ('4.5e-13', '9.5e-07', '2.4e-04')
    """
    return k * _UNIT if moduli >= CLASSICAL else _ROOM * 2.0 ** -whole_bits(k, moduli)


def least_bound(k: int, moduli: int) -> float:
    """By how much sums of magnitudes of a rounded line, times this, may not exceed the sampled lower bound of |A||B|, for
    ``residue_bound`` to hold."""
    lost = 0.5 * 2.0 ** (2 * _BOUND_BITS - 2 * whole_bits(k, moduli))
    return 1.02 * lost / (residue_bound(k, moduli) - 3 * _UNIT)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
