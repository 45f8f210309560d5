"""What a build needs of the system."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path


class BuildError(Exception):
    """Why nothing was built, in a line."""


def put(file: Path, folder: Path) -> Path:
    """Copy a file into a folder, where it is whole, or as it was, at any time; returns its new path."""
    draft = folder / f".{file.name}"
    shutil.copy(file, draft)
    return draft.replace(folder / file.name)


def c_compiler(arch: str) -> list[str]:
    """The command of the system's C compiler, or of the one for another architecture. Raises BuildError without one."""
    here = arch == platform.machine()
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"] if here else [f"{arch}-linux-gnu-gcc"]
    command: list[str] = next((name.split() for name in names if name and shutil.which(name.split()[0])), [])
    if not command:
        remedy = "install gcc or clang, or name one in $CC" if here else f"install gcc-{arch}-linux-gnu"
        raise BuildError(f"there is no C compiler ({names[1] if here else names[0]}): {remedy}")
    return command
