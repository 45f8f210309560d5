"""What ptxas changes between PTX and the machine: read from the disassembly of the binary, without a GPU.

Seen on an H200 (ncu 2025.3, CUDA 13.0, 2026-11-20) with the kernels of ``tests/data/five.cu`` at n = 64, whose readings
are ``five-kernels-h200.json``, and of ``twelve.cu``:

- **Fusing.** Neighbouring accesses become one wide access. ``tiled`` reads its row of A with 32 ``ld.shared.f32``
  a tile, base + 0, 4, ... 124; the binary has 8 ``LDS.128`` in their place, and 32 ``LDS`` for B whose words lie
  128 bytes apart. PTX 16,384 load instructions, machine and profiler 10,240; each broadcast LDS.128 takes two
  wavefronts, 12,288 in all. ``tile2d`` has 8 ``LDS`` + 2 ``LDS.128`` a step, x 128 steps = the 1,280 counted.
- **Predication.** A short branch becomes a guard, and a guarded instruction is issued by every warp that reaches
  it, also with no lane left. ``vec`` copies B with 2 ``st.shared.v4`` a tile and warp of an unrolled remainder of
  3; the third is ``@P0 STS.128`` in the block of the second: 11 stores a tile where the PTX executes 10, 176 for
  160, and wavefronts that do not change. Global *requests* do not count such an issue (``@P0 LDG`` beside it is
  not among the 64 counted), so this is applied to shared memory alone.
- **Padding.** Three ``@!PT LDS`` come before asynchronous copies, 6 a warp in ``async_copies``, and count as loads issued.
- **Atomics.** One whose result nobody reads becomes a reduction (``REDG``, 3 of 4 in ``global_atomics``). One at an
  address that all lanes share is reduced over the warp first, and a lane that the warp votes for acts alone
  (``REDUX``, ``VOTEU``, ``@P1 ATOMS.MAX``: 8 wavefronts where 256 lanes ask). Sums in shared memory that no instruction
  can do become loops that try again, as often as threads get in each other's way: that is said, not counted.

Instructions are matched by source line, memory space and kind. What cannot be matched (ptxas dropped, moved or
re-rolled accesses, or keeps registers in local memory) keeps its PTX counts and is said in ``notes``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .disassembly import VOTES, Group, MachineInstruction, access_group
from .instructions import Instruction
from .program import Program
from .variables import SIZES


@dataclass(frozen=True)
class PtxAccess:
    """An access of the PTX: ``base`` is the address register and its generation in the basic block."""

    index: int
    file: str
    line: int
    space: str
    kind: str
    base: tuple[object, ...]
    offset: int
    nbytes: int
    loop: bool = False  # whether a jump back leads over it

    @property
    def group(self) -> Group:
        """What the access has in common with the machine instruction that it becomes."""
        return access_group(self.file, self.line, self.space, self.kind)


def ptx_accesses(program: Program) -> list[PtxAccess]:
    """Accesses of a program, in order, with what is known of the addresses of loads and stores before it runs."""
    found = []
    back = [(program.labels.get(i.operands[0], i.index), i.index) for i in program.code if i.parts[0] == "bra"]
    for block in program.blocks:
        loop = any(first <= block.first <= last for first, last in back)
        written: Counter[str] = Counter()
        for ins in program.code[block.first : block.last + 1]:
            if form := _form(ins):
                space, kind, nbytes = form
                base, _, offset = ins.operands[1 if kind == "ld" else 0].strip("[] ").partition("+")
                fusible = kind in ("ld", "st")
                key = (block.index, base, written[base]) if fusible else (ins.index,)
                number = int(offset or "0", 0) if fusible else 0
                found.append(PtxAccess(ins.index, ins.file, ins.line, space, kind, key, number, nbytes, loop))
            if ins.operands and ins.parts[0] not in ("st", "bra") and not ins.operands[0].startswith("["):
                written.update(re.findall(r"%[\w.]+", ins.operands[0]))
    return found


def _form(ins: Instruction) -> tuple[str, str, int] | None:
    """Space, kind and bytes a lane of an access whose PTX names its space; None for anything else."""
    parts = ins.parts
    space = next((p for p in parts if p in ("shared", "global", "local")), "")
    if not space:
        return None
    if parts[0] in ("ld", "st"):
        vector = next((int(p[1:]) for p in parts if re.fullmatch(r"v\d", p)), 1)
        return space, parts[0], vector * SIZES[parts[-1]]
    if parts[0] in ("atom", "red"):
        return space, parts[0], SIZES[parts[-1]]
    if parts[0] in ("ldmatrix", "stmatrix"):
        return space, parts[0], 4 * next((int(p[1:]) for p in parts if re.fullmatch(r"x\d", p)), 1)
    if parts[:2] == ["cp", "async"] and "bulk" not in parts:
        return "global", "cp.async", int(ins.operands[2], 0)
    return None


_T = TypeVar("_T", PtxAccess, MachineInstruction)


@dataclass
class MachineAccesses:
    """How the machine executes PTX accesses, by index of the instruction.

    ``widths``: bytes a lane where it is not the PTX's own, 0 where a neighbour moves them. ``issues``: guarded
    accesses, each with the instruction that is issued as often, whichever lanes remain. ``opcodes``: of atomics and
    asynchronous copies. ``elected``: atomics that one lane does for its whole warp. ``notes``: what could not be
    matched, in words.
    """

    widths: dict[int, int] = field(default_factory=dict)
    issues: dict[PtxAccess, int] = field(default_factory=dict)
    opcodes: dict[int, str] = field(default_factory=dict)
    elected: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def words(self, ins: Instruction | PtxAccess) -> set[str]:
        """The parts of an opcode: the machine's where it is known, else the PTX's in capitals."""
        parts = self.opcodes[ins.index].split(".") if ins.index in self.opcodes else getattr(ins, "parts", ())
        return {part.upper() for part in parts}


def match_accesses(accesses: Sequence[PtxAccess], code: Sequence[MachineInstruction]) -> MachineAccesses:
    """What the machine does where the PTX does these accesses: which it fuses, guards, elects a lane for."""
    machine = MachineAccesses()
    votes = {(i.file, i.line) for i in code if i.opcode.split(".")[0] in VOTES}
    pairs: list[tuple[PtxAccess, MachineInstruction]] = []
    for place, ours, theirs, changes in _explained(_grouped(accesses), _grouped([i for i in code if i.memory])):
        if changes is None:
            machine.notes.append(f"{_place(place)}: the PTX has {_words(ours)}, the machine {_words(theirs)}")
            continue
        machine.widths |= changes
        issued = [access for access in ours if changes.get(access.index, 1)]
        if len(issued) == len(theirs) and theirs and all(a.loop for a in ours) and not any(i.loop for i in theirs):
            machine.notes.append(f"{_place(place)}: the PTX has it in a loop, the machine before or behind")
        if _ambiguous(ours, changes):
            machine.notes.append(f"{_place(place)}: which of several like accesses the machine fuses is not to be told")
        if place[3] in ("atom", "cp.async"):
            _named(place, issued, theirs, machine)
            if all(i.guard and (i.file, i.line) in votes for i in theirs):
                machine.elected |= {access.index for access in issued}
                continue
        if len(issued) == len(theirs):
            pairs += zip(issued, theirs, strict=True)
        elif place[2] == "shared" and any(ins.guard for ins in theirs):
            machine.notes.append(f"{_place(place)}: guarded accesses are not one to one with the PTX's")
    _guarded(pairs, [i for i in code if i.padding], machine)
    return machine


def _named(
    place: Group, issued: Sequence[PtxAccess], theirs: Sequence[MachineInstruction], machine: MachineAccesses
) -> None:
    """Note the opcodes of atomics and copies."""
    opcodes = [ins.opcode for ins in theirs]
    if len(set(opcodes)) == 1:
        opcodes = opcodes[:1] * len(issued)
    if len(opcodes) != len(issued):
        machine.notes.append(f"{_place(place)}: the machine's are not one to one with the PTX's")
        return
    machine.opcodes |= {access.index: opcode for access, opcode in zip(issued, opcodes, strict=True)}
    if any("CAST" in opcode for opcode in opcodes):
        machine.notes.append(f"{_place(place)}: the machine tries until no other thread came between")


def _explained(
    ours: dict[Group, list[PtxAccess]], theirs: dict[Group, list[MachineInstruction]]
) -> Iterable[tuple[Group, list[PtxAccess], list[MachineInstruction], dict[int, int] | None]]:
    """What belongs together, with its widths: line by line; what no line explains, together by space and kind."""
    rest: dict[tuple[str, str], list[Group]] = {}
    for place in {**ours, **theirs}:
        listed, there = ours.get(place, []), theirs.get(place, [])
        if (changes := _fuse(listed, there)) is None:
            rest.setdefault((place[2], place[3]), []).append(place)
        else:
            yield place, listed, there, changes
    for (space, _), places in rest.items():
        listed = sorted((a for place in places for a in ours.get(place, [])), key=lambda access: access.index)
        there = sorted((i for place in places for i in theirs.get(place, [])), key=lambda ins: ins.offset)
        if (changes := _fuse(listed, there)) is None:
            # What the machine alone has matters where registers did not fit: local memory that the PTX knows nothing of.
            said = [place for place in places if place in ours or space == "local"]
            yield from ((place, ours.get(place, []), theirs.get(place, []), None) for place in said)
        else:
            yield places[0], listed, there, changes


def _guarded(
    pairs: Sequence[tuple[PtxAccess, MachineInstruction]],
    padding: Sequence[MachineInstruction],
    machine: MachineAccesses,
) -> None:
    """Note each guarded shared access, and padding, with one that every warp in its block executes."""
    sure = [(access, ins) for access, ins in pairs if not ins.guard]
    sure.sort(key=lambda pair: pair[0].space == "shared")  # shared accesses come last, and so go first
    like = {ins.block: access.index for access, ins in sure}
    guarded = [(access, ins) for access, ins in pairs if ins.guard and access.space == "shared"]
    # The PTX has nothing that padding could be named after: a number of its own, below those of the PTX.
    guarded += [(PtxAccess(-1 - ins.offset, ins.file, ins.line, "shared", "ld", (), 0, 4), ins) for ins in padding]
    for access, ins in guarded:
        if ins.block in like:
            machine.issues[access] = like[ins.block]
        else:
            what = "padding" if ins.padding else "a guarded access"
            machine.notes.append(f"{_place(access.group)}: nothing tells how often {what} is issued")


def _fuse(listed: Sequence[PtxAccess], there: Sequence[MachineInstruction]) -> dict[int, int] | None:
    """Widths that turn the PTX's accesses into the machine's; None where there is no such way.

    Candidates are runs of neighbouring addresses from one base in one basic block, cut where offset is a multiple
    of the fused width. Loops that ptxas copied or unrolled hold the same accesses several times over: the static
    counts are then a multiple, and the widths the same.
    """
    have, want = Counter(access.nbytes for access in listed), Counter(ins.nbytes for ins in there)
    if not there and all(access.space == "local" for access in listed):
        return {access.index: 0 for access in listed}  # an array that ptxas keeps in registers
    if set(want) == set(have) and want >= have and len({want[width] / have[width] for width in have}) == 1:
        return {}
    ours, theirs = (sum(width * n for width, n in count.items()) for count in (have, want))
    copies = theirs // ours if ours else 0
    if not copies or theirs % ours or any(n % copies for n in want.values()):
        return None
    goal = Counter({width: n // copies for width, n in want.items()})
    changes: dict[int, int] = {}
    left = dict.fromkeys(sorted(listed, key=lambda a: (str(a.base), a.offset)))
    for width in (16, 8):
        missing = goal[width] - sum(access.nbytes == width for access in left)
        for run in _runs(list(left), width)[: max(0, missing)]:
            changes |= {run[0].index: width} | {access.index: 0 for access in run[1:]}
            for access in run:
                del left[access]
    made = Counter(a.nbytes for a in left) + Counter(width for width in changes.values() if width)
    return changes if made == goal else None


def _ambiguous(listed: Sequence[PtxAccess], changes: dict[int, int]) -> bool:
    """Whether accesses that were left as they are could as well have been fused, and those in their place not."""
    left = sorted((a for a in listed if a.index not in changes), key=lambda a: (str(a.base), a.offset))
    return any(_runs(left, width) for width in set(changes.values()) if width)


def _runs(listed: Sequence[PtxAccess], width: int) -> list[list[PtxAccess]]:
    """Groups of at least two accesses that fill ``width`` aligned bytes without a gap, in order of the program."""
    found: list[list[PtxAccess]] = []
    run: list[PtxAccess] = []
    for access in listed:
        joins = run and access.base == run[-1].base and access.offset == run[-1].offset + run[-1].nbytes
        run = [*run, access] if joins else [access] if access.offset % width == 0 else []
        if run and sum(a.nbytes for a in run) >= width:
            if len(run) > 1 and sum(a.nbytes for a in run) == width:
                found.append(run)
            run = []
    return sorted(found, key=lambda run: run[0].index)


def _grouped(items: Sequence[_T]) -> dict[Group, list[_T]]:
    groups: dict[Group, list[_T]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return groups


def _place(place: Group) -> str:
    file, line, space, kind = place
    return f"{file}:{line}, {space} {kind}"


def _words(accesses: Sequence[PtxAccess] | Sequence[MachineInstruction]) -> str:
    count = Counter(access.nbytes for access in accesses)
    return " + ".join(f"{n} of {width} bytes" for width, n in sorted(count.items())) or "none"
