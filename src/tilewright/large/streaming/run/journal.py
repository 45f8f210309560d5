"""Reads and writes the journal of a product: a file that lists the finished tiles of the result, so that a run that was
killed can be resumed.

A journal is a text file of lines of JSON: a first line that describes the product, and one line for each finished tile.
The last field of each line is the BLAKE2 digest of the line and of the previous line's digest. With these digests, the
reader notices if a line was changed, moved, left out, repeated or taken from another journal. Only the last line may be
invalid, because a crash may have interrupted the writing of it; an invalid last line is ignored. A line is parsed only
if its digest is right. The contents of a line with the right digest are still checked against the product, because
anyone can compute a digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ....errors import FileError, ResumeError
from ...files.checks import os_errors
from ..plan.cuts import Room, may_be_cut
from ..plan.grid import Grid, Tile

_SCHEMA = 2
#: How every journal begins, and how those of the first schema did.
_BEGINS = b'{"journal": "multiply", "schema": '
_BEGAN = b'{"schema": 1, "facts": '
#: Bytes of a line, at most: a longer one is not read.
_LONGEST = 1 << 16
#: Numbers of a header must be smaller.
_MOST = 1 << 62

_ANEW = "multiply without resume to begin anew"


@dataclass(frozen=True)
class BegunProduct:
    """A product that an earlier run has begun.

    ``facts`` is a dictionary of the facts about the product that must not change, such as the fingerprints of the
    operands. The tiles ``finished`` are complete in the unfinished file, whose inode is ``inode``. ``end`` is the
    offset in the journal after the last valid line, and ``digest`` is the digest of that line.
    """

    grid: Grid
    facts: Mapping[str, str]
    inode: int
    finished: frozenset[Tile]
    end: int
    digest: bytes
    #: Whether an existing file is to be overwritten: what was begun so needs no new permission.
    overwrite: bool = False
    #: Whether only tiles on and below the diagonal are computed.
    triangle: bool = False

    @property
    def complete(self) -> bool:
        """Whether every tile is finished."""
        down, across = self.grid.tiles
        return len(self.finished) == (down * (down + 1) // 2 if self.triangle else down * across)

    def check(
        self,
        facts: Mapping[str, str],
        shape: tuple[int, int, int],
        room: Room,
        where: Path,
        *,
        triangle: bool = False,
    ) -> None:
        """Raise ResumeError unless ``facts`` are the facts in the journal, and the journal's grid is possible for a
        product of this ``shape``.
        """
        changed = [name for name, fact in facts.items() if self.facts.get(name) != fact]
        if changed:
            raise ResumeError(
                f"{where}: {' and '.join(changed)} changed since this product was begun; multiply without resume to begin "
                "anew, or restore what it was begun with"
            )
        grid = self.grid
        is_this = self.facts.keys() == facts.keys() and (grid.m, grid.n, grid.k) == shape and self.triangle == triangle
        if not is_this or not may_be_cut(grid, room) or (triangle and grid.bm != grid.bn):
            raise ResumeError(f"{where} is the journal of another product, or was changed; {_ANEW}")


class Journal:
    """The journal file, which says what is multiplied and how C is cut, and then lists each tile that is on the disk.

    The line of a tile is written after its data, so the tiles in a journal are complete. A journal is locked while it is
    open. An empty journal is removed when it is closed.
    """

    def __init__(self, path: Path, directory: int | None = None) -> None:
        """``directory`` is a descriptor of the directory of ``path``, where that is open. No link is followed.

        Raises FileError where it cannot be written, or another process has locked it.
        """
        self.path, self._directory = path, directory
        #: How many tiles are in it.
        self.tiles = 0
        self._digest = b""
        with os_errors(path, "written"):
            self._file = _open_alone(path, directory)

    def begin(
        self, grid: Grid, facts: Mapping[str, str], inode: int, *, overwrite: bool = False, triangle: bool = False
    ) -> None:
        """Remove everything that the journal contains, and write its first line."""
        self.clear()
        self._digest = b""
        run = {"journal": "multiply", "schema": _SCHEMA, "run": secrets.token_hex(8)}
        more = {"overwrite": overwrite, "triangle": triangle}
        self._append({**run, "facts": dict(facts), "grid": asdict(grid), "inode": inode, **more})

    def take_up(self, begun: BegunProduct) -> None:
        """Continue the journal after the lines that ``read_journal`` has read from it. An incomplete last line is
        removed.
        """
        with os_errors(self.path, "written"):
            os.ftruncate(self._file, begun.end)
        self._digest, self.tiles = begun.digest, len(begun.finished)

    def add(self, tile: Tile) -> None:
        """Write a line for a tile whose data are on the disk. ``begin`` or ``take_up`` must have been called before."""
        self._append({"tile": list(tile)})
        self.tiles += 1

    def clear(self) -> None:
        """Remove all lines of the journal, before the unfinished file is begun again."""
        with os_errors(self.path, "written"):
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
        self.tiles = 0

    def remove(self) -> None:
        """Remove the journal, because the result is complete and its file has the final name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name_in(self._directory, self.path), dir_fd=self._directory)

    def close(self) -> None:
        """Close the file of the journal, and remove the file if it is empty."""
        status = os.fstat(self._file)
        if status.st_nlink and not status.st_size:  # without a link, the name may be another process's by now
            self.remove()
        os.close(self._file)

    def _append(self, facts: Mapping[str, Any]) -> None:
        line, digest = _signed(facts, self._digest)
        with os_errors(self.path, "written"):
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        self._digest = digest


