"""Epilogues that the kernel applies which multiplies, executed by the microscope: one launch, and the numbers are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.epilogues import BF16, E4, F16, F32, I8, check, expected, reals, whole
from support.layouts import laid
from support.multiplied import by_columns, by_rows, multiply
from support.selection import in_turns, widest_and_narrowest
from tilewright.errors import DTypeError, ShapeError
from tilewright.gpu.planning.ways import EngineShape, ways
from tilewright.gpu.runtime.engine_product import EngineProduct, FinishForm
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import Card

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

HOPPER, PROMOTED = (cuda_engine()[name] for name in ("cuda/hopper", "cuda/hopper_promoted"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 23, sms=2)


def launched(gpu: Any) -> list[str]:
    return [entry for entry, _ in gpu.launches]


EPILOGUES: dict[str, dict[str, Any]] = {
    "factor": {"alpha": -0.5},
    "gelu": {"bias": True, "activation": "gelu", "alpha": 2},
    "silu": {"activation": "silu", "scale_a": True},
    "scales": {"scale_a": True, "scale_b": True},
    "sum": {"beta": 2},
    "all": {"alpha": 3, "scale_a": True, "scale_b": True, "beta": -0.5, "bias": True, "activation": "relu"},
}


@pytest.mark.slow_cases("sum", "all", "gelu", "silu", "scales")
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("layout", ["rows", "columns", "wider"])
@pytest.mark.parametrize("shape", [(150, 72, 136), (33, 40, 65)], ids=str)
@pytest.mark.parametrize(("dtype", "result"), [(BF16, BF16), (F32, F32), (I8, F16), (E4, F32)], ids=str)
def test_one_launch_applies_all(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, dtype: Any, result: Any, shape: Any, layout: str, epilogue: str
) -> None:
    fake.engine_alone(monkeypatch, PROMOTED if dtype == E4 else HOPPER)
    m, k, n = shape
    a, b, old = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype, seed=4), reals(m, n, dtype=result)
    arrays = {
        "bias": reals(n, dtype=BF16 if result == BF16 else F32),
        "scale_a": reals(m, 1, seed=6),
        "scale_b": reals(n, seed=7),
    }
    says = {name: arrays[name] if value is True else value for name, value in EPILOGUES[epilogue].items()}
    given = {name: fake.Tensor.of(gpu, x) if isinstance(x, np.ndarray) else x for name, x in says.items()}
    # Rows of A and columns of B that follow each other are not copied.
    x, y, out = (
        laid(fake.Tensor, gpu, a, "rows"),
        laid(fake.Tensor, gpu, b, "columns"),
        laid(fake.Tensor, gpu, old, layout),
    )
    around = out.storage.view.copy() if out.storage is not None else None
    precision = "tf32" if dtype == F32 else "standard"
    assert tw.matmul(x, y, out=out, out_dtype=result, precision=precision, **given) is out
    check(out.view, expected(a, b, old if "beta" in says else None, **says), result)
    assert launched(gpu)[-1] == "hopper", "no other kernel follows"
    if around is not None:
        out.view[...] = old
        np.testing.assert_array_equal(out.storage.view, around)


@pytest.mark.slow
def test_a_batch_shares_bias_and_scales(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engine_alone(monkeypatch, HOPPER)
    a, b, bias, scale = whole(3, 70, 16, dtype=BF16), whole(3, 16, 72, dtype=BF16), reals(72), reals(70)
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    c = tw.matmul(place(a), place(b), bias=place(bias), scale_a=place(scale), activation="relu")
    exact = np.stack([expected(x, y, bias=bias, scale_a=scale, activation="relu") for x, y in zip(a, b, strict=True)])
    check(c.view, exact, BF16)
    assert launched(gpu) == ["hopper"]


@pytest.mark.slow
def test_what_the_kernel_cannot_apply_is_left_to_another(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales of the rows of each product of a batch that became one; and C before, where ``out`` is an operand."""
    fake.engine_alone(monkeypatch, HOPPER)
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    a, b, scale = whole(3, 40, 16, dtype=BF16), whole(16, 24, dtype=BF16), reals(40)
    c = tw.matmul(place(a), place(b), scale_a=place(scale))
    check(c.view, np.stack([expected(x, b, scale_a=scale) for x in a]), BF16)
    assert launched(gpu)[-1] == "finish"
    x = place(whole(24, 24, dtype=BF16))
    exact = expected(x.view, x.view, x.view, beta=1)
    check(tw.matmul(x, x, out=x, beta=1).view, exact, BF16)
    assert launched(gpu)[-1] == "finish"


