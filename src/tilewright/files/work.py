"""``NAME.tilewright`` beside a result's file: a directory of ours for what is unfinished, open, recognised and locked.

Nothing in it is reached through a link: the directory is opened by its name in the directory of the result, without
following links, and everything in it through that descriptor. A directory that others filled is refused, never emptied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat

from ..errors import FileError
from . import swap
from .checks import explained
from .output import Output
from .swap import DATA, OpenDirectories

SUFFIX = ".tilewright"
#: What a work directory holds beside the unfinished matrix and what a swap leaves: a file that says what it is, a journal.
ABOUT, JOURNAL = "about.txt", "journal"
_OURS = re.compile(rf"{re.escape(ABOUT)}|{JOURNAL}|{DATA}|{swap.LEFTOVERS}")
#: The first line of ``ABOUT``. Its number counts the layouts of such directories.
_MAGIC = b"Tilewright work directory 1\n"
#: How often a directory is made that other processes remove meanwhile.
_TRIES = 1000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_IN_IT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WorkDirectory(OpenDirectories):
    """The work directory of a result, made where there is none; while it is open, no other process can open it.

    ``fd`` and ``parent`` are descriptors of it and of the directory where it lies. Opening it settles a swap that was killed
    (see ``swap``); closing it removes it, unless it holds something to go on with. With ``only_look`` nothing is made,
    locked or changed, and ``fd`` is -1 where there is no such directory.

    Raises FileError where it cannot be made, belongs to another process or user, or is not ours by what it holds.
    """

    def __init__(self, output: Output, *, only_look: bool = False) -> None:
        super().__init__(output)
        self._about, self._is_ours = -1, False
        try:
            with explained(self.target, "written"):
                self.parent = os.open(self.target.parent, _DIRECTORY)
                self.path = self.target.with_name(_work_name(self.target.name, self.parent))
            if only_look:
                self._look()
            else:
                self._open()
                with explained(self.target, "written"):
                    swap.settle(self)
        except BaseException:
            self.close()
            raise

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """A descriptor of a file or directory in it; with O_CREAT it must be new. A link is refused."""
        exclusive = os.O_EXCL if flags & os.O_CREAT else 0
        return os.open(name, flags | exclusive | _IN_IT, mode, dir_fd=self.fd)

    def inode(self, name: str) -> int | None:
        """The inode of what has that name in it, and None where nothing has."""
        return None if self.fd < 0 else swap.inode(self.fd, name)

    @property
    def unfinished(self) -> int | None:
        """The inode of the unfinished matrix, also where a swap was killed before it; None where there is none."""
        names = [] if self.fd < 0 else swap.names_in(self.fd)
        return next((self.inode(name) for name in names if name == DATA or swap.is_new(self.fd, name)), None)

    def discard(self) -> None:
        """Remove the unfinished matrix."""
        with explained(self.path, "emptied"):
            swap.discard(self.fd, DATA)

    def close(self) -> None:
        """Close it, and remove it unless it holds an unfinished matrix, a journal or the remains of a swap."""
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(OSError):
                if swap.names_in(self.fd) == [ABOUT]:
                    os.unlink(ABOUT, dir_fd=self.fd)
                    self._release()  # first: on NFS a file that is open keeps its directory
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
        """Made, recognised and locked; again where another process removed it meanwhile."""
        with explained(self.path, "made"):
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
        with explained(self.path, "read"), contextlib.suppress(FileNotFoundError):
            self._enter()
            with contextlib.suppress(FileNotFoundError):
                about = os.open(ABOUT, os.O_RDONLY | _IN_IT, dir_fd=self.fd)
                try:
                    self._refuse_other(about)
                finally:
                    os.close(about)

    def _enter(self) -> None:
        """Open the directory and refuse one that is not ours."""
        try:
            self.fd = os.open(self.path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._foreign("it is no directory") from None
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
                raise self._foreign(f"{name} in it is a link or no file")
        if names and ABOUT not in names:
            raise self._foreign(f"it holds no {ABOUT}")

    def _lock(self) -> bool:
        """Open and lock ``ABOUT``, and write it where it is new or torn; False where it was removed meanwhile."""
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
            os.pwrite(self._about, _MAGIC + _words(self.target.name), 0)
            os.fsync(self._about)
        return True

    def _refuse_other(self, about: int) -> None:
        """A file that a crash has torn is as good as new where nothing else is there."""
        found = os.pread(about, len(_MAGIC), 0)
        torn = _MAGIC.startswith(found) and len(found) < len(_MAGIC) and swap.names_in(self.fd) == [ABOUT]
        if found != _MAGIC and not torn:
            raise self._foreign(f"its {ABOUT} was not written by this version")

    def _foreign(self, why: str) -> FileError:
        return FileError(
            f"{self.path} is not a work directory of Tilewright's, as {why}: move it or choose another name"
        )


def _words(name: str) -> bytes:
    return (
        f"This directory holds what is unfinished of {name}.\n"
        "The same command with --resume goes on with it. Remove the directory to give that up.\n"
    ).encode(errors="backslashreplace")


def _work_name(name: str, parent: int) -> str:
    """``name`` and our suffix; where that is too long a name, its beginning and a hash of all of it."""
    longest = os.fpathconf(parent, "PC_NAME_MAX")
    raw = os.fsencode(name)
    if len(raw) + len(SUFFIX) <= longest:
        return name + SUFFIX
    ending = f"-{hashlib.sha256(raw).hexdigest()[:16]}{SUFFIX}"
    return raw[: longest - len(ending)].decode(errors="ignore") + ending
