"""Collects the options of ``multiply`` in one object, which checks them when it is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...product.precision import check_precision

#: The named precisions with which blocks can be multiplied.
PRECISIONS = ("standard", "highest", "ieee", "fast")


@dataclass(frozen=True)
class Options:
    """The keyword arguments of ``tilewright.multiply``, which are documented there. Tilewright chooses the value of
    every option that is None.

    Raises UsageError for a precision that products computed in blocks cannot have.
    """

    memory: float | str | None = None
    device: str | None = None
    device_memory: float | str | None = None
    partition: str = "rectangles"
    dtype: Any = None
    resume: bool = False
    overwrite: bool = False
    precision: str | float = "standard"
    axes: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.precision, str):
            check_precision(self.precision)
        elif self.precision not in PRECISIONS:
            raise UsageError(f"precision {self.precision!r}: must be {', '.join(PRECISIONS)}, or a number such as 1e-4")
