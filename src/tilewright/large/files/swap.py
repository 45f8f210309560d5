"""Replaces an older result by the finished matrix. If the process is killed at any moment, neither the older result nor
the matrix is lost.

The finished matrix gets the name of the result by one system call, which fails if a file of this name exists. If the
existing result may be overwritten, another system call exchanges the names of the two files, and the old file is
removed. With these two system calls, the name of the result refers to a complete file at every moment. If the system
cannot exchange two names, an old file is replaced by one rename. An old directory is first renamed to ``old``; until
the new directory is renamed too, the name of the result refers to nothing.

An existing empty file or directory may be replaced without ``overwrite``. If the caller did not set ``overwrite``, the
existing entry is renamed to ``old``, and checked after this rename to be empty, because no other process can then find
the entry by its former name and write to it.

If a process was killed during the replacement, ``settle_swap`` completes or undoes the replacement. The names in the
work directory show how far the replacement came:

- ``data``: the new matrix, which is unfinished, or finished and not renamed yet.
- ``swap.N``, if N is the inode of this entry: the new matrix, which does not have the name of the result yet.
- ``swap.N``, if N is not the inode of this entry: the old result, after the exchange.
- ``old``: the old result, if the process was killed between two renames.
- ``trash.N``: a file or directory that is being removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from ...errors import FileError
from .output import Output

#: The unfinished matrix in a work directory.
DATA = "data"
_NEW, _OLD, _TRASH = "swap.", "old", "trash."
#: A pattern of the names that a swap may leave in a work directory.
LEFTOVERS = rf"{re.escape(_NEW)}\d+|{_OLD}|{re.escape(_TRASH)}\d+"
#: Flags of renameat2(2): fail if the new name is taken; exchange the two names.
_NOREPLACE, _EXCHANGE = 1, 2
#: Errors of a system or file system that does not support a call.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV)

#: The descriptor of a directory, and a name in it.
Place = tuple[int, str]


class OpenDirectories:
    """The open work directory of ``output``, with the descriptor ``fd``, and the open directory that contains the
    target, with the descriptor ``parent``.
    """

    fd = parent = -1

    def __init__(self, output: Output) -> None:
        self.output = output
        self.path = self.target = output.target

    def entry_path(self, name: str) -> Path:
        """Return a path to ``name`` that leads through the descriptor of the work directory, and so remains valid if the
        directory is renamed.
        """
        return path_through_descriptor(self.fd, self.path) / name


def path_through_descriptor(directory: int, path: Path) -> Path:
    """Return a path that leads through the descriptor of an open directory, or ``path`` if the system has no such paths."""
    descriptors = Path("/proc/self/fd")
    return descriptors / str(directory) if descriptors.exists() else path


def check_not_taken_over(unfinished: Path, inode: int) -> None:
    """Raise FileError if the process that began the matrix at ``unfinished`` has finished or removed the matrix.

    A process that writes parts of another process's matrix calls this function. Without this check, a process that was
    paused for a while could write into the finished result.
    """
    with contextlib.suppress(OSError):
        if unfinished.stat().st_ino == inode:
            return
    raise FileError(f"{unfinished} was finished or removed by the process that began it")


def put_in_place(work: OpenDirectories) -> None:
    """Give the finished matrix in the work directory the name of the result.

    Raises FileError if an existing file with the name of the result must not be lost. After such a FileError the
    finished matrix stays in the work directory.
    """
    work.output.check(kept_in=work.path)
    new_inode = inode_of(work.fd, DATA)
    if new_inode is None:
        raise FileError(f"{work.path / DATA} was removed while {work.target} was computed: multiply again")
    new = f"{_NEW}{new_inode}"
    _rename((work.fd, DATA), (work.fd, new))
    _sync(work)
    try:
        while not (_rename_to_free_name(work, new) or _exchange_with_target(work, new)):
            pass  # another process removed or made the target meanwhile
    except FileError:
        settle_swap(work)  # renames the matrix back to DATA
        raise


def settle_swap(work: OpenDirectories) -> None:
    """Complete or undo a replacement whose process was killed, and remove the files that the process left behind.

    Raises FileError if a file would be lost, or if the target must not be replaced.
    """
    names = names_in(work.fd)
    new = next((name for name in names if name.startswith(_NEW)), None)
    if _OLD in names:
        if inode_of(*_target(work)) is None:  # killed between the two renames
            _rename((work.fd, _OLD), _target(work))
            work.output.check()
        elif new is None:  # killed after them
            discard(work.fd, _OLD)
        else:
            raise _target_changed_error(work, _OLD)
    if new is not None and DATA in names:
        raise FileError(
            f"{work.path} holds both {DATA} and {new} after an interrupted replacement of {work.target}: move one of the "
            "two away"
        )
    if new is not None and is_new(work.fd, new):
        _rename((work.fd, new), (work.fd, DATA))
    elif new is not None:
        _remove_old(work, new)
    for name in names:
        if name.startswith(_TRASH):
            _remove(work.fd, name)


def discard(directory: int, name: str) -> None:
    """Remove a file or a directory tree, if it exists. The entry is renamed first, so that a partly removed tree never
    has the name ``name``.
    """
    entry_inode = inode_of(directory, name)
    if entry_inode is None:
        return
    trash = f"{_TRASH}{entry_inode}"
    _rename((directory, name), (directory, trash))
    _remove(directory, trash)


def names_in(directory: int) -> list[str]:
    """Return the names in a directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def inode_of(directory: int, name: str) -> int | None:
    """Return the inode of a directory entry, or None if there is no such entry. For a link, the inode of the link
    itself is returned.
    """
    with contextlib.suppress(FileNotFoundError):
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
    return None


