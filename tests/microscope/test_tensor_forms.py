"""Every shape of load and store of tensor memory, and forms of products, by the layouts of the PTX ISA and of CuTe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.tensor_kernels import core_matrices
from support.tensor_ptx import SHAPES, descriptor, moved, multiplied, product, text
from tilewright.simulator import simulate
from tilewright.simulator.findings import BY_THE_LETTER

Array = np.ndarray[Any, Any]

# ---- loads and stores ------------------------------------------------------------------------------------------------


def _by_cute(shape: str, times: int) -> tuple[Array, Array]:
    """Lane and column of each register of each thread (32, registers), from the strides of CuTe's layouts, in bits."""
    n, t, r = times, np.arange(32)[:, None], np.arange(times * SHAPES[shape][0])
    pitch = 32 * SHAPES[shape][2] * n * (2 if shape == "16x32bx2" else 1)
    bit = {
        "32x32b": t * pitch + r * 32,
        "16x64b": t % 2 * 8 * pitch + t // 2 % 2 * 32 + t // 4 * pitch + r * 64,
        "16x128b": t % 4 * 32 + t // 4 * pitch + r % 2 * 8 * pitch + r // 2 * 128,
        "16x256b": t % 4 * 64 + t // 4 * pitch + r % 2 * 32 + r // 2 % 2 * 8 * pitch + r // 4 * 256,
        "16x32bx2": t % 16 * pitch + t // 16 * 32 * n + r * 32,
    }[shape]
    return bit // pitch, bit % pitch // 32


@pytest.mark.parametrize("packed", [False, True], ids=["words", "halves"])
@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_load_takes_what_whole_lanes_have_stored(shape: str, times: int, packed: bool) -> None:
    lanes, columns = _by_cute(shape, times)
    lane = 16 if SHAPES[shape][1] == 16 else 0
    run = simulate(
        moved(shape, times, lane=lane, packed=packed), "k", 1, 128, [np.zeros((128, lanes.shape[1]), np.uint32)]
    )
    assert run.findings == []
    thread = np.arange(4)[:, None, None] * 32 + lane + lanes
    right = 1000 * thread + columns
    if packed:
        right = (1000 * thread + 2 * columns & 0xFFFF) | (1000 * thread + 2 * columns + 1 & 0xFFFF) << 16
    np.testing.assert_array_equal(run.arrays[0], right.reshape(128, -1))


