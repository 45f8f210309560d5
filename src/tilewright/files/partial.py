"""The unfinished file beside its name: taken up or begun, alone, with its space reserved, and renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path

from ..errors import FileError
from ..machine import bytes_text
from .checks import explained, free_bytes


class Partial:
    """``NAME.partial`` on the file system of NAME, open and locked against other processes.

    ``path`` is the file (or, with ``directory``, the directory), ``file`` its descriptor, ``resumed`` whether it was
    there and is to be kept. The target may exist: it is replaced by ``finish`` and by nothing else.
    """

    def __init__(self, target: Path, *, resume: bool, directory: bool = False) -> None:
        self.target = Path(os.path.realpath(target))  # a link to another disk stays a link to another disk
        self.path = self.target.with_name(self.target.name + ".partial")
        if self.target.exists() and not (self.target.is_dir() if directory else self.target.is_file()):
            raise FileError(f"{target} exists and is no {'directory' if directory else 'file'}: choose another name")
        with explained(self.path, "written"):
            self.resumed = resume and self.path.exists()
            if directory:
                self.path.mkdir(exist_ok=True)
                self.file = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            else:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            if not self.resumed:
                self._empty(directory)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{self.path} is being written by another process: wait for it or choose another name"
            ) from None
        except OSError:  # a file system without locks
            return

    def _empty(self, directory: bool) -> None:
        with explained(self.path, "written"):
            if not directory:
                os.ftruncate(self.file, 0)
                return
            for entry in self.path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def reserve(self, nbytes: int, *, allocate: bool = True) -> None:
        """Take ``nbytes`` of the disk for the file; or only look whether they are free. Else FileError."""
        there = os.fstat(self.file).st_blocks * 512 if allocate else 0
        free = free_bytes(self.path.parent)
        try:
            if nbytes - there > free:
                raise OSError(errno.ENOSPC, "")
            if allocate:
                _allocate(self.file, nbytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                with explained(self.target, "written"):
                    raise
            raise FileError(
                f"{self.target} does not fit its disk: {nbytes} bytes ({bytes_text(nbytes)}) are needed, {free} "
                f"({bytes_text(free)}) are free; free some space or choose another disk"
            ) from None

    def finish(self) -> None:
        """Rename to the target and make the rename outlast a power failure."""
        with explained(self.target, "written"):
            if self.path.is_dir():
                _replace_directory(self.path, self.target)
            else:
                self.path.replace(self.target)
            sync(self.target.parent)
        self.close()

    def close(self) -> None:
        """Let go of the file; it stays."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def abandon(self) -> None:
        """Remove what could not be begun; what could not be resumed stays."""
        self.close()
        if self.resumed:
            return
        with contextlib.suppress(OSError):
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()


def sync(path: Path) -> None:
    """Return when the file or directory is on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _allocate(file: int, nbytes: int) -> None:
    if not nbytes:
        return
    try:
        os.posix_fallocate(file, 0, nbytes)
    except (AttributeError, OSError) as error:  # macOS has no such call, and some file systems do not know it
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.ftruncate(file, max(nbytes, os.fstat(file).st_size))


def _replace_directory(new: Path, target: Path) -> None:
    """No system call of Python's replaces a full directory, so the old one steps aside for a moment."""
    old = target.with_name(target.name + ".replaced")
    if not target.exists():
        new.rename(target)
        return
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
