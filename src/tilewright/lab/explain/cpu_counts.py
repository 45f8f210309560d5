"""Predicts what a kernel on the CPU does, from its tile, its blocks and its inner loop.

The rule is that of S3.1 (in ``docs/sources.md``). The rule holds for a block of C of w columns and h rows that stays in
registers or in a cache until all of K is summed. Such a block takes 2whK operations, reads wK + Kh elements and writes
wh elements. For a large K the block does 2/(1/w + 1/h) operations for each access. Two kinds of blocks of C follow the
rule: the kernel's tile, which stays in registers and whose operands come from the first-level cache; and the kernel's
larger cache blocks, whose operands come from the last-level cache (S1.7: 2n³/L + n² accesses for blocks of L × L). The
sizes of the tile and the blocks also tell whether a sliver of B (packed columns for one tile) stays in L1 from one tile
to the next, and whether a panel of B (kc packed rows) stays in L2 from one block to the next.

Traffic is the bytes that are loaded, including cache lines of C that are loaded before they are written. Cache lines
that are written back are not counted as traffic. The model assumes that a cache holds everything that fits, and that
prefetching loads nothing that is not needed.

The inner loop is found in the machine code of the compiled kernel, and its instructions are counted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from ...cpu.engine.cuts import PACKING, PACKING_BOTH, cut, phases_of
from ...cpu.engine.jobs import displaced
from ...cpu.runtime.library import code_name
from ...cpu.runtime.runner import grid
from ...host.machine import Machine
from ...kernels import Kernel
from ...kernels.blocking import blocking
from ...product.problem import Problem

# ---- tile and blocks -------------------------------------------------------------------------------------------------

#: The bytes of a packed element, for dtypes that are packed as a wider one.
_PACKED_BYTES = {"int8": 2, "uint8": 2, "float16": 4, "bfloat16": 4}


@dataclass(frozen=True)
class Side:
    """A block of C of h rows and w columns that stays in registers or in a cache until all of K is summed."""

    h: int
    w: int

    @property
    def operations_per_access(self) -> float:
        """The operations for each access to memory, for a large K, by the formula of S3.1 (``docs/sources.md``).

        >>> round(Side(6, 64).operations_per_access, 2)
        10.97
        """
        return 2 / (1 / self.w + 1 / self.h)


@dataclass(frozen=True)
class Tiling:
    """How a kernel that packs its operands divides one product. Elements are counted as packed real numbers of ``size``
    bytes.

    - ``rows`` is the number of rows of all ``tiles`` along a column of C; ``vectors`` is the number of vectors of all
      ``slivers`` along a row of C. If the edges of C are padded, ``rows`` and ``vectors`` include the padding.
    - K is divided into ``deep`` phases.
    - A is packed ``a_passes`` times, and B ``b_passes`` times.
    - Each sliver of B is multiplied with ``bands`` blocks of A.
    """

    k: int
    size: int
    lanes: int
    tile: Side
    rows: int
    tiles: int
    vectors: int
    slivers: int
    deep: int
    bands: int
    block: Side
    a_passes: int = 1
    b_passes: int = 1

    @property
    def multiplies(self) -> int:
        """The number of vector multiply-adds."""
        return self.rows * self.vectors * self.k

    @property
    def loads(self) -> int:
        """The number of loads into registers. In each step of k a tile loads one element of each of its rows of A, and
        its vectors of B. From the second phase of K on, a tile also loads its part of C."""
        inner = self.k * (self.rows * self.slivers + self.tiles * self.vectors)
        return inner + self.rows * self.vectors * (self.deep - 1)

    @property
    def loaded_bytes(self) -> int:
        """The bytes of all ``loads``."""
        vector = self.lanes * self.size
        inner = self.k * (self.rows * self.slivers * self.size + self.tiles * self.vectors * vector)
        return inner + self.rows * self.vectors * vector * (self.deep - 1)


def tiling(kernel: Kernel, problem: Problem, threads: int) -> Tiling | None:
    """How a kernel with the usual five loops around a tile divides a product; None for a kernel without these blocks."""
    if not {"mr", "nv", "kc", "mc", "nc"} <= kernel.params.keys() or kernel.error_bound is not None:
        return None
    if not problem.m * problem.n * problem.k:
        return None
    return (_cuts_of_team if kernel.shared == "team" else _cuts_of_tiles)(kernel, problem, threads)


def _cuts_of_team(kernel: Kernel, problem: Problem, threads: int) -> Tiling:
    """The cuts that ``cpu.engine.cuts`` makes: even cuts, with tiles and slivers of two sizes that differ by one."""
    p, real = kernel.params, 2 if problem.dtype.startswith("complex") else 1
    m, n, k, size = (
        problem.m,
        problem.n * real,
        packed_steps(kernel, problem) * real,
        packed_bytes(problem.dtype, kernel),
    )
    lanes, mr, nv = p["vector_bits"] // 8 // size, p["mr"], p["nv"]
    kc, nc = p["kc"] * real, p["nc"] * real
    if size == 8:
        kc = min(kc, blocking().kc_of_8_bytes)  # a panel of A of 8-byte elements must fit in L1 as well
    tiles, vectors = math.ceil(m / mr), math.ceil(n / lanes)
    packing = PACKING if _reads_in_place(kernel, problem, size, threads) else PACKING_BOTH
    how = cut(m, vectors, lanes, threads, packing, mr, nv, p["mc"], p["vector_bits"] // 8, nc)
    groups, slivers, bands = how.groups, how.slivers, how.bands
    panels = groups * phases_of(how, deep=1)
    return Tiling(
        k=k,
        size=size,
        lanes=lanes,
        tile=Side(mr, nv * lanes),
        rows=sum(high if high >= mr - 1 else mr for high in (_part(m, tiles, t) for t in range(tiles))),
        tiles=tiles,
        vectors=sum(
            max(_part(_part(vectors, groups, g), slivers, s), nv - 1) for g in range(groups) for s in range(slivers)
        ),
        slivers=groups * slivers,
        deep=math.ceil(k / kc),
        bands=min(bands, tiles),
        block=Side(math.ceil(m / bands), math.ceil(n / panels)),
        a_passes=panels,  # by a band's own thread; another thread that takes its jobs packs the band again
    )


def _reads_in_place(kernel: Kernel, problem: Problem, word: int, threads: int) -> bool:
    """Whether a kernel reads rows of a contiguous A where they lie, as ``cpu.engine.jobs`` decides it."""
    m, row, p = problem.m, problem.k * problem.itemsize, kernel.params
    if not kernel.in_place or row % word or m // math.ceil(m / p["mr"]) < p["mr"] - 1:
        return False
    return not displaced(row, m, p["mc"], word, threads)


def _part(length: int, parts: int, index: int) -> int:
    """The length of one of ``parts`` parts, whose lengths differ by at most one."""
    return length // parts + (index < length % parts)


def _cuts_of_tiles(kernel: Kernel, problem: Problem, threads: int) -> Tiling:
    """The cuts of cpu/register_tile: whole blocks, whole tiles, and for each thread a rectangle of its own."""
    p, size = kernel.params, packed_bytes(problem.dtype)
    m, n, k = problem.m, problem.n, problem.k
    lanes = p["vector_bits"] // 8 // size
    nr = p["nv"] * lanes
    across, along = grid(m, n, threads)
    high, wide = math.ceil(m / across), math.ceil(n / along)
    return Tiling(
        k=k,
        size=size,
        lanes=lanes,
        tile=Side(p["mr"], nr),
        rows=math.ceil(m / p["mr"]) * p["mr"],
        tiles=math.ceil(m / p["mr"]),
        vectors=math.ceil(n / nr) * p["nv"],
        slivers=math.ceil(n / nr),
        deep=math.ceil(k / p["kc"]),
        bands=across * math.ceil(high / p["mc"]),
        block=Side(min(p["mc"], high), min(p["nc"], wide)),
        a_passes=along * math.ceil(wide / p["nc"]),
        b_passes=across,
    )


def packed_bytes(dtype: str, kernel: Kernel | None = None) -> int:
    """The bytes of a packed real number of ``dtype``, or of the word into which the kernel packs several elements.

    >>> packed_bytes("complex64"), packed_bytes("float16")
    (4, 4)
    """
    if kernel is not None and kernel.space:
        return np.dtype(kernel.space).itemsize
    whole = np.dtype(dtype).itemsize
    return _PACKED_BYTES.get(dtype, whole // 2 if dtype.startswith("complex") else whole)


def packed_steps(kernel: Kernel, problem: Problem) -> int:
    """The number of steps of k in packed operands. A kernel with ``least_bits`` packs several elements of k into one
    word, each with at least this number of bits."""
    if not kernel.space or "least_bits" not in kernel.params:
        return problem.k
    bits = max(8 * problem.itemsize, kernel.params["least_bits"])
    return math.ceil(problem.k / (8 * packed_bytes(problem.dtype, kernel) // bits))


@dataclass(frozen=True)
class Traffic:
    """The bytes that one level of memory (``into``) loads from the next (``source``); None if the model does not tell."""

    into: str
    source: str
    bytes: int | None


LEVELS = (("registers", "L1"), ("L1", "L2"), ("L2", "L3"), ("L3", "memory"))


def traffic(kernel: Kernel, problem: Problem, threads: int, here: Machine) -> list[Traffic]:
    """The bytes that each level of memory loads from the next, for operands that were used just before.

    For a kernel that has only blocks of C (``rows`` × ``block``), the result is the count of S1.7 (in
    ``docs/sources.md``). For a kernel without blocks, the result is the fewest bytes that any kernel loads.
    """
    cut = tiling(kernel, problem, threads)
    if cut is not None:
        amounts = _packed_traffic(cut, problem, here)
    else:
        least = problem.bytes_least
        block = block_of(kernel, problem)
        if block is not None:
            reads = problem.m * problem.n * problem.k * (1 / block.w + 1 / block.h)
            least = round(reads + problem.m * problem.n) * problem.itemsize
        outer = [0 if problem.bytes_least <= (capacity or 0) else least for capacity in (here.l2, here.l3)]
        amounts = [None, problem.bytes_least if block is None else None, *outer]
    return [Traffic(*level, amount) for level, amount in zip(LEVELS, amounts, strict=True)]


def block_of(kernel: Kernel, problem: Problem) -> Side | None:
    """The block of C of a kernel that has no tile in registers (S1.7), at most as large as C; None if the kernel declares no
    block."""
    p = kernel.params
    if not {"rows", "block"} <= p.keys() or not problem.m * problem.n:
        return None
    return Side(min(p["rows"], problem.m), min(p["block"], problem.n))


def declared_tile(kernel: Kernel, problem: Problem) -> Side | None:
    """The kernel's tile of C in registers, in real numbers; None if the kernel declares none."""
    p = kernel.params
    if not {"mr", "nv", "vector_bits"} <= p.keys():
        return None
    return Side(p["mr"], p["nv"] * (p["vector_bits"] // 8 // packed_bytes(problem.dtype, kernel)))


def _packed_traffic(cut: Tiling, problem: Problem, here: Machine) -> list[int | None]:
    """The traffic of a kernel that packs: packing reads an operand and writes its copy, and tiles read the copies, from the
    cache in which they fit."""
    l1, l2, l3 = here.l1d or 0, here.l2 or 0, here.l3 or here.l2 or 0
    kc, vector = math.ceil(cut.k / cut.deep), cut.lanes * cut.size
    own_a, own_b, own_c = (
        x * problem.itemsize for x in (problem.m * problem.k, problem.k * problem.n, problem.m * problem.n)
    )
    packed_a, packed_b = cut.rows * cut.k * cut.size, cut.vectors * vector * cut.k
    strip, sliver = cut.tile.h * kc * cut.size, cut.tile.w * kc * cut.size
    block, panel = cut.block.h * kc * cut.size, cut.block.w * kc * cut.size
    read = own_a * cut.a_passes + own_b * cut.b_passes
    c_passes = own_c * cut.deep

    b_loads = cut.bands if sliver + 2 * strip <= l1 else cut.tiles
    a_loads = cut.a_passes if block + sliver <= l1 else cut.slivers
    packing = read + packed_a * cut.a_passes + packed_b * cut.b_passes
    into_l1 = packing + c_passes + packed_b * b_loads + packed_a * a_loads

    footprint = own_a + own_b + own_c + block + panel
    reloads = 0 if block + panel <= l2 else packed_b * (cut.b_passes + cut.bands)
    into_l2 = 0 if footprint <= l2 else read + c_passes + reloads
    return [cut.loaded_bytes, into_l1, into_l2, 0 if footprint <= l3 else read + c_passes]


def operations(problem: Problem) -> int:
    """The number of real operations of a product; a complex multiply-add counts as four real ones."""
    return problem.flops * (4 if problem.dtype.startswith("complex") else 1)


def vector_multiplies(kernel: Kernel, problem: Problem, threads: int) -> int | None:
    """The number of vector multiply-adds; None for a kernel without a tile. If the kernel has a tile but no blocks, padded
    edges are not counted."""
    if kernel.error_bound is not None:
        return None
    cut = tiling(kernel, problem, threads)
    if cut is not None:
        return cut.multiplies
    bits = kernel.params.get("vector_bits")
    lanes = bits // 8 // packed_bytes(problem.dtype) if bits else 0
    return math.ceil(operations(problem) / 2 / lanes) if lanes else None


# ---- the inner loop --------------------------------------------------------------------------------------------------

#: A multiplication in assembly code of x86-64 or AArch64: fused with an addition, or of integers, where it may not be fused.
_MULTIPLY = re.compile(r"v?fn?m(add|sub)|v?pmul[lh]|v?pmadd|v?pdp|v?mul[sp][sdh]\b|fm(la|ls|ul)\b|fmadd|ml[as]\b|mul\b")
_PREFETCH = re.compile(r"prefetch|prfm")
_LABEL = re.compile(r"(\.?L\w+):")
_JUMP = re.compile(r"(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s(?:.*[\s,])?(\.?L\w+)$")
_LOAD_OF_ARM = re.compile(r"ld(r|p|ur|1)")


@dataclass(frozen=True)
class InnerLoop:
    """The instructions in one iteration of the inner loop. ``multiplies`` are vector or scalar multiply-adds. ``loads`` do
    not include prefetches."""

    multiplies: int
    loads: int
    prefetches: int
    instructions: int

    @property
    def reads(self) -> int:
        """The loads in one iteration that a processor's counter counts, prefetches included."""
        return self.loads + self.prefetches


def inner_loop(kernel: Kernel, dtype: str) -> InnerLoop | None:
    """The inner loop of a kernel for ``dtype``; None if the kernel is not compiled, or has no loop without branches.

    To find its loop, the kernel is compiled again, which takes some seconds.
    """
    if not kernel.compiled or kernel.over is not None:
        return None
    from ...cpu.runtime.in_process import fresh_assembly  # imports the compiler

    return read_loop(fresh_assembly(kernel, code_name(dtype)))


def read_loop(assembly: str) -> InnerLoop | None:
    """The loop in assembly code that has the most multiplications. If several loops have the most, the shortest of them
    is returned, because longer loops contain occasional extra work.

    >>> read_loop("L1:\\n vmovups (%rax), %ymm1\\n vfmadd231ps %ymm1, %ymm2, %ymm0\\n addq $32, %rax\\n jne L1")
    InnerLoop(multiplies=1, loads=1, prefetches=0, instructions=4)
    """
    loops = [_counted(body) for body in _loops(assembly)]
    return max(loops, key=lambda loop: (loop.multiplies, -loop.instructions), default=None)


def _loops(assembly: str) -> list[list[str]]:
    """Loops without inner labels that multiply: the instructions from a label to a jump back to it."""
    loops: list[list[str]] = []
    label, body = "", list[str]()
    for line in (raw.split("#")[0].strip() for raw in assembly.splitlines()):
        if match := _LABEL.match(line):
            label, body = match[1], []
        elif line and not line.startswith((".", "//")):
            body.append(line)
            jump = _JUMP.match(line.replace("\t", " "))
            if jump and jump[1] == label and any(_MULTIPLY.match(instruction) for instruction in body):
                loops.append(list(body))
    return loops


def _counted(body: list[str]) -> InnerLoop:
    multiplies = sum(bool(_MULTIPLY.match(line)) for line in body)
    prefetches = sum(bool(_PREFETCH.match(line)) for line in body)
    return InnerLoop(multiplies, sum(_loads(line) for line in body), prefetches, len(body))


def _loads(line: str) -> bool:
    """Whether an instruction reads memory. In AT&T syntax the destination is last, and only moves write to memory."""
    if "[" in line:
        return bool(_LOAD_OF_ARM.match(line))
    if "(" not in line or line.startswith(("lea", "nop")) or _PREFETCH.match(line):
        return False
    return not (re.match(r"v?mov|vst", line) and line.endswith(")"))
