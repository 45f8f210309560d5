"""What the microscope finds wrong with a kernel, one finding for each kind and source line, and how it says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from .ptx.parse import Instruction

#: The one kind that is no defect yet: the run was stopped, and whether it would have ended is not known.
STEP_LIMIT = "step limit"
#: Every kind of finding there is.
KINDS = (
    "out of bounds",
    "misaligned",
    "unwritten read",
    "output never written",
    "race",
    "divergent barrier",
    "endless wait",
    STEP_LIMIT,
    "trap",
)


@dataclass(frozen=True)
class Finding:
    """One defect, with the first thread that showed it."""

    kind: str
    kernel: str
    file: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None
    text: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: " if self.line else ""
        return f"{at}{self.kind} in {self.kernel}, block {self.block}, thread {self.thread}: {self.text}"


@dataclass
class Findings:
    """Collects findings; the first of a kind at a line stays, later ones only count."""

    kernel: str
    found: dict[tuple[str, str, int, int], Finding] = field(default_factory=dict)
    times: dict[tuple[str, str, int, int], int] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        ins: Instruction | None,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        address: int | None,
        text: str,
        times: int = 1,
    ) -> None:
        file, line, ptx = (ins.file, ins.line, 0 if ins.line else ins.ptx_line) if ins else ("", 0, 0)
        key = (kind, file if ins else text, line, ptx)
        self.times[key] = self.times.get(key, 0) + times
        if key not in self.found:
            text += f" (PTX line {ptx})" if ptx else ""
            if ins and ins.inlined_at and ins.inlined_at.line:
                at = ins.inlined_at
                text += f" (called from {f'line {at.line}' if at.file == file else f'{at.file}:{at.line}'})"
            self.found[key] = Finding(kind, self.kernel, file, line, block, thread, address, text)

    def list(self) -> list[Finding]:
        """In order of source line, those without a line last."""
        return sorted(self.found.values(), key=lambda f: (not f.line, f.file, f.line, f.kind))


_ORDER = {
    "warp": "and nothing orders the threads of a warp (__syncwarp() or a barrier would)",
    "block": "with no barrier between",
    "grid": "and nothing orders two blocks (a fence and an atomic would)",
}


def race_text(
    ins: Instruction,
    place: str,
    did: str,
    other: Instruction,
    thread: tuple[int, int, int],
    block: tuple[int, int, int] | None,
    near: str,
) -> str:
    """Both sides of a race in words: what ``ins`` does at ``place``, and what another thread did there.

    ``block`` is the other's if it is another one; ``near`` is what the two have in common: warp, block or grid.
    """
    who = f"thread {thread}" + (f" of block {block}" if block else "")
    mine = _verb(ins, place)
    if did == "together":
        return f"{mine} {place}, and {who} writes another value there in the same instruction: {ins.text}"
    theirs = (
        "updated atomically" if did == "updated" and other.parts[0] != "st" else "read" if did == "read" else "wrote"
    )
    return f"{mine} {place}, which {who} {theirs} at {other.place(ins)}, {_ORDER[near]}: {ins.text}"


def _verb(ins: Instruction, place: str) -> str:
    name = ins.parts[0]
    if name in ("atom", "red"):
        return "updates atomically"
    if name == "cp" and " of shared " not in place:
        return "reads"
    return "reads" if name.startswith("ld") else "writes"


def unwritten_text(ins: Instruction, place: str, copy: Instruction | None) -> str:
    """A read of what no thread wrote; ``copy`` is the asynchronous copy that is still writing it, if there is one."""
    if copy is None:
        return f"reads {place}, which no thread of the block has written: {ins.text}"
    return f"reads {place}, which the copy at {copy.place(ins)} is still writing (wait for its group first): {ins.text}"