# ---- scales of blocks


def of_blocks(a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
    """The product in float64, each 128 of k with its scales."""
    x, y = (v.astype(np.float64) for v in (a, b))
    columns = np.repeat(scale_b.astype(np.float64), 128, axis=1)[:, : b.shape[1]]
    parts = (slice(i, i + 128) for i in range(0, a.shape[1], 128))
    return sum(x[:, at] @ y[at] * scale_a[:, i, None] * columns[i] for i, at in enumerate(parts))


def scales(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    steps = -(-k // 128)
    return 1 + reals(m, steps, seed=6), 1 + reals(steps, -(-n // 128), seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("layouts", ["rows-rows", "columns-columns", "neither-neither"])
@pytest.mark.parametrize("shape", [(150, 300, 272), (33, 1408, 130), (1, 256, 16), (40, 128, 300)], ids=str)
@pytest.mark.parametrize(
    "says", [{}, {"bias": True, "activation": "relu", "alpha": 2, "beta": 1}], ids=["plain", "all"]
)
def test_scales_of_blocks(gpu: Any, shape: Any, layouts: str, says: Any) -> None:
    m, k, n = shape
    a, b, old, bias = whole(m, k, dtype=E4), whole(k, n, dtype=E4, seed=4), reals(m, n), reals(n)
    scale_a, scale_b = scales(m, n, k)
    of_a, of_b = (laid(fake.Tensor, gpu, x, how) for x, how in zip((scale_a, scale_b), layouts.split("-"), strict=True))
    x, y, out = fake.Tensor.of(gpu, a), laid(fake.Tensor, gpu, b, "columns"), fake.Tensor.of(gpu, old)
    given = says | {"bias": fake.Tensor.of(gpu, bias)} if says else {}
    c = tw.matmul(x, y, out=out, out_dtype="float32", scale_a=of_a, scale_b=of_b, **given)
    exact = of_blocks(a, b, scale_a, scale_b)
    exact = np.maximum(2 * exact + old + bias, 0) if says else exact
    assert (abs(c.view - exact) <= 2.0**-16 * (1 + abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))).all()


@pytest.mark.slow
def test_scales_of_blocks_on_the_host() -> None:
    for dtype in (F32, BF16, I8):
        a, b = whole(9, 300, dtype=dtype), whole(300, 140, dtype=dtype)
        scale_a, scale_b = scales(9, 140, 300)
        c = tw.matmul(a, b, out_dtype=F32, scale_a=scale_a, scale_b=scale_b, bias=reals(140), activation="relu")
        exact = np.maximum(of_blocks(a, b, scale_a, scale_b) + reals(140), 0)
        assert (abs(c - exact) <= 2.0**-16 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))).all()


@pytest.mark.slow
def test_parts_of_k_have_their_scales(gpu: Any) -> None:
    gpu.sms = 132
    a, b = whole(40, 4096, dtype=E4), whole(4096, 64, dtype=E4)
    scale_a, scale_b = scales(40, 64, 4096)
    x, y, of_a, of_b = (fake.Tensor.of(gpu, v) for v in (a, np.ascontiguousarray(b.T), scale_a, scale_b))
    y = y.like(y.view.T)
    plan = tw.plan(x, y, scale_a=of_a, scale_b=of_b, out_dtype="float32")
    assert plan.parts > 1
    assert "A·B with scales of blocks" in str(plan)
    c = tw.matmul(x, y, scale_a=of_a, scale_b=of_b, out_dtype="float32").view
    exact = of_blocks(a, b, scale_a, scale_b)
    assert (abs(c - exact) <= 2.0**-16 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))).all()


def test_scales_of_blocks_that_are_refused(gpu: Any) -> None:
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    a, b, (scale_a, scale_b) = whole(9, 300, dtype=E4), whole(300, 140, dtype=E4), scales(9, 140, 300)
    for of_a, of_b in ((scale_a, scale_b[:, :1]), (scale_a, reals(140)), (scale_a[:, :2], scale_b), (scale_a, None)):
        given = {"scale_a": place(of_a)} | ({} if of_b is None else {"scale_b": place(of_b)})
        with pytest.raises(ShapeError, match="one for each row and 128 of k"):
            tw.matmul(place(a), place(b), **given)
    given = {"scale_a": place(scale_a), "scale_b": place(scale_b)}
    for x, y, precision in ((a, b, "fast"), (a.astype(BF16), b.astype(BF16), "standard")):
        with pytest.raises(DTypeError, match="they are for float8, precision 'standard'"):
            tw.matmul(place(x), place(y), precision=precision, **given)
    with pytest.raises(ShapeError, match="of two matrices"):
        tw.matmul(place(a[None]), place(b), **given)


