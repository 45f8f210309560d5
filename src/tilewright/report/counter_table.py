"""Tables of counters and formulas: what was counted, next to what a formula gives or a GPU measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..records.explanation import ABOUT, Explanation
from ..records.unit_counters import UNIT_LABELS
from .words import finite, shortly

_OPS = {
    "ld": "loads", "st": "stores", "atom": "atomics", "red": "reductions", "ldgsts": "asynchronous copies",
    "ldsm": "matrix loads", "stsm": "matrix stores",
}  # fmt: skip
#: Part of a counter's name → what it counts.
_WHAT = {
    "t_requests_": "requests: instructions, counted per warp",
    "inst_executed_op_": "requests: instructions, counted per warp",
    "t_sectors_": "sectors: 32 bytes moved each",
    "data_bytes_mem_": "bytes asked for",
    "wavefronts_mem_": "wavefronts: turns of the 32 banks",
    "data_bank_conflicts_": "bank conflicts: additional turns",
}


@dataclass(frozen=True)
class CounterRow:
    """A row of either table; ``match`` is ✓, a difference, or empty where there is nothing to compare."""

    name: str
    words: str
    text: str
    expected: str
    found: str
    match: str

    @property
    def agrees(self) -> bool:
        """Whether there is no difference."""
        return self.match in ("", "✓")


def counters(explanation: Explanation) -> list[CounterRow]:
    """A row for each counter: ``expected`` is what the microscope counted, ``found`` what a GPU measured. Counters that
    were only measured come last."""
    measured = (explanation.measured or {}).get("counters") or {}
    names = dict.fromkeys([*explanation.counters, *measured])
    return [
        CounterRow(name, counter_words(name), "", *_marked(name, explanation, measured.get(name))) for name in names
    ]


def _marked(name: str, explanation: Explanation, measured: Any) -> tuple[str, str, str]:
    """``_compared`` of a counter; a prediction that is not exact is marked."""
    expected, found, match = _compared(explanation.counters.get(name), measured)
    return f"{ABOUT} {expected}" if name in explanation.approximate else expected, found, match


def formulas(explanation: Explanation) -> list[CounterRow]:
    """Every formula, its value (``expected``) and what was counted (``found``)."""
    return [CounterRow(f.row, f.what, f.text, *_compared(f.value, f.counted)) for f in explanation.formulas]


def _compared(expected: Any, found: Any) -> tuple[str, str, str]:
    first, second = finite(expected), finite(found)
    return _number(first), _number(second), _match(first, second)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else shortly(value)


def _match(expected: float | None, found: float | None) -> str:
    """✓, or by how much the second differs from the first.

    >>> _match(40960, 40960), _match(40960, 42000), _match(40960, 40961), _match(100, 660), _match(0, 3)
    ('✓', '+2.5%', '+1', '×6.6', '+3')
    """
    if expected is None or found is None:
        return ""
    if expected == found:
        return "✓"
    if not expected or abs(found - expected) < 0.0005 * abs(expected):
        return f"{found - expected:+,g}"
    ratio = found / expected
    return f"{ratio - 1:+.1%}" if 0.5 < ratio < 2 else f"×{shortly(ratio)}"


def counter_words(name: str) -> str:
    """A hardware counter's name in words; empty for one that is not known here.

    >>> counter_words("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    'global loads, sectors: 32 bytes moved each'
    >>> counter_words("dram__bytes_read.sum")
    ''
    """
    if name in UNIT_LABELS:
        return UNIT_LABELS[name]
    what = next((words for part, words in _WHAT.items() if part in name), "")
    found = re.search(r"_(?:mem|op)_(?P<space>global|local|shared)(?:(?:_op)?_(?P<op>[a-z]+))?\.sum$", name)
    if not what:
        return ""
    if found is None:  # cp.async and matrix loads have instruction counters of their own
        own = re.search(r"_op_(ldgsts|ldsm|stsm)\.sum$", name)
        return f"shared {_OPS[own[1]]}, {what}" if own else ""
    if found["op"] is None:
        return f"{found['space']} memory, all accesses, {what.split(':')[0].removeprefix('bank ')}"
    return f"{found['space']} {_OPS.get(found['op'], found['op'])}, {what}"
