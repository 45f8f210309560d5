"""The defects that the microscope finds in a kernel, as plain data. There is one finding for each kind of defect and
source line. A line in a device function has one finding for each line of the kernel that calls the function. The grade
of a finding says how certain the defect is, and whether it is in the user's code or in a library's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: An access outside every operand and variable.
OUT_OF_BOUNDS = "out of bounds"
#: Two accesses that nothing orders, at least one of which is a write.
RACE = "race"
#: Elements of an output that no thread wrote.
UNWRITTEN_OUTPUT = "output never written"
#: A read of memory that no thread wrote before.
UNWRITTEN_READ = "unwritten read"
#: The run reached its step limit, and might have ended later. This is the only kind that does not prove a defect.
STEP_LIMIT = "step limit"
#: A wait returned for another phase than the one whose bytes are needed.
WRONG_PARITY = "wrong parity"
#: The number of bytes that a barrier expects is not the number that arrives.
BYTE_COUNT = "byte count"
#: A barrier in shared memory is used before its initialisation, is initialised again, or gets too many arrivals; or a
#: thread arrives at, or waits for, a barrier of a cluster twice.
BARRIER_MISUSE = "barrier misuse"
#: A write that the asynchronous proxy (copy engine, wgmma) cannot see, because a fence is missing.
MISSING_FENCE = "missing fence"
#: A register is read or written while a wgmma still uses it; or tensor memory is read before a tcgen05 operation has
#: written it.
ACCUMULATOR = "accumulator in flight"
#: A descriptor of wgmma or tcgen05 that does not describe the tile in shared memory.
DESCRIPTOR = "descriptor"
#: A copy that writes beyond the row of the tensor, because it moves whole chunks of 16 bytes.
NEIGHBOURS = "neighbours overwritten"
#: Tensor memory is not allocated or freed as PTX requires, or the wrong threads issue a tcgen05 instruction.
TCGEN05_MISUSE = "tcgen05 misuse"
#: The kinds that occur only in asynchronous kernels.
ASYNCHRONOUS = (
    WRONG_PARITY,
    BYTE_COUNT,
    BARRIER_MISUSE,
    MISSING_FENCE,
    ACCUMULATOR,
    DESCRIPTOR,
    NEIGHBOURS,
    TCGEN05_MISUSE,
)
#: A block that may leave the kernel before another block of its cluster has accessed its shared memory.
LEFT_EARLY = "block left early"
#: The kinds that occur only in kernels with clusters.
CLUSTERS = (LEFT_EARLY,)
#: Two threads make volatile accesses to shared memory, and nothing orders these.
VOLATILE = "volatile race"
#: Warps take more registers by ``setmaxnreg`` than the block has, or a ``setmaxnreg`` has no effect.
REGISTERS = "registers"
#: The compiler makes instructions of tensor cores wait for one another.
SERIALISED = "serialised"
#: A launch that no GPU of the architecture accepts.
LAUNCH = "launch"
#: The kinds that need the compiler's messages, or the number of registers that it gave the kernel.
COMPILED = (REGISTERS, SERIALISED, LAUNCH)
#: All kinds of findings.
KINDS = (
    OUT_OF_BOUNDS,
    "misaligned",
    UNWRITTEN_READ,
    UNWRITTEN_OUTPUT,
    RACE,
    VOLATILE,
    "divergent barrier",
    "endless wait",
    STEP_LIMIT,
    "trap",
    *ASYNCHRONOUS,
    *CLUSTERS,
    *COMPILED,
)

#: The kernel can go wrong on today's GPUs.
SURE = "sure"
#: The kernel works on today's GPUs, but PTX does not guarantee that it does.
BY_THE_LETTER = "by the letter of PTX"
#: Both accesses are in headers of a library, whose own calls lack a fence between them.
IN_LIBRARY = "in a library's code"
#: All grades; the most serious is first.
GRADES = (SURE, BY_THE_LETTER, IN_LIBRARY)


@dataclass(frozen=True)
class Finding:
    """One defect, with the first thread in which it occurred, and its grade (SURE, BY_THE_LETTER or IN_LIBRARY)."""

    kind: str
    kernel: str
    file: str
    line: int  # 0 where the PTX has no line information
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None
    text: str
    grade: str = SURE

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: " if self.line else ""
        return f"{at}{self.text_in_place}"

    @property
    def text_in_place(self) -> str:
        """The finding as text without its file and line. The grade is mentioned unless it is SURE."""
        where = f"{self.kernel}, block {self.block}, thread {self.thread}"
        return f"{self.kind}{marked_grade(self.grade)} in {where}: {self.text}"


def marked_grade(grade: str) -> str:
    """Return a grade as text that is put after the kind of a finding; the text is empty for SURE."""
    return "" if grade == SURE else f" ({grade})"


def counted(grades: Sequence[str]) -> str:
    """Return a text that counts findings with these grades, separately for each grade if some are not SURE.

    >>> counted([]), counted([SURE]), counted([SURE, IN_LIBRARY])
    ('no defect found', '1 finding', "2 findings (1 sure, 1 in a library's code)")
    """
    if not grades:
        return "no defect found"
    count = f"{len(grades)} finding{'s' * (len(grades) > 1)}"
    if set(grades) == {SURE}:
        return count
    return f"{count} ({', '.join(f'{grades.count(grade)} {grade}' for grade in GRADES if grade in grades)})"
