"""The steps of plans on a GPU that is only described: which launches they are, and where their operands begin."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.gpu.arrays.gpu_array import GpuArray, contiguous_strides
from tilewright.gpu.arrays.matmul import _key, _plan
from tilewright.gpu.arrays.plan import GpuPlan
from tilewright.gpu.runtime.device import add_described
from tilewright.gpu.runtime.engine_product import FinishForm, ScaleBlocks
from tilewright.gpu.runtime.steps import SCALE_A, SCALE_B, WORKSPACE, A, B, BufferPlace, C, Clear, GpuStep, KernelLaunch
from tilewright.prebuilt import gpu

CAPABILITY, ((NAME, *FACTS), *_) = gpu.GPUS["sm_90a"]


@pytest.fixture(scope="module")
def ordinal() -> int:
    described: Any = gpu._Described("sm_90a", CAPABILITY, NAME, *FACTS)
    return add_described(described)


def planned(
    ordinal: int, dtype: str, a: tuple[int, ...], b: tuple[int, ...], form: FinishForm | None = None, **says: Any
) -> GpuPlan:
    x, y = (GpuArray(0, shape, contiguous_strides(tuple(n or 8 for n in shape)), dtype, ordinal) for shape in (a, b))
    return _plan(_key(x, y, None, False, says.get("precision", "standard"), None), form)


def names(plan: GpuPlan) -> list[str]:
    return [step.launch.entry if isinstance(step.launch, KernelLaunch) else "clear" for step in plan.steps]


def offsets(steps: list[GpuStep], buffer: int) -> set[int]:
    return {at.offset for step in steps for at in step.places if at.buffer == buffer}


def test_a_step_moves_with_its_buffers() -> None:
    step = GpuStep(Clear(None), (BufferPlace(C, 8), BufferPlace(A), BufferPlace(SCALE_A, 4)))  # type: ignore[arg-type]
    moved = step.moved((BufferPlace(B, 100), BufferPlace(A), BufferPlace(WORKSPACE, 50), BufferPlace(WORKSPACE, 1000)))
    assert moved == GpuStep(step.launch, (BufferPlace(WORKSPACE, 58), BufferPlace(B, 100), BufferPlace(SCALE_A, 4)))


def test_borders_of_c_are_the_steps_of_products_at_other_places(ordinal: int) -> None:
    plan = planned(ordinal, "float32", (4097, 4096), (4096, 4097), precision="ieee")
    assert len(plan.pieces) == 3
    each = [len(piece.steps) for piece, _ in plan.pieces]
    assert sum(each) == len(plan.steps)
    assert [step.launch for step in plan.steps[: each[0]]] == [step.launch for step in plan.pieces[0].plan.steps]
    assert offsets(plan.steps, C) == {0, 4 * 4096, 4 * 4096 * 4097}
    assert offsets(plan.steps, A) == {0, 4 * 4096 * 4096}
    assert offsets(plan.steps, B) == {0, 4 * 4096}


def test_a_complex_product_writes_pairs_and_multiplies_reals_behind_them(ordinal: int) -> None:
    plan = planned(ordinal, "complex64", (4096, 4096), (4096, 4096))
    first, *others = plan.steps
    assert names(plan)[0] == "write_pairs"
    assert first.places == (BufferPlace(B), BufferPlace(WORKSPACE))
    assert offsets(others, B) == set()
    pairs = 4 * 4096 * 4096 * 4
    assert pairs in offsets(others, WORKSPACE), "the workspace of the real product"
    assert plan.workspace_bytes == pairs + plan.pieces[0].plan.workspace_bytes


def test_parts_of_k_are_summed_in_the_workspace(ordinal: int) -> None:
    plan = planned(ordinal, "bfloat16", (128, 65536), (65536, 128))
    assert plan.parts > 1
    multiply, add = plan.steps
    assert offsets([multiply], WORKSPACE) == {0}
    assert offsets([multiply], C) == set()
    assert add.places == (BufferPlace(WORKSPACE), BufferPlace(C))


def test_products_without_depth_are_all_cleared(ordinal: int) -> None:
    plan = planned(ordinal, "float32", (3, 5, 0), (3, 0, 7))
    assert names(plan) == ["clear"] * 3
    assert offsets(plan.steps, C) == {0, 4 * 5 * 7, 8 * 5 * 7}


def test_arrays_of_an_epilogue_have_places(ordinal: int) -> None:
    """Those of blocks are read by the kernel that multiplies; without depth nothing reads them."""
    form = FinishForm(1.0, 0.0, None, None, None, None, 256, ScaleBlocks(2, 1, 1, 2))
    plan = planned(ordinal, "float8_e4m3fn", (256, 256), (256, 256), form)
    assert plan.steps[-1].places[-2:] == (BufferPlace(SCALE_A), BufferPlace(SCALE_B))
    empty = planned(ordinal, "float8_e4m3fn", (256, 0), (0, 256), form)
    assert names(empty)[0] == "clear"
