"""The lanes of a batch of blocks: threads with registers, clocks and memory. ``Lanes`` also converts operands of
instructions to arrays.

A lane is a thread. Every register is one array over all lanes of the batch, stored as raw bits. An instruction reads
and writes a register through a view of the instruction's own type; the view is made once, when the instruction is
decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import UsageError
from ..assembly.dataflow import compared_loads, demand_of, polling_loads
from ..assembly.instructions import SIZES, Instruction, immediate, ptx_integer, uses_tensor_memory
from ..assembly.program import is_special
from .clocks import Clocks
from .launch import SimulatedLaunch
from .mbarriers import Mbarriers
from .origins import Origins
from .registers import RegisterPool, at_launch
from .reports import Reports
from .shadow import Shadow
from .spaces import SHARED_GUARD, GlobalSpace, SharedSpace, Space, WindowSpace, address_in
from .tensor_map_edits import TensorMapEdits
from .tensor_memory import TensorMemory
from .threads import Threads, special_register
from .transfers import Transfers
from .values import DTYPES, Array, Ints
from .warpgroups import Warpgroups

TIMERS = {"%clock", "%clock64", "%globaltimer", "%globaltimer_lo"}


class Lanes(Threads):
    """All threads of ``copies`` blocks of a launch, with their registers, clocks and memory."""

    def __init__(self, launch: SimulatedLaunch, copies: int) -> None:
        super().__init__(launch.grid, launch.block, copies, launch.cluster)
        self.launch, self.program = launch, launch.program
        self.clocks = Clocks(
            copies, self.threads, launch.handed_over_until, launch.has_observed_others, self.cluster.size
        )
        self.reports = Reports(launch.findings, self, self.clocks, launch.blocks, launch.program.code)
        self.registers: dict[str, Array] = {}
        self.specials: dict[str, Array] = {}
        self.windows = {name: self._window(name) for name in launch.layout_by_space}
        self.spaces: dict[str, Space] = {"global": GlobalSpace(self.reports, launch.regions, launch.grain)}
        self.spaces |= self.windows
        #: Whether addresses of shared variables contain the rank of their block, which code for a pair of blocks changes.
        self.names_ranks = self.cluster.size > 1 and any("cta_group::2" in ins.opcode for ins in launch.program.code)
        self.demand, self.compared = demand_of(launch.program), compared_loads(launch.program)
        self.polling = polling_loads(launch.program)
        registers = at_launch(launch.program.entry, self.threads, launch.options.registers)
        self.register_pool = RegisterPool(self.reports, registers)
        self.async_copies: Any = None  # AsyncCopies, created by the first cp.async
        self.tensor_memory: TensorMemory | None = None
        self.uses_tensor_memory = uses_tensor_memory(launch.program.code)
        self.mbarriers = Mbarriers(self, self.clocks, self.reports, self.windows["shared"].stride, launch.rounds)
        self.transfers = Transfers(self, self.clocks, self.reports, self.mbarriers, launch.program.code)
        self.origins = Origins()
        self.tensor_map_edits = TensorMapEdits(self, self.clocks, self.reports)
        self.warpgroups = Warpgroups(self, self.clocks, self.reports, launch.program.code)

    def use_tensor_memory(self) -> TensorMemory:
        """Return the tensor memory of the batch. The first instruction that uses tensor memory creates it."""
        if self.tensor_memory is None:
            self.tensor_memory = TensorMemory(self, self.clocks, self.reports, self.mbarriers)
        return self.tensor_memory

    def _window(self, name: str) -> WindowSpace:
        """A space other than global memory, with the values it has before the kernel starts, and a shadow."""
        launch, owners = self.launch, {"shared": self.of_block, "local": self.every, "argument": self.every}
        copies = {"shared": self.copies, "local": self.size, "argument": self.size}.get(name, 1)
        guard = SHARED_GUARD if name == "shared" else 0
        kind = SharedSpace if name == "shared" else WindowSpace
        space = kind(self.reports, name, launch.layout_by_space[name], copies, owners.get(name), guard)
        for variable, data in launch.bytes_by_space.get(name, {}).items():
            at = space.at[variable]
            space.region.data[at : at + len(data)] = np.frombuffer(data, np.uint8)
        if name in ("shared", "local") and space.region.spans:
            space.region.shadow = Shadow(space.region.nbytes, launch.grain, across_blocks=False)
        return space

    def start(self, first: int, grid_blocks: Ints) -> None:
        """Start the kernel on these blocks of the grid, the first of which is block ``first`` of the run."""
        self.move_to(first, grid_blocks)
        self.clocks.place(first)
        for register in self.registers.values():
            register.fill(0)
        for name, array in self.specials.items():
            array[...] = self._special(name)
        for name in ("shared", "local"):
            region = self.windows[name].region
            region.data.fill(0xFF)  # NaN in every float type: unwritten bytes show in the result too
            if region.shadow:
                region.shadow.reset()
        for region in (*self.launch.regions.values(), *(space.region for space in self.windows.values())):
            if region.shadow:
                region.shadow.clocks = self.clocks
        if self.async_copies is not None:
            self.async_copies.clear()
        if self.tensor_memory is not None:
            self.tensor_memory.clear()
        log = self.launch.options.log if first == 0 else None
        if log is not None:
            log.start(self)
        self.mbarriers.log = self.warpgroups.log = log
        self.mbarriers.clear()
        self.transfers.clear()
        self.warpgroups.clear()
        self.origins.clear()
        self.tensor_map_edits.clear()
        if self.shared.visits is not None:
            self.shared.visits.clear()
        self.register_pool.clear()

    @property
    def shared(self) -> SharedSpace:
        """The shared memory of all blocks of the batch."""
        space = self.windows["shared"]
        assert isinstance(space, SharedSpace)
        return space

    def _special(self, name: str) -> Array:
        if name in ("%envreg1", "%envreg2"):  # the two halves of an address
            return np.array([self.launch.workspace >> (32 if name == "%envreg1" else 0)], np.uint64).astype(np.uint32)
        return special_register(name, self, self.launch.options.shared_bytes, self.launch.static_shared)

    def tick(self, steps: int) -> None:
        """Advance the clock registers, so that a kernel that waits for a clock to reach some value ends."""
        for name in TIMERS & self.specials.keys():
            self.specials[name][...] = steps

    # ---- operands

    def register(self, name: str, ins: Instruction) -> Array:
        """Return the bits of a register over all lanes. Raises UsageError for a register that is not declared."""
        found = self.registers.get(name)
        if found is None or found.ndim > 1:
            kind = self.program.registers.get(name)
            if kind is None:
                raise UsageError(f"{ins.place()}: unknown operand {name!r} of {ins.text}")
            if SIZES[kind] > 8:
                raise UsageError(f"{ins.place()}: {name} has {8 * SIZES[kind]} bits, which cannot be run: {ins.text}")
            found = np.zeros(self.size, bool if kind == "pred" else f"u{SIZES[kind]}")
            self.registers[name] = found
        return found

    def wide_register(self, name: str, ins: Instruction) -> Array:
        """Return the bits of a 128-bit register: (lanes, 2). Raises UsageError for any other operand than such a
        register."""
        if self.program.registers.get(name) != "b128":
            raise UsageError(f"{ins.place()}: {name!r} is no register of 128 bits in {ins.text}")
        return self.registers.setdefault(name, np.zeros((self.size, 2), np.uint64))

    def width(self, name: str, ins: Instruction) -> int:
        """The bytes of a register."""
        return self.register(name, ins).dtype.itemsize

    def is_register(self, operand: str) -> bool:
        """Whether an operand is a register. Special registers, numbers and variables do not count as registers."""
        return operand in self.program.registers

    def source(self, operand: str, kind: str, ins: Instruction) -> Array:
        """Return the value of an operand, read as type ``kind``: a view of a register, or a 0-d array of a constant."""
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
                self.specials[operand] = np.array(np.broadcast_to(self._special(operand), self.size))
            array = self.specials[operand]
            if array.dtype.itemsize < dtype.itemsize:
                raise UsageError(f"{ins.place()}: {operand} is narrower than {kind} in {ins.text}")
            return array.view(dtype)[:: array.dtype.itemsize // dtype.itemsize]
        return self.constant(operand, kind, ins)

    def constant(self, operand: str, kind: str, ins: Instruction) -> Array:
        """Return a number, or the address of a variable, as a 0-d array."""
        dtype = DTYPES[kind]
        value = immediate(operand, dtype)
        if value is None:
            name, _, offset = operand.partition("+")
            distance = ptx_integer(offset.strip() or "0")
            if distance is None:
                raise UsageError(f"{ins.place()}: unknown operand {operand!r} of {ins.text}")
            number = self.address_of(name.strip(), ins) + distance
            value = np.array(number & ((1 << 8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)
            if self.names_ranks and name.strip() in self.windows["shared"].at:
                value = address_in(np.full(self.size, value), self.cluster.rank)
        return value

    def address_of(self, name: str, ins: Instruction) -> int:
        """Return the address of a variable, in the memory space of the variable."""
        if name in self.launch.global_addresses:
            return self.launch.global_addresses[name]
        for space in self.windows.values():
            if name in space.at:
                return space.at[name]
        raise UsageError(f"{ins.place()}: unknown operand {name!r} of {ins.text}")

    # ---- clocks

    def sync_warp(self, sel: Ints | None, groups: Ints | None = None) -> None:
        """Order lanes that passed a warp-wide synchronisation: each lane with the lanes of its warp, or with the lanes
        of the same group."""
        if groups is None:
            self.clocks.sync_warps(sel)
        else:
            self.clocks.sync_groups(self.every if sel is None else sel, groups)
