"""Plans: which kernel, how many threads, why, and that each of them can be printed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import DTypeError, OperandError, ShapeError
from tilewright.kernels import catalog
from tilewright.machine import machine
from tilewright.operands import DTYPES
from tilewright.planner import WORK_PER_THREAD, make_plan
from tilewright.problem import Problem


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_kernel_of_the_catalog(dtype: str) -> None:
    plan = make_plan(Problem(64, 64, 64, dtype))
    assert catalog()[plan.kernel.name] is plan.kernel
    assert plan.compute in plan.kernel.dtypes
    assert plan.kernel.error_bound is None, "only kernels with the classical bound are chosen unasked"
    assert not plan.kernel.is_reference
    assert np.can_cast(dtype, plan.compute), "nothing may be lost on the way in"


def test_no_kernel_knows_a_dtype_that_is_refused_at_the_door() -> None:
    assert {dtype for kernel in catalog().values() for dtype in kernel.dtypes} <= set(DTYPES)


def test_the_highest_rung_that_knows_the_dtype_is_chosen() -> None:
    for dtype in ("float32", "float64", "complex64", "int8"):
        chosen = make_plan(Problem(8, 8, 8, dtype)).kernel
        able = [k for k in catalog().values() if k.device == "cpu" and dtype in k.dtypes and k.error_bound is None]
        assert chosen.order == max(k.order for k in able)


def test_threads_grow_with_the_work_and_stay_within_the_cores() -> None:
    sizes = [2**p for p in range(15)]
    threads = [make_plan(Problem(n, n, n)).threads for n in sizes]
    assert threads == sorted(threads)
    assert threads[0] == 1
    assert threads[-1] == machine().usable_cores
    for n, count in zip(sizes, threads, strict=True):
        assert count == 1 or n**3 >= count * WORK_PER_THREAD


@pytest.mark.parametrize("batch", [0, 1, 1000])
def test_threads_are_for_each_product_of_a_batch(batch: int) -> None:
    assert make_plan(Problem(64, 64, 64, batch=batch)).threads == 1


@pytest.mark.parametrize("dtype", ["float128", "bfloat16", "object"])
def test_a_dtype_without_a_kernel_is_named(dtype: str) -> None:
    with pytest.raises(DTypeError, match=rf"^no kernel multiplies {dtype}: bool, int8, .*, complex128 can be$"):
        make_plan(Problem(2, 2, 2, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "int8", "complex64"])
@pytest.mark.parametrize("size", [(0, 0, 0), (0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (500, 400, 300)])
def test_a_plan_prints_what_it_will_do(dtype: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    plan = make_plan(Problem(m, n, k, dtype))
    lines = str(plan).splitlines()
    assert lines[0] == f"({m}×{k}) · ({k}×{n}) {dtype}"
    assert [line.split()[0] for line in lines[1:5]] == ["kernel", "because", "threads", "workspace"]
    assert f"{plan.kernel.name}: {plan.kernel.idea}" in lines[1]
    assert lines[3].endswith(f"{plan.threads} of {machine().usable_cores}")
    assert ("rounded once" in str(plan)) == (dtype in ("float16", "bool"))
    bounded = m * n * k > 0 and plan.compute in ("float32", "float64")
    assert bool(re.search(r"at least   \S+ s: bound by (arithmetic|memory)", str(plan))) == bounded


def test_the_time_bound_is_the_roofline() -> None:
    plan = make_plan(Problem(300, 300, 300, "float32"))
    assert plan.bounds_s is not None
    assert all(0 < seconds < 1 for seconds in plan.bounds_s)
    assert make_plan(Problem(3, 3, 3, "int8")).bounds_s is None


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ((3, 4), (4, 5), "(3×4) · (4×5) float64"),
        ((np.int64(3), 4), (4,), "(3×4) · (4×1) float64"),
        ((4,), (4,), "(1×4) · (4×1) float64"),
        ((0, 4), (4, 0), "(0×4) · (4×0) float64"),
        ((2, 1, 3, 4), (5, 4, 6), "10 × (3×4) · (4×6) float64"),
        (np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), "(3×4) · (4×5) float32"),
        (np.ones((3, 4), "i1"), (4, 5), "(3×4) · (4×5) float64"),
        (np.ones((3, 4), "u1"), np.ones((4, 5), ">i1"), "(3×4) · (4×5) int16"),
        ([[1, 2]], [[1], [2]], "(1×2) · (2×1) int64"),
    ],
)
def test_plans_of_shapes_and_of_arrays(a: object, b: object, text: str) -> None:
    assert str(tw.plan(a, b)).splitlines()[0] == text


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ((3, 4), (5, 2), ShapeError, "k mismatch: a is (3, 4), b is (5, 2)"),
        ((-3, 4), (4, 2), ShapeError, "a is (-3, 4): a size must be at least 0"),
        ((3, 4), (4, -1), ShapeError, "b is (4, -1): a size must be at least 0"),
        ((), (4,), ShapeError, "a is a scalar"),
        (None, (4,), OperandError, "a must be numeric: NoneType"),
        ((3, 4), np.zeros((4, 2), "m8[s]"), DTypeError, "b is an array of dtype timedelta64[s]"),
    ],
)
def test_what_has_no_plan_is_refused_by_name(a: object, b: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refusal:
        tw.plan(a, b)
    assert str(refusal.value).startswith(message)
