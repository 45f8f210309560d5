"""Whole kernels in the microscope: right results, no findings; divergence, calls, collectives, every space."""

# ruff: noqa: E501, ARG002 - CUDA keeps its own lines

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cuda_sources import HEAD, compiled, execute
from tilewright.simulator import RunOptions, simulate

DATA = Path(__file__).parents[1] / "data"
RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.random(shape, dtype=np.float32) * 2 - 1


class Counting:
    """An observer that counts what it is told."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}

    def on_access(self, space: str, kind: str, ins: Any, warps: Any, lanes: Any, addresses: Any, nbytes: int) -> None:
        assert warps.shape == lanes.shape == addresses.shape
        assert ins.line or ins.file == ""
        key = (space, kind)
        self.requests[key] = self.requests.get(key, 0) + np.unique(warps).size


@pytest.mark.parametrize("name", ["naive", "swapped", "tiled", "tile2d", "vec"])
def test_five_kernels(name: str) -> None:
    ptx = compiled((DATA / "five.cu").read_text(), "five.cu")
    n = 64
    a, b = floats(n, n), floats(n, n)
    flat = name in ("tile2d", "vec")
    seen = Counting()
    grid, block = ((n // 64, n // 64), 64) if flat else ((n // 32, n // 32), (32, 32))
    run = simulate(
        ptx, name, grid, block, [a, b, np.full_like(a, np.nan), n, n, n], RunOptions(outputs=[2], observer=seen)
    )
    assert run.findings == []
    assert run.blocks_run == run.blocks_total
    c = run.arrays[2]
    assert c is not None
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, atol=1e-5)
    loads = {"naive": 16384, "swapped": 16384, "tiled": 512, "tile2d": 256, "vec": 64}
    assert seen.requests["global", "ld"] == loads[name]


def test_sampled_blocks() -> None:
    a, b = floats(64, 64), floats(64, 64)
    ptx = compiled((DATA / "five.cu").read_text(), "five.cu")
    run = simulate(
        ptx, "naive", (2, 2), (32, 32), [a, b, np.zeros_like(a), 64, 64, 64], RunOptions(outputs=[2], blocks=[3])
    )
    assert run.sampled
    assert run.blocks_run == 1
    assert not run.findings
    c = run.arrays[2]
    assert c is not None
    assert not c[:32].any()
    np.testing.assert_allclose(c[32:, 32:], (a.astype(np.float64) @ b)[32:, 32:], atol=1e-5)


def test_divergence() -> None:
    source = (
        HEAD
        + """(const int* x, int* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      int v = x[i], s = 0;
      for (int j = 0; j < v; j++) { if (j % 3 == 0) { if (j % 2) s += j; else s -= 2 * j; } else if (j == 11) break; }
      switch (v & 7) { case 0: s += 1; break; case 1: s *= 3; break; case 2: s ^= 77; break; case 3: s -= v; break;
                       case 5: s = -s; break; default: s += 1000; }
      while (s > 50) s -= 7;
      y[i] = s; }"""
    )
    x = RNG.integers(0, 40, 1000).astype(np.int32)
    run = execute(source, [x, np.zeros_like(x), 1000], grid=8, block=128, outputs=[1])

    def one(v: int) -> int:
        s = 0
        for j in range(v):
            if j % 3 == 0:
                s += j if j % 2 else -2 * j
            elif j == 11:
                break
        s = {0: s + 1, 1: s * 3, 2: s ^ 77, 3: s - v, 5: -s}.get(v & 7, s + 1000)
        while s > 50:
            s -= 7
        return s

    assert not run.findings
    assert run.arrays[1] is not None
    assert run.arrays[1].tolist() == [one(v) for v in x.tolist()]


def test_device_functions() -> None:
    source = (
        """__device__ __noinline__ float twice(float x) { return x > 0 ? 2 * x : -x; }
    __device__ __noinline__ float both(float x, const float* p) { if (x > 0.5f) return twice(*p); return twice(x) + 1; }
    """
        + HEAD
        + "(const float* x, float* y) { int i = threadIdx.x; y[i] = both(x[i], x + (i ^ 1)) + twice(x[i]); }"
    )
    x = floats(64)

    def twice(v: np.ndarray) -> np.ndarray:
        return np.where(v > 0, 2 * v, -v)

    run = execute(source, [x, np.zeros_like(x)], outputs=[1])
    want = np.where(x > 0.5, twice(x[np.arange(64) ^ 1]), twice(x) + np.float32(1)) + twice(x)
    assert not run.findings
    np.testing.assert_array_equal(run.arrays[1], want)


def test_warp_collectives_and_atomics() -> None:
    source = (
        """extern __shared__ int box[];
    """
        + HEAD
        + """(const int* x, int* sum, int* count, unsigned* ballots) {
      int i = threadIdx.x, v = x[i];
      for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
      if (i < 8) box[i] = 0;
      __syncthreads();
      if (i % 32 == 0) atomicAdd(&box[0], v);
      atomicMax(&box[1], x[i]);
      unsigned b = __ballot_sync(~0u, x[i] > 0);
      if (i % 32 == 0) ballots[i / 32] = b;
      int positive = __syncthreads_count(x[i] > 0);
      if (i == 0) { sum[0] = box[0]; sum[1] = box[1]; sum[2] = positive; }
      count[i] = atomicAdd(&sum[3], 1); }"""
    )
    x = RNG.integers(-50, 50, 128).astype(np.int32)
    zeros = np.zeros(128, np.int32)
    run = execute(
        source, [x, zeros[:4].copy(), zeros, np.zeros(4, np.uint32)], block=128, shared_bytes=32, outputs=[1, 2, 3]
    )
    assert not run.findings
    assert run.arrays[1] is not None
    assert run.arrays[1].tolist() == [x.sum(), x.max(), (x > 0).sum(), 128]
    assert sorted(run.arrays[2].tolist()) == list(range(128))
    bits = ((x > 0).reshape(4, 32) * (1 << np.arange(32, dtype=np.uint64))).sum(axis=1)
    assert run.arrays[3].tolist() == bits.tolist()


MMA = [
    ("m16n8k8", "tf32", "f32", 16, 8), ("m16n8k16", "bf16", "f32", 16, 16), ("m16n8k16", "f16", "f32", 16, 16),
    ("m16n8k8", "f16", "f32", 16, 8), ("m8n8k4", "f64", "f64", 8, 4), ("m16n8k16", "f64", "f64", 16, 16),
    ("m16n8k32", "s8", "s32", 16, 32),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "kind", "total", "m", "k"), MMA, ids=[f"{a}-{b}" for a, b, *_ in MMA])
def test_mma(shape: str, kind: str, total: str, m: int, k: int) -> None:
    """Fragments are laid out as PTX's tables say, one element at a time; values are small integers, exact in all types."""
    a, b, c = (RNG.integers(-4, 5, s) for s in ((m, k), (k, 8), (m, 8)))
    e = {"tf32": 1, "f64": 1, "s8": 4}.get(kind, 2)
    word = np.uint64 if kind == "f64" else np.uint32

    def bits(values: np.ndarray) -> np.ndarray:
        real = {"tf32": np.float32, "f64": np.float64, "s8": np.int8, "f16": np.float16}.get(kind)
        if real is None:  # bf16: the upper half of a float
            return np.ascontiguousarray((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)).view(word)[
                ..., 0
            ]
        return np.ascontiguousarray(values.astype(real)).view(word)[..., 0]

    lane, j = np.arange(32)[:, None], np.arange(e)
    ra, rb, rc = m * k // 32 // e, k * 8 // 32 // e, m * 8 // 32
    A = np.stack(
        [bits(a[lane // 4 + 8 * (r % (m // 8)), lane % 4 * e + j + 4 * e * (r // (m // 8))]) for r in range(ra)]
    )
    B = np.stack([bits(b[lane % 4 * e + j + 4 * e * r, lane // 4 + 0 * j]) for r in range(rb)])
    real = {"f32": np.float32, "f64": np.float64, "s32": np.int32}[total]
    L = np.arange(32)
    C = np.stack([c[L // 4 + 8 * (r // 2), 2 * (L % 4) + r % 2].astype(real) for r in range(rc)])
    w = 8 if kind == "f64" else 4
    load = "".join(
        f"ld.param.u64 %rd{i}, [p{i}]; add.s64 %rd{i}, %rd{i}, %rd9;"
        + "".join(f"ld.global.b{8 * w} %{n}{r}, [%rd{i}+{32 * w * r}];" for r in range(count))
        for i, (n, count) in enumerate((("a", ra), ("b", rb), ("c", rc)))
    )
    lists = [
        "{" + ",".join(f"%{n}{r}" for r in range(x)) + "}" for n, x in (("c", rc), ("a", ra), ("b", rb), ("c", rc))
    ]
    store = "".join(f"st.global.b{8 * w} [%rd2+{32 * w * r}], %c{r};" for r in range(rc))
    ptx = (
        ".version 8.5\n.target sm_90\n.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n{\n"
        f".reg .b64 %rd<10>; .reg .b32 %r<3>; .reg .b{8 * w} %a<9>; .reg .b{8 * w} %b<9>; .reg .b{8 * w} %c<9>;\n"
        f"mov.u32 %r1, %tid.x; mul.wide.u32 %rd9, %r1, {w};\n{load}\n"
        f"mma.sync.aligned.{shape}.row.col.{total}.{kind}.{kind}.{total} {', '.join(lists)};\n{store}\nret;\n}}\n"
    )
    run = simulate(ptx, "k", 1, 32, [A, B, C])
    D = a @ b + c
    want = np.stack([D[L // 4 + 8 * (r // 2), 2 * (L % 4) + r % 2] for r in range(rc)])
    assert not run.findings
    np.testing.assert_array_equal(run.arrays[2], want)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(trans: str) -> None:
    source = (
        HEAD
        + """(const unsigned short* x, unsigned* y) {
      __shared__ __align__(16) unsigned short s[256];
      for (int i = 0; i < 8; i++) s[threadIdx.x * 8 + i] = x[threadIdx.x * 8 + i];
      __syncthreads();
      unsigned a = __cvta_generic_to_shared(s + threadIdx.x * 8), r0, r1, r2, r3;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4TRANS.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a));
      y[threadIdx.x] = r0; y[32 + threadIdx.x] = r1; y[64 + threadIdx.x] = r2; y[96 + threadIdx.x] = r3; }"""
    )
    x = np.arange(256, dtype=np.uint16)
    run = execute(source.replace("TRANS", trans), [x, np.zeros(128, np.uint32)], block=32, outputs=[1])
    tiles = x.reshape(4, 8, 8)
    assert not run.findings
    assert run.arrays[1] is not None
    want = tiles.transpose(0, 2, 1) if trans else tiles
    np.testing.assert_array_equal(run.arrays[1].view(np.uint16).reshape(4, 8, 8), want)


ASYNC = (
    HEAD
    + """(const float* x, float* y) {
  __shared__ __align__(16) float s[256];
  unsigned a = __cvta_generic_to_shared(s + threadIdx.x * 4);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(x + threadIdx.x * 4));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group WAIT;" ::: "memory"); // wait
  __syncthreads();
  y[threadIdx.x] = s[255 - threadIdx.x]; // read
}"""
)


def test_asynchronous_copy() -> None:
    x = floats(256)
    run = execute(ASYNC.replace("WAIT", "0"), [x, np.zeros(64, np.float32)], outputs=[1])
    assert not run.findings
    np.testing.assert_array_equal(run.arrays[1], x[:191:-1])


def test_every_space() -> None:
    """Local arrays indexed at run time, constants, module variables with values, and pointers of unknown space."""
    source = (
        """__constant__ float table[4] = {1.5f, -2.f, 3.f, 0.25f};
    __device__ int offsets[3] = {7, 8, 9};
    """
        + HEAD
        + """(const int* x, float* y, double factor) {
      __shared__ float s[64];
      int i = threadIdx.x, local[16];
      for (int j = 0; j < 16; j++) local[(j * 5 + x[i]) & 15] = j * i;
      s[i] = local[x[i] & 15];
      float* p = x[i] & 1 ? s + i : y + i;
      if (!(x[i] & 1)) y[i] = s[i];
      *p = *p + 1;
      y[i] = (s[i] + offsets[x[i] % 3]) * table[x[i] & 3] * (float)factor + (x[i] & 1 ? 0 : y[i]); }"""
    )
    x = RNG.integers(0, 100, 64).astype(np.int32)
    run = execute(source, [x, np.zeros(64, np.float32), 2.0], outputs=[1])
    want = []
    for i, v in enumerate(x.tolist()):
        local = {(j * 5 + v) & 15: j * i for j in range(16)}[v & 15]
        s, y = (local + 1, 0) if v & 1 else (local, local + 1)
        want.append((s + (7, 8, 9)[v % 3]) * (1.5, -2.0, 3.0, 0.25)[v & 3] * 2 + y)
    assert not run.findings
    assert run.arrays[1] is not None
    assert run.arrays[1].tolist() == want


def test_match_redux_and_other_shuffles() -> None:
    source = (
        HEAD
        + """(const unsigned* x, unsigned* y) {
      int i = threadIdx.x;
      unsigned *o = y + i * 8, all = ~0u;
      o[0] = __match_any_sync(all, x[i] & 3);
      o[1] = __reduce_add_sync(all, x[i]); o[2] = __reduce_min_sync(all, x[i]); o[3] = __reduce_xor_sync(all, x[i]);
      o[4] = __shfl_up_sync(all, x[i], 3); o[5] = __shfl_down_sync(all, x[i], 5, 8); o[6] = __shfl_sync(all, x[i], 9);
      o[7] = i % 32 < 7 ? __activemask() : (__all_sync(~127u, x[i] < 100) << 1 | __any_sync(~127u, x[i] > 98)); }"""
    )
    x = RNG.integers(0, 100, 64).astype(np.uint32)
    run = execute(source, [x, np.zeros((64, 8), np.uint32)], outputs=[1])
    assert not run.findings
    assert run.arrays[1] is not None
    for i, row in enumerate(run.arrays[1].tolist()):
        warp, lane = x[i // 32 * 32 : i // 32 * 32 + 32].tolist(), i % 32
        down = lane + 5 if lane % 8 < 3 else lane
        rest = 2 + any(v > 98 for v in warp[7:])
        assert row == [
            sum(1 << j for j, v in enumerate(warp) if v & 3 == warp[lane] & 3), sum(warp), min(warp),
            int(np.bitwise_xor.reduce(warp)), warp[lane - 3] if lane >= 3 else warp[lane], warp[down], warp[9],
            127 if lane < 7 else rest,
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["float", "double", "unsigned", "unsigned long long"])
def test_atomic_results(kind: str) -> None:
    source = (
        HEAD
        + f"({kind}* sum, {kind}* old) {{ int i = threadIdx.x; old[i] = atomicAdd(sum + i % 3, ({kind})(i + 1)); atomicAdd(sum + 3, old[i]); }}"
    )
    dtype = {"float": np.float32, "double": np.float64, "unsigned": np.uint32}.get(kind, np.uint64)
    run = execute(source, [np.zeros(4, dtype), np.zeros(64, dtype)], outputs=[0, 1])
    totals, old = [0] * 4, []
    for i in range(64):
        old.append(totals[i % 3])
        totals[i % 3] += i + 1
        totals[3] += old[-1]
    assert not run.findings
    assert run.arrays[0] is not None
    assert run.arrays[0].tolist() == totals
    assert run.arrays[1].tolist() == old
