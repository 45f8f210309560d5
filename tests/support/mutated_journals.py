"""Journals that were changed, and what ``multiply`` must make of them: the right C, or a refusal in one line.

``changed`` changes bytes, as a broken disk or an editor does. ``forged`` changes what lines say and computes their digests
anew, as an attacker can: every field may then be anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.interrupted import interrupted_after
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.errors import FileError, MemoryLimitError, ResumeError
from tilewright.host.disk import CacheFile
from tilewright.large import multiply as large
from tilewright.large.streaming.places.places import Placement
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Tile
from tilewright.large.streaming.run import job as job_module
from tilewright.large.streaming.run.journal import _signed, read_journal

#: 3×3 tiles of 256×256 at most, k in two steps.
SIDE, ROOM = 600, Room(1_500_000, kc=300)
#: A refusal, or a product of this size, takes no longer than this.
LIMIT_S = 2.0

NUMBERS = [0, 1, -1, 2, 7, 255, 256, 512, 600, 601, 1536, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**4000, 0.5, 1e308]
VALUES: list[Any] = [
    *NUMBERS,
    math.inf,
    -math.inf,
    math.nan,
    None,
    True,
    False,
    "",
    "x",
    "600",
    "\ud800",
    [],
    {},
    [0],
    [[0]],
]


# ---- changed bytes ---------------------------------------------------------------------------------------------------


def changed(rng: random.Random, journal: bytes, other: bytes) -> bytes:
    """One to three changes of bytes; ``other`` is another run's journal of the same product."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        journal = rng.choice(_CHANGES)(rng, journal, other)
    return journal


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randint(0, len(data))
    return begin, min(len(data), begin + rng.choice((1, 2, 8, 40, 300)))


