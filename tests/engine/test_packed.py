"""cpu/packed: bits that know no threads, jobs that wait for nobody who never comes, edges that nothing leaks across."""

from __future__ import annotations

import functools
import itertools
import math
import re
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from llvmlite import binding, ir

from support.machine_code import inner_loops, x86_with_fma
from tilewright.cpu import codegen
from tilewright.cpu.codegen.strassen_tile import _SpreadTile
from tilewright.cpu.codegen.tile import MicroKernelEmitter
from tilewright.cpu.codegen.vectors import Vectors, bits_of
from tilewright.cpu.engine import cuts, jobs
from tilewright.cpu.runtime import shared_products
from tilewright.cpu.runtime.in_process import fresh_assembly
from tilewright.cpu.runtime.runner import compiled, runner
from tilewright.cpu.runtime.threads import Team
from tilewright.errors import UsageError
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog

PACKED = catalog()["cpu/packed"]
MR, NV, KC, NC, MC = (PACKED.params[name] for name in ("mr", "nv", "kc", "nc", "mc"))
NR = NV * PACKED.params["vector_bits"] // 32

#: Fewer rows and columns than any tile, each kind of edge, several phases, several panels of columns.
SHAPES = [
    *((1, 1, 1), (MR - 1, NR - 1, 3), (MR + 1, NR + 1, 8), (3 * MR + 1, NR + 17, KC + 1), (MC + 1, 130, 2 * KC + 3)),
    *((500, 300, 3 * KC - 1), (40, NC + 70, KC + 5), (3, NC + 1, 2), (700, 7, 3), (0, 5, 4), (5, 0, 4), (4, 4, 0)),
]


def integers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    return rng.integers(-4, 5, shape).astype(dtype)


def operands(shape: tuple[int, int, int], dtype: str = "float64", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng(seed)
    return integers(rng, (m, k), dtype), integers(rng, (k, n), dtype)


def product(a: np.ndarray, b: np.ndarray, threads: int = 1) -> np.ndarray:
    c = np.full((a.shape[0], b.shape[1]), np.nan if a.dtype.kind == "f" else 77, a.dtype)
    runner(PACKED, a.dtype, threads=threads)(a, b, c)
    return c


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_on_every_kind_of_edge(dtype: str, threads: int) -> None:
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        assert np.array_equal(product(a, b, threads), a.astype(float) @ b.astype(float)), shape


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_integers_wrap_around(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True) for shape in ((70, 90), (90, 110)))
    with np.errstate(over="ignore"):
        assert np.array_equal(product(a, b, 2), a @ b)


# ---- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_know_the_threads(dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((331, 2 * KC + 7), (2 * KC + 7, 283)))
    bits = product(a, b).tobytes()
    for threads in (2, 3, 16) * 10:
        assert product(a, b, threads).tobytes() == bits


def test_bits_do_not_know_where_in_c_an_element_lies() -> None:
    """Each tile, each edge and the corner compute an element by the same chain of multiply-adds."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((150, KC + 40)), rng.standard_normal((KC + 40, 333))
    whole = product(a, b)
    for top, left in itertools.product((0, 1, 5, 37), (0, 3, 64, 200)):
        assert product(a[top:], b[:, left:]).tobytes() == whole[top:, left:].tobytes()
    strided = np.zeros((300, 666))[::2, ::2]
    runner(PACKED, "float64")(a, b, strided)
    assert strided.tobytes() == whole.tobytes()


def test_eight_callers_at_once() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((200, 600)), rng.standard_normal((600, 220))
    bits = product(a, b).tobytes()
    wrong: list[int] = []

    def call(index: int) -> None:
        wrong.extend(index for _ in range(12) if product(a, b, 1 + index % 3).tobytes() != bits)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong


#: A ends where a page begins that nobody may read, so that one element too many ends the process.
GUARDED = """
import ctypes, mmap, numpy as np
from tilewright.kernels.catalog import catalog
from tilewright.cpu.runtime.runner import runner
page = mmap.PAGESIZE
for m, n, k in [(23, 70, 130), (29, 200, 1000), (61, 64, 515), (64, 66, 2700)]:
    size = -(-4 * m * k // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), page, 0) == 0
    for kernel, dtype, result in [("cpu/packed", "float32", "float32"), ("cpu/integer_dots", "int8", "int32")]:
        bytes_of_a = np.dtype(dtype).itemsize * m * k
        a = np.frombuffer(memory, dtype, m * k, size - bytes_of_a).reshape(m, k)
        a[:] = np.arange(m * k).reshape(m, k) % 7
        b = np.ones((k, n), dtype)
        for c in (np.zeros((m, n), result), np.zeros((n, m), result).T, np.zeros((m, 2 * n), result)[:, ::2]):
            runner(catalog()[kernel], dtype, result=result)(a, b, c)
            assert (c == a.sum(1, result)[:, None]).all()
print("right")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is POSIX's")
def test_rows_that_are_read_in_place_are_read_to_their_end_alone() -> None:
    run = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "right\n"), run.stderr


