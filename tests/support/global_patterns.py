"""One-warp patterns of global memory for kernels of ``data/patterns.cu``: atomics whose lanes meet, copies past L1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Kernel → bytes a lane.
ATOMICS = {"red4": 4, "redf4": 4, "red8": 8, "atom4": 4, "atomcas4": 4, "atom8": 8}
#: The kernel that copies 16 bytes a lane past L1.
COPY = "move16"
#: Of global memory: the largest offset, and a copy from there, lie within it.
BYTES = 1 << 17

LANE = np.arange(32)


def _atomics(nbytes: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name, and offset of each lane in units of the access; negative for a lane that is not active."""
    rng = np.random.default_rng(nbytes)
    sector = 32 // nbytes
    yield from {
        "consecutive": LANE, "the same": 0 * LANE, "pairs": LANE // 2, "fours": LANE // 4, "halves": LANE % 16,
        "two words": LANE % 2, "lane & ~2": LANE & ~2, "stride 2": 2 * LANE, "one a sector": sector * LANE,
        "one a line": 4 * sector * LANE, "pairs a line apart": 4 * sector * (LANE // 2), "one later": LANE + 1,
        "five on one": np.where(LANE < 5, 0, -1), "five on one, others on their own": np.where(LANE < 5, 0, LANE),
        "two sectors": LANE % 2 * sector + LANE // 16,
    }.items()  # fmt: skip
    for most in (12, 64, 64, 4096):
        yield f"random below {most}", rng.integers(0, most, 32)
    yield "random of a random half", np.where(rng.random(32) < 0.5, rng.integers(0, 24, 32), -1)


def _copies() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, target and source of each lane in bytes. No two targets are the same: that would be a race."""
    rng = np.random.default_rng(16)
    targets = {"in a row": LANE, "in reverse": 31 - LANE, "apart": 2 * LANE, "in one bank": 8 * LANE,
               "anywhere": rng.permutation(96)[:32]}  # fmt: skip
    sources = {
        "in a row": 16 * LANE, "16 bytes later": 16 * LANE + 16, "the same": 0 * LANE, "pairs": LANE // 2 * 16,
        "lines": 128 * LANE, "every second": 32 * LANE, "rows of 64": 512 * (LANE // 4) + LANE % 4 * 16,
        "rows of 32": 512 * (LANE // 2) + LANE % 2 * 16, "swapped": 16 * (LANE ^ 1),
        "anywhere near": 16 * rng.integers(0, 32, 32), "anywhere": 16 * rng.integers(0, 512, 32),
    }  # fmt: skip
    for into, target in targets.items():
        for out_of, source in sources.items():
            yield f"{into} from {out_of}", 16 * target, source


def patterns() -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Kernel, name, and of each lane the byte offset and, for copies, that of its source: (32,) int32 each."""
    for kernel, nbytes in ATOMICS.items():
        for name, units in _atomics(nbytes):
            yield kernel, name, np.where(units < 0, -1, nbytes * units).astype(np.int32), np.zeros(32, np.int32)
    for name, target, source in _copies():
        yield COPY, name, target.astype(np.int32), source.astype(np.int32)
