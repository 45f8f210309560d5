"""Defines the options of a run as one object, and the interface of an observer. The launch itself (kernel, grid, block
and arguments) is not among the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import UsageError
from ..assembly.instructions import Instruction
from ..counters.sectors import Ints
from ..counters.work import UnitWork
from .arguments import check_positions, whole_number
from .event_log import EventLog


class Observer(Protocol):
    """Receives every memory access of a run, as flat arrays over the active threads in order of thread.

    ``kind`` is "ld", "st", "atom", "red", "ldmatrix", "stmatrix" or "cp.async" (for which ``on_access`` is called
    twice: for its global side and for its shared side). ``warps`` are warp numbers that are unique in the whole grid.
    ``nbytes`` is the bytes that one lane moves, including all elements of a vector.
    """

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int, /
    ) -> None:
        """Receive one instruction, executed by these lanes of these warps."""

    def on_work(self, work: UnitWork, ins: Instruction, warps: Ints, /) -> None:
        """Receive the work of one instruction in a unit other than the load/store pipe, such as a tensor core, for each
        of these warps. ``requests`` of the work says how many warps execute the instruction together; ``warps`` then
        has only the first of these warps."""


MAX_STEPS = 50_000_000
MAX_BYTES = 2 << 30

#: A function that receives the number of blocks done and the number of all blocks to do.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RunOptions:
    """The options of a run: which part of a launch is run, within which limits, and which functions are called
    meanwhile.

    ``shared_bytes`` is the dynamic shared memory of a block. ``outputs`` are the positions of arrays that the kernel
    must write in full. ``blocks`` are linear indices of blocks of the grid, or a number of blocks that are spread over
    the grid. If only some of the blocks are run, outputs that were never written are not reported. ``outputs_empty``
    says that outputs have no values before the run; if it is true, a read of an element before the first write to it is
    reported. A run stops with a finding after ``max_steps`` steps, and is refused if it needs more than ``max_bytes``
    bytes of memory. ``progress`` is called several times a second with the number of blocks that have run and the
    number of all blocks to run. An exception from ``progress``, such as an interrupt, ends the run and leaves nothing
    behind. ``observer`` receives every memory access. ``cluster`` is the number of blocks of a cluster along x, y, z,
    for a kernel that was compiled without a cluster size. Only whole clusters are run. ``constants`` are the values of
    ``__constant__`` and ``__device__`` variables before the run: an array or a number for each name. ``registers`` is
    the number of registers of a thread with which the kernel was compiled; 0 if this number is not known. ``log``
    records what happens at the mbarriers of the first block.

    Raises UsageError for an invalid value of an option.
    """

    shared_bytes: int = 0
    outputs: Sequence[int] = ()
    blocks: int | Sequence[int] | None = None
    max_steps: int = MAX_STEPS
    max_bytes: int = MAX_BYTES
    progress: Progress | None = None
    observer: Observer | None = None
    cluster: int | Sequence[int] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    registers: int = 0
    outputs_empty: bool = False
    log: EventLog | None = None

    def __post_init__(self) -> None:
        check_positions(self.outputs)
        for name, least in (("shared_bytes", 0), ("registers", 0), ("max_steps", 1), ("max_bytes", 1)):
            whole_number(name, getattr(self, name), least)
        if not isinstance(self.constants, Mapping):
            raise UsageError(f"constants must be a dictionary of values by name, given {self.constants!r:.80}")
        if self.progress is not None and not callable(self.progress):
            raise UsageError(f"progress must be a function of blocks done and blocks to do, given {self.progress!r}")


#: The default options: a whole launch.
WHOLE_RUN = RunOptions()
