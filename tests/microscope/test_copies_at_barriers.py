"""Rings of stages that ``cp.async`` fills, whose copies arrive at an mbarrier by themselves; planted defects."""

from __future__ import annotations

import numpy as np
import pytest

from support.async_sources import found, ring, run_async

#: A producer warp copies into stages and runs ahead; three consumer warps add them up.
RING = """(const float* x, float* y, int n) {
  __shared__ float buffer[4][32]; __shared__ u64 full[4], empty[4];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32; float sum = 0;
  if (threadIdx.x == 0) for (int i = 0; i < 4; i++) { INIT(&full[i], 32); INIT(&empty[i], 96); }
  __syncthreads();
  if (warp == 0) for (int i = 0; i < n; i++) {
    int s = i % 4;
    WAIT(&empty[s], (i / 4 & 1) ^ 1);
    COPY(&buffer[s][lane], &x[(blockIdx.x * n + i) * 32 + lane]);
    ARRIVE_AFTER_COPIES(&full[s]);
  } else {
    for (int i = 0; i < n; i++) {
      int s = i % 4;
      WAIT(&full[s], i / 4 & 1);
      sum += buffer[s][(lane + warp) % 32];
      ARRIVE(&empty[s]);
    }
    y[blockIdx.x * 96 + threadIdx.x - 32] = sum;
  }
}"""


def test_the_copies_of_a_ring_arrive_by_themselves() -> None:
    run, right = ring(RING)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


def test_an_arrival_stands_for_all_earlier_copies_of_the_thread() -> None:
    """Copies of two stages, one arrival at the second stage's barrier."""
    source = RING.replace("ARRIVE_AFTER_COPIES(&full[s])", "if (i % 2) ARRIVE_AFTER_COPIES(&full[s])")
    run, right = ring(source.replace("WAIT(&full[s]", "WAIT(&full[s | 1]"))
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


def test_an_arrival_does_not_stand_for_later_copies_to_the_same_bytes() -> None:
    """The arrival at the second barrier is also one of the first copy to stage 0, not of the second, which lacks one."""
    source = """(const float* x, float* y) {
  __shared__ float buffer[2][64]; __shared__ u64 b[2]; float sum = 0;
  if (threadIdx.x < 2) INIT(&b[threadIdx.x], 64);
  __syncthreads();
  #pragma unroll 1
  for (int i = 0; i < 3; i++) {
    COPY(&buffer[i % 2][threadIdx.x], &x[64 * i + threadIdx.x]);
    if (i < LAST) ARRIVE_AFTER_COPIES(&b[i % 2]);
    if (i == 1) { WAIT(&b[0], 0); sum = buffer[0][63 - threadIdx.x]; __syncthreads(); }
  }
  WAIT(&b[1], 0);
  if (LAST == 3) WAIT(&b[0], 1);
  y[threadIdx.x] = sum + buffer[0][63 - threadIdx.x];
}"""
    x = np.arange(192, dtype=np.float32)
    right = run_async(source.replace("LAST", "3"), [x, np.zeros(64, np.float32)], 1, 64, outputs=[1])
    assert right.findings == []
    np.testing.assert_array_equal(right.arrays[1], x[63::-1] + x[:127:-1])
    wrong = run_async(source.replace("LAST", "2"), [x, np.zeros(64, np.float32)], 1, 64)
    assert found(wrong) == [(13, "unwritten read")]


#: What is replaced by what, and the lines and kinds of the findings.
DEFECTS: dict[str, tuple[str, str, list[tuple[int, str]]]] = {
    "no arrival": ("ARRIVE_AFTER_COPIES(&full[s]);", "", [(8, "endless wait"), (14, "endless wait")]),
    "an arrival that does not wait for the copies": (
        "ARRIVE_AFTER_COPIES(&full[s])",
        "ARRIVE(&full[s])",
        [(9, "race"), (15, "unwritten read")],
    ),
    "an arrival before the copy": (
        "COPY(&buffer[s][lane], &x[(blockIdx.x * n + i) * 32 + lane]);\n    ARRIVE_AFTER_COPIES(&full[s]);",
        "ARRIVE_AFTER_COPIES(&full[s]);\n    COPY(&buffer[s][lane], &x[(blockIdx.x * n + i) * 32 + lane]);",
        [(10, "race"), (15, "unwritten read")],
    ),
    "one lane arrives": (
        "ARRIVE_AFTER_COPIES(&full[s])",
        "if (!lane) ARRIVE_AFTER_COPIES(&full[s])",
        [(8, "endless wait"), (14, "endless wait")],
    ),
    "consumers wait for the first round only": (
        "WAIT(&full[s], i / 4 & 1)",
        "if (i < 4) WAIT(&full[s], 0)",
        [(8, "endless wait")],
    ),
    "the producer does not wait": (
        "WAIT(&empty[s], (i / 4 & 1) ^ 1);",
        "",
        [(9, "race"), (14, "endless wait")],
    ),
    "stages are given back before they are read": (
        "sum += buffer[s][(lane + warp) % 32];\n      ARRIVE(&empty[s]);",
        "ARRIVE(&empty[s]);\n      sum += buffer[s][(lane + warp) % 32];",
        [(9, "race")],
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_at_its_line(name: str) -> None:
    good, bad, findings = DEFECTS[name]
    assert good in RING
    run, _ = ring(RING.replace(good, bad, 1))
    assert found(run) == findings