@pytest.mark.parametrize("packed", [False, True], ids=["words", "halves"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_store_is_the_inverse(shape: str, packed: bool) -> None:
    lanes, columns = _by_cute(shape, 2)
    wide = int(columns.max() + 1) * (1 + packed)
    run = simulate(moved(shape, 2, packed=packed, stores=True), "k", 1, 128, [np.zeros((128, wide), np.uint32)])
    assert run.findings == []
    right = np.zeros((4, 32, wide), np.uint32)
    words = 1000 * np.arange(128).reshape(4, 32, 1) + np.arange(lanes.shape[1])
    for part in range(1 + packed):
        right[:, lanes, columns * (1 + packed) + part] = words >> 16 * part & (0xFFFF if packed else 0xFFFFFFFF)
    np.testing.assert_array_equal(run.arrays[0], right.reshape(128, -1))


# ---- products --------------------------------------------------------------------------------------------------------


def _shape(d: int, a: int, b: int, m: int, n: int, more: int = 0) -> int:
    return d << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24 | more


def _operands(m: int, n: int, k: int, dtype: Any) -> tuple[Array, Array, Array]:
    """A (m, k) and B (n, k) of small whole numbers, and A·Bᵀ."""
    random = np.random.default_rng([m, n, k])
    a, b = (random.integers(-3, 4, (rows, k)).astype(np.float32) for rows in (m, n))
    return a.astype(dtype), b.astype(dtype), a @ b.T


def _k_major(a: Array, b: Array) -> tuple[Array, list[int]]:
    """Tiles without swizzle, A before B, and their descriptors."""
    tiles = np.concatenate([core_matrices(np.ascontiguousarray(x).view(np.uint8)) for x in (a, b)])
    return tiles, [descriptor(0, 128, 256), descriptor(a.shape[0] * 32, 128, 256)]


def _floats(words: Array) -> Array:
    return words.view(np.float32)


def test_tf32_of_128_rows() -> None:
    a, b, right = _operands(128, 16, 8, np.float32)
    tiles, at = _k_major(a, b)
    ptx = product("mma.cta_group::1.kind::tf32", shape=_shape(1, 2, 2, 128, 16), shared=tiles.size, columns=16)
    run, words = multiplied(ptx, tiles, at, 16)
    assert run.findings == []
    np.testing.assert_array_equal(_floats(words), right)


def test_half_precision_is_not_packed_in_d() -> None:
    a, b, right = _operands(128, 16, 16, np.float16)
    tiles, at = _k_major(a, b)
    ptx = product("mma.cta_group::1.kind::f16", shape=_shape(0, 0, 0, 128, 16), shared=tiles.size, columns=16)
    _, words = multiplied(ptx, tiles, at, 16)
    np.testing.assert_array_equal(words.astype(np.uint16).view(np.float16), right)
    assert (words >> 16 == 0).all()


@pytest.mark.parametrize("swizzle", [0, 2, 4, 6], ids=["none", "128", "64", "32"])
def test_operands_whose_rows_are_k(swizzle: int) -> None:
    """MN-major: 16 rows of K, of 128 or 64 numbers; with a swizzle in slabs of its width, 8 rows of K to a pattern."""
    a, b, right = _operands(128, 64, 16, np.float16)
    wide = {0: 16, 2: 128, 4: 64, 6: 32}[swizzle]  # bytes
    parts, places = [], []
    for x in (a, b):
        rows = np.ascontiguousarray(x.T).view(np.uint8)  # (K, bytes of M or N)
        slabs = rows.reshape(2, 8, -1, wide).transpose(2, 0, 1, 3)  # slab, group of 8 rows, row, bytes
        tile = np.ascontiguousarray(slabs).reshape(-1)
        where = np.arange(tile.size)
        where ^= where >> 3 & ((wide // 16 - 1) << 4)
        moved_ = np.empty_like(tile)
        moved_[where] = tile
        start, slab, group = sum(p.size for p in parts), 16 * wide, 8 * wide
        leading, stride = (group, slab) if swizzle == 0 else (slab, group)
        places.append(descriptor(start, leading, stride, swizzle))
        parts.append(moved_)
    shape = _shape(1, 0, 0, 128, 64, 1 << 15 | 1 << 16)
    tiles = np.concatenate(parts)
    ptx = product("mma.cta_group::1.kind::f16", shape=shape, shared=tiles.size, columns=64)
    run, words = multiplied(ptx, tiles, places, 64)
    assert run.findings == []
    np.testing.assert_array_equal(_floats(words), right)


def test_negated_operands() -> None:
    a, b, right = _operands(128, 16, 16, np.float16)
    tiles, at = _k_major(a, b)
    ptx = product("mma.cta_group::1.kind::f16", shape=_shape(1, 0, 0, 128, 16, 1 << 13), shared=tiles.size, columns=16)
    _, words = multiplied(ptx, tiles, at, 16)
    np.testing.assert_array_equal(_floats(words), -right)


def _filled(columns: int, value: float) -> str:
    """Instructions by which each warp fills columns of its lanes with a number."""
    bits = np.float32(value).view(np.uint32)
    registers = "{" + ", ".join(f"%v{i}" for i in range(8)) + "}"
    out = "".join(f"    mov.b32 %v{i}, {bits};\n" for i in range(8))
    for first in range(0, columns, 8):
        out += f"    tcgen05.st.sync.aligned.32x32b.x8.b32 [%r2+{first}], {registers};\n"
    return out + "    tcgen05.wait::st.sync.aligned;\n"


def test_the_accumulator_is_scaled_and_lanes_are_left_out() -> None:
    a, b, right = _operands(128, 16, 16, np.float16)
    tiles, at = _k_major(a, b)
    masks = "{%v9, %v10, %v10, %v11}"
    of_lanes = "    mov.b32 %v9, 0x0000000F;\n    mov.b32 %v10, 0;\n    mov.b32 %v11, 0x80000000;\n"
    options = {"adds": "1", "more": f"{masks}, ", "before": _filled(16, 96.0) + of_lanes}
    shape = _shape(1, 0, 0, 128, 16)
    masked = product("mma.cta_group::1.kind::f16", shape=shape, shared=tiles.size, columns=16, **options)
    scaled = masked.replace(f"%r8, {masks}, %p2", "%r8, %p2, 3")
    assert scaled != masked
    kept = np.isin(np.arange(128), [0, 1, 2, 3, 127])
    run, words = multiplied(masked, tiles, at, 16)
    assert run.findings == []
    np.testing.assert_array_equal(_floats(words), np.where(kept[:, None], 96, right + 96))
    _, words = multiplied(scaled, tiles, at, 16)
    np.testing.assert_array_equal(_floats(words), right + 12)


@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary_products_fold_the_columns(m: int) -> None:
    a, b, right = _operands(m, 64, 16, np.float16)
    tiles, at = _k_major(a, b)
    parts = 128 // m
    ptx = product("mma.ws.cta_group::1.kind::f16", shape=_shape(1, 0, 0, m, 64), shared=tiles.size, columns=64 // parts)
    run, words = multiplied(ptx, tiles, at, 64 // parts)
    assert run.findings == []
    found = np.concatenate(np.split(_floats(words), parts), axis=1)
    np.testing.assert_array_equal(found, right)


def test_a_pair_of_64_rows_each_has_half_of_the_columns_below() -> None:
    a, b, right = _operands(128, 32, 16, np.float16)
    halves = [_k_major(a[64 * i : 64 * i + 64], b[16 * i : 16 * i + 16]) for i in (0, 1)]
    tiles = np.concatenate([tile for tile, _ in halves])
    ptx = product(
        "mma.cta_group::2.kind::f16", shape=_shape(1, 0, 0, 128, 32), shared=halves[0][0].size, columns=16, pair=2
    )
    run, words = multiplied(ptx, tiles, halves[0][1], 16, blocks=2)
    assert run.findings == []
    found = _floats(words).reshape(2, 2, 64, 16).transpose(0, 2, 1, 3).reshape(128, 32)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("bits", [4, 6])
def test_narrow_floats_are_packed_at_the_beginning_of_16_bytes(bits: int) -> None:
    """e2m1, and e2m3 whose codes 8·x of -3 … 3 are whole numbers."""
    a, b, right = _operands(128, 16, 32, np.float32)
    number = {4: 5, 6: 3}[bits]
    codes = [_codes(x, bits) for x in (a, b)]
    packed = [_in_16_bytes(c, bits) for c in codes]
    tiles, at = _k_major(*packed)
    ptx = product(
        "mma.cta_group::1.kind::f8f6f4", shape=_shape(1, number, number, 128, 16), shared=tiles.size, columns=16
    )
    run, words = multiplied(ptx, tiles, at, 16)
    assert run.findings == []
    np.testing.assert_array_equal(_floats(words), right)


def _codes(x: Array, bits: int) -> Array:
    """Whole numbers from -3 to 3 as e2m1 or e2m3."""
    of = {4: [0, 2, 4, 5], 6: [0, 8, 16, 20]}[bits]
    return (np.array(of)[np.abs(x).astype(int)] | (x < 0).astype(int) << (bits - 1)).astype(np.uint8)


def _in_16_bytes(codes: Array, bits: int) -> Array:
    """Groups of 16 codes, packed, and zeros up to 16 bytes."""
    every = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1, 16 * bits)
    packed = np.packbits(every.astype(np.uint8), axis=-1, bitorder="little")
    return np.pad(packed, ((0, 0), (0, 0), (0, 16 - packed.shape[-1]))).reshape(len(codes), -1)


# ---- what only PTX can say -------------------------------------------------------------------------------------------


def test_a_kernel_has_one_cta_group() -> None:
    """ptxas refuses it; another assembler may not."""
    ptx = text("", ".param .u64 y").replace("dealloc.cta_group::1", "dealloc.cta_group::2")
    kinds = {(f.kind, f.grade) for f in simulate(ptx, "k", 1, 128, [np.zeros(1)]).findings}
    assert ("tcgen05 misuse", "sure") in kinds


def test_lanes_of_other_warps_are_a_finding_by_the_letter() -> None:
    ptx = moved("32x32b", 1).replace(
        "ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r2", "ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r1"
    )
    run = simulate(ptx, "k", 1, 128, [np.zeros(128, np.uint32)])
    assert {(f.kind, f.grade) for f in run.findings} == {("out of bounds", BY_THE_LETTER)}
    np.testing.assert_array_equal(run.arrays[0], 1000 * np.arange(128))


def test_an_address_of_another_space_is_a_finding_by_the_letter() -> None:
    a, b, right = _operands(128, 16, 16, np.float16)
    tiles, at = _k_major(a, b)
    ptx = product("mma.cta_group::1.kind::f16", shape=_shape(1, 0, 0, 128, 16), shared=tiles.size, columns=16)
    changes = {
        "arrive::one.shared::cluster.b64 [done];": "arrive::one.b64 [%rd9];",
        "    mov.u32 %r0, %tid.x;": "    mov.u32 %r0, %tid.x; mov.u64 %rd9, done;\n"
        "    mov.u64 %rd10, place; cvta.shared.u64 %rd10, %rd10;",
        "shared::cta.b32 [place], 256;": "shared::cta.b32 [%rd10], 256;",
    }
    for old, new in changes.items():
        assert ptx.count(old) == 1
        ptx = ptx.replace(old, new)
    run, words = multiplied(ptx, tiles, at, 16)
    assert [(f.kind, f.grade) for f in run.findings] == [("out of bounds", BY_THE_LETTER)] * 2
    np.testing.assert_array_equal(_floats(words), right)
