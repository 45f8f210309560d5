"""Shows the source of a kernel with the cost of each line in the margin. Each line with accesses has a picture of one
warp's access."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..explanation import APPROXIMATELY, Access, Defect, Explanation
from ..source_rows import CONTEXT
from .access_picture import WIDTH, Picture, access_picture, drawing, svg_text, titled_rectangle
from .words import duration, finite, shortly, with_noun

_Placed = TypeVar("_Placed", Access, Defect)
#: A file, empty for the kernel's own, and a line of it.
_Place = tuple[str, int]

#: A line shows at most this many pictures; further kinds of access are counted.
MOST = 6

#: Sectors that the L1 cache serves in one turn. A turn of shared memory is a wavefront; a request takes at least one turn.
SECTORS_A_TURN = 4

_KEYWORDS = (
    "alignas|asm|auto|bool|break|case|char|class|const|constexpr|continue|default|do|double|else|enum|extern|false|float|"
    "for|goto|if|inline|int|long|namespace|new|nullptr|operator|private|public|register|return|short|signed|sizeof|static|"
    "static_assert|struct|switch|template|this|true|typedef|typename|union|unsigned|using|void|volatile|while"
)
_CUDA = (
    r"__\w+|threadIdx|blockIdx|blockDim|gridDim|warpSize|(?:float|double|int|uint|half|char|short|long)[1-4]|"
    r"u?int(?:8|16|32|64)_t|size_t|half|nv_bfloat16"
)
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)"
    r"|(?P<directive>^[ \t]*\#[ \t]*\w+)"
    r"|(?P<numeral>\b(?:0[xX][\da-fA-F']+|\d[\d']*\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\w*)"
    rf"|(?P<cuda>\b(?:{_CUDA})\b)|(?P<keyword>\b(?:{_KEYWORDS})\b)|\w+",
    re.MULTILINE | re.DOTALL,
)


def cuda_tokens(source: str) -> Iterator[tuple[str, str]]:
    """Return CUDA C++ source as pairs (kind, text). The kind is comment, string, directive, numeral, cuda, keyword, or
    empty for all other text.

    >>> [(kind, text) for kind, text in cuda_tokens("int i = threadIdx.x; // row") if kind]
    [('keyword', 'int'), ('cuda', 'threadIdx'), ('comment', '// row')]
    """
    end = 0
    for match in _TOKENS.finditer(source):
        if match.lastgroup is None:
            continue  # an identifier
        if match.start() > end:
            yield "", source[end : match.start()]
        yield match.lastgroup, match[0]
        end = match.end()
    if end < len(source):
        yield "", source[end:]


@dataclass(frozen=True)
class LineCost:
    """The cost of one line in one kind of memory.

    ``needed`` and ``wasted`` are the lengths of the two parts of the line's bar, in percent of the longest bar.
    """

    amount: str
    unit: str
    requests: str
    over: str
    needed: float
    wasted: float


@dataclass(frozen=True)
class Panel:
    """Similar accesses of a line, with the picture of one of them."""

    title: str
    facts: str
    picture: Picture | None


@dataclass(frozen=True)
class SourceLine:
    """A line of the source.

    ``number`` is 0 for accesses without a line, and ``open`` says whether the line's pictures are shown at first.
    """

    number: int
    tokens: list[tuple[str, str]]
    costs: list[LineCost] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    more: str = ""
    measured: str = ""
    defects: list[Defect] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    open: bool = False
    anchor: str = ""


@dataclass(frozen=True)
class SourceView:
    """The source lines of a kernel: the header comment, the lines after it, and entries for accesses and defects on
    lines that the source does not have.

    ``included`` has the included files by name, each with the lines that have accesses or defects, and the lines near
    them. ``room`` is the length of the longest text in the margin. ``anchors`` has the anchor of each line in the page,
    by file and line.
    """

    header: list[SourceLine]
    body: list[SourceLine]
    elsewhere: list[SourceLine]
    included: list[tuple[str, list[SourceLine]]]
    room: int
    anchors: dict[tuple[str, int], str]

    def anchor(self, defect: Defect) -> str:
        """Return the anchor in the page of a defect's line."""
        return self.anchors[defect.file, defect.line]


