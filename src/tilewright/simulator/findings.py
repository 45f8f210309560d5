"""What the microscope finds wrong with a kernel, as plain data: one finding for each kind and source line."""

from __future__ import annotations

from dataclasses import dataclass

#: The only kind that does not prove a defect: the run reached its step limit, and might have ended later.
STEP_LIMIT = "step limit"
#: All kinds of findings.
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
    line: int  # 0 where the PTX has no line information
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None
    text: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: " if self.line else ""
        return f"{at}{self.text_in_place}"

    @property
    def text_in_place(self) -> str:
        """The finding as text, without its file and line."""
        return f"{self.kind} in {self.kernel}, block {self.block}, thread {self.thread}: {self.text}"
