"""One-warp patterns of shared memory: byte offsets of 32 lanes for each kernel of ``data/patterns.cu``.

They tell apart what the first 360 patterns (``data/shared-memory-wavefronts-h200.jsonl``) left open: lanes that are not
active, halves that merge each on its own, narrow words, atomics, copies past the registers, rows of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Kernel → bytes a lane. Of the matrix kernels only the first 8, 16 or 32 lanes give an address.
ACCESSES = {
    "ld1": 1, "ld2": 2, "ld4": 4, "ld8": 8, "ld16": 16,
    "st1": 1, "st2": 2, "st4": 4, "st8": 8, "st16": 16,
    "add4": 4, "max4": 4, "one4": 4, "cas4": 4, "cas8": 8, "exch8": 8,
    "copy4": 4, "copy8": 8, "copy16": 16, "bypass16": 16,
}  # fmt: skip
MATRICES = ["ldsm1", "ldsm1t", "ldsm2", "ldsm4", "ldsm4t", "stsm1", "stsm2", "stsm4", "stsm4t"]
#: Dynamic shared memory of each launch, in bytes: the largest offset is 32 · 132 + 16.
SHARED_BYTES = 16384

LANE = np.arange(32)


def _units(row: int) -> Iterator[tuple[str, np.ndarray, np.ndarray | bool]]:
    """Name, offset of each lane in units of the access, and who is active; ``row`` units fill all banks once."""
    rng = np.random.default_rng(32)
    everyone = {
        "consecutive": LANE, "reversed": 31 - LANE, "the same": 0 * LANE, "pairs": LANE // 2, "lane & ~2": LANE & ~2,
        "fours": LANE // 4, "lane & ~4": LANE & ~4, "lane & ~8": LANE & ~8, "halves": LANE % 16, "eights": LANE % 8,
        "stride 2": 2 * LANE, "stride 3": 3 * LANE, "one bank": row * LANE, "padded": (row + 1) * LANE,
        "two rows": LANE % 2 * row + LANE // 2, "pairs in one bank": LANE // 2 * row,
        "first half in pairs": np.where(LANE < 16, LANE // 2, LANE),
        "second half in pairs": np.where(LANE < 16, LANE, LANE // 2),
        "pairs, then lane & ~2": np.where(LANE < 16, LANE // 2, LANE & ~2),
        "a quarter in pairs": np.where(LANE < 8, LANE // 2, LANE),
    }  # fmt: skip
    for name, units in everyone.items():
        yield name, units, True
    for i in range(3):
        yield f"random {i}", rng.integers(0, 3 * row, 32), True
    masks = {
        "12 lanes": LANE < 12, "20 lanes": LANE < 20, "odd lanes": LANE % 2 == 1, "one lane": LANE == 9,
        "lanes 0 and 16": LANE % 16 == 0, "lanes 0 and 1": LANE < 2, "upper half": LANE >= 16,
        "not every third": LANE % 3 > 0,
    }  # fmt: skip
    for name, mask in masks.items():
        yield f"pairs, {name}", LANE // 2, mask
        yield f"one bank, {name}", row * LANE, mask
    for i in range(3):
        yield f"random of a random half {i}", rng.integers(0, 3 * row, 32), rng.random(32) < 0.5
        yield f"random pairs of a random half {i}", np.repeat(rng.integers(0, 3 * row, 16), 2), rng.random(32) < 0.5


def _rows() -> Iterator[tuple[str, np.ndarray]]:
    """Offsets of matrix rows in units of 16 bytes."""
    rng = np.random.default_rng(8)
    yield from {
        "packed": LANE, "padded": 5 * LANE, "64 bytes apart": 4 * LANE, "one bank": 8 * LANE, "the same": 0 * LANE,
        "pairs": LANE // 2, "lane & ~2": LANE & ~2, "32 bytes apart": 2 * LANE, "eights": LANE % 8,
    }.items()  # fmt: skip
    for i in range(4):
        yield f"random {i}", rng.integers(0, 64, 32)


def patterns() -> Iterator[tuple[str, str, np.ndarray]]:
    """Kernel, name of the pattern, byte offsets (32,) int32 with -1 for a lane that is not active."""
    for access, nbytes in ACCESSES.items():
        for name, units, active in _units(128 // nbytes):
            yield access, name, np.where(active, nbytes * units, -1).astype(np.int32)
    for access in MATRICES:
        for name, rows in _rows():
            yield access, name, (16 * rows).astype(np.int32)
