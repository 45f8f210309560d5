"""What a kernel of the engine multiplies: the matrices as they lie, the parts of k, and what becomes of the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .layout import Matrix
from .product import MOST


@dataclass(frozen=True)
class BoxedEpilogue:
    """What a kernel makes of its sums S before it stores them: activation(α · row scale · column scale · S + β · C + bias),
    where rows and columns are those of its C. Of scales and bias this has the elements from one to the next, 0 where all
    have the same, or None where they are absent; of the bias also the dtype. ``bias_by_row``: each row has a number."""

    alpha: float
    beta: float
    activation: str | None
    bias: tuple[str, int] | None
    bias_by_row: bool
    row_scales: int | None
    column_scales: int | None

    @property
    def vectors(self) -> int:
        """How many of its arrays have a number for each column."""
        return int(self.bias is not None and not self.bias_by_row) + int(self.column_scales is not None)

    @property
    def macros(self) -> dict[str, object]:
        """What the kernel is compiled with."""
        by_row, by_column = (scales is not None for scales in (self.row_scales, self.column_scales))
        return {
            "FINISHED": 1,
            "VECTORS": self.vectors,
            "FACTORS": int(self.alpha != 1 or by_row),
            "SCALED": by_row + 2 * by_column,
            "ADDS": int(self.beta != 0),
            "BIASED": 0 if self.bias is None else 1 if self.bias_by_row else 2,
            "BIAS": (self.bias or ("float32", 0))[0].upper(),
            "ACTIVATION": (self.activation or "none").upper(),
        }


class ScaleBlocks(NamedTuple):
    """Scales of blocks: elements to the one of the next row of A, and of the next 128 columns of B; and in both to those of
    the next 128 of k."""

    row: int
    column: int
    next_of_rows: int
    next_of_columns: int


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
    epilogue: BoxedEpilogue | None = None
    blocks: ScaleBlocks | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.rows, self.b.columns, self.a.columns
