"""What the microscope finds wrong with a kernel, as plain data: one finding for each kind and source line, and for each
line of the kernel that calls the function with that line. Its grade says how sure it is, and whose code it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: An access outside every operand and variable.
OUT_OF_BOUNDS = "out of bounds"
#: Two accesses, one of them a write, that nothing orders.
RACE = "race"
#: Elements of an output that no thread wrote.
UNWRITTEN_OUTPUT = "output never written"
#: A read of memory that no thread wrote before.
UNWRITTEN_READ = "unwritten read"
#: The only kind that does not prove a defect: the run reached its step limit, and might have ended later.
STEP_LIMIT = "step limit"
#: A wait that returned for a phase other than the one whose bytes are needed.
WRONG_PARITY = "wrong parity"
#: The bytes that a barrier expects are not those that arrive.
BYTE_COUNT = "byte count"
#: A barrier in shared memory that is used before its initialisation, initialised again, or arrived at too often; or one of a
#: cluster that a thread arrives at, or waits for, twice.
BARRIER_MISUSE = "barrier misuse"
#: A write that the asynchronous proxy (copy engine, wgmma) cannot see, for want of a fence.
MISSING_FENCE = "missing fence"
#: A register that is read or written while a wgmma still uses it; tensor memory that is read before a tcgen05 operation has
#: written it.
ACCUMULATOR = "accumulator in flight"
#: A descriptor of wgmma or tcgen05 that does not describe the tile in shared memory.
DESCRIPTOR = "descriptor"
#: A copy that writes beyond the row of the tensor, because it moves whole chunks of 16 bytes.
NEIGHBOURS = "neighbours overwritten"
#: Tensor memory that is not allocated or given back as PTX requires, or a tcgen05 instruction that the wrong threads issue.
TCGEN05_MISUSE = "tcgen05 misuse"
#: The kinds that only asynchronous kernels show.
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
#: The kinds that only kernels with clusters show.
CLUSTERS = (LEFT_EARLY,)
#: Volatile accesses of shared memory by two threads, with nothing between that orders them.
VOLATILE = "volatile race"
#: Registers that warps take by ``setmaxnreg`` where the block has too few, and a ``setmaxnreg`` that has no effect.
REGISTERS = "registers"
#: Instructions of tensor cores that the compiler makes wait for one another.
SERIALISED = "serialised"
#: A launch that no GPU of the architecture takes.
LAUNCH = "launch"
#: The kinds that need the compiler's messages, or the registers that it gave the kernel.
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
#: It works on today's GPUs, but PTX does not promise that it will.
BY_THE_LETTER = "by the letter of PTX"
#: Both accesses are in headers of a library, which lacks the fence between its own calls.
IN_LIBRARY = "in a library's code"
#: All grades, the gravest first.
GRADES = (SURE, BY_THE_LETTER, IN_LIBRARY)


@dataclass(frozen=True)
class Finding:
    """One defect, with the first thread that showed it, and its grade: SURE, BY_THE_LETTER or IN_LIBRARY."""

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
        """The finding as text, without its file and line; a grade that is not named is SURE."""
        where = f"{self.kernel}, block {self.block}, thread {self.thread}"
        return f"{self.kind}{marked_grade(self.grade)} in {where}: {self.text}"


def marked_grade(grade: str) -> str:
    """A grade as text after the kind of a finding: empty for SURE."""
    return "" if grade == SURE else f" ({grade})"


def counted(grades: Sequence[str]) -> str:
    """The number of findings with these grades in words, by grade if some are not SURE.

    >>> counted([]), counted([SURE]), counted([SURE, IN_LIBRARY])
    ('no defect found', '1 finding', "2 findings (1 sure, 1 in a library's code)")
    """
    if not grades:
        return "no defect found"
    count = f"{len(grades)} finding{'s' * (len(grades) > 1)}"
    if set(grades) == {SURE}:
        return count
    return f"{count} ({', '.join(f'{grades.count(grade)} {grade}' for grade in GRADES if grade in grades)})"
