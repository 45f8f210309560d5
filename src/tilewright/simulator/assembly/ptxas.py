"""Finds what ptxas changes between PTX and machine code. The module reads the disassembly of the binary; no GPU is
needed.

The following examples were observed on an H200 (ncu 2025.3, CUDA 13.0, 2026-11-20). The kernels of the examples are
those of ``tests/data/five.cu`` at n = 64, whose counter values are in ``five-kernels-h200.json``, and those of
``twelve.cu``.

- **Fusing.** Neighbouring accesses become one wide access. ``tiled`` reads its row of A with 32 ``ld.shared.f32`` per
  tile, at base + 0, 4, ... 124. The binary of ``tiled`` has 8 ``LDS.128`` instead of these 32 loads. For B, whose words
  lie 128 bytes apart, the binary of ``tiled`` has 32 ``LDS``. The PTX of ``tiled`` executes 16,384 load instructions;
  the binary executes 10,240, and the profiler counts 10,240, too. Each broadcast ``LDS.128`` of ``tiled`` takes two
  wavefronts, and the whole kernel takes 12,288. ``tile2d`` has 8 ``LDS`` and 2 ``LDS.128`` per step; in 128 steps the
  kernel executes 1,280 loads, as the profiler counts.
- **Unrolling.** In a loop that ptxas unrolls, each access of the PTX occurs several times in the binary. If an address
  changes by less than the width of a wide access from one round of the loop to the next, the accesses of several rounds
  become one. ``column_8_8`` of ``unrolled.cu`` reads 32 bytes of a row in four rounds of two ``ld.shared.f32``. The
  binary of ``column_8_8`` has two ``LDS.128`` for these eight loads, and executes 768 loads instead of 2,304 in all.
- **Predication.** The compiler replaces a short branch by a guard (a predicate) on each of its instructions. A guarded
  instruction is issued by every warp that reaches it, even if no lane is active. ``vec`` copies B in an unrolled loop
  whose remainder has 3 stores (``st.shared.v4``), of which a warp executes 2 per tile. The third store of ``vec`` is
  ``@P0 STS.128`` in the same basic block as the second store, and so the warp issues the third store, too. So the
  binary of ``vec`` issues 11 stores per tile where the PTX executes 10 (176 instead of 160 in all), and the wavefronts
  increase alike. Counters of global *requests* do not count a guarded instruction that is issued with no active lane:
  an ``@P0 LDG`` next to the third store is not among the 64 requests that were counted. Therefore only the counts of
  shared memory are corrected for guarded instructions.
- **Padding.** The compiler puts three ``@!PT LDS`` before asynchronous copies, 6 per warp in ``async_copies``. The
  profiler counts ``@!PT LDS`` as loads.
- **Atomics.** An atomic whose result is not used becomes a reduction (``REDG``; 3 of 4 atomics in ``global_atomics``).
  An atomic at an address that all lanes share is first reduced over the warp, and one elected lane executes it
  (``REDUX``, ``VOTEU``, ``@P1 ATOMS.MAX``: 8 wavefronts for 256 lanes). An atomic addition in shared memory becomes a
  compare-and-swap loop if the GPU has no instruction for it. A compare-and-swap loop repeats as often as threads
  conflict; a note reports the loop, but its repetitions are not counted.

Instructions of the PTX and of the binary are matched by source line, memory space and kind. Some accesses cannot be
matched: ptxas has dropped or moved them, has put unrolled accesses back into a loop, or keeps registers in local
memory. An access that cannot be matched keeps its PTX counts and is listed in ``doubts``.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .disassembly import VOTES, Group, MachineInstruction, access_group
from .instructions import SIZES, Instruction
from .program import MOST_CODE, BasicBlock, Program


@dataclass(frozen=True)
class PtxAccess:
    """An access in the PTX. Two accesses of a basic block have the same ``base`` if they use the same value of the same
    register."""

    index: int
    file: str
    line: int
    space: str
    kind: str
    base: tuple[object, ...]
    offset: int
    nbytes: int
    loop: bool = False  # whether it lies between a backward jump and its target
    stride: Stride | None = None  # in a loop of a constant number of rounds

    @property
    def group(self) -> Group:
        """The key by which the access is matched with the machine instruction that it becomes."""
        return access_group(self.file, self.line, self.space, self.kind)


def ptx_accesses(program: Program) -> list[PtxAccess]:
    """Return the accesses of a program in order. For loads and stores, the result includes the base and the offset of
    their addresses in the PTX."""
    accesses, loops = [], CountedLoops(program)
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
                stride = loops.stride(block, base, ins.index) if fusible and not ins.guard else None
                accesses.append(
                    PtxAccess(ins.index, ins.file, ins.line, space, kind, key, number, nbytes, loop, stride)
                )
            if ins.operands and ins.parts[0] not in ("st", "bra") and not ins.operands[0].startswith("["):
                written.update(re.findall(r"%[\w.]+", ins.operands[0]))
    return accesses


def _form(ins: Instruction) -> tuple[str, str, int] | None:
    """Space, kind and bytes per lane of an access whose PTX names its space; None for anything else."""
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
    if parts[:2] == ("cp", "async") and not {"bulk", "mbarrier"} & set(parts):
        return "global", "cp.async", int(ins.operands[2], 0)
    return None


_T = TypeVar("_T", PtxAccess, MachineInstruction)


@dataclass
class MachineAccesses:
    """Describes how the machine executes the accesses of the PTX, by index of the PTX instruction.

    ``widths``: the bytes per lane that an access moves, if this number differs from that of the PTX; 0 if a
    neighbouring access moves the bytes. ``rounds``: the widths of an access in each of the loop rounds that ptxas
    unrolled into one, if they differ between rounds. ``issues``: guarded accesses, each with a PTX instruction that is
    executed as often as the guarded access is issued. ``opcodes``: the machine's opcodes of atomics and asynchronous
    copies. ``elected``: the atomics that one lane executes for its whole warp. ``moves``: the source lines with
    ``HFMA2.MMA``, an instruction that sets a register by the tensor core. ``doubts``: the accesses that could not be
    matched, each with the reason.
    """

    widths: dict[int, int] = field(default_factory=dict)
    rounds: dict[int, tuple[int, ...]] = field(default_factory=dict)
    issues: dict[PtxAccess, int] = field(default_factory=dict)
    opcodes: dict[int, str] = field(default_factory=dict)
    elected: set[int] = field(default_factory=set)
    moves: list[int] = field(default_factory=list)
    doubts: list[tuple[Group, str]] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """The notes on accesses that could not be matched: one text for each reason in ``doubts``, with all source
        lines that the reason concerns."""
        places: dict[str, list[str]] = {}
        for group, why in self.doubts:
            places.setdefault(why, []).append(_place(group))
        return [f"{'; '.join(dict.fromkeys(where))}: {why}" for why, where in places.items()]

    def words(self, ins: Instruction | PtxAccess) -> set[str]:
        """Return the parts of the machine's opcode in capitals; if that opcode is not known, the parts of the PTX
        opcode."""
        parts = self.opcodes[ins.index].split(".") if ins.index in self.opcodes else getattr(ins, "parts", ())
        return {part.upper() for part in parts}


def match_accesses(accesses: Sequence[PtxAccess], code: Sequence[MachineInstruction]) -> MachineAccesses:
    """Find how the machine executes these accesses of the PTX: which accesses it fuses or guards, and which are
    executed by one lane alone."""
    machine = MachineAccesses(moves=sorted({i.line for i in code if i.opcode.startswith("HFMA2.MMA")}))
    votes = {(i.file, i.line) for i in code if i.opcode.split(".")[0] in VOTES}
    pairs: list[tuple[PtxAccess, MachineInstruction]] = []
    for place, ptx, sass, changes in _matched(_grouped(accesses), _grouped([i for i in code if i.memory])):
        if changes is None and (rounds := _fuse_rounds(ptx, sass)) is not None:
            machine.rounds |= rounds
            continue
        if changes is None:
            machine.doubts.append(
                (place, f"the PTX has {_widths(ptx)}, the machine {_widths(sass)}{_fewer(ptx, sass)}")
            )
            continue
        machine.widths |= changes
        issued = [access for access in ptx if changes.get(access.index, 1)]
        if len(issued) == len(sass) and sass and all(a.loop for a in ptx) and not any(i.loop for i in sass):
            machine.doubts += _all_of(place, ptx, "the PTX has it in a loop, the machine before or after the loop")
        if _ambiguous(ptx, changes):
            machine.doubts += _all_of(place, ptx, "which of several similar accesses the machine fuses is unknown")
        if place[3] in ("atom", "cp.async"):
            _note_opcodes(place, issued, sass, machine)
            if all(i.guard and (i.file, i.line) in votes for i in sass):
                machine.elected |= {access.index for access in issued}
                continue
        if len(issued) == len(sass):
            pairs += zip(issued, sass, strict=True)
        elif place[2] == "shared" and any(ins.guard for ins in sass):
            machine.doubts += _all_of(place, ptx, "guarded accesses do not match those of the PTX one to one")
    _note_issues(pairs, [i for i in code if i.padding], machine)
    return machine


def _note_opcodes(
    place: Group, issued: Sequence[PtxAccess], sass: Sequence[MachineInstruction], machine: MachineAccesses
) -> None:
    """Note the opcodes of atomics and copies."""
    opcodes = [ins.opcode for ins in sass]
    if len(set(opcodes)) == 1:
        opcodes = opcodes[:1] * len(issued)
    if len(opcodes) != len(issued):
        machine.doubts += _all_of(place, issued, "the machine's do not match those of the PTX one to one")
        return
    machine.opcodes |= {access.index: opcode for access, opcode in zip(issued, opcodes, strict=True)}
    if any("CAST" in opcode for opcode in opcodes):
        machine.doubts += _all_of(place, issued, "the machine repeats it until no other thread interferes")


def _matched(
    ptx_groups: dict[Group, list[PtxAccess]], sass_groups: dict[Group, list[MachineInstruction]]
) -> Iterable[tuple[Group, list[PtxAccess], list[MachineInstruction], dict[int, int] | None]]:
    """Accesses and the machine instructions that they become, with the changes of width; None if they do not match.

    Each source line is matched alone; the lines that do not match are then tried together, by space and kind.
    """
    rest: dict[tuple[str, str], list[Group]] = {}
    for place in {**ptx_groups, **sass_groups}:
        ptx, sass = ptx_groups.get(place, []), sass_groups.get(place, [])
        if (changes := _fuse(ptx, sass)) is None:
            rest.setdefault((place[2], place[3]), []).append(place)
        else:
            yield place, ptx, sass, changes
    for (space, _), places in rest.items():
        ptx = sorted((a for place in places for a in ptx_groups.get(place, [])), key=lambda access: access.index)
        sass = sorted((i for place in places for i in sass_groups.get(place, [])), key=lambda ins: ins.offset)
        if (changes := _fuse(ptx, sass)) is None:
            # Accesses that only the machine has are noted for local memory alone: there they are spilled registers.
            noted = [place for place in places if place in ptx_groups or space == "local"]
            yield from ((place, ptx_groups.get(place, []), sass_groups.get(place, []), None) for place in noted)
        else:
            yield places[0], ptx, sass, changes


def _note_issues(
    pairs: Sequence[tuple[PtxAccess, MachineInstruction]],
    padding: Sequence[MachineInstruction],
    machine: MachineAccesses,
) -> None:
    """Note for each guarded shared access, and for padding, an unguarded access of its basic block, issued as often."""
    unguarded = [(access, ins) for access, ins in pairs if not ins.guard]
    unguarded.sort(key=lambda pair: pair[0].space == "shared")  # shared ones last: they replace others in the dict
    executed_in = {ins.block: access.index for access, ins in unguarded}
    guarded = [(access, ins) for access, ins in pairs if ins.guard and access.space == "shared"]
    # The PTX has no access for padding: it gets a negative index.
    guarded += [(PtxAccess(-1 - ins.offset, ins.file, ins.line, "shared", "ld", (), 0, 4), ins) for ins in padding]
    for access, ins in guarded:
        if ins.block in executed_in:
            machine.issues[access] = executed_in[ins.block]
        else:
            what = "padding" if ins.padding else "a guarded access"
            machine.doubts.append((access.group, f"it is unknown how often {what} is issued"))


def _fuse(ptx: Sequence[PtxAccess], sass: Sequence[MachineInstruction]) -> dict[int, int] | None:
    """The widths that change from the PTX's accesses to the machine's, by index; None if fusing cannot explain them.

    Candidates are runs of neighbouring addresses from one base in one basic block that begin at a multiple of the fused
    width. Loops that ptxas copied or unrolled hold the same accesses several times: the machine's static counts are then
    a multiple of the PTX's, and the widths the same.
    """
    have, want = Counter(access.nbytes for access in ptx), Counter(ins.nbytes for ins in sass)
    if not sass and all(access.space == "local" for access in ptx):
        return {access.index: 0 for access in ptx}  # an array that ptxas keeps in registers
    if set(want) == set(have) and want >= have and len({want[width] / have[width] for width in have}) == 1:
        return {}
    ptx_bytes, sass_bytes = (sum(width * n for width, n in count.items()) for count in (have, want))
    copies = sass_bytes // ptx_bytes if ptx_bytes else 0
    if not copies or sass_bytes % ptx_bytes or any(n % copies for n in want.values()):
        return None
    goal = Counter({width: n // copies for width, n in want.items()})
    changes: dict[int, int] = {}
    left = dict.fromkeys(sorted(ptx, key=lambda a: (str(a.base), a.offset)))
    for width in (16, 8):
        missing = goal[width] - sum(access.nbytes == width for access in left)
        for run in _runs(list(left), width)[: max(0, missing)]:
            changes |= {run[0].index: width} | {access.index: 0 for access in run[1:]}
            for access in run:
                del left[access]
    result = Counter(a.nbytes for a in left) + Counter(width for width in changes.values() if width)
    return changes if result == goal else None


def _fuse_rounds(ptx: Sequence[PtxAccess], sass: Sequence[MachineInstruction]) -> dict[int, tuple[int, ...]] | None:
    """The width of each access of the PTX in every round of those that ptxas unrolled into one; None if fusing them cannot
    explain the machine's accesses, or if it can do so in several ways."""
    common = math.gcd(*(access.stride.rounds for access in ptx if access.stride))
    for rounds in (n for n in range(2, common + 1) if common % n == 0):
        unrolled = [_in_round(access, i) for access in ptx for i in range(rounds if access.stride else 1)]
        changes = _fuse(unrolled, sass)
        if changes and not _ambiguous(unrolled, changes) and not any(ins.guard for ins in sass):
            return {
                access.index: tuple(
                    changes.get(_in_round(access, i).index, access.nbytes)
                    for i in range(rounds if access.stride else 1)
                )
                for access in ptx
            }
    return None


