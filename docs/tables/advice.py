"""What the model of advice says of changes, beside what was measured."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from typing import Any

from .common import RECORDS, lines_of, linked, table

PREDICTED, MEASURED = "predicted-changes", "advised-changes-h200"


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
        _said("Fewer wavefronts of shared memory (`register_rows`, with ROWS from 2 to 32)", rows_of_threads),
        _said("Wider blocks (`coalesced`)", deep),
        _said("Neighbouring elements for neighbouring lanes (`uncoalesced` → `coalesced`)", [(ladder[0], ladder[1])]),
    ]
    lines = "\n".join(f"- {each}" for each in said)
    what = "The kernels of this list are from the ladder, and compute products of 1,024³ on an H200"
    return f"{lines}\n\n{what}; record: {linked(PREDICTED)}.{measured()}"


def measured() -> str:
    """A row for each kernel that was measured before and after its advice; empty without that record."""
    if not (RECORDS / f"{MEASURED}.jsonl").is_file():
        return ""
    rows = [["kernel, n", "advice", "by the model, µs", "measured, µs", "predicted gain / measured gain"]]
    for row in lines_of(MEASURED)[1]:
        times = [" → ".join(f"{1e6 * seconds:.1f}" for seconds in row[name]) for name in ("predicted", "measured")]
        gain, real = (row[name][0] / row[name][1] for name in ("predicted", "measured"))
        rows.append([f"`{row['kernel']}`, {row['n']:,}", row["advice"], *times, f"{gain / real:.2f}"])
    what = (
        f"The table has times of [small kernels](../benchmarks/advised_changes.cu) before and after the advised change (→) "
        f"on an H200. Record: {linked(MEASURED)}."
    )
    return f"\n\n{table(rows)}\n\n{what}"


def _only_wider(one: dict[str, int], other: dict[str, int]) -> bool:
    return one["BLOCK_X"] < other["BLOCK_X"] and one["BLOCK_Y"] == other["BLOCK_Y"]


def _said(what: str, pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    ratios = [a["model"] / b["model"] / (a["measured"] / b["measured"]) for a, b in pairs]
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    if len(ratios) == 1:
        return f"{what}: the ratio of the only pair is {worst:.2f}"
    middle = f"the median ratio of {len(ratios)} pairs of kernels is {statistics.median(ratios):.2f}"
    return f"{what}: {middle}, and the worst is {worst:.2f}"
