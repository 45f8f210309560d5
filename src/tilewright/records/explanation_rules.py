"""The rules for the fields of an explanation that is read from a file: see ``explanation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import RecordError
from .json_data import (
    COUNT,
    NUMBER,
    NUMBERS,
    OBJECT,
    OBJECTS,
    PLAIN_VALUES,
    POSITIVE,
    TEXT,
    TRUTH,
    Rule,
    check_fields,
    is_count,
    is_number,
    many,
    mapping,
    nullable,
)
from .pipeline import check_pipeline

#: The most bytes that one lane may move: pictures draw every word of them. The widest instruction has 32.
_WIDEST = 128

_COUNT_OR_NULL, _NUMBER_OR_NULL, _TEXT_OR_NULL = nullable(COUNT), nullable(NUMBER), nullable(TEXT)
_TEXTS = many("a list of texts", TEXT.holds)
_TRIPLE = many("three whole numbers", is_count, least=3, most=3)
_PAIRS = many("a list of pairs of numbers", many("", is_number, least=2, most=2).holds)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("kernel", "file", "source", "dtype", "printed"), TEXT),
    **dict.fromkeys(("m", "n", "k"), COUNT),
    **{
        "params": PLAIN_VALUES,
        "counters": NUMBERS,
        "measured": nullable(OBJECT),
        "notes": _TEXTS,
        "approximate": _TEXTS,
    },
    "pipeline": nullable(OBJECT),
    "included": mapping("an object of texts", TEXT.holds),
    **dict.fromkeys(("about", "gpu", "launch", "resources", "occupancy", "verified", "run", "environment"), OBJECT),
    **dict.fromkeys(("accesses", "formulas", "bounds", "defects", "predicted"), OBJECTS),
}

#: The rules of the objects in lists.
_ITEMS: dict[str, dict[str, Rule]] = {
    "accesses": {
        **dict.fromkeys(("space", "kind", "file"), TEXT),
        **dict.fromkeys(("line", "requests", "bytes", "sectors", "wavefronts", "conflicts", "least", "origin"), COUNT),
        "nbytes": Rule(f"a whole number from 0 to {_WIDEST}", lambda x: is_count(x) and x <= _WIDEST),
        "exact": TRUTH,
        "lanes": many("a list of whole numbers and nulls, 32 at most", _COUNT_OR_NULL.holds, most=32),
    },
    "formulas": {
        **dict.fromkeys(("row", "what", "text"), TEXT),
        **dict.fromkeys(("value", "counted"), _NUMBER_OR_NULL),
    },
    "bounds": {
        **{"name": TEXT, "unit": TEXT, "amount": POSITIVE},
        "rate": Rule("a number above 0", lambda x: is_number(x) and x > 0),
    },
    "predicted": {"name": TEXT, "because": TEXT, "seconds": POSITIVE},
    "defects": {"kind": TEXT, "text": TEXT, "file": TEXT, "line": COUNT, "block": _TRIPLE, "thread": _TRIPLE},
}

#: The rules of the objects that are fields.
_FIELDS: dict[str, dict[str, Rule]] = {
    "about": dict.fromkeys(("idea", "parent", "row"), _TEXT_OR_NULL),
    "gpu": {
        **{"name": _TEXT_OR_NULL, "compute_capability": _TEXT_OR_NULL, "sms": _COUNT_OR_NULL},
        **dict.fromkeys(("clock_mhz", "peak_gflops", "bandwidth_gbs"), nullable(POSITIVE)),
    },
    "launch": {
        **dict.fromkeys(("grid", "block"), many("a list of whole numbers, 3 at most", is_count, most=3)),
        **dict.fromkeys(("blocks", "threads", "shared_bytes"), _COUNT_OR_NULL),
    },
    "resources": dict.fromkeys(("registers", "local_bytes", "shared_bytes", "max_threads"), _COUNT_OR_NULL),
    "occupancy": {
        **dict.fromkeys(("blocks", "warps", "max_warps"), _COUNT_OR_NULL),
        "limiting": _TEXTS,
        "limits": mapping("an object of whole numbers and nulls", _COUNT_OR_NULL.holds),
        **dict.fromkeys(("by_registers", "by_shared"), _PAIRS),
    },
    "verified": {
        **{"ok": nullable(TRUTH), "reason": _TEXT_OR_NULL, "of": _TEXT_OR_NULL, "at": _TEXT_OR_NULL},
        "error_over_bound": nullable(POSITIVE),
    },
    "run": {"complete": TRUTH, "exact": TRUTH, "words": TEXT, "seconds": nullable(POSITIVE)},
    "measured": {"counters": NUMBERS, "by_line": OBJECT, "environment": OBJECT, "verified": OBJECT},
}


def check_explanation(data: Mapping[str, Any], where: str) -> None:
    """Raises RecordError for the first field of an explanation that breaks its rule; ``where`` names the file."""
    check_fields(data, _RULES, where)
    for name, rules in _FIELDS.items():
        check_fields(data.get(name) or {}, rules, where, f"{name}.")
    check_pipeline(data.get("pipeline") or {}, where, "pipeline.")
    for name, rules in _ITEMS.items():
        for number, item in enumerate(data.get(name, ())):
            check_fields(item, rules, where, f"{name}[{number}].")
    for number, access in enumerate(data.get("accesses", ())):
        if access.get("lanes") and not access.get("nbytes", 1):
            raise RecordError(f"{where}: accesses[{number}].nbytes must be 1 or more where lanes have addresses, got 0")
