"""The steps of a streamed product and their times, as plain data: JSON Lines, a header and then one step (``Piece``) in
each line.

The header says what was multiplied, how the product was divided into tiles, and what was predicted. Each further line
is one step, such as a load or a multiplication, on one track of one place (a device). A file may hold several
timelines, one after another. The page, the trace and the figure of a product are made from this file alone.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import RecordError
from .json_data import (
    COUNT,
    MOST_S,
    NUMBERS,
    OBJECT,
    POSITIVE,
    TEXT,
    TRUTH,
    Rule,
    check_fields,
    check_kind,
    dumped,
    from_fields,
    is_count,
    many,
    parse_json,
    read_text,
)

SCHEMA = 2
KIND = "timeline"

#: The tracks, in the order in which data pass them from the operands, on the host or another GPU, to the result. Other
#: tracks follow.
TRACKS = ("stage in", "copy in", "copy over", "compute", "copy out", "stage out")
COMPUTE = "compute"

_BLOCK = re.compile(r"([ABC])\[(\d{1,9}), (\d{1,9})\](?: step (\d{1,9}))?")


@dataclass(frozen=True)
class Piece:
    """One step of a product, such as a load or a multiplication.

    Times are seconds from the start of the run. ``name`` says what the step loads, multiplies or stores, for example
    ``A[0, 3]`` or ``C[1, 2] step 4``.
    """

    place: str
    track: str
    name: str
    start_s: float
    end_s: float


class Work(NamedTuple):
    """The amount of work of a step: the bytes of a block of A, B or C, or the operations of a multiplication."""

    amount: int
    unit: str


@dataclass(frozen=True)
class Track:
    """The totals of one track of a place: the seconds in which any step ran, the number of steps, and the sum of the
    work of these steps if it is known."""

    name: str
    busy_s: float
    pieces: int
    work: Work | None

    @property
    def rate(self) -> float | None:
        """The rate of the track while it was busy, in bytes or operations a second."""
        return self.work.amount / self.busy_s if self.work and self.busy_s else None


@dataclass(frozen=True)
class Summary:
    """The totals of one place: the time in which the place computed, and the time before, between and after its
    multiplications."""

    place: str
    total_s: float
    compute_s: float
    first_s: float
    between_s: float
    last_s: float
    tracks: tuple[Track, ...]

    @property
    def exposed_s(self) -> float:
        """The time in seconds in which this place computed nothing."""
        return self.first_s + self.between_s + self.last_s


@dataclass(frozen=True)
class Timeline:
    """A streamed product C[m×n] = A[m×k]·B[k×n] and its steps.

    ``blocks`` has the number of rows and of columns of a tile, and the length of a step along k. ``seconds`` is the
    time of the whole run, which may end after the last step. ``expected`` is what the plan predicted: total_s,
    compute_s, first_s (before the first multiplication), exposed_s (between multiplications) and last_s (after the last
    one). ``tiles`` is the number of tiles of C, ``before`` the number that were finished when the run began, and
    ``finished`` the number that the run finished. If ``predicted`` is True, the product was not run, and the steps are
    those of the plan.
    """

    m: int
    n: int
    k: int
    dtype: str
    itemsize: int
    blocks: tuple[int, int, int]
    pieces: list[Piece]
    tiles: int = 0
    before: int = 0
    finished: int = 0
    seconds: float = 0.0
    predicted: bool = False
    plan: str = ""
    expected: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    kind: str = KIND

    @property
    def complete(self) -> bool:
        """Whether the product was finished. The timeline of an interrupted run has the steps until the interruption."""
        return self.predicted or self.before + self.finished == self.tiles

    @property
    def total_s(self) -> float:
        """The seconds from the beginning of the run to its last event."""
        return max([self.seconds, *(piece.end_s for piece in self.pieces)])

    @property
    def places(self) -> list[str]:
        """The names of the places (devices) of the timeline, in the order of their numbers."""
        return sorted({piece.place for piece in self.pieces}, key=lambda place: (len(place), place))

    def tracks(self, place: str) -> dict[str, list[Piece]]:
        """Return the steps of each track of a place, in the order of their starts."""
        by_track: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            if piece.place == place:
                by_track.setdefault(piece.track, []).append(piece)
        known = [name for name in TRACKS if name in by_track]
        return {
            name: sorted(by_track[name], key=lambda piece: (piece.start_s, piece.end_s))
            for name in dict.fromkeys([*known, *by_track])
        }

    def work(self, piece: Piece) -> Work | None:
        """Return the work of a step: the bytes of a block or a tile, or the operations of a multiplication. The result
        is None if the step's name has another form.

        >>> Timeline(5, 6, 7, "float32", 4, (4, 4, 4), []).work(Piece("cpu", "compute", "C[1, 1] step 1", 0, 1))
        Work(amount=12, unit='operations')
        """
        match = _BLOCK.fullmatch(piece.name)
        if match is None:
            return None
        (bm, bn, bk), (x, y) = self.blocks, (int(match[2]), int(match[3]))
        if match[1] == "C" and match[4]:
            sides = (self.m, bm, x), (self.n, bn, y), (self.k, bk, int(match[4]))
            return _work(2 * math.prod(itertools.starmap(_part, sides)), "operations")
        sides_of = {
            "A": ((self.m, bm), (self.k, bk)),
            "B": ((self.k, bk), (self.n, bn)),
            "C": ((self.m, bm), (self.n, bn)),
        }
        rows, columns = sides_of[match[1]]
        return _work(_part(*rows, x) * _part(*columns, y) * self.itemsize, "bytes")

    def summary(self, place: str) -> Summary:
        """Return the summary of a place: how long it computed, how long it waited before, between and after its
        multiplications, and the totals of its tracks."""
        total, tracks = self.total_s, self.tracks(place)
        steps = union((piece.start_s, piece.end_s) for piece in tracks.get(COMPUTE, []))
        computing = sum(end - start for start, end in steps)
        first, last = (steps[0][0], total - steps[-1][1]) if steps else (total, 0.0)
        between = steps[-1][1] - steps[0][0] - computing if steps else 0.0
        totals = tuple(self._track(name, pieces) for name, pieces in tracks.items())
        return Summary(place, total, computing, first, max(0.0, between), last, totals)

    def _track(self, name: str, pieces: Sequence[Piece]) -> Track:
        busy = sum(end - start for start, end in union((piece.start_s, piece.end_s) for piece in pieces))
        known = [self.work(piece) for piece in pieces]
        units = {work.unit if work else None for work in known}
        unit = units.pop() if len(units) == 1 else None
        work = Work(sum(work.amount for work in known if work), unit) if unit else None
        return Track(name, busy, len(pieces), work)


def _part(length: int, size: int, number: int) -> int:
    """The length of part ``number``, where ``length`` is cut into parts of ``size``; the last may be shorter."""
    return max(0, min(length - number * size, size))


def _work(amount: int, unit: str) -> Work | None:
    return Work(amount, unit) if amount else None


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the time that the spans cover, as disjoint spans in order.

    >>> union([(2, 3), (0, 1), (0.5, 1.5)])
    [(0, 1.5), (2, 3)]
    """
    covered: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if covered and start <= covered[-1][1]:
            covered[-1] = covered[-1][0], max(covered[-1][1], end)
        else:
            covered.append((start, end))
    return covered


