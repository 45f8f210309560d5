"""Directories whose contents no other user can change, found by walking to them from the root of the file system.

Each directory on the way is opened relative to the one before it, without following a link, and the owner and mode of the
open directory are checked. So it cannot be replaced between check and use.

- Each must belong to this user or to root. The last ones, which hold the files, must be this user's.
- No other user may write it, unless it is sticky, as ``/tmp`` is. The last ones may not even be that.
- A link is followed where no other user can write the directory that holds it, and refused elsewhere. Its target is walked
  to in the same way.

The resulting path contains no link. Other libraries, such as Numba's cache, may open files by it later, because it always
leads to the same directory: to change that, an entry of one of its directories would have to be renamed, removed or
replaced. Where only the owner can write a directory, only the owner and root can do that. In a sticky directory, only the
owner of the directory, the owner of the entry, and root can; the entry is the next component, and its owner was checked.
All these owners are this user or root. An entry of a POSIX access control list that lets another user write is noticed
too, because with such a list the group bits of the mode show the most that it allows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

#: Flags to open a directory on the way: only to pass through it, for which no permission to list it is needed.
_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Links on one path, as many as Linux follows.
_MOST_LINKS = 40
_ROOT = Path("/")


def safe_directory(path: str | Path, parts: Iterable[str] = (), *, make: bool = True) -> Path:
    """The real path of ``path``/``parts``, where only this user can write the directories ``parts``.

    Missing directories are made with mode 0700, unless ``make`` is False. Raises PermissionError where another user could
    change what the directory holds, and any OSError where it cannot be reached, made or written. On a system without
    such owners and modes (Windows) the directories are made and nothing is checked.
    """
    if os.name != "posix":
        return _made(Path(path), parts)
    walk = _Walk(make)
    try:
        walk.follow(str(path) if Path(path).is_absolute() else f"{Path.cwd()}/{path}")
        for part in parts:
            walk.enter(part, mine=True)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=walk.fd, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(f"{str(walk.path)!r} cannot be written")
        return walk.path
    finally:
        os.close(walk.fd)


class _Walk:
    """An open directory and its real path. It begins at the root of the file system and goes one step at a time."""

    def __init__(self, make: bool) -> None:
        self._make = make
        self.path, self.fd = _ROOT, os.open(_ROOT, _OPEN)
        self._shared = False
        try:
            self._check(self.fd, self.path, mine=False)
        except BaseException:
            os.close(self.fd)
            raise

    def follow(self, path: str) -> None:
        """Enter the directories of ``path`` one by one, and those of links on it."""
        waiting, links = path.split("/")[::-1], 0
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            target = self._link(name)
            if target is None:
                self.enter(name)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                self._move_to(os.open(_ROOT, _OPEN), _ROOT, mine=False)
            waiting += target.split("/")[::-1]

    def enter(self, name: str, *, mine: bool = False) -> None:
        """Go into the directory ``name``, which is made if it is missing. With ``mine`` it must belong to this user."""
        path = self.path.parent if name == ".." else self.path / name
        if mine and self._link(name) is not None:
            raise PermissionError(f"{str(path)!r} is a link")
        try:
            fd = self._opened(name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._move_to(fd, path, mine)

    def _opened(self, name: str) -> int:
        try:
            return os.open(name, _OPEN, dir_fd=self.fd)
        except FileNotFoundError:
            if not self._make:
                raise
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            os.mkdir(name, 0o700, dir_fd=self.fd)
        return os.open(name, _OPEN, dir_fd=self.fd)

    def _link(self, name: str) -> str | None:
        """Where the link ``name`` leads; None where it is not a link."""
        try:
            target = os.readlink(name, dir_fd=self.fd)
        except OSError:  # not a link, or missing: opening it raises the error
            return None
        if self._shared:
            raise PermissionError(f"{str(self.path / name)!r} is a link in a directory that other users can write")
        return target

    def _move_to(self, fd: int, path: Path, mine: bool) -> None:
        try:
            self._check(fd, path, mine)
        except BaseException:
            os.close(fd)
            raise
        os.close(self.fd)
        self.fd, self.path = fd, path

    def _check(self, fd: int, path: Path, mine: bool) -> None:
        """Raises PermissionError if another user could change the entries of this directory that belong to this user."""
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() and (mine or status.st_uid != 0):
            raise PermissionError(f"{str(path)!r} belongs to another user (uid {status.st_uid})")
        self._shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if self._shared and (mine or not status.st_mode & stat.S_ISVTX):
            mode = oct(stat.S_IMODE(status.st_mode))
            raise PermissionError(f"{str(path)!r} can be written by other users (mode {mode})")


def _made(path: Path, parts: Iterable[str]) -> Path:
    path = path.absolute().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path
