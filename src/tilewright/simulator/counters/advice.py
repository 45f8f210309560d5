"""What would make an access cheaper, and its cost then, where that follows from the addresses of one request.

Only what all requests of a line share is judged: their cost must be that of the example, which has the addresses of a warp.
"""

from __future__ import annotations

import numpy as np

from ...records.explanation import Access
from .sectors import WARP, Ints, global_sectors
from .tally import shared_wavefronts

#: A row of fewer elements is more likely a structure than the row of an array, and is not padded.
SHORTEST_ROW = 8
#: The elements that a row may be padded with.
PADDINGS = (1, 2, 4, 8)


def advice(access: Access) -> str:
    """What to do in one line, with the predicted cost; empty if nothing is known to help.

    >>> column = Access(1, "shared", "ld", 4, 32, 4096, wavefronts=1024, conflicts=992, lanes=list(range(0, 4096, 128)))
    >>> advice(column)
    'pad the row from 32 to 33 elements of 4 bytes: wavefronts 1,024 → 32'
    """
    if access.kind not in ("ld", "st") or len(access.lanes) != WARP or None in access.lanes:
        return ""
    lanes = np.array([access.lanes], np.int64)
    return _padded(access, lanes) if access.space == "shared" else _coalesced(access, lanes)


def _padded(access: Access, lanes: Ints) -> str:
    """A longer row that costs fewest wavefronts, if these are fewer than now."""
    nbytes = access.nbytes
    if not access.conflicts or access.wavefronts != access.requests * _wavefronts(access, lanes):
        return ""
    costs = {
        (_wavefronts(access, _with_pitch(lanes, pitch, pitch + more * nbytes)), more, pitch // nbytes)
        for pitch in _pitches(lanes, nbytes)
        for more in PADDINGS
    }
    if not costs:
        return ""
    cost, more, row = min(costs)
    if cost * access.requests >= access.wavefronts:
        return ""
    change = f"from {row:,} to {row + more:,} elements of {nbytes} byte{'s' * (nbytes > 1)}"
    return f"pad the row {change}: wavefronts {access.wavefronts:,} → {cost * access.requests:,}"


def _wavefronts(access: Access, lanes: Ints) -> int:
    return int(shared_wavefronts(lanes, access.nbytes, access.kind)[0][0])


def _pitches(lanes: Ints, nbytes: int) -> list[int]:
    """Distances in bytes that may be those of rows: of the first two lanes, and of the first two groups of neighbours."""
    steps = np.diff(lanes[0])
    broken = np.flatnonzero(steps != nbytes)
    far = [int(steps[0]), int(lanes[0, broken[0] + 1] - lanes[0, 0])] if broken.size else []
    return [pitch for pitch in dict.fromkeys(far) if pitch >= SHORTEST_ROW * nbytes and pitch % nbytes == 0]


def _with_pitch(lanes: Ints, pitch: int, longer: int) -> Ints:
    """The addresses if rows of ``pitch`` bytes become longer."""
    first = lanes.min()
    rows, columns = np.divmod(lanes - first, pitch)
    return first + rows * longer + columns


def _coalesced(access: Access, lanes: Ints) -> str:
    """Consecutive elements for consecutive lanes, if they are at equal distances now."""
    steps = np.diff(lanes[0])
    alike = access.sectors == access.requests * int(global_sectors(lanes, access.nbytes)[0])
    if access.space != "global" or not alike or (steps != steps[0]).any() or abs(steps[0]) <= access.nbytes:
        return ""
    apart = f"lanes are {abs(steps[0]):,} bytes apart"
    return f"{apart}; at {access.nbytes}: sectors {access.sectors:,} → {access.least:,}"
