"""Opens, recognises and locks ``NAME.tilewright``, the directory that contains an unfinished result and stands next to
the final file.

Nothing in the work directory is reached through a link. The directory is opened without following links, by its name in
the directory of the result, and everything inside is opened through the directory's descriptor. A directory
``NAME.tilewright`` that contains files of other programs is refused, and never emptied.

This module also begins or resumes the unfinished matrix in the work directory, reserves disk space for the matrix, and
renames the matrix when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from pathlib import Path

from ...errors import FileError
from ...host.machine import bytes_text
from . import swap
from .checks import free_bytes, os_errors
from .output import Output
from .swap import DATA, OpenDirectories, put_in_place

# ---- the directory ---------------------------------------------------------------------------------------------------

SUFFIX = ".tilewright"
#: A file that says what the directory is, and the journal. It also holds the unfinished matrix, or the remains of a swap.
ABOUT, JOURNAL = "about.txt", "journal"
_OURS = re.compile(rf"{re.escape(ABOUT)}|{JOURNAL}|{DATA}|{swap.LEFTOVERS}")
#: The first line of ``ABOUT``. Its number is the version of the directory's layout.
_MAGIC = b"Tilewright work directory 1\n"
#: How often to try to make the directory while other processes remove it.
_TRIES = 1000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_IN_IT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WorkDirectory(OpenDirectories):
    """The work directory of a result, which is created if it does not exist. While one process has a work directory
    open, no other process can open it.

    ``fd`` is the descriptor of the work directory, and ``parent`` that of the directory that contains it. Opening a
    work directory completes or undoes a replacement whose process was killed (see ``swap``). Closing a work directory
    removes it, unless it contains something to resume. With ``only_look`` nothing is created, locked or changed, and
    ``fd`` is -1 if the directory does not exist.

    Raises FileError if the directory cannot be created, belongs to another process or user, or contains files that
    Tilewright did not write.
    """

    def __init__(self, output: Output, *, only_look: bool = False) -> None:
        super().__init__(output)
        self._about, self._is_ours = -1, False
        try:
            with os_errors(self.target, "written"):
                self.parent = os.open(self.target.parent, _DIRECTORY)
                self.path = self.target.with_name(_work_name(self.target.name, self.parent))
            if only_look:
                self._look()
            else:
                self._open()
                with os_errors(self.target, "written"):
                    swap.settle_swap(self)
        except BaseException:
            self.close()
            raise

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open a file or directory in the work directory, and return its descriptor. With O_CREAT, the call fails if
        the file exists. Links are refused.
        """
        exclusive = os.O_EXCL if flags & os.O_CREAT else 0
        return os.open(name, flags | exclusive | _IN_IT, mode, dir_fd=self.fd)

    def inode(self, name: str) -> int | None:
        """Return the inode of the entry ``name`` in the work directory, or None if there is no such entry."""
        return None if self.fd < 0 else swap.inode_of(self.fd, name)

    @property
    def unfinished(self) -> int | None:
        """The inode of the unfinished matrix, or None if there is no such matrix. A matrix whose process was killed
        before the exchange of names is unfinished too.
        """
        names = [] if self.fd < 0 else swap.names_in(self.fd)
        return next((self.inode(name) for name in names if name == DATA or swap.is_new(self.fd, name)), None)

    def discard(self) -> None:
        """Remove the unfinished matrix."""
        with os_errors(self.path, "emptied"):
            swap.discard(self.fd, DATA)

    def close(self) -> None:
        """Close the directory, and remove it unless it contains an unfinished matrix, a journal or the remains of a
        replacement.
        """
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(OSError):
                if swap.names_in(self.fd) == [ABOUT]:
                    os.unlink(ABOUT, dir_fd=self.fd)
                    self._release()  # first, because on NFS the directory of an open file cannot be removed
                    os.rmdir(self.path.name, dir_fd=self.parent)
        self._release()
        if self.parent >= 0:
            os.close(self.parent)
        self.parent = -1

    def _release(self) -> None:
        for file in (self._about, self.fd):
            if file >= 0:
                os.close(file)
        self.fd = self._about = -1

    def _open(self) -> None:
        """Make, recognise and lock it; start again where another process removed it meanwhile."""
        with os_errors(self.path, "made"):
            for _ in range(_TRIES):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path.name, 0o700, dir_fd=self.parent)
                with contextlib.suppress(FileNotFoundError):
                    self._enter()
                    if self._lock():
                        return
                self._release()
            raise FileError(f"{self.path} cannot be made: it is removed as soon as it is there; choose another name")

    def _look(self) -> None:
        with os_errors(self.path, "read"), contextlib.suppress(FileNotFoundError):
            self._enter()
            with contextlib.suppress(FileNotFoundError):
                about = os.open(ABOUT, os.O_RDONLY | _IN_IT, dir_fd=self.fd)
                try:
                    self._refuse_other(about)
                finally:
                    os.close(about)

    def _enter(self) -> None:
        """Open the directory, and refuse one that is not a work directory of this user."""
        try:
            self.fd = os.open(self.path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._foreign("it is not a directory") from None
            raise
        owner = os.fstat(self.fd).st_uid
        # The owner of the directory around it can replace it anyway; some file systems give all files one owner.
        if owner not in (os.geteuid(), 0, os.fstat(self.parent).st_uid):
            raise self._foreign(f"it belongs to the user {owner}")
        names = swap.names_in(self.fd)
        for name in names:
            if not _OURS.fullmatch(name):
                raise self._foreign(f"it holds {name!r}")
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            is_file = stat.S_ISREG(status.st_mode) and status.st_nlink <= 1  # 0: another process is removing it
            is_directory = name == DATA and stat.S_ISDIR(status.st_mode)
            if name in (ABOUT, JOURNAL, DATA) and not (is_file or is_directory):
                raise self._foreign(f"{name} in it is a link or not a file")
        if names and ABOUT not in names:
            raise self._foreign(f"it holds no {ABOUT}")

    def _lock(self) -> bool:
        """Open and lock ``ABOUT``, and write it where it is new or incomplete; False where it was removed meanwhile."""
        self._about = os.open(ABOUT, os.O_RDWR | os.O_CREAT | _IN_IT, 0o600, dir_fd=self.fd)
        try:
            fcntl.flock(self._about, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{self.path} is being written by another process: wait for it or choose another name"
            ) from None
        except OSError:  # a file system without locks
            pass
        if not os.fstat(self._about).st_nlink:
            return False
        self._refuse_other(self._about)
        self._is_ours = True
        if os.fstat(self._about).st_size < len(_MAGIC):
            os.pwrite(self._about, _MAGIC + _about_text(self.target.name), 0)
            os.fsync(self._about)
        return True

    def _refuse_other(self, about: int) -> None:
        """Refuse an ``ABOUT`` of another version. If a crash cut it short and there is no other file, it counts as new."""
        start = os.pread(about, len(_MAGIC), 0)
        cut_short = _MAGIC.startswith(start) and len(start) < len(_MAGIC) and swap.names_in(self.fd) == [ABOUT]
        if start != _MAGIC and not cut_short:
            raise self._foreign(f"its {ABOUT} was not written by this version")

    def _foreign(self, why: str) -> FileError:
        return FileError(
            f"{self.path} is not a work directory of Tilewright, because {why}: move it or choose another name"
        )


def _about_text(name: str) -> bytes:
    return (
        f"This directory holds the unfinished result {name}.\n"
        "The same command with --resume continues it. Remove the directory to discard the result.\n"
    ).encode(errors="backslashreplace")


def _work_name(name: str, parent: int) -> str:
    """``name`` and ``SUFFIX``; where that is too long, the beginning of ``name`` and a hash of all of it."""
    longest = os.fpathconf(parent, "PC_NAME_MAX")
    raw = os.fsencode(name)
    if len(raw) + len(SUFFIX) <= longest:
        return name + SUFFIX
    ending = f"-{hashlib.sha256(raw).hexdigest()[:16]}{SUFFIX}"
    return raw[: longest - len(ending)].decode(errors="ignore") + ending


# ---- the unfinished matrix -------------------------------------------------------------------------------------------


class Partial:
    """A new or unfinished file, or a directory if the format uses one. ``file`` is the descriptor of this file or
    directory, and ``path`` its name.

    ``resumed`` says whether the file existed and is continued. ``work`` is the open work directory of a journal, which
    the caller closes. Without ``work``, the ``Partial`` opens and closes a work directory itself. The target may exist
    already; only ``finish`` replaces it.
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
        """Reserve ``nbytes`` of disk space for the file. If ``allocate`` is False, only check that ``nbytes`` bytes are
        free.

        Raises FileError if fewer than ``nbytes`` are free.
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
        """Give the file the name of the result. After ``finish`` nothing can be written to the file. Raises FileError
        if an existing file would be lost.
        """
        with os_errors(self.target, "written"):
            put_in_place(self.work)
            if self._own:
                self._forget()
        self.close()

    def close(self) -> None:
        """Close the file, and leave it on the disk."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1
        if self._own:
            self.work.close()

    def abandon(self) -> None:
        """Close the file after an error. A file that this run began is removed, and a file that it resumed stays on the
        disk.
        """
        if not self.resumed:
            with contextlib.suppress(OSError):
                self.work.discard()
        self.close()


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
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
