"""Tiles of edges that leave out prefetches: which remain, and that their sums are those of any other tile."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest

from support.machine_code import assembly, inner_loops, x86_with_fma
from tilewright.cpu import codegen
from tilewright.cpu.engine import cuts, edges, jobs
from tilewright.kernels.blocking import blocking
from tilewright.kernels.catalog import catalog

PACKED = catalog()["cpu/packed"]
MR, NV, BITS, UNROLL = *(PACKED.params[name] for name in ("mr", "nv", "vector_bits")), blocking().unroll
NR, STEPS = NV * BITS // 32, 37


def tile(*, lean: bool) -> nb.core.dispatcher.Dispatcher:
    """A compiled function ``multiply(a, b, c, x, cached, ahead)`` of float32 for a whole tile."""
    compute = edges.compiled_tile(
        cuts.PackedBlocks("tests", blocking(), blocking().kc, itemsize=4), lean=codegen.Setting("lean", lean)
    )

    @nb.njit("(f4[:, ::1], f4[:, ::1], f4[:, ::1], int64, boolean, int64)")
    def multiply(a, b, c, x, cached, ahead):
        of_a, of_b, of_c = codegen.offset(a, 0), codegen.offset(b, 0), codegen.offset(c, 0)
        compute(
            a.shape[1], of_a, a.shape[1], of_b, of_c, c.shape[1], 0, MR, NV, c.shape[1], x, jobs.Near(cached, ahead)
        )

    return multiply


@pytest.mark.slow
@x86_with_fma
def test_tiles_whose_operands_are_near_prefetch_the_next_sliver_alone() -> None:
    lean, other = prefetches(lean=True), prefetches(lean=False)
    assert {(0, 0), (0, 1)} <= lean, (
        "tiles without prefetches of their own operands, with and without one of the next sliver"
    )
    assert not {(0, 0), (0, 1)} & other
    assert UNROLL * NV * BITS // (8 * codegen.ALIGNMENT) in (of_l1 for of_l1, _ in other), (
        "the tile that reads B from anywhere"
    )


def prefetches(*, lean: bool) -> set[tuple[int, int]]:
    """Of each loop of whole steps: prefetches into L1 and into L2."""
    loops = inner_loops(assembly(tile(lean=lean)), "vfmadd")
    whole = [loop for loop in loops if sum(line.startswith("vfmadd") for line in loop) == UNROLL * MR * NV]
    return {
        tuple(sum(line.startswith(name) for line in loop) for name in ("prefetcht0", "prefetcht1")) for loop in whole
    }


@pytest.mark.slow
def test_a_tile_has_the_same_bits_whatever_it_prefetches() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((MR, STEPS), (STEPS, NR)))
    results = []
    for lean in (False, True):
        multiply = tile(lean=lean)
        for x, cached, ahead in ((0, False, 0), (1, False, 0), (3, True, 0), (5, True, b.size), (40, True, 1 << 40)):
            c = np.full((MR, NR), np.nan, np.float32)
            multiply(a, b, c, x, cached, ahead)
            results.append(c)
    assert np.allclose(results[0], a.astype(float) @ b, rtol=0, atol=1e-4)
    assert all(np.array_equal(results[0], c) for c in results[1:])
