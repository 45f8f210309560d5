"""The little language of --sizes."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.lab.inputs import options
from tilewright.lab.inputs.options import LARGEST, MOST_SIZES, parse_sizes


@pytest.mark.parametrize(
    ("text", "squares"),
    [
        ("512", [512]),
        ("512, 1000", [512, 1000]),
        ("8,8,4", [8, 4]),
        ("16:128:x2", [16, 32, 64, 128]),
        ("16:100:x2", [16, 32, 64]),
        ("10:100:x1.5", [10, 15, 22, 34, 51, 76]),
        ("100:300:+100", [100, 200, 300]),
        ("100:300:100", [100, 200, 300]),
        ("7:7:x2", [7]),
        ("0:2:+1", [0, 1, 2]),
        ("16:64:x2,32,5", [16, 32, 64, 5]),
    ],
)
def test_lists_and_ranges(text, squares) -> None:
    assert parse_sizes(text) == [(n, n, n) for n in squares]


@pytest.mark.parametrize("text", ["6x2000x4", "6×2000×4", " 6x2000x4 "])
def test_rectangles(text) -> None:
    assert parse_sizes(text) == [(6, 2000, 4)]


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "8,", "x", "8x", "8x8", "8x8x8x8", "-8", "+8", "8.5", "1e3", "0x8", "8:", "8:16", "8:16:", "16:8:x2"]
    + ["8:16:x1", "8:16:x0", "8:16:+0", "0:16:x2", "8:16:x-2", "8:16:x2:x2", "nan", "∞", "8 16", "²", "x" * 10_000]
    + [str(LARGEST + 1), "9" * 10_000, f"1:{LARGEST}:+1", "1:9:x1.0000001", "1:600:+1,601:1200:+1"],
)
def test_what_is_no_size_is_refused_in_its_own_words(text) -> None:
    with pytest.raises(UsageError, match="sizes"):
        parse_sizes(text)


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(1.1, 9, allow_nan=False).map(lambda x: round(x, 3)))
def test_a_range_grows_from_its_first_and_stays_within_its_last(first, more, factor) -> None:
    found = [n for n, _, _ in parse_sizes(f"{first}:{first + more}:x{factor}")]
    assert found[0] == first
    assert found == sorted(set(found))
    assert found[-1] <= first + more < found[-1] * factor * 1.01 + 1
    assert len(found) <= MOST_SIZES


def test_examples() -> None:
    assert doctest.testmod(options).failed == 0
