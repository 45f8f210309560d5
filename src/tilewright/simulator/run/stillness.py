"""Detects a loop that can never end: its threads return with the same registers, and memory has not changed.

A thread's next step depends on its registers and on what it loads. If every thread that can run has completed a round of
its loop and neither changed, the loop repeats for ever.
"""

from __future__ import annotations

from ..machine.lanes import Lanes
from ..machine.values import Array


class Stillness:
    """Compares the registers of all lanes between laps; a lap is one turn of every lane that can run."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.clear()

    def clear(self) -> None:
        """Forget all laps: new blocks start."""
        self.laps, self.next = 0, 1  # laps done; the lap at which registers are copied next
        self.disturbed = False  # whether memory was written since the copy, or lanes met, left or took a branch table
        self.seen: dict[str, Array] = {}  # the copy

    def complete(self) -> bool:
        """End a lap; returns whether nothing changed in it. Compares ever fewer laps, to save time."""
        self.laps += 1
        if self.seen:
            still = not self.disturbed and all((self.seen[n] == r).all() for n, r in self.lanes.registers.items())
            self.seen.clear()
            return still
        if self.laps >= self.next:
            self.next = self.laps * 2
            self.disturbed = False
            self.seen = {name: register.copy() for name, register in self.lanes.registers.items()}
        return False
