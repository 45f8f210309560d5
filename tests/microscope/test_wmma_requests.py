"""The accesses to memory that ``wmma`` becomes, as ptxas 13.0 compiles it for sm_90a: widths, and the first addresses."""

# ruff: noqa: ARG002 - an observer is given more than it needs

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.wmma_cases import wmma
from tilewright.simulator import RunOptions, simulate

Request = tuple[str, str, int, int]


class Recorder:
    """An observer: space, kind, bytes and the least address of each access."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    def on_access(self, space: str, kind: str, ins: Any, warps: Any, lanes: Any, addresses: Any, nbytes: int) -> None:
        self.seen.append((space, kind, nbytes, int(addresses.min())))

    def on_work(self, *about: Any) -> None:
        """The product itself, which is no access."""


def requests(kind: str, d: str, layouts: str, shared: bool) -> list[Request]:
    """The accesses of one product of 16 × 16 × 16: A, B, C, D at 0, 2048, 4096, 6144 from the first of each kind."""
    case = wmma(kind, d, d, (16, 16, 16), "any" if d == "s32" else "near", layouts)
    ptx = case.ptx
    if shared:
        ptx = ptx.replace(".visible", ".shared .align 128 .b8 room[8192];\n.visible")
        for i in range(4):
            ptx = ptx.replace(f"[%a{i}]", f"[room+{2048 * i}]").replace(".global.", ".shared.")
    recorder = Recorder()
    simulate(ptx, "k", 1, 32, [np.zeros(4096, np.uint8) for _ in range(4)], RunOptions(observer=recorder))
    bases = {at >> 11 << 11 if shared else at >> 36 << 36 for *_, at in recorder.seen}
    return [(s, k, n, at - max(b for b in bases if b <= at)) for s, k, n, at in recorder.seen]


#: Four quarters of a matrix of halves, and of floats, 8 × 8 each.
HALVES, FLOATS = (0x0, 0x100, 0x10, 0x110), (0x0, 0x200, 0x20, 0x220)


@pytest.mark.parametrize("layouts", ["row.col.row", "row.row.row"])
def test_from_global_memory(layouts: str) -> None:
    second = HALVES if layouts == "row.row.row" else (0x0, 0x10, 0x100, 0x110)
    assert requests("f16", "f32", layouts, shared=False) == [
        *(("global", "ld", 4, at) for at in (*HALVES, *second)),
        *(("global", "ld", 8, at) for at in FLOATS),
        *(("global", "st", 8, at) for at in FLOATS),
    ]


@pytest.mark.parametrize("layouts", ["row.col.row", "col.row.row"])
def test_halves_from_shared_memory_come_by_ldmatrix(layouts: str) -> None:
    assert [r[:3] for r in requests("bf16", "f32", layouts, shared=True)] == [
        *[("shared", "ldmatrix", 16)] * 2, *[("shared", "ld", 8)] * 4, *[("shared", "st", 8)] * 4,
    ]  # fmt: skip


def test_bytes_across_the_rows_come_one_by_one() -> None:
    assert [r[:3] for r in requests("s8", "s32", "row.row.row", shared=True)] == [
        ("shared", "ldmatrix", 16), *[("shared", "ld", 1)] * 8, *[("shared", "ld", 8)] * 4, *[("shared", "st", 8)] * 4,
    ]  # fmt: skip


def test_columns_of_halves_are_transposed_in_registers() -> None:
    assert [r[:3] for r in requests("f16", "f16", "row.col.col", shared=False)][8:] == [
        *[("global", "ld", 4)] * 4, *[("global", "st", 4)] * 4,
    ]  # fmt: skip
