"""Finds where this package is installed, and lists the files that determine the engine's results and speed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

#: The files that machine code for the CPU is generated from. Of ``kernels`` these are what is not of CUDA alone.
_OF_KERNELS = tuple(f"kernels/{name}.py" for name in ("__init__", "blocking", "declared", "prelude", "recursion"))
SHARED_BY_KERNELS = ("cpu/codegen/*.py", *_OF_KERNELS, "cpu/engine/*.py")
MACHINE_CODE = (*SHARED_BY_KERNELS, "kernels/cpu/*.py", "cpu/kernels/*.py")
#: The files whose code a product runs, from the call to the machine code.
LIBRARY = ("*.py", "api/*.py", "product/*.py", "cpu/*.py", "cpu/runtime/*.py", *MACHINE_CODE)


def is_checkout() -> bool:
    """Return whether the package is in a checkout of its repository, whose sources may change, and not installed."""
    return (PACKAGE.parents[1] / "pyproject.toml").is_file()


def files(patterns: Iterable[str]) -> list[Path]:
    """Return the package's files that match the glob ``patterns``, in a fixed order."""
    return [path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]
