"""What a running kernel reports its memory accesses to."""

from __future__ import annotations

from typing import Protocol

from ..assembly.instructions import Instruction
from .sectors import Ints


class Observer(Protocol):
    """Receives every memory access, as flat arrays over the active threads in order of thread.

    ``kind`` is "ld", "st", "atom", "red", "ldmatrix", "stmatrix" or "cp.async" (its global and its shared side);
    ``warps`` counts through the whole grid, ``nbytes`` is what one lane moves, vectors included.
    """

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int, /
    ) -> None:
        """Take note of one instruction, executed by these lanes of these warps."""
