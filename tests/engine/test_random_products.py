"""Random products against NumPy, some hundreds of them, and errors that the comparison must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import random_products
import tilewright as tw

#: The engine's own, which the planted ones call.
MATMUL, GEMM = tw.matmul, tw.gemm


@pytest.mark.slow
def test_random_products_are_numpys() -> None:
    done = random_products.many(300, seed=1)
    assert not done["wrong"]
    kinds = done["of_each_kind"]
    for words in (
        "matmul",
        "out",
        "gemm",
        "refused",
        "out overlaps an operand",
        "a: not aligned",
        "b: batch",
        "b: vector",
    ):
        assert kinds[words] >= 5, words
    for words in (
        "with a negative stride",
        "with a stride of 0",
        "of another byte order",
        "column-major",
        "empty",
        "list",
    ):
        assert kinds[f"a: {words}"], words


def test_a_product_can_be_made_again() -> None:
    for number in (3, 77):
        assert random_products.one(5, number) == random_products.one(5, number)


# ---- errors that it must see -----------------------------------------------------------------------------------------


def misses_the_last_term(a: Any, b: Any, out: Any = None) -> Any:
    """Of the last column: a tail that is one too short."""
    result = MATMUL(a, b, out)
    y = np.asarray(b)
    if np.ndim(result) >= 2 and result.size and y.ndim >= 2 and y.shape[-2] > 1 and result.dtype != object:
        shorter = MATMUL(np.asarray(a)[..., :-1], y[..., :-1, -1:])
        result[..., -1:] = shorter if np.ndim(shorter) == result.ndim else result[..., -1:]
    return result


def leaves_nan_in(alpha: complex, a: Any, b: Any, beta: complex, c: np.ndarray) -> np.ndarray:
    """Reads C also where beta is 0."""
    with np.errstate(all="ignore"):
        old = c * 0
        GEMM(alpha, a, b, beta, c)
        c[...] = c + old
    return c


def takes_strides_for_positive(a: Any, b: Any, out: Any = None) -> Any:
    if isinstance(b, np.ndarray) and b.ndim == 2 and b.strides[0] < 0:
        b = b[::-1]
    return MATMUL(a, b, out)


def takes_bytes_for_native(a: Any, b: Any, out: Any = None) -> Any:
    if isinstance(a, np.ndarray) and not a.dtype.isnative:
        a = np.array(a, subok=False).view(a.dtype.newbyteorder("="))
    with np.errstate(all="ignore"):
        return MATMUL(a, b, out)


def writes_beside_out(a: Any, b: Any, out: Any = None) -> Any:
    """A whole row of the memory where only every other element is its own."""
    result = MATMUL(a, b, out)
    if (
        out is not None
        and out.ndim == 2
        and out.size
        and abs(out.strides[-1]) == 2 * out.itemsize
        and out.dtype != object
    ):
        gap = np.lib.stride_tricks.as_strided(out.view(np.ndarray)[:1, :1], (1, 2), (0, abs(out.strides[-1]) // 2))
        gap[0, 1] = 1 - gap[0, 1] if gap.dtype.kind not in "b" else not gap[0, 1]
    return result


def writes_while_it_reads(a: Any, b: Any, out: Any = None) -> Any:
    """An out that overlaps the operands, row by row."""
    x, y = np.asarray(a), np.asarray(b)
    if out is None or x.ndim != 2 or y.ndim != 2:
        return MATMUL(a, b, out)
    for row in range(len(out)):
        MATMUL(x[row], y, out[row])
    return out


def changes_an_operand(a: Any, b: Any, out: Any = None) -> Any:
    result = MATMUL(a, b, out)
    if isinstance(a, np.ndarray) and a.flags.writeable and a.size and a.dtype.kind in "iu":
        a.flat[0] = a.flat[0] ^ 1
    return result


def is_wrong_on_two_threads(a: Any, b: Any, out: Any = None) -> Any:
    result = MATMUL(a, b, out)
    if tw.get_threads() == 2 and np.ndim(result) == 2 and result.size and result.dtype.kind == "f":
        result[-1, -1] = result[-1, -1] + 1
    return result


def is_of_a_wider_dtype(a: Any, b: Any, out: Any = None) -> Any:
    result = MATMUL(a, b, out)
    return result.astype(np.float64) if out is None and result.dtype == np.float32 else result


def answers_an_array_for_a_scalar(a: Any, b: Any, out: Any = None) -> Any:
    return np.asarray(MATMUL(a, b, out)) if out is None else MATMUL(a, b, out)


def casts_anything(a: Any, b: Any, out: Any = None) -> Any:
    if isinstance(out, np.ndarray) and out.dtype == bool:
        out[...] = MATMUL(a, b) != 0
        return out
    return MATMUL(a, b, out)


def rounds_twice(a: Any, b: Any, out: Any = None) -> Any:
    """Sums float64 in float32."""
    x, y = np.asarray(a), np.asarray(b)
    if out is None and x.dtype == y.dtype == np.float64:
        return MATMUL(x.astype("f4"), y.astype("f4")).astype("f8")
    return MATMUL(a, b, out)


def stops_infinity(a: Any, b: Any, out: Any = None) -> Any:
    result = MATMUL(a, b, out)
    return np.nan_to_num(result) if out is None and result.dtype.kind == "f" else result


PLANTED: list[Callable[..., Any]] = [
    *(misses_the_last_term, leaves_nan_in, takes_strides_for_positive, takes_bytes_for_native, writes_beside_out),
    *(writes_while_it_reads, changes_an_operand, is_wrong_on_two_threads, is_of_a_wider_dtype, casts_anything),
    *(answers_an_array_for_a_scalar, rounds_twice, stops_infinity),
]


@pytest.mark.slow_cases("leaves_nan_in", "takes_strides_for_positive")
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_an_engine_that(planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """… does so is caught."""
    monkeypatch.setattr(tw, "gemm" if planted is leaves_nan_in else "matmul", planted)
    assert any(random_products.one(1, number)[1] for number in range(1000))
