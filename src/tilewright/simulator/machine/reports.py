"""Makes the texts of findings. The text of a finding names the first thread in which the finding occurred; the text of
a race names both accesses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..assembly.instructions import Instruction, Where
from ..findings import BY_THE_LETTER, GRADES, IN_LIBRARY, SURE, UNWRITTEN_READ, VOLATILE, Finding
from .arguments import SimulatedBlocks
from .clocks import Clocks, stamped_by
from .memory import Region
from .threads import Threads
from .values import Bools, Dim, Ints, split

#: Kind, file and line, line of PTX where there is no other, and the file and line of the call.
_Key = tuple[str, str, int, int, str, int]


@dataclass
class Findings:
    """Collects findings. For each kind of finding and each source line, ``Findings`` stores the first finding, and the
    number of threads in which it occurred. For a line in a device function, ``Findings`` stores one finding for each
    call of the function."""

    kernel: str
    found: dict[_Key, Finding] = field(default_factory=dict)
    times: dict[_Key, int] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        ins: Instruction | None,
        block: Dim,
        thread: Dim,
        address: int | None,
        text: str,
        *,
        times: int = 1,
        grade: str = SURE,
    ) -> None:
        """Add a finding that occurred in ``times`` threads at an instruction. If a finding occurs several times, the
        stored thread is the first one with the most serious grade. ``ins`` is None for a finding at the end of the
        run."""
        place = ins.users if ins else Where()
        ptx = ins.ptx_line if ins and not place.line else 0
        call = _call(ins, place) if ins else Where()
        key = (kind, place.file if ins else text, place.line, ptx, call.file, call.line)
        self.times[key] = self.times.get(key, 0) + times
        known = self.found.get(key)
        if known is None or GRADES.index(grade) < GRADES.index(known.grade):
            text += _where_else(ins, place) if ins else ""
            self.found[key] = Finding(kind, self.kernel, place.file, place.line, block, thread, address, text, grade)

    def list(self) -> list[Finding]:
        """Return all findings in order of source line; findings without a line are last."""
        return sorted(self.found.values(), key=lambda f: (not f.line, f.file, f.line, f.kind))


def _where_else(ins: Instruction, place: Where) -> str:
    """The other places of an instruction whose finding is at ``place``: its own, its line of PTX, and where it is called."""
    if not place.line:
        return f" (PTX line {ins.ptx_line})"
    text = f" (in {ins.place()})" if place != ins.where else ""
    if not (outer := _call(ins, place)).line:
        return text
    return f"{text} (called from {f'line {outer.line}' if outer.file == place.file else f'{outer.file}:{outer.line}'})"


def _call(ins: Instruction, place: Where) -> Where:
    """The call in the kernel from which an instruction is inlined; without a line if its finding is there anyway."""
    outer = next((call for call in reversed(ins.calls) if not call.in_library), None)
    return Where() if outer is None or outer == place else outer


class Reports:
    """Converts errors that occur in the lanes of a batch to findings.

    ``blocks`` are the blocks of the run, and ``code`` is the program's code.
    """

    def __init__(
        self, findings: Findings, threads: Threads, clocks: Clocks, blocks: SimulatedBlocks, code: list[Instruction]
    ) -> None:
        self.findings, self.threads, self.clocks, self.blocks, self.code = findings, threads, clocks, blocks, code

    def report(
        self,
        kind: str,
        ins: Instruction,
        sel: Ints | None,
        bad: Bools,
        address: Ints | None,
        text: str,
        grade: str = SURE,
    ) -> None:
        """Report a finding for the first lane that is marked in ``bad``. ``bad`` and ``address`` are arrays with one
        entry for each active lane."""
        first = int(np.argmax(bad))
        block, thread = self.threads.place(first if sel is None else int(sel[first]))
        where = None if address is None else int(address[first])
        self.findings.add(kind, ins, block, thread, where, text, times=int(bad.sum()), grade=grade)

    def race(
        self,
        ins: Instruction,
        region: Region,
        sel: Ints | None,
        bad: Bools,
        offsets: Ints,
        kind: str = "race",
        grade: str = SURE,
    ) -> None:
        """Report the race that the shadow of a region found last; ``kind`` may be VOLATILE instead of the kind for
        races."""
        assert region.shadow is not None
        first = int(np.argmax(bad))
        addresses, lane = region.addresses(offsets), first if sel is None else int(sel[first])
        text, party = self._race(ins, region, first, lane, int(addresses[first])), region.shadow.party(first)
        if party is not None and self.clocks.lacks_only_warp_sync(party.stamp, int(self.clocks.stamp[lane])):
            grade = BY_THE_LETTER
            text = text.replace(_ORDER["block"], _ORDER["published"])
        if kind == VOLATILE:
            text = text.replace(
                _ORDER["block"], f"{_ORDER['block']} (volatile orders no two warps, __syncthreads() does)"
            )
            text = text.replace(_ORDER["warp"], f"{_ORDER['warp'][:-1]}, volatile does not since sm_70)")
        self.report(kind, ins, sel, bad, addresses, text, grade)

    def overwritten_copy(self, ins: Instruction, region: Region, sel: Ints | None, bad: Bools, offsets: Ints) -> None:
        """Report a write to bytes that a ``cp.async`` is still copying."""
        assert region.shadow is not None
        first, addresses, shadow = int(np.argmax(bad)), region.addresses(offsets), region.shadow
        cell = int(offsets[first]) // shadow.grain
        cell += int(np.argmax((shadow.writer[cell : cell + 16] == 0) & (shadow.copied_cells()[cell : cell + 16] > 0)))
        place = region.words(int(addresses[first]) + cell * shadow.grain - int(offsets[first]))
        text = f"writes {place}, to which the copy at {self.code[int(shadow.by[cell])].place(ins)} is still under way"
        remedy = "two copies arrive in any order; " * (ins.parts[0] == "cp") + "wait for its group first"
        self.report("race", ins, sel, bad, addresses, f"{text} ({remedy}): {ins.text}")

    def unwritten_read(self, ins: Instruction, region: Region, sel: Ints | None, bad: Bools, offsets: Ints) -> None:
        """Report a read of bytes that no thread has written, or that an asynchronous copy is still writing."""
        assert region.shadow is not None
        first, addresses, shadow = int(np.argmax(bad)), region.addresses(offsets), region.shadow
        cell = int(offsets[first]) // shadow.grain
        cell += int(np.argmax(shadow.writer[cell : cell + 16] == 0))  # the first of a vector that was not written
        place = region.words(int(addresses[first]) + cell * shadow.grain - int(offsets[first]))
        text = f"reads {place}, which no thread of the block has written: {ins.text}"
        if shadow.across_blocks:
            text = f"{_verb(ins, place)} {place}, which holds nothing before it is written: {ins.text}"
        if writer := int(shadow.by[cell]):
            copy = self.code[writer].place(ins)
            text = f"reads {place}, which the copy at {copy} is still writing (wait for its group first): {ins.text}"
        self.report(UNWRITTEN_READ, ins, sel, bad, addresses, text)

    def _race(self, ins: Instruction, region: Region, access: int, lane: int, address: int) -> str:
        """Both accesses of a race as text: what ``ins`` does, and what another thread did there."""
        assert region.shadow is not None
        party = region.shadow.party(access)
        if party is None:
            return f"{region.words(address)} is accessed by another thread, and nothing orders the two accesses: {ins.text}"
        ordinal, thread = stamped_by(party.stamp)
        threads, other = self.threads, split(self.blocks.at(ordinal), self.threads.grid)
        same_block = other == threads.place(lane)[0]
        near = "warp" if int(threads.tid[lane]) // 32 == thread // 32 else "block"
        if not same_block:
            size = threads.cluster.size
            together = ordinal // size == int(threads.blocks[threads.of_block[lane]]) // size
            near = "cluster" if together and size > 1 else "grid"
        other_thread = f"thread {split(thread, threads.block)}" + ("" if same_block else f" of block {other}")
        place = region.words(address + party.byte)
        access_text = f"{_verb(ins, place)} {place}"
        if party.did == "together":
            return f"{access_text}, and {other_thread} writes another value there in the same instruction: {ins.text}"
        earlier = self.code[party.instruction]
        if party.did == "wrote" and earlier.parts[0] == "cp" and "bulk" in earlier.parts:
            waited = f"for which {other_thread} has waited but this thread has not"
            return f"{access_text}, which the copy at {earlier.place(ins)} wrote, {waited}: {ins.text}"
        did = "wrote" if party.did == "updated" and earlier.parts[0] == "st" else _DID[party.did]
        return f"{access_text}, which {other_thread} {did} at {earlier.place(ins)}, {_ORDER[near]}: {ins.text}"


def in_library_if_both(one: Instruction, other: Instruction) -> str:
    """Return the grade of a finding about two instructions, which is IN_LIBRARY if both are in headers of a library,
    otherwise SURE."""
    return IN_LIBRARY if one.where.in_library and other.where.in_library else SURE


#: What would order two accesses of threads of one warp, of one block, or of the grid.
_ORDER = {
    "warp": "and nothing orders the threads of a warp (__syncwarp() or a barrier would)",
    "block": "with no barrier between",
    "published": "with no __syncwarp() before another thread of its warp arrived for it",
    "cluster": "and nothing orders the blocks of a cluster (a barrier of the cluster would)",
    "grid": "and nothing orders two blocks (a fence and an atomic would)",
}
_DID = {"wrote": "wrote", "read": "read", "updated": "updated atomically"}


def _verb(ins: Instruction, place: str) -> str:
    name = ins.parts[0]
    if name in ("atom", "red"):
        return "updates atomically"
    if name == "mbarrier":
        return "uses"
    if name == "cp":
        into = "global" if "bulk_group" in ins.parts else "shared"
        return "writes" if (" of shared " in place or " of dynamic shared " in place) == (into == "shared") else "reads"
    return "reads" if name.startswith("ld") else "writes"
