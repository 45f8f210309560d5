"""Tells a loop that can never end: its threads come by with the same registers, and memory is as it was.

A thread's next step depends on its registers and on what it loads. Where every thread that can run has been round its
loop once with no change of either, it will go round for ever.
"""

from __future__ import annotations

from ..ptx.parse import Instruction
from .state import Array, Lanes

_ORDERED = {"volatile", "acquire", "relaxed", "acq_rel", "mmio"}


def loads_anew(ins: Instruction) -> bool:
    """Whether an instruction looks at what other threads may have written meanwhile."""
    name = ins.parts[0]
    waits = name == "mbarrier" and ("try_wait" in ins.parts or "test_wait" in ins.parts)
    return waits or name == "atom" or (name == "ld" and bool(_ORDERED & set(ins.parts)))


def stores(ins: Instruction) -> bool:
    """Whether an instruction changes memory; an atomic that does tells it by its own result."""
    name = ins.parts[0]
    if name == "mbarrier":
        return not loads_anew(ins)
    return name in ("st", "red", "cp", "stmatrix", "wgmma", "multimem") or name.startswith("tcgen")


class Stillness:
    """Compares the registers of all lanes between laps, a lap being one turn for everyone who can run."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.clear()

    def clear(self) -> None:
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
