"""Directories whose contents no other user can change, found by walking to them from the root of the file system.

What is checked is what was opened: each directory on the way is opened relative to the one before it, without following a
link, and its owner and mode are those of the open directory. So nothing can be put in its place between check and use.

- Each must belong to this user or to root. The last ones, which hold the files, must be this user's.
- No other user may write it, unless it is sticky, as ``/tmp`` is. The last ones may not even be that.
- A link is followed where no other user can write the directory that holds it, and refused elsewhere. Its target is walked
  to in the same way.

The path that comes out contains no link. Other libraries, such as Numba's cache, may open files by it later, because it
cannot come to mean anything else: for that, an entry of one of its directories would have to be renamed, removed or
replaced. Where only the owner can write a directory, only the owner and root can do that. In a sticky directory, only the
owner of the directory, the owner of the entry, and root can; the entry is the next component, and its owner was checked.
All these owners are this user or root. An entry of a POSIX access control list that lets another user write is noticed
too, because such a list shows the most that it allows in the bits of the group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

#: How a directory is opened on the way: to pass through it, which asks for no permission to list it.
_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Links on one path, as many as Linux follows.
_MOST_LINKS = 40
_ROOT = Path("/")


def safe_directory(path: str | Path, parts: Iterable[str] = (), *, make: bool = True) -> Path:
    """The real path of ``path``/``parts``, where ``parts`` are directories of this user alone.

    What is not there is made with mode 0700, unless ``make`` is False. Raises PermissionError where another user could
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
    """A directory, held open, and its real path; from the root of the file system one step at a time."""

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
        """Go along ``path``, and along the links on it."""
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
                self._stand(os.open(_ROOT, _OPEN), _ROOT, mine=False)
            waiting += target.split("/")[::-1]

    def enter(self, name: str, *, mine: bool = False) -> None:
        """Go into the directory ``name``, which is made where it is not there and must be this user's if it is ``mine``."""
        path = self.path.parent if name == ".." else self.path / name
        if mine and self._link(name) is not None:
            raise PermissionError(f"{str(path)!r} is a link")
        try:
            fd = self._opened(name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._stand(fd, path, mine)

    def _opened(self, name: str) -> int:
        try:
            return os.open(name, _OPEN, dir_fd=self.fd)
        except FileNotFoundError:
            if not self._make:
                raise
        with contextlib.suppress(FileExistsError):  # another process makes it too
            os.mkdir(name, 0o700, dir_fd=self.fd)
        return os.open(name, _OPEN, dir_fd=self.fd)

    def _link(self, name: str) -> str | None:
        """Where the link ``name`` leads; None where it is not a link."""
        try:
            target = os.readlink(name, dir_fd=self.fd)
        except OSError:  # no link, or not there: what opens it says what is wrong
            return None
        if self._shared:
            raise PermissionError(f"{str(self.path / name)!r} is a link in a directory that other users can write")
        return target

    def _stand(self, fd: int, path: Path, mine: bool) -> None:
        try:
            self._check(fd, path, mine)
        except BaseException:
            os.close(fd)
            raise
        os.close(self.fd)
        self.fd, self.path = fd, path

    def _check(self, fd: int, path: Path, mine: bool) -> None:
        """Raises PermissionError unless no other user can change what this directory holds for us."""
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
