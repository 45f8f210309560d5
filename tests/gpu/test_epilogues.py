"""Scales, α, β, bias and activation of ``matmul``, on the CPU, and on a GPU, whose kernels the microscope executes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.epilogues import ACTIVATIONS, BF16, E4, F16, F32, F64, I8, check, expected, reals, whole
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 22)
    found.sms, found.executes = 4, True
    fake.install(monkeypatch, [found])
    return found


PAIRS = [(F32, F32), (F64, F64), (BF16, BF16), (F16, F32), (I8, F32)]


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "result", "on_gpu"),
    [*((*pair, on_gpu) for pair in PAIRS for on_gpu in (False, True)), (E4, BF16, True)],  # a CPU has no float8
    ids=str,
)
def test_the_result_is_rounded_once(gpu: Any, dtype: Any, result: Any, activation: Any, on_gpu: bool) -> None:
    a, b = whole(17, 20, dtype=dtype), whole(20, 33, dtype=dtype)
    arrays = {
        "bias": reals(33, dtype=BF16 if dtype == BF16 else F32),
        "scale_a": reals(17, 1),
        "scale_b": reals(1, 33, seed=3),
    }
    says: dict[str, Any] = {"alpha": 0.5, "activation": activation, "out_dtype": result}
    place = (lambda x: fake.Tensor.of(gpu, x)) if on_gpu else (lambda x: x)
    c = tw.matmul(place(a), place(b), **says, **{name: place(x) for name, x in arrays.items()})
    check(c.view if on_gpu else c, expected(a, b, **says, **arrays), result)
    if on_gpu:
        assert [entry for entry, _ in gpu.launches][-1] in ("hopper", "finish")


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", ["rows", "columns", "wider"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_beta_reads_out(gpu: Any, dtype: Any, layout: str, on_gpu: bool) -> None:
    a, b, old = whole(3, 20, 16, dtype=dtype), whole(16, 9, dtype=dtype), reals(3, 20, 9, dtype=dtype)
    shape = {"rows": (3, 20, 9), "columns": (3, 9, 20), "wider": (3, 20, 13)}[layout]
    storage = np.zeros(shape, dtype)
    x = fake.Tensor.of(gpu, storage) if on_gpu else storage
    view = x.view if on_gpu else x
    view = view.swapaxes(1, 2) if layout == "columns" else view[..., 2 : 2 + 9] if layout == "wider" else view
    view[...] = old
    out = x.like(view) if on_gpu else view
    place = (lambda v: fake.Tensor.of(gpu, v)) if on_gpu else (lambda v: v)
    says = {"alpha": 2, "beta": -0.5, "bias": reals(9)}
    assert tw.matmul(place(a), place(b), out=out, **(says | {"bias": place(says["bias"])})) is out
    check(view, expected(a, b, old, **says), dtype)
    if layout == "wider":
        whole_storage = out.storage.view if on_gpu else storage
        assert (whole_storage[..., :2] == 0).all()
        assert (whole_storage[..., 11:] == 0).all()


@pytest.mark.slow
def test_numbers_as_scales_and_what_is_not_read(gpu: Any) -> None:
    a, b = whole(8, 16), whole(16, 12)
    scale = np.float32(0.25).reshape(())
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    check(tw.matmul(place(a), place(b), scale_a=place(scale), scale_b=3).view, expected(a, b) * 0.75, F32)
    check(tw.matmul(a, b, scale_a=scale, scale_b=3), expected(a, b) * 0.75, F32)
    out = place(np.full((8, 12), np.nan, np.float32))
    check(tw.matmul(place(a), place(b), out=out, alpha=2, beta=0).view, expected(a, b) * 2, F32)
    x = place(np.full((2, 16), np.nan, np.float32))
    assert np.isnan(tw.matmul(x, place(b), activation="relu").view).all()
    assert (tw.matmul(place(np.zeros((4, 0), np.float32)), place(np.zeros((0, 3), np.float32)), bias=place(reals(3))).view
            == reals(3)).all()  # fmt: skip


def test_the_plan_says_the_formula(gpu: Any) -> None:
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    a, b = place(whole(8, 16, dtype=BF16)), place(whole(16, 12, dtype=BF16))
    plan = tw.plan(a, b, bias=place(reals(12)), activation="gelu", alpha=2)
    assert "gelu(2 · A·B + bias)" in str(plan)
    assert plan.workspace_bytes >= 8 * 12 * 4
    assert tw.plan(whole(3, 4, dtype=F16), whole(4, 5, dtype=F16), bias=reals(5)).compute == "float32"


REFUSED = [
    ({"activation": "tanh"}, UsageError, "activation 'tanh' is not known"),
    ({"alpha": 1j}, UsageError, "alpha must be a real number"),
    ({"beta": 1}, UsageError, "there is no out"),
    ({"bias": (4,)}, ShapeError, r"bias is \(4,\): it must be one number for each column"),
    ({"scale_a": (3,)}, ShapeError, r"scale_a is \(3,\): it must be one number for each row"),
]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(("says", "kind", "words"), REFUSED, ids=[next(iter(says)) for says, *_ in REFUSED])
def test_what_is_refused(gpu: Any, says: dict[str, Any], kind: Any, words: str, on_gpu: bool) -> None:
    place = (lambda x: fake.Tensor.of(gpu, x)) if on_gpu else (lambda x: x)
    given = {name: place(reals(*value)) if isinstance(value, tuple) else value for name, value in says.items()}
    with pytest.raises(kind, match=words):
        tw.matmul(place(whole(5, 6)), place(whole(6, 7)), **given)


def test_arrays_that_are_refused(gpu: Any) -> None:
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    a, b = place(whole(5, 6)), place(whole(6, 7))
    with pytest.raises(OperandError, match="bias is a ndarray: it must be an array on the GPU"):
        tw.matmul(a, b, bias=reals(7))
    with pytest.raises(DTypeError, match="scale_a is float64: it must be float32"):
        tw.matmul(a, b, scale_a=place(reals(5, dtype=F64)))
    with pytest.raises(ShapeError, match="bias are for products of matrices"):
        tw.matmul(whole(6), whole(6, 7), bias=reals(7))
    with pytest.raises(DTypeError, match="the product is int8, and an epilogue needs real"):
        tw.matmul(whole(5, 6, dtype=I8), whole(6, 7, dtype=I8), alpha=2)
    with pytest.raises(DTypeError, match="the result is int8: with an epilogue"):
        tw.matmul(place(whole(5, 6, dtype=I8)), place(whole(6, 7, dtype=I8)), alpha=2)
