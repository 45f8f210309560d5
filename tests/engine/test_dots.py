"""Products by instructions that multiply groups of narrow elements: exact for integers, float32's bits for bfloat16.

The kernels of an older generation of processors, which have no such instructions, must give the same bits.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numba as nb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.machine_code import assembly, inner_loops
from support.matrices import LAYOUTS, SHAPES, Layout, operands
from tilewright.cpu import codegen
from tilewright.cpu.engine import jobs
from tilewright.cpu.engine.dots import (
    chosen_instruction,
    dot_instruction_here,
    instruction_names,
    tile_instruction_here,
)
from tilewright.cpu.kernels import bfloat16_dots, integer_dots
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UsageError
from tilewright.host.machine import machine
from tilewright.kernels import Kernel
from tilewright.kernels.blocking import analytic
from tilewright.kernels.catalog import catalog

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: A processor with AVX2 and nothing newer.
AVX2 = analytic(replace(machine(), vector_bits=256, vector_registers=16))
OLD_INTEGERS, multiply_integers = integer_dots.integer_product(AVX2, "vpmaddwd", "vpmaddwd")
OLD_FLOATS, multiply_floats = bfloat16_dots.bfloat16_product(AVX2, "")


def integers_by_avx2(a, b, c, space, counters):
    multiply_integers(a, b, c, space, counters)


def floats_by_avx2(a, b, c, space, counters):
    at = space.size - c.size
    multiply_floats(a, b, c, bfloat16_dots.dots.accumulation_buffer(c, space[at:]), space[:at], counters)


def of_generation(kernel: Kernel, function: Any, blocks: Any, extra: int = 0) -> Kernel:
    """The kernel, compiled for other blocks."""
    sizes = {"params": blocks.params, "counters": blocks.counters, "grain": (blocks.mr, blocks.nr), "blocking": AVX2}
    space = lambda m, n, k, *team: blocks.workspace(m, n, k, *team) + extra * m * n  # noqa: E731
    return replace(kernel, function=function, path=Path(__file__), workspace=space, **sizes)


INTEGERS = {
    "here": catalog()["cpu/integer_dots"],
    "AVX2": of_generation(catalog()["cpu/integer_dots"], integers_by_avx2, OLD_INTEGERS),
}
FLOATS = {
    "here": catalog()["cpu/bfloat16_dots"],
    "AVX2": of_generation(catalog()["cpu/bfloat16_dots"], floats_by_avx2, OLD_FLOATS, 1),
}
generations = pytest.mark.parametrize("generation", ["here", "AVX2"])
#: Kernels get native byte order.
NATIVE = {name: layout for name, layout in LAYOUTS.items() if name != "other byte order"}
layouts = pytest.mark.parametrize("lay", NATIVE.values(), ids=NATIVE.keys())


def product(kernel: Kernel, a: np.ndarray, b: np.ndarray, result: Any, threads: int = 1, c: Any = None) -> np.ndarray:
    c = np.empty((a.shape[0], b.shape[1]), result) if c is None else c
    c.fill(77)
    runner(kernel, a.dtype, threads=threads, result=result)(a, b, c)
    return c


# ---- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@generations
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@layouts
def test_sums_of_32_bits_equal_numpys(dtype: str, lay: Layout, generation: str) -> None:
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        expected = a.astype(np.int32) @ b.astype(np.int32)
        for threads in (1, 3):
            c = product(INTEGERS[generation], lay(a), lay(b), "int32", threads)
            assert np.array_equal(c, expected), (shape, threads)


@pytest.mark.slow
@generations
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_extremes_wrap_as_numpys_int32(dtype: str, generation: str) -> None:
    limits = np.iinfo(dtype)
    for x, y in [
        (limits.min, limits.min),
        (limits.max, limits.max),
        (limits.min, limits.max),
        (limits.max, limits.min),
    ]:
        for k in (1, 3, 4, 5, 1023, 140_000):
            c = product(INTEGERS[generation], np.full((2, k), x, dtype), np.full((k, 3), y, dtype), "int32")
            expected = (int(x) * int(y) * k + 2**31) % 2**32 - 2**31
            assert (c == expected).all(), (x, y, k)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(0, 80), st.integers(0, 140), st.integers(0, 300)),
    steps=st.tuples(*[st.sampled_from([-2, -1, 1, 3])] * 4),
    dtype=st.sampled_from(["int8", "int32"]),
)
def test_any_shape_into_any_c(shape: tuple[int, int, int], steps: tuple[int, int, int, int], dtype: str) -> None:
    a, b = operands(shape, "int8")
    a, b = a[:, :: steps[0]][:, : shape[2] // 3], b[:: steps[1]][: shape[2] // 3]
    a, b = a[:, : min(a.shape[1], b.shape[0])], b[: min(a.shape[1], b.shape[0])]
    large = np.full((3 * a.shape[0] + 2, 3 * b.shape[1] + 2), 77, dtype)
    c = large[1 : 1 + 3 * a.shape[0], 1 : 1 + 3 * b.shape[1]][:: 3 * np.sign(steps[2]), :: 3 * np.sign(steps[3])]
    product(INTEGERS["here"], a, b, dtype, 2, c)
    assert np.array_equal(c, (a.astype(np.int32) @ b.astype(np.int32)).astype(dtype))
    c[...] = 77
    assert (large == 77).all(), "writes beside C"


@pytest.mark.slow
@generations
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_is_read_in_place_where_its_rows_are_whole_words(dtype: str, generation: str) -> None:
    wide, b = operands((200, 150, 3000), dtype)
    alike = [wide[:, :2900].copy(), wide[:, :2900], wide[:, 1:2901], wide[::-1, :2900], wide[:, :2899]]
    assert [jobs.lies_well(a, 4, True) for a in alike] == [True, True, False, False, False]
    for a in alike:
        expected = a.astype(np.int32) @ b[: a.shape[1]].astype(np.int32)
        for threads in (1, 3):
            assert np.array_equal(product(INTEGERS[generation], a, b[: a.shape[1]], "int32", threads), expected)


@pytest.mark.slow
def test_adding_to_c() -> None:
    a, b = operands((35, 153, 2900), "int8")
    for dtype in ("int8", "int32"):
        for step in (1, 2):
            c = np.arange(35 * 153 * step, dtype=np.int32).astype(dtype).reshape(35, -1)[:, ::step]
            expected = (c + a.astype(np.int32) @ b.astype(np.int32)).astype(dtype)
            runner(INTEGERS["here"], "int8", threads=2, add=True, result=dtype)(a, b, c)
            assert np.array_equal(c, expected)


# ---- bfloat16 --------------------------------------------------------------------------------------------------------


def by_float32(a: np.ndarray, b: np.ndarray, result: Any) -> np.ndarray:
    """The product of float32, with the phases of k of the kernel for bfloat16."""
    (m, k), n = a.shape, b.shape[1]
    words = -(-k // 2)
    phases = max(1, -(-words // bfloat16_dots.BLOCKS.kc))
    cuts = [min(k, 2 * jobs.part_start(words, phases, p)) for p in range(phases + 1)]
    x, y, wide = a.astype(np.float32), b.astype(np.float32), np.zeros((m, n), np.float32)
    for low, high in itertools.pairwise(cuts):
        part = np.empty((m, n), np.float32)
        runner(catalog()["cpu/direct"], "float32")(x[:, low:high], y[low:high], part)  # one chain for any k
        wide = wide + part if low else part
    return wide.astype(result)


@pytest.mark.slow
@pytest.mark.parametrize("result", [np.dtype(np.float32), BFLOAT16], ids=str)
@layouts
def test_the_bits_are_float32s(lay: Layout, result: np.dtype) -> None:
    for shape in [*SHAPES, (13, 70, 2 * bfloat16_dots.BLOCKS.kc + 77)]:  # the last has two phases
        a, b = operands(shape, "bfloat16")
        expected = by_float32(a, b, result)
        for threads in (1, 3):
            c = product(FLOATS["here"], lay(a), lay(b), result, threads)
            assert c.tobytes() == expected.tobytes(), (shape, threads)


@pytest.mark.slow
@pytest.mark.parametrize("result", [np.dtype(np.float32), BFLOAT16], ids=str)
def test_an_older_generation_gives_the_same_bits(result: np.dtype) -> None:
    for shape in [(33, 129, 65), (97, 89, 83), (6, 128, 200), (5, 7, 3)]:
        a, b = operands(shape, "bfloat16")
        old, new = (product(FLOATS[name], a, b, result, 2) for name in ("AVX2", "here"))
        assert old.tobytes() == new.tobytes(), shape


#: Exponents of the operands whose products are at, above and below the least that the instruction may multiply.
EXPONENTS = [(0, -126), (-56, -56), (-57, -56), (-60, -60), (-120, 20), (-133, 60), (-133, 0), (100, 100), (120, -133)]


@pytest.mark.slow
@pytest.mark.parametrize(("of_a", "of_b"), EXPONENTS)
def test_denormals_and_infinities_are_float32s(of_a: int, of_b: int) -> None:
    """Of whole matrices, and of one element among ordinary ones."""
    a, b = operands((13, 70, 60), "bfloat16")
    small = ldexp(a, of_a), ldexp(b, of_b)
    one = a.copy(), b.copy()
    one[0][3, 5], one[1][5, 7] = small[0][3, 5], small[1][5, 7]
    one[0][3, :5] = one[0][3, 6:] = 0  # so that its product is the whole sum
    for x, y in (small, one):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = by_float32(x, y, np.float32)
        c = product(FLOATS["here"], x, y, "float32")
        assert np.array_equal(c.view(np.int32), expected.view(np.int32))


def ldexp(x: np.ndarray, exponent: int) -> np.ndarray:
    return np.ldexp(x.astype(np.float64), exponent).astype(BFLOAT16)


unchecked_blocks, multiply_unchecked = bfloat16_dots.bfloat16_product(
    bfloat16_dots.blocking(), bfloat16_dots.INSTRUCTION, least_exponents=1
)


def unchecked(a, b, c, space, counters):
    at = space.size - c.size
    multiply_unchecked(a, b, c, bfloat16_dots.dots.accumulation_buffer(c, space[at:]), space[:at], counters)


@pytest.mark.slow
@pytest.mark.skipif(
    not dot_instruction_here("bfloat16"), reason="this processor has no vdpbf16ps, so no denormal is lost"
)
def test_without_the_check_of_magnitudes_denormals_are_lost() -> None:
    wrong = replace(FLOATS["here"], function=unchecked, path=Path(__file__))
    a, b = ldexp(operands((13, 70, 60), "bfloat16")[0], -60), ldexp(operands((13, 70, 60), "bfloat16")[1], -66)
    right = by_float32(a, b, np.float32)
    assert right.any()
    assert np.array_equal(product(FLOATS["here"], a, b, "float32"), right)
    assert not np.array_equal(product(wrong, a, b, "float32"), right)


# ---- how they are chosen ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "bits", "names"),
    [
        (("sse2", "avx2", "avx512f", "avx512vnni", "avx512bf16"), 512, ("vpdpbusd", "vpdpwssd", "vdpbf16ps")),
        (("sse2", "avx2", "avx512f"), 512, ("vpmaddwd", "vpmaddwd", "")),
        (("sse2", "avx2", "avxvnni"), 256, ("vpdpbusd", "vpdpwssd", "")),
        (("sse2", "avx2"), 256, ("vpmaddwd", "vpmaddwd", "")),
        (("neon",), 128, ("", "", "")),
    ],
)
def test_instructions_by_generation(isa: tuple[str, ...], bits: int, names: tuple[str, ...]) -> None:
    dtypes = ("int8", "int16", "bfloat16")
    assert tuple(chosen_instruction(dtype, isa, bits)[0] for dtype in dtypes) == names
    for dtype, name in zip(dtypes, names, strict=True):
        assert f"{dtype} {f'by {name}' if name else 'converted'}" in instruction_names(isa, bits)


@pytest.mark.slow
@pytest.mark.skipif(
    not dot_instruction_here("int8"), reason="this processor has no instruction for groups of 8-bit integers"
)
@pytest.mark.skipif(
    bool(tile_instruction_here("int8")), reason="this processor multiplies 8-bit integers on tiles (test_tiles.py)"
)
def test_the_library_call_does_not_convert_operands() -> None:
    a, b = operands((150, 160, 170), "int8")
    expected = a.astype(np.int32) @ b.astype(np.int32)
    plan = tw.plan(a, b, out_dtype="int32")
    assert (plan.kernel.name, plan.compute, plan.converted_bytes) == ("cpu/integer_dots", "int8", 0)
    assert "sums are int32" in str(plan)
    c = np.zeros(expected.shape, np.int32)
    assert tw.matmul(a, b, c, out_dtype="int32") is c
    assert np.array_equal(c, expected)
    assert np.array_equal(tw.matmul(np.stack([a, a]), b, out_dtype="int32"), [expected, expected])
    assert np.array_equal(tw.matmul(a, b, out_dtype="int64"), expected)
    assert np.array_equal(tw.matmul(a, b), expected.astype(np.int8))
    assert tw.plan(a, b.astype(np.uint8), out_dtype="int32").compute == "int32"


@pytest.mark.slow
@pytest.mark.skipif(not dot_instruction_here("bfloat16"), reason="this processor has no vdpbf16ps")
@pytest.mark.skipif(
    bool(tile_instruction_here("bfloat16")), reason="this processor multiplies bfloat16 on tiles (test_tiles.py)"
)
def test_bfloat16_is_not_converted_either() -> None:
    a, b = operands((150, 160, 170), "bfloat16")
    assert tw.plan(a, b).kernel.name == tw.plan(a, b, out_dtype="float32").kernel.name == "cpu/bfloat16_dots"
    c = tw.matmul(a, b, out_dtype="float32")
    assert np.array_equal(c, by_float32(a, b, np.float32))
    relu = tw.matmul(a, b, bias=np.ones(160, np.float32), activation="relu")
    assert np.array_equal(relu, np.maximum(c + 1, 0).astype(BFLOAT16))
    assert tw.plan(a, b, precision="highest", out_dtype="float32").compute == "float64"


@pytest.mark.slow
def test_a_result_that_is_no_sum_is_refused() -> None:
    for dtype, result in (("int8", "int16"), ("int16", "int8"), ("uint16", "int32")):
        with pytest.raises(UsageError, match="does not write"):
            runner(INTEGERS["here"], dtype, result=result)


@pytest.mark.slow
@pytest.mark.skipif(
    dot_instruction_here("int8") != "vpdpbusd", reason="reads the assembly for vpdpbusd, which this processor lacks"
)
def test_the_inner_loop_stays_in_registers() -> None:
    chosen = integer_dots.BLOCKS.chosen
    micro = codegen.dot_kernel(chosen.mr, chosen.nv, chosen.vector_bits, "vpdpbusd", unroll=2)
    flat = nb.types.Array(nb.int32, 1, "C")

    @nb.njit((nb.intp, flat, flat, flat))
    def run(kc, a, b, c):
        to = codegen.offset(c, 0)
        micro(kc, codegen.offset(a, 0), 64, codegen.offset(b, 0), to, 64, 0, 64, to)

    loops = inner_loops(assembly(run), "vpdpbusd")
    assert loops
    for loop in loops:
        assert sum(line.startswith("vpdpbusd") for line in loop) % (chosen.mr * chosen.nv) == 0
        used = [line for line in loop if not line.startswith("prefetch")]  # which may take any register for an address
        assert not [line for line in used if "(%rsp" in line or "(%rbp" in line]
