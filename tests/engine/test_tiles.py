"""Products on tile registers: exact for integers, in the instruction's own order for bfloat16, its error bound included.

Few processors have the instructions. Elsewhere the kernels run on ``VectorTiles``, so that all around them is tested; the
instructions are read from the assembly, and denormal numbers are lost on tiles that lose them as the instructions do.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding, ir

import tilewright as tw
from support.matrices import LAYOUTS, SHAPES, Layout, operands
from tilewright.cpu import codegen
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.cpu.codegen import tiles
from tilewright.cpu.codegen.vectors import I32, I64
from tilewright.cpu.engine import dots
from tilewright.cpu.engine.dots import TileBlocks, instruction_names, tile_instruction, tile_instruction_here
from tilewright.cpu.kernels import bfloat16_tiles, integer_tiles
from tilewright.cpu.runtime.runner import runner
from tilewright.host import machine as facts
from tilewright.host.machine import granted, machine
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS, FLOATS = catalog()["cpu/integer_tiles"], catalog()["cpu/bfloat16_tiles"]
#: Kernels get native byte order.
NATIVE = {name: layout for name, layout in LAYOUTS.items() if name != "other byte order"}
layouts = pytest.mark.parametrize("lay", NATIVE.values(), ids=NATIVE.keys())
#: Beside those of every kernel: heights and widths around 16, 32 and 64, and two phases of k.
EDGES = [
    *SHAPES,
    (16, 16, 64),
    (17, 15, 65),
    (31, 49, 127),
    (32, 64, 128),
    (33, 65, 129),
    (70, 200, 4200),
    (600, 20, 40),
]


def product(kernel: Kernel, a: np.ndarray, b: np.ndarray, result: Any, threads: int = 1, c: Any = None) -> np.ndarray:
    c = np.empty((a.shape[0], b.shape[1]), result) if c is None else c
    c.fill(77)
    runner(kernel, a.dtype, threads=threads, result=result)(a, b, c)
    return c


# ---- integers --------------------------------------------------------------------------------------------------------

AVX2 = TileBlocks(replace(machine(), vector_bits=256, vector_registers=16))
multiply_by_avx2 = integer_tiles.integers_by_tiles(AVX2, codegen.VectorTiles)


def integers_by_avx2(a, b, c, space, counters):
    multiply_by_avx2(a, b, c, space, counters)


OF_AVX2 = replace(
    INTEGERS,
    function=integers_by_avx2,
    path=Path(__file__),
    workspace=AVX2.workspace,
    counters=AVX2.counters,
    params=AVX2.params,
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@layouts
def test_sums_of_32_bits_equal_numpys(dtype: str, lay: Layout) -> None:
    for shape in EDGES:
        a, b = operands(shape, dtype)
        expected = a.astype(np.int32) @ b.astype(np.int32)
        for threads in (1, 3):
            assert np.array_equal(product(INTEGERS, lay(a), lay(b), "int32", threads), expected), (shape, threads)


@pytest.mark.slow
def test_vectors_of_another_width_pack_the_same_words() -> None:
    for shape in EDGES:
        a, b = operands(shape, "int8")
        assert np.array_equal(product(OF_AVX2, a, b, "int32", 2), a.astype(np.int32) @ b.astype(np.int32)), shape


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_extremes_wrap_as_numpys_int32(dtype: str) -> None:
    limits = np.iinfo(dtype)
    for x, y in [(limits.min, limits.min), (limits.max, limits.max), (limits.min, limits.max)]:
        for k in (1, 3, 5, 140_000):
            c = product(INTEGERS, np.full((2, k), x, dtype), np.full((k, 3), y, dtype), "int32")
            assert (c == (int(x) * int(y) * k + 2**31) % 2**32 - 2**31).all(), (x, y, k)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(0, 80), st.integers(0, 140), st.integers(0, 300)),
    steps=st.tuples(*[st.sampled_from([-2, -1, 1, 3])] * 4),
    dtype=st.sampled_from(["int8", "int32"]),
)
def test_any_shape_into_any_c(shape: tuple[int, int, int], steps: tuple[int, int, int, int], dtype: str) -> None:
    a, b = operands(shape, "int8")
    a, b = a[:, :: steps[0]], b[:: steps[1]]
    a, b = a[:, : min(a.shape[1], b.shape[0])], b[: min(a.shape[1], b.shape[0])]
    large = np.full((3 * a.shape[0] + 2, 3 * b.shape[1] + 2), 77, dtype)
    c = large[1 : 1 + 3 * a.shape[0], 1 : 1 + 3 * b.shape[1]][:: 3 * np.sign(steps[2]), :: 3 * np.sign(steps[3])]
    product(INTEGERS, a, b, dtype, 2, c)
    assert np.array_equal(c, (a.astype(np.int32) @ b.astype(np.int32)).astype(dtype))
    c[...] = 77
    assert (large == 77).all(), "writes beside C"


@pytest.mark.slow
def test_adding_to_c() -> None:
    a, b = operands((35, 153, 5000), "int8")
    for dtype in ("int8", "int32"):
        for step in (1, 2):
            c = np.arange(35 * 153 * step, dtype=np.int32).astype(dtype).reshape(35, -1)[:, ::step]
            expected = (c + a.astype(np.int32) @ b.astype(np.int32)).astype(dtype)
            runner(INTEGERS, "int8", threads=2, add=True, result=dtype)(a, b, c)
            assert np.array_equal(c, expected)


# ---- bfloat16 --------------------------------------------------------------------------------------------------------


def in_order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The float32 product in the order of the instructions. float64 holds every sum before it is rounded."""

    def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x.astype(np.float64) + y).astype(np.float32)

    words = -(-a.shape[1] // 32) * 16  # pairs of steps, in whole tiles
    x, y = np.zeros((len(a), 2 * words)), np.zeros((2 * words, b.shape[1]))
    x[:, : a.shape[1]], y[: len(b)] = a, b
    phases = max(1, -(-words // bfloat16_tiles.BLOCKS.kc))
    c = None
    for phase in np.array_split(np.arange(words // 16), phases):
        sums = np.zeros((len(a), b.shape[1]), np.float32)
        for tile in 32 * phase:
            chains = [np.zeros_like(sums), np.zeros_like(sums)]
            for p in range(tile, tile + 32):
                chains[p % 2] = add(chains[p % 2], np.outer(x[:, p], y[p]))
            sums = add(sums, add(*chains))
        c = sums if c is None else add(c, sums)
    return c


def coarse(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Multiples of 1/128, of which float64 holds all sums of products."""
    return tuple((np.round(x.astype(np.float64) * 128) / 128).astype(BFLOAT16) for x in operands(shape, "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("result", [np.dtype(np.float32), BFLOAT16], ids=str)
@layouts
def test_the_bits_are_those_of_the_instructions_order(lay: Layout, result: np.dtype) -> None:
    for shape in EDGES:
        a, b = coarse(shape)
        expected = in_order(a, b).astype(result)
        for threads in (1, 3):
            c = product(FLOATS, lay(a), lay(b), result, threads)
            assert c.tobytes() == expected.tobytes(), (shape, threads)


@pytest.mark.slow
def test_the_error_is_within_the_classical_bound() -> None:
    for shape in [(33, 129, 1), (97, 89, 83), (40, 70, 5000)]:
        a, b = operands(shape, "bfloat16")
        x, y = a.astype(np.float64), b.astype(np.float64)
        error = np.abs(product(FLOATS, a, b, "float32") - x @ y)
        assert (error <= shape[2] * 2.0**-24 * (np.abs(x) @ np.abs(y))).all(), shape


class LosingTiles(tiles.VectorTiles):
    """As the instruction, it takes denormal numbers for zeros."""

    def add_floats(self, x: Any, y: Any) -> Any:
        return self._flushed(super().add_floats(self._flushed(x), self._flushed(y)))

    def multiply_add_floats(self, x: Any, y: Any, z: Any) -> Any:
        return self._flushed(super().multiply_add_floats(self._flushed(x), self._flushed(y), z))

    def _flushed(self, value: Any) -> Any:
        bits = self.builder.bitcast(value, self.words.vector)
        exponent, sign = (self.builder.and_(bits, self.words.broadcast(I32(mask))) for mask in (0x7F800000, 0x80000000))
        is_small = self.builder.icmp_unsigned("==", exponent, self.words.zero)
        return self.builder.bitcast(self.builder.select(is_small, sign, bits), self.floats.vector)


multiply_losing = bfloat16_tiles.bfloat16_by_tiles(bfloat16_tiles.BLOCKS, LosingTiles)
multiply_unchecked = bfloat16_tiles.bfloat16_by_tiles(bfloat16_tiles.BLOCKS, LosingTiles, least_exponents=1)


def losing(a, b, c, space, counters):
    at = space.size - c.size
    multiply_losing(a, b, c, dots.accumulation_buffer(c, space[at:]), space[:at], counters)


def unchecked(a, b, c, space, counters):
    at = space.size - c.size
    multiply_unchecked(a, b, c, dots.accumulation_buffer(c, space[at:]), space[:at], counters)


LOSING, UNCHECKED = (replace(FLOATS, function=function, path=Path(__file__)) for function in (losing, unchecked))
#: Exponents of the operands whose products are at, above and below the least that the instruction may multiply.
EXPONENTS = [(0, -126), (-56, -56), (-57, -56), (-60, -66), (-120, 20), (-133, 60), (-133, 0), (100, 20), (120, -133)]


@pytest.mark.slow
@pytest.mark.parametrize(("of_a", "of_b"), EXPONENTS)
def test_no_denormal_is_lost(of_a: int, of_b: int) -> None:
    """Of whole matrices, and of one element among ordinary ones: the error is that of sums that have their denormals."""
    a, b = operands((40, 70, 60), "bfloat16")
    small = ldexp(a, of_a), ldexp(b, of_b)
    one = a.copy(), b.copy()
    one[0][3, 5], one[1][5, 7] = small[0][3, 5], small[1][5, 7]
    one[0][3, :5] = one[0][3, 6:] = 0  # so that its product is the whole sum
    for x, y in (small, one):
        exact = x.astype(np.float64) @ y.astype(np.float64)
        bound = 60 * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))) + 60 * 2.0**-149
        for kernel in (FLOATS, LOSING):
            assert (np.abs(product(kernel, x, y, "float32") - exact) <= bound).all(), kernel


@pytest.mark.slow
def test_bits_beside_a_small_element_do_not_depend_on_threads() -> None:
    """One block of A is multiplied by vectors. Which rows it holds depends on the threads, the bits do not."""
    a, b = operands((600, 70, 200), "bfloat16")
    a[300, 100] = 2.0**-130
    found = {product(LOSING, a, b, "float32", threads).tobytes() for threads in (1, 2, 3, 4)}
    assert found == {product(FLOATS, a, b, "float32").tobytes()}


@pytest.mark.slow
def test_without_the_check_of_magnitudes_denormals_are_lost() -> None:
    a, b = (ldexp(x, exponent) for x, exponent in zip(operands((40, 70, 60), "bfloat16"), (-60, -66), strict=True))
    assert product(LOSING, a, b, "float32").any()
    assert not np.array_equal(product(UNCHECKED, a, b, "float32"), product(LOSING, a, b, "float32"))


def ldexp(x: np.ndarray, exponent: int) -> np.ndarray:
    return np.ldexp(x.astype(np.float64), exponent).astype(BFLOAT16)


# ---- the instructions ------------------------------------------------------------------------------------------------


def block_for(name: str, down: int, across: int) -> list[str]:
    """The instructions on tiles of a block of tiles, for a processor that need not be here."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module, words = ir.Module(), I32.as_pointer()
    module.triple = "x86_64-unknown-linux-gnu"
    kind = ir.FunctionType(ir.VoidType(), [I64, words, I64, words, I64, words, I64, I64])
    function = ir.Function(module, kind, "block")
    builder = ir.IRBuilder(function.append_basic_block())
    more = builder.icmp_signed("!=", function.args[-1], I64(0))
    tiles._emit_block(tiles.Tiles(builder, name), *function.args[:-1], more, down, across)
    builder.ret_void()
    parsed = binding.parse_assembly(str(module))
    target = binding.Target.from_triple(module.triple).create_target_machine(cpu="sapphirerapids", opt=3)
    passes = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    lines = (line.strip() for line in target.emit_assembly(parsed).splitlines())
    return [line.split()[0] for line in lines if line.startswith(("tile", "tdp"))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tdpbssd", "tdpbuud", "tdpbf16ps"])
@pytest.mark.parametrize(("down", "across"), [(2, 2), (2, 1), (1, 2), (1, 1)])
def test_a_step_of_k_loads_each_tile_once(name: str, down: int, across: int) -> None:
    """There is code for two steps, because the last one loads nothing for a next."""
    found, sums = block_for(name, down, across), down * across
    assert found.count("tilezero") == found.count("tilestored") == sums
    assert found.count("tileloadd") == sums + 2 * (down + across)
    assert found.count(name) == 2 * sums
    assert len(found) == 5 * sums + 2 * (down + across)


@pytest.mark.slow
def test_the_configuration_has_eight_tiles_of_a_kibibyte() -> None:
    """Intel's manual: the palette in byte 0, bytes of a row from byte 16 on, two bytes each, rows from byte 48 on."""
    data = np.frombuffer(tiles._CONFIGURATION, np.uint8)
    assert len(data) == 64
    assert data[0] == 1
    assert list(data[16:32].view(np.uint16)) == [64] * 8
    assert list(data[48:56]) == [16] * 8
    assert data.sum() == 1 + 8 * 64 + 8 * 16


@pytest.mark.slow
def test_instructions_and_vectors_have_the_same_bits() -> None:
    """Without tile registers both are vectors."""
    for shape in EDGES:
        a, b = operands(shape, "bfloat16")
        assert product(FLOATS, a, b, "float32").tobytes() == product(LOSING, a, b, "float32").tobytes(), shape
        x, y = operands(shape, "int8")
        assert np.array_equal(product(INTEGERS, x, y, "int32"), product(OF_AVX2, x, y, "int32")), shape


# ---- how they are chosen ---------------------------------------------------------------------------------------------

AMX = ("sse2", "avx2", "avx512f", "avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16")


@pytest.mark.slow
def test_a_processor_with_tiles_uses_them() -> None:
    assert [tile_instruction(dtype, AMX)[0] for dtype in ("int8", "int16", "bfloat16")] == ["tdpbssd", "", "tdpbf16ps"]
    assert tile_instruction("int8", AMX[:-3]) == tile_instruction("bfloat16", AMX[:-1]) == ("", "")
    text = instruction_names(AMX, 512)
    assert "int8 by tdpbssd (amx-int8), int16 by vpdpwssd (avx512vnni), bfloat16 by tdpbf16ps (amx-bf16)" in text


@pytest.mark.slow
def test_small_and_thin_products_are_left_to_vectors() -> None:
    for kernel in (INTEGERS, FLOATS):
        assert kernel.suits(512, 512, 512) == bool(tile_instruction_here(kernel.dtypes[0]))
        assert not kernel.suits(15, 4096, 4096)
        assert not kernel.suits(64, 64, 64)


@pytest.mark.slow
def test_plans_have_tiles_where_the_processor_has_them() -> None:
    has_tiles = bool(tile_instruction_here("int8"))
    a, b = operands((300, 300, 300), "int8")
    plan, adding = tw.plan(a, b, out_dtype="int32"), choose_adding_cpu("int8")
    assert adding is not None
    assert (plan.kernel.name == INTEGERS.name, adding.kernel.name == INTEGERS.name) == (has_tiles, has_tiles)
    assert np.array_equal(tw.matmul(a, b, out_dtype="int32"), a.astype(np.int32) @ b.astype(np.int32))
    x, y = operands((300, 300, 300), "bfloat16")
    assert (tw.plan(x, y).kernel.name == FLOATS.name) == bool(tile_instruction_here("bfloat16"))
    assert tw.plan(x, y, precision="highest").compute == "float64"


@pytest.mark.slow
def test_linux_is_asked_for_the_state_of_tiles() -> None:
    asked: list[list[int]] = []

    def syscall(*numbers: Any) -> int:
        asked.append([number.value for number in numbers])
        return 0

    assert granted(syscall)
    assert asked == [[158, 0x1023, 18]]
    assert not granted(lambda *numbers: -1)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [True, False])
def test_features_that_linux_does_not_allow_are_not_listed(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(facts, "instruction_sets", lambda root, sysctl: set(AMX))
    monkeypatch.setattr(facts, "may_use_tiles", lambda: allowed)
    isa = facts.read_machine().isa
    assert set(isa) == set(AMX if allowed else AMX[:-3])
