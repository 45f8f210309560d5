"""Reads the CSV that the profiler ``ncu`` prints: counters of each launch, and counts of each machine instruction."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ...errors import UnavailableError
from ...gpu.runtime.mangled import demangled
from ...simulator.assembly.disassembly import MachineInstruction

#: Columns of ncu's source page, and their names here; counts of 0 are left out.
COLUMNS = {
    "Instructions Executed": "executed",
    "Thread Instructions Executed": "threads",
    "Predicated-On Thread Instructions Executed": "threads on",
    "L1 Tag Requests Global": "tag requests",
    "L2 Theoretical Sectors Global": "sectors",
    "L2 Theoretical Sectors Local": "local sectors",
    "L1 Wavefronts Shared": "wavefronts",
    "L1 Wavefronts Shared Ideal": "ideal wavefronts",
    "L1 Conflicts Shared N-Way": "ways",
}


#: The columns of the raw page that are counters; the others describe the device and the launch.
_METRIC = re.compile(r"(?:sm|smsp|l1tex|lts)__.*[.](?:sum|avg|max|min)")


@dataclass(frozen=True)
class CountedInstruction:
    """One machine instruction: its offset in the function, its text, and what was counted (``COLUMNS``)."""

    offset: int
    text: str
    counts: dict[str, int]


@dataclass(frozen=True)
class Profile:
    """One launch: its kernel's name as ncu prints it, blocks, threads a block, counters by name, its instructions in order.

    ``arrays`` are its arrays as the kernel left them, by position of the argument, if ``profile_launches`` made the launch.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: dict[str, float]
    instructions: list[CountedInstruction] = field(default_factory=list)
    arrays: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)


def is_name_of(printed: str, entry: str) -> bool:
    """Whether ``printed`` by ncu is the name of the kernel ``entry`` of the binary: the same, or demangled.

    >>> names = "plain(const float *, int)", "void plain<32, 4>(float *)", "other(float *)", "plainer(float *)", "plain"
    >>> [is_name_of(name, "_Z5plainPKfi") for name in names]
    [True, True, False, False, False]
    >>> is_name_of("plain", "plain")
    True
    """
    function = demangled(entry)
    in_cpp = rf"(?:[^(<]*\s)?{re.escape(function)}(?:<.*>)?\(.*\)"
    return printed == entry or (function != entry and re.fullmatch(in_cpp, printed) is not None)


def read_raw(text: str) -> list[Profile]:
    """Read the CSV of ``--page raw``, which may follow lines that the program printed.

    >>> text = 'hello\\n"ID","Kernel Name","Block Size","Grid Size","sm__m.sum"\\n"","","","","inst"\\n'
    >>> read_raw(text + '"0","k","(32, 1, 1)","(2, 1, 1)","1,024"\\n')
    [Profile(kernel='k', grid=(2, 1, 1), block=(32, 1, 1), counters={'sm__m.sum': 1024}, instructions=[])]
    """
    start = re.search(r'^"ID",', text, re.MULTILINE)
    if start is None:
        return []
    profiles = []
    for row in csv.DictReader(io.StringIO(text[start.start() :])):
        if not (row["ID"] or "").isdigit():
            continue  # the row of units
        cells = {name: _number(cell) for name, cell in row.items() if name and _METRIC.fullmatch(name)}
        counters = {name: value for name, value in cells.items() if value is not None}
        profiles.append(Profile(row["Kernel Name"], _extent(row["Grid Size"]), _extent(row["Block Size"]), counters))
    return profiles


def read_source(text: str) -> list[tuple[str, list[CountedInstruction]]]:
    """Read the CSV of ``--page source``: for each launch its kernel's name, and its instructions in order.

    >>> read_source('Kernel Name,k,\\nAddress,Source,Instructions Executed\\n0x7f10,"  EXIT",4\\n')
    [('k', [CountedInstruction(offset=0, text='EXIT', counts={'executed': 4})])]
    """
    launches: list[tuple[str, list[CountedInstruction]]] = []
    names: list[str] = []
    first = 0
    for row in csv.reader(io.StringIO(text)):
        if row[:1] == ["Kernel Name"]:
            launches.append((",".join(row[1:]).rstrip(","), []))  # a C++ name has commas between its types
            names = []
        elif "Address" in row and "Source" in row:
            names = row
        elif names and launches:
            cells = dict(zip(names, row, strict=False))
            address = int(cells["Address"], 16)
            first = address if not launches[-1][1] else first
            values = ((name, _number(cells.get(column))) for column, name in COLUMNS.items())
            counts = {name: int(value) for name, value in values if value}
            launches[-1][1].append(CountedInstruction(address - first, cells["Source"].strip(), counts))
    return launches


def by_line(
    instructions: Iterable[CountedInstruction], code: Iterable[MachineInstruction]
) -> dict[tuple[str, int], Counter[str]]:
    """File and source line, in the user's files → sums over its instructions; ``code`` is the disassembly of the same binary
    that ran.

    Raises UnavailableError if it is of another binary: it has no instruction at an offset, or one of another name.
    """
    known = {ins.offset: ins for ins in code}
    sums: dict[tuple[str, int], Counter[str]] = {}
    for counted in instructions:
        ins = known.get(counted.offset)
        if ins is None or ins.opcode not in counted.text:
            raise UnavailableError(
                f"the disassembly is of another binary: at {counted.offset:#x}, {counted.text} was run"
            )
        sums.setdefault((ins.users.file, ins.users.line), Counter()).update(counted.counts)
    return dict(sorted(sums.items()))


def _number(text: str | None) -> float | None:
    """A number as ncu prints it, with thousands separators; None for other text."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _extent(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in re.findall(r"\d+", text))
