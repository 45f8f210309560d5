"""Tensor maps behind a pointer, in an array, in structures and in variables of the module, and what does not fit them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.async_sources import compiled_async
from tilewright.errors import OperandError
from tilewright.simulator import Run, RunOptions, simulate

#: Each kernel loads boxes of 8 rows of 32 floats, from row ``top`` on, and adds them to y, or stores them by a map.
SOURCE = """
struct Pair { int n; TensorMap maps[2]; float scale; };
struct Params { const float* bias; Pair pair; };
__constant__ TensorMap constant_map;
__device__ TensorMap device_map;
DEV float box(const TensorMap& map, int top, float (&tile)[8][32], u64& barrier, int phase) {
  if (threadIdx.x == 0) { ARRIVE_EXPECT(&barrier, 1024); BOX(tile, map, 0, top, &barrier); }
  WAIT(&barrier, phase);
  float sum = 0;
  for (int row = 0; row < 8; row++) sum += tile[row][threadIdx.x];
  __syncthreads();
  return sum;
}
#define BEGIN __shared__ alignas(128) float tile[8][32]; __shared__ u64 barrier; \\
  if (threadIdx.x == 0) { INIT(&barrier, 1); FENCE_INIT(); } __syncthreads()
extern "C" __global__ void pointer(const TensorMap* map, float* y) {
  BEGIN;
  y[threadIdx.x] = box(*map, 8, tile, barrier, 0);
}
extern "C" __global__ void array(const TensorMap* maps, float* y, int n) {
  BEGIN;
  float sum = 0;
  for (int i = 0; i < n; i++) sum += (i + 1) * box(maps[i], 0, tile, barrier, i & 1);
  y[threadIdx.x] = sum;
}
extern "C" __global__ void value(const __grid_constant__ Params p, float* y) {
  BEGIN;
  float sum = p.bias[threadIdx.x];
  for (int i = 0; i < p.pair.n; i++) sum += (i + 1) * p.pair.scale * box(p.pair.maps[i], 0, tile, barrier, i & 1);
  y[threadIdx.x] = sum;
}
extern "C" __global__ void reference(const Params* p, float* y) {
  BEGIN;
  float sum = p->bias[threadIdx.x];
  for (int i = 0; i < p->pair.n; i++) sum += (i + 1) * p->pair.scale * box(p->pair.maps[i], 0, tile, barrier, i & 1);
  y[threadIdx.x] = sum;
}
extern "C" __global__ void variables(float* y) {
  BEGIN;
  float sum = box(constant_map, 0, tile, barrier, 0);
  y[threadIdx.x] = sum + 2 * box(device_map, 0, tile, barrier, 1);
}
extern "C" __global__ void copied(const TensorMap* maps) {
  BEGIN;
  box(maps[0], 0, tile, barrier, 0);
  FENCE();
  if (threadIdx.x == 0) { STORE_BOX(maps[1], 0, 8, tile); COMMIT(); WAIT_ALL(0); }
}
"""
A, B = (np.random.default_rng(seed).integers(0, 9, (16, 32)).astype(np.float32) for seed in (1, 2))
MAPS = [tw.TensorMap(each, (8, 32)) for each in (A, B)]
BIAS, OUT = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
BOTH = A[:8].sum(axis=0) + 2 * B[:8].sum(axis=0)
#: The members of Params: the map is aligned to 128 bytes, as the parameter is.
PARAMS = [BIAS, [np.int32(2), MAPS, np.float32(0.5)]]


def run(kernel: str, args: list[Any], **options: Any) -> Run:
    return simulate(compiled_async(SOURCE), kernel, 1, 32, args, RunOptions(**options))


@pytest.mark.parametrize(
    ("kernel", "args", "right"),
    [
        ("pointer", [MAPS[0], OUT], A[8:].sum(axis=0)),
        ("array", [MAPS, OUT, 2], BOTH),
        ("value", [PARAMS, OUT], BIAS + BOTH / 2),
        # Behind a pointer a map is aligned to 64 bytes, and this structure of the source to 128.
        ("reference", [[BIAS, bytes(120), np.int32(2), bytes(124), MAPS, np.float32(0.5)], OUT], BIAS + BOTH / 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_map_is_found_where_it_lies(kernel: str, args: list[Any], right: Any) -> None:
    seen = run(kernel, args, outputs=[1])
    assert [str(finding) for finding in seen.findings] == []
    np.testing.assert_array_equal(seen.arrays[1], right)


def test_variables_that_are_maps() -> None:
    seen = run("variables", [OUT], constants={"constant_map": MAPS[0], "device_map": MAPS[1]})
    assert seen.findings == []
    np.testing.assert_array_equal(seen.arrays[0], BOTH)


def test_what_a_map_of_an_array_stores_comes_back() -> None:
    seen = run("copied", [MAPS])
    assert seen.findings == []
    first, second = seen.arrays[0]
    np.testing.assert_array_equal(first, A)
    np.testing.assert_array_equal(second[8:], A[:8])
    np.testing.assert_array_equal(second[:8], B[:8])


def test_arrays_of_a_structure_come_back_in_lists_like_it() -> None:
    bias, (n, (first, second), scale) = run("value", [PARAMS, OUT]).arrays[0]
    assert (n, scale) == (None, None)
    assert [each is given for each, given in ((bias, BIAS), (first, A), (second, B))] == [True] * 3


def test_a_finding_names_the_array_of_a_map() -> None:
    seen = run("pointer", [tw.TensorMap(A[:8], (8, 32)), OUT])
    assert seen.findings == []  # rows beyond the array are zeros
    short = run("value", [[BIAS[:16], *PARAMS[1:]], OUT])
    assert [finding.kind for finding in short.findings] == ["out of bounds"]
    assert "of argument 0[0] (float32, shape (16,)" in short.findings[0].text


@pytest.mark.parametrize(
    ("kernel", "args", "words"),
    [
        (
            "value",
            [[BIAS, [np.int32(2), MAPS[0], np.float32(1)]], OUT],
            r"argument 0 is a list of \d+ bytes, .* has 640",
        ),
        ("value", [[BIAS, [2, MAPS, np.float32(1)]], OUT], r"argument 0\[1\]\[0\] is a int: a member of a list is"),
        ("value", [MAPS[0], OUT], "argument 0 is a TensorMap of 128 bytes, the kernel's parameter has 640"),
        ("array", [[MAPS, object()], OUT, 2], r"argument 0\[1\] is a object: "),
    ],
)
def test_what_does_not_fit_is_refused(kernel: str, args: list[Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        run(kernel, args)
