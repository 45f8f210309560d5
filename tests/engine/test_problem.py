"""How shapes combine, and what a product costs at least."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import ShapeError
from tilewright.product.problem import Problem, ProductShapes, combine_shapes

SHAPES = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((3, 4), (4, 5), ProductShapes(3, 5, 4, (), (3, 5))),
        ((4,), (4,), ProductShapes(1, 1, 4, (), ())),
        ((3, 4), (4,), ProductShapes(3, 1, 4, (), (3,))),
        ((4,), (4, 5), ProductShapes(1, 5, 4, (), (5,))),
        ((4,), (7, 4, 5), ProductShapes(1, 5, 4, (7,), (7, 5))),
        ((7, 3, 4), (4,), ProductShapes(3, 1, 4, (7,), (7, 3))),
        ((5, 1, 3, 4), (7, 4, 2), ProductShapes(3, 2, 4, (5, 7), (5, 7, 3, 2))),
        ((0, 4), (4, 0), ProductShapes(0, 0, 4, (), (0, 0))),
        ((3, 0), (0, 5), ProductShapes(3, 5, 0, (), (3, 5))),
        ((0, 3, 4), (1, 4, 5), ProductShapes(3, 5, 4, (0,), (0, 3, 5))),
        ((1,) * 64, (1,) * 40, ProductShapes(1, 1, 1, (1,) * 62, (1,) * 64)),
    ],
)
def test_shapes_combine_as_matmul_says(a: tuple[int, ...], b: tuple[int, ...], expected: ProductShapes) -> None:
    assert combine_shapes(a, b) == expected


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((), (4,), "a is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        ((4,), (), "b is a scalar: matmul needs at least one axis; multiply by a scalar with *"),
        ((3, 4), (5, 2), "k mismatch: a is (3, 4), b is (5, 2): a.shape[-1] must equal b.shape[0]"),
        ((4,), (5,), "k mismatch: a is (4,), b is (5,): a.shape[-1] must equal b.shape[0]"),
        ((3, 4), (9, 5, 2), "k mismatch: a is (3, 4), b is (9, 5, 2): a.shape[-1] must equal b.shape[-2]"),
        ((3, 0), (1, 3), "k mismatch: a is (3, 0), b is (1, 3): a.shape[-1] must equal b.shape[0]"),
        (
            (2, 3, 4),
            (3, 4, 5),
            "batch mismatch: a is (2, 3, 4), b is (3, 4, 5): axes before the last two must be equal, or 1, or absent",
        ),
        (
            (0, 3, 4),
            (2, 4, 5),
            "batch mismatch: a is (0, 3, 4), b is (2, 4, 5): axes before the last two must be equal, or 1, or absent",
        ),
    ],
)
def test_shapes_without_a_product_are_refused(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        combine_shapes(a, b)
    assert str(refusal.value) == message


@given(SHAPES, SHAPES)
def test_numpy_agrees_on_every_pair_of_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(ShapeError):
            combine_shapes(a, b)
    else:
        assert combine_shapes(a, b).result == expected


def test_what_a_product_costs() -> None:
    problem = Problem(3, 5, 4, "float32", batch=2)
    assert problem.flops == 2 * 3 * 5 * 4 * 2
    assert problem.bytes_least == (3 * 4 + 4 * 5 + 3 * 5) * 4 * 2
    assert Problem(3, 5, 4, "float32", beta=1.0).bytes_least == (3 * 4 + 4 * 5 + 2 * 3 * 5) * 4
    assert problem.intensity == problem.flops / problem.bytes_least
    assert Problem(0, 0, 0).intensity == 0


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(3, 5, 4), "(3×4) · (4×5) float64"),
        (Problem(3, 5, 4, "int8", batch=7), "7 × (3×4) · (4×5) int8"),
        (Problem(3, 5, 4, "int8", batch=0), "0 × (3×4) · (4×5) int8"),
    ],
)
def test_a_problem_prints_as_it_is_written_on_paper(problem: Problem, text: str) -> None:
    assert str(problem) == text