def test_rows_that_displace_each_other_are_packed_by_many_threads() -> None:
    """Of as many rows as fill three quarters of the second-level cache where they lie 16 KiB apart."""
    rows, many = jobs.L2() * 3 // 4 // (16 << 10), jobs.MANY()
    assert not any(jobs.displaced(stride, rows, rows, 8, many) for stride in (8000, 16 << 10, 48 << 10))
    assert all(jobs.displaced(stride, rows, rows, 8, many) for stride in (32 << 10, 96 << 10, 1 << 20))
    assert not jobs.displaced(1 << 20, rows, rows, 8, many - 1)


def test_a_is_read_in_place_or_packed_to_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    m, n, k = 200, 150, 1030
    b = rng.uniform(-1, 1, (k, n)).astype(np.float32)
    wide = rng.uniform(-1, 1, (m, 2048)).astype(np.float32)
    a = wide[:, :k]
    alike = [a, a.copy(), a[::-1].copy()[::-1], np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]]
    assert [jobs.lies_well(x, 4, True) for x in alike] == [True, True, False, False, False]
    results = []
    for x in alike:
        c = np.full((m, n), np.nan, np.float32)
        runner(PACKED, a.dtype)(x, b, c)
        results.append(c)
    for c in results[1:]:
        np.testing.assert_array_equal(c, results[0])


# ---- threads that come late, or never ---------------------------------------------------------------------------------


def call(a: np.ndarray, b: np.ndarray, c: np.ndarray, planned: int) -> functools.partial:
    """The machine code, as each thread of a team of ``planned`` calls it; all it may touch is poisoned or guarded."""
    shape = (*c.shape, a.shape[1])
    assert PACKED.workspace is not None
    assert PACKED.counters is not None
    space = np.full(PACKED.workspace(*shape) + 2000, np.nan, a.dtype)
    counters = np.zeros(PACKED.counters(*shape) + 2, np.int64)
    counters[-1] = planned
    return functools.partial(compiled(PACKED, a.dtype), a, b, c, space[1000:-1000], counters)


def test_a_workspace_that_is_too_small_is_an_error() -> None:
    """C would be left as it was, without a word; the short way leaves such a product to the long way."""
    a, b = operands((300, 200, 100), "float32")
    c, counters = np.empty((300, 200), np.float32), np.zeros(PACKED.counters(300, 200, 100) + 2, np.int64)
    counters[-1] = 1
    with pytest.raises(MemoryError, match="workspace"):
        compiled(PACKED, a.dtype)(a, b, c, np.zeros(1000, np.float32), counters)
    small = replace(PACKED, workspace=lambda m, n, k, *_: 1000)
    for threads in (1, 2):
        how = shared_products.sharing(small, a.dtype, (300, 200, 100), threads, least=0)
        assert how is not None
        assert shared_products.multiply_shared(how, a, b, c) is None


ADDING = [kernel for kernel in catalog().values() if kernel.adds]


@pytest.mark.slow_cases("int8", "int32", "int64", "kernel6")
@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("kernel", "dtype"), [(kernel, dtype) for kernel in ADDING for dtype in kernel.dtypes])
def test_what_adds_keeps_what_was_there(kernel: Kernel, dtype: str, threads: int) -> None:
    """Small whole numbers, so exact: of every edge, and in C of either order; and without a word it is overwritten."""
    for shape in [*SHAPES[:6], (0, 5, 4), (4, 4, 0)]:
        a, b = operands(shape, dtype)
        with np.errstate(over="ignore"):
            product_, before = a @ b, operands((*shape[:2], shape[1]), dtype, seed=1)[0][:, :1] + np.zeros_like(a @ b)
        for order in "CF":
            c = np.array(before, order=order)
            runner(kernel, a.dtype, threads=threads, add=True)(a, b, c)
            assert np.array_equal(c, before + product_), (shape, order)
            runner(kernel, a.dtype, threads=threads)(a, b, c)
            assert np.array_equal(c, product_), (shape, order)


