"""What the model of advice says of changes, beside what was measured."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from typing import Any

from .common import lines_of, linked

PREDICTED = "predicted-changes"


def changes() -> str:
    """For each class of changes, the predicted gain over the measured: the median, and the one that is farthest off."""
    rows = lines_of(PREDICTED)[1]
    ladder, widths, registers = (
        [row for row in rows if row["record"] == record]
        for record in ("cuda-ladder-h200", "cuda-block-size-h200", "cuda-register-rows-h200")
    )
    rows_of_threads = itertools.combinations(registers, 2)
    deep = [pair for pair in itertools.combinations(widths, 2) if _only_wider(*(row["params"] for row in pair))]
    said = [
        _said("fewer wavefronts of shared memory (`register_rows`, ROWS from 2 to 32)", rows_of_threads),
        _said("wider blocks of `coalesced`", deep),
        _said("neighbours for lanes (`uncoalesced` → `coalesced`)", [(ladder[0], ladder[1])]),
    ]
    lines = "\n".join(f"- {each}" for each in said)
    return f"{lines}\n\nAt 1,024 on an H200; record: {linked(PREDICTED)}."


def _only_wider(one: dict[str, int], other: dict[str, int]) -> bool:
    return one["BLOCK_X"] < other["BLOCK_X"] and one["BLOCK_Y"] == other["BLOCK_Y"]


def _said(what: str, pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    ratios = [a["model"] / b["model"] / (a["measured"] / b["measured"]) for a, b in pairs]
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    if len(ratios) == 1:
        return f"{what}: {worst:.2f}"
    return f"{what}: {statistics.median(ratios):.2f} in the median of {len(ratios)} pairs, {worst:.2f} at worst"
