"""Simulated products on clusters of growing size, as plain data: JSON Lines, with one number of workers in each line.

All figures were simulated, and none was measured on a cluster. Each line says which rates were assumed, and what
follows from these rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RecordError
from .json_data import (
    COUNT,
    MOST_S,
    NUMBERS,
    OBJECT,
    POSITIVE,
    TEXT,
    Rule,
    check_fields,
    check_kind,
    dumped,
    from_fields,
    is_count,
    is_seconds,
    many,
    nullable,
    parse_json,
    read_text,
)

SCHEMA = 1
KIND = "scaling"
#: What a worker does at any time. It computes, or waits: for its link, for storage that others use too, for the scheduler,
#: or for the start of the cluster. Or it has no tile left while others still compute ("balance").
SPENT = ("compute", "link", "storage", "scheduler", "start", "balance")
#: Where the operands are: in storage that all workers use, or each block at one worker.
WHERE = ("storage", "workers")
#: The efficiency, and sums of fractions, may differ by this much from what other fields say.
ROUNDING = 1e-6


@dataclass(frozen=True)
class ScalingPoint:
    """A product on ``workers`` workers, of which the plan uses ``used``. Each used worker has a part of C; ``parts``
    are the numbers of parts into which the rows and the columns of C are divided.

    ``rates`` has figures of one worker: the operations a second (``flops``), the bytes a second of its link in each
    direction (``link_bytes``), the latency of each load or store (``latency_s``), and the bytes of memory for blocks
    (``memory``). ``rates`` also has figures of the whole cluster. If the operands are in storage, ``storage_bytes`` is
    the rate of the storage in bytes a second, or ``storage_each_bytes`` its rate for each worker if it grows with the
    number of workers. The scheduler needs ``task_s`` seconds for each tile, a message takes ``message_s``, and workers
    are ready at ``start_s``. ``total_s`` was simulated; ``predicted_s`` is the time that the plan's simpler model
    predicts. ``efficiency`` is the number of operations of the product, divided by the number that all ``workers``
    could do in ``total_s``. The numbers of bytes are sums over all workers. ``moved_bytes`` are moved into and out of
    the memories where blocks are multiplied, ``least_bytes`` is the fewest that any order of the tiles moves, and
    ``received_bytes`` are received from storage or other workers. ``shares`` has for each activity in SPENT the
    fraction of the used workers' time that it takes. In a series of weak scaling, the product grows with the number of
    workers; ``grown_from`` is the shape with which the series begins.
    """

    m: int
    n: int
    k: int
    dtype: str
    where: str
    workers: int
    used: int
    parts: tuple[int, int]
    tiles: tuple[int, int]
    tile: tuple[int, int, int]
    order: str
    slots: tuple[int, int, int]
    rates: dict[str, float]
    predicted_s: float
    total_s: float
    efficiency: float
    moved_bytes: int
    least_bytes: int
    received_bytes: int
    shares: dict[str, float]
    grown_from: tuple[int, int, int] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    kind: str = KIND

    @property
    def ideal_s(self) -> float:
        """The time in seconds that the product would take if all workers computed all of the time."""
        return 2.0 * self.m * self.n * self.k / self.workers / self.rates["flops"]

    @property
    def owned_bytes(self) -> int:
        """The bytes of A, B and C that each worker owns, if the operands are at the workers."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return math.ceil(elements * (8 if self.dtype == "float64" else 4) / self.workers)

    @property
    def series(self) -> str:
        """The series to which the point belongs, as text: the points of one line of a chart have the same series."""
        return shape_text(*(self.grown_from or (self.m, self.n, self.k)))

    @property
    def loss(self) -> str:
        """The cause that takes most of the time in which workers do not compute.

        If the plan leaves workers unused, the cause is storage, whose rate for each worker would be lower with more
        workers.
        """
        if self.used < self.workers and self.where == "storage":
            return "storage"
        return max(SPENT[1:], key=lambda what: self.shares[what])

    @property
    def binds(self) -> str:
        """The cause that limits the speed: "compute" if the efficiency is at least a half, otherwise the cause that
        takes most of the remaining time."""
        return "compute" if self.efficiency >= 0.5 else self.loss


def shape_text(m: int, n: int, k: int) -> str:
    """
    >>> shape_text(131072, 131072, 131072), shape_text(6, 2000, 4)
    ('131,072³', '6 × 2,000 × 4')
    """
    return f"{n:,}³" if m == n == k else f"{m:,} × {n:,} × {k:,}"