def test_what_cannot_add_says_so() -> None:
    with pytest.raises(UsageError, match="cpu/naive cannot add to C"):
        runner(catalog()["cpu/naive"], "float32", add=True)


@pytest.mark.parametrize("name", ["cpu/packed", "cpu/complex"])
def test_machine_code_from_a_machine_of_more_processors(name: str) -> None:
    """Counters that were counted for fewer: what would lie beyond them is neither read nor written."""
    kernel = catalog()[name]
    assert kernel.workspace is not None
    dtype = np.dtype(kernel.dtypes[0])
    shape = (2000, 70, kernel.params["kc"] - 5)
    a, b = operands(shape, dtype.name)
    bands = math.ceil(
        2000 / (2 * kernel.params["mc"])
    )  # of one thread; and there is one phase, or two of complex numbers
    enough = 8 * (2 + bands + 2 * (1 + bands))
    memory = np.full(enough + 2 + 500, 77, np.int64)
    counters = memory[: enough + 2]
    counters[:] = 0
    counters[-1] = 16
    c = np.full(shape[:2], np.nan, dtype)
    compiled(kernel, dtype)(a, b, c, np.zeros(kernel.workspace(*shape), dtype), counters)
    assert np.array_equal(c, a @ b)
    assert (memory[enough + 2 :] == 77).all()


@pytest.mark.parametrize(("planned", "come"), [(16, 1), (3, 2), (2, 5), (1, 3), (100, 20)])
def test_fewer_or_more_threads_than_planned(planned: int, come: int) -> None:
    for shape in SHAPES:
        a, b = operands(shape)
        c = np.full((shape[0], shape[1]), np.nan)
        job = call(a, b, c, planned)
        Team(come).run([job] * come)
        job()  # and one that comes when all is done
        assert np.array_equal(c, a @ b), shape
        space = job.args[3].base
        assert np.isnan(space[:1000]).all()
        assert np.isnan(space[-1000:]).all()


