"""Small kernels for every form of the copy engine: a box is loaded, copied to an array byte by byte, and stored or reduced.

``test_tensor_maps.py`` compares them with NumPy and with what ``benchmarks/record_tensor_maps.py`` records on a GPU, which
stops ``stopped_cases`` as illegal instructions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.async_sources import PRELUDE
from tilewright.gpu.runtime.nvrtc import Compiled, compile_source
from tilewright.simulator import simulate
from tilewright.simulator.machine.tensor_map import TensorMap

Array = np.ndarray[Any, Any]
ARCH = "sm_90a"
ROOM = 32 << 10  # bytes of shared memory


@dataclass(frozen=True)
class MapCase:
    """A load by one map, and a store or reduction of the same box by another; ``after`` is "" for a load alone.

    With ``bulk`` the second copy is one of bytes, to the start of the second array, with elements of that type.
    """

    name: str
    source: TensorMap
    at: tuple[int, ...]
    after: str = ""
    target: TensorMap | None = None
    to: tuple[int, ...] = ()
    bulk: str = ""

    @property
    def rank(self) -> int:
        return len(self.at)

    @property
    def parts(self) -> tuple[str, ...]:
        """What a GPU's record of it holds: the box as it lay in shared memory, and the second array where it changes."""
        return ("box", "memory") if self.after else ("box",)

    @property
    def arguments(self) -> list[Any]:
        """Maps, the array that receives the box, the second array, bytes, and coordinates."""
        target = self.target or self.source
        seen = np.full(max(self.source.tensor.shared_bytes, target.tensor.shared_bytes), 0xEE, np.uint8)
        places = [np.int32(c) for c in (*pad(self.at), *pad(self.to))]
        sizes = [np.uint32(n) for n in (seen.size, self.source.tensor.box_bytes)]
        return [self.source, target, seen, target.array, *sizes, *places]

    def compiled(self) -> Compiled:
        return compiled_kernel(self.rank, self.after, self.bulk)

    def simulated(self) -> tuple[list[Array], list[Any]]:
        """The box as it lay in shared memory, the second array after the kernel; and the findings."""
        run = simulate(self.compiled().ptx, "k", 1, 32, self.arguments)
        arrays = [run.arrays[2], run.arrays[3]]
        return [np.asarray(array) for array in arrays], run.findings


def pad(place: Sequence[int]) -> list[int]:
    return [*place, *[0] * (5 - len(place))]


@functools.cache
def compiled_kernel(rank: int, after: str, bulk: str) -> Compiled:
    """The kernel of a rank and of a second copy."""

    def names(letter: str) -> tuple[str, str, str]:
        registers = ", ".join(f"%{i + 2}" for i in range(rank))
        inputs = ", ".join(f'"r"({letter}{i})' for i in range(rank))
        return registers, inputs, f"{rank}d"

    registers, inputs, dimension = names("p")
    load = (
        f'asm volatile("cp.async.bulk.tensor.{dimension}.shared::cluster.global.tile.mbarrier::complete_tx::bytes '
        f'[%0], [%1, {{{registers}}}], [%{rank + 2}];" :: "r"(sm(box)), "l"(&a), {inputs}, "r"(sm(&b)) : "memory");'
    )
    registers, inputs, _ = names("q")
    if bulk:
        reduces = f".{after}.{'noftz.' if bulk.endswith('f16') and after == 'add' else ''}{bulk}"
        store = (
            f'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group{reduces} [%0], [%1], %2;" '
            ':: "l"(memory), "r"(sm(box)), "r"(bytes) : "memory");'
        )
    else:
        opcode = "cp.async.bulk.tensor" if after == "store" else "cp.reduce.async.bulk.tensor"
        how = "" if after == "store" else f".{after}"
        store = (
            f'asm volatile("{opcode}.{dimension}.global.shared::cta{how}.tile.bulk_group [%1, {{{registers}}}], [%0];" '
            f':: "r"(sm(box)), "l"(&c), {inputs} : "memory"); (void)memory;'
        )
    places = ", ".join(f"int {letter}{i}" for letter in "pq" for i in range(5))
    source = f"""{PRELUDE}
extern "C" __global__ void k(MAP a, MAP c, unsigned char* seen, unsigned char* memory, u32 room, u32 bytes, {places}) {{
    __shared__ alignas(1024) unsigned char box[{ROOM}]; __shared__ u64 b;
    for (u32 i = threadIdx.x; i < room; i += 32) box[i] = seen[i];
    FENCE();
    if (threadIdx.x == 0) {{
        INIT(&b, 1);
        FENCE_INIT();
    }}
    __syncthreads();
    if (threadIdx.x == 0) {{
        ARRIVE_EXPECT(&b, bytes);
        {load}
    }}
    __syncthreads();
    WAIT(&b, 0);
    for (u32 i = threadIdx.x; i < room; i += 32) seen[i] = box[i];
    if (threadIdx.x == 0) {{
        {store if after else ""}
        COMMIT();
        WAIT_ALL(0);
    }}
}}"""
    return compile_source(source, name="tensor_map_case.cu", arch=ARCH)


