"""The unfinished matrix in its work directory: resumed or begun, its space reserved, and renamed when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ...errors import FileError
from ...host.machine import bytes_text
from .checks import free_bytes, os_errors
from .output import Output
from .swap import DATA, put_in_place
from .work import JOURNAL, WorkDirectory


class Partial:
    """A new or unfinished file, or a directory where the format is one; ``file`` is its descriptor, ``path`` its name.

    ``resumed`` says whether it was there and is continued. ``work`` is the open work directory of a journal, which the
    caller closes; without it, this object opens and closes its own. The target may exist: only ``finish`` replaces it.
    """

    def __init__(self, output: Output, resume: bool, work: WorkDirectory | None) -> None:
        self.target, self.file = output.target, -1
        self._own = work is None
        self.work = WorkDirectory(output) if work is None else work
        self.path = self.work.path / DATA
        try:
            with os_errors(self.path, "written"):
                self.resumed = resume and self.work.inode(DATA) is not None
                if not self.resumed:
                    self._forget()
                self._open(output.directory)
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        """Remove what an earlier run left; its journal describes a file that is gone."""
        self.work.discard()
        if self._own:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(JOURNAL, dir_fd=self.work.fd)

    def _open(self, directory: bool) -> None:
        if directory and not self.resumed:
            os.mkdir(DATA, dir_fd=self.work.fd)
        how = os.O_RDONLY | os.O_DIRECTORY if directory else os.O_RDWR | (0 if self.resumed else os.O_CREAT)
        self.file = self.work.open(DATA, how)

    def reserve(self, nbytes: int, *, allocate: bool = True) -> None:
        """Reserve ``nbytes`` of the disk for the file; without ``allocate``, only check that they are free.

        Raises FileError where they are not.
        """
        there = os.fstat(self.file).st_blocks * 512 if allocate else 0
        free = free_bytes(self.path.parent)
        try:
            if nbytes - there > free:
                raise OSError(errno.ENOSPC, "")
            if allocate:
                _allocate(self.file, nbytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                with os_errors(self.target, "written"):
                    raise
            raise FileError(
                f"{self.target} does not fit its disk: {nbytes} bytes ({bytes_text(nbytes)}) are needed, {free} "
                f"({bytes_text(free)}) are free; free some space or choose another disk"
            ) from None

    def finish(self) -> None:
        """Give it the name of the result; then nothing can be written. Raises FileError where something would be lost."""
        with os_errors(self.target, "written"):
            put_in_place(self.work)
            if self._own:
                self._forget()
        self.close()

    def close(self) -> None:
        """Close the file, which stays on the disk."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1
        if self._own:
            self.work.close()

    def abandon(self) -> None:
        """Close after an error, and remove a new file; one that was to be resumed stays."""
        if not self.resumed:
            with contextlib.suppress(OSError):
                self.work.discard()
        self.close()


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
    except (AttributeError, OSError) as error:  # macOS and some file systems have no such call
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.ftruncate(file, max(nbytes, os.fstat(file).st_size))