@pytest.mark.parametrize("come", [16, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_of_threads_have_the_bits_of_one(dtype: str, come: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a team of 16, even if most of its threads never come: those that do help every group."""
    monkeypatch.setattr(cuts, "BLOCKS", 16)
    for shape in [
        (1000, 1000, 9),
        (300, 770, KC + 50),
        (61, 2000, 100),
        (2000, 200, 40),
        (100, 130, 200),
        (7, 1000, 300),
        (64, 3 * NC + 70, 50),
    ]:
        rng = np.random.default_rng(4)
        a, b = (
            rng.standard_normal((shape[0], shape[2])).astype(dtype),
            rng.standard_normal(shape[2:] + shape[1:2]).astype(dtype),
        )
        c = np.full(shape[:2], np.nan, dtype)
        job = call(a, b, c, 16)
        Team(come).run([job] * come)
        assert c.tobytes() == product(a, b).tobytes(), shape
        space = job.args[3].base
        assert np.isnan(space[:1000]).all()
        assert np.isnan(space[-1000:]).all()


@pytest.mark.any_machine
@pytest.mark.parametrize("itemsize", [4, 8])
def test_every_planned_thread_has_counters_and_workspace(itemsize: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these a product would be computed by fewer threads, and nobody would notice."""
    monkeypatch.setattr(cuts, "BLOCKS", 16)
    blocks = PACKED.function.__globals__["BLOCKS"]
    vector_bytes, kc = blocks.chosen.vector_bits // 8, blocks.kc if itemsize == 4 else blocks.kc_of_8_bytes
    lanes, rng, most = vector_bytes // itemsize, np.random.default_rng(0), 0
    for _ in range(3000):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, np.log([9000, 90000, 9000]))))
        threads = min(int(rng.integers(1, 17)), -(-m // MR) * -(-n // NR))  # there is no work for more
        packing = float(rng.choice([cuts.PACKING, cuts.PACKING_BOTH]))
        vectors, deep = -(-n // lanes), -(-k // kc)
        how = cuts.cut(m, vectors, lanes, threads, packing, MR, NV, blocks.mc, vector_bytes, blocks.nc)
        panels = how.groups * (1 if threads == how.groups else 2) * -(-k // deep) * how.wide * NV * lanes
        needed = panels + threads * blocks.block_of(m)
        assert needed <= blocks.workspace(m, n, min(k, kc), threads) <= blocks.workspace(m, n, k), (m, n, k, threads)
        counters = cuts.LINE + how.groups * cuts.job_counters(how, cuts.phases_of(how, deep)).end
        assert counters <= blocks.counters(m, n, k), (m, n, k, threads)
        most = max(most, how.groups)
    assert most == 16


@pytest.mark.slow
def test_the_test_of_late_threads_can_fail() -> None:
    """A thread that left with a job undone would leave C as it was."""
    a, b = operands((200, 200, 200))
    c = np.full((200, 200), np.nan)
    job = call(a, b, c, 2)
    # Two jobs of the first list are taken by somebody who is not here: nothing of B's first slivers is ever packed.
    job.args[4][cuts.LINE] = 2
    waiting = threading.Thread(target=job, daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    job.args[4][:] = 1 << 40  # what stops a product
    waiting.join(30)
    assert not waiting.is_alive()
    assert np.isnan(c).any()


def test_each_number_is_taken_once_and_none_beyond_the_limit() -> None:
    counters = np.zeros(1, np.int64)
    assert [codegen.take_below(counters, 0, 3) for _ in range(5)] == [0, 1, 2, 3, 3]
    assert counters[0] == 3, "who finds nothing left does not write"


# ---- strides ---------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "reversed columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "columns reversed both ways": lambda x: np.asfortranarray(x[::-1, ::-1])[::-1, ::-1],
    "every second row": lambda x: np.repeat(x, 2, 0)[::2],
    "every second row of columns": lambda x: np.asfortranarray(np.repeat(x, 2, 0))[::2],
    "every third column": lambda x: np.repeat(x, 3, 1)[:, ::3],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(layout: str, dtype: str) -> None:
    a, b = operands((2 * MR + 35, NR + 45, KC + 20), dtype)
    a, b = LAYOUTS[layout](a), LAYOUTS[layout](b)
    assert np.array_equal(product(a, b, 2), a.astype(float) @ b.astype(float))


def test_nothing_beside_c_is_written() -> None:
    for shape in SHAPES:
        a, b = operands(shape, "float32")
        large = np.full((shape[0] + 2, shape[1] + 40), 7.5, np.float32)
        inside = large[1:-1, 20:-20]
        runner(PACKED, "float32")(a, b, inside)
        assert np.array_equal(inside, a.astype(float) @ b)
        inside[...] = 7.5
        assert (large == 7.5).all()


# ---- NaN and infinity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["a", "b"])
def test_nothing_leaks_from_an_edge_tile(which: str, value: float) -> None:
    """A NaN in a row of A reaches that row of C alone, one in a column of B that column alone, wherever it lies."""
    m, n, k = MR + 1, NR + 5, 4
    for i in range(m if which == "a" else n):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        (a[i] if which == "a" else b[:, i])[...] = value
        expected = np.full((m, n), float(k))
        (expected[i] if which == "a" else expected[:, i])[...] = value
        np.testing.assert_array_equal(product(a, b), expected)


# ---- packing ---------------------------------------------------------------------------------------------------------

PACK = codegen.packer(PACKED.params["vector_bits"])


@pytest.mark.slow_cases(
    "rows",
    "int32",
    "columns",
    "one row for all",
    "reversed columns",
    "one column for all",
    "columns reversed both ways",
)
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packing(layout: str, dtype: str) -> None:
    x = LAYOUTS[layout](np.arange(70.0 * 50).reshape(70, 50).astype(dtype))
    for top, rows, left, columns in ((0, 70, 0, 50), (3, 33, 5, 40), (69, 1, 49, 1), (1, 16, 2, 16), (0, 0, 0, 0)):
        target = np.full(5 + 70 * 60, 99, dtype)
        PACK(x, top, rows, left, columns, target, 5, 60)
        expected = np.full((70, 60), 99, dtype)
        expected[:rows, :columns] = x[top : top + rows, left : left + columns]
        assert np.array_equal(target[5:].reshape(70, 60), expected)
        assert (target[:5] == 99).all()


# ---- what became of the inner loops ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
@x86_with_fma
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.further)])
def test_tiles_stay_in_registers(dtype: str) -> None:
    """All tiles of the kernel itself, as compiled here: none of their loops touches the stack, but one that prefetches lines
    of C, in a few iterations of a tile, may read an address from there if there are no more than 16 registers."""
    loops = inner_loops(fresh_assembly(PACKED, dtype), "vfmadd")
    fused = [sum(line.startswith("vfmadd") for line in loop) for loop in loops]
    for rows, wide in itertools.product((MR, MR - 1), (NV, NV - 1)):
        assert [count for count in fused if count % (rows * wide) == 0], "a whole number of steps of k"
    for loop in loops:
        on_stack = [line for line in loop if "(%rsp" in line]  # rbp is a register as any other: frames have no pointer
        of_c = PACKED.params["vector_bits"] == 256 and any(line.startswith("prefetchw") for line in loop)
        assert len(on_stack) <= of_c, on_stack
        assert not [line for line in on_stack if "mm" in line], "a vector"


#: Triple, processor, vector bits, registers; what a multiply-add, and a reference to the stack, look like there.
TARGETS = {
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", 256, 16, "vfmadd", r"\(%rsp"),
    "AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512", 512, 32, "vfmadd", r"\(%rsp"),
    "NEON": ("aarch64-unknown-linux-gnu", "neoverse-n1", 128, 32, "fmla", r"\[sp"),
}


@pytest.mark.slow_cases("NEON-float32")
@pytest.mark.parametrize("scalar", [ir.FloatType(), ir.DoubleType()], ids=["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_tiles_of_other_processors_stay_in_registers(target: str, scalar: ir.Type) -> None:
    """The tiles that this kernel would use there, compiled for that processor."""
    *_, bits, registers, fused, stack = TARGETS[target]
    for rows, wide in itertools.product((0, 1), repeat=2):
        mr, nv = (registers - 1) // 5 - rows, 4 - wide
        loops = inner_loops(compiled_for(target, scalar, mr, nv, bits), fused)
        assert len(loops) >= 3, "before, while and after C is asked for"
        for loop in loops:
            assert sum(line.startswith(fused) for line in loop) % (mr * nv) == 0
            assert not [line for line in loop if re.search(stack, line)]


@pytest.mark.parametrize("scalar", [ir.FloatType(), ir.DoubleType()], ids=["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_strassens_tiles_of_other_processors_stay_in_registers(target: str, scalar: ir.Type) -> None:
    """Its loops over k, of two steps and of one; the write-back, a loop over terms, may use the stack."""
    *_, bits, registers, fused, stack = TARGETS[target]
    mr, nv = (registers - 1) // 5, 4
    loops = inner_loops(compiled_for(target, scalar, mr, nv, bits, _SpreadTile), fused)
    loops = list(filter(asks_ahead, loops))
    assert [sum(line.startswith(fused) for line in loop) for loop in loops] == [2 * mr * nv, mr * nv]
    for loop in loops:
        assert not [line for line in loop if re.search(stack, line)]


def asks_ahead(loop: list[str]) -> bool:
    """For B, as loops over k do and no others."""
    return any(line.startswith(("prefetch", "prfm")) for line in loop)


@pytest.mark.slow_cases("NEON")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [MicroKernelEmitter, _SpreadTile])
def test_that_test_can_fail(target: str, kind: type[MicroKernelEmitter]) -> None:
    *_, bits, registers, fused, stack = TARGETS[target]
    loops = inner_loops(compiled_for(target, ir.FloatType(), registers, 2, bits, kind), fused)
    assert any(re.search(stack, line) for loop in filter(asks_ahead, loops) for line in loop)


def compiled_for(
    target: str, scalar: ir.Type, mr: int, nv: int, bits: int, kind: type[MicroKernelEmitter] = MicroKernelEmitter
) -> str:
    """The assembly of an edge tile, or Strassen's, for a processor that need not be here."""
    triple, cpu, *_ = TARGETS[target]
    module = ir.Module()
    pointer, index = scalar.as_pointer(), ir.IntType(64)
    rest = [index, index, index] if kind is MicroKernelEmitter else [index.as_pointer(), index]
    type_ = ir.FunctionType(ir.VoidType(), [index, pointer, pointer, pointer, *rest])
    function = ir.Function(module, type_, "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    vectors = Vectors(builder, scalar, bits // bits_of(scalar))
    if kind is MicroKernelEmitter:
        MicroKernelEmitter(vectors, mr, nv, 528, 1).emit(*function.args)
    else:
        _SpreadTile(vectors, mr, nv, 528, 2).spread(*function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine_ = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    return machine_.emit_assembly(binding.parse_assembly(str(module)))
