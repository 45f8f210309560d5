"""What a build needs of the system."""

from __future__ import annotations

import os
import platform
import shutil


class BuildError(Exception):
    """Why nothing was built, in a line."""


def c_compiler(arch: str) -> list[str]:
    """The command of the system's C compiler, or of the one for another architecture. Raises BuildError without one."""
    here = arch == platform.machine()
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"] if here else [f"{arch}-linux-gnu-gcc"]
    command: list[str] = next((name.split() for name in names if name and shutil.which(name.split()[0])), [])
    if not command:
        remedy = "install gcc or clang, or name one in $CC" if here else f"install gcc-{arch}-linux-gnu"
        raise BuildError(f"there is no C compiler ({names[1] if here else names[0]}): {remedy}")
    return command
