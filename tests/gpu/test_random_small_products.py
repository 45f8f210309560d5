"""Many small random products on a simulated GPU, and wrong ones that the comparison must see."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import random_small_gpu_products as small
from support import simulated_libraries as fake

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

KINDS = list(small.KINDS)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 22)
    found.sms, found.executes, found.in_one_piece = 2, True, True
    fake.install(monkeypatch, [found])
    return small.Gpu(lambda x: fake.Tensor.of(found, np.ascontiguousarray(x)), lambda x: x.view.copy(), found, 1)


@pytest.mark.thorough
@pytest.mark.slow_cases(
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "complex64",
    "complex128",
    "float32 ieee",
    "float32 fast",
    "float32 split",
    "float32 highest",
    "float32 rounded",
    "float64 residues",
    "complex128 residues",
    "float64 fewer residues",
    "float64 fewest residues",
    "complex128 fewest residues",
)
@pytest.mark.parametrize("name", KINDS)
def test_products_of_every_kind(gpu: Any, name: str) -> None:
    line = small.one(KINDS.index(name), 3, gpu, batch=3, most=1000)
    assert small.is_right(line), line
    assert line["dtype"] == name


# ---- what the comparison must see ------------------------------------------------------------------------------------


def by_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Right: rounded once from wider arithmetic."""
    wide = {"complex64": np.complex128, "complex128": np.clongdouble, "float64": np.longdouble}.get(
        str(x.dtype), np.float64
    )
    return (x.astype(wide) @ y.astype(wide)).astype(x.dtype)


def without_nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    c = by_numpy(x, y)
    return np.where(np.isfinite(c), c, 0).astype(x.dtype)


def without_the_last_of_k(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return by_numpy(x[..., :-1], y[..., :-1, :])


def without_subnormals(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    c = by_numpy(x, y)
    return np.where(abs(c) < 2.0**-126, 0, c).astype(x.dtype)


def of_another_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    c = by_numpy(x, y)
    c[-1:] = c[:1]
    return c


def different_each_time(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    c = by_numpy(x, y)
    return np.nextafter(c, c.dtype.type(1)) if c.dtype == np.float64 and next(TURNS) % 2 else c


TURNS = itertools.count()


def wrong_calls(monkeypatch: pytest.MonkeyPatch, multiply: Any, calls: int = 130) -> list[Any]:
    def products(gpu: Any, kind: Any, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return [multiply(*each) for each in zip(a, b, strict=True)], "numpy"

    monkeypatch.setattr(small, "products", products)
    found = [small.one(number, 5, small.Gpu(None, None, None, 0), batch=4, most=500) for number in range(calls)]  # type: ignore[arg-type]
    assert not any("raised" in each for each in found)
    lines = small.lines_of(found, 5)
    assert sum(line["wrong"] for line in lines if "wrong" in line) == sum(not small.is_right(each) for each in found)
    return [each for each in found if not small.is_right(each)]


@pytest.mark.parametrize("planted", [
    without_nan, without_the_last_of_k, without_subnormals, of_another_product, different_each_time,
])  # fmt: skip
def test_an_engine_that_computes(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """… so is caught."""
    assert wrong_calls(monkeypatch, planted)


def test_right_products_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_calls(monkeypatch, by_numpy) == []
