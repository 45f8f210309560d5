"""The finished matrix takes its name, and what had that name goes: at every moment one of them stands there, complete.

``data`` in the work directory is renamed to ``swap.INODE``, with its own inode, and exchanged with the old result by one
system call. So ``swap.INODE`` with that inode is the new matrix, and with another inode the old one. The old one is checked
only now, when no other process can change it: it is removed, or exchanged back. Where the system cannot exchange two names,
a file is replaced by a rename, and a directory is first renamed to ``old``. ``settle`` finishes a swap that was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from ..errors import FileError
from .output import Output

#: The unfinished matrix in a work directory.
DATA = "data"
_NEW, _OLD, _TRASH = "swap.", "old", "trash."
#: A pattern of the names that a swap may leave in a work directory.
LEFTOVERS = rf"{re.escape(_NEW)}\d+|{_OLD}|{re.escape(_TRASH)}\d+"
#: Flags of renameat2(2): refuse a name that is taken; exchange the two.
_NOREPLACE, _EXCHANGE = 1, 2
#: What a system or file system says that has no such call.
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV)

#: A name in a directory that is open as that descriptor.
Place = tuple[int, str]


class OpenDirectories:
    """The work directory ``path`` of ``output`` as the descriptor ``fd``, and the directory of ``target`` as ``parent``."""

    fd = parent = -1

    def __init__(self, output: Output) -> None:
        self.output = output
        self.path = self.target = output.target

    def inside(self, name: str) -> Path:
        """A path by which a library finds ``name`` in this very directory, even where the directory's own name changes."""
        descriptors = Path("/proc/self/fd")
        return (descriptors / str(self.fd) if descriptors.exists() else self.path) / name


def put(work: OpenDirectories) -> None:
    """Let the matrix of the work directory, complete and on the disk, appear as the result.

    Raises FileError where what has that name must not be lost; the matrix stays where it was then.
    """
    work.output.check(kept=work.path)
    found = inode(work.fd, DATA)
    if found is None:
        raise FileError(f"{work.path / DATA} was removed while {work.target} was computed: multiply again")
    new = f"{_NEW}{found}"
    _rename((work.fd, DATA), (work.fd, new))
    _sync(work)
    try:
        while not (_appear(work, new) or _exchange(work, new)):
            pass  # it was removed or made by another process meanwhile
    except FileError:
        settle(work)  # which gives it back its name
        raise


def settle(work: OpenDirectories) -> None:
    """Finish or undo a swap that was killed, and remove what it left.

    Raises FileError where that would lose something, or where what has the name again must not be replaced.
    """
    names = names_in(work.fd)
    new = next((name for name in names if name.startswith(_NEW)), None)
    if _OLD in names:
        if inode(*_target(work)) is None:  # killed between the two renames
            _rename((work.fd, _OLD), _target(work))
            work.output.check()
        elif new is None:  # killed after them
            discard(work.fd, _OLD)
        else:
            raise _unsettled(work, _OLD)
    if new is not None and DATA in names:
        raise _unsettled(work, new)
    if new is not None and is_new(work.fd, new):
        _rename((work.fd, new), (work.fd, DATA))
    elif new is not None:
        _let_go(work, new)
    for name in names:
        if name.startswith(_TRASH):
            _remove(work.fd, name)


def discard(directory: int, name: str) -> None:
    """Remove a file or a tree, of which no half keeps its name; nothing where there is none."""
    found = inode(directory, name)
    if found is None:
        return
    trash = f"{_TRASH}{found}"
    _rename((directory, name), (directory, trash))
    _remove(directory, trash)


def names_in(directory: int) -> list[str]:
    """The names in a directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def inode(directory: int, name: str) -> int | None:
    """The inode of what has that name, a link itself included; None where nothing has."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
    return None


def is_new(directory: int, name: str) -> bool:
    """Whether that is a new matrix that does not have its name yet, and not the old one."""
    return name.startswith(_NEW) and inode(directory, name) == int(name.removeprefix(_NEW))


def _target(work: OpenDirectories) -> Place:
    return work.parent, work.target.name


def _appear(work: OpenDirectories, new: str) -> bool:
    """Where nothing has the name; False where something has."""
    try:
        if not _renameat2((work.fd, new), _target(work), _NOREPLACE):
            if inode(*_target(work)) is not None:
                return False
            _rename((work.fd, new), _target(work))
    except FileExistsError:
        return False
    _sync(work)
    return True


def _exchange(work: OpenDirectories, new: str) -> bool:
    """Where something has the name; False where nothing has."""
    try:
        if not _renameat2((work.fd, new), _target(work), _EXCHANGE):
            return _step_aside(work, new)
    except FileNotFoundError:
        return False
    _sync(work)
    _let_go(work, new)
    return True


def _let_go(work: OpenDirectories, name: str) -> None:
    """Remove what had the name before; or exchange it back, where it holds what would be lost."""
    refused = work.output.refusal(work.inside(name), kept=work.path)
    if refused is None:
        discard(work.fd, name)
        return
    came = inode(*_target(work)) == int(name.removeprefix(_NEW))
    if not (came and _renameat2((work.fd, name), _target(work), _EXCHANGE)):
        raise _unsettled(work, name)
    _rename((work.fd, name), (work.fd, DATA))
    _sync(work)
    raise refused


def _step_aside(work: OpenDirectories, new: str) -> bool:
    """The same where two names cannot be exchanged: a directory is not there for a moment."""
    if not stat.S_ISDIR(os.stat(work.target.name, dir_fd=work.parent, follow_symlinks=False).st_mode):
        work.output.check(kept=work.path)
        _rename((work.fd, new), _target(work))
        _sync(work)
        return True
    _rename(_target(work), (work.fd, _OLD))
    refused = work.output.refusal(work.inside(_OLD), kept=work.path)
    try:
        if refused is not None:
            raise refused
        _sync(work)
        _rename((work.fd, new), _target(work))
    except OSError:
        _rename((work.fd, _OLD), _target(work))
        raise
    _sync(work)
    discard(work.fd, _OLD)
    return True


def _unsettled(work: OpenDirectories, name: str) -> FileError:
    return FileError(
        f"{work.path / name} is what {work.target} was before, and {work.target} has changed since: move one of them away"
    )


def _remove(directory: int, name: str) -> None:
    """What cannot be removed stays, and the next run tries again."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def _rename(source: Place, target: Place) -> None:
    os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])


def _sync(work: OpenDirectories) -> None:
    """Return when the names in both directories would outlast a power failure."""
    for directory in (work.parent, work.fd):
        try:
            os.fsync(directory)
        except OSError as error:
            if error.errno not in _UNKNOWN:  # some file systems cannot flush a directory
                raise


def _renameat2(source: Place, target: Place, how: int) -> bool:
    """One atomic rename with that flag; False where there is no such call. Raises OSError."""
    call = _call()
    if call is None:
        return False
    sys.audit("os.rename", source[1], target[1], source[0], target[0])  # as os.rename does
    if not call(source[0], os.fsencode(source[1]), target[0], os.fsencode(target[1]), how):
        return True
    error = ctypes.get_errno()
    if error in _UNKNOWN:
        return False
    raise OSError(error, os.strerror(error))


@functools.cache
def _call() -> Any:
    """The call of Linux's C libraries; None elsewhere."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call
