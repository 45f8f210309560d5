"""Advises how the accesses of a source line could be made cheaper, and predicts their cost after the change, if that
cost follows from the addresses of one request.

Advice is given only if all requests of a source line cost the same as the recorded example, which has the addresses of
one warp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...records.explanation import APPROXIMATELY, Access
from ..assembly.ptxas import PtxAccess
from ..assembly.source_files import file_label
from .sectors import LINE, SECTOR, WARP, Ints, global_sectors
from .tally import shared_wavefronts

#: Rows with fewer elements than this are not padded, because they are more likely structures than rows of an array.
SHORTEST_ROW = 8
#: The numbers of elements by which a row may be padded.
PADDINGS = (1, 2, 4, 8)
#: Loads and stores of threads, and of matrices, whose lanes have the addresses of rows.
_PLAIN, _MATRICES = ("ld", "st"), ("ldmatrix", "stmatrix")
#: The bytes that one lane of one instruction can move.
_WIDEST = 16
#: Requests of fewer bytes a lane fill less than a turn of L1, which has 128 bytes.
_FULL = LINE // WARP
#: The share of the sectors that a line would move if all of its requests were like the example.
_ALIKE = 0.9
#: The lanes of a row of threads within a warp: of blocks that are as wide, or wider.
_ROWS = (WARP, 16, 8)
#: The least fraction of a launch's turns that advice must save to be given.
WORTH = 0.01
#: What identifies accesses that are judged together: file, line, memory space, kind, bytes per lane.
Place = tuple[str, int, str, str, int]


@dataclass(frozen=True)
class Change:
    """A change that is advised for a line, with the cost of its accesses before and after.

    ``row_bytes`` and ``more_bytes``: the length of a row of shared memory, and the bytes by which the change makes the
    row longer; both are 0 for changes that lengthen no row. ``timed``: whether the times that were predicted for
    changes of this kind were compared with measured times.
    """

    text: str
    before: Access
    after: Access
    row_bytes: int = 0
    more_bytes: int = 0
    timed: bool = True

    @property
    def costs(self) -> tuple[str, int, int]:
        """The unit of the cost that the change reduces (wavefronts, sectors or requests), and the cost before and after
        the change."""
        if self.before.cost != self.after.cost:
            return self.before.unit, self.before.cost, self.after.cost
        return "requests", self.before.requests, self.after.requests

    @property
    def saved_turns(self) -> int:
        """The turns of the memory pipe that the change saves."""
        return line_turns(self.before) - line_turns(self.after)

    def __str__(self) -> str:
        unit, before, after = self.costs
        mark = "" if self.before.exact else f"{APPROXIMATELY} "
        return f"{self.text}: {unit} {mark}{before:,} → {after:,}"


def advice(access: Access, wide: int = 1, others: Iterable[Access] = ()) -> Change | None:
    """Advise how to change the accesses of a source line, with their predicted cost; None if no change is known to
    help.

    ``wide`` is the number of neighbouring elements that the instructions of the line access (``neighbours``).
    ``others`` are the other accesses to shared memory; a row that is made longer must keep them aligned.

    >>> column = Access(1, "shared", "ld", 4, 32, 4096, wavefronts=1024, conflicts=992, lanes=list(range(0, 4096, 128)))
    >>> print(advice(column))
    pad the row from 32 to 33 elements of 4 bytes: wavefronts 1,024 → 32
    """
    if access.space == "local":
        return _in_registers(access)
    if access.kind not in (*_PLAIN, *_MATRICES) or len(access.lanes) != WARP or None in access.lanes:
        return None
    lanes = np.array([access.lanes], np.int64) + access.origin
    changes = [_padded(access, lanes, others)] if access.space == "shared" else [_coalesced(access, lanes)]
    if access.kind in _PLAIN:
        changes = [_widened(access, lanes, wide), *changes]
    return next((change for change in changes if change), None)


def changes(parts: Sequence[Access], wide: Mapping[Place, int]) -> list[Change]:
    """Return the advice for a launch, from the accesses of each instruction. If several instructions of a source line
    have equal advice, the advice is given once. Advice that saves too few turns of the memory pipe (``WORTH``) is left
    out."""
    shared = [part for part in parts if part.space == "shared"]
    alike: dict[tuple[object, ...], list[Change]] = {}
    begins: dict[Place, set[int]] = {}
    for a in parts:
        begins.setdefault(_place(a), set()).add(a.origin + (a.lanes[0] or 0) if a.lanes else 1)
    # The first of neighbours must lie where a wider access may.
    aligned = {place: n for place, n in wide.items() if any(at % (n * place[-1]) == 0 for at in begins.get(place, ()))}
    for a in parts:
        if change := advice(a, aligned.get(_place(a), 1), shared):
            alike.setdefault((a.file, a.line, a.space, a.kind, change.text), []).append(change)
    found = map(_together, alike.values())
    least = WORTH * sum(map(line_turns, parts))
    return [change for change in found if change.saved_turns >= least]


def _place(access: Access) -> Place:
    return access.file, access.line, access.space, access.kind, access.nbytes


def _together(several: Sequence[Change]) -> Change:
    """One change of several accesses, with the sums of their costs."""
    first = several[0]
    names = ("requests", "bytes", "sectors", "wavefronts", "conflicts", "least")

    def summed(accesses: Sequence[Access]) -> Access:
        sums = {name: sum(getattr(access, name) for access in accesses) for name in names}
        return replace(accesses[0], **sums, exact=all(access.exact for access in accesses))

    before, after = (summed([getattr(change, when) for change in several]) for when in ("before", "after"))
    return replace(first, before=before, after=after)


def line_turns(access: Access) -> int:
    """Return the number of turns that accesses take in a multiprocessor's memory pipe. An access to shared memory takes
    one turn for each wavefront. An access to global or local memory takes one turn for each line of 128 bytes that it
    touches, if all requests are like the example. Copies by the copy engine take no turns of the memory pipe.

    >>> lanes = list(range(0, 4096, 128))
    >>> line_turns(Access(1, "global", "ld", 4, 10, 1280, sectors=320, least=40, lanes=lanes))
    320
    """
    if access.space == "shared":
        return access.wavefronts
    if access.kind.startswith("tma "):
        return 0
    first = np.array([at for at in access.lanes if at is not None], np.int64)
    ends = np.concatenate([first, first + max(0, access.nbytes - 1)])
    sectors, lines = (len(np.unique(ends // size)) for size in (SECTOR, LINE))
    return max(
        access.requests, -(-access.sectors * lines // sectors) if sectors else -(-access.sectors * SECTOR // LINE)
    )


# ---- rows of shared memory -------------------------------------------------------------------------------------------


def _padded(access: Access, lanes: Ints, others: Iterable[Access] = ()) -> Change | None:
    """A longer row that costs fewest wavefronts, if these are fewer than now."""
    nbytes = access.nbytes
    if not access.conflicts or access.wavefronts != access.requests * _wavefronts(access, lanes):
        return None
    # A row keeps the alignment of the widest accesses of shared memory, for it is not known which of them are to its array.
    align = max([nbytes, *(other.nbytes for other in others if other.kind in (*_PLAIN, *_MATRICES))])
    costs = {
        (_wavefronts(access, _with_pitch(lanes, pitch, pitch + more * nbytes)), more, pitch)
        for pitch in _pitches(lanes, access)
        for more in PADDINGS
        if (pitch % align or not more * nbytes % align)
    }
    if not costs:
        return None
    cost, more, pitch = min(costs)
    if cost * access.requests >= access.wavefronts:
        return None
    if access.kind in _MATRICES:
        change = f"from {pitch:,} to {pitch + more * nbytes:,} bytes"
    else:
        row = pitch // nbytes
        change = f"from {row:,} to {row + more:,} elements of {nbytes} byte{'s' * (nbytes > 1)}"
    after = replace(
        access,
        wavefronts=cost * access.requests,
        conflicts=max(0, cost * access.requests - (access.wavefronts - access.conflicts)),
    )
    return Change(f"pad the row {change}", access, after, pitch, more * nbytes)


def with_swizzle(access: Access) -> Change | None:
    """Advise to permute the columns of each row instead of padding rows; a permutation takes no additional memory.
    Return None if a permutation would not cost fewer wavefronts.

    >>> column = Access(1, "shared", "ld", 4, 32, 4096, wavefronts=1024, conflicts=992, lanes=list(range(0, 4096, 128)))
    >>> print(with_swizzle(column))
    store column c of row r at column c ^ r % 32 (elements of 4 bytes): wavefronts 1,024 → 32
    """
    lanes, nbytes = np.array([access.lanes], np.int64) + access.origin, access.nbytes
    unit = max(4, nbytes)
    for pitch in _pitches(lanes, access):
        columns = pitch // unit
        if nbytes < unit or columns & (columns - 1):
            continue
        width = min(columns, LINE // unit)
        rows, at = np.divmod(lanes - lanes.min(), pitch)
        per_line = max(1, LINE // unit // columns)
        moved = rows * pitch + (at // unit ^ rows // per_line % width) * unit + at % unit
        cost = _wavefronts(access, moved)
        if cost * access.requests < access.wavefronts:
            row = f"r / {per_line}" if per_line > 1 else "r"
            text = f"store column c of row r at column c ^ {row} % {width} (elements of {unit} bytes)"
            fewer = cost * access.requests
            return Change(text, access, replace(access, wavefronts=fewer, conflicts=0))
    return None


def _wavefronts(access: Access, lanes: Ints) -> int:
    return int(shared_wavefronts(lanes, access.nbytes, access.kind)[0][0])


def _pitches(lanes: Ints, access: Access) -> list[int]:
    """Distances in bytes that may be those of rows: of the first two lanes, and of the first two groups of neighbours."""
    steps, nbytes = np.diff(lanes[0]), access.nbytes
    broken = np.flatnonzero(steps != nbytes)
    far = [int(steps[0]), int(lanes[0, broken[0] + 1] - lanes[0, 0])] if broken.size else []
    shortest = SHORTEST_ROW * (nbytes if access.kind in _PLAIN else 4)  # a lane of a matrix has eight elements
    return [pitch for pitch in dict.fromkeys(far) if pitch >= shortest and pitch % nbytes == 0]


def _with_pitch(lanes: Ints, pitch: int, longer: int) -> Ints:
    """The addresses if rows of ``pitch`` bytes become longer."""
    first = lanes.min()
    rows, columns = np.divmod(lanes - first, pitch)
    return first + rows * longer + columns


# ---- global memory ---------------------------------------------------------------------------------------------------


def _coalesced(access: Access, lanes: Ints) -> Change | None:
    """Consecutive elements for consecutive lanes of a row of threads, if they are at equal distances now."""
    steps = np.diff(lanes[0])
    row = next((row for row in _ROWS if (np.delete(steps, np.s_[row - 1 :: row]) == steps[0]).all()), 0)
    # For the bytes that it moves; the last warp of a row may have fewer lanes.
    alike = access.sectors * WARP * access.nbytes >= _ALIKE * access.bytes * int(
        global_sectors(lanes, access.nbytes)[0]
    )
    if access.space != "global" or not alike or not row or abs(steps[0]) <= access.nbytes:
        return None
    text = f"let lanes access neighbours, not every {abs(steps[0]):,} bytes"
    # A block of 16 × 16 threads has two rows of threads in a warp, which write to two rows of a matrix.
    lanes_after: list[int | None] = [
        access.nbytes * (lane % row) + LINE * access.nbytes * (lane // row) for lane in range(WARP)
    ]
    sectors = access.requests * int(global_sectors(np.array([lanes_after], np.int64), access.nbytes)[0])
    after = replace(access, sectors=access.least if row == WARP else max(access.least, sectors), lanes=lanes_after)
    return Change(text, access, after) if after.sectors < access.sectors else None


# ---- wider accesses --------------------------------------------------------------------------------------------------


def _widened(access: Access, lanes: Ints, wide: int) -> Change | None:
    """One access of all the neighbouring elements that a thread accesses; or, of elements of less than four bytes, of as
    many as fill a turn."""
    steps, nbytes = np.diff(lanes[0]), access.nbytes
    together = wide * nbytes
    if wide > 1 and together <= _WIDEST and (steps == together).all():
        requests = access.requests // wide
        if access.space == "shared":
            cost = int(shared_wavefronts(lanes // together * together, together, access.kind)[0][0])
            after = replace(access, nbytes=together, requests=requests, wavefronts=requests * cost, conflicts=0)
        else:
            after = replace(access, nbytes=together, requests=requests, sectors=access.sectors // wide)
        text = f"access {wide} neighbouring elements of {nbytes} bytes by one of {together} bytes"
        return Change(text, access, after, timed=False) if after.cost < access.cost else None
    narrow = access.space == "global" and nbytes < _FULL and (steps == nbytes).all()
    if not narrow or lanes[0, 0] % _FULL or access.sectors > access.requests * nbytes:
        return None
    each = _FULL // nbytes
    text = f"access {each} elements of {nbytes} byte{'s' * (nbytes > 1)} at once in each thread"
    return Change(text, access, replace(access, nbytes=_FULL, requests=-(-access.requests // each)), timed=False)


def neighbours(accesses: Iterable[PtxAccess], main: str) -> dict[Place, int]:
    """Return the number of neighbouring elements for each place at which instructions of one source line access 2 or 4
    of them. ``main`` is the kernel's own file."""
    offsets: dict[Place, dict[tuple[object, ...], set[int]]] = {}
    for access in accesses:
        place = (file_label(access.file, main), access.line, access.space, access.kind, access.nbytes)
        offsets.setdefault(place, {}).setdefault(access.base, set()).add(access.offset)
    return {
        place: wide
        for place, by_base in offsets.items()
        if (wide := min(_neighbours(each, place[-1]) for each in by_base.values())) > 1
    }


def _neighbours(offsets: set[int], nbytes: int) -> int:
    """4 or 2 if offsets are groups of so many neighbours, which begin at multiples of a group from the first; else 1.

    >>> [_neighbours(offsets, 4) for offsets in ({0, 4, 8, 12}, {0, 4, 16, 20}, {0, 4, 8}, {0, 128})]
    [4, 2, 1, 1]
    """
    first = min(offsets)
    for wide in (4, 2):
        groups = {(offset - first) // (wide * nbytes) for offset in offsets}
        if offsets == {first + (group * wide + i) * nbytes for group in groups for i in range(wide)}:
            return wide
    return 1


# ---- local memory ----------------------------------------------------------------------------------------------------


def _in_registers(access: Access) -> Change | None:
    """An array of a thread that is indexed by numbers that the compiler knows lies in registers."""
    text = "index the thread's array by constants, as in unrolled loops, so that it lies in registers"
    return Change(text, access, replace(access, requests=0, sectors=0), timed=False) if access.sectors else None