# ---- files -----------------------------------------------------------------------------------------------------------

#: The most tracks in a file, over all timelines and places, because each needs space on the page.
MOST_TRACKS = 1000

#: A plan's times are sums and differences, and can be tiny.
_TIME = Rule("seconds, from 0 on", lambda value: POSITIVE.holds(value) and value <= MOST_S)
_RULES = {
    **dict.fromkeys(("m", "n", "k", "itemsize", "tiles", "before", "finished"), COUNT),
    "blocks": many("three positive whole numbers", lambda value: is_count(value) and value > 0, least=3, most=3),
    **{"dtype": TEXT, "plan": TEXT, "seconds": _TIME, "predicted": TRUTH},
    **{"expected": NUMBERS, "environment": OBJECT},
}
_PIECE_RULES = {"place": TEXT, "track": TEXT, "name": TEXT, "start_s": _TIME, "end_s": _TIME}


def write_timelines(path: str | Path, timelines: Iterable[Timeline]) -> None:
    """Write timelines to a new file, each timeline as its header and its steps.

    Raises OSError if the file cannot be written.
    """
    with Path(path).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for timeline in timelines:
            header = {f.name: getattr(timeline, f.name) for f in fields(timeline) if f.name != "pieces"}
            first = {"kind": header.pop("kind"), "schema": header.pop("schema")}
            for line in itertools.chain([first | header], map(asdict, timeline.pieces)):
                file.write(dumped(line) + "\n")


def read_timelines(path: str | Path) -> list[Timeline]:
    """Read every timeline of a file.

    Raises RecordError, which names the line and the field, for a file that is missing, empty, damaged or of another
    kind.
    """
    timelines: list[Timeline] = []
    for number, line in enumerate(read_text(path, "a timeline").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        data = parse_json(line, where, "timeline")
        if not isinstance(data, dict):
            raise RecordError(f"{where}: must be an object, got {type(data).__name__}")
        if "kind" in data:
            timelines.append(_header(data, where))
        elif timelines:
            timelines[-1].pieces.append(_piece(data, where))
        else:
            raise RecordError(f"{where}: a timeline begins with its header, whose kind is {KIND!r}")
    if not timelines:
        raise RecordError(f"{path}: holds no timeline")
    tracks = {(i, piece.place, piece.track) for i, timeline in enumerate(timelines) for piece in timeline.pieces}
    if len(tracks) > MOST_TRACKS:
        raise RecordError(
            f"{path}: has {len(tracks):,} tracks in all its places, more than {MOST_TRACKS:,}: no run has so many"
        )
    return timelines


def _header(data: dict[str, Any], where: str) -> Timeline:
    check_kind(data, KIND, SCHEMA, where)
    check_fields(data, _RULES, where)
    return from_fields(Timeline, data, where, pieces=[])


def _piece(data: dict[str, Any], where: str) -> Piece:
    check_fields(data, _PIECE_RULES, where)
    try:
        piece = Piece(**{f.name: data[f.name] for f in fields(Piece)})
    except KeyError as error:
        raise RecordError(
            f"{where}: a piece has {', '.join(f.name for f in fields(Piece))}; {error} is missing"
        ) from None
    if piece.end_s < piece.start_s:
        raise RecordError(f"{where}: start_s and end_s must be in order, got {piece.start_s} and {piece.end_s}")
    return piece