# ---- tiles and plans


WAYS = [
    (HOPPER, {}),
    (PROMOTED, {}),
    *(
        (kernel, p)
        for kernel in (HOPPER, PROMOTED)
        for p in widest_and_narrowest(each.params for each in kernel.presets)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "params"),
    in_turns(WAYS, 2),
    ids=lambda p: "-".join(f"{n}{v}" for n, v in p.items()) if isinstance(p, dict) else p.name,
)
def test_every_tile_of_many(gpu: Any, kernel: Any, params: dict[str, int]) -> None:
    """More tiles than blocks, and rows and columns beyond the edges."""
    m, n, k = 300, 520, 128
    dtype, kind, element = ("bfloat16", "bfloat16", BF16) if kernel is HOPPER else ("float8", "float8_e4m3fn", E4)
    a, b, bias, rows = whole(m, k, dtype=element), whole(k, n, dtype=element), reals(n), reals(m, seed=8)
    epilogue = FinishForm(1.0, 0.0, "relu", ("float32", 1), 1, None, m)
    bits = np.uint16 if kernel is HOPPER else np.uint8
    memory = [gpu.put(x) for x in (a.view(bits), np.ascontiguousarray(b.T).view(bits), bias, rows)]
    c = gpu.allocate(m * n * 2)
    factors = by_rows(m, k, kind), by_columns(k, n, kind)
    what = EngineProduct(dtype, *factors, by_rows(m, n, "bfloat16"), epilogue=epilogue)
    x, y, of_bias, of_rows = (each.pointer for each in memory)
    multiply(gpu, kernel, what, params, (x, y, c.pointer), (of_bias, of_rows, 0))
    check(gpu.get(c, BF16, (m, n)), expected(a, b, bias=bias, scale_a=rows, activation="relu"), BF16)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"BM": 64, "BN": 96, "STAGES": 8}], ids=["wide", "narrow"])
def test_columns_of_the_result_may_follow_each_other(gpu: Any, params: dict[str, int]) -> None:
    m, n, k = 136, 330, 64
    a, b, bias, before = whole(m, k, dtype=BF16), whole(k, n, dtype=BF16), reals(m), whole(m, n, dtype=BF16, seed=4)
    epilogue = FinishForm(2.0, 0.5, "relu", ("float32", 1), None, None, m).transposed
    memory = [gpu.put(x) for x in (a.view(np.uint16), np.ascontiguousarray(b.T).view(np.uint16), bias)]
    c = gpu.put(np.ascontiguousarray(before.T).view(np.uint16))
    of_b, of_c = by_columns(k, n, "bfloat16"), by_columns(m, n, "bfloat16")
    what = EngineProduct("bfloat16", by_rows(m, k, "bfloat16"), of_b, of_c, epilogue=epilogue)
    x, y, of_bias = (each.pointer for each in memory)
    multiply(gpu, HOPPER, what, params, (x, y, c.pointer), (of_bias, 0, 0))
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64)) + 0.5 * before.astype(np.float64) + bias[:, None]
    check(gpu.get(c, BF16, (n, m)).T, np.maximum(exact, 0), BF16)


def test_the_plan_says_which_kernel_applies_it(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engine_alone(monkeypatch, HOPPER)
    place = lambda x: fake.Tensor.of(gpu, x)  # noqa: E731
    a, b, bias = place(whole(80, 64, dtype=BF16)), place(whole(64, 72, dtype=BF16)), place(reals(72))
    plan = tw.plan(a, b, bias=bias)
    assert "A·B + bias, by the same kernel" in str(plan)
    assert plan.workspace_bytes == 0


def test_vectors_must_fit_into_shared_memory() -> None:
    """Two vectors of 232 columns for each of two groups take more than five stages leave."""
    found = {
        vectors: ways(HOPPER, EngineShape("bfloat16", "bfloat16", 4096, 4096, 4096, vectors=vectors), Card())
        for vectors in (None, 1, 2)
    }
    widest = {
        vectors: any(way.params["BN"] == 232 and way.params["STAGES"] == 5 for way in each)
        for vectors, each in found.items()
    }
    assert widest == {None: True, 1: True, 2: False}


def test_rows_and_columns_of_the_kernel_are_exchanged_where_it_multiplies_transposes() -> None:
    form = FinishForm(1.0, 0.0, None, ("bfloat16", 1), 1, None, 8)
    assert (form.vectors, form.transposed.vectors) == (1, 1)
    assert form.transposed.by_row
