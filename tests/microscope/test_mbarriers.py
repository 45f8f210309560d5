"""Barriers in shared memory that count arrivals and bytes: rings of stages, every form, planted defects."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import numpy as np
import pytest

from support.async_sources import found, ring, run_async

RNG = np.random.default_rng(17)

#: A producer warp fills stages by plain stores; three consumer warps add them up.
RING = """(const float* x, float* y, int n) {
  __shared__ float buffer[4][32]; __shared__ u64 full[4], empty[4];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32; float sum = 0;
  if (threadIdx.x == 0) for (int i = 0; i < 4; i++) { INIT(&full[i], 32); INIT(&empty[i], 96); }
  __syncthreads();
  if (warp == 0) for (int i = 0; i < n; i++) {
    int s = i % 4;
    WAIT(&empty[s], (i / 4 & 1) ^ 1);
    buffer[s][lane] = x[(blockIdx.x * n + i) * 32 + lane];
    ARRIVE(&full[s]);
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


def test_a_ring_of_stages() -> None:
    run, right = ring(RING)
    assert run.findings == []
    assert run.arrays[1] is not None
    np.testing.assert_array_equal(run.arrays[1], right)
    assert run.steps < 2000, "threads that wait must rest"


def test_a_wait_for_a_later_stage_orders_the_earlier_ones_too() -> None:
    run, right = ring(RING.replace("WAIT(&full[s]", "WAIT(&full[(s + 1) % 4]"))
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


FORMS = """(u64* out) {
  __shared__ u64 b; u64 state = 0, again; u32 pending, done = 0;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.b64 [%0], %1;" :: "l"(&b), "r"(64) : "memory");
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(sm(&b)) : "memory");
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
    out[threadIdx.x] = pending;
    asm volatile("{ .reg .pred P; mbarrier.test_wait.shared::cta.b64 P, [%1], %2; selp.u32 %0, 1, 0, P; }" : "=r"(done) : "r"(sm(&b)), "l"(state) : "memory");
    out[32 + threadIdx.x] = done;
  }
  __syncthreads();
  if (threadIdx.x < 16) asm volatile("mbarrier.arrive_drop.b64 %0, [%1], 2;" : "=l"(again) : "l"(&b) : "memory");
  if (threadIdx.x < 32) {
    while (!done) asm volatile("{ .reg .pred P; mbarrier.test_wait.acquire.cta.b64 P, [%1], %2; selp.u32 %0, 1, 0, P; }" : "=r"(done) : "l"(&b), "l"(state) : "memory");
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(sm(&b)) : "memory");
    asm volatile("{ .reg .pred P; L: mbarrier.try_wait.acquire.cta.shared::cta.b64 P, [%0], %1, 1000; @!P bra L; }" :: "r"(sm(&b)), "l"(state) : "memory");
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
    out[64 + threadIdx.x] = pending;
  }
  __syncthreads();
  if (threadIdx.x == 0) INVAL(&b);
}"""


def test_every_form() -> None:
    """Generic and shared addresses, states, counts, arrivals that are dropped (64 - 16 x 2 = 32 remain)."""
    run = run_async(FORMS, [np.zeros(96, np.uint64)], 1, 64, outputs=[0])
    assert run.findings == []
    assert run.arrays[0] is not None
    pending, done, later = run.arrays[0].reshape(3, 32)
    assert sorted(pending.tolist()) == list(range(33, 65))
    assert not done.any()
    assert sorted(later.tolist()) == list(range(1, 33))


def test_asynchronous_copies_arrive() -> None:
    """``cp.async.mbarrier.arrive``: others may read the copies of a thread when they have waited for the barrier."""
    source = """(const float* x, float* y) {
  __shared__ float buffer[64]; __shared__ u64 b;
  if (threadIdx.x == 0) INIT(&b, COUNT);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(sm(buffer + threadIdx.x)), "l"(x + threadIdx.x) : "memory");
  asm volatile("cp.async.mbarrier.arriveNOINC.shared::cta.b64 [%0];" :: "r"(sm(&b)) : "memory");
  ALSO
  WAIT(&b, 0);
  y[threadIdx.x] = buffer[63 - threadIdx.x];
}"""
    x = np.arange(64, dtype=np.float32)
    right = source.replace("NOINC", ".noinc").replace("COUNT", "64").replace("ALSO", "")
    also = source.replace("NOINC", "").replace("COUNT", "64").replace("ALSO", "ARRIVE(&b);")
    for text in (right, also):
        run = run_async(text, [x, np.zeros(64, np.float32)], 1, 64, outputs=[1])
        assert run.findings == []
        np.testing.assert_array_equal(run.arrays[1], x[::-1])
    run = run_async(right.replace("WAIT(&b, 0);", "__syncthreads();"), [x, np.zeros(64, np.float32)], 1, 64)
    assert found(run) == [(9, "unwritten read")]


#: What is replaced by what, and the lines and kinds of the findings.
DEFECTS: dict[str, tuple[str, str, list[tuple[int, str]]]] = {
    "consumers do not wait": (
        *("WAIT(&full[s], i / 4 & 1);", ""),
        [(8, "endless wait"), (15, "unwritten read")],
    ),
    "the producer does not wait": ("WAIT(&empty[s], (i / 4 & 1) ^ 1);", "", [(14, "endless wait")]),
    "consumers do not arrive": ("ARRIVE(&empty[s]);", "", [(8, "endless wait"), (14, "endless wait")]),
    "one lane of each warp arrives": (
        *("ARRIVE(&empty[s]);", "if (!lane) ARRIVE(&empty[s]);"),
        [(8, "endless wait"), (14, "endless wait")],
    ),
    "consumers wait for one parity": (
        *("WAIT(&full[s], i / 4 & 1);", "WAIT(&full[s], 0);"),
        [(8, "endless wait"), (14, "wrong parity")],
    ),
    "no barrier after the initialisation": (
        *("__syncthreads();", ""),
        [(8, "race"), (10, "race"), (14, "race")],
    ),
    "a count too small": (
        *("INIT(&full[i], 32)", "INIT(&full[i], 16)"),
        [(8, "endless wait"), (14, "endless wait")],
    ),
    "never initialised": (
        *("if (threadIdx.x == 0)", "if (threadIdx.x == 999)"),
        [
            *((8, "barrier misuse"), (9, "race"), (10, "barrier misuse")),
            *((14, "barrier misuse"), (15, "unwritten read"), (16, "barrier misuse")),
        ],
    ),
    "initialised twice": (
        *("  __syncthreads();", "  __syncthreads(); if (threadIdx.x == 0) INIT(&full[1], 32); __syncthreads();"),
        [(5, "barrier misuse")],
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_at_its_line(name: str) -> None:
    good, bad, findings = DEFECTS[name]
    assert good in RING
    run, _ = ring(RING.replace(good, bad, 1))
    assert found(run) == findings


def text_of(name: str, line: int) -> str:
    good, bad, _ = DEFECTS[name]
    return next(f.text for f in ring(RING.replace(good, bad, 1))[0].findings if f.line == line)


def test_a_deadlock_says_who_waits_for_what() -> None:
    text = text_of("one lane of each warp arrives", 14)
    assert "96 threads of the block wait for ever: warps 1 to 3 wait at line 14 for phase 1 (parity 1) of " in text
    assert (
        "the barrier at byte 0 of shared full (32 bytes), which lacks 32 of 32 arrivals. Meanwhile warp 0 waits" in text
    )
    assert "at line 8 for phase 0 (parity 0) of the barrier at byte 0 of shared empty" in text
    assert "which lacks 93 of 96 arrivals" in text


def test_a_phase_that_was_missed_is_named() -> None:
    assert "of its 4 completed phases warp 1 waited for none (overtaken, or a wrong parity)" in text_of(
        "the producer does not wait", 14
    )


def test_a_deadlock_counts_who_waits_at_a_barrier_of_the_block() -> None:
    source = """(int x) {
      __shared__ u64 b;
      if (threadIdx.x == 0) INIT(&b, 1);
      __syncthreads();
      if (threadIdx.x < 32) WAIT(&b, 0);
      __syncthreads();
    }"""
    run = run_async(source, [0], 1, 96)
    assert found(run) == [(5, "endless wait")]
    assert "1 of 1 arrivals. Meanwhile 64 threads wait at __syncthreads() or another barrier" in run.findings[0].text
    assert not run.complete
