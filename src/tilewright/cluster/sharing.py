"""A rate that many transfers share: a storage that all workers read, or the links of all owners of blocks."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any


class SharedRate:
    """``total`` bytes a second for all transfers under way, as a fluid: each has the same share, but at most its own limit;
    what limited transfers leave over is shared by the others (max-min fairness).

    Transfers of one limit always have one rate. So each limit needs only one number, the bytes that a transfer under way
    since the beginning would have received, and a heap of the values at which transfers end: a change costs the number of
    limits and a logarithm of the number of transfers.

    >>> storage = SharedRate(10.0)
    >>> storage.start(0.0, 20.0, limit=8.0, token="a"), storage.start(0.0, 20.0, limit=2.0, token="b")
    (None, None)
    >>> storage.next_s, storage.ended(storage.next_s), storage.next_s
    (2.5, ['a'], 10.0)
    """

    def __init__(self, total: float) -> None:
        self.total, self._now, self._started = total, 0.0, 0
        self._limits: dict[float, _Limit] = {}
        #: When the next transfer ends, if no other begins before; inf if none is under way.
        self.next_s = math.inf

    def start(self, now: float, nbytes: float, limit: float, token: Any) -> None:
        """Begin a transfer, for which ``ended`` will return ``token``."""
        self._advance(now)
        each = self._limits.setdefault(limit, _Limit(limit))
        self._started += 1
        heappush(each.ends, (each.received + nbytes, self._started, token))
        self._share()

    def ended(self, now: float) -> list[Any]:
        """The tokens of the transfers that end at ``now``, which must be ``next_s``, in the order in which they began."""
        self._advance(now)
        found: list[tuple[int, Any]] = []
        for each in self._limits.values():
            while each.ends and (each.ends[0][0] <= each.received * (1 + 1e-12) or each.next_s(now) <= now):
                _, number, token = heappop(each.ends)
                found.append((number, token))
        self._limits = {limit: each for limit, each in self._limits.items() if each.ends}
        self._share()
        return [token for _, token in sorted(found)]

    def _advance(self, now: float) -> None:
        for each in self._limits.values():
            each.received += each.rate * (now - self._now)
        self._now = now

    def _share(self) -> None:
        left, transfers = self.total, sum(len(each.ends) for each in self._limits.values())
        for each in sorted(self._limits.values(), key=lambda each: each.limit):
            each.rate = min(each.limit, left / transfers)
            left -= each.rate * len(each.ends) if math.isfinite(left) else 0.0
            transfers -= len(each.ends)
        self.next_s = min((each.next_s(self._now) for each in self._limits.values()), default=math.inf)


class _Limit:
    """The transfers of one limit: their rate, the bytes that each has received since the first began, and their ends."""

    def __init__(self, limit: float) -> None:
        self.limit, self.rate, self.received = limit, 0.0, 0.0
        self.ends: list[tuple[float, int, Any]] = []

    def next_s(self, now: float) -> float:
        return now + max(0.0, self.ends[0][0] - self.received) / self.rate