def _in_round(access: PtxAccess, number: int) -> PtxAccess:
    """An access in a round of its loop; indices are in order of the unrolled loop."""
    index = access.index + number * MOST_CODE
    if (stride := access.stride) is None:
        return replace(access, index=index)
    place = access.offset + stride.start + number * stride.step
    return replace(access, index=index, base=(*access.base[:1], *stride.roots), offset=place)


def _ambiguous(ptx: Sequence[PtxAccess], changes: dict[int, int]) -> bool:
    """Whether accesses that were not fused could have been fused in place of those that were."""
    left = sorted((a for a in ptx if a.index not in changes), key=lambda a: (str(a.base), a.offset))
    return any(_runs(left, width) for width in set(changes.values()) if width)


def _runs(accesses: Sequence[PtxAccess], width: int) -> list[list[PtxAccess]]:
    """Groups of at least two accesses that fill ``width`` aligned bytes without a gap, in order of the program."""
    found: list[list[PtxAccess]] = []
    run: list[PtxAccess] = []
    for access in accesses:
        joins = run and access.base == run[-1].base and access.offset == run[-1].offset + run[-1].nbytes
        run = [*run, access] if joins else [access] if access.offset % width == 0 else []
        if run and sum(a.nbytes for a in run) >= width:
            if len(run) > 1 and sum(a.nbytes for a in run) == width:
                found.append(run)
            run = []
    return sorted(found, key=lambda run: run[0].index)


