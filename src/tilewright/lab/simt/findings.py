"""What the microscope finds wrong with a kernel, one finding for each kind and source line."""

from __future__ import annotations

from dataclasses import dataclass, field

from .ptx import Instruction

#: Every kind of finding there is.
KINDS = (
    "out of bounds",
    "misaligned",
    "unwritten read",
    "output never written",
    "race",
    "divergent barrier",
    "endless wait",
    "trap",
)


@dataclass(frozen=True)
class Finding:
    """One defect, with the first thread that showed it and how many threads did."""

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
            self.found[key] = Finding(kind, self.kernel, file, line, block, thread, address, text)

    def list(self) -> list[Finding]:
        """In order of source line, those without a line last."""
        return sorted(self.found.values(), key=lambda f: (not f.line, f.file, f.line, f.kind))
