"""What ptxas changes between PTX and the machine: read from the disassembly of the binary, without a GPU.

Two changes move the counters of shared memory, both seen on an H200 (ncu 2025.3, CUDA 13.0, 2026-11-20) with the
kernels of ``tests/data/five.cu`` at n = 64, whose readings are ``tests/data/five-kernels-h200.json``:

- **Fusing.** Neighbouring accesses become one wide access. ``tiled`` reads its row of A with 32 ``ld.shared.f32``
  a tile, base + 0, 4, ... 124; the binary has 8 ``LDS.128`` in their place, and 32 ``LDS`` for B whose words lie
  128 bytes apart. PTX 16,384 load instructions, machine and profiler 10,240; each broadcast LDS.128 takes two
  wavefronts, 12,288 in all. ``tile2d`` has 8 ``LDS`` + 2 ``LDS.128`` a step, x 128 steps = the 1,280 counted.
- **Predication.** A short branch becomes a guard, and a guarded instruction is issued by every warp that reaches
  it, also with no lane left. ``vec`` copies B with 2 ``st.shared.v4`` a tile and warp of an unrolled remainder of
  3; the third is ``@P0 STS.128`` in the block of the second: 11 stores a tile where the PTX executes 10, 176 for
  160, and wavefronts that do not change. Global *requests* do not count such an issue (``@P0 LDG`` beside it is
  not among the 64 counted), so this is applied to shared memory alone.

Instructions are matched by source line, memory space and kind. What cannot be matched (ptxas dropped, moved or
re-rolled accesses) keeps its PTX counts and is said in ``notes``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ...errors import UnavailableError
from .program import Program
from .ptx import SIZES

#: Machine opcodes that access memory: space and kind as the interpreter names them.
MEMORY = {
    "LDS": ("shared", "ld"),
    "STS": ("shared", "st"),
    "ATOMS": ("shared", "atom"),
    "LDSM": ("shared", "ldmatrix"),
    "STSM": ("shared", "stmatrix"),
    "LDG": ("global", "ld"),
    "STG": ("global", "st"),
    "ATOMG": ("global", "atom"),
    "RED": ("global", "red"),
    "REDG": ("global", "red"),
    "LDGSTS": ("global", "cp.async"),
    "LDL": ("local", "ld"),
    "STL": ("local", "st"),
}
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
#: After these the next instruction may be reached by other warps.
ENDS_BLOCK = {"BRA", "BRX", "EXIT", "RET", "CALL", "BREAK", "BSYNC", "WARPSYNC", "BAR"}

_FUNCTION = re.compile(r"^\s*(?:\.text\.([\w$.]+):|Function : (\S+))")
_FILE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_LABEL = re.compile(r"^\s*\.L\w+:")
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+\{?\s*(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*)")

Group = tuple[str, int, str, str]  # file, line, space, kind


@dataclass(frozen=True)
class MachineInstruction:
    """One instruction of the binary; ``block`` numbers the straight runs of its function."""

    offset: int
    opcode: str
    operands: str
    guard: str  # "!P0", or "" without one
    file: str
    line: int
    block: int

    @property
    def memory(self) -> tuple[str, str] | None:
        """Space and kind of the access, None if it is none; ``@!PT`` pads the code and never accesses anything."""
        return None if self.guard == "!PT" else MEMORY.get(self.opcode.split(".")[0])

    @property
    def nbytes(self) -> int:
        """Bytes a lane of a memory access: the width in its name, else 4."""
        return next((_WIDTHS[part] for part in self.opcode.split(".")[1:] if part in _WIDTHS), 4)

    @property
    def group(self) -> Group:
        return (PurePosixPath(self.file).name, self.line, *(self.memory or ("", "")))


def parse(text: str) -> dict[str, list[MachineInstruction]]:
    """Functions of a disassembly: ``nvdisasm -g -c`` (source lines), or without lines ``cuobjdump -sass``.

    >>> code = parse('.text.f:\\n//## File "k.cu", line 7\\n  /*0010*/  @P0 LDS.128 R4, [R2+0x10] ;')["f"]
    >>> code[0].line, code[0].opcode, code[0].guard, code[0].nbytes, code[0].memory
    (7, 'LDS.128', 'P0', 16, ('shared', 'ld'))
    """
    functions: dict[str, list[MachineInstruction]] = {}
    code: list[MachineInstruction] = []
    file, line, block = "", 0, 0
    for row in text.splitlines():
        if found := _FUNCTION.match(row):
            code = functions.setdefault(found[1] or found[2], [])
            file, line, block = "", 0, 0
        elif found := _FILE.match(row):
            file, line = found[1], int(found[2])
        elif _LABEL.match(row):
            block += 1
        elif found := _CODE.match(row):
            code.append(MachineInstruction(
                int(found[1], 16), found[3], found[4].strip(), found[2] or "", file, line, block
            ))  # fmt: skip
            block += found[3].split(".")[0] in ENDS_BLOCK
    return functions


def widths(code: Iterable[MachineInstruction]) -> dict[Group, Counter[int]]:
    """How many accesses of each width the binary holds, by source line, space and kind."""
    found: defaultdict[Group, Counter[int]] = defaultdict(Counter)
    for ins in code:
        if ins.memory:
            found[ins.group][ins.nbytes] += 1
    return dict(found)


@dataclass(frozen=True)
class Access:
    """A load or store of the PTX: ``base`` is the address register and its generation in the basic block."""

    index: int
    file: str
    line: int
    space: str
    kind: str
    base: tuple[object, ...]
    offset: int
    nbytes: int

    @property
    def group(self) -> Group:
        return (PurePosixPath(self.file).name, self.line, self.space, self.kind)


def ptx_accesses(program: Program) -> list[Access]:
    """Loads and stores of a program, in order, with what is known of their addresses before it runs."""
    found = []
    for block in program.blocks:
        written: Counter[str] = Counter()
        for ins in program.code[block.first : block.last + 1]:
            parts = ins.parts
            space = next((p for p in parts if p in ("shared", "global", "local")), "")
            if parts[0] in ("ld", "st") and space:
                address = ins.operands[1 if parts[0] == "ld" else 0].strip("[] ")
                base, _, offset = address.partition("+")
                vector = next((int(p[1:]) for p in parts if re.fullmatch(r"v\d", p)), 1)
                key = (block.index, base, written[base])
                number = int(offset or "0", 0)
                nbytes = vector * SIZES[parts[-1]]
                found.append(Access(ins.index, ins.file, ins.line, space, parts[0], key, number, nbytes))
            if ins.operands and parts[0] not in ("st", "bra"):
                written.update(re.findall(r"%[\w.]+", ins.operands[0]))
    return found


_T = TypeVar("_T", Access, MachineInstruction)


@dataclass
class Machine:
    """How the machine executes PTX accesses, by index of the instruction.

    ``widths``: bytes a lane where it is not the PTX's own, 0 where a neighbour moves them. ``issues``: guarded
    accesses, each with the instruction that is issued as often, whichever lanes remain. ``notes``: what could not
    be matched, in words.
    """

    widths: dict[int, int] = field(default_factory=dict)
    issues: dict[Access, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return not self.notes


def match(accesses: Sequence[Access], code: Sequence[MachineInstruction]) -> Machine:
    """Which PTX accesses the machine fuses, and which it guards."""
    machine = Machine()
    pairs: list[tuple[Access, MachineInstruction]] = []
    for group, ours, theirs, changes in _explained(_grouped(accesses), _grouped([i for i in code if i.memory])):
        if changes is None:
            machine.notes.append(f"{_place(group)}: the PTX has {_words(ours)}, the machine {_words(theirs)}")
            continue
        machine.widths |= changes
        issued = [access for access in ours if changes.get(access.index, 1)]
        if len(issued) == len(theirs):
            pairs += zip(issued, theirs, strict=True)
        elif group[2] == "shared" and any(ins.guard for ins in theirs):
            machine.notes.append(f"{_place(group)}: guarded accesses are not one to one with the PTX's")
    _guarded(pairs, machine)
    return machine


def _explained(
    ours: dict[Group, list[Access]], theirs: dict[Group, list[MachineInstruction]]
) -> Iterable[tuple[Group, list[Access], list[MachineInstruction], dict[int, int] | None]]:
    """What belongs together, with its widths: line by line; what no line explains, together by space and kind."""
    rest: dict[tuple[str, str], list[Group]] = {}
    for group in {**ours, **theirs}:
        listed, there = ours.get(group, []), theirs.get(group, [])
        if (changes := _fuse(listed, there)) is None:
            rest.setdefault((group[2], group[3]), []).append(group)
        else:
            yield group, listed, there, changes
    for groups in rest.values():
        listed = sorted((a for group in groups for a in ours.get(group, [])), key=lambda access: access.index)
        there = sorted((i for group in groups for i in theirs.get(group, [])), key=lambda ins: ins.offset)
        if (changes := _fuse(listed, there)) is None:
            yield from ((group, ours[group], theirs.get(group, []), None) for group in groups if group in ours)
        else:
            yield groups[0], listed, there, changes


def _guarded(pairs: Sequence[tuple[Access, MachineInstruction]], machine: Machine) -> None:
    """Note each guarded shared access with one that every warp in its block executes."""
    sure = [(access, ins) for access, ins in pairs if not ins.guard]
    sure.sort(key=lambda pair: pair[0].space == "shared")  # shared accesses come last, and so go first
    like = {ins.block: access.index for access, ins in sure}
    for access, ins in pairs:
        if not ins.guard or access.space != "shared":
            continue
        if ins.block in like:
            machine.issues[access] = like[ins.block]
        else:
            machine.notes.append(f"{_place(access.group)}: nothing tells how often a guarded access is issued")


def _fuse(listed: Sequence[Access], there: Sequence[MachineInstruction]) -> dict[int, int] | None:
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


def _runs(listed: Sequence[Access], width: int) -> list[list[Access]]:
    """Groups of at least two accesses that fill ``width`` aligned bytes without a gap, in order of the program."""
    found: list[list[Access]] = []
    run: list[Access] = []
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


def _place(group: Group) -> str:
    file, line, space, kind = group
    return f"{file}:{line}, {space} {kind}"


def _words(accesses: Sequence[Access] | Sequence[MachineInstruction]) -> str:
    count = Counter(access.nbytes for access in accesses)
    return " + ".join(f"{n} of {width} bytes" for width, n in sorted(count.items())) or "none"


def find_tool(name: str = "nvdisasm") -> Path | None:
    """The disassembler: from the package nvidia-cuda-<name>, else on PATH, else under CUDA_HOME; None if nowhere."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(f"nvidia-cuda-{name}") or []:
            if file.name == name and (found := shutil.which(str(file.locate()))):
                return Path(found)
    home = Path(os.environ.get("CUDA_HOME", ""), "bin")
    on_path = shutil.which(name) or shutil.which(name, path=str(home))
    return Path(on_path) if on_path else None


def disassemble(cubin: bytes) -> str:
    """The text of ``nvdisasm -g -c``. Raises UnavailableError where the tool is missing or refuses the binary."""
    tool = find_tool()
    if tool is None:
        raise UnavailableError("nvdisasm: not found; pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-g", "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"nvdisasm: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
