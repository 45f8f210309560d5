"""The tools that a build needs from the system: a C compiler, and copying of finished files."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path


class BuildError(Exception):
    """The error that a build raises if it built nothing; the message gives the reason in one line."""


def put(file: Path, folder: Path) -> Path:
    """Copy a file into a folder; returns its new path. While the file is copied, the folder has either the complete new
    file or the previous one."""
    draft = folder / f".{file.name}"
    shutil.copy(file, draft)
    return draft.replace(folder / file.name)


def c_compiler(arch: str) -> list[str]:
    """Return the command of the system's C compiler, or of the one for another architecture. Raises BuildError if there
    is no such compiler."""
    here = arch == platform.machine()
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"] if here else [f"{arch}-linux-gnu-gcc"]
    command: list[str] = next((name.split() for name in names if name and shutil.which(name.split()[0])), [])
    if not command:
        remedy = "install gcc or clang, or name one in $CC" if here else f"install gcc-{arch}-linux-gnu"
        raise BuildError(f"there is no C compiler ({names[1] if here else names[0]}): {remedy}")
    return command
