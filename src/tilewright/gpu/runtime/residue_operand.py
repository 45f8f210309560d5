"""Matrices of float64 and complex128 as residues of whole numbers: how they lie in memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...product.residues import CLASSICAL, EACH, largest_norm
from .layout import Matrix, row_major_matrix
from .split_operand import Lines

#: Rows and columns of a part of C that is flagged or not.
FLAGGED = 128, 64
#: Real lines that a block handles, whose number is rounded up to that of a tile; real steps of k that it searches, and those
#: of any dtype that it rounds.
_LINES, _TILE, _FOUND, _ROUNDED = 32, 256, 1024, 512
#: Parts of the workspace begin at multiples of so many bytes.
_ALIGNMENT = 256
#: ``Operand`` in ``gpu/kernels/pack/write_residues.cu``, and the bytes of a ``Line``.
_OPERAND, _LINE = struct.Struct("<5q8i"), 16


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


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
