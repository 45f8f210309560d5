"""One warp's access to shared memory as a picture: 32 banks from left to right, their turns from top to bottom.

In one turn a bank serves one of its words, to every lane that accesses it; a lane that accesses another word of the same
bank waits. Atomics wait for each other even at the same word. A pass takes as many turns (wavefronts) as its busiest bank
has words to serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records.explanation import Access
from .access_picture import WIDTH, Picture, drawing, svg_text, titled_rectangle
from .words import with_noun

BANKS = 32
BANK = 4  # bytes of a bank a turn

LEFT = 62
COLUMN = (WIDTH - LEFT) / BANKS


@dataclass(frozen=True)
class Pass:
    """Lanes served together: ``stacks`` has, for each bank or group of banks, its words by turn, each with its lanes."""

    lanes: list[int]
    stacks: list[list[tuple[int, list[int]]]]

    @property
    def turns(self) -> int:
        """Wavefronts that it takes: the number of words that the busiest bank serves."""
        return max(len(stack) for stack in self.stacks)


def passes(kind: str, nbytes: int, lanes: Sequence[int | None]) -> list[Pass]:
    """How the hardware serves one request, by the rule measured on an H200; their turns add up to its wavefronts.

    Up to 4 bytes a lane one pass serves the warp, of 8 bytes each half of it, of 16 bytes each quarter. Where every lane
    accesses the same word as lane^1, or every lane the same as lane^2, a load of 8 bytes takes one pass, of 16 bytes two.

    >>> [p.turns for p in passes("ld", 4, [8 * lane for lane in range(32)])]
    [2]
    >>> [p.turns for p in passes("st", 16, [0] * 32)], [p.turns for p in passes("ld", 16, [0] * 32)]
    ([1, 1, 1, 1], [1, 1])
    >>> [p.turns for p in passes("atom", 4, [0] * 32)]
    [32]
    """
    unit = max(BANK, nbytes)
    words = {lane: at // unit for lane, at in enumerate(lanes) if at is not None}
    banks = max(1, BANKS * BANK // unit)
    size = 2 * banks if banks < BANKS and kind == "ld" and (_agree(words, 1) or _agree(words, 2)) else banks
    groups = (range(first, first + size) for first in range(0, BANKS, size))
    served = [[lane for lane in group if lane in words] for group in groups]
    return [Pass(group, _stacks(group, words, banks, alone=kind in ("atom", "red"))) for group in served if group]


def _agree(words: dict[int, int], step: int) -> bool:
    return all(word == words[lane ^ step] for lane, word in words.items() if lane ^ step in words)


def _stacks(
    group: Sequence[int], words: dict[int, int], banks: int, *, alone: bool
) -> list[list[tuple[int, list[int]]]]:
    """The words of each bank with their lanes; with ``alone`` each lane takes a turn of its own, as in atomics."""
    stacks: list[dict[tuple[int, int], list[int]]] = [{} for _ in range(banks)]
    for lane in group:
        stacks[words[lane] % banks].setdefault((words[lane], lane if alone else 0), []).append(lane)
    return [[(word, lanes) for (word, _), lanes in stack.items()] for stack in stacks]


def bank_picture(access: Access, ident: str) -> Picture | None:
    """The picture of the example request of an access to shared memory; None where it has none.

    ``ident`` is an identifier that no other picture of the page has.
    """
    served = passes(access.kind, access.nbytes, access.lanes)
    if (
        not served or access.kind == "cp.async"
    ):  # the turns of a copy depend on source and target; the example has one address
        return None
    unit = max(BANK, access.nbytes)
    parts, top = [], 0.0
    for number, one in enumerate(served, 1):
        title = f"pass {number} of {len(served)}: {_span(one.lanes)}" if len(served) > 1 else ""
        drawn, top = _pass(one, unit, top, title)
        parts += drawn
    caption = _caption(served, unit)
    name = "What one warp asks of the banks of shared memory"
    return Picture(drawing(ident, name, caption, top + 2, parts), caption, sum(one.turns for one in served))


def _pass(one: Pass, unit: int, top: float, title: str) -> tuple[list[str], float]:
    """The drawing of a pass that begins at ``top``, and where it ends."""
    drawn = []
    if title:
        drawn.append(svg_text(LEFT, top + 14, title, "start", "strong"))
        top += 20
    drawn.append(svg_text(0, top + 14, "bank", "start"))
    drawn += [svg_text(LEFT + (b + 0.5) * COLUMN, top + 14, str(b), "middle") for b in range(BANKS)]
    top += 20
    height = 22 if one.turns <= 16 else 14
    bottom = top + one.turns * height
    edges = "".join(f"M{LEFT + b * COLUMN:.1f} {top:g}V{bottom:g}" for b in range(BANKS + 1))
    drawn.append(f'<path class="banks" d="{edges}"/>')
    every = 1 if height > 14 else 4
    for turn in range(0, one.turns, every):
        drawn.append(svg_text(0, top + (turn + 0.5) * height + 4, f"turn {turn + 1}", "start"))
    wide = unit // BANK * COLUMN
    for column, stack in enumerate(one.stacks):
        for turn, (word, lanes) in enumerate(stack):
            x, y = LEFT + column * wide, top + turn * height
            hover = f"{_span(lanes)}: the {unit}-byte word at byte {word * unit:,}, turn {turn + 1}"
            drawn.append(
                titled_rectangle("word" if turn == 0 else "word late", x + 1, y + 1, wide - 2, height - 2, hover)
            )
            drawn.append(svg_text(x + wide / 2, y + height / 2 + 4, _label(lanes, wide), "middle", "number"))
    return drawn, bottom + 10


def _span(lanes: Sequence[int]) -> str:
    """Lanes in words.

    >>> _span([4, 5, 6, 7]), _span([1, 9]), _span([3])
    ('lanes 4–7', 'lanes 1, 9', 'lane 3')
    """
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if len(lanes) > 2 and lanes[-1] - lanes[0] == len(lanes) - 1:
        return f"lanes {lanes[0]}–{lanes[-1]}"
    return "lanes " + ", ".join(map(str, lanes))


def _label(lanes: Sequence[int], width: float) -> str:
    """The numbers of the lanes, or how many they are where the box is too narrow."""
    words = _span(lanes).split(" ", 1)[1]
    return words if len(words) * 6.4 < width else f"×{len(lanes)}"


def _caption(served: Sequence[Pass], unit: int) -> str:
    turns = sum(one.turns for one in served)
    wanted: dict[int, None] = dict.fromkeys(word for one in served for stack in one.stacks for word, _ in stack)
    active = sum(len(one.lanes) for one in served)
    what = f"{with_noun(active, 'lane')} {'ask' if active > 1 else 'asks'} for "
    what += f"{len(wanted)} different words of {unit} bytes" if len(wanted) > 1 else f"one word of {unit} bytes"
    apart = f", served in {with_noun(len(served), 'pass', 'passes')}" if len(served) > 1 else ""
    if turns == len(served):
        why = f"no two of {'a pass' if len(served) > 1 else 'them'} in one bank" if len(wanted) > 1 else "a broadcast"
        return f"{what}{apart}, {why}: {with_noun(turns, 'wavefront')}, the fewest possible."
    worst, bank = _busiest(served)
    banks = f"bank {bank}" if unit == BANK else f"banks {bank}–{bank + unit // BANK - 1}"
    whose = "a pass" if len(served) > 1 else "them"
    return f"{what}{apart}; {worst} of {whose} lie in {banks}: {with_noun(turns, 'wavefront')}, {len(served)} would do."


def _busiest(served: Sequence[Pass]) -> tuple[int, int]:
    """The number of words that the busiest bank serves in one pass, and the first column of that bank."""
    one = max(served, key=lambda p: p.turns)
    column = [len(stack) for stack in one.stacks].index(one.turns)
    return one.turns, column * (BANKS // len(one.stacks))
