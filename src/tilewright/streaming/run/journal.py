"""Which tiles of a result are finished, on disk beside it, so that a run that was killed can be taken up again.

A journal is text, a line of JSON for each fact. The last field of a line is the BLAKE2 digest of the line and of the digest
before it: so no line can be changed, moved, left out, repeated or taken from another journal without notice. Only the last
line may be wrong: a crash has torn it, and it counts as not written. A line is parsed only if its digest is right. What it
says is still checked against the product, because anyone can compute a digest.
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

from ...errors import FileError, ResumeError
from ...files.checks import explained
from ..plan.cuts import Room, may_be_cut
from ..plan.grid import Grid, Tile

_SCHEMA = 2
#: How every journal begins, and how those of the first schema did.
_BEGINS = b'{"journal": "multiply", "schema": '
_BEGAN = b'{"schema": 1, "facts": '
#: Bytes of a line, at most: a longer one is not read.
_LONGEST = 1 << 16
#: Numbers of a header are below it.
_MOST = 1 << 62

_ANEW = "multiply without resume to begin anew"


@dataclass(frozen=True)
class Begun:
    """A product that was begun: ``facts`` are those that must not change, by name, and ``inode`` is that of the unfinished
    file, whose tiles ``finished`` are whole.

    ``end`` is the byte of the journal behind the last line that counts, and ``digest`` that line's.
    """

    grid: Grid
    facts: Mapping[str, str]
    inode: int
    finished: frozenset[Tile]
    end: int
    digest: bytes

    @property
    def complete(self) -> bool:
        """Whether every tile was finished."""
        down, across = self.grid.tiles
        return len(self.finished) == down * across

    def check(self, facts: Mapping[str, str], shape: tuple[int, int, int], room: Room, where: Path) -> None:
        """Raise ResumeError unless all the facts are those of then, and the cut is one of a product of this ``shape``."""
        changed = [name for name, fact in facts.items() if self.facts.get(name) != fact]
        if changed:
            raise ResumeError(
                f"{where}: {' and '.join(changed)} changed since this product was begun; multiply without resume to begin "
                "anew, or put back what it was begun with"
            )
        grid = self.grid
        if self.facts.keys() != facts.keys() or (grid.m, grid.n, grid.k) != shape or not may_be_cut(grid, room):
            raise ResumeError(f"{where} is not of this product, or was changed; {_ANEW}")


class Journal:
    """What is multiplied and how it is cut, then each tile that is on disk.

    A line is written when the tile's data are, so a tile that is named here is whole. While it is open no other process has
    it; a journal without a line is removed when it is closed.
    """

    def __init__(self, path: Path, directory: int | None = None) -> None:
        """``directory`` is a descriptor of the directory of ``path``, where that is open. No link is followed.

        Raises FileError where it cannot be written, or another process has it.
        """
        self.path, self._directory = path, directory
        #: How many are named in it.
        self.tiles = 0
        self._digest = b""
        with explained(path, "written"):
            self._file = _open_alone(path, directory)

    def begin(self, grid: Grid, facts: Mapping[str, str], inode: int) -> None:
        """In place of whatever was there."""
        self.clear()
        self._digest = b""
        run = {"journal": "multiply", "schema": _SCHEMA, "run": secrets.token_hex(8)}
        self._append({**run, "facts": dict(facts), "grid": asdict(grid), "inode": inode})

    def take_up(self, begun: Begun) -> None:
        """Go on behind what was read from it; a torn line is cut off."""
        with explained(self.path, "written"):
            os.ftruncate(self._file, begun.end)
        self._digest, self.tiles = begun.digest, len(begun.finished)

    def add(self, tile: Tile) -> None:
        """A tile whose data are on disk; after ``begin`` or ``take_up``."""
        self._append({"tile": list(tile)})
        self.tiles += 1

    def clear(self) -> None:
        """Forget every tile, before the file that has them is begun anew."""
        with explained(self.path, "written"):
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
        self.tiles = 0

    def remove(self) -> None:
        """Removes it: the result has its name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_in(self._directory, self.path), dir_fd=self._directory)

    def close(self) -> None:
        """Closes the file."""
        status = os.fstat(self._file)
        if status.st_nlink and not status.st_size:  # else the name may be another process's by now
            self.remove()
        os.close(self._file)

    def _append(self, facts: Mapping[str, Any]) -> None:
        line, digest = _signed(facts, self._digest)
        with explained(self.path, "written"):
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        self._digest = digest


# ---- lines -----------------------------------------------------------------------------------------------------------


