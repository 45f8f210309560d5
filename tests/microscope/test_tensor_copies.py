"""The copy engine: ranges of bytes, boxes of arrays by tensor maps, stores and reductions, and planted defects."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from support.async_sources import found, run_async
from tilewright.simulator import Run

RNG = np.random.default_rng(18)

BULK = """(const float* x, float* y, int n) {
  __shared__ alignas(128) float buffer[256]; __shared__ u64 b;
  if (threadIdx.x == 0) {
    INIT(&b, 1);
    FENCE();
    ARRIVE_EXPECT(&b, 1024);
    LOAD(buffer, x + blockIdx.x * 256, 1024, &b);
  }
  __syncthreads();
  WAIT(&b, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x) buffer[i] *= 2;
  FENCE();
  __syncthreads();
  if (threadIdx.x == 0) {
    STORE(y + blockIdx.x * 256, buffer, 1024);
    COMMIT();
    WAIT_READ(0);
  }
  __syncthreads();
  buffer[threadIdx.x] = 0;
}"""


def bulk(source: str) -> tuple[Run, np.ndarray]:
    x = RNG.random((4, 256), dtype=np.float32)
    return run_async(source, [x, np.zeros_like(x), 256], 4, 128, outputs=[1]), 2 * x


def test_a_range_of_bytes_there_and_back() -> None:
    run, right = bulk(BULK)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


def test_stores_of_one_batch_of_blocks_do_not_disturb_the_next() -> None:
    """200 blocks of 128 threads run in two batches; each block adds to the same bytes when its own have been read."""
    source = """(float* y) {
  __shared__ alignas(128) float ones[64];
  ones[threadIdx.x % 64] = 1;
  FENCE();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" :: "l"(y), "r"(sm(ones)) : "memory");
    STORE(y + 64 + blockIdx.x * 64, ones, 256);
    COMMIT();
    WAIT_READ(0);
  }
}"""
    run = run_async(source, [np.zeros((201, 64), np.float32)], 200, 128, outputs=[0])
    assert run.findings == []
    assert run.arrays[0] is not None
    np.testing.assert_array_equal(run.arrays[0], np.repeat([200.0, 1.0], [64, 200 * 64]).reshape(201, 64))


#: What is replaced by what, and the lines and kinds of the findings.
DEFECTS: dict[str, tuple[str, str, list[tuple[int, str]]]] = {
    "no wait for the load": ("WAIT(&b, 0);", ";", [(11, "race"), (11, "unwritten read"), (15, "unwritten read")]),
    "one warp waits": ("WAIT(&b, 0);", "if (threadIdx.x < 32) WAIT(&b, 0);", [(11, "race"), (11, "unwritten read")]),
    "the other parity": (
        "WAIT(&b, 0);",
        "WAIT(&b, 1);",
        [(10, "wrong parity"), (11, "race"), (11, "unwritten read"), (15, "unwritten read")],
    ),
    "the initialisation is not fenced": ("    FENCE();", "    ;", [(7, "missing fence")]),
    "the writes are not fenced": ("  FENCE();\n  __sync", "  ;\n  __sync", [(15, "missing fence")]),
    "no barrier before the store": ("  FENCE();\n  __syncthreads();", "  FENCE();\n", [(15, "race")]),
    "no wait for the store": ("WAIT_READ(0);", ";", [(15, "race"), (20, "race")]),
    "the wait leaves one group": ("WAIT_READ(0);", "WAIT_READ(1);", [(15, "race"), (20, "race")]),
    "too few bytes expected": (
        "&b, 1024);\n    LOAD",
        "&b, 512);\n    LOAD",
        [(6, "byte count"), (10, "endless wait")],
    ),
    "too many bytes expected": (
        "&b, 1024);\n    LOAD",
        "&b, 2048);\n    LOAD",
        [(6, "byte count"), (10, "endless wait")],
    ),
    "a size of 1000 bytes": (
        *("1024, &b);\n  }", "1000, &b);\n  }"),
        [(6, "byte count"), (7, "misaligned"), (10, "endless wait")],
    ),
    "a misaligned target": (
        *("LOAD(buffer,", "LOAD(buffer + 1,"),
        [(7, "misaligned"), (11, "unwritten read")],
    ),
    "a target beyond the array": (
        *("LOAD(buffer,", "LOAD(buffer + 128,"),
        [(7, "out of bounds"), (11, "unwritten read")],
    ),
    "a source beyond the array": ("x + blockIdx.x * 256,", "x + blockIdx.x * 256 + 4,", [(7, "out of bounds")]),
    "the whole warp issues": (
        *("if (threadIdx.x == 0) {\n    STORE", "if (threadIdx.x < 32) {\n    STORE"),
        [(15, "race")],
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_at_its_line(name: str) -> None:
    good, bad, findings = DEFECTS[name]
    assert good in BULK
    run, _ = bulk(BULK.replace(good, bad, 1))
    assert [finding for finding in found(run) if finding[0]] == findings


# ---- boxes

BOXES = """(MAP a, MAP c, float* y, int x0, int y0) {
  __shared__ alignas(1024) unsigned char buffer[16384]; __shared__ u64 b;
  if (threadIdx.x == 0) {
    INIT(&b, 1);
    FENCE_INIT();
    ARRIVE_EXPECT(&b, BYTES);
    BOX(buffer, a, x0, y0, &b);
  }
  __syncthreads();
  WAIT(&b, 0);
  for (int i = threadIdx.x; i < BYTES / 4; i += blockDim.x) y[i] = ((float*)buffer)[i];
  if (threadIdx.x == 0) {
    STORE_BOX(c, x0, y0, buffer);
    COMMIT();
    WAIT_ALL(0);
  }
}"""


def clipped(array: np.ndarray, x0: int, y0: int, box: tuple[int, int], fill: float = 0) -> np.ndarray:
    """The box of an array whose first element is [y0, x0]."""
    out = np.full(box, fill, array.dtype)
    for i in range(box[0]):
        for j in range(box[1]):
            if 0 <= y0 + i < array.shape[0] and 0 <= x0 + j < array.shape[1]:
                out[i, j] = array[y0 + i, x0 + j]
    return out


def in_shared(box: np.ndarray, swizzle: int) -> np.ndarray:
    """The bytes of a box as they lie in shared memory at a multiple of 1024: chunk c of line r (of 128 bytes) moves to
    c xor (r mod 8), or with rows of 64 and 32 bytes to c xor (r mod 4) and c xor (r mod 2)."""
    flat = box.reshape(-1).view(np.uint8).reshape(-1, 16)
    out = np.empty_like(flat)
    for at in range(len(flat)):
        line, chunk = divmod(at, 8)
        flip = {0: 0, 128: line % 8, 64: line % 4, 32: line % 2}[swizzle]
        out[line * 8 + (chunk ^ flip)] = flat[at]
    return out.reshape(-1)


@pytest.mark.parametrize(
    ("swizzle", "box", "x0", "y0"),
    [
        *((swizzle, (32, swizzle // 4), 0, 0) for swizzle in (32, 64, 128)),
        *(
            (0, (16, 64), 0, 0),
            (0, (8, 4), 4, 3),
            (128, (16, 32), 48, 30),
            (64, (8, 16), 52, 38),
            (32, (8, 8), 100, 99),
        ),
    ],
)
def test_boxes_of_a_matrix(swizzle: int, box: tuple[int, int], x0: int, y0: int) -> None:
    a = RNG.random((40, 64), dtype=np.float32)
    made, right = np.zeros_like(a), np.zeros_like(a)
    maps = [tw.TensorMap(x, box, swizzle=swizzle) for x in (a, made)]
    source = BOXES.replace("BYTES", str(4 * box[0] * box[1]))
    run = run_async(source, [*maps, np.zeros(box, np.float32), np.int32(x0), np.int32(y0)])
    assert run.findings == []
    expected = clipped(a, x0, y0, box)
    np.testing.assert_array_equal(run.arrays[2].reshape(-1).view(np.uint8), in_shared(expected, swizzle))
    inside = np.s_[max(0, y0) : max(0, min(40, y0 + box[0])), max(0, x0) : max(0, min(64, x0 + box[1]))]
    right[inside] = a[inside]
    np.testing.assert_array_equal(run.arrays[1], right)


STORE_PART = """(MAP c) {
  __shared__ alignas(1024) float box[8][16];
  if (threadIdx.x < 64) box[threadIdx.x / 8][threadIdx.x % 8] = threadIdx.x;
  FENCE();
  __syncthreads();
  if (threadIdx.x == 0) {
    STORE_BOX(c, 8, 0, box);
    COMMIT();
    WAIT_ALL(0);
  }
}"""


def test_a_store_needs_only_what_lies_inside_the_tensor() -> None:
    c = np.zeros((8, 16), np.float32)
    run = run_async(STORE_PART, [tw.TensorMap(c, (8, 16))], 1, 64)
    assert found(run) == []
    np.testing.assert_array_equal(run.arrays[0][:, 8:], np.arange(64).reshape(8, 8))
    run = run_async(STORE_PART.replace("< 64", "< 56"), [tw.TensorMap(c, (8, 16))], 1, 64)
    assert found(run) == [(7, "unwritten read")]
