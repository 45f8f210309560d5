"""Which tiles of a result are finished, on disk beside it, so that a run that was killed can be taken up again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError, ResumeError
from ..files.checks import explained
from .grid import Grid, Tile

_SCHEMA = 1


@dataclass(frozen=True)
class Begun:
    """A product that was begun: ``facts`` are those that must not change, by name, and ``inode`` is that of the unfinished
    file, whose tiles ``finished`` are whole."""

    grid: Grid
    facts: Mapping[str, str]
    inode: int
    finished: frozenset[Tile]

    @property
    def complete(self) -> bool:
        down, across = self.grid.tiles
        return len(self.finished) == down * across

    def check(self, facts: Mapping[str, str], where: Path) -> None:
        """Raise ResumeError unless all the facts are those of then."""
        changed = [name for name, fact in facts.items() if self.facts.get(name) != fact]
        if changed:
            raise ResumeError(
                f"{where}: {' and '.join(changed)} changed since this product was begun; multiply without resume to begin "
                "anew, or put back what it was begun with"
            )


class Journal:
    """A file of JSON lines: what is multiplied and how it is cut, then each tile that is on disk.

    A line is written when the tile's data are, so a tile that is named here is whole; a line that a crash has torn counts
    as not written. While it is open no other process has it; a journal without a line is removed when it is closed.
    """

    def __init__(self, path: Path, directory: int | None = None) -> None:
        """``directory`` is a descriptor of the directory of ``path``, where that is open. No link is followed.

        Raises FileError where it cannot be written, or another process has it.
        """
        self.path, self._directory = path, directory
        with explained(path, "written"):
            self._file = _open_alone(path, directory)

    def begin(self, grid: Grid, facts: Mapping[str, str], inode: int) -> None:
        """In place of whatever was there."""
        self.clear()
        self._append({"schema": _SCHEMA, "facts": dict(facts), "grid": asdict(grid), "inode": inode})

    def add(self, tile: Tile) -> None:
        """A tile whose data are on disk."""
        self._append({"tile": list(tile)})

    def clear(self) -> None:
        """Forget every tile, before the file that has them is begun anew."""
        with explained(self.path, "written"):
            os.ftruncate(self._file, 0)
            os.fsync(self._file)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_in(self._directory, self.path), dir_fd=self._directory)

    def close(self) -> None:
        if not os.fstat(self._file).st_size:
            self.remove()
        os.close(self._file)

    def _append(self, line: Mapping[str, Any]) -> None:
        with explained(self.path, "written"):
            data = (
                b"\n" + json.dumps(line).encode() + b"\n"
            )  # a line of its own, whatever a crash left of the one before
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)


def read_journal(path: Path) -> Begun | None:
    """What an earlier run wrote; None where there is no journal, or none that says anything.

    Raises ResumeError for one that another version wrote, whose tiles cannot be told.
    """
    lines = _lines(path)
    head = next(lines, None)
    if head is None or "grid" not in head:
        return None
    if head.get("schema") != _SCHEMA:
        raise ResumeError(f"{path} was written by another version of Tilewright: multiply without resume to begin anew")
    try:
        grid, facts, inode = Grid(**head["grid"]), dict(head["facts"]), int(head["inode"])
    except (TypeError, ValueError, KeyError):
        return None
    finished = frozenset(tile for line in lines if (tile := _tile(line, grid)))
    return Begun(grid, facts, inode, finished)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole."""
    with explained(path, "read"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(line), dict):
                yield found


def _tile(line: Mapping[str, Any], grid: Grid) -> Tile | None:
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