# ---- lines -----------------------------------------------------------------------------------------------------------


def _signed(facts: Mapping[str, Any], before: bytes) -> tuple[bytes, bytes]:
    """A line that follows one with the digest ``before``, and its own digest."""
    text = json.dumps(facts).encode()[:-1]
    digest = _digest(text, before)
    return b'%s, "digest": "%s"}\n' % (text, digest.hex().encode()), digest


def _checked(line: bytes, before: bytes) -> tuple[Any, bytes] | None:
    """The facts of a line, and its digest; None for one that was not written after a line with the digest ``before``."""
    text, _, signature = line.rpartition(b', "digest": "')
    digest = _digest(text, before)
    if signature != digest.hex().encode() + b'"}\n':
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text + b"}"), digest
    return None


def _digest(text: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(text, key=before, digest_size=16).digest()


def read_journal(path: Path) -> BegunProduct | None:
    """Return the product that an earlier run described in the journal. The result is None if there is no journal, or if
    the journal contains only one incomplete line.

    Raises ResumeError for a file that is not a journal, for a journal that another version of Tilewright wrote, and for
    a journal that was changed.
    """
    with os_errors(path, "read"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without O_NONBLOCK, a pipe would block
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise _no_journal(path)
        with os.fdopen(handle, "rb") as file:
            return _read(file, path)


def _read(file: BinaryIO, path: Path) -> BegunProduct | None:
    _refuse_another(file.read(len(_BEGINS) + 8), path)
    file.seek(0)
    lines = _lines(file, path)
    head = next(lines, None)
    if head is None:
        return None
    product = _product(head.facts)
    if product is None:
        raise _changed(path, 1)
    grid, facts, inode, overwrite, triangle = product
    finished: set[Tile] = set()
    last = head
    for number, last in enumerate(lines, 2):
        tile = _tile(last.facts, grid)
        if tile is None or tile in finished or (triangle and tile.i < tile.j):
            raise _changed(path, number)
        finished.add(tile)
    return BegunProduct(grid, facts, inode, frozenset(finished), last.end, last.digest, overwrite, triangle)


def _refuse_another(begins: bytes, path: Path) -> None:
    """Raise ResumeError unless the file begins as a journal of this version; a torn first line may end early, or in
    zeros."""
    schema = re.match(rb"(\d{1,7}),", begins[len(_BEGINS) :]) if begins.startswith(_BEGINS) else None
    if begins.lstrip(b"\n").startswith(_BEGAN) or (schema and int(schema[1]) != _SCHEMA):
        raise ResumeError(f"{path} was written by another version of Tilewright: {_ANEW}")
    if not (begins.startswith(_BEGINS) or _BEGINS.startswith(begins.rstrip(b"\0"))):
        raise _no_journal(path)


def _no_journal(path: Path) -> ResumeError:
    return ResumeError(f"{path} is no journal of Tilewright: move it away, or choose another name for the result")


class _Line(NamedTuple):
    """The facts in a line, the offset in the file after the line, and the digest of the line."""

    facts: Any
    end: int
    digest: bytes


def _lines(file: BinaryIO, path: Path) -> Iterator[_Line]:
    """Each valid line. Raises ResumeError where a wrong line is not the last one."""
    end, digest, number = 0, b"", 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        checked = _checked(line, digest)
        if checked is None:
            if len(line) > _LONGEST or file.read(1):
                raise _changed(path, number)
            return
        facts, digest = checked
        end += len(line)
        yield _Line(facts, end, digest)


def _changed(path: Path, number: int) -> ResumeError:
    return ResumeError(f"{path} was changed or damaged at line {number}: {_ANEW}")


# ---- what lines say --------------------------------------------------------------------------------------------------


def _product(line: Any) -> tuple[Grid, dict[str, str], int, bool, bool] | None:
    match line:
        case {"schema": 2, "facts": dict(facts), "grid": dict(cut), "inode": int(inode)}:
            names = [field.name for field in fields(Grid)]
            whole = list(cut) == names and all(type(value) is int and 0 <= value < _MOST for value in cut.values())
            texts = all(isinstance(fact, str) for fact in facts.values())
            if whole and texts and min(cut["bm"], cut["bn"], cut["bk"], cut["kc"]) > 0:
                options = (
                    line.get("overwrite") is True,
                    line.get("triangle") is True,
                )  # earlier journals do not have them
                return Grid(**cut), facts, inode, *options
    return None


def _tile(line: Any, grid: Grid) -> Tile | None:
    match line:
        case {"tile": [int(i), int(j)]} if 0 <= i < grid.tiles[0] and 0 <= j < grid.tiles[1]:
            return Tile(i, j)
    return None


def _name_in(directory: int | None, path: Path) -> Path | str:
    """``path`` as a system call takes it together with a descriptor of its directory, if there is one."""
    return path if directory is None else path.name


def _open_alone(path: Path, directory: int | None) -> int:
    """Open for appending, created where it does not exist, and locked. If another process removed it before the lock, it is
    opened again."""
    how = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        file = os.open(_name_in(directory, path), how, 0o666, dir_fd=directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise FileError(f"{path} belongs to another process that writes this result: wait for it") from None
        except OSError:  # a file system without locks
            return file
        if os.fstat(file).st_nlink:
            return file
        os.close(file)
