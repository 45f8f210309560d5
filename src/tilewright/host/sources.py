"""Where this package lies, and which of its files decide what the engine computes and how fast."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

#: What machine code on the CPU is generated from.
SHARED_BY_KERNELS = ("codegen/*.py", "kernels/*.py", "engine/*.py")
MACHINE_CODE = (*SHARED_BY_KERNELS, "kernels/cpu/*.py", "engine/cpu/*.py")
#: What a product runs through, from the call to the machine code.
LIBRARY = ("*.py", "planning/*.py", "runtime/*.py", "runtime/cpu/*.py", *MACHINE_CODE)


def files(patterns: Iterable[str]) -> list[Path]:
    """The package's files of these patterns, in a fixed order."""
    return [path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]
