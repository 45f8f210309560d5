"""Small products: the tiles, the short way into them that Python calls, and batches; each against plain integers."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
import pytest
from llvmlite import binding, ir

import tilewright as tw
from support.machine_code import inner_loops
from support.plans import make_plan
from tilewright.api import matmul as api
from tilewright.cpu import codegen
from tilewright.cpu.codegen import direct
from tilewright.cpu.plan import WORK_SHARED
from tilewright.cpu.runtime import entries, facts, in_process, shared_products, small_products
from tilewright.cpu.runtime import runner as cpu
from tilewright.cpu.runtime.runner import runner
from tilewright.kernels.blocking import blocking
from tilewright.product.problem import Problem

#: Vector width and tile heights: of AVX-512, AVX2 and NEON.
MACHINES = [(512, (16, 12, 8, 6)), (256, (8, 6, 3)), (128, (8, 8, 8, 6))]
DTYPES = ("float32", "float64", "int64", "int8")


def whole_numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Numbers so small that every order of summation is exact."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(a.dtype)


@functools.cache
def short(dtype: str) -> Callable[..., Any]:
    """The short way, after this dtype was learnt."""
    return small_products.learn_dtype(np.dtype(dtype), WORK_SHARED)


# ---- tiles -----------------------------------------------------------------------------------------------------------


@functools.cache
def tile_of(bits: int, heights: tuple[int, ...], dtype: str) -> Callable[..., None]:
    tile = codegen.direct_tile(heights, bits)
    matrix = nb.types.Array(nb.from_dtype(np.dtype(dtype)), 2, "A")
    lanes = bits // 8 // np.dtype(dtype).itemsize

    @nb.njit((matrix, matrix, matrix, nb.intp, nb.intp, nb.intp, nb.intp))
    def multiply(a, b, c, count, a_next, b_next, c_next):
        (rows, columns), k = c.shape, a.shape[1]
        at_a, at_b, at_c = codegen.address(a, 0, 0), codegen.address(b, 0, 0), codegen.address(c, 0, 0)
        size, steps = (rows, (columns + lanes - 1) // lanes, columns, k), (count, a_next, b_next, c_next)
        ahead = (at_a, 64, at_b, -4096, at_c, 1 << 40)  # prefetches may leave every array
        of_a, of_b, of_c = (at_a, a.strides[0], a.strides[1]), (at_b, b.strides[0]), (at_c, c.strides[0])
        tile(size, of_a, of_b, of_c, steps, ahead)

    return multiply


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: str(machine[0]))
def test_every_tile_writes_all_of_it_and_nothing_else(machine: tuple[int, tuple[int, ...]], dtype: str) -> None:
    bits, heights = machine
    multiply, lanes = tile_of(bits, heights, dtype), bits // 8 // np.dtype(dtype).itemsize
    for nv, height in enumerate(heights, 1):
        widths = {(nv - 1) * lanes + extra for extra in {1, 2, lanes // 2, lanes - 1, lanes} if extra}
        for rows, columns, k in itertools.product(range(1, height + 1), widths, (0, 1, 2, 7)):
            a, b = whole_numbers((rows, k), dtype), whole_numbers((k, columns), dtype)
            around = np.full((rows + 2, columns + 3), 7, dtype)
            c = around[1:-1, 1:-2]
            multiply(a, b, c, 1, 0, 0, 0)
            np.testing.assert_array_equal(c, product(a, b))
            c[...] = 7
            assert (around == 7).all(), "wrote beside the tile"


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: str(machine[0]))
def test_every_complex_tile(machine: tuple[int, tuple[int, ...]], dtype: str) -> None:
    bits, heights = machine
    multiply, lanes = tile_of(bits, heights, dtype), bits // 8 // np.dtype(dtype).itemsize
    for nv, height in enumerate(heights, 1):
        widths = range((nv - 1) * lanes + 1, nv * lanes + 1)
        for rows, columns, k in itertools.product(range(1, height + 1), widths, (0, 1, 3)):
            a, b = (
                whole_numbers(shape, dtype, 1) + 1j * whole_numbers(shape, dtype, 2).astype(dtype)
                for shape in ((rows, k), (k, columns))
            )
            around = np.full((rows + 2, columns + 3), 7, dtype)
            c = around[1:-1, 1:-2]
            multiply(a, b, c, 1, 0, 0, 0)
            np.testing.assert_array_equal(c, a @ b)
            c[...] = 7
            assert (around == 7).all(), "wrote beside the tile"


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: str(machine[0]))
def test_a_tile_of_any_strides_for_a_whole_batch(machine: tuple[int, tuple[int, ...]]) -> None:
    multiply = tile_of(*machine, "float32")
    a = whole_numbers((5, 3, 9), "float32")[:, ::-1, ::-2]
    b = whole_numbers((5, 5, 11), "float32")
    c = np.zeros((5, 6, 11), "float32")[:, ::-2]
    multiply(a[0], b[0], c[0], 5, a.strides[0], b.strides[0], c.strides[0])
    np.testing.assert_array_equal(c, product(a, b))
    multiply(a[0], b[3], c[0], 5, a.strides[0], 0, c.strides[0])
    np.testing.assert_array_equal(c, product(a, b[3]))


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: str(machine[0]))
def test_a_masked_tile_reads_nothing_beyond_the_columns(machine: tuple[int, tuple[int, ...]]) -> None:
    """The last element of B is the last of its page; what lies behind it cannot be read."""
    multiply = tile_of(*machine, "float32")
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    protect(pages, mmap.PAGESIZE)
    numbers = np.frombuffer(pages, np.float32, mmap.PAGESIZE // 4)
    for columns in (1, 3, 7):
        b = numbers[numbers.size - 4 * columns :].reshape(4, columns)
        b[...] = whole_numbers((4, columns), "float32")
        a, c = whole_numbers((6, 4), "float32"), np.empty((6, columns), "float32")
        multiply(a, b, c, 1, 0, 0, 0)
        np.testing.assert_array_equal(c, product(a, b))


def protect(pages: mmap.mmap, start: int) -> None:
    """Let nobody read what lies behind ``start``."""
    import ctypes

    if sys.platform != "linux":
        pytest.skip("needs mprotect as Linux has it")
    place = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + start
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0


# ---- what became of it on machines that are not here -----------------------------------------------------------------

TARGETS = {
    "AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512", *MACHINES[0]),
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", *MACHINES[1]),
    "NEON": ("aarch64-unknown-linux-gnu", "neoverse-n1", *MACHINES[2]),
}


def tiles_for(
    triple: str, cpu: str, bits: int, heights: tuple[int, ...], scalar: ir.Type, *, pairs: bool = False
) -> dict[str, str]:
    """Every tile's assembly by its name."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = triple
    lanes = bits // (64 if isinstance(scalar, ir.DoubleType) else 32)
    direct._table(module, scalar, lanes, heights, pairs=pairs).linkage = ""
    parsed = binding.parse_assembly(str(module))
    target = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    builder = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    parts = re.split(r'\n"?(tilewright\.direct\.[^\s":]*)"?:', target.emit_assembly(parsed))
    named = zip(parts[1::2], parts[2::2], strict=True)
    return {
        name: text for name, text in named if re.search(r"\.\d+x\d+(\.whole|\.half)?$", name)
    }  # the table itself is not one