#: The first block comment with the lines of ``//`` and ``#`` above it.
_HEADER = r"(?:\s|//[^\n]*+|#[^\n]*+)*+/\*.*?\*/[^\S\n]*\n?"
_NOWHERE = [("comment", "// not in this file")]


def source_view(explanation: Explanation, ident: str) -> SourceView:
    """Return the view of an explanation's source. ``ident`` is an identifier that no other view on the page has."""
    coloured = _by_line(explanation.source)
    longest = max((turns(a) for a in by_memory(explanation.accesses)), default=0)
    dearest = _dearest(explanation.accesses)
    here = _grouped(explanation.accesses), _grouped(explanation.defects)
    files = ["", *explanation.included]
    anchors: dict[tuple[str, int], str] = {}

    def line(file: str, number: int, shown: list[tuple[str, str]]) -> SourceLine:
        place = (file, number)
        number_of_file = f"{files.index(file)}-" if file else ""
        anchors[place] = f"{ident}-{number_of_file}{number}"
        placed = (here[0].get(place, []), here[1].get(place, []))
        made = _line(explanation, place, shown, placed, longest, anchors[place])
        return replace(made, open=place == dearest)

    lines = [line("", number, shown) for number, shown in enumerate(coloured, 1)]
    included = [
        (file, [line(file, number, shown) for number, shown in _shown(text, file, here)])
        for file, text in explanation.included.items()
    ]
    missing = sorted(place for place in here[0].keys() | here[1].keys() if place not in anchors)
    elsewhere = [line("", number, _NOWHERE) for _, number in missing]
    anchors |= {place: anchors["", place[1]] for place in missing}
    header = re.match(_HEADER, explanation.source, re.DOTALL)
    above = header[0].count("\n") if header else 0
    while above < len(lines) and header and not any(text.strip() for _, text in lines[above].tokens):
        above += 1
    every = [*lines, *elsewhere, *(line for _, of_file in included for line in of_file)]
    margin = [len(f"{c.amount} {c.unit} / {c.requests}") for line in every for c in line.costs]
    return SourceView(lines[:above], lines[above:], elsewhere, included, max(margin, default=0), anchors)


def _shown(
    text: str, file: str, here: tuple[dict[_Place, list[Access]], dict[_Place, list[Defect]]]
) -> list[tuple[int, list[tuple[str, str]]]]:
    """The lines of an included file that have accesses or defects, and their neighbours; without text only the
    former."""
    numbers = {line for name, line in (*here[0], *here[1]) if name == file}
    if not text:
        return [(number, [("comment", "// the file cannot be read")]) for number in sorted(numbers)]
    near = {number + by for number in numbers for by in range(-CONTEXT, CONTEXT + 1)}
    return [(number, shown) for number, shown in enumerate(_by_line(text), 1) if number in near]


def _grouped(items: Iterable[_Placed]) -> dict[_Place, list[_Placed]]:
    """By the file and line that they name."""
    found: dict[_Place, list[_Placed]] = {}
    for item in items:
        found.setdefault((item.file, item.line), []).append(item)
    return found


def _by_line(source: str) -> list[list[tuple[str, str]]]:
    lines: list[list[tuple[str, str]]] = [[]]
    for kind, text in cuda_tokens(source.replace("\r\n", "\n").rstrip("\n")):
        first, *others = text.split("\n")
        lines[-1].append((kind, first))
        lines += [[(kind, other)] for other in others]
    return lines


def turns(access: Access) -> float:
    """Return the number of wavefronts that an access takes in the L1 cache and shared memory."""
    return _turns(access, access.cost)


def waste(access: Access) -> float:
    """Return the part of ``turns`` that the best arrangement of the same bytes would save."""
    return turns(access) - _turns(access, min(access.least, access.cost))


def _turns(access: Access, cost: int) -> float:
    return cost if access.space == "shared" else max(access.requests, cost / SECTORS_A_TURN)


def _dearest(accesses: Iterable[Access]) -> _Place | None:
    """The file and line that wastes most, or costs most where none wastes."""
    costs: dict[_Place, tuple[float, float]] = {}
    for access in accesses:
        place = (access.file, access.line)
        wasted, cost = costs.get(place, (0.0, 0.0))
        costs[place] = (wasted + waste(access), cost + turns(access))
    return max(costs, key=lambda place: costs[place], default=None)


