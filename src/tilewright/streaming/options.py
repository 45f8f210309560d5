"""What a caller of ``multiply`` may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The precisions in which blocks are multiplied.
PRECISIONS = ("standard", "ieee", "fast")


@dataclass(frozen=True)
class Options:
    """The keywords of ``tilewright.multiply``, which documents each; the library chooses those that are None."""

    memory: int | str | None = None
    device: str | None = None
    device_memory: int | str | None = None
    partition: str = "rectangles"
    dtype: Any = None
    resume: bool = False
    overwrite: bool = False
    precision: str = "standard"
