"""Finds the inner loop of a compiled kernel in its machine code, and counts its instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...cpu.runtime.names import code_name
from ...kernels import Kernel

#: A multiplication: fused with an addition, or of integers, which are not always fused; x86-64 and AArch64.
_MULTIPLY = re.compile(r"v?fn?m(add|sub)|v?pmul[lh]|v?pmadd|v?pdp|v?mul[sp][sdh]\b|fm(la|ls|ul)\b|fmadd|ml[as]\b|mul\b")
_PREFETCH = re.compile(r"prefetch|prfm")
_LABEL = re.compile(r"(\.?L\w+):")
_JUMP = re.compile(r"(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s(?:.*[\s,])?(\.?L\w+)$")
_LOAD_OF_ARM = re.compile(r"ld(r|p|ur|1)")


@dataclass(frozen=True)
class InnerLoop:
    """One turn of the loop: ``multiplies`` are vector (or scalar) multiply-adds; ``loads`` read memory, without
    prefetches."""

    multiplies: int
    loads: int
    prefetches: int
    instructions: int

    @property
    def reads(self) -> int:
        """Loads as a processor's counter counts them: prefetches are included."""
        return self.loads + self.prefetches


def inner_loop(kernel: Kernel, dtype: str) -> InnerLoop | None:
    """The inner loop of a kernel compiled for ``dtype``; None for a kernel that is not compiled, or without a straight loop.

    The kernel is compiled anew, which takes some seconds.
    """
    if not kernel.compiled or kernel.over is not None:
        return None
    from ...cpu.runtime.in_process import fresh_assembly  # imports the compiler

    return read_loop(fresh_assembly(kernel, code_name(dtype)))


def read_loop(assembly: str) -> InnerLoop | None:
    """The loop with the most multiplications; on a tie the shortest: longer ones contain occasional extra work.

    >>> read_loop("L1:\\n vmovups (%rax), %ymm1\\n vfmadd231ps %ymm1, %ymm2, %ymm0\\n addq $32, %rax\\n jne L1")
    InnerLoop(multiplies=1, loads=1, prefetches=0, instructions=4)
    """
    loops = [_counted(body) for body in _loops(assembly)]
    return max(loops, key=lambda loop: (loop.multiplies, -loop.instructions), default=None)


def _loops(assembly: str) -> list[list[str]]:
    """Loops without inner labels that multiply: the instructions from a label to a jump back to it."""
    loops: list[list[str]] = []
    label, body = "", list[str]()
    for line in (raw.split("#")[0].strip() for raw in assembly.splitlines()):
        if match := _LABEL.match(line):
            label, body = match[1], []
        elif line and not line.startswith((".", "//")):
            body.append(line)
            jump = _JUMP.match(line.replace("\t", " "))
            if jump and jump[1] == label and any(_MULTIPLY.match(instruction) for instruction in body):
                loops.append(list(body))
    return loops


def _counted(body: list[str]) -> InnerLoop:
    multiplies = sum(bool(_MULTIPLY.match(line)) for line in body)
    prefetches = sum(bool(_PREFETCH.match(line)) for line in body)
    return InnerLoop(multiplies, sum(_loads(line) for line in body), prefetches, len(body))


def _loads(line: str) -> bool:
    """Whether an instruction reads memory. In AT&T syntax the destination is last, and only moves write to memory."""
    if "[" in line:
        return bool(_LOAD_OF_ARM.match(line))
    if "(" not in line or line.startswith(("lea", "nop")) or _PREFETCH.match(line):
        return False
    return not (re.match(r"v?mov|vst", line) and line.endswith(")"))