def is_new(directory: int, name: str) -> bool:
    """Whether ``name`` is the new matrix before the exchange, and not the old result after the exchange."""
    return name.startswith(_NEW) and inode_of(directory, name) == int(name.removeprefix(_NEW))


def _target(work: OpenDirectories) -> Place:
    return work.parent, work.target.name


def _rename_to_free_name(work: OpenDirectories, new: str) -> bool:
    """Give the new matrix the name of the target; False if that name is taken."""
    try:
        if not _renameat2((work.fd, new), _target(work), _NOREPLACE):
            if inode_of(*_target(work)) is not None:
                return False
            _rename((work.fd, new), _target(work))
    except FileExistsError:
        return False
    _sync(work)
    return True


def _exchange_with_target(work: OpenDirectories, new: str) -> bool:
    """Exchange the new matrix and the target, and remove the old one; False if there is no target."""
    try:
        if not work.output.overwrite or not _renameat2((work.fd, new), _target(work), _EXCHANGE):
            return _replace_by_renames(work, new)
    except FileNotFoundError:
        return False
    _sync(work)
    _remove_old(work, new)
    return True


def _remove_old(work: OpenDirectories, name: str) -> None:
    """Remove the old result, which the exchange left as ``name``. If it is a directory instead of a file, or the reverse,
    exchange the two back and raise. ``overwrite`` is assumed: only with it is anything exchanged."""
    refused = dataclasses.replace(work.output, overwrite=True).refusal(work.entry_path(name), kept_in=work.path)
    if refused is None:
        discard(work.fd, name)
        return
    target_is_new = inode_of(*_target(work)) == int(name.removeprefix(_NEW))
    if not (target_is_new and _renameat2((work.fd, name), _target(work), _EXCHANGE)):
        raise _target_changed_error(work, name)
    _rename((work.fd, name), (work.fd, DATA))
    _sync(work)
    raise refused


def _replace_by_renames(work: OpenDirectories, new: str) -> bool:
    """Replace the target without an exchange of names: a file that may be overwritten by one rename, anything else by two
    renames, between which the target does not exist."""
    is_directory = stat.S_ISDIR(os.stat(work.target.name, dir_fd=work.parent, follow_symlinks=False).st_mode)
    if work.output.overwrite and not is_directory:
        work.output.check(kept_in=work.path)
        _rename((work.fd, new), _target(work))
        _sync(work)
        return True
    _rename(_target(work), (work.fd, _OLD))
    refused = work.output.refusal(work.entry_path(_OLD), kept_in=work.path)
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


def _target_changed_error(work: OpenDirectories, name: str) -> FileError:
    """The error for an old result, kept as ``name``, whose place was taken by something else after the swap was killed."""
    return FileError(
        f"{work.path / name} is the earlier {work.target}, kept from an interrupted replacement, and {work.target} has "
        "changed since: move one of the two away"
    )


def _remove(directory: int, name: str) -> None:
    """Remove a file or a tree; what cannot be removed stays, and the next run tries again."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def _rename(source: Place, target: Place) -> None:
    os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])


def _sync(work: OpenDirectories) -> None:
    """Return when the names in both directories would survive a power failure."""
    for directory in (work.parent, work.fd):
        try:
            os.fsync(directory)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:  # some file systems cannot flush a directory
                raise


def _renameat2(source: Place, target: Place, how: int) -> bool:
    """One atomic rename with the flag ``how``; False where the system has no such call. Raises OSError."""
    call = _renameat2_of_libc()
    if call is None:
        return False
    sys.audit("os.rename", source[1], target[1], source[0], target[0])  # as os.rename does
    if not call(source[0], os.fsencode(source[1]), target[0], os.fsencode(target[1]), how):
        return True
    error = ctypes.get_errno()
    if error in _UNSUPPORTED:
        return False
    raise OSError(error, os.strerror(error))


@functools.cache  # looked up once
def _renameat2_of_libc() -> Any:
    """The function of Linux's C libraries; None elsewhere."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call
