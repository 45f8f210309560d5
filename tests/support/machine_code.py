"""Machine code that Numba or LLVM wrote: its text, and its innermost loops."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable

import pytest

from tilewright.host.machine import machine

x86_with_fma = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64") or "fma" not in machine().isa,
    reason="reads the assembly of x86-64 with FMA",
)


def assembly(function: Callable[..., None]) -> str:
    (text,) = function.inspect_asm().values()  # type: ignore[attr-defined]
    return text


def inner_loops(text: str, fused: str) -> list[list[str]]:
    """Every loop with multiply-adds that jumps back to its own label."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"[.\w$]+:", line)}
    found = []
    for at, line in enumerate(lines):
        jump = re.match(r"(?:j|b\.)\w+\s+([.\w$]+)$", line)
        start = labels.get(jump[1], at) if jump else at
        body = lines[start : at + 1]
        inner = not any(re.match(r"[.\w$]+:", inside) for inside in body[1:])
        if start < at and inner and any(inside.startswith(fused) for inside in body):
            found.append(body)
    return found
