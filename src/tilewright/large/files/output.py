"""Describes the file of a result as the caller asked for it, and checks whether a file with the name of the result
exists already.

An existing file is replaced only if the caller sets ``overwrite``, because it may be an operand or an earlier result.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import FileError, TilewrightError
from ...host.cached_property import cached_property
from .checks import ArrayShape, Shape, os_errors


@dataclass(frozen=True)
class Output:
    """A matrix of ``shape`` and ``dtype`` that will be written as ``member`` of the file ``path`` (a directory, if
    ``directory`` is set).

    ``lost(path, output)`` is the function of the file format (see ``FileFormat``). With ``overwrite`` the result
    replaces any existing file or directory at ``path``.
    """

    path: Path
    member: str | None
    shape: Shape
    dtype: np.dtype
    directory: bool
    lost: Callable[[Path, Output], str | None]
    overwrite: bool = False
    #: The sizes of the axes that are rows, and of those that are columns, of an array that is written as a matrix.
    extents: tuple[ArrayShape, ArrayShape] | None = None

    @property
    def array_shape(self) -> ArrayShape:
        """The shape of the result as it is stored: that of an array with ``extents``, or of a matrix."""
        return self.shape if self.extents is None else self.extents[0] + self.extents[1]

    @cached_property
    def target(self) -> Path:
        """The path of the result with all links resolved. Raises FileError for links that form a loop."""
        target = Path(os.path.realpath(self.path))
        if target.is_symlink():
            raise FileError(f"{self.path} is a link that leads back to itself: choose another name, or remove it")
        return target

    def check(self, kept_in: Path | None = None) -> None:
        """Raise FileError if the target exists and may not be overwritten, or if the target cannot be replaced at all.

        ``kept_in`` is the directory in which the finished matrix stays if the error is raised. ``kept_in`` is None if
        nothing is computed yet.
        """
        with os_errors(self.path, "written"), contextlib.suppress(FileNotFoundError):
            obstacle = _obstacle(self.target)
            if obstacle is not None:
                raise self._refused(obstacle, kept_in, may_overwrite=False)
            refused = self.refusal(self.target, kept_in)
            if refused is not None:
                raise refused

    def refusal(self, path: Path, kept_in: Path | None = None) -> FileError | None:
        """Return the error for an existing file or directory at ``path`` that must not be lost, or None if it may be
        replaced.

        If the file contains anything besides one matrix, the error says what, because it would be lost too.
        """
        status = os.lstat(path)
        is_our_kind = stat.S_ISDIR if self.directory else stat.S_ISREG
        if not is_our_kind(status.st_mode):
            kind = "directory" if self.directory else "file"
            return self._refused(f"exists and is not a {kind}", kept_in, may_overwrite=False)
        is_empty = not any(path.iterdir()) if self.directory else not status.st_size
        if self.overwrite or is_empty:
            return None
        try:
            lost = self.lost(path, self)
        except TilewrightError as error:
            lost = str(error).removeprefix(str(path)).lstrip()
        except OSError as error:
            lost = f"cannot be read ({error.strerror or error})"
        except Exception as error:  # a parser may raise anything for a damaged file
            lost = f"cannot be understood ({error!r})"
        return self._refused("exists" if lost is None else f"{lost}; it would be lost", kept_in)

    def _refused(self, why: str, kept_in: Path | None, *, may_overwrite: bool = True) -> FileError:
        hint = "choose another name"
        if kept_in is not None:
            hint = f"the finished result stays in {kept_in}; move {self.path.name} away and resume"
        if may_overwrite:
            hint += f", or {'replace it' if kept_in is None else 'resume'} with --overwrite (in Python overwrite=True)"
        return FileError(f"{self.path}{'' if why.startswith(':') else ' '}{why}: {hint}")


def _obstacle(target: Path) -> str | None:
    """Why the target cannot be replaced, as far as can be known without trying; otherwise None."""
    status, around, user = target.lstat(), target.parent.stat(), os.geteuid()
    if around.st_mode & stat.S_ISVTX and user not in (0, status.st_uid, around.st_uid):
        return f"belongs to another user ({status.st_uid}), as does its directory"
    if stat.S_ISDIR(status.st_mode) and not os.access(target, os.W_OK):
        return "is a directory without permission to write, and cannot be replaced"
    return "is a mount point, and cannot be replaced" if _is_mount_point(target) else None


def _is_mount_point(target: Path) -> bool:
    """Whether something is mounted there, a single file included (Linux)."""
    escaped = re.sub(r"[ \t\n\\]", lambda each: f"\\{ord(each[0]):03o}", str(target))
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return False
    return any(line.split(" ")[4] == escaped for line in mounts.splitlines())