@dataclass
class Draw:
    """Operands of a case, drawn by its name."""

    name: str
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(list(self.name.encode()))

    def bits(self, shape: Sequence[int], dtype: str) -> Array:
        """Any bits."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(self.random.bytes(size), dtype).reshape(shape).copy()

    def floats(self, shape: Sequence[int], dtype: str) -> Array:
        """Any bits; of floats of 32 bits with many that are subnormal, infinite, NaN, the largest, or between two tf32."""
        words = self.bits(shape, dtype)
        if dtype != "f4":
            return words
        kind, w = self.random.integers(0, 8, shape), words.view(np.uint32)
        w = np.where(kind == 0, w | 0x7F800000, np.where(kind == 1, w & 0x807FFFFF, w))
        w = np.where(kind == 2, w & 0xFFFFE000 | 0x1000, np.where(kind == 3, w & 0x80001FFF | 0x7F7FE000, w))
        w = np.where(self.random.random(shape) < 1 / 16, w & 0xFF800000, w)
        return np.asarray(w, np.uint32).view(np.float32)

    def numbers(self, shape: Sequence[int], dtype: str, kind: str) -> Array:
        """Numbers for a reduction: floats of any size, subnormal, infinite and NaN among them; others any bits."""
        if kind[0] in "us":
            return self.bits(shape, dtype)
        bits = self.bits(shape, dtype)
        near = self.random.standard_normal(shape)
        words = near.astype(np.float32).view(np.uint32) >> 16 if kind == "bf16" else near.astype(dtype)
        return np.where(self.random.random(shape) < 0.5, words.astype(dtype), bits)


WORDS = {"u8": "u1", "u16": "u2", "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8", "f16": "f2", "bf16": "u2", "f32": "f4",
         "f64": "f8", "tf32": "f4", "f32_ftz": "f4", "tf32_ftz": "f4"}  # fmt: skip


def unit(kind: str) -> int:
    """The elements of 16 bytes: the innermost coordinate of a box is a multiple of it."""
    return 16 // np.dtype(WORDS[kind]).itemsize


def cases() -> Iterator[MapCase]:
    """All cases that a GPU runs."""
    yield from load_cases()
    yield from store_cases()
    yield from reduce_cases()


def load_cases() -> Iterator[MapCase]:
    shapes = {1: ((100,), (64,)), 2: ((20, 48), (8, 16)), 3: ((6, 9, 32), (3, 4, 16)), 4: ((3, 5, 4, 16), (2, 2, 3, 16)),
              5: ((3, 2, 5, 4, 16), (2, 2, 2, 3, 16))}  # fmt: skip
    for rank, (shape, box) in shapes.items():
        for kind in ("u8", "f32", "f64"):
            for where, at in (("inside", 1), ("before", -2), ("after", None)):
                name = f"load {rank}d {kind} {where}"
                data = Draw(name).bits(shape, WORDS[kind])
                place = [n - b + 1 if at is None else at for n, b in zip(shape, box, strict=True)][::-1]
                place[0] = -(-place[0] // unit(kind)) * unit(kind) - (unit(kind) if where == "before" else 0)
                yield MapCase(name, TensorMap(data, box, data_type=kind), tuple(place))
    for swizzle in (0, 32, 64, 128):
        for inner in (4, 8, 16, 32):
            if not swizzle or 4 * inner <= swizzle:
                name = f"swizzle {swizzle} of {4 * inner} bytes"
                data = Draw(name).bits((50, 64), "f4")
                yield MapCase(name, TensorMap(data, (32, inner), swizzle=swizzle), (4, 30))
    for every in ((2, 1), (3, 2), (4, 1)):
        name = f"element strides {every}"
        data = Draw(name).bits((40, 64), "u4")
        yield MapCase(name, TensorMap(data, (11, 32), element_strides=every), (-4, 32))
    for kind in ("f16", "bf16", "f32", "f64", "tf32", "f32_ftz", "tf32_ftz"):
        for fill in ("zero", "nan"):
            name = f"{kind} filled with {fill}"
            data = Draw(name).floats((9, 40), WORDS[kind])
            yield MapCase(name, TensorMap(data, (4, 32), data_type=kind, oob_fill=fill), (-unit(kind), 7))
            inside = TensorMap(data, (4, 16), shape=(9, 21), strides=(40 * data.itemsize, data.itemsize), data_type=kind,
                               oob_fill=fill)  # fmt: skip
            yield MapCase(f"{name}, from the middle of 16 bytes", inside, (16, -1))


def store_cases() -> Iterator[MapCase]:
    """Boxes are drawn from one array and stored to another, whose rows may be no multiple of 16 bytes."""
    for kind, columns, at in (
        *(("f32", n, x) for n in (9, 10, 11, 12) for x in (0, 4)),
        *(("f16", n, x) for n in (13, 16, 17) for x in (0, 8)),
        *(("u8", n, x) for n in (5, 31) for x in (0, 16)),
        ("f64", 7, 2),
    ):
        name = f"store {kind} rows of {columns} from {at}"
        draw, word = Draw(name), WORDS[kind]
        size = np.dtype(word).itemsize
        row = -(-columns * size // 16) * 16 + 32
        data, memory = draw.bits((8, 32), word), draw.bits((12, row // size), word)
        target = TensorMap(memory, (6, 32), shape=(7, columns), strides=(row, size), data_type=kind)
        yield MapCase(name, TensorMap(data, (6, 32), data_type=kind), (0, 1), "store", target, (at, 3))
    for rank, shape in ((1, (50,)), (3, (4, 5, 24)), (5, (3, 2, 4, 3, 20))):
        name = f"store {rank}d"
        box = (*[2] * (rank - 1), 16)
        data, memory = Draw(name).bits(shape, "f4"), Draw(f"{name} into").bits(shape, "f4")
        place = (shape[-1] // 4 * 4 - 4, *[n - 2 for n in shape[-2::-1]])
        yield MapCase(name, TensorMap(data, box), (0,) * rank, "store", TensorMap(memory, box), place)

    for swizzle in (32, 64, 128):
        for inner in (16, 32, 64, 128):
            if inner <= swizzle:
                name = f"store from swizzle {swizzle} of {inner} bytes"
                data, memory = Draw(name).bits((32, 32), "f4"), Draw(f"{name} into").bits((32, 64), "f4")
                target = TensorMap(memory, (24, inner // 4), swizzle=swizzle)
                yield MapCase(name, TensorMap(data, (32, 32)), (0, 0), "store", target, (4, 3))


def reduce_cases() -> Iterator[MapCase]:
    integers = ("u32", "s32", "u64", "s64")
    kinds = {
        "add": (*integers[:3], "f16", "bf16", "f32", "f64"),
        **dict.fromkeys(("min", "max"), (*integers, "f16", "bf16")),
        **dict.fromkeys(("and", "or", "xor"), ("u32", "u64")),
        **dict.fromkeys(("inc", "dec"), ("u32",)),
    }
    for after, types in kinds.items():
        for kind in types:
            for bulk in (False, True):
                name = f"{'bulk ' * bulk}{after} {kind}"
                draw, word = Draw(name), WORDS[kind]
                data, memory = (draw.numbers((8, 64), word, kind) for _ in range(2))
                typed = {"and": "b", "or": "b", "xor": "b"}.get(after, kind[0]) + kind[1:] if kind != "bf16" else kind
                at = (0, 0) if bulk else (unit(kind), 2)
                yield MapCase(
                    *(name, TensorMap(data, (8, 64), data_type=kind), (0, 0), after),
                    *(TensorMap(memory, (8, 64), data_type=kind), at),
                    bulk=typed if bulk else "",
                )
                if after in ("add", "max") and not bulk:  # rows that end within 16 bytes
                    rows = {"shape": (8, 61), "strides": (64 * memory.itemsize, memory.itemsize)}
                    yield MapCase(
                        *(f"{name}, rows of 61", TensorMap(data, (8, 64), data_type=kind), (0, 0), after),
                        *(TensorMap(memory, (8, 64), data_type=kind, **rows), (0, 1)),
                    )


def stopped_cases() -> Iterator[MapCase]:
    """Boxes that begin between multiples of 16 bytes of a row, that are stored from before the tensor, and a sum that the
    copy engine does not form."""
    for kind, at, after in (("f32", (1, 1), ""), ("f16", (-1, 1), ""), ("u8", (8, 1), ""), ("f64", (1, 1), ""),
                            ("f32", (2, 1), "store"), ("u32", (3, 1), "add"), ("f32", (-4, 1), "store"),
                            ("f32", (0, -1), "store"), ("f32", (-4, 1), "add"), ("f32", (0, -1), "add"),
                            ("f32", (0, -4), "store"), ("s64", (0, 1), "add")):  # fmt: skip
        name = f"stopped {after or 'load'} {kind} at {at}"
        tile = TensorMap(Draw(name).bits((9, 64), WORDS[kind]), (4, 32), data_type=kind)
        yield MapCase(name, tile, (0, 1) if after else at, after, tile, at if after else (0, 1))
