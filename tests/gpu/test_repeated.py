"""The short way for products of GPU arrays that were computed before, on a simulated GPU."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.errors import LaunchError, MemoryLimitError, OperandError, UsageError
from tilewright.gpu.arrays import libraries, matmul, repeated
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

KINDS = [fake.Tensor, fake.CupyArray]
SHAPES = [((9, 12), (12, 10)), ((3, 9, 12), (3, 12, 10)), ((3, 9, 12), (12, 10)), ((12,), (12, 10)), ((4, 0), (0, 5))]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = [fake.Gpu(1 << 21, ordinal) for ordinal in range(2)]
    fake.install(monkeypatch, found)
    fake.rungs_alone(monkeypatch)  # which NumPy plays: what the microscope executes is tested in the last test
    yield found
    repeated.short_ways.clear()
    repeated.finished_ways.clear()


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The products that went the long way."""
    went, original = list[Any](), matmul.matmul_on_gpu

    def counted(*args: Any, **named: Any) -> Any:
        went.append(args)
        return original(*args, **named)

    monkeypatch.setattr(matmul, "matmul_on_gpu", counted)
    return went


def whole(*shape: int, seed: int = 1, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@pytest.mark.slow_cases("CupyArray", "((9, 12), (12, 10))", "((3, 9, 12), (12, 10))")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_like_earlier_ones_are_computed_in_one_call(
    gpus: Any, long_ways: list[Any], kind: Any, shapes: Any
) -> None:
    for count, layouts in enumerate(itertools.product(("rows", "columns", "strided"), repeat=2), 1):
        before = gpus[0].replays
        for seed in range(4):
            a, b = whole(*shapes[0], seed=seed), whole(*shapes[1], seed=seed + 9)
            gap = kind.of(gpus[0], whole(1 + 256 * seed))  # so that the arrays lie elsewhere
            c = tw.matmul(laid(kind, gpus[0], a, layouts[0]), laid(kind, gpus[0], b, layouts[1]))
            assert type(c) is kind
            np.testing.assert_array_equal(c.view, np.matmul(a, b))
            del gap
        if min(map(len, shapes)) == 2:
            assert len(long_ways) == count, "the first of each kind"
            assert gpus[0].replays == before + 2, "all but the first, and that at which they were recorded"
    assert all(gpu.current == 0 for gpu in gpus)


def test_what_launches_depend_on_is_told_apart(gpus: Any, long_ways: list[Any]) -> None:
    a, b = whole(8, 8), whole(8, 8, seed=2)
    x, y, z = (fake.Tensor.of(gpus[0], values) for values in (a, b, np.vstack([a, a])))
    cases = [
        (x, y), (x.like(x.view.T), y), (x.like(x.view[:, :7]), y.like(y.view[:7])), (x.like(x.view[:7]), y),
        (fake.Tensor.of(gpus[0], a.astype("f8")), y), (z.like(z.view.reshape(-1)[1:65].reshape(8, 8)), y),
        (fake.Tensor.of(gpus[1], a), fake.Tensor.of(gpus[1], b)),
    ]  # fmt: skip
    for count, (first, second) in enumerate(cases, 1):
        for _ in range(3):
            np.testing.assert_array_equal(tw.matmul(first, second).view, first.view @ second.view)
        assert len(long_ways) == count


def test_streams_are_those_of_the_moment(gpus: Any) -> None:
    for gpu, kind, first in ((0, fake.Tensor, 100), (1, fake.Tensor, 101), (0, fake.CupyArray, 200)):
        gpus[gpu].launches.clear()
        x = kind.of(gpus[gpu], whole(5, 5))
        for _ in range(4):
            tw.matmul(x, x)
        assert [stream for _, stream in gpus[gpu].launches] == [first] * 4
    sys.modules["torch"].current = 300
    x = fake.Tensor.of(gpus[0], whole(5, 5))
    gpus[0].launches.clear()
    tw.matmul(x, x)
    assert [stream for _, stream in gpus[0].launches] == [300]


def test_results_lie_on_the_gpu_of_the_operands(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = sys.modules["torch"]
    for gpu in range(2):
        x = fake.Tensor.of(gpus[gpu], whole(5, 5))
        for current in (0, 1, 0, 1):
            monkeypatch.setattr(torch, "gpu", current)
            c = tw.matmul(x, x)
            assert c.gpu is gpus[gpu]
            np.testing.assert_array_equal(c.view, x.view @ x.view)


def test_gradients_and_negated_values_go_the_long_way(gpus: Any, long_ways: list[Any]) -> None:
    x = fake.Tensor.of(gpus[0], whole(5, 5))
    for _ in range(3):
        tw.matmul(x, x)
    x.requires_grad = True
    with pytest.raises(OperandError, match="a requires grad"):
        tw.matmul(x, x)
    sys.modules["torch"].grad = False
    tw.matmul(x, x)
    assert len(long_ways) == 2, "weights that require a gradient, where none is recorded, take the short way"
    negated = fake.Tensor.of(gpus[0], whole(5, 5))
    negated.is_neg = lambda: True
    negated.resolve_neg = lambda: fake.Tensor.of(gpus[0], -negated.view)
    np.testing.assert_array_equal(tw.matmul(x, negated).view, -x.view @ negated.view)


def test_what_else_is_asked_goes_the_long_way(gpus: Any, long_ways: list[Any]) -> None:
    x = fake.Tensor.of(gpus[0], whole(5, 5))
    right = x.view @ x.view
    for _ in range(3):
        tw.matmul(x, x)
        for other in (fake.CupyArray.of(gpus[0], x.view), fake.Unknown.of(gpus[0], x.view)):
            np.testing.assert_array_equal(tw.matmul(x, other).view, right)
    assert len(long_ways) == 1 + 3 * 2


@pytest.mark.slow_cases("Tensor")
@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_is_part_of_the_key(gpus: Any, kind: Any) -> None:
    a, b = whole(3, 200), whole(200, 4, seed=2)
    a[0], b[:, 0] = 0.1, 0.1
    x, y, out = kind.of(gpus[0], a), kind.of(gpus[0], b), kind.of(gpus[0], whole(3, 4))
    exact = (a.astype("f8") @ b.astype("f8")).astype("f4")
    standard = tw.matmul(x, y).view.copy()
    assert (standard != exact).any()
    for _ in range(4):
        for precision, right in (("highest", exact), ("standard", standard)):
            np.testing.assert_array_equal(tw.matmul(x, y, precision=precision).view, right)
            np.testing.assert_array_equal(tw.matmul(x, y, out, precision=precision).view, right)
    assert gpus[0].replays == 2 + 2 + 2 + 3
    with pytest.raises(UsageError, match="precision 'high' is not known"):
        tw.matmul(x, y, precision="high")
    with pytest.raises(UsageError, match="there is classical alone"):
        tw.matmul(x, y, algorithm="strassen")


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_out_like_an_earlier_one(gpus: Any, long_ways: list[Any], kind: Any, layout: str) -> None:
    for seed in range(4):
        a, b = whole(9, 12, seed=seed), whole(12, 10, seed=seed + 9)
        x, y, out = kind.of(gpus[0], a), kind.of(gpus[0], b), laid(kind, gpus[0], whole(9, 10), layout)
        tw.matmul(x, y)
        assert tw.matmul(x, y, out=out) is out
        np.testing.assert_array_equal(out.view, a @ b)
        assert getattr(out, "versions", 1) == 1, "its version was counted up once"
    assert len(long_ways) == 2
    assert gpus[0].replays == 4


def test_out_that_overlaps_an_operand_goes_the_long_way(gpus: Any, long_ways: list[Any]) -> None:
    values = whole(3, 64)
    x = fake.Tensor.of(gpus[0], values)
    parts = [x.like(x.view[i].reshape(8, 8)) for i in range(3)]
    for first, second, out, ways in ((0, 1, 2, 1), (0, 1, 2, 1), (0, 1, 2, 1), (0, 1, 0, 2), (0, 1, 1, 3)):
        x.view[...] = values
        a, b = parts[first].view.copy(), parts[second].view.copy()
        np.testing.assert_array_equal(tw.matmul(parts[first], parts[second], out=parts[out]).view, a @ b)
        assert len(long_ways) == ways


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_of_a_type_that_no_operand_has(gpus: Any, kind: Any) -> None:
    # In models of PyTorch the bias is a Parameter, and the weight in 16 bits a tensor.
    parameter = type("Parameter", (kind,), {})
    x, bias = kind.of(gpus[0], whole(5, 5)), parameter.of(gpus[0], whole(5))
    for _ in range(4):
        np.testing.assert_array_equal(tw.matmul(x, x, bias=bias).view, x.view @ x.view + bias.view)
    assert gpus[0].replays == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_epilogues_like_earlier_ones(gpus: Any, kind: Any) -> None:
    def check(**says: Any) -> None:
        given = {name: kind.of(gpus[0], x) if isinstance(x, np.ndarray) else x for name, x in says.items()}
        a, b, out = whole(9, 12), whole(12, 10), whole(9, 10)
        x, y, c = (kind.of(gpus[0], values) for values in (a, b, out))
        exact = a @ b * says.get("scale_b", 1) + says.get("bias", 0)
        np.testing.assert_array_equal(tw.matmul(x, y, **given).view, np.maximum(exact, 0))
        np.testing.assert_array_equal(tw.matmul(x, y, c, beta=2, **given).view, np.maximum(exact + 2 * out, 0))

    for count, names in enumerate((("bias",), ("scale_b", "bias"), ()), 1):
        for seed in range(4):
            gap = kind.of(gpus[0], whole(1 + 256 * seed))
            check(activation="relu", **{name: whole(10, seed=seed + len(name)) for name in names})
            del gap
        assert gpus[0].replays == 4 * count, "with out and without: all but the first two"
    x, bias = kind.of(gpus[0], whole(5, 5)), kind.of(gpus[0], whole(5))
    for alpha in (1, 2, 1, 3):
        np.testing.assert_array_equal(tw.matmul(x, x, alpha=alpha, bias=bias).view, alpha * x.view @ x.view + bias.view)
    for _ in range(3):  # out, whose values are read, is an operand
        old = x.view.copy()
        np.testing.assert_array_equal(tw.matmul(x, x, x, beta=1).view, old @ old + old)
        x.view[...] = whole(5, 5)


@pytest.mark.slow_cases("Tensor")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_not_there(gpus: Any, kind: Any) -> None:
    x, y = kind.of(gpus[0], whole(300, 2)), kind.of(gpus[0], whole(2, 300))
    for _ in range(3):
        tw.matmul(x, y)
    filler = fake.Storage(gpus[0], ((1 << 21) - 200_000,), np.uint8)
    launches = len(gpus[0].launches)
    with pytest.raises(MemoryLimitError, match="needs 360,000 bytes more on GPU 0"):
        tw.matmul(x, y)
    del filler
    assert len(gpus[0].launches) == launches
    np.testing.assert_array_equal(tw.matmul(x, y).view, x.view @ y.view)


def test_launches_that_cannot_be_recorded_are_made_by_python(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.Gpu, "replay", lambda *_, **__: None)
    x = fake.Tensor.of(gpus[0], whole(5, 5))
    for _ in range(4):
        np.testing.assert_array_equal(tw.matmul(x, x).view, x.view @ x.view)
    assert len(gpus[0].launches) == 4
    assert gpus[0].current == 0


def test_a_launch_that_fails(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(run=lambda *_: 5, error=lambda status: LaunchError(f"status {status}"))
    monkeypatch.setattr(fake.Gpu, "replay", lambda *_, **__: failing)
    x = fake.Tensor.of(gpus[0], whole(5, 5))
    for _ in range(2):
        tw.matmul(x, x)
    with pytest.raises(LaunchError, match="status 5"):
        tw.matmul(x, x)


def test_keys_and_types_are_forgotten_before_they_are_too_many(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST_KEYS", 3)
    for n in range(1, 9):
        x = fake.Tensor.of(gpus[0], whole(n, n))
        for _ in range(3):
            np.testing.assert_array_equal(tw.matmul(x, x).view, x.view @ x.view)
    known = libraries.library_of(x).repeated._plain
    assert len(known) <= 3
    monkeypatch.setattr(repeated, "_MOST_TYPES", len(repeated.short_ways))
    other = type("Subclass", (fake.Tensor,), {})
    x = other.of(gpus[0], whole(5, 5))
    tw.matmul(x, x)
    assert other not in repeated.short_ways


@pytest.mark.slow
def test_kernels_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor maps and pointers, executed by the microscope."""
    gpu = fake.Gpu(1 << 21)
    fake.install(monkeypatch, [gpu])
    for seed in range(3):
        a, b = whole(8, 16, dtype="float16", seed=seed), whole(16, 8, dtype="float16", seed=seed + 9)
        gap = fake.Tensor.of(gpu, whole(1 + 256 * seed))
        c = tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b))
        np.testing.assert_array_equal(c.view, a.astype("f8") @ b.astype("f8"))
        del gap
    assert gpu.replays == 1
    fake.engine_alone(monkeypatch, cuda_engine()["cuda/hopper"])
    for seed in range(4):
        bias = fake.Tensor.of(gpu, whole(8, dtype="float16", seed=seed))
        scale = fake.Tensor.of(gpu, whole(8, seed=seed))
        c = tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b), bias=bias, scale_a=scale)
        np.testing.assert_array_equal(c.view, a.astype("f8") @ b.astype("f8") * scale.view[:, None] + bias.view)
    assert gpu.replays == 1 + 2
