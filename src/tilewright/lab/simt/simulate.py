"""The call that runs a kernel's PTX: operands in, results and findings out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import OperandError, UsageError
from .engine import Engine, StepLimitError
from .findings import Finding, Findings
from .memory import SLOT, Region, layout, padded
from .program import Program, link
from .provenance import pointers_written, words
from .ptx import Module, parse
from .shadow import Shadow
from .state import DTYPES, Array, Dim, Lanes, Observer
from .variables import SIZES, Variable

#: Lanes that run together: enough to hide Python, few enough that a register fits a core's cache.
LANES = 16384
MAX_STEPS = 50_000_000
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class Run:
    """What a simulated kernel left behind: ``arrays`` has one entry an argument, None for those that are no array."""

    kernel: str
    arrays: tuple[Array | None, ...]
    findings: list[Finding]
    steps: int
    blocks_run: int
    blocks_total: int
    complete: bool = field(default=True)

    @property
    def sampled(self) -> bool:
        return self.blocks_run < self.blocks_total


def simulate(
    ptx: str | Module,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    shared_bytes: int = 0,
    outputs: Sequence[int] = (),
    observer: Observer | None = None,
    max_steps: int = MAX_STEPS,
    max_bytes: int = MAX_BYTES,
    blocks: int | Sequence[int] | None = None,
) -> Run:
    """Run kernel ``entry`` of a PTX module on the CPU.

    ``args`` are the kernel's parameters in order: NumPy arrays are copied in and come back in ``Run.arrays``; numbers
    are taken in the parameter's PTX type (an int is its bits where that type is untyped, as for ``.b32``; give
    ``np.float32(2)`` for a float). ``shared_bytes`` is dynamic shared memory. ``outputs`` are positions of arrays that
    the kernel must write in full. ``blocks`` picks blocks of the grid by linear index, or as a number how many to
    take spread over it; what only a whole run can tell (outputs never written) is then not reported.

    The run goes on after a finding, so that the result can be looked at. After ``max_steps`` steps it stops with a
    finding and ``Run.complete`` false. Interrupting it leaves nothing behind.

    Raises UsageError for PTX it cannot read, an instruction it does not know (naming its source line), arguments that
    do not fit the kernel's parameters, and a launch that exceeds the limits; OperandError for an argument of no use.
    """
    module = parse(ptx) if isinstance(ptx, str) else ptx
    launch = _Launch(link(module, entry), _dim("grid", grid), _dim("block", block))
    with np.errstate(all="ignore"):
        return launch.run(args, shared_bytes, outputs, observer, max_steps, max_bytes, blocks)


def _dim(name: str, value: int | Sequence[int]) -> Dim:
    given = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(given) <= 3 or any(int(v) < 1 for v in given):
        raise UsageError(f"{name} must be one to three positive numbers, given {value!r}")
    x, y, z = (*(int(v) for v in given), 1, 1)[:3]
    if name == "block" and x * y * z > 1024:
        raise UsageError(f"block {value!r} has {x * y * z} threads: at most 1024 are allowed")
    return x, y, z


class _Launch:
    def __init__(self, program: Program, grid: Dim, block: Dim) -> None:
        self.program, self.grid, self.block = program, grid, block
        self.total = math.prod(grid)
        self.used = {w for i in program.code for o in i.operands for w in words(o)}
        self.regions: dict[int, Region] = {}
        self.symbols: dict[str, int] = {}
        self.findings = Findings(program.entry.name)

    def run(
        self, args: Sequence[Any], shared_bytes: int, outputs: Sequence[int], observer: Observer | None,
        max_steps: int, max_bytes: int, blocks: int | Sequence[int] | None,
    ) -> Run:  # fmt: skip
        program = self.program
        values = self._arguments(args)
        chosen = self._chosen(blocks)
        windows = self._windows(shared_bytes)
        self._module_memory()
        self._shadows(len(args), outputs)
        threads = math.prod(self.block)
        copies = self._copies(windows, threads, chosen.size, max_bytes)
        fences = np.zeros(self.total, np.int8)
        steps, complete = 0, True
        engines: dict[int, Engine] = {}
        for start in range(0, chosen.size, copies):
            batch = chosen[start : start + copies]
            engine = engines.get(batch.size)
            if engine is None:
                engines.clear()  # only the last batch is of another size; free the memory of the others
                lanes = Lanes(program, self.grid, self.block, batch.size, self.regions, self.symbols, windows,
                              self.findings, observer, fences)  # fmt: skip
                self._fill(lanes, values)
                engine = engines[batch.size] = Engine(program, lanes)
            engine.lanes.place(batch)
            engine.steps = steps
            try:
                engine.run(max_steps)
            except StepLimitError:
                complete = False
            steps = engine.steps
            if not complete:
                break
        if complete and chosen.size == self.total:
            self._unwritten(outputs)
        arrays = tuple(self._result(i, a) for i, a in enumerate(args))
        return Run(program.entry.name, arrays, self.findings.list(), steps, chosen.size, self.total, complete)

    def _chosen(self, blocks: int | Sequence[int] | None) -> np.ndarray:
        if blocks is None:
            return np.arange(self.total)
        if isinstance(blocks, int | np.integer):
            return np.unique(np.linspace(0, self.total - 1, max(1, min(int(blocks), self.total))).astype(np.int64))
        chosen = np.unique(np.asarray(blocks, np.int64))
        if not chosen.size or chosen[0] < 0 or chosen[-1] >= self.total:
            raise UsageError(f"blocks must be indices from 0 to {self.total - 1}, given {blocks!r}")
        return chosen

    # ---- arguments and memory

    def _arguments(self, args: Sequence[Any]) -> list[bytes]:
        """The bytes of each kernel parameter; arrays get a region of global memory."""
        params = self.program.entry.params
        if len(args) != len(params):
            raise UsageError(f"kernel {self.program.entry.name} takes {len(params)} arguments, given {len(args)}")
        return [self._argument(i, p, a) for i, (p, a) in enumerate(zip(params, args, strict=True))]

    def _argument(self, index: int, param: Variable, value: Any) -> bytes:
        name = f"argument {index}"
        if isinstance(value, np.ndarray):
            if param.size != 8:
                raise OperandError(f"{name} is an array, but the kernel's parameter is a .{param.type}: give a number")
            if value.dtype.hasobject:
                raise OperandError(f"{name} holds Python objects: give an array of numbers")
            data = padded(value.nbytes)
            data[: value.nbytes] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            return self._region(index + 1, name, data, value.nbytes).to_bytes(8, "little")
        if isinstance(value, bytes | np.void):
            data_bytes = value.tobytes() if isinstance(value, np.void) else value
            if len(data_bytes) != param.size:
                raise OperandError(f"{name} has {len(data_bytes)} bytes, the kernel's parameter {param.size}")
            return data_bytes
        if isinstance(value, np.generic) and value.dtype.itemsize == param.size:
            same = DTYPES.get(param.type)
            if param.type[0] == "b" or same is None or same.kind == value.dtype.kind or same.kind == "u":
                return value.tobytes()
        if isinstance(value, float | np.floating) and param.type[0] != "f":
            raise OperandError(
                f"{name} is {value!r}, the kernel's parameter a .{param.type}: give a number of its type"
            )
        if (
            not isinstance(value, int | float | np.number | np.bool_)
            or param.size > 8
            or param.size != SIZES[param.type]
        ):
            raise OperandError(f"{name} is a {type(value).__name__}: give an array, a number or bytes")
        if param.type in ("f32", "f64"):
            return DTYPES[param.type].type(value).tobytes()
        return (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")

    def _region(self, slot: int, name: str, data: np.ndarray, nbytes: int) -> int:
        self.regions[slot] = Region(name, data, nbytes, slot << SLOT)
        return slot << SLOT

    def _windows(self, shared_bytes: int) -> dict[str, list[tuple[str, int, int]]]:
        mine = [v for v in self.program.variables.values() if v.name in self.used]
        own = self.program.entry.params
        by_space = {s: [v for v in mine if v.space == s] for s in ("shared", "local", "const", "param")}
        return {
            "shared": layout(by_space["shared"], shared_bytes),
            "local": layout(by_space["local"], 0),
            "const": layout(by_space["const"], 0),
            "param": [(p.name, p.size, max(p.align, 8)) for p in own],
            "argument": [(v.name, v.size, v.align) for v in by_space["param"]],
        }

    def _module_memory(self) -> None:
        for v in self.program.variables.values():
            if v.space == "global" and v.name in self.used:
                data = padded(v.size)
                data[: len(v.data or b"")] = np.frombuffer(v.data or b"", np.uint8)
                self.symbols[v.name] = self._region(len(self.regions) + 1, v.name, data, v.size)

    def _fill(self, lanes: Lanes, values: list[bytes]) -> None:
        """Parameters and constants into their spaces; race checks onto shared and local memory."""
        for param, value in zip(self.program.entry.params, values, strict=True):
            at = lanes.spaces["param"].at[param.name]
            lanes.spaces["param"].region.data[at : at + len(value)] = np.frombuffer(value, np.uint8)
        for name, at in lanes.spaces["const"].at.items():
            data = self.program.variables[name].data or b""
            lanes.spaces["const"].region.data[at : at + len(data)] = np.frombuffer(data, np.uint8)
        for space in ("shared", "local"):
            region = lanes.spaces[space].region
            if lanes.spaces[space].spans:
                region.shadow = Shadow(region.nbytes, self._grain(), across_blocks=False)

    def _grain(self) -> int:
        """The smallest access to memory in the program: cells of the shadow need be no finer."""
        sizes = [SIZES.get(i.parts[-1], 4) for i in self.program.code if i.parts[0] in ("ld", "st", "atom", "red")
                 and "param" not in i.parts]  # fmt: skip
        return min([4, *sizes])

    def _shadows(self, count: int, outputs: Sequence[int]) -> None:
        """Clocks only for operands that some store can reach: reads of the others cannot race."""
        written = pointers_written(self.program)
        names = {p.name: i + 1 for i, p in enumerate(self.program.entry.params)}
        slots = (
            set(self.regions)
            if written is None
            else {names.get(n, 0) or self.symbols.get(n, 0) >> SLOT for n in written}
        )
        for output in outputs:
            if not 0 <= output < count or output + 1 not in self.regions:
                raise UsageError(f"outputs names argument {output}, which is no array of the {count} arguments")
            slots.add(output + 1)
        for slot in slots & set(self.regions):
            region = self.regions[slot]
            region.shadow = Shadow(region.nbytes, self._grain(), across_blocks=True)

    def _copies(self, windows: dict[str, list[tuple[str, int, int]]], threads: int, chosen: int, limit: int) -> int:
        """Blocks of a batch: about LANES lanes, fewer where memory is short."""
        registers = sum(SIZES[k] for k in self.program.registers.values())
        sizes = {name: sum(size for _, size, _ in spans) for name, spans in windows.items()}
        # A byte of shared or local memory has up to four clocks of 8 bytes a cell of 1 to 4 bytes.
        shadow = 1 + 28 // self._grain()
        a_block = threads * (registers + sizes["argument"] + sizes["local"] * shadow + 200) + sizes["shared"] * shadow
        arrays = sum(r.nbytes * (1 + 28 // self._grain() if r.shadow else 1) for r in self.regions.values())
        if arrays + a_block > limit:
            raise UsageError(
                f"the run needs {(arrays + a_block) >> 20} MiB, more than max_bytes = {limit >> 20} MiB: "
                "give smaller operands or a larger max_bytes"
            )
        return max(1, min(chosen, LANES // threads, (limit - arrays) // a_block))

    # ---- results

    def _unwritten(self, outputs: Sequence[int]) -> None:
        for output in outputs:
            region = self.regions[output + 1]
            assert region.shadow is not None
            cells = region.shadow.writer[: -(-region.nbytes // region.shadow.grain)] == 0
            if cells.any():
                first = int(np.argmax(cells)) * region.shadow.grain
                count = int(cells.sum()) * region.shadow.grain
                text = (
                    f"argument {output}: {count} of {region.nbytes} bytes were never written, the first at byte {first}"
                )
                self.findings.add("output never written", None, (0, 0, 0), (0, 0, 0), region.base + first, text)

    def _result(self, index: int, value: Any) -> Array | None:
        if not isinstance(value, np.ndarray):
            return None
        region = self.regions[index + 1]
        return region.data[: value.nbytes].copy().view(value.dtype).reshape(value.shape)