def by_memory(accesses: Iterable[Access]) -> list[Access]:
    """Return one access for each line and memory, with the sums of all accesses and the example of the first access."""
    found: dict[tuple[str, int, str], list[Access]] = {}
    for access in accesses:
        found.setdefault((access.file, access.line, access.space), []).append(access)
    return [_summed(group) for group in found.values()]


def _summed(group: list[Access]) -> Access:
    names = ("requests", "bytes", "sectors", "wavefronts", "conflicts", "least")
    sums = {name: sum(getattr(a, name) for a in group) for name in names}
    return replace(group[0], **sums, exact=all(a.exact for a in group))


def _line(
    explanation: Explanation,
    place: _Place,
    tokens: list[tuple[str, str]],
    here: tuple[list[Access], list[Defect]],
    longest: float,
    anchor: str,
) -> SourceLine:
    accesses, defects = here
    alike = _alike(accesses)
    return SourceLine(
        place[1],
        tokens,
        [_cost(access, longest) for access in by_memory(accesses)],
        [_panel(group, f"{anchor}-{i}") for i, group in enumerate(alike[:MOST])],
        f"{with_noun(len(alike) - MOST, 'more kind')} of access, each cheaper than these." if len(alike) > MOST else "",
        _measured(explanation.measured, f"{place[0]}:{place[1]}" if place[0] else str(place[1])),
        defects,
        [each.sentence(duration) for each in explanation.advice if place[1] and (each.file, each.line) == place],
        anchor=anchor,
    )


def _cost(access: Access, longest: float) -> LineCost:
    percent = 100 / longest if longest else 0
    return LineCost(
        f"{access.cost:,}" if access.exact else f"{APPROXIMATELY} {access.cost:,}",
        access.unit if access.space in ("global", "shared") else f"{access.space} {access.unit}",
        f"{access.requests:,}",
        f"×{shortly(access.cost / access.least)}" if access.cost > access.least > 0 else "",
        round(percent * (turns(access) - waste(access)), 2),
        round(percent * waste(access), 2),
    )


def _alike(accesses: Iterable[Access]) -> list[list[Access]]:
    """Groups the accesses of one line that differ in their addresses only; those that waste or cost most come first."""
    found: dict[tuple[Any, ...], list[Access]] = {}
    for access in accesses:
        first = min((at for at in access.lanes if at is not None), default=0)
        shape = tuple(None if at is None else at - first for at in access.lanes)
        rates = (access.cost / access.requests, access.least / access.requests) if access.requests else ()
        found.setdefault((access.space, access.kind, access.nbytes, rates, shape), []).append(access)
    return sorted(found.values(), key=lambda group: -sum(2 * a.cost - a.least for a in group))


_KINDS = {
    "ld": "loads", "st": "stores", "atom": "atomics", "red": "reductions", "cp.async": "asynchronous copies",
    "ldmatrix": "matrix loads", "stmatrix": "matrix stores",
}  # fmt: skip


def _panel(group: list[Access], ident: str) -> Panel:
    """One panel for a group of ``_alike``; the picture is of the first access."""
    total = _summed(group)
    kind = _KINDS.get(total.kind, total.kind)
    title = f"{total.space.capitalize()} {kind}"
    if total.nbytes:
        title += f", {with_noun(total.nbytes, 'byte')} per lane"
    if len(group) > 1:
        title += f": {len(group)} similar instructions"
    facts = f"{with_noun(total.cost, total.unit[:-1])} for {with_noun(total.requests, 'request')}"
    if total.requests > 1:
        facts += f", {shortly(total.cost / total.requests)} each"
    if total.cost > total.least > 0:
        facts += f"; {total.least:,} would be enough"
    drawn = (bank_picture if total.space == "shared" else access_picture)(group[0], ident)
    dearest = " The picture shows the most expensive one." if drawn and drawn.cost * total.requests > total.cost else ""
    inside = ", ".join(dict.fromkeys(access.inside for access in group if access.inside))
    called = f" Called from here: {inside}." if inside else ""
    return Panel(title, f"{facts}.{dearest}{called}", drawn)


def _measured(measured: dict[str, Any] | None, place: str) -> str:
    """The counters that a GPU measured for this line; empty where there are none."""
    by_line = (measured or {}).get("by_line") or {}
    counters = by_line.get(place) if isinstance(by_line, dict) else None
    if not isinstance(counters, dict) or not counters:
        return ""
    return "Measured on this line: " + ", ".join(f"{name} {_number(value)}" for name, value in counters.items()) + "."


