"""The kernels in ``microscope/blackwell``, with defects planted as in ``planted_rings``, how they are launched, and their right
results. Operands are small whole numbers, whose sums are exact in any order."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from support.asynchronous_kernels import bf16, from_e4m3
from support.planted_rings import Ring

FOLDER = Path(__file__).parents[1] / "microscope" / "blackwell"
STEPS = 2
#: The value of each code of e2m1.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
Array = np.ndarray[Any, Any]

_MAPS = "MAP map_a, MAP map_b, float* c"
_WORDS = "const u32* a, const u32* b, float* c"


def _whole(*shape: int, most: int = 4) -> Array:
    return np.random.default_rng([7, *shape]).integers(-most, most + 1, shape).astype(np.float32)


def _map(values: Array, rows: int) -> tw.TensorMap:
    """The map of a matrix of bf16 with boxes of 64 columns and so many rows."""
    return tw.TensorMap(bf16(values), (rows, 64), swizzle=128, data_type="bf16")


def core_matrices(rows: Array) -> Array:
    """Rows of 32 bytes as tiles without swizzle have them: 8 rows of their first 16 bytes, then of the others."""
    return np.ascontiguousarray(rows.reshape(-1, 8, 2, 16).swapaxes(1, 2)).reshape(-1)


def _nothing(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def _tiles(a: Array, b: Array) -> list[Array]:
    return _of_words(a.view(np.uint8), b.view(np.uint8))


def _of_words(a: Array, b: Array) -> list[Array]:
    return [np.ascontiguousarray(x).view(np.uint32).reshape(-1) for x in (a, b)]


def _gemm() -> Ring:
    a, b = _whole(128, 64 * STEPS), _whole(64, 64 * STEPS)
    return _ring("gemm.cu", 128, [_map(a, 128), _map(b, 64), _nothing(128, 64)], a @ b.T, params=_MAPS)


def _tensor_ring() -> Ring:
    a, b = _whole(3, 128, 64), _whole(3, 16, 64)
    maps = [_map(a.reshape(-1, 64), 128), _map(b.reshape(-1, 64), 16)]
    return _ring("tensor_ring.cu", 192, [*maps, _nothing(3, 128, 16)], np.einsum("imk,ink->imn", a, b), params=_MAPS)


def _pair() -> Ring:
    a, b = _whole(256, 64 * STEPS), _whole(64, 64 * STEPS)
    args = [_map(a, 128), _map(b, 32), _nothing(256, 64)]
    return _ring("pair.cu", 128, args, a @ b.T, params=_MAPS, grid=2, options={"cluster": 2})


def _a_in_tensor_memory() -> Ring:
    a, b = (_whole(rows, 16 * STEPS).astype(np.float16) for rows in (128, 32))
    right = a.astype(np.float32) @ b.T.astype(np.float32)
    return _ring("a_in_tensor_memory.cu", 128, [*_of_words(a, b), _nothing(128, 32)], right, params=_WORDS)


def _narrow() -> Ring:
    random = np.random.default_rng(5)
    a, b = random.integers(-9, 10, (64, 32)).astype(np.int8), random.integers(0, 19, (16, 32)).astype(np.uint8)
    right = a.astype(np.float32) @ b.T.astype(np.float32)
    codes = [(random.integers(7, 11, (rows, 32)) << 3).astype(np.uint8) for rows in (64, 16)]  # e4m3: 1, 2, 4 and 8
    of_e5m2 = codes[1] >> 3 << 2  # the same exponents in e5m2, for which the bias is 15
    floats = from_e4m3(codes[0]) @ (from_e4m3(codes[1]) / 256).T
    others = {"RIGHT_FLOATS": ([*_tiles(codes[0], of_e5m2), _nothing(64, 16)], floats)}
    return _ring("narrow.cu", 128, [*_tiles(a, b), _nothing(64, 16)], right, params=_WORDS, others=others)


def _scaled() -> Ring:
    """A and B of e4m3: powers of two from 1 to 8; and scales of 1/2, 1 and 2."""
    random = np.random.default_rng(6)
    codes = (random.integers(7, 11, (160, 32)) << 3).astype(np.uint8)
    powers = random.integers(-1, 2, (2, 128))
    data = np.concatenate([core_matrices(codes), *(_scales(127 + p[:, None].repeat(4, 1)) for p in powers)])
    numbers = from_e4m3(codes)
    numbers = numbers * np.exp2(np.concatenate([powers[0], powers[1, :32]]))[:, None].astype(np.float32)
    args = [data.view(np.uint32), _nothing(128, 32)]
    others = {"RIGHT_FOUR_BITS": _four_bits(random)}
    right = numbers[:128] @ numbers[128:].T
    return _ring("scaled.cu", 128, args, right, params="const u32* x, float* c", others=others)


def _four_bits(random: np.random.Generator) -> tuple[list[Array], Array]:
    """A and B of e2m1, two to a byte; and four scales of e4m3 a row, of 1, 2, 4 and 8."""
    codes = random.integers(0, 16, (160, 64))
    scales = (random.integers(7, 11, (2, 128, 4)) << 3).astype(np.uint8)
    data = [core_matrices((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)), *(_scales(s) for s in scales)]
    factors = from_e4m3(np.concatenate([scales[0], scales[1, :32]]))
    numbers = E2M1[codes] * factors.repeat(16, axis=1)
    return [np.concatenate(data).view(np.uint32), _nothing(128, 32)], numbers[:128] @ numbers[128:].T


def _scales(rows: Array) -> Array:
    """Scales (128, 4) of rows as ``tcgen05.cp`` takes them: row r + 32·q at 16·r + 4·q."""
    return np.ascontiguousarray(rows.astype(np.uint8).reshape(4, 32, 4).swapaxes(0, 1)).reshape(-1)


def _map_edit() -> Ring:
    x = _whole(STEPS * (STEPS + 1) // 2, 32)
    right = _nothing(STEPS, 4, 32)
    for step in range(STEPS):
        right[step, : step + 1] = x[step * (step + 1) // 2 :][: step + 1]
    maps = np.zeros(16, np.uint64)
    args = [tw.TensorMap(x, (4, 32)), x, maps, right * 0]
    return _ring("map_edit.cu", 32, args, right, params="MAP first, const float* x, u64* maps, float* y")


def _ring(source: str, block: int, args: list[Any], right: Array, **more: Any) -> Ring:
    header = (FOLDER / "blackwell.cuh").read_text(encoding="utf-8").replace("#pragma once", "")
    return Ring(
        source, block, args, right, folder=FOLDER, header=header, arch="sm_100a", steps=STEPS, unrolled=False, **more
    )


@functools.cache
def kernels() -> dict[str, Ring]:
    """By name of the source."""
    rings = [make() for make in (_gemm, _tensor_ring, _pair, _a_in_tensor_memory, _narrow, _scaled, _map_edit)]
    return {ring.source.removesuffix(".cu"): ring for ring in rings}
