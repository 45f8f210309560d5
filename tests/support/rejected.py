"""Kernels that must be rejected, each wrong in a way that real ones have been, and twins that must pass.

They are kernels like any other: declared, run by the runner, verified by the oracle, measured by the bench.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from tilewright.cpu.runtime.threads import Team
from tilewright.kernels import Kernel, kernel

Function = Callable[[np.ndarray, np.ndarray, np.ndarray], None]

#: The kernels of this file by name. ``WRONG`` are wrong at every call, ``LATER`` only from some call on.
RIGHT: dict[str, Kernel] = {}
WRONG: dict[str, Kernel] = {}
LATER: dict[str, Callable[[], Kernel]] = {}


def _declared(function: Function) -> Kernel:
    idea = (function.__doc__ or "").strip()
    return kernel(idea=idea, row="", parent="cpu/naive", name=f"my/{function.__name__}", compiled=False)(function)


def right(function: Function) -> Kernel:
    RIGHT[function.__name__] = _declared(function)
    return RIGHT[function.__name__]


def wrong(function: Function) -> Kernel:
    WRONG[function.__name__] = _declared(function)
    return WRONG[function.__name__]


def later(make: Callable[[], Function]) -> None:
    """For kernels with a memory: each test gets one that remembers nothing yet."""
    LATER[make.__name__] = lambda: _declared(make())


# ---- the twins -------------------------------------------------------------------------------------------------------


@right
def numpys(a, b, c):
    """What every kernel here would be without its mistake."""
    np.matmul(a, b, out=c)


@right
def halves_in_turn(a, b, c):
    """The two halves of k added one after the other: the race below, without the race."""
    half = a.shape[1] // 2
    c[...] = a[:, :half] @ b[:half]
    c += a[:, half:] @ b[half:]


# ---- unwritten, or no number -----------------------------------------------------------------------------------------


@wrong
def nan_everywhere(a, b, c):
    """NaN compares false with every bound: a check written the wrong way round lets it pass."""
    c[...] = np.nan


@wrong
def one_infinity(a, b, c):
    """A single overflow."""
    c[...] = a @ b
    c[c.shape[0] // 2, c.shape[1] // 3] = np.inf


@wrong
def nothing(a, b, c):
    """Returns without writing."""


@wrong
def no_last_row(a, b, c):
    """The tail along m is left out."""
    c[:-1] = a[:-1] @ b


@wrong
def no_last_column(a, b, c):
    """The tail along n is left out."""
    c[:, :-1] = a @ b[:, :-1]


@wrong
def no_last_element(a, b, c):
    """The tail of the tail."""
    product = a @ b
    c.flat[: c.size - 1] = product.flat[: c.size - 1]


@wrong
def whole_tiles_only(a, b, c):
    """Only full 8×8 tiles are written."""
    m, n = c.shape[0] // 8 * 8, c.shape[1] // 8 * 8
    c[:m, :n] = a[:m] @ b[:, :n]


# ---- wrong values ----------------------------------------------------------------------------------------------------


@wrong
def zeros(a, b, c):
    """All zeros: what a kernel that never ran leaves in fresh memory."""
    c[...] = 0


@wrong
def one_term_short(a, b, c):
    """Sums k − 1 terms."""
    c[...] = a[:, :-1] @ b[:-1]


@wrong
def one_row_down(a, b, c):
    """Every row is that of the row before."""
    c[...] = np.roll(a @ b, 1, axis=0)


@wrong
def two_rows_swapped(a, b, c):
    """The right rows in the wrong order."""
    c[...] = a @ b
    c[[0, 1]] = c[[1, 0]]


@wrong
def transposed(a, b, c):
    """(A·B)ᵀ as it lies in memory: a mix-up of row and column major."""
    c[...] = (a @ b).T.reshape(c.shape)


@wrong
def wrong_sign(a, b, c):
    """−A·B: right in every norm."""
    c[...] = -(a @ b)


@wrong
def accumulates(a, b, c):
    """Adds to what was in C, as if that were zero."""
    c += a @ b


@wrong
def one_corner(a, b, c):
    """A single wrong element, in the last corner."""
    c[...] = a @ b
    c[-1, -1] += 0.5


@wrong
def one_block(a, b, c):
    """A block of 8 rows × 48 columns in the middle is zero."""
    c[...] = a @ b
    row, column = c.shape[0] // 3, c.shape[1] // 3
    c[row : row + 8, column : column + 48] = 0


@wrong
def half_precision(a, b, c):
    """Accumulates in float16: right to three digits."""
    total = np.zeros(c.shape, np.float16)
    for p in range(a.shape[1]):
        total += np.outer(a[:, p], b[p]).astype(np.float16)
    c[...] = total


@wrong
def rounded_operands(a, b, c):
    """Rounds B to 16 bits on the way, as a tensor core would."""
    c[...] = a @ b.astype(np.float16).astype(b.dtype)


@wrong
def race(a, b, c):
    """Two threads add half of k each to C; both read C before either writes, so one half is always lost."""
    c[...] = 0
    half = a.shape[1] // 2
    both_have_read = threading.Barrier(2)

    def add(part: slice) -> None:
        seen = c.copy()
        both_have_read.wait()
        c[...] = seen + a[:, part] @ b[part]

    Team(2).run([lambda: add(slice(half)), lambda: add(slice(half, None))])


@wrong
def raises(a, b, c):
    """Whatever it raises is its result."""
    raise ZeroDivisionError("in a kernel")


# ---- wrong only later ------------------------------------------------------------------------------------------------


@later
def remembers_its_output():
    calls = []

    def remembers_its_output(a, b, c):
        """Believes that a C it has filled once still holds the product."""
        if not any(seen is c for seen in calls):
            c[...] = a @ b
            calls.append(c)

    return remembers_its_output


@later
def stale_panel():
    panels: dict[tuple[int, ...], np.ndarray] = {}

    def stale_panel(a, b, c):
        """Packs B at its first call and never again, though B may be another."""
        if b.shape in panels and panels[b.shape] is not b:
            c[...] = a @ panels[b.shape]
        else:
            panels[b.shape] = b
            c[...] = a @ b

    return stale_panel


@later
def wears_out():
    calls = []

    def wears_out(a, b, c):
        """Right at its first three calls, so when it is looked at, and zero when it is timed."""
        calls.append(None)
        c[...] = a @ b if len(calls) <= 3 else 0

    return wears_out
