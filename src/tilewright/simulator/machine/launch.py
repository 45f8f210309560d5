"""Prepares a simulated launch: checks the launch's arguments, allocates its memory, and compares the memory that it
needs with the limit.

``simulator.run.simulate`` uses this module, and ``machine.lanes`` uses the memory that it allocates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import OperandError, UsageError
from ...gpu.runtime.cubin import demangled
from ...kernels.cuda_kernel import MOST_THREADS
from ..assembly.dataflow import operand_names, pointers_written
from ..assembly.instructions import (
    SIZES,
    Variable,
    is_mbarrier_wait,
    loads_anew,
    synchronises_grid,
    uses_tensor_memory,
)
from ..assembly.program import Program, found_once
from ..findings import UNWRITTEN_OUTPUT
from .arguments import (
    Member,
    SimulatedBlocks,
    checked_array,
    chosen_values,
    is_pointer,
    number_member,
    parameter_bytes,
    size_in_words,
    structure,
)
from .event_log import CopyRounds
from .memory import SLOT, Region, Sized, padded, variable_layout
from .options import RunOptions
from .printed import Printed
from .reports import Findings
from .shadow import CELL_BYTES, Shadow
from .tensor_map import MAP_ALIGN, MAP_BYTES, TensorMap
from .tensor_memory import TENSOR_MEMORY_BYTES
from .threads import cluster_dimensions
from .values import Array, Dim

#: The number of lanes of a batch: enough to hide the overhead of Python, and so few that a register fits a core's cache.
LANES = 16384
#: The number of lanes of a batch if blocks may wait for one another: as many as are resident on an H100.
RESIDENT = 132 * 2048
#: The bytes of the workspace of a cooperative launch; its second word is the barrier of the grid.
WORKSPACE = 64
#: The most bytes of shared memory that a block of any GPU can have (H100).
SHARED = 227 << 10
#: Bytes of Python objects and bookkeeping for each thread.
THREAD_OVERHEAD = 200
#: The estimate for the shadow of a written array assumes that a block uses at least 1/16 of each page that it touches.
LEAST_USED_PART_OF_A_PAGE = 16


class SimulatedLaunch:
    """A kernel and its grid, with its memory. Each array argument and each global variable has a number, its slot; the
    upper bits of a simulated address are the slot."""

    def __init__(self, program: Program, grid: Dim, block: Dim, args: Sequence[Any], options: RunOptions) -> None:
        """Take the arguments, lay out memory, and give shadows to memory that may be written.

        Raises UsageError for a launch that the kernel does not take, OperandError for an argument of an unusable type.
        """
        self.program, self.grid, self.block, self.options = program, grid, block, options
        self.cluster = cluster_dimensions(program.entry, grid, options.cluster)
        self.blocks = blocks = SimulatedBlocks.of(grid, options.blocks, self.cluster)
        self.threads = math.prod(block)
        self.used = _used_names(program)
        self.regions: dict[int, Region] = {}  # array arguments and global variables, by slot
        self.global_addresses: dict[str, int] = {}  # of the global variables, by name
        self.argument_slots: dict[int, list[int]] = {}  # argument → the slot of its array, or of each array of a list
        self.chosen_slots: dict[
            str, list[int]
        ] = {}  # variable → the slots of arrays in the value that was chosen for it
        self.slot_by_array: dict[object, int] = {}  # by the address and size of the caller's array
        self.caller_arrays: dict[int, Array] = {}  # by slot
        self.parameter_values: list[bytes] = []
        self.layout_by_space: dict[str, list[Sized]] = {}  # the variables of each space but global memory
        self.bytes_by_space: dict[str, dict[str, bytes]] = {}  # space → the initial bytes of parameters and constants
        self.findings, self.printed, self.rounds = Findings(program.entry.name), Printed(), CopyRounds()
        self.warp_instructions = 0  # of the PTX, executed so far
        self.multiplying: set[int] = set()  # warp groups of a block that have executed wgmma
        # Of each block: whether it has read global memory atomically, and the time up to which its writes are visible to
        # blocks that have (see clocks.Clocks).
        self.has_observed_others = np.zeros(blocks.count, np.int8)
        self.handed_over_until = np.zeros(blocks.count, np.int32)
        self.static_shared = 0
        # Cells of a shadow need be no finer than the smallest access to memory in the program.
        self.grain = min([4, *(SIZES.get(i.parts[-1], 4) for i in program.code if i.parts[0] in ("ld", "st", "atom", "red")
                               and "param" not in i.parts)])  # fmt: skip
        self._check_limits()
        self._take_arguments(args)
        self._lay_out()
        self._add_workspace()
        self._add_shadows()

    # ---- arguments and memory

    def _check_limits(self) -> None:
        """Raise UsageError for a block that the kernel was not compiled for."""
        entry, limits = self.program.entry, self.program.entry.limits
        if limits.get("reqntid", self.block) != self.block:
            raise UsageError(f"kernel {entry.name} needs blocks of {limits['reqntid']} threads, given {self.block}")
        most = math.prod(limits.get("maxntid", (MOST_THREADS,)))
        if self.threads > most:
            raise UsageError(f"kernel {entry.name} takes at most {most} threads a block, given {self.threads}")

    def _take_arguments(self, args: Sequence[Any]) -> None:
        """Set the bytes of each kernel parameter. Each array gets a region of global memory; one passed twice has one
        region."""
        params, name = self.program.entry.params, self.program.entry.name
        if len(args) != len(params):
            raise UsageError(f"kernel {demangled(name)} takes {len(params)} arguments, given {len(args)}")
        for index, (param, value) in enumerate(zip(params, args, strict=True)):
            slots: list[int] = []
            self.parameter_values.append(self._value_bytes(f"argument {index}", param, value, slots))
            if slots:
                self.argument_slots[index] = slots
        for output in self.options.outputs:
            if output not in self.argument_slots:
                raise UsageError(
                    f"outputs names argument {output}, which is not an array among the {len(args)} arguments"
                )

    def _value_bytes(self, what: str, variable: Variable, value: Any, slots: list[int]) -> bytes:
        """The bytes of a parameter or variable; the slots of arrays to which it leads are appended to ``slots``.

        Tensor maps and lists are structures. Behind a pointer they lie in global memory.
        """
        if isinstance(value, np.ndarray) and is_pointer(variable):
            return self._member(what, value, 8, slots).data
        if not isinstance(value, TensorMap | list | tuple):
            return parameter_bytes(what, variable, value)
        member = self._member(what, value, variable.align, slots)
        if is_pointer(variable):
            what = f"the tensor map of {what}" if isinstance(value, TensorMap) else what
            words = np.frombuffer(member.data, np.uint64 if len(member.data) % 8 == 0 else np.uint8)
            return (self._new_region(what, words, words) << SLOT).to_bytes(8, "little")
        if len(member.data) != variable.size:
            given = f"{what} is a {type(value).__name__} of {len(member.data)} bytes"
            raise OperandError(f"{given}, the kernel's parameter has {variable.size}: give every member, and no other")
        return member.data

    def _member(self, what: str, value: Any, align: int, slots: list[int]) -> Member:
        """A member of a structure that is aligned to ``align`` bytes: an array as its address, a list as a structure."""
        if isinstance(value, list | tuple):
            return structure([self._member(f"{what}[{i}]", each, align, slots) for i, each in enumerate(value)])
        if not isinstance(value, TensorMap | np.ndarray):
            return number_member(what, value)
        slots.append(self._slot_of_array(what, value.array if isinstance(value, TensorMap) else value))
        address = slots[-1] << SLOT
        if isinstance(value, TensorMap):
            return Member(value.encoded(address), MAP_BYTES if align % MAP_BYTES == 0 else MAP_ALIGN)
        return Member(address.to_bytes(8, "little"), 8)

    def _slot_of_array(self, name: str, value: Array) -> int:
        """The slot of an array, which is the same for one that is passed twice."""
        data = checked_array(name, value)
        # Arrays are the same operand if they begin at the same address and have the same number of bytes. Arrays
        # that are not contiguous are copied; of these, shape and strides must agree instead of the number of bytes.
        extent = (data.nbytes,) if np.may_share_memory(data, value) else (value.shape, value.strides)
        key = (value.__array_interface__["data"][0], *extent) if data.nbytes else name
        if key not in self.slot_by_array:
            self.slot_by_array[key] = self._new_region(name, value, data)
            self.caller_arrays[self.slot_by_array[key]] = value
        return self.slot_by_array[key]

    def _new_region(self, name: str, value: Array, data: Array) -> int:
        """The slot of a new region over the bytes of ``data``: the array ``value`` itself, or a contiguous copy of it. Bytes
        that are not aligned to 16 are copied."""
        flat = data.reshape(-1).view(np.uint8) if data.nbytes else padded(0)
        slot = len(self.regions) + 1
        borrowed = np.may_share_memory(data, value)
        region = Region(name, flat, data.nbytes, slot << SLOT, None, borrowed, dtype=value.dtype, shape=value.shape)
        if data.nbytes and data.__array_interface__["data"][0] % 16:
            region.own()
        self.regions[slot] = region
        return slot

    def _lay_out(self) -> None:
        """Shared, local, constant and parameter space, and the module's variables."""
        mine = [v for v in self.program.variables.values() if v.name in self.used]
        by_space = {s: [v for v in mine if v.space == s] for s in ("shared", "local", "const", "param")}
        shared_bytes = self.options.shared_bytes
        self.static_shared = sum(v.size for v in by_space["shared"])
        if shared_bytes + self.static_shared > SHARED:
            raise UsageError(
                f"a block needs {shared_bytes + self.static_shared:,} bytes of shared memory ({shared_bytes:,} of them "
                f"dynamic, as shared_bytes says): no GPU has more than {SHARED:,}"
            )
        self.layout_by_space = {
            "shared": variable_layout(by_space["shared"], shared_bytes),
            "local": variable_layout(by_space["local"], 0),
            "const": variable_layout(by_space["const"], 0),
            # PTX calls both spaces ".param": the parameters of the kernel, and those of called functions, of which every
            # thread has its own.
            "param": [Sized((p.name,), p.size, max(p.align, 8)) for p in self.program.entry.params],
            "argument": [Sized((v.name,), v.size, v.align) for v in by_space["param"]],
        }
        self.bytes_by_space = {
            "param": {p.name: value for p, value in zip(self.program.entry.params, self.parameter_values, strict=True)},
            "const": {v.name: v.data or b"" for v in by_space["const"]},
        }
        variables = [v for v in mine if v.space == "global"]
        chosen = chosen_values(
            self.options.constants, [*by_space["const"], *variables], partial(self._chosen_bytes, self.chosen_slots)
        )
        self.bytes_by_space["const"] |= {v.name: chosen[v.name] for v in by_space["const"] if v.name in chosen}
        for slot, v in enumerate(variables, len(self.regions) + 1):
            self.global_addresses[v.name] = slot << SLOT
            self.regions[slot] = Region(v.name, padded(v.size), v.size, slot << SLOT)
        for v in variables:
            data = bytearray(chosen.get(v.name, v.data or b""))
            for at, symbol in v.symbols if v.name not in chosen else ():
                name, _, offset = symbol.removeprefix("generic(").replace(")", "").partition("+")
                data[at : at + 8] = (self.global_addresses.get(name, 0) + int(offset or "0", 0)).to_bytes(8, "little")
            self.regions[self.global_addresses[v.name] >> SLOT].data[: len(data)] = np.frombuffer(data, np.uint8)

    def _chosen_bytes(self, slots: dict[str, list[int]], what: str, variable: Variable, value: Any) -> bytes:
        """The bytes of a variable whose value the caller chose; the slots of its arrays go to ``slots``, by its name."""
        return self._value_bytes(what, variable, value, slots.setdefault(variable.name, []))

    def _add_workspace(self) -> None:
        """Add the workspace of the grid barrier of a cooperative launch; zero at the start, as the driver provides it.

        Raises UsageError if not all blocks of the grid are run: the others would wait for them for ever.
        """
        self.cooperative, self.workspace = synchronises_grid(self.program.code), 0
        if not self.cooperative:
            return
        if self.blocks.count < self.blocks.total:
            name = self.program.entry.name
            raise UsageError(
                f"kernel {name} synchronises its grid: all {self.blocks.total:,} blocks must be run, not a sample"
            )
        slot = len(self.regions) + 1
        self.workspace = slot << SLOT
        self.regions[slot] = Region("the workspace of the grid", padded(WORKSPACE), WORKSPACE, self.workspace)

    def _add_shadows(self) -> None:
        """Give a shadow to the memory that a store can reach: reads of the rest cannot race."""
        written = pointers_written(self.program)
        names = {p.name: self.argument_slots.get(i, []) for i, p in enumerate(self.program.entry.params)}
        names |= {n: [at >> SLOT, *self.chosen_slots.get(n, [])] for n, at in self.global_addresses.items()}
        slots = {slot for n in written or () for slot in names.get(n, [])}
        slots |= {slot for output in self.options.outputs for slot in self.argument_slots[output]}
        slots = set(self.regions) if written is None else slots
        for slot in slots & set(self.regions):
            self._check_overlap(slot)
            self.regions[slot].shadow = Shadow(self.regions[slot].nbytes, self.grain, across_blocks=True)
        for slot in (slot for output in self.options.outputs for slot in self.argument_slots[output]):
            if (shadow := self.regions[slot].shadow) is not None:
                shadow.starts_empty = self.options.outputs_empty

    def _check_overlap(self, written: int) -> None:
        """Raise UsageError if an array that may be written overlaps another: in the simulation each has its own memory."""
        for slot, other in self.caller_arrays.items():
            if slot != written and written in self.caller_arrays and _overlap(self.caller_arrays[written], other):
                names = f"{self.regions[written].name} and {self.regions[slot].name}"
                raise UsageError(f"{names} overlap, and the kernel may write to the first: give one array, or copies")

    # ---- size

    def blocks_per_batch(self) -> int:
        """Return the number of blocks in a batch, in whole clusters. A batch has about LANES lanes, or RESIDENT lanes
        if blocks may wait for one another; a batch has fewer lanes if memory is short.

        Raises UsageError if the memory for one cluster already exceeds ``max_bytes``.
        """
        shadow = 1 + CELL_BYTES // self.grain
        sizes = {name: sum(v.size for v in spans) for name, spans in self.layout_by_space.items()}
        registers = sum(SIZES[k] for k in self.program.registers.values())
        a_thread = registers + sizes["argument"] + sizes["local"] * shadow + THREAD_OVERHEAD
        a_block = self.threads * a_thread + sizes["shared"] * shadow
        a_block += TENSOR_MEMORY_BYTES * uses_tensor_memory(self.program.code)
        # The copy of a written array takes memory in full; of its shadow, only the pages that this run touches.
        share = min(1.0, LEAST_USED_PART_OF_A_PAGE * self.blocks.count / self.blocks.total)
        arrays = sum(r.nbytes * (1 + share * CELL_BYTES / self.grain) for r in self.regions.values() if r.shadow)
        least_blocks = self.blocks.count if self.cooperative else math.prod(self.cluster)
        need, limit = int(arrays) + least_blocks * a_block, self.options.max_bytes
        if need > limit:
            total, most, written, block = (size_in_words(size) for size in (need, limit, int(arrays), a_block))
            all_blocks = f", of which all {least_blocks:,} run at once" if self.cooperative else ""
            raise UsageError(
                f"the run needs {total}, more than max_bytes, which is {most} (operands that are written, with the shadow "
                f"that finds races, {written}; a block {block}{all_blocks}): give smaller operands, fewer blocks "
                "(blocks=) or a larger max_bytes"
            )
        lanes = RESIDENT if self._blocks_may_wait() else LANES
        most_blocks = min(self.blocks.count, lanes // self.threads, (limit - int(arrays)) // a_block)
        return max(1, most_blocks // least_blocks) * least_blocks

    def _blocks_may_wait(self) -> bool:
        """Whether the kernel polls global memory in a loop."""
        code, labels = self.program.code, self.program.labels
        polls = [i.index for i in code if loads_anew(i) and "shared" not in i.parts
                 and not is_mbarrier_wait(i) and not (i.parts[0] == "atom" and i.operands[0] == "_")]  # fmt: skip
        loops = [(labels.get(i.operands[0], i.index + 1), i.index) for i in code if i.parts[0] == "bra" and i.operands]
        return any(first <= poll <= last for first, last in loops for poll in polls)

    def text_of_blocks_not_run(self, last: int) -> str:
        """Return a text that is added to findings about blocks that wait for ever: it says that blocks which have not
        run may be the cause. ``last`` is the last block of the run that has begun."""
        left = self.blocks.count - last - 1
        if self.blocks.count < self.blocks.total:
            return f" (only {self.blocks.count:,} of {self.blocks.total:,} blocks are run)"
        return f" ({left:,} blocks have not begun: a GPU might not hold more of them at once either)" if left else ""

    # ---- results

    def report_unwritten(self) -> None:
        """Report output arrays in which the kernel left elements unwritten."""
        for slot in [slot for output in self.options.outputs for slot in self.argument_slots[output]]:
            region = self.regions[slot]
            assert region.shadow is not None
            cells = region.shadow.writer[: -(-region.nbytes // region.shadow.grain)] == 0
            if cells.any():
                first = int(np.argmax(cells)) * region.shadow.grain
                count = min(int(cells.sum()) * region.shadow.grain, region.nbytes)
                unwritten = f"{count} of {region.nbytes} bytes were never written"
                text = f"{region.name}: {unwritten}, the first at byte {first} ({region.element(first)})"
                if pointers_written(self.program) == set():
                    text += "; the compiler left no store to memory in this kernel"
                self.findings.add(UNWRITTEN_OUTPUT, None, (0, 0, 0), (0, 0, 0), region.base + first, text)

    def result(self, index: int, value: Any) -> Array | list[Array] | None:
        """Return the contents of an array argument after the run, or of a list of arrays. None for other arguments."""
        if index not in self.argument_slots:
            return None
        return self._after_run(value, iter(self.argument_slots[index]))

    def _after_run(self, value: Any, slots: Iterator[int]) -> Any:
        """The arrays of a value as the kernel left them, in lists like those of the value; None for other members."""
        if isinstance(value, list | tuple):
            return [self._after_run(each, slots) for each in value]
        array = value.array if isinstance(value, TensorMap) else value
        return self._array_after_run(next(slots), array) if isinstance(array, np.ndarray) else None

    def _array_after_run(self, slot: int, value: Array) -> Array:
        """An array as the kernel left it: the caller's own if nothing was written to it."""
        region = self.regions[slot]
        if not region.written or not value.nbytes:
            return np.asarray(value)
        return region.data[: value.nbytes].view(value.dtype).reshape(value.shape)


def _overlap(a: Array, b: Array) -> bool:
    work: Any = 10_000  # NumPy's stubs accept only two named constants
    try:
        return bool(np.shares_memory(a, b, max_work=work))
    except np.exceptions.TooHardError:  # interleaved views: NumPy gave up, so they are taken as disjoint
        return False


@found_once
def _used_names(program: Program) -> set[str]:
    """Names in the program's operands, and names whose addresses are stored in variables that are used."""
    used = {word for ins in program.code for operand in ins.operands for word in operand_names(operand)}
    new = used
    while new:
        symbols = [symbol for v in program.variables.values() if v.name in new for _, symbol in v.symbols]
        stored = {word for symbol in symbols for word in operand_names(symbol)}
        new = stored - used
        used |= new
    return used
