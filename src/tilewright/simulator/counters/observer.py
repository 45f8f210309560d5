"""The interface to which a running kernel reports its memory accesses."""

from __future__ import annotations

from typing import Protocol

from ..assembly.instructions import Instruction
from .sectors import Ints
from .work import UnitWork


class Observer(Protocol):
    """Receives every memory access, as flat arrays over the active threads in order of thread.

    ``kind`` is "ld", "st", "atom", "red", "ldmatrix", "stmatrix" or "cp.async" (one call for its global side, one for its
    shared side); ``warps`` are numbers within the whole grid, ``nbytes`` is what one lane moves, vectors included.
    """

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int, /
    ) -> None:
        """Receive one instruction, executed by these lanes of these warps."""

    def on_work(self, work: UnitWork, ins: Instruction, warps: Ints, /) -> None:
        """Receive what one instruction did in another unit, for each of these warps; ``requests`` says of how many each
        is the first."""