def _flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(max(1, len(data)))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _insert(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randint(0, len(data))
    more = [b"\0" * 9, b"\n", b"\r\n", b"\xff\xfe", b"[" * 2000, b"9" * 5000, b"{}", b"NaN", rng.randbytes(30), b" "]
    return data[:at] + rng.choice(more) + data[at:]


def _delete(rng: random.Random, data: bytes, _: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _repeat(rng: random.Random, data: bytes, _: bytes) -> bytes:
    begin, end = _span(rng, data)
    at = rng.randint(0, len(data))
    return data[:at] + data[begin:end] * rng.choice((1, 2, 50)) + data[at:]


def _cut_off(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: rng.randint(0, len(data))] + rng.choice((b"", b"\0" * 50, b"\n", rng.randbytes(9)))


def _lines(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Lines change places, are left out, come twice, or from another journal."""
    lines, others = data.splitlines(keepends=True), other.splitlines(keepends=True)
    if len(lines) < 2:
        return data
    x, y = rng.randrange(len(lines)), rng.randrange(len(lines))
    way = rng.randrange(5)
    if way == 0:
        lines[x], lines[y] = lines[y], lines[x]
    elif way == 1:
        del lines[x]
    elif way == 2:
        lines.insert(y, lines[x])
    elif way == 3:
        lines[x] = rng.choice(others)
    else:
        lines[x + 1 :] = others[x + 1 :]  # a whole journal of another run cannot be told from this one's
    return b"".join(lines)


def _number(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """Another number in place of one, wherever it is."""
    places = [
        at for at, byte in enumerate(data) if chr(byte).isdigit() and (at == 0 or not chr(data[at - 1]).isdigit())
    ]
    if not places:
        return data
    at = end = rng.choice(places)
    while end < len(data) and chr(data[end]).isdigit():
        end += 1
    return data[:at] + str(rng.choice(NUMBERS)).encode() + data[end:]


_CHANGES: list[Callable[[random.Random, bytes, bytes], bytes]] = [
    *(_flip, _insert, _delete, _repeat, _cut_off, _lines, _number, _number)
]


# ---- forged lines ----------------------------------------------------------------------------------------------------


def forged(rng: random.Random, journal: bytes) -> bytes:
    """Lines that say something else, with the digests of what they say."""
    lines = [json.loads(line) for line in journal.splitlines()]
    for line in lines:
        line.pop("digest", None)
    for _ in range(rng.choice((1, 1, 2, 4))):
        cut = lines[0].get("grid") if isinstance(lines[0], dict) else None
        if isinstance(cut, dict) and rng.random() < 0.4:
            _forge(rng, cut)
        elif rng.random() < 0.4:
            _forge(rng, lines[0])
        else:
            x = rng.randrange(len(lines))
            lines[x] = _forge(rng, lines[x])
    if rng.random() < 0.1:
        lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
    return sign(lines)


def sign(lines: list[Any]) -> bytes:
    data, digest = b"", b""
    for line in lines:
        text, digest = _signed(line if isinstance(line, dict) else {"tile": line}, digest)
        data += text
    return data


def _forge(rng: random.Random, value: Any) -> Any:
    """Something else in place of a value, or of one within it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        way = rng.random()
        if way < 0.1:
            del value[key]
        elif way < 0.15:
            value["more"] = rng.choice(VALUES)
        else:
            value[key] = _forge(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.8:
        x = rng.randrange(len(value))
        return [*value[:x], _forge(rng, value[x]), *value[x + 1 :]][: rng.choice((9, 9, 9, 1))]
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 64, -64, 16, 256))
    return rng.choice([*VALUES, deep(rng.choice((3, 5000)))]) if rng.random() < 0.97 else {"x": value}


def deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(min(levels, 900)):  # what writes JSON recurses as well
        found = [found]
    return found


# ---- what becomes of them --------------------------------------------------------------------------------------------


_WORK = Path("c.npy.tilewright")
_JOURNAL, _DATA = _WORK / "journal", _WORK / "data"


@dataclass
class Unfinished:
    """a·b, interrupted after some of its tiles, in the folder of this process; ``whole`` is what C must be."""

    whole: bytes
    about: bytes
    data: bytes
    inode: int
    journal: bytes
    other: bytes
    tiles: frozenset[Tile]

    @classmethod
    def begun(cls, tiles: int = 5) -> Unfinished:
        rng = np.random.default_rng(3)
        for name in "ab":
            np.save(f"{name}.npy", rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32))
        large.multiply("a.npy", "b.npy", "c.npy")
        whole = Path("c.npy").read_bytes()
        Path("c.npy").unlink()
        _interrupted(tiles + 2)
        other = _JOURNAL.read_bytes()
        _interrupted(tiles)
        begun = read_journal(_JOURNAL)
        assert begun is not None
        about, data = (_WORK / "about.txt").read_bytes(), _DATA.read_bytes()
        return cls(whole, about, data, begun.inode, _JOURNAL.read_bytes(), other, begun.finished)

    def verdict(self, journal: bytes) -> str:
        """ "refused", "whole", or "lie": a right digest over a tile that was not computed. Else what was wrong."""
        _WORK.mkdir(exist_ok=True)
        _JOURNAL.write_bytes(journal)
        began = time.perf_counter()
        told = self._read(journal)
        if told is None:
            self._put_back()
            told = self._resumed()
        took = time.perf_counter() - began
        if not any(path.exists() and path.stat().st_ino == self.inode for path in (_DATA, Path("c.npy"))):
            self._begin_again()
        return told if took < LIMIT_S else f"took {took:.1f} s"

    def _read(self, journal: bytes) -> str | None:
        """By the reader alone, whose memory is looked at: a lie, or what was wrong."""
        tracemalloc.start()
        try:
            begun = read_journal(_JOURNAL)
        except ResumeError:
            begun = None
        except BaseException as error:
            return f"read: {error!r}"
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if peak > (1 << 20) + 200 * len(journal):
            return f"read: {peak} bytes of memory for a journal of {len(journal)}"
        return "lie" if begun is not None and not begun.finished <= self.tiles else None

    def _put_back(self) -> None:
        """The unfinished matrix, in the same inode."""
        (_WORK / "about.txt").write_bytes(self.about)
        if Path("c.npy").exists():
            Path("c.npy").rename(_DATA)
        with _DATA.open("r+b") as file:
            file.write(self.data)

    def _begin_again(self) -> None:
        """After a run that found nothing to go on with, and began anew in another inode."""
        Path("c.npy").unlink(missing_ok=True)
        _interrupted(len(self.tiles))
        begun = read_journal(_JOURNAL)
        assert begun is not None
        self.data, self.inode, self.journal, self.tiles = (
            _DATA.read_bytes(),
            begun.inode,
            _JOURNAL.read_bytes(),
            begun.finished,
        )

    def _resumed(self) -> str:
        try:
            large.multiply("a.npy", "b.npy", "c.npy", resume=True)
        except (ResumeError, FileError, MemoryLimitError) as error:
            return "refused" if "\n" not in str(error) and len(str(error)) < 1000 else f"words: {str(error)[:2000]!r}"
        except BaseException as error:
            return f"resumed: {error!r}"
        return "whole" if Path("c.npy").read_bytes() == self.whole else "a wrong C"


@contextlib.contextmanager
def small_places(folder: Path) -> Iterator[None]:
    """In ``folder``, with tiles of 256×256, one thread, rates that need no measuring and disks that need no flushing."""
    before = Path.cwd()
    remembered = folder / "finished"
    remembered.mkdir()
    choice: Any = choose_adding_cpu("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheFile, "path", property(lambda file: remembered / file.name))
        patch.setattr(Placement, "rates", lambda *_: Rates(1e11, 1e10, 1e9))
        patch.setattr(job_module, "place_product", lambda *_: Placement(choice, ROOM, 1, 1 << 40))
        patch.setattr(os, "fsync", lambda _: None)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _interrupted(tiles: int) -> None:
    """Begin a·b anew, and interrupt it after so many tiles."""
    with interrupted_after(tiles), contextlib.suppress(KeyboardInterrupt):
        large.multiply("a.npy", "b.npy", "c.npy")