def _signed(facts: Mapping[str, Any], before: bytes) -> tuple[bytes, bytes]:
    """A line behind one with the digest ``before``, and its own digest."""
    text = json.dumps(facts).encode()[:-1]
    digest = _digest(text, before)
    return b'%s, "digest": "%s"}\n' % (text, digest.hex().encode()), digest


def _checked(line: bytes, before: bytes) -> tuple[Any, bytes] | None:
    """The facts of a line, and its digest; None for one that was not written behind a line with the digest ``before``."""
    text, _, told = line.rpartition(b', "digest": "')
    digest = _digest(text, before)
    if told != digest.hex().encode() + b'"}\n':
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text + b"}"), digest
    return None


def _digest(text: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(text, key=before, digest_size=16).digest()


def read_journal(path: Path) -> Begun | None:
    """What an earlier run wrote; None where there is no journal, or nothing but a line that a crash has torn.

    Raises ResumeError for a file that is no journal, one that another version wrote, and one that was changed.
    """
    with explained(path, "read"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # to open a pipe would take forever
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise _no_journal(path)
        with os.fdopen(handle, "rb") as file:
            return _read(file, path)


def _read(file: BinaryIO, path: Path) -> Begun | None:
    _refuse_another(file.read(len(_BEGINS) + 8), path)
    file.seek(0)
    lines = _lines(file, path)
    head = next(lines, None)
    if head is None:
        return None
    product = _product(head.facts)
    if product is None:
        raise _changed(path, 1)
    grid, facts, inode = product
    finished: set[Tile] = set()
    last = head
    for number, last in enumerate(lines, 2):
        tile = _tile(last.facts, grid)
        if tile is None or tile in finished:
            raise _changed(path, number)
        finished.add(tile)
    return Begun(grid, facts, inode, frozenset(finished), last.end, last.digest)


def _refuse_another(begins: bytes, path: Path) -> None:
    """A file that does not begin as a journal of this version does; a torn beginning may end early, or in zeros."""
    schema = re.match(rb"(\d{1,7}),", begins[len(_BEGINS) :]) if begins.startswith(_BEGINS) else None
    if begins.lstrip(b"\n").startswith(_BEGAN) or (schema and int(schema[1]) != _SCHEMA):
        raise ResumeError(f"{path} was written by another version of Tilewright: {_ANEW}")
    if not (begins.startswith(_BEGINS) or _BEGINS.startswith(begins.rstrip(b"\0"))):
        raise _no_journal(path)


def _no_journal(path: Path) -> ResumeError:
    return ResumeError(f"{path} is no journal of Tilewright: move it away, or choose another name for the result")


class _Line(NamedTuple):
    """What a line says, the byte of the file behind it, and its digest."""

    facts: Any
    end: int
    digest: bytes


def _lines(file: BinaryIO, path: Path) -> Iterator[_Line]:
    """Each line that counts. Raises ResumeError where a wrong line is not the last one."""
    end, digest, number = 0, b"", 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        found = _checked(line, digest)
        if found is None:
            if len(line) > _LONGEST or file.read(1):
                raise _changed(path, number)
            return
        facts, digest = found
        end += len(line)
        yield _Line(facts, end, digest)


def _changed(path: Path, number: int) -> ResumeError:
    return ResumeError(f"{path} was changed or damaged at line {number}: {_ANEW}")


# ---- what lines say --------------------------------------------------------------------------------------------------


def _product(line: Any) -> tuple[Grid, dict[str, str], int] | None:
    match line:
        case {"schema": 2, "facts": dict(facts), "grid": dict(cut), "inode": int(inode)}:
            names = [field.name for field in fields(Grid)]
            whole = list(cut) == names and all(type(value) is int and 0 <= value < _MOST for value in cut.values())
            texts = all(isinstance(fact, str) for fact in facts.values())
            if whole and texts and min(cut["bm"], cut["bn"], cut["bk"], cut["kc"]) > 0:
                return Grid(**cut), facts, inode
    return None


def _tile(line: Any, grid: Grid) -> Tile | None:
    match line:
        case {"tile": [int(i), int(j)]} if 0 <= i < grid.tiles[0] and 0 <= j < grid.tiles[1]:
            return Tile(i, j)
    return None


def _in(directory: int | None, path: Path) -> Path | str:
    """How a system call names ``path`` beside a descriptor of its directory."""
    return path if directory is None else path.name


def _open_alone(path: Path, directory: int | None) -> int:
    """Open for appending, made where it was not, and locked; a lock on a journal that was just removed is none."""
    how = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        file = os.open(_in(directory, path), how, 0o666, dir_fd=directory)
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
