"""``NAME.tilewright``, next to the file of a result: the directory of the unfinished result, opened, recognised and locked.

Nothing in it is reached through a link: the directory is opened by its name in the directory of the result, without
following links, and everything in it through that descriptor. A directory that holds other files is refused, never emptied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat

from ...errors import FileError
from . import swap
from .checks import os_errors
from .output import Output
from .swap import DATA, OpenDirectories

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
    """The work directory of a result, made where there is none; while it is open, no other process can open it.

    ``fd`` and ``parent`` are descriptors of it and of the directory where it lies. Opening it settles a swap that was killed
    (see ``swap``); closing it removes it, unless it holds something to resume. With ``only_look`` nothing is made, locked
    or changed, and ``fd`` is -1 where there is no such directory.

    Raises FileError where it cannot be made, belongs to another process or user, or holds what Tilewright did not make.
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
        """A descriptor of a file or directory in it; with O_CREAT it must be new. A link is refused."""
        exclusive = os.O_EXCL if flags & os.O_CREAT else 0
        return os.open(name, flags | exclusive | _IN_IT, mode, dir_fd=self.fd)

    def inode(self, name: str) -> int | None:
        """The inode of the entry ``name`` in it; None where there is none."""
        return None if self.fd < 0 else swap.inode(self.fd, name)

    @property
    def unfinished(self) -> int | None:
        """The inode of the unfinished matrix, also if a swap was killed before the exchange; None if there is none."""
        names = [] if self.fd < 0 else swap.names_in(self.fd)
        return next((self.inode(name) for name in names if name == DATA or swap.is_new(self.fd, name)), None)

    def discard(self) -> None:
        """Remove the unfinished matrix."""
        with os_errors(self.path, "emptied"):
            swap.discard(self.fd, DATA)

    def close(self) -> None:
        """Close it, and remove it unless it holds an unfinished matrix, a journal or the remains of a swap."""
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