# ---- files -----------------------------------------------------------------------------------------------------------

_POSITIVE_COUNT = Rule("a whole number from 1 to 2^63 - 1", lambda value: is_count(value) and value > 0)
_TIME = Rule("seconds, above 0", lambda value: is_seconds(value) and 0 < value <= MOST_S)


def _counts(number: int) -> Rule:
    words = f"{number} positive whole numbers"
    return many(words, lambda value: is_count(value) and value > 0, least=number, most=number)


_RULES = {
    **dict.fromkeys(("m", "n", "k", "workers", "used"), _POSITIVE_COUNT),
    **{"parts": _counts(2), "tiles": _counts(2), "tile": _counts(3), "slots": _counts(3)},
    **{
        "grown_from": nullable(_counts(3)),
        "dtype": TEXT,
        "order": TEXT,
        "where": Rule(f"one of {WHERE}", lambda value: value in WHERE),
    },
    **{"rates": NUMBERS, "shares": NUMBERS, "environment": OBJECT},
    **{"predicted_s": _TIME, "total_s": _TIME, "efficiency": POSITIVE},
    **dict.fromkeys(("moved_bytes", "least_bytes", "received_bytes"), COUNT),
}


def write_scaling(path: str | Path, points: Iterable[ScalingPoint]) -> None:
    """Write simulated points to a new file. Raises OSError if the file cannot be written."""
    with Path(path).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.writelines(scaling_line(point) + "\n" for point in points)


def scaling_line(point: ScalingPoint) -> str:
    """Convert a point to one line of JSON."""
    data = asdict(point)
    return dumped({"kind": data.pop("kind"), "schema": data.pop("schema")} | data)


def read_scaling(path: str | Path) -> list[ScalingPoint]:
    """Read every simulated point of a file.

    Raises RecordError, which names the line and the field, for a file that is missing, empty, damaged or of another
    kind, and for numbers that contradict each other.
    """
    lines = enumerate(read_text(path, "a record of scaling").split("\n"), 1)
    points = [_point(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not points:
        raise RecordError(f"{path}: holds no record of scaling")
    return points


def _point(line: str, where: str) -> ScalingPoint:
    data = parse_json(line, where, "record of scaling")
    if not isinstance(data, dict):
        raise RecordError(f"{where}: must be an object, got {type(data).__name__}")
    check_kind(data, KIND, SCHEMA, where)
    check_fields(data, _RULES, where)
    point = from_fields(ScalingPoint, data, where)
    for wrong in _contradictions(point):
        raise RecordError(f"{where}: {wrong}")
    return point


def _contradictions(point: ScalingPoint) -> Iterable[str]:
    """What cannot be, in words."""
    rates, shares, total_s = point.rates, point.shares, point.total_s
    missing = [name for name in ("flops", "link_bytes") if not rates.get(name, 0) > 0]
    if missing or set(shares) != set(SPENT) or min(shares.values()) < 0:
        yield f"rates must have flops and link_bytes above 0, and shares must have {', '.join(SPENT)}, none negative"
        return
    if point.where == "storage" and not rates.get("storage_bytes", 0) > 0:
        yield "rates must have storage_bytes above 0, where the operands are in storage"
        return
    if math.prod(point.parts) != point.used or point.used > point.workers:
        yield f"parts must be as many as used workers, and these no more than workers, got {point.parts}, {point.used}"
    covered = [math.ceil(length / side) for length, side in ((point.m, point.tile[0]), (point.n, point.tile[1]))]
    if list(point.tiles) != covered:
        yield f"tiles must be {covered} for this shape and tile, got {list(point.tiles)}"
    if abs(sum(shares.values()) - 1) > ROUNDING:
        yield f"shares must have the sum 1, got {sum(shares.values())}"
    if abs(point.efficiency * total_s / point.ideal_s - 1) > ROUNDING:
        yield f"efficiency must be {point.ideal_s / total_s:.6g}, from shape, workers, flops and total_s"
    if shares["compute"] * point.used / point.workers < point.efficiency * (1 - ROUNDING):
        yield "shares: workers cannot compute less than their operations take"
    if point.moved_bytes < point.least_bytes:
        yield f"moved_bytes must be least_bytes ({point.least_bytes}) at least, got {point.moved_bytes}"
    received_s = point.received_bytes / min(point.used * rates["link_bytes"], rates.get("storage_bytes") or math.inf)
    if received_s > total_s * (1 + ROUNDING):
        yield f"received_bytes take {received_s:.6g} s at these rates, more than total_s"
