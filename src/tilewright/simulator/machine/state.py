"""The lanes of a batch of blocks: registers, special registers, clocks; and how an operand becomes an array.

A lane is a thread. Every register is one array over all lanes of the batch, kept as raw bits; an instruction reads
and writes it through a view of the type it works with, bound once, when the instruction is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ..findings import race_text, unwritten_text
from ..ptx.demand import Demand
from ..ptx.parse import Instruction, Where
from ..ptx.program import is_special
from ..ptx.variables import SIZES, immediate
from .clocks import Clocks, Ints, who
from .memory import WINDOW, GlobalSpace, Region, WindowSpace
from .specials import special

if TYPE_CHECKING:
    from .launch import Launch

Array = NDArray[Any]
Dim = tuple[int, int, int]

#: The NumPy type an instruction of each PTX type works with. bfloat16 has none in NumPy: kept as bits.
DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{k}{b}": np.dtype(f"{'i' if k == 's' else 'u'}{b // 8}") for k in "bus" for b in (8, 16, 32, 64)},
    "pred": np.dtype(bool),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),
    "tf32": np.dtype(np.float32),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
}


TIMERS = {"%clock", "%clock64", "%globaltimer", "%globaltimer_lo"}
NOWHERE = Instruction(0, "nop", (), None, Where())


class Observer(Protocol):
    """Is told of every memory access, as flat arrays over the active threads in order of thread.

    ``kind`` is "ld", "st", "atom", "red", "ldmatrix", "stmatrix" or "cp.async" (its global and its shared side);
    ``warps`` counts through the whole grid, ``nbytes`` is what one lane moves, vectors included.
    """

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int, /
    ) -> None: ...


class Lanes:
    """All threads of ``copies`` blocks of a launch."""

    def __init__(self, launch: Launch, copies: int) -> None:
        self.launch, self.program, self.copies = launch, launch.program, copies
        block = launch.block
        self.threads = block[0] * block[1] * block[2]
        self.size = copies * self.threads
        self.observer, self.fences, self.symbols = launch.observer, launch.fences, launch.symbols
        self.every = np.arange(self.size, dtype=np.int64)
        self.tid = self.every % self.threads
        self.of_block = self.every // self.threads  # within the batch
        self.lane = self.tid % 32
        self.warp = np.zeros(self.size, np.int64)  # within the grid
        self.base_warp = self.of_block * (-(-self.threads // 32)) + self.tid // 32  # within the batch
        self.blocks = np.zeros(copies, np.int64)  # of the run, in order
        self.grid_blocks = np.zeros(copies, np.int64)  # of the grid
        self.clocks = Clocks(copies, self.threads, launch.handed, launch.fences)
        self.registers: dict[str, Array] = {}
        self.specials: dict[str, Array] = {}
        self.spaces: dict[str, Any] = {"global": GlobalSpace(self, launch.regions)}
        for name, sizes in launch.windows.items():
            count = {"shared": copies, "local": self.size, "argument": self.size}.get(name, 1)
            self.spaces[name] = WindowSpace(self, name, sizes, count, 4096 if name == "shared" else 0)
        self.shared_base = self.of_block * self.spaces["shared"].stride
        self.local_base = self.every * self.spaces["local"].stride
        self.bases = {"shared": self.shared_base, "local": self.local_base}
        self.bases["argument"] = self.every * self.spaces["argument"].stride
        self.demand = Demand(launch.program)
        self.async_copies: Any = None  # the copies under way, once an instruction makes some
        # The access under way: set by the space before it hands out a region.
        self.instruction: Instruction = NOWHERE
        self.region: Region | None = None
        self.visitors: Ints | None = None

    def place(self, first: int, grid_blocks: Ints) -> None:
        """Stand at these blocks of the grid, ``first …`` of the run, at the start of the kernel."""
        self.blocks[:], self.grid_blocks[:] = np.arange(first, first + self.copies), grid_blocks
        self.warp[:] = grid_blocks[self.of_block] * (-(-self.threads // 32)) + self.tid // 32
        self.clocks.place(first)
        for register in self.registers.values():
            register.fill(0)
        for name, array in self.specials.items():
            array[...] = special(name, self)
        for region in self.launch.regions.values():
            if region.shadow:
                region.shadow.watch(self)
        for name in ("shared", "local"):
            region = self.spaces[name].region
            region.data.fill(0xFF)  # NaN in every float type: what nobody wrote shows in the result too
            if region.shadow:
                region.shadow.watch(self)
                region.shadow.reset()
        if self.async_copies is not None:
            self.async_copies.clear()

    def tick(self, steps: int) -> None:
        """Time passes: a kernel that waits for a clock sees it move."""
        for name in TIMERS & self.specials.keys():
            self.specials[name][...] = steps

    # ---- operands

    def register(self, name: str, ins: Instruction) -> Array:
        found = self.registers.get(name)
        if found is None:
            kind = self.program.registers.get(name)
            if kind is None:
                raise UsageError(f"{ins.place()}: unknown operand {name!r} of {ins.text}")
            size = SIZES[kind]
            found = np.zeros(self.size if size < 16 else (self.size, 2), bool if kind == "pred" else f"u{min(size, 8)}")
            self.registers[name] = found
        return found

    def width(self, name: str, ins: Instruction) -> int:
        """Bytes of a register."""
        return self.register(name, ins).dtype.itemsize

    def is_register(self, operand: str) -> bool:
        return operand in self.program.registers

    def source(self, operand: str, kind: str, ins: Instruction) -> Array:
        """An operand read as ``kind``: a view of a register, or a 0-d array of a constant."""
        dtype = DTYPES[kind]
        if self.is_register(operand):
            register = self.register(operand, ins)
            if "b" in (register.dtype.kind, dtype.kind):
                if register.dtype != dtype:
                    raise UsageError(f"{ins.place()}: {operand} mixes predicate and number in {ins.text}")
                return register
            if register.dtype.itemsize < dtype.itemsize:
                raise UsageError(f"{ins.place()}: {operand} is narrower than {kind} in {ins.text}")
            return register.view(dtype)[:: register.dtype.itemsize // dtype.itemsize]
        if is_special(operand):
            if operand not in self.specials:
                self.specials[operand] = np.array(np.broadcast_to(special(operand, self), self.size))
            array = self.specials[operand]
            if array.dtype.itemsize < dtype.itemsize:
                raise UsageError(f"{ins.place()}: {operand} is narrower than {kind} in {ins.text}")
            return array.view(dtype)[:: array.dtype.itemsize // dtype.itemsize]
        return self.constant(operand, kind, ins)

    def constant(self, operand: str, kind: str, ins: Instruction) -> Array:
        dtype = DTYPES[kind]
        value = immediate(operand, dtype)
        if value is None:
            name, _, offset = operand.partition("+")
            number = self.address_of(name.strip(), ins) + int(offset or "0", 0)
            value = np.array(number & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)
        return value

    def address_of(self, name: str, ins: Instruction) -> int:
        """The address of a variable, in its own space."""
        if name in self.symbols:
            return self.symbols[name]
        for space in ("shared", "local", "const", "param", "argument"):
            if name in self.spaces[space].at:
                return int(self.spaces[space].at[name])
        raise UsageError(f"{ins.place()}: unknown operand {name!r} of {ins.text}")

    # ---- clocks and messages

    def sync_warp(self, sel: Ints | None, groups: Ints | None = None) -> None:
        """These lanes passed a warp-wide synchronisation, each with its warp, or with those of the same group."""
        if groups is None:
            self.clocks.sync_warps(sel)
        else:
            self.clocks.sync_groups(self.every if sel is None else sel, groups)

    def who(self, lane: int) -> tuple[Dim, Dim]:
        """Block and thread of a lane, as the kernel sees them."""
        block, thread = int(self.grid_blocks[self.of_block[lane]]), int(self.tid[lane])
        return split(block, self.launch.grid), split(thread, self.launch.block)

    def report(
        self, kind: str, ins: Instruction, sel: Ints | None, bad: NDArray[np.bool_], address: Ints | None, text: str
    ) -> None:
        """A finding for the first lane that is bad (``bad`` is over the active lanes)."""
        first = int(np.argmax(bad))
        block, thread = self.who(first if sel is None else int(sel[first]))
        where = None if address is None else int(address[first])
        if where is not None and self.region is not None and self.region.shadow is not None:
            if kind == "race":
                text = self._race(ins, first, where, block)
            elif kind == "unwritten read":
                text = self._unwritten(ins, self.region, first if sel is None else int(sel[first]), where)
        self.launch.findings.add(kind, ins, block, thread, where, text, int(bad.sum()))

    def report_race(self, bad: NDArray[np.bool_], offsets: Ints) -> None:
        """A race of the access under way, at these offsets of its region."""
        assert self.region is not None
        base = self.bases.get(self.region.name)
        if base is not None:
            address = offsets - (base if self.visitors is None else base[self.visitors])
        else:
            address = offsets + self.region.base
        self.report("race", self.instruction, self.visitors, bad, address, "")

    def place_of(self, address: int) -> str:
        """An address of the region under way, in words."""
        assert self.region is not None
        space = self.spaces.get(self.region.name, self.spaces["global"])
        return str(space.describe(address, 0))

    def _race(self, ins: Instruction, access: int, address: int, block: Dim) -> str:
        assert self.region is not None
        assert self.region.shadow is not None
        party = self.region.shadow.party(access)
        if party is None:
            return f"{self.place_of(address)} is used by another thread with nothing to order the two: {ins.text}"
        ordinal, thread = who(party.stamp)
        other = split(self.launch.grid_block(ordinal), self.launch.grid)
        mine = int(self.tid[access if self.visitors is None else self.visitors[access]])
        near = "warp" if mine // 32 == thread // 32 else "block"
        return race_text(
            ins, self.place_of(address + party.byte), party.did, self.program.code[party.instruction],
            split(thread, self.launch.block), other if other != block else None, near if other == block else "grid",
        )  # fmt: skip

    def _unwritten(self, ins: Instruction, region: Region, lane: int, address: int) -> str:
        """A read of what nobody wrote; of what an asynchronous copy is still writing, if there is one."""
        assert region.shadow is not None
        shadow, base = region.shadow, int(self.bases[region.name][lane])
        cell = (address + base) // shadow.grain
        cell += int(np.argmax(shadow.writer[cell : cell + 16] == 0))  # the first of a vector that nobody wrote
        writer = int(shadow.by[cell])
        place = self.place_of(cell * shadow.grain - base)
        return unwritten_text(ins, place, self.program.code[writer] if writer else None)

    def observe(self, space: str, kind: str, ins: Instruction, address: Ints, nbytes: int, sel: Ints | None) -> None:
        if self.observer is not None:
            warp, lane = (self.warp, self.lane) if sel is None else (self.warp[sel], self.lane[sel])
            self.observer.on_access(space, kind, ins, warp, lane, address, nbytes)

    def window(self, name: str) -> int:
        return WINDOW.get(name, 0)


def split(index: int, shape: Dim) -> Dim:
    """A linear index as (x, y, z).

    >>> split(7, (4, 2, 1))
    (3, 1, 0)
    """
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])
