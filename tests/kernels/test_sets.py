"""The sets of parameters of the engine's CUDA kernels as columns: the same numbers as their expressions, one by one."""

import math
import random
from typing import Any

import numpy as np
import pytest

from tilewright.catalog import cuda_engine
from tilewright.kernels.columns import staged
from tilewright.kernels.cuda_kernel import LINE, TIMED, CudaKernel
from tilewright.kernels.expression import Expression
from tilewright.kernels.sets import LAYOUT, sets_for
from tilewright.problem import itemsize_of

KERNELS = list(cuda_engine().values())


def one_by_one(kernel: CudaKernel, values: dict[str, Any]) -> float:
    """The predicted time, by the expressions of the header."""
    known = dict(values)
    for name, expression in kernel.time.items():
        known[name] = expression.of(known)
    return float(known["seconds"])


def drawn(draw: random.Random, kernel: CudaKernel, largest: int) -> dict[str, Any]:
    """Values for all names of TIMED but those that belong to a set."""
    starts = [draw.choice((2, 16, 64, 128)) for _ in "ab"]
    return {
        **{name: draw.randrange(1, largest) for name in "mnk"},
        **{"size": itemsize_of(draw.choice(kernel.dtypes)), "batch": draw.choice((1, 1, 7)), "memory_ratio": 1.25},
        **{"sms": draw.choice((16, 84, 108, 132)), "a_start": starts[0], "b_start": starts[1]},
        **{"lines": starts[0] == starts[1] == 128, "a_vector": draw.choice((4, 16)), "b_vector": draw.choice((4, 16))},
        **{name: draw.random() < 0.5 for name in ("a_down", "b_across", "finished", "scaled")},
    }


@pytest.mark.parametrize("largest", [100, 10_000, 2**31])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_columns_are_what_the_expressions_say(kernel: CudaKernel, largest: int) -> None:
    draw = random.Random(f"{kernel.name} {largest}")
    for cut in (False, True) * 4:
        given = drawn(draw, kernel, largest)
        m, n, k = (given[name] for name in "mnk")
        sets = sets_for(kernel, tuple(given[name] for name in LAYOUT))
        conditions = [True, *(preset.when for preset in kernel.presets)]
        known = given | {LINE: 128 // given["size"]}
        allowed = [
            i
            for i, (when, each) in enumerate(zip(conditions, sets.params, strict=True))
            if when is True or when.of(known | each)
        ]
        index = sets.allowed(m, n, k)
        assert index.tolist() == allowed
        blocks = [math.prod(extent.of(known | sets.params[i]) for extent in kernel.grid) for i in allowed]
        assert sets.blocks(index, m, n, k).tolist() == blocks
        parts = [draw.choice((1, 1, 3, 8)) if cut else 1 for _ in allowed]
        varied = {
            "parts": parts,
            "blocks": [count * given["batch"] * part for count, part in zip(blocks, parts, strict=True)],
            "part": [-(-k // part) for part in parts],
            "out_size": [4 if part > 1 else 2 for part in parts],
            "c_down": [part == 1 and cut for part in parts],
        }
        expected = [
            one_by_one(kernel, known | sets.params[i] | {name: values[at] for name, values in varied.items()})
            for at, i in enumerate(allowed)
        ]
        columns = {name: np.array(values, float) for name, values in varied.items()}
        if not cut:
            columns |= {name: varied[name][0] for name in ("parts", "part", "out_size", "c_down")}
        rest = {name: given[name] for name in TIMED if name not in (*LAYOUT, "lines", *varied)}
        found = sets.seconds(index, cut=cut, **rest, **columns)
        # Columns round whole numbers beyond 2^53, which Python does not.
        np.testing.assert_allclose(found, expected, rtol=0 if largest < 2**31 else 1e-12)


@pytest.mark.parametrize("text", [
    "(A > 2) + (m > 3) + (B > 1)", "-(A > 2) - (B > 1)", "min(A, m, B) + max(1, B)", "A % B + m // A + cdiv(m, B)",
    "(1 < A <= B) * (m != 4) / B", "sqrt(A) * sqrt(m) + 7 % 4", "5", "m * 2", "A",
])  # fmt: skip
def test_columns_have_the_arithmetic_of_numbers(text: str) -> None:
    expression = Expression.parse(text, ["A", "B", "m"], real=True)
    a, b = [1, 2, 3, 7], [2, 2, 1, 9]
    prepare, finish = staged({"value": expression}, ["A", "B"], ["m"], ["A", "B"])
    for m in (3, 4, 10):
        numbers, columns = prepare(A=np.array(a, float), B=np.array(b, float))
        found = finish(numbers, columns, m=m)
        expected = [expression.of({"A": x, "B": y, "m": m}) for x, y in zip(a, b, strict=True)]
        assert np.broadcast_to(found, 4).tolist() == expected
