"""A temporary directory of this process, removed when it ends.

A process that is killed cannot remove its directory. So each process holds a lock on its directory, which the system
releases when the process ends in any way. The next process of this user that makes such a directory removes those
that are no longer locked.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from .safe import safe_directory

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and what a killed process left behind stays
    fcntl = None  # type: ignore[assignment]

_PREFIX = "tilewright-process-"
_NAME = re.compile(rf"{_PREFIX}\d+-\w{{8}}")
#: Places to try where the directory that the environment names cannot be used.
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
#: How often to try: another process may remove a new directory that is not locked yet, because it seems left behind.
_TRIES = 3

_making = threading.Lock()
_current: _Directory | None = None


def temporary_directory() -> Path | None:
    """The directory of this process, made at the first call. A forked child shares its parent's. None where no place is
    safe and can be written."""
    global _current
    with _making:
        if _current is None or not _current.is_there():
            _current = _new_directory()
        return None if _current is None else _current.path


class _Directory:
    """A new directory of mode 0700, locked. Raises OSError where it cannot be made, or another process has locked it."""

    def __init__(self, place: Path) -> None:
        self._process = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{self._process}-", dir=place))
        self._fd = _locked(self.path, must=False) if fcntl else None

    def is_there(self) -> bool:
        """Whether the path still leads to this directory: a forked child may outlive the parent that removes it."""
        try:
            return self._fd is None or os.path.samestat(os.lstat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def remove(self) -> None:
        """Remove it in the process that made it. In a forked child, do nothing."""
        if self._process == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)


def _new_directory() -> _Directory | None:
    for place in _places():
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                directory = _Directory(place)
                if directory.is_there():
                    _remove_at_exit(directory)
                    return directory
    return None


def _places() -> Iterator[Path]:
    """The safe places; what killed processes left in each is removed first."""
    with contextlib.suppress(OSError):
        yield _cleared(tempfile.gettempdir())
    for place in _PLACES:
        with contextlib.suppress(OSError):
            yield _cleared(place)


def _cleared(place: str) -> Path:
    safe = safe_directory(place, make=False)
    if fcntl:
        for path in safe.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):  # it is another user's, or locked
                    fd = _locked(path, must=True)
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(fd)
    return safe


def _locked(path: Path, *, must: bool) -> int:
    """A descriptor of the directory, which is locked as long as the descriptor is open. Raises OSError if it belongs to
    another user, or another process has locked it. Where the file system has no locks, raises OSError with ``must``, and
    returns the descriptor of an unlocked directory without."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if must or isinstance(error, BlockingIOError | PermissionError):
            os.close(fd)
            raise
    return fd


def _remove_at_exit(directory: _Directory) -> None:
    atexit.register(directory.remove)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:  # such a child ends without running atexit
        from multiprocessing.util import Finalize

        Finalize(None, directory.remove, exitpriority=0)


def _renew() -> None:
    """A new lock for a forked child: the thread that held the old one does not exist there."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
