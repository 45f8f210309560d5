"""Random calls of the C front's small products, some thousands of them, and errors that the comparison must see."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import small_calls
from tilewright.cpu.runtime import small_products
from tilewright.host.limits import use_threads


@functools.cache
def known() -> Callable[..., Any]:
    short = small_calls.learned()
    if short is small_products.take_long_way:
        pytest.skip("there is no C front here: python -m tilewright.prebuilt")
    return short


def found(short: Callable[..., Any], rounds: int) -> tuple[list[str], Counter[str]]:
    """What is wrong with the calls of some rounds, and how many were made."""
    done = Counter[str]()
    with use_threads(2):
        wrong = [words for i in range(rounds) for words in small_calls.one_round(np.random.default_rng(i), short, done)]
    return wrong, done


@pytest.mark.thorough
def test_random_calls_are_right() -> None:
    wrong, done = found(known(), 40)
    assert wrong == []
    assert min(done["computed"], done["left"]) > 3000


# ---- errors that it must see -----------------------------------------------------------------------------------------

_leaked: list[Any] = []


def leaves_all(*_: Any) -> None:
    """To the long way."""


def takes_subclasses(a: Any, b: Any, out: Any, *more: bool) -> Any:
    return known()(np.asarray(a), np.asarray(b), out, *more)


def is_wrong_by_one(a: Any, b: Any, out: Any, *more: bool) -> Any:
    result = known()(a, b, out, *more)
    if isinstance(result, np.ndarray) and result.size:
        result[(-1,) * result.ndim] += 1
    return result


def writes_to_an_operand(a: Any, b: Any, out: Any, *more: bool) -> Any:
    if a.size and a.flags.writeable:
        a[(0,) * a.ndim] += 1
    return known()(a, b, out, *more)


def keeps_a_reference(a: Any, b: Any, out: Any, *more: bool) -> Any:
    _leaked.append(a)
    return known()(a, b, out, *more)


def returns_a_copy(a: Any, b: Any, out: Any, *more: bool) -> Any:
    result = known()(a, b, out, *more)
    return None if result is None else np.copy(result)


def raises(*_: Any) -> None:
    raise ValueError


@pytest.mark.parametrize(
    ("short", "words"),
    [
        (leaves_all, "left to the long way"),
        (takes_subclasses, "computed"),
        (is_wrong_by_one, "other values"),
        (writes_to_an_operand, "changed"),
        (keeps_a_reference, "reference counts differ"),
        (returns_a_copy, "not out"),
        (raises, "raised ValueError"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_an_error_is_seen(short: Callable[..., Any], words: str) -> None:
    known()
    wrong, _ = found(short, 4)
    _leaked.clear()
    assert any(text.startswith(words) for text in wrong)