def _number(value: Any) -> str:
    return str(value) if finite(value) is None else f"{value:,}"


# ---- bank picture ----------------------------------------------------------------------------------------------------
# One warp's access to shared memory as a picture: 32 banks from left to right, their turns from top to bottom.
#
# In one turn a bank serves one of its words, to every lane that accesses it; a lane that accesses another word of the same
# bank waits. Atomics wait for each other even at the same word. A pass takes as many turns (wavefronts) as its busiest
# bank has words to serve.


BANKS = 32
BANK = 4  # bytes of a bank a turn

LEFT = 102
COLUMN = (WIDTH - LEFT) / BANKS


@dataclass(frozen=True)
class Pass:
    """Lanes that are served together.

    ``stacks`` has, for each bank or group of banks, the words that it serves, one in each wavefront. Each word in
    ``stacks`` has the lanes that access it.
    """

    lanes: list[int]
    stacks: list[list[tuple[int, list[int]]]]

    @property
    def turns(self) -> int:
        """The number of wavefronts that the pass takes, which is the number of words that the busiest bank serves."""
        return max(len(stack) for stack in self.stacks)


def passes(kind: str, nbytes: int, lanes: Sequence[int | None]) -> list[Pass]:
    """Return the passes in which the hardware serves one request, by the rule that was measured on an H200. The sum of
    the passes' ``turns`` is the request's number of wavefronts.

    If each lane accesses up to 4 bytes, one pass serves the warp. If each lane accesses 8 bytes, a pass serves half of
    the warp, and if each accesses 16 bytes, a quarter. There is an exception for loads in which every lane accesses the
    same word as lane^1, or every lane the same as lane^2: such a load of 8 bytes takes one pass, and one of 16 bytes
    takes two.

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
    """Return the picture of the example request of an access to shared memory, or None if the access has no example.

    ``ident`` is an identifier that no other picture on the page has.
    """
    served = passes(access.kind, access.nbytes, access.lanes)
    if (
        not served or access.kind == "cp.async"
    ):  # the turns of a copy depend on source and target; the example has one address
        return None
    unit = max(BANK, access.nbytes)
    parts, top = [], 0.0
    for number, one in enumerate(served, 1):
        title = f"group {number} of {len(served)}: {_span(one.lanes)}" if len(served) > 1 else ""
        drawn, top = _pass(one, unit, top, title)
        parts += drawn
    caption = _caption(served, unit)
    name = "What one warp requests from the banks of shared memory"
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
        drawn.append(svg_text(0, top + (turn + 0.5) * height + 4, f"wavefront {turn + 1}", "start"))
    wide = unit // BANK * COLUMN
    for column, stack in enumerate(one.stacks):
        for turn, (word, lanes) in enumerate(stack):
            x, y = LEFT + column * wide, top + turn * height
            hover = f"{_span(lanes)}: the {unit}-byte word at byte {word * unit:,}, wavefront {turn + 1}"
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
    what = f"{with_noun(active, 'lane')} {'request' if active > 1 else 'requests'} "
    what += f"{len(wanted)} different words of {unit} bytes" if len(wanted) > 1 else f"one word of {unit} bytes"
    apart = f" in {len(served)} groups of lanes" if len(served) > 1 else ""
    whose = "a group" if len(served) > 1 else "them"
    if turns == len(served):
        why = f"no two of {whose} in one bank" if len(wanted) > 1 else "a broadcast"
        return f"{what}{apart}, {why}: {with_noun(turns, 'wavefront')}, the fewest possible."
    worst, bank = _busiest(served)
    banks = f"bank {bank}" if unit == BANK else f"banks {bank}–{bank + unit // BANK - 1}"
    conflict = f"{worst} of {whose} lie in {banks}"
    return f"{what}{apart}; {conflict}: {with_noun(turns, 'wavefront')}; {len(served)} would be enough."


def _busiest(served: Sequence[Pass]) -> tuple[int, int]:
    """The number of words that the busiest bank serves in one pass, and the first column of that bank."""
    one = max(served, key=lambda p: p.turns)
    column = [len(stack) for stack in one.stacks].index(one.turns)
    return one.turns, column * (BANKS // len(one.stacks))
