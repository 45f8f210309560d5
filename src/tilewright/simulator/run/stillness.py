"""Tells a loop that can never end: its threads come by with the same registers, and memory is as it was.

A thread's next step depends on its registers and on what it loads. Where every thread that can run has been round its
loop once with no change of either, it will go round for ever.
"""

from __future__ import annotations

from ..machine.lanes import Lanes
from ..machine.values import Array


class Stillness:
    """Compares the registers of all lanes between laps, a lap being one turn for every lane that can run."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.clear()

    def clear(self) -> None:
        """Forget all laps: the blocks start."""
        self.laps, self.next = 0, 1
        self.disturbed = False
        self.seen: dict[str, Array] = {}

    def complete(self) -> bool:
        """At the end of a lap: whether nothing has changed in it. Looks at ever fewer laps."""
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
