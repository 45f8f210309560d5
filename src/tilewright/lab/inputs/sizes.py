"""What ``--sizes`` takes: ``512,1000`` · ``16:4096:x2`` · ``100:500:+100`` · ``6x2000x2000``; and what options of time
take."""

from __future__ import annotations

import re

from ...errors import UsageError

Shape = tuple[int, int, int]
#: A small size whose sides all differ and that no usual tile divides. A kernel without guards at edges, and one that
#: confuses m, n and k, is right at many squares, and wrong here.
ODD_SIZE = (33, 37, 29)

#: Most sizes in one run, and the largest one: text that exceeds these is taken for a typing error.
MOST_SIZES = 1000
LARGEST = 10**9

_RULE = "a size is N, MxNxK, FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, and several are joined by commas"


def is_odd(m: int, n: int, k: int) -> bool:
    """Whether a size shows as much as ``ODD_SIZE`` does.

    >>> is_odd(33, 37, 29), is_odd(64, 64, 64), is_odd(33, 37, 32)
    (True, False, False)
    """
    return len({m, n, k}) == 3 and all(side % 8 for side in (m, n, k))


def parse_sizes(text: str) -> list[Shape]:
    """Shapes (m, n, k) in the order given, each once. Raises UsageError.

    >>> parse_sizes("16:64:x2,6x2000x4")
    [(16, 16, 16), (32, 32, 32), (64, 64, 64), (6, 2000, 4)]
    """
    shapes: dict[Shape, None] = {}
    for item in text.split(","):
        shapes |= dict.fromkeys(_item(item.strip()))
    if len(shapes) > MOST_SIZES:
        raise UsageError(f"sizes {text!r}: at most {MOST_SIZES} sizes in one run, got {len(shapes)}")
    return list(shapes)


def _item(item: str) -> list[Shape]:
    if re.fullmatch(r"\d+", item):
        return [_cube(_size(item))]
    if match := re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)", item):
        m, n, k = (_size(text) for text in match.groups())
        return [(m, n, k)]
    if match := re.fullmatch(r"(\d+):(\d+):([x+]?)(\d+(?:\.\d+)?)", item):
        first, last, kind, step = match.groups()
        return [_cube(n) for n in _range(item, _size(first), _size(last), kind or "+", float(step))]
    raise UsageError(f"sizes {item!r}: {_RULE}")


def _size(text: str) -> int:
    if len(text) > 10 or int(text) > LARGEST:
        raise UsageError(f"sizes: a size is at most {LARGEST:,}, got {text:.40}")
    return int(text)


def _cube(n: int) -> Shape:
    return (n, n, n)


def _range(item: str, first: int, last: int, kind: str, step: float) -> list[int]:
    if first > last:
        raise UsageError(f"sizes {item!r}: the first size must not exceed the last")
    if (kind == "x" and (step <= 1 or first == 0)) or (kind == "+" and step < 1):
        raise UsageError(f"sizes {item!r}: the range never ends; a factor must exceed 1, a step be at least 1")
    sizes: list[int] = []
    size = float(first)
    while size <= last:
        if len(sizes) == MOST_SIZES:
            raise UsageError(f"sizes {item!r}: at most {MOST_SIZES} sizes in one run; take a larger factor or step")
        sizes.append(round(size))
        size = size * step if kind == "x" else size + step
    return sizes


_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


def parse_seconds(name: str, text: str) -> float:
    """A time as ``--limit`` and ``--budget`` take it, in seconds; ``name`` is the option. Raises UsageError.

    >>> parse_seconds("limit", "500ms"), parse_seconds("limit", "2 min")
    (0.5, 120.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{name} must be a time such as 10s, 500ms or 2min, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]