def rows_and_vectors(name: str) -> tuple[int, int]:
    """Of a tile, by its name."""
    found = re.search(r"(\d+)x(\d+)(\.whole|\.half)?$", name)
    assert found
    return int(found[1]), int(found[2])


def spilled(assembly: str) -> list[str]:
    """Lines that move a vector to the stack or from it."""
    on_stack = [line.strip() for line in assembly.splitlines() if re.search(r"\(%rsp|\[sp", line)]
    return [line for line in on_stack if re.search(r"%[xyz]mm|\b[qv]\d", line)]


@pytest.mark.slow
@pytest.mark.parametrize("scalar", [ir.FloatType(), ir.DoubleType()], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_accumulators_stay_in_registers_on_every_machine(target: str, scalar: ir.Type) -> None:
    tiles = tiles_for(*TARGETS[target], scalar)
    tiles = {name: text for name, text in tiles.items() if target == "AVX-512" or name.endswith(".whole")}
    assert len(tiles) == sum(TARGETS[target][3]) * (2 if target == "AVX-512" else 1)
    for name, text in tiles.items():
        assert re.search(r"vfmadd|fmla", text), name
        assert not [line for line in spilled(text) if not re.match(r"stp|ldp", line)], (
            name
        )  # registers saved for the caller


@pytest.mark.slow
def test_the_check_for_spills_can_fail() -> None:
    triple, cpu, bits, _ = TARGETS["AVX2"]
    tiles = tiles_for(triple, cpu, bits, (8, 8, 8), ir.FloatType())
    assert any(spilled(text) for name, text in tiles.items() if name.endswith("8x3.whole"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_step_of_k_of_a_tile_above_another_prefetches(target: str) -> None:
    neon = target == "NEON"
    multiply_add, prefetch = ("fmla", "prfm\tpldl2keep") if neon else ("vfmadd", "prefetcht1")
    near, bits = "prfm\tpldl1keep" if neon else "prefetcht0", TARGETS[target][2]
    for name, text in tiles_for(*TARGETS[target], ir.FloatType()).items():
        if target == "AVX-512" or name.endswith(".whole"):  # elsewhere a mask makes branches in the loop
            (loop,) = inner_loops(text, multiply_add)
            rows, vectors = rows_and_vectors(name)
            above = 2 * rows > min(8, TARGETS[target][3][vectors - 1])
            assert sum(line.startswith(prefetch) for line in loop) == direct.PLACES * above, name
            lines_of_b = -(-vectors * bits // 512)
            assert sum(line.startswith(near) for line in loop) == lines_of_b * above, name


@pytest.mark.parametrize("most", [3, 6, 8])
def test_tiles_that_prefetch_nothing_have_none_below_them(most: int) -> None:
    for m in range(1, 200):
        least, longer, others = entries._module.even.py_func(m, most)
        assert longer + others == -(-m // most)
        heights = [least + (i < longer) for i in range(-(-m // most))]
        assert sum(heights) == m
        assert all(2 * height > most for height in heights[:-1])


def test_prefetches_pass_the_rows_below_unless_these_lie_far_apart() -> None:
    pace = entries._module.pace
    for steps, row in ((100, 400), (100, 800), (300, 2400), (37, -148)):
        passed = {pace(8, row, steps) * step // 64 for step in range(steps)}
        of_rows = {byte // 64 for byte in range(0, 8 * row, 64 if row > 0 else -64)}
        assert len(of_rows - passed) <= 1, "all lines but one, where sizes do not divide"
    assert pace(8, 40_000, 100) == 0


def test_tiles_of_one_height_are_a_batch_without_the_last_that_prefetches() -> None:
    count = entries._module.tiles_in_batch
    rows, columns = np.ones((43, 9)), np.asfortranarray(np.ones((43, 9)))
    # one of 8 rows, then five of 7
    assert [count(rows, 1, 5, prefetching) for prefetching in (False, True)] == [1, 1]
    assert [count(rows, 0, 5, prefetching) for prefetching in (False, True)] == [5, 4]
    assert [count(rows, 0, 1, prefetching) for prefetching in (False, True)] == [1, 1]
    assert [count(rows, 3, 0, prefetching) for prefetching in (False, True)] == [3, 2]
    assert [count(columns, 0, 5, prefetching) for prefetching in (False, True)] == [5, 1]


@pytest.mark.slow
def test_half_a_vector_is_computed_by_half_as_wide_instructions() -> None:
    for name, text in tiles_for(*TARGETS["AVX-512"], ir.FloatType()).items():
        rows, vectors = rows_and_vectors(name)
        (loop,) = inner_loops(text, "vfmadd")
        narrow = [line for line in loop if line.startswith("vfmadd") and "%ymm" in line]
        wide = [line for line in loop if line.startswith("vfmadd") and "%zmm" in line]
        halves = rows if name.endswith(".half") else 0
        assert (len(narrow), len(wide)) == (halves, rows * vectors - halves), name


#: Tiles of complex numbers whose loops keep accumulators on the stack, and why.
WHY = "24 accumulators, 6 or 8 vectors of B and what LLVM loads ahead of A: more than 32 registers"
TOO_TALL = {("NEON", "float"): {"6x4.whole"}, ("NEON", "double"): {"8x3.whole", "6x4.whole"}}


def complex_tiles_that_store_in_their_loops(target: str, scalar: ir.Type) -> set[str]:
    """A loop may read a constant from the stack, as from anywhere else; what it writes there is an accumulator."""
    tiles = tiles_for(*TARGETS[target], scalar, pairs=True)
    tiles = {name: text for name, text in tiles.items() if target == "AVX-512" or name.endswith(".whole")}
    assert len(tiles) == sum(TARGETS[target][3])
    loops = {name: inner_loops(text, "fmla" if target == "NEON" else "vfmadd") for name, text in tiles.items()}
    assert all(loops.values())
    to_stack = re.compile(r"v?mov\w+\s+%[xyz]mm\d+, -?\d*\(%rsp\)|st[rp]\s+[qd].*\[sp")
    stores = {name for name in tiles for loop in loops[name] if any(map(to_stack.match, loop))}
    return {re.sub(r".*\.(\d+x\d+)", r"\1", name) for name in stores}


@pytest.mark.slow
@pytest.mark.parametrize("scalar", [ir.FloatType(), ir.DoubleType()], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_complex_accumulators_stay_in_registers(target: str, scalar: ir.Type) -> None:
    known = TOO_TALL.get((target, str(scalar)), set())
    assert complex_tiles_that_store_in_their_loops(target, scalar) == known
    if known:
        pytest.xfail(f"complex tiles of {', '.join(sorted(known))} spill: {WHY}")


@pytest.mark.slow
def test_that_check_of_complex_tiles_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that serves AVX-512."""
    monkeypatch.setattr(direct, "_ComplexTileByRows", direct._ComplexTile)
    assert complex_tiles_that_store_in_their_loops("AVX2", ir.FloatType()) >= {"8x1.whole"}


# ---- the short way: what it computes ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_sizes_up_to_twenty(dtype: str) -> None:
    multiply = short(dtype)
    for m, n, k in itertools.product(range(1, 21), repeat=3):
        a, b = whole_numbers((m, k), dtype, 1), whole_numbers((k, n), dtype, 2)
        got = multiply(a, b, None)
        assert got.dtype == dtype
        assert np.array_equal(got, product(a, b)), (m, n, k)


def small(*shape: int) -> tuple[int, ...]:
    """The shape with its longest side halved until the kernel takes it: a small cache holds fewer elements."""
    longest = max(range(3), key=shape.__getitem__)
    halved = tuple(x // 2 if i == longest else x for i, x in enumerate(shape))
    return shape if entries.KERNEL.suits(*shape) else small(*halved)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        *[(33, 49, 17), (64, 64, 64), (90, 1, 77), (100, 130, 70), (5, 200, 9), (65, 3, 40)],
        *[(1, 1, 1000), (15, 17, 1999), (999, 7, 5), (6, 700, 70)],  # few elements, but a long side
    ],
    ids=str,
)
def test_larger_sizes_and_every_stride(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = small(*shape)
    a, b = whole_numbers((m, k), dtype, 1), whole_numbers((k, n), dtype, 2)
    exact = product(a, b)
    layouts: list[Callable[[np.ndarray], np.ndarray]] = [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
        lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
        lambda x: np.concatenate([x, x], axis=1)[:, : x.shape[1]],
    ]
    for of_a, of_b, of_c in itertools.product(layouts, repeat=3):
        c = of_c(np.full((m, n), 9, dtype))
        assert short(dtype)(of_a(a), of_b(b), c, False, True) is c
        np.testing.assert_array_equal(c, exact)


@pytest.mark.parametrize("m", [7, 130])
def test_vectors_and_scalars(m: int) -> None:
    a, b, v, w = (whole_numbers(shape, "float64", 1) for shape in ((m, 50), (50, 9), (50,), (m,)))
    for x, y in ((a, v), (v, b), (v, v), (w, a), (a.T, w), (a, v[:, None]), (np.asfortranarray(a), v)):
        got = tw.matmul(x, y)
        assert type(got) is type(np.matmul(x, y))
        np.testing.assert_array_equal(got, np.matmul(x, y))
        out = np.empty(np.shape(got))
        assert short("float64")(x, y, out) is out
        np.testing.assert_array_equal(out, got)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_every_position_of_an_edge_tile(special: float, dtype: str) -> None:
    m, n, k = 5, 19, 3
    a, b = whole_numbers((m, k), dtype, 1) + 5, whole_numbers((k, n), dtype, 2) + 5
    for row, column in itertools.product(range(m), range(k)):
        x = a.copy()
        x[row, column] = special
        got = short(dtype)(x, b, None)
        assert not np.isfinite(got[row]).any()
        np.testing.assert_array_equal(np.delete(got, row, 0), np.delete(a @ b, row, 0))
    for row, column in itertools.product(range(k), range(n)):
        y = b.copy()
        y[row, column] = special
        got = short(dtype)(a, y, None)
        assert not np.isfinite(got[:, column]).any()
        np.testing.assert_array_equal(np.delete(got, column, 1), np.delete(a @ b, column, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_denormals_are_numbers(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    a, b = np.full((3, 4), tiny, dtype), np.ones((4, 17), dtype)
    np.testing.assert_array_equal(short(dtype)(a, b, None), 4 * tiny)
    np.testing.assert_array_equal(short(dtype)(b.T, a.T, None), 4 * tiny)


@pytest.mark.parametrize("m", [1, 2, 33, 100])
def test_a_column_of_any_strides(m: int) -> None:
    for k in (1, 2, 15, 16, 100):
        a, v = whole_numbers((m, k), "float32", 1), whole_numbers((k,), "float32", 2)
        out = np.zeros((m, 3), "float32")[:, 1]
        for x, y in itertools.product((a, np.asfortranarray(a), a[:, ::-1].copy()[:, ::-1]), (v, np.repeat(v, 2)[::2])):
            for got in (short("float32")(x, y, None), short("float32")(x, y, out), short("float32")(y, x.T, None)):
                np.testing.assert_array_equal(got, np.matmul(a, v))


def test_the_bits_do_not_depend_on_the_way() -> None:
    rng = np.random.default_rng(0)
    for m, n, k in itertools.starmap(small, [(4, 4, 4), (200, 200, 200), (37, 70, 21), (100, 100, 100), (9, 130, 200)]):
        a, b = rng.uniform(-1, 1, (m, k)), rng.uniform(-1, 1, (k, n))
        first = short("float64")(a, b, np.empty((m, n)), True)
        assert np.array_equal(tw.matmul(a, b), first)
        assert np.array_equal(api._matmul(a, b, None, "standard", "classical"), first)
        assert np.array_equal(tw.matmul(np.asfortranarray(a), np.asfortranarray(b)), first)
        assert np.array_equal(tw.matmul(b.T, a.T).T, first)
        for threads in (1, 2, 3):
            c = np.empty((m, n))
            runner(entries.KERNEL, "float64", threads=threads)(a, b, c)
            assert np.array_equal(c, first)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_dtype_is_learned_with_its_first_product(threads: int) -> None:
    a = np.ones((4, 4), np.float32)
    with tw.use_threads(threads), pytest.MonkeyPatch.context() as patch:
        tw.matmul(a, a)
        patch.setattr("tilewright.api.matmul._short_way", lambda *_: pytest.fail("a longer way"))
        assert tw.matmul(a, a).tolist() == np.matmul(a, a).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_what_goes_the_short_way_is_what_the_plan_says(dtype: str) -> None:
    suits = entries.KERNEL.suits
    assert suits is not None
    sizes = (1, 2, 3, 4, 8, 15, 16, 31, 64, 100, 128, 200, 256, 512, 5000)
    with tw.use_threads(1):  # many threads may take the kernel for larger products, too
        for m, n, k in itertools.product(sizes, repeat=3):
            planned = make_plan(Problem(m, n, k, dtype)).kernel is entries.KERNEL
            assert planned == suits(m, n, k), (m, n, k)


# ---- the short way: what it leaves -----------------------------------------------------------------------------------

A, B = np.ones((3, 4)), np.ones((4, 5))


class Subclass(np.ndarray):
    """Any subclass at all."""


def misaligned(shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(bytearray(8 * int(np.prod(shape)) + 1), np.uint8)[1:].view(np.float64).reshape(shape)


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    x = np.ones(shape)
    x.flags.writeable = False
    return x


MEMORY = np.zeros(100)
NOT_PLAIN: dict[str, tuple[Any, Any, Any]] = {
    "a list": ([[1.0]], np.ones((1, 1)), None),
    "None": (None, B, None),
    "a number": (A, 3.0, None),
    "an array without axes": (A, np.array(3.0), None),
    "a subclass": (A.view(Subclass), B, None),
    "a subclass to write": (A, B, np.empty((3, 5)).view(Subclass)),
    "a masked array": (np.ma.masked_array(A), B, None),
    "another dtype": (A.astype("f4"), B, None),
    "a dtype that was never learnt": (A.astype("f2"), B.astype("f2"), None),
    "another byte order": (A.astype(">f8"), B.astype(">f8"), None),
    "no alignment": (misaligned((3, 4)), B, None),
    "no alignment to write": (A, B, misaligned((3, 5))),
    "memory of somebody else": (np.frombuffer(bytearray(96)).reshape(3, 4), B, None),
    "memory of somebody else to write": (A, B, np.frombuffer(bytearray(120)).reshape(3, 5)),
    "another dtype to write": (A, B, np.empty((3, 5), "f4")),
    "read-only": (A, B, read_only((3, 5))),
    "what warns when written": (A, B, np.broadcast_arrays(np.empty((3, 1)), np.empty((3, 5)))[0]),
    "a wrong k": (A, A, None),
    "wrong rows": (A, B, np.empty((4, 5))),
    "wrong columns": (A, B, np.empty((3, 4))),
    "too few axes": (A, B, np.empty(15)),
    "too many axes": (A, B, np.empty((1, 3, 5))),
    "a wrong batch": (np.ones((2, 3, 4)), np.ones((3, 4, 5)), None),
    "a wrong batch to write": (np.ones((2, 3, 4)), B, np.empty((3, 3, 5))),
    "no rows": (np.ones((0, 4)), B, None),
    "no columns": (A, np.ones((4, 0)), None),
    "no k": (np.ones((3, 0)), np.ones((0, 5)), None),
    "no products": (np.ones((0, 3, 4)), B, None),
    "overlap": (MEMORY[:12].reshape(3, 4), B, MEMORY[11:26].reshape(3, 5)),
    "overlap, backwards": (A, MEMORY[40:60][::-1].reshape(4, 5), MEMORY[30:45].reshape(3, 5)),
    "a large one": (np.ones((600, 600)), np.ones((600, 600)), None),
    "much work": (np.broadcast_to(A, (10**6, 3, 4)), B, None),
    "more than can be counted": (np.broadcast_to(A, (2**31, 1, 3, 4)), np.broadcast_to(B, (2**31, 4, 5)), None),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_the_long_way_decides_about_what_is_not_plain(what: str) -> None:
    multiply = short("float64")
    before = sys.getrefcount(None)
    assert multiply(*NOT_PLAIN[what]) is None
    assert abs(sys.getrefcount(None) - before) < 10


@pytest.mark.slow
def test_what_is_plain_is_computed() -> None:
    """Or the test above would hold of a function that always answers None."""
    multiply = short("float64")
    assert multiply(A, B, None) is not None
    assert multiply(read_only((3, 4)), read_only((4, 5)), None) is not None
    assert multiply(MEMORY[:12].reshape(3, 4), B, MEMORY[12:27].reshape(3, 5)) is not None
    assert multiply(np.broadcast_to(A, (100, 3, 4)), B, None) is not None
    somebody_elses = NOT_PLAIN["memory of somebody else"]
    assert multiply(*somebody_elses, True) is not None, "admitted"
    assert multiply(*NOT_PLAIN["much work"], True) is not None, "admitted"
    assert multiply(A, B) is None, "too few arguments"


def test_without_the_c_front_every_product_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "front", lambda: None)
    monkeypatch.setattr(small_products, "multiply", small_products.take_long_way)
    assert small_products.learn_dtype(np.dtype("float64"), WORK_SHARED) is small_products.take_long_way
    assert small_products.take_long_way(A, B, None) is None
    assert shared_products._c_front.__wrapped__() is None


def test_arrays_of_a_dtype_that_was_not_learned_go_the_long_way() -> None:
    assert short("float64")(A.astype(np.longdouble), B.astype(np.longdouble), None) is None
    assert short("float64")(A.astype(object), B.astype(object), None) is None


SWITCHED = """
import numpy as np, tilewright as tw
from tilewright.cpu.runtime import small_products
a, b = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
for _ in range(2):
    assert np.array_equal(tw.matmul(a, b), a @ b)
    assert np.array_equal(tw.matmul(np.stack([a, -a]), b), np.stack([a, -a]) @ b)
print(small_products.multiply is small_products.take_long_way)
"""


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_the_switch(value: str) -> None:
    """``TILEWRIGHT_EXPRESS=0`` leaves every product to the long way; by default machine code that reads arrays is used."""
    environment = os.environ | {small_products.VARIABLE: value}
    answer = subprocess.run(
        [sys.executable, "-c", SWITCHED], env=environment, capture_output=True, text=True, check=False
    )
    assert (answer.stdout, answer.stderr) == (f"{value == '0'}\n", "")


# ---- batches ---------------------------------------------------------------------------------------------------------

BATCHES = [
    ((6, 3, 4), (6, 4, 5)),
    ((6, 3, 4), (4, 5)),
    ((3, 4), (6, 4, 5)),
    ((1, 3, 4), (6, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 3, 1, 9, 30), (3, 4, 30, 60)),
    ((5, 4), (6, 4, 5)),
    ((6, 3, 4), (4,)),
    ((4,), (6, 4, 5)),
    ((4,), (2, 3, 4, 5)),
    ((1, 1, 3, 4), (1, 4, 5)),
    ((6, 3, 4), (4, 5)),  # from here on one product of all rows, where they lie equally far apart
    ((2, 3, 1, 9), (9, 5)),
    ((9, 13, 40), (9, 40, 17)),  # from here on tiles prefetch a later product
    ((2, 7, 70, 33), (33, 70)),
]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(("left", "right"), BATCHES, ids=str)
def test_batches_of_every_stride(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = whole_numbers(left, dtype, 1), whole_numbers(right, dtype, 2)
    exact = np.matmul(a, b)
    layouts: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: x,
        lambda x: np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2) if x.ndim > 1 else x,
        lambda x: np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0),
        lambda x: x[::-1].copy()[::-1],
    ]
    for of_a, of_b, of_c in itertools.product(layouts, repeat=3):
        out = of_c(np.full(exact.shape, 9, dtype))
        assert short(dtype)(of_a(a), of_b(b), out) is out
        np.testing.assert_array_equal(out, exact)
        np.testing.assert_array_equal(tw.matmul(of_a(a), of_b(b)), exact)


def test_machine_code_is_cached_under_every_source_that_it_holds() -> None:
    """``suits`` of a kernel that is planned before the others is compiled into it, too."""
    held = (*facts.OF_SHORT_WAY, facts.BEFORE_VECTORS)
    name = in_process._cache(entries.c_functions()["are_small_or_of_vectors"])._cache_file._index_name
    assert all(kernel.source_hash in name for kernel in held)


def test_a_large_batch_on_one_thread_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With broadcast operands, too; where threads may share the batch it is planned."""
    rng = np.random.default_rng(8)
    a, b = (rng.uniform(-1, 1, (700, 32, 32)).astype(np.float32) for _ in range(2))
    assert facts.MOST_WORK_OF_BATCH < 700 * 32**3
    tw.matmul(a[0], b[0])  # learns the dtype

    def planned(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(api, "_matmul", planned)
    with tw.use_threads(1):
        for x, y in (
            (a, b),
            (a[0], b),
            (a[:, ::2], b),
            (a.transpose(0, 2, 1), b),
            (a.reshape(7, 100, 32, 32), b.reshape(7, 100, 32, 32)),
        ):
            out = np.full(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + (x.shape[-2], 32), np.nan, np.float32)
            assert tw.matmul(x, y, out=out) is out
            assert np.allclose(out, np.matmul(x, y), atol=1e-4)
            assert np.array_equal(tw.matmul(x, y), out)
    with tw.use_threads(2), pytest.raises(NotImplementedError):
        tw.matmul(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_of_every_height_of_tile(dtype: str) -> None:
    """Tiles are higher where steps of k are few, and one that covers a product computes the whole batch."""
    few = entries._module.FEW_STEPS
    for m, n, k in itertools.product(range(1, 19), (3, 8, 13, 16, 30, 33, 64), (few - 1, few, few + 8)):
        for count in (1, 2, 5):
            a, b = whole_numbers((count, m, k), dtype), whole_numbers((count, k, n), dtype, 1)
            out = np.full((count, m, n), np.nan, dtype)
            assert short(dtype)(a, b, out) is out
            np.testing.assert_array_equal(out, np.matmul(a, b), f"{count} × {m}×{n}×{k}")


def test_results_of_batches_of_many_axes_are_allocated() -> None:
    for axes in range(9):
        a = whole_numbers((*[2, 1, 3, 1, 2, 1, 2, 1][:axes], 3, 4), "float64", axes)
        b = whole_numbers((*[2, 3, 1, 1, 1, 2, 1, 2][:axes], 4, 5), "float64", axes)
        for x, y in ((a, b), (a[..., 0, :], b[(0,) * axes]), (a, b[(0,) * axes][:, 0]), (a[(0,) * axes][0], b)):
            result = short("float64")(x, y, None)
            np.testing.assert_array_equal(result, np.matmul(x, y))
            assert result.base is None


@pytest.mark.parametrize("bands", [1, 2, 3, 8])
@pytest.mark.parametrize("way", ["short", "long"])
def test_batches_in_bands_and_portions(bands: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PORTION", 300)
    a, b = whole_numbers((2, 7, 3, 4), "float64", 1), whole_numbers((1, 7, 4, 5), "float64", 2)
    b = np.broadcast_to(b, (2, 7, 4, 5))
    c = np.full((2, 7, 3, 5), np.nan)
    multiply = short("float64") if way == "short" else small_products.take_long_way
    cpu.multiply_batch(multiply, lambda: runner(entries.KERNEL, "float64"), bands, a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_a_batch_of_little_work_is_not_shared_and_one_of_much_is() -> None:
    def sharing(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int]:
        plan: Any = tw.plan(a, b)
        return plan.threads, plan.bands

    with tw.use_threads(2):
        assert sharing((100, 8, 8), (100, 8, 8)) == (1, 1)
        assert sharing((1000, 64, 64), (1000, 64, 64)) == (1, 2)
        assert sharing((1000, 64, 64), (64, 64)) == (2, 1), "one product of all rows"
        assert sharing((300, 100, 100), (300, 100, 100)) == (1, 2)
        assert sharing((100, 200, 200), (100, 200, 200)) == (1, 2)
        assert sharing((3, 700, 700), (3, 700, 700)) == (2, 1)
        assert sharing((8, 1000, 1000), (8, 1000, 1000)) == (2, 1)
        assert sharing((100, 100), (100, 100)) == (2, 1)
        assert sharing((600, 600), (600, 600)) == (2, 1)
    with tw.use_threads(1):
        assert sharing((1000, 64, 64), (1000, 64, 64)) == (1, 1)


# ---- nothing is lost -------------------------------------------------------------------------------------------------


MILLION = """
import sys, tracemalloc
import numpy as np, tilewright as tw

a, b, out = np.ones((4, 4)), np.ones((4, 4)), np.empty((4, 4))
matmul, vector = tw.matmul, np.ones(4)
held = (a, b, out, vector, a.dtype, None)

def work(times):
    for _ in range(times):
        matmul(a, b, out=out)
        matmul(a, b)
        matmul(vector, vector)
        matmul(a, b.T, out=out)

work(1000)
before = [sys.getrefcount(x) for x in held]
tracemalloc.start()
start = tracemalloc.get_traced_memory()[0]
work(5000)
grown = tracemalloc.get_traced_memory()[0] - start
tracemalloc.stop()
work(250_000)
assert grown < 5000, f"{grown} bytes in 20,000 calls"
assert max(abs(sys.getrefcount(x) - count) for x, count in zip(held, before)) < 100
"""


@pytest.mark.slow
def test_a_million_products_leave_nothing_behind() -> None:
    """In a process of its own: threads that other tests left, such as a cluster's, allocate something meanwhile."""
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_callers_on_eight_threads_get_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (70, 70)), rng.uniform(-1, 1, (70, 70))
    want, wrong = tw.matmul(a, b), []

    def call() -> None:
        out = np.empty((70, 70))
        for _ in range(200):
            if not np.array_equal(tw.matmul(a, b, out=out), want):
                wrong.append(out)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


# ---- in place of cpu/packed, with many threads


def on_threads(count: int, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> tuple[str, np.ndarray]:
    """The kernel of the plan for so many threads, and the product, or C + A·B."""
    before = tw.get_threads()
    tw.set_threads(count)
    try:
        result = tw.matmul(a, b) if c is None else tw.gemm(1.0, a, b, 1.0, c.copy())
        return tw.plan(a, b).kernel.name, result
    finally:
        tw.set_threads(before)


@pytest.mark.parametrize("shape", [(400, 400, 400), (330, 400, 416), (40, 416, 321), (416, 9, 340)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("layout", ["rows", "page", "columns", "reversed"])
def test_many_threads_have_the_bits_of_packed_panels(shape: tuple[int, int, int], dtype: str, layout: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m)
    a, b = (rng.uniform(-9, 9, sides).astype(dtype) for sides in ((m, k), (k, n)))
    if layout == "page":
        wide = np.zeros((k, 4096 // b.itemsize), dtype)
        wide[:, :n] = b
        b = wide[:, :n]
    a, b = {"columns": (np.asfortranarray(a), np.asfortranarray(b)), "reversed": (a[::-1], b[:, ::-1])}.get(
        layout, (a, b)
    )
    kernel, c = on_threads(1, a, b)
    many, found = on_threads(8, a, b)
    instead = kernel == "cpu/packed" and a.itemsize == 4 and k <= blocking().kc
    assert many == ("cpu/direct" if instead else kernel)
    np.testing.assert_array_equal(found, c)
    assert found.tobytes() == c.tobytes()


@pytest.mark.slow
def test_products_that_are_added_have_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.uniform(-1, 1, sides).astype(np.float32) for sides in ((400, 330), (330, 400), (400, 400)))
    assert on_threads(8, a, b, c)[1].tobytes() == on_threads(1, a, b, c)[1].tobytes()


def test_few_threads_and_long_sides_and_long_elements_stay_with_packed_panels() -> None:
    x, side, k = np.zeros((520, 520), np.float32), min(400, blocking().kc), min(330, blocking().kc)
    assert on_threads(7, x[:side, :k], x[:k, :side])[0] == "cpu/packed"
    assert on_threads(8, x[:side, :k], x[:k, :side])[0] == "cpu/direct"
    assert on_threads(8, x[:side, :k].astype(float), x[:k, :side].astype(float))[0] == "cpu/packed"
    assert on_threads(8, x, x)[0] == "cpu/packed"
