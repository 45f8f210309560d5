"""Instructions that GPUs have from compute capability 10.0 on, besides those of tensor memory: packed floats, narrow types, wide
accesses, copies of four rows, and requests for clusters."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.async_sources import PRELUDE
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.assembly.instructions import Module
from tilewright.simulator.assembly.parser import parse_ptx

SOURCE = r"""
extern "C" __global__ void packed(const u64* x, u64* y)
{
    u64 a = x[3 * threadIdx.x], b = x[3 * threadIdx.x + 1], c = x[3 * threadIdx.x + 2], sum, product, fused, rounded;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(sum) : "l"(a), "l"(b));
    asm("mul.rn.ftz.f32x2 %0, %1, %2;" : "=l"(product) : "l"(a), "l"(b));
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(fused) : "l"(a), "l"(b), "l"(c));
    asm("add.rz.f32x2 %0, %1, %2;" : "=l"(rounded) : "l"(a), "l"(b));
    y[4 * threadIdx.x] = sum, y[4 * threadIdx.x + 1] = product, y[4 * threadIdx.x + 2] = fused, y[4 * threadIdx.x + 3] = rounded;
}
extern "C" __global__ void largest(const float* x, float* y)
{
    asm("max.f32 %0, %1, %2, %3;" : "=f"(y[2 * threadIdx.x]) : "f"(x[3 * threadIdx.x]), "f"(x[3 * threadIdx.x + 1]), "f"(x[3 * threadIdx.x + 2]));
    asm("min.f32 %0, %1, %2, %3;" : "=f"(y[2 * threadIdx.x + 1]) : "f"(x[3 * threadIdx.x]), "f"(x[3 * threadIdx.x + 1]), "f"(x[3 * threadIdx.x + 2]));
}
extern "C" __global__ void of_warp(const float* x, float* y)
{
    asm("redux.sync.max.f32 %0, %1, 0xFFFFFFFF;" : "=f"(y[4 * threadIdx.x]) : "f"(x[threadIdx.x]));
    asm("redux.sync.min.abs.f32 %0, %1, 0xFFFFFFFF;" : "=f"(y[4 * threadIdx.x + 1]) : "f"(x[threadIdx.x]));
    asm("redux.sync.max.NaN.f32 %0, %1, 0xFFFFFFFF;" : "=f"(y[4 * threadIdx.x + 2]) : "f"(x[threadIdx.x]));
    asm("redux.sync.min.f32 %0, %1, 0xFFFFFFFF;" : "=f"(y[4 * threadIdx.x + 3]) : "f"(__uint_as_float(0x7FFFFFFF)));
}
extern "C" __global__ void narrow(const float* x, unsigned short* y, u32* back)
{
    const float a = x[2 * threadIdx.x], b = x[2 * threadIdx.x + 1];
    unsigned short* to = y + 5 * threadIdx.x;
    u32* halves = back + 4 * threadIdx.x;
    asm("{ .reg .b8 d, z; cvt.rn.satfinite.e2m1x2.f32 d, %2, %3; mov.b16 {z, _}, 0; mov.b16 %0, {d, z}; cvt.rn.f16x2.e2m1x2 %1, d; }" : "=h"(to[0]), "=r"(halves[0]) : "f"(a), "f"(b));
    asm("cvt.rn.satfinite.e2m3x2.f32 %0, %2, %3; cvt.rn.f16x2.e2m3x2 %1, %0;" : "=&h"(to[1]), "=r"(halves[1]) : "f"(a), "f"(b));
    asm("cvt.rn.satfinite.relu.e3m2x2.f32 %0, %2, %3; cvt.rn.f16x2.e3m2x2 %1, %0;" : "=&h"(to[2]), "=r"(halves[2]) : "f"(a), "f"(b));
    asm("cvt.rz.satfinite.ue8m0x2.f32 %0, %2, %3; cvt.rn.bf16x2.ue8m0x2 %1, %0;" : "=&h"(to[3]), "=r"(halves[3]) : "f"(a), "f"(b));
    asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(to[4]) : "f"(a), "f"(b));
}
extern "C" __global__ void wide(const float* x, u64* y)
{
    u32 v[8];
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]) : "l"(x + 8 * threadIdx.x));
    u64 w[4];
    for (int i = 0; i < 4; i++) w[i] = v[2 * i] | (u64)v[2 * i + 1] << 32;
    asm volatile("st.global.v4.b64 [%0], {%1, %2, %3, %4};" :: "l"(y + 4 * threadIdx.x), "l"(w[0]), "l"(w[1]), "l"(w[2]), "l"(w[3]) : "memory");
}
extern "C" __global__ void four_rows(MAP from, MAP to, const int* rows)
{
    __shared__ alignas(128) float box[4][32];
    __shared__ u64 loaded;
    if (threadIdx.x) return;
    INIT(&loaded, 1);
    FENCE_INIT();
    ARRIVE_EXPECT(&loaded, (u32)sizeof box);
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" :: "r"(sm(box)), "l"(&from), "r"(0), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(sm(&loaded)) : "memory");
    WAIT(&loaded, 0);
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" :: "l"(&to), "r"(0), "r"(rows[4]), "r"(rows[5]), "r"(rows[6]), "r"(rows[7]), "r"(sm(box)) : "memory");
    COMMIT();
    WAIT_ALL(0);
}
extern "C" __global__ void next_cluster(int* y, int waits)
{
    __shared__ alignas(16) u64 answer[2];
    __shared__ u64 arrived;
    if (threadIdx.x) return;
    INIT(&arrived, 1);
    FENCE_INIT();
    ARRIVE_EXPECT(&arrived, 16);
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" :: "r"(sm(answer)), "r"(sm(&arrived)) : "memory");
    if (waits) WAIT(&arrived, 0);
    u32 more, x;
    asm volatile("{ .reg .pred p; .reg .b128 a; ld.shared.b128 a, [%2]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, a; selp.b32 %0, 1, 0, p; mov.b32 %1, 0; @p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, _, _, _}, a; }" : "=r"(more), "=r"(x) : "r"(sm(answer)) : "memory");
    if (!waits) WAIT(&arrived, 0);
    y[blockIdx.x] = 1 + more;
}
"""
Array = np.ndarray[Any, Any]


@functools.cache
def _module() -> Module:
    try:
        return parse_ptx(compile_source(PRELUDE + "#line 1\n" + SOURCE, name="k.cu", arch="sm_100a").ptx)
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


def _run(kernel: str, args: list[Any], grid: int = 1, **options: Any) -> Run:
    return simulate(_module(), kernel, grid, 32, args, RunOptions(**options))


def _random(*shape: int) -> Array:
    return (np.random.default_rng(3).standard_normal(shape) * 4).astype(np.float32)


def test_packed_floats_are_two_floats() -> None:
    x = _random(32, 3, 2)
    run = _run("packed", [x.view(np.uint64), np.zeros((32, 4), np.uint64)])
    total, product, fused, rounded = np.asarray(run.arrays[1]).view(np.float32).reshape(32, 4, 2).swapaxes(0, 1)
    a, b, c = x.swapaxes(0, 1)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(product, a * b)
    np.testing.assert_array_equal(fused, (a.astype(np.float64) * b + c).astype(np.float32))
    assert (np.abs(rounded) <= np.abs(a.astype(np.float64) + b)).all()
    np.testing.assert_allclose(rounded, a + b, rtol=2**-22)


def test_the_largest_and_least_of_three() -> None:
    x = _random(32, 3)
    run = _run("largest", [x, np.zeros((32, 2), np.float32)])
    np.testing.assert_array_equal(run.arrays[1], np.stack([x.max(axis=1), x.min(axis=1)], axis=1))


def test_the_largest_and_least_of_a_warp() -> None:
    x = _random(32)
    x[5] = np.nan
    right = [np.nanmax(x), np.nanmin(np.abs(x)), np.nan, np.nan]
    run = _run("of_warp", [x, np.zeros((32, 4), np.float32)])
    np.testing.assert_array_equal(run.arrays[1], np.tile(np.array(right, np.float32), (32, 1)))


def _nearest(x: Array, values: Array) -> Array:
    """The value that lies nearest to each number; the even code of two."""
    distance = np.abs(np.minimum(np.abs(x.astype(np.float64)), values[-1])[..., None] - values)
    tie = distance == distance.min(axis=-1, keepdims=True)
    even = tie & (np.arange(values.size) % 2 == 0)
    return np.copysign(values[np.where(even.any(axis=-1), even.argmax(axis=-1), distance.argmin(axis=-1))], x)


def test_conversions_to_narrow_types_and_back() -> None:
    x = np.concatenate([_random(30, 2), [[0.25, -0.75], [2.5, 1e9]]]).astype(np.float32)
    run = _run("narrow", [x, np.zeros((32, 5), np.uint16), np.zeros((32, 4), np.uint32)])
    codes, back = np.asarray(run.arrays[1]), np.asarray(run.arrays[2])
    of_e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    of_e2m3 = np.concatenate([np.arange(8) / 8, *(np.arange(8, 16) * 2.0 ** (e - 3) for e in range(3))])
    of_e3m2 = np.concatenate([np.arange(4) / 16, *(np.arange(4, 8) * 2.0 ** (e - 4) for e in range(7))])
    pairs = back[:, :3].copy().view(np.float16).reshape(32, 3, 2)[..., ::-1].astype(np.float64)
    np.testing.assert_array_equal(pairs[:, 0], _nearest(x, of_e2m1))
    np.testing.assert_array_equal(pairs[:, 1], _nearest(x, of_e2m3))
    np.testing.assert_array_equal(pairs[:, 2], _nearest(np.maximum(x, 0), of_e3m2))
    down, up = (np.stack([codes[:, i] >> 8, codes[:, i] & 255], axis=1).astype(int) - 127 for i in (3, 4))
    np.testing.assert_array_equal(down, np.floor(np.log2(np.abs(x))))
    np.testing.assert_array_equal(up, np.ceil(np.log2(np.abs(x))))
    scales = (back[:, 3:].copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)[:, ::-1]
    np.testing.assert_array_equal(scales, 2.0**down)


def test_accesses_of_32_bytes() -> None:
    x = _random(32, 8)
    run = _run("wide", [x, np.zeros((32, 4), np.uint64)])
    assert run.findings == []
    np.testing.assert_array_equal(np.asarray(run.arrays[1]).view(np.float32), x)
    assert [f.kind for f in _run("wide", [x[:-1], np.zeros((32, 4), np.uint64)]).findings] == ["out of bounds"]


def test_four_rows_are_gathered_and_scattered() -> None:
    x, rows = _random(40, 32), np.array([3, 30, 7, 39, 1, 0, 8, 5], np.int32)
    maps = [tw.TensorMap(x, (1, 32)), tw.TensorMap(np.zeros((10, 32), np.float32), (1, 32))]
    run = _run("four_rows", [*maps, rows])
    right = np.zeros((10, 32), np.float32)
    right[rows[4:]] = x[rows[:4]]
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


def test_a_request_for_a_cluster_is_refused_when_its_answer_arrives() -> None:
    run = _run("next_cluster", [np.zeros(3, np.int32), 1], grid=3)
    assert run.findings == []
    assert list(run.arrays[0]) == [1, 1, 1]
    assert "unwritten read" in [f.kind for f in _run("next_cluster", [np.zeros(3, np.int32), 0], grid=3).findings]
