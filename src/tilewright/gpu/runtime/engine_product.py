"""What a kernel of the engine multiplies: the matrices as they lie, the parts of k, and what becomes of the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...product.epilogue import epilogue_text
from .layout import Matrix
from .product import MOST
from .steps import BIAS, SCALE_A, SCALE_B, BufferPlace


class ScaleBlocks(NamedTuple):
    """Scales of blocks: elements to the one of the next row of A, and of the next 128 columns of B; and in both to those of
    the next 128 of k; and to those of the next group's B."""

    row: int
    column: int
    next_of_rows: int
    next_of_columns: int
    next_group: int = 0


class FinishForm(NamedTuple):
    """An epilogue without its arrays' addresses: what a plan depends on. Of an array it has the stride, and of the bias the
    dtype; None for what is absent. ``rows`` are those of one product. Scales of ``blocks`` are left to the kernel that
    multiplies. ``by_row``: the bias has a number for each row, of a C that is transposed."""

    alpha: float
    beta: float
    activation: str | None
    bias: tuple[str, int] | None
    scale_a: int | None
    scale_b: int | None
    rows: int
    blocks: ScaleBlocks | None = None
    by_row: bool = False

    def __str__(self) -> str:
        steps = {"bias": self.bias, "scale_a": self.scale_a, "scale_b": self.scale_b}
        arrays = [name for name, step in steps.items() if step is not None]
        product = "A·B" if self.blocks is None else "A·B with scales of blocks"
        return epilogue_text(self.alpha, self.beta, self.activation, arrays, product)

    def places(self, c: BufferPlace) -> tuple[BufferPlace, BufferPlace, BufferPlace]:
        """The places of bias and scales; that of C for an array that is absent, whose address is not used."""
        has_blocks = self.blocks is not None
        there = self.bias is not None, has_blocks or self.scale_a is not None, has_blocks or self.scale_b is not None
        bias, of_a, of_b = (
            BufferPlace(x) if found else c for x, found in zip((BIAS, SCALE_A, SCALE_B), there, strict=True)
        )
        return bias, of_a, of_b

    @property
    def transposed(self) -> FinishForm:
        """The same for Cᵀ = Bᵀ·Aᵀ."""
        return self._replace(scale_a=self.scale_b, scale_b=self.scale_a, by_row=not self.by_row)

    @property
    def vectors(self) -> int:
        """How many of its arrays have a number for each column."""
        return int(self.bias is not None and not self.by_row) + int(self.scale_b is not None)

    @property
    def macros(self) -> dict[str, object]:
        """What a kernel is compiled with that applies it to its sums before it stores them."""
        of_rows, of_columns = self.scale_a is not None, self.scale_b is not None
        return {
            "FINISHED": 1,
            "VECTORS": self.vectors,
            "FACTORS": int(self.alpha != 1 or of_rows),
            "SCALED": of_rows + 2 * of_columns,
            "ADDS": int(self.beta != 0),
            "BIASED": 0 if self.bias is None else 1 if self.by_row else 2,
            "BIAS": (self.bias or ("float32", 0))[0].upper(),
            "ACTIVATION": (self.activation or "none").upper(),
        }


@dataclass(frozen=True)
class EngineProduct:
    """C = A·B for each product of a batch, and of each of ``parts`` of k, of ``part_steps`` of the kernel's steps, whose
    sums then follow each other like a batch. ``compute``: the dtype in which the kernel multiplies. ``padded``: of A and of
    B, whether a row (``down``: a column) may be read to the end of its last vector. The arrays of an ``epilogue``, or of
    scales of ``blocks``, are the bias, the scales of rows and those of columns; the place of C stands for an absent one."""

    compute: str
    a: Matrix
    b: Matrix
    c: Matrix
    batch: int = 1
    parts: int = 1
    part_steps: int = MOST
    padded: tuple[bool, bool] = (False, False)
    epilogue: FinishForm | None = None
    blocks: ScaleBlocks | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.rows, self.b.columns, self.a.columns
