"""The lanes of a batch of blocks: registers, special registers, clocks; and how an operand becomes an array.

A lane is a thread. Every register is one array over all lanes of the batch, kept as raw bits; an instruction reads
and writes it through a view of the type it works with, bound once, when the instruction is decoded.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from .findings import Findings
from .memory import WINDOW, GlobalSpace, Region, WindowSpace
from .program import Program, is_special
from .ptx import Instruction
from .shadow import EPOCH, SYNC, Ints
from .variables import SIZES

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


class Observer(Protocol):
    """Is told of every memory access, as flat arrays over the active threads in order of thread.

    ``kind`` is "ld", "st", "atom", "red", "ldmatrix", "stmatrix" or "cp.async" (its global and its shared side);
    ``warps`` counts through the whole grid, ``nbytes`` is what one lane moves, vectors included.
    """

    def on_access(
        self, space: str, kind: str, ins: Instruction, warps: Ints, lanes: Ints, addresses: Ints, nbytes: int, /
    ) -> None: ...


class Lanes:
    """All threads of ``copies`` blocks."""

    def __init__(
        self,
        program: Program,
        grid: Dim,
        block: Dim,
        copies: int,
        regions: dict[int, Region],
        symbols: dict[str, int],
        windows: dict[str, list[tuple[str, int, int]]],
        findings: Findings,
        observer: Observer | None,
        fences: NDArray[np.int8],
    ) -> None:
        self.program, self.grid, self.block, self.copies = program, grid, block, copies
        self.threads = block[0] * block[1] * block[2]
        self.size = copies * self.threads
        self.findings, self.observer, self.fences = findings, observer, fences
        self.every = np.arange(self.size, dtype=np.int64)
        self.tid = self.every % self.threads
        self.of_block = self.every // self.threads  # within the batch
        self.lane = self.tid % 32
        self.warp = np.zeros(self.size, np.int64)  # within the grid
        self.base_warp = self.of_block * (-(-self.threads // 32)) + self.tid // 32  # within the batch
        self.blocks = np.zeros(copies, np.int64)
        self.clock = np.zeros(self.size, np.int64)
        self.global_clock = np.zeros(self.size, np.int64)
        self.registers: dict[str, Array] = {}
        self.specials: dict[str, Array] = {}
        self.symbols = symbols
        self.spaces: dict[str, Any] = {"global": GlobalSpace(self, regions)}
        for name, sizes in windows.items():
            count = {"shared": copies, "local": self.size, "argument": self.size}.get(name, 1)
            self.spaces[name] = WindowSpace(self, name, sizes, count, 4096 if name == "shared" else 0)
        self.shared_base = self.of_block * self.spaces["shared"].stride
        self.local_base = self.every * self.spaces["local"].stride
        self.bases = {"shared": self.shared_base, "local": self.local_base}
        self.bases["argument"] = self.every * self.spaces["argument"].stride
        self.async_copies: Any = None  # the copies under way, once an instruction makes some

    def place(self, blocks: NDArray[np.int64]) -> None:
        """Stand at these blocks of the grid, at the start of the kernel."""
        self.blocks[:] = blocks
        self.warp[:] = blocks[self.of_block] * (-(-self.threads // 32)) + self.tid // 32
        self.clock[:] = EPOCH + self.tid
        self.global_clock[:] = (blocks[self.of_block] + 1) * EPOCH + self.tid
        for register in self.registers.values():
            register.fill(0)
        for name, array in self.specials.items():
            array[...] = self._special(name)
        for name in ("shared", "local"):
            region = self.spaces[name].region
            region.data.fill(0xFF)  # NaN in every float type: what nobody wrote shows in the result too
            if region.shadow:
                region.shadow.reset()
        if self.async_copies is not None:
            self.async_copies.clear()

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
                self.specials[operand] = np.array(np.broadcast_to(self._special(operand), self.size))
            array = self.specials[operand]
            if array.dtype.itemsize < dtype.itemsize:
                raise UsageError(f"{ins.place()}: {operand} is narrower than {kind} in {ins.text}")
            return array.view(dtype)[:: array.dtype.itemsize // dtype.itemsize]
        return self.constant(operand, kind, ins)

    def constant(self, operand: str, kind: str, ins: Instruction) -> Array:
        dtype = DTYPES[kind]
        size = dtype.itemsize
        number: int
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            value = np.array(int(m[1], 16), np.uint32).view(np.float32)
            if kind in ("f64", "f32", "tf32"):
                return value.astype(dtype)
            number = int(m[1], 16)
        elif m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", operand):
            value = np.array(int(m[1], 16), np.uint64).view(np.float64)
            if kind in ("f64", "f32", "tf32"):
                return value.astype(dtype)
            number = int(m[1], 16)
        elif re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", operand):
            if dtype.kind == "f":
                return np.array(float(operand), dtype)
            number = struct.unpack(
                "<Q" if size == 8 else "<I", struct.pack("<d" if size == 8 else "<f", float(operand))
            )[0]
        elif re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", operand):
            text = operand.rstrip("U")
            octal = re.fullmatch(r"-?0[0-7]+", text)
            number = int(text, 8) if octal else int(text, 0)
            if dtype.kind == "f" and size > 2:
                return np.array(number, dtype)
        elif operand == "WARP_SZ":
            number = 32
        else:
            name, _, offset = operand.partition("+")
            number = self.address_of(name.strip(), ins) + int(offset or "0", 0)
        if kind == "pred":
            return np.array(bool(number))
        return np.array(number & ((1 << 8 * size) - 1), f"u{size}").view(dtype)

    def address_of(self, name: str, ins: Instruction) -> int:
        """The address of a variable, in its own space."""
        if name in self.symbols:
            return self.symbols[name]
        for space in ("shared", "local", "const", "param", "argument"):
            if name in self.spaces[space].at:
                return int(self.spaces[space].at[name])
        raise UsageError(f"{ins.place()}: unknown operand {name!r} of {ins.text}")

    def _special(self, name: str) -> Array:
        """Values of a special register, as unsigned 32 or 64 bits, for all lanes or one for all."""
        base, _, axis = name.partition(".")
        i = "xyz".find(axis) if axis else 0
        blocks = self.blocks[self.of_block]
        div = (1, self.block[0], self.block[0] * self.block[1])
        grid_div = (1, self.grid[0], self.grid[0] * self.grid[1])
        mask = np.uint32(1) << self.lane.astype(np.uint32)
        values: dict[str, Any] = {
            "%tid": self.tid // div[i] % self.block[i],
            "%ntid": self.block[i],
            "%ctaid": blocks // grid_div[i] % self.grid[i],
            "%nctaid": self.grid[i],
            "%laneid": self.lane,
            "%warpid": self.tid // 32,
            "%nwarpid": -(-self.threads // 32),
            "%lanemask_eq": mask,
            "%lanemask_lt": mask - np.uint32(1),
            "%lanemask_le": mask | (mask - np.uint32(1)),
            "%lanemask_gt": ~(mask | (mask - np.uint32(1))),
            "%lanemask_ge": ~(mask - np.uint32(1)),
            "%clock": 0,
            "%clock_hi": 0,
            "%smid": 0,
            "%nsmid": 1,
            "%gridid": 0,
            "%dynamic_smem_size": self.symbols.get("%dynamic", 0),
        }
        if name in ("%clock64", "%globaltimer"):
            return np.zeros(1, np.uint64)
        if base not in values:
            raise UsageError(f"special register {name} is not known here")
        return np.asarray(values[base]).astype(np.uint32).reshape(-1)

    # ---- clocks and messages

    def sync_warp(self, sel: Ints | None) -> None:
        """These lanes passed a warp-wide synchronisation."""
        for clock in (self.clock, self.global_clock):
            if sel is None:
                clock += SYNC
            else:
                clock[sel] += SYNC

    def pass_barrier(self, lanes: Ints | None) -> None:
        """All lanes of some blocks passed a block barrier."""
        if lanes is None:
            self.clock += EPOCH
            self.global_clock += SYNC
        else:
            self.clock[lanes] += EPOCH
            self.global_clock[lanes] += SYNC

    def who(self, lane: int) -> tuple[Dim, Dim]:
        """Block and thread of a lane, as the kernel sees them."""
        block, thread = int(self.blocks[self.of_block[lane]]), int(self.tid[lane])
        return split(block, self.grid), split(thread, self.block)

    def report(
        self, kind: str, ins: Instruction, sel: Ints | None, bad: NDArray[np.bool_], address: Ints | None, text: str
    ) -> None:
        """A finding for the first lane that is bad (``bad`` is over the active lanes)."""
        first = int(np.argmax(bad))
        block, thread = self.who(first if sel is None else int(sel[first]))
        where = None if address is None else int(address[first])
        self.findings.add(kind, ins, block, thread, where, text, int(bad.sum()))

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
