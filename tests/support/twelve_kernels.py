"""The launches of ``data/twelve.cu`` with their right answers, and those of ``data/five.cu`` at n = 64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.lab.explain.stored_launches import StoredLaunch

DATA = Path(__file__).parents[1] / "data"
ARCH = "sm_90"

RNG = np.random.default_rng(12)
LANE = np.arange(32)


@dataclass(frozen=True)
class Case:
    """A launch, and what its arrays hold afterwards: argument → values. ``atol``: how far off they may be."""

    name: str
    source: str
    launch: StoredLaunch
    expected: dict[int, np.ndarray]
    atol: float = 0


def case(name: str, entry: str, grid: Any, block: int, args: tuple[Any, ...], expected: dict[int, np.ndarray]) -> Case:
    return Case(name, "twelve.cu", StoredLaunch(entry, grid, block, args), expected)


def integers(n: int, most: int = 50) -> np.ndarray:
    """Small whole numbers as floats: every sum of them is exact."""
    return RNG.integers(0, most, n).astype(np.float32)


def empty(n: int, dtype: Any = np.float32) -> np.ndarray:
    """What stays where a kernel writes nothing."""
    return np.full(n, -7).astype(dtype)


def _global_memory() -> list[Case]:
    x, i = integers(33 * 256), np.arange(256)
    cases = [
        case(f"strided_read by {stride}", "strided_read", 2, 128, (x, empty(256), stride), {1: x[stride * i]})
        for stride in (1, 2, 33)
    ]
    pairs, fours = x[2 : 2 + 512].reshape(256, 2), x[4 : 4 + 1024].reshape(256, 4)
    total = pairs.sum(axis=1) + fours.sum(axis=1)
    cases.append(case("misaligned_read", "misaligned_read", 2, 128, (x[:1032], empty(256)), {1: total}))
    mask = 0b1000_0000_1111_0000_0101_0000_0000_0110
    some = empty(512)
    some[2 * i[mask >> i % 32 & 1 > 0]] = x[:256][mask >> i % 32 & 1 > 0]
    cases.append(case("some_lanes", "some_lanes", 2, 128, (x[:256], empty(512), np.uint32(mask)), {1: some}))
    return [*cases, _local_array(), _global_atomics()]


def _local_array() -> Case:
    x = RNG.integers(0, 100, 128).astype(np.int32)
    y = empty(128, np.int32)
    for i, v in enumerate(x.tolist()):
        mine = {(j * 5 + v) & 15: j * v for j in range(16)}
        y[i] = sum(mine[(v + j * (i % 64)) & 15] for j in range(4))
    return case("local_array", "local_array", 2, 64, (x, empty(128, np.int32)), {1: y})


def _global_atomics() -> Case:
    y, thread = np.zeros(2048, np.int32), np.arange(128)
    at_end = y.copy()
    at_end[:128] += 3
    np.maximum.at(at_end, 256 + 4 * (thread % 64), thread % 64)
    np.add.at(at_end, 512 + thread % 2, thread % 64)
    at_end[1024 + 8 * thread] = 7
    args = (y, empty(128, np.int32))
    return case("global_atomics", "global_atomics", 2, 64, args, {0: at_end, 1: np.zeros(128, np.int32)})


def _transposes() -> list[Case]:
    x = integers(64 * 64)
    y = x.reshape(64, 64).T.reshape(-1)
    names = ("transpose_plain", "transpose_padded", "transpose_swizzled")
    return [case(name, name, (2, 2), 256, (x, empty(4096), 64), {1: y}) for name in names]


def _wide_loads(name: str, width: int, outs: int, units: list[Any], active: dict[int, np.ndarray]) -> Case:
    """``units[p]``: which vector each of 64 threads reads in pattern p; ``active[p]`` which of them do."""
    x = integers(1024 * width)
    sums = x.reshape(-1, width).sum(axis=1)
    y = empty(64 * outs).reshape(64, outs)
    for p, unit in enumerate(units):
        y[:, p] = np.where(active.get(p, np.ones(64, bool)), sums[np.minimum(unit, 1023)], -7)
    return case(name, name, 2, 64, (x, empty(128 * outs)), {1: np.tile(y.reshape(-1), 2)})


def _loads() -> list[Case]:
    t = np.arange(64)
    lane = t % 32
    half = np.where(lane < 16, lane // 2, lane)
    eight = [t, t // 2, t & ~2, 2 * t, 16 * lane, half, 3 * lane, lane]
    sixteen = [t, lane // 2, lane & ~2, 2 * t, 8 * lane, half, np.where(lane < 16, lane // 2, lane & ~2),
               np.where(lane < 8, lane // 2, lane), 3 * lane, lane, lane // 2, lane, lane // 4 * 8, t // 64]  # fmt: skip
    return [
        _wide_loads("loads_64", 2, 8, eight, {6: lane < 20, 7: lane % 2 == 1}),
        _wide_loads("loads_128", 4, 16, sixteen,
                    {8: lane < 12, 9: lane % 2 == 1, 10: lane % 3 > 0, 11: lane == 9, 12: lane < 16}),
    ]  # fmt: skip


def _wide_stores() -> Case:
    t = np.arange(64)
    lane, warp = t % 32, t // 32
    box = np.zeros(4096, np.float32)
    everyone = np.ones(64, bool)
    for width, unit, label, who in [
        (2, t, 1, everyone), (2, 64 + 2 * t, 2, everyone), (4, 96 + t, 3, everyone), (4, 160 + 2 * t, 4, everyone),
        (4, 288 + 8 * lane + warp, 5, everyone), (4, 544 + t, 6, lane < 12), (4, 608 + t, 7, lane % 4 == 1),
        (2, 1344 + 16 * lane + warp, 8, lane < 20),
    ]:  # fmt: skip
        box.reshape(-1, width)[unit[who], 0] = t[who]
        box.reshape(-1, width)[unit[who], 1:] = label
    return case("wide_stores", "wide_stores", 2, 64, (empty(8192),), {0: np.tile(box, 2)})


def _broadcast_and_narrow() -> list[Case]:
    x = integers(64)
    sums = np.repeat(x.reshape(2, 32).sum(axis=1), 64)
    t = np.arange(64)
    small = RNG.integers(0, 256, 4096).astype(np.uint8)
    y = empty(512, np.int32).reshape(64, 8)
    bytes_at = [t, 2 * t + 1, 64 * t, 128 * (t % 16) + t // 16]
    halves_at = [t, 32 * t, 64 * (t % 8) + t // 32, t // 2]
    for i, at in enumerate(bytes_at):
        y[:, i] = small[at]
    for i, at in enumerate(halves_at):
        y[:, 4 + i] = small[at].astype(np.int32) * 3
    y[t % 2 == 0, 7] = -7
    return [
        case("broadcast", "broadcast", 2, 64, (x, empty(128)), {1: sums}),
        case("narrow", "narrow", 2, 64, (small, empty(1024, np.int32)), {1: np.tile(y.reshape(-1), 2)}),
    ]


def _shared_atomics() -> Case:
    t = np.arange(128)
    lane, bins = t % 32, np.zeros(1024, np.int32)
    for at in (t, 128 + 2 * lane, 256 + 32 * (t % 2)):
        np.add.at(bins, at, t + 1)
    bins[512] = 128
    np.add.at(bins, 520 + 32 * lane[lane < 5], t[lane < 5] + 1)
    old = bins[700 + t]
    bins[700 + t] = t
    args = (empty(2048, np.int32), empty(256, np.int32))
    return case("shared_atomics", "shared_atomics", 2, 128, args, {0: np.tile(bins, 2), 1: np.tile(old, 2)})


def _async_copies() -> Case:
    t, x = np.arange(64), integers(4096)
    box, ten = np.zeros(8192, np.float32), t % 32 < 10
    everyone = t >= 0
    for words, into, out_of, who in [
        (1, t, t, everyone), (1, 64 + 8 * t, 64 + t, everyone), (2, 640 + 2 * t, 128 + 2 * t, everyone),
        (2, 768 + 8 * t, 256 + 4 * t, everyone), (4, 1280 + 4 * t, 512 + 4 * t, everyone),
        (4, 1536 + 32 * t, 768 + 4 * t, everyone), (4, 3584 + 4 * t, 1024 + 4 * t, everyone),
        (4, 3840 + 8 * t, 1280 + 8 * t, everyone), (4, 4352 + 32 * t, 1792 + 4 * t, everyone),
        (1, 6400 + t, 2048 + t, ten), (4, 6464 + 4 * t, 2112 + 4 * t, ten),
    ]:  # fmt: skip
        for word in range(words):
            box[into[who] + word] = x[out_of[who] + word]
    return case("async_copies", "async_copies", 2, 64, (x, empty(16384)), {1: np.tile(box, 2)})


def _rows(box: np.ndarray, starts: np.ndarray, trans: bool) -> np.ndarray:
    """The fragment of one 8 × 8 matrix, as a word of two halves for each lane; ``starts`` are its 8 rows."""
    matrix = np.stack([box[s : s + 8] for s in starts.tolist()])
    matrix = matrix.T if trans else matrix
    near = matrix[LANE // 4, 2 * (LANE % 4)].astype(np.uint32)
    return near | matrix[LANE // 4, 2 * (LANE % 4) + 1].astype(np.uint32) << 16


def _matrix_loads() -> Case:
    x = RNG.integers(0, 1 << 16, 4096).astype(np.uint16)
    words = []
    for count, starts, trans in [
        (1, 8 * LANE, False), (1, 64 * LANE, False), (2, 40 * LANE, False), (2, 32 * LANE, False), (4, 8 * LANE, False),
        (4, 64 * LANE, False), (4, 32 * LANE, True), (2, 8 * (LANE // 2), True),
    ]:  # fmt: skip
        words += [_rows(x, starts[8 * m : 8 * m + 8], trans) for m in range(count)]
    y = np.concatenate([np.tile(w, 4) for w in words])
    return case("matrix_loads", "matrix_loads", 2, 64, (x, empty(20 * 128, np.uint32)), {1: y})


def _matrix_stores() -> Case:
    box = np.zeros(8192, np.uint16)
    for count, starts, trans in [
        (4, 8 * LANE, False), (2, 256 + 40 * LANE, False), (4, 2048 + 64 * LANE, True), (1, 2048 + 4096 + 64 * LANE, False),
    ]:  # fmt: skip
        for m in range(count):
            matrix = np.zeros((8, 8), np.uint16)
            matrix[LANE // 4, 2 * (LANE % 4)] = m + 1
            matrix[LANE // 4, 2 * (LANE % 4) + 1] = LANE
            for r, start in enumerate(starts[8 * m : 8 * m + 8].tolist()):
                box[start : start + 8] = matrix.T[r] if trans else matrix[r]
    return case(
        "matrix_stores", "matrix_stores", 2, 32, (empty(8192, np.uint32),), {0: np.tile(box.view(np.uint32), 2)}
    )


def _mma_padded() -> Case:
    a, b = (RNG.integers(-4, 5, shape).astype(np.float16) for shape in ((2, 16, 16), (2, 8, 16)))
    c = np.matmul(a.astype(np.float32), b.astype(np.float32).transpose(0, 2, 1))
    args = (a.reshape(-1).view(np.uint32), b.reshape(-1).view(np.uint32), empty(256))
    return case("mma_padded", "mma_padded", 2, 32, args, {2: c.reshape(-1)})


def _five() -> list[Case]:
    n = 64
    a, b = (RNG.random((n, n), dtype=np.float32) * 2 - 1 for _ in range(2))
    c = (a.astype(np.float64) @ b).astype(np.float32)
    cases = []
    for name in ("naive", "swapped", "tiled", "tile2d", "vec"):
        flat = name in ("tile2d", "vec")
        grid, block = ((1, 1), 64) if flat else ((2, 2), (32, 32))
        launch = StoredLaunch(name, grid, block, (a, b, np.full_like(a, np.nan), n, n, n))
        cases.append(Case(name, "five.cu", launch, {2: c}, atol=1e-5))
    return cases


CASES = [
    *_global_memory(), *_transposes(), *_loads(), _wide_stores(), *_broadcast_and_narrow(), _shared_atomics(),
    _async_copies(), _matrix_loads(), _matrix_stores(), _mma_padded(), *_five(),
]  # fmt: skip


def wrong(case: Case, arrays: Any) -> list[str]:
    """What is wrong with the arrays that a launch left; empty where they are right."""
    said = []
    for argument, expected in case.expected.items():
        found = arrays[argument]
        off = ~np.isclose(found, expected, rtol=0, atol=case.atol) if case.atol else found != expected
        if off.any():
            at = int(np.flatnonzero(off)[0])
            first = f"{found.reshape(-1)[at]} at {at} instead of {expected.reshape(-1)[at]}"
            said.append(
                f"{case.name}: argument {argument}: {int(off.sum())} of {off.size} are wrong, the first {first}"
            )
    return said