def _fewer(ptx: Sequence[PtxAccess], sass: Sequence[MachineInstruction]) -> str:
    """How few requests the machine may make if its accesses are wider, as over rounds of an unrolled loop; else empty."""
    times = max((i.nbytes for i in sass), default=0) // min((a.nbytes for a in ptx), default=128)
    return f", so it may make as few as 1/{times} of these requests" if times > 1 else ""


def _all_of(place: Group, accesses: Sequence[PtxAccess], why: str) -> list[tuple[Group, str]]:
    """A doubt about each line of accesses that were matched together, or about ``place`` if there are none."""
    return [(group, why) for group in dict.fromkeys(access.group for access in accesses)] or [(place, why)]


def _grouped(items: Sequence[_T]) -> dict[Group, list[_T]]:
    groups: dict[Group, list[_T]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return groups


def _place(place: Group) -> str:
    file, line, space, kind = place
    return f"{file}:{line}, {space} {kind}"


def _widths(accesses: Sequence[PtxAccess] | Sequence[MachineInstruction]) -> str:
    count = Counter(access.nbytes for access in accesses)
    return " + ".join(f"{n} of {width} bytes" for width, n in sorted(count.items())) or "none"


# ---- counted loops ---------------------------------------------------------------------------------------------------
# Loops of the PTX that run a constant number of rounds, and how far each round moves an address.
#
# NVVM leaves ``for (int i = 0; i < 8; i++)`` as a loop of one basic block, in which registers grow by constants: ``add.s32
# %r46, %r46, 8; add.s32 %r48, %r48, 512; setp.ne.s32 %p2, %r48, 2304; @%p2 bra …``. ptxas unrolls such a loop, and may
# then move the bytes of several rounds with one wide access.


#: Loops of more rounds are not analysed, because ptxas does not unroll them.
MOST_ROUNDS = 1024
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
#: The most definitions that are followed to where an address comes from.
_FAR = 16


@dataclass(frozen=True)
class Stride:
    """Describes how an address changes in a loop that runs a constant number of rounds: in round i, the address is the
    sum of ``roots``, ``start`` and i times ``step``."""

    rounds: int
    roots: tuple[str, ...]
    start: int
    step: int


@dataclass(frozen=True)
class _Value:
    """The value of a register as a sum of three terms: other registers or symbols, a constant, and a step for each
    round of the loop."""

    roots: tuple[str, ...]
    start: int = 0
    step: int = 0

    def plus(self, other: _Value) -> _Value:
        return _Value(tuple(sorted(self.roots + other.roots)), self.start + other.start, self.step + other.step)


class CountedLoops:
    """The loops of a program that consist of one basic block and run a constant number of rounds."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._writers: dict[str, list[Instruction]] = {}
        for ins in program.code:
            for name in _written(ins):
                self._writers.setdefault(name, []).append(ins)
        self._rounds = {block.index: rounds for block in program.blocks if (rounds := self._rounds_of(block)) > 1}

    def stride(self, block: BasicBlock, base: str, at: int) -> Stride | None:
        """Return how the value of register ``base`` that instruction ``at`` reads changes from round to round; None if
        that is unknown."""
        value = self._value(base, block, at, _FAR) if block.index in self._rounds else None
        return Stride(self._rounds[block.index], value.roots, value.start, value.step) if value else None

    def _value(self, operand: str, block: BasicBlock, at: int, far: int) -> _Value | None:
        """An operand of an instruction in a loop."""
        if (number := _number(operand)) is not None:
            return _Value((), number)
        inside = self._inside(operand, block)
        if not inside:
            return self._start(operand, block, far)
        (writer,) = inside if len(inside) == 1 else (None,)
        if writer is None or writer.guard or not far:
            return None
        if step := _increment(writer):
            first = self._start(operand, block, far)
            return first.plus(_Value((), step if writer.index < at else 0, step))
        parts = [self._value(x, block, writer.index, far - 1) for x in _terms(writer)] if writer.index < at else []
        return _total(parts)

    def _start(self, operand: str, block: BasicBlock, far: int) -> _Value:
        """An operand at the start of a loop."""
        if (number := _number(operand)) is not None:
            return _Value((), number)
        outside = self._outside(operand, block)
        numbers = {_number(ins.operands[1]) if ins.parts[0] == "mov" and not ins.guard else None for ins in outside}
        if len(numbers) == 1 and (number := numbers.pop()) is not None:
            return _Value((), number)
        if len(outside) == 1 and not outside[0].guard and far:
            terms = _terms(outside[0])
            # A register that is written several times may have had another value when it was read here.
            if all(len(self._writers.get(term, [])) < 2 for term in terms):
                return _total([self._start(term, block, far - 1) for term in terms]) or _Value((operand,))
        return _Value((operand,))

    def _inside(self, register: str, block: BasicBlock) -> list[Instruction]:
        return [ins for ins in self._writers.get(register, []) if block.first <= ins.index <= block.last]

    def _outside(self, register: str, block: BasicBlock) -> list[Instruction]:
        return [ins for ins in self._writers.get(register, []) if not block.first <= ins.index <= block.last]

    def _rounds_of(self, block: BasicBlock) -> int:
        """The number of rounds of a loop that is this block; 0 if it is none, or if the number is not constant."""
        branch = self.program.code[block.last]
        if (
            branch.parts[0] != "bra"
            or branch.guard is None
            or self.program.labels.get(branch.operands[0]) != block.first
        ):
            return 0
        tests = self._inside(branch.guard[0], block)
        if len(tests) != 1 or tests[0].parts[0] != "setp" or len(tests[0].operands) != 3 or tests[0].guard:
            return 0
        _, register, bound = tests[0].operands
        holds, limit = _COMPARE.get(tests[0].parts[1]), _number(bound)
        inside, outside = self._inside(register, block), self._outside(register, block)
        step = _increment(inside[0]) if len(inside) == 1 else None
        start = self._start(register, block, _FAR)
        if holds is None or limit is None or not step or not outside or start.roots:
            return 0
        late = inside[0].index > tests[0].index  # the register grows after it was compared
        for rounds in range(1, MOST_ROUNDS + 1):
            value = start.start + step * (rounds - late)
            if holds(value, limit) is branch.guard[1]:  # the branch is taken where the predicate is not ``negated``
                return rounds
        return 0


def _written(ins: Instruction) -> Iterator[str]:
    """The registers that an instruction writes: those of its first operand, unless it stores or branches."""
    if ins.operands and ins.parts[0] not in ("st", "red", "bra", "brx") and not ins.operands[0].startswith("["):
        yield from re.findall(r"%[\w$.]+", ins.operands[0])


def _number(text: str) -> int | None:
    return int(text, 0) if re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)", text) else None


def _increment(ins: Instruction) -> int | None:
    """What an instruction adds to the register that it writes; None if it does anything else."""
    terms = _terms(ins)
    if len(terms) != 2 or terms[0] != ins.operands[0] or ins.guard:
        return None
    return _number(terms[1])


def _terms(ins: Instruction) -> list[str]:
    """The operands whose sum an instruction writes; empty if it does anything else."""
    name, operands = ins.parts[0], ins.operands
    if name == "mov" and len(operands) == 2:
        return [operands[1]]
    if name == "add" and len(operands) == 3 and ins.parts[1][:1] in "su":
        return [*operands[1:]]
    return []


def _total(parts: Sequence[_Value | None]) -> _Value | None:
    """The sum of values; None if one is unknown, or if there are none."""
    known = [part for part in parts if part is not None]
    return functools.reduce(_Value.plus, known) if known and len(known) == len(parts) else None
