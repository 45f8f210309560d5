"""Makes random operands of named distributions, over which accuracy is measured.

The name of a distribution may be followed by a colon and a number, its parameter. ``lognormal:4`` has σ = 4, and the
magnitudes of ``graded:40`` extend over 40 binades along k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...errors import UsageError

Pair = tuple[np.ndarray, np.ndarray]
#: A function that makes A (m×k) and B (k×n) in float64 from a generator, the sizes and the number in the name; ``limits``
#: has the limits of the dtype.
Maker = Callable[[np.random.Generator, tuple[int, int, int], float, np.finfo], Pair]

#: The number of a name that is given without one.
_NUMBERS = {"lognormal": 1.0, "graded": 40.0}
_NOT_BENCHED = ("infinity", "nan", "huge_row")


def distributed(name: str, shape: tuple[int, int, int], dtype: str, seed: int = 1) -> Pair:
    """Make A (m×k) and B (k×n) in float32 or float64, for ``shape`` = (m, n, k). Calls with the same arguments return
    the same matrices.

    Raises UsageError for an unknown name, and for a number after a name that takes none.

    >>> a, b = distributed("graded:40", (3, 5, 4), "float32")
    >>> a.shape, b.shape, a.dtype.name
    ((3, 4), (4, 5), 'float32')
    """
    word, _, number = name.partition(":")
    if word not in DISTRIBUTIONS or (number and word not in _NUMBERS):
        raise UsageError(f"distribution {name!r}: known are {', '.join(DISTRIBUTIONS)}; {_numbered()} take a number")
    try:
        value = float(number) if number else _NUMBERS.get(word, 0.0)
    except ValueError:
        raise UsageError(f"distribution {name!r}: {number!r} is not a number") from None
    rng = np.random.default_rng([seed, *shape, list(DISTRIBUTIONS).index(word)])
    a, b = DISTRIBUTIONS[word](rng, shape, value, np.finfo(dtype))
    return a.astype(dtype), b.astype(dtype)


def check_benched(name: str, dtypes: Sequence[str]) -> None:
    """Raise UsageError for an unknown distribution, or one that the bench cannot verify. The products and their squares
    must be finite, and the dtypes must be able to represent the distribution's numbers.

    >>> check_benched("graded:40", ["float32"])
    """
    distributed(name, (1, 1, 1), "float32")
    if name in _NOT_BENCHED:
        raise UsageError(
            f"distribution {name!r}: its products or their squares are not finite, as the bench needs them"
        )
    if wrong := [dtype for dtype in dtypes if dtype not in ("float32", "float64", "bfloat16")]:
        raise UsageError(f"distribution {name!r}: of float32, float64 and bfloat16 alone, got dtype {wrong[0]}")


def _numbered() -> str:
    return " and ".join(_NUMBERS)


def _uniform(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:  # noqa: ARG001
    """Uniform in [−1, 1)."""
    m, n, k = shape
    return rng.uniform(-1, 1, (m, k)), rng.uniform(-1, 1, (k, n))


def _positive(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:  # noqa: ARG001
    """Uniform in [0, 1): sums grow with k, and rounding errors do not cancel systematically."""
    m, n, k = shape
    return rng.random((m, k)), rng.random((k, n))


def _normal(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:  # noqa: ARG001
    m, n, k = shape
    return rng.standard_normal((m, k)), rng.standard_normal((k, n))


def _lognormal(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """Normal numbers times e^(σ·x), x normal: a wide range in every row and column, without order."""
    return tuple(x * np.exp(number * rng.standard_normal(x.shape)) for x in _normal(rng, shape, 0, limits))  # type: ignore[return-value]


def _cancelling(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """Operands with which the second half of k cancels nearly all of the sum over the first half."""
    a, b = _normal(rng, shape, number, limits)
    half = shape[2] // 2
    a[:, half : 2 * half] = -a[:, :half] * (1 + 2.0 ** -(limits.nmant // 2))
    b[half : 2 * half] = b[:half]
    return a, b


def _graded(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """The columns of A fall by 2^number along k, and the rows of B rise by as much, so that all products of elements
    have similar magnitudes."""
    a, b = _normal(rng, shape, number, limits)
    scale = 2.0 ** np.floor(rng.permutation(np.linspace(-number / 2, number / 2, shape[2])))
    return a * scale, b / scale[:, None]


def _graded_rows(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """Rows of A and columns of B of many magnitudes, each with a narrow range."""
    a, b = _normal(rng, shape, number, limits)
    top = limits.maxexp // 3
    return a * 2.0 ** np.linspace(-top, top, len(a))[:, None], b * 2.0 ** np.linspace(-20, 20, b.shape[1])


def _vandermonde(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """Powers x^j of points x from 0.1 to 1, which reach subnormal numbers and zeros."""
    m, n, k = shape
    return np.linspace(0.1, 1, m)[:, None] ** np.arange(k), _normal(rng, (m, n, k), number, limits)[1]


def _huge_row(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """One row of A is larger than the others by a factor of 2^(3/4 of the largest exponent)."""
    a, b = _normal(rng, shape, number, limits)
    a[-1:] *= 2.0 ** (limits.maxexp * 3 // 4)
    return a, b


def _with(value: float) -> Maker:
    def make(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
        a, b = _normal(rng, shape, number, limits)
        a[-1:, -1:] = value
        return a, b

    return make


def _subnormal(rng: np.random.Generator, shape: tuple[int, int, int], number: float, limits: np.finfo) -> Pair:
    """A has subnormal numbers, with a third of their bits; B is large enough for normal results."""
    a, b = _normal(rng, shape, number, limits)
    return a * 2.0 ** (limits.minexp - limits.nmant // 3), b * 2.0 ** (limits.nmant + 8)


#: The distributions: names and functions that make operands. If a distribution has an infinity or a NaN, it is the last
#: element of A.
DISTRIBUTIONS: dict[str, Maker] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "positive": _positive,
    "cancelling": _cancelling,
    "graded": _graded,
    "graded_rows": _graded_rows,
    "vandermonde": _vandermonde,
    "huge_row": _huge_row,
    "infinity": _with(np.inf),
    "nan": _with(np.nan),
    "subnormal": _subnormal,
}
