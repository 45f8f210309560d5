"""``accelerate_numpy``: makes Tilewright's engine compute NumPy's own products, in the whole process."""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Iterator

import numpy as np

from ..cpu.native import front
from ..cpu.plan import MOST_WORK_OF_EACH, WORK_SHARED
from ..cpu.runtime.facts import MOST_WORK_OF_BATCH
from ..cpu.runtime.interrupts import run_on_thread
from ..cpu.runtime.library import code_dtype, function_name, products_name
from ..cpu.runtime.machine_code import engine_code, why_numpy
from ..errors import TilewrightError, UnavailableError
from ..host.limits import get_threads
from ..product.precision import are_all_invariant
from .matmul import matmul

#: NumPy's functions whose loops are replaced, in the order in which ``native/loops.c`` numbers them. The last two exist
#: since NumPy 2.2.
UFUNCS = ("matmul", "vecdot", "matvec", "vecmat")
#: These conjugate their first operand, which no kernel does: complex products stay NumPy's.
_CONJUGATING = ("vecdot", "vecmat")
#: The types of elements, by NumPy's characters.
_INTEGERS, _FLOATS, _COMPLEX, _HALF = "bBhHiIlLqQ", "fd", "FD", "e"

_NEVER = math.inf
#: The multiply-adds from which a product is ours, by type: of small products, and of others. Below, NumPy's loop is as fast:
#: a single small product costs 0.1 µs more here, of the 0.8 µs that a call of NumPy takes. The columns are the shapes of
#: ``shape_of`` in ``native/loops.c``: C is 1×1, and of those that are not small at most 16×16; k is 1; C is a row or a
#: column; C has at most 16 rows or columns; others. Found on a Zen 4 with one thread, as ``benchmarks/accelerate_numpy.py``
#: measures square products on any machine.
_LEAST = {
    "fd": ((_NEVER, 2_000, _NEVER, 250_000, 250_000), (_NEVER, 0, 4_000_000, 0, 0)),
    "FD": ((_NEVER, 200, _NEVER, 200, 200), (_NEVER, 0, _NEVER, _NEVER, 0)),
    "bBhH": ((1_000, 400, 600, 400, 400), (_NEVER, 0, 0, 0, 0)),
    "iIlLqQ": ((1_000, 400, 600, 400, 400), (_NEVER, 0, _NEVER, 0, 0)),
    "e": ((_NEVER, 30_000, 30_000, 30_000, 30_000), (_NEVER, 0, 0, 0, 0)),
}

_lock = threading.Lock()
#: How many accelerations have begun and not ended.
_count = 0


class Acceleration:
    """The context manager that ``accelerate_numpy`` returns. The method ``undo`` ends the acceleration early.

    See Also
    --------
    accelerate_numpy : Begins the acceleration.
    """

    def __init__(self) -> None:
        self._is_on = True

    def undo(self) -> None:
        """End this acceleration. NumPy has its own loops again when every acceleration has ended. A second call does
        nothing."""
        run_on_thread(self._end)

    def _end(self) -> None:
        """Runs on a thread that no interrupt reaches, because it takes a lock."""
        global _count
        with _lock:
            if self._is_on:
                self._is_on = False
                _count = max(0, _count - 1)
                if _count == 0:
                    _restore()

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def accelerate_numpy() -> Acceleration:
    """Make Tilewright compute NumPy's ``matmul``, and so ``a @ b``, in all threads of this process.

    NumPy still checks, casts and broadcasts the operands. So subclasses, ``out``, ``axes``, ``dtype``, errors and
    warnings work as in NumPy. Only the inner loops of ``matmul``, ``vecdot``, ``matvec`` and ``vecmat`` are replaced,
    and Tilewright computes only the products that it computes faster than NumPy. NumPy computes products of bool, long
    double and Python objects, and products of a floating-point matrix and its own transpose. Floating-point sums may
    differ from NumPy's in the last bits; sums of integers are the same.

    Functions that do not call ``matmul`` are not accelerated: ``np.dot``, ``np.inner``, ``np.tensordot``, ``np.einsum``
    without ``optimize``, and LAPACK. The command ``python -m tilewright run script.py`` runs a whole program with this
    acceleration.

    Returns
    -------
    Acceleration
        The acceleration lasts until its method ``undo`` is called, or until the end of a ``with`` block. If
        ``accelerate_numpy`` is called several times, NumPy has its own loops again when the last acceleration has
        ended. Products use as many threads as ``get_threads`` returns. If ``get_threads`` returns 1 at the first call
        of ``accelerate_numpy``, products of up to about 320³ use one thread only, even if ``set_threads`` raises the
        number later.

    Raises
    ------
    UnavailableError
        Tilewright's C extension was not built, there is no machine code for this processor, or
        ``$TILEWRIGHT_INVARIANT`` is set. The loops that replace NumPy's cannot compute invariant products.

    See Also
    --------
    tilewright.api.numpy_loops.Acceleration : The class of the result.
    matmul : Multiplies arrays without changing NumPy.
    set_threads : Sets the number of threads, also for NumPy's products.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6).reshape(2, 3)
    >>> with tw.accelerate_numpy():
    ...     a @ a.T
    array([[ 5, 14],
           [14, 50]])
    """
    if are_all_invariant():
        raise UnavailableError("$TILEWRIGHT_INVARIANT is set: which of NumPy's loops multiplies depends on the shape")
    run_on_thread(_begin)
    return Acceleration()


def _begin() -> None:
    """Runs on a thread that no interrupt reaches, because it takes a lock."""
    global _count
    with _lock:
        if _count == 0:
            _replace(get_threads())
        _count += 1


def _replace(threads: int) -> None:
    """Put our loops in place of NumPy's, for products on so many threads."""
    native, source = front(), engine_code()
    if native is None:
        raise UnavailableError(
            "NumPy's loops are replaced by the C front, which was not built for this interpreter: "
            "python -m tilewright.prebuilt"
        )
    if source is None:
        raise UnavailableError(f"NumPy's loops need machine code, and {why_numpy()}: python -m tilewright.prebuilt")
    most = MOST_WORK_OF_EACH if threads == 1 else WORK_SHARED
    main, suits = threading.main_thread().ident, source.address(function_name("are_small"))
    native.set_engine(_multiply, suits, most, max(most, MOST_WORK_OF_BATCH), main)
    try:
        for ufunc, number, kind in _loops():
            products = 0 if kind == _HALF else source.address(products_name(code_dtype(np.dtype(kind)).name))
            least = np.array(_least_work(kind), np.float64)
            native.replace_loop(ufunc, number, np.dtype(kind).num, products, least.tobytes())
    except BaseException:
        _restore()
        raise


def _restore() -> None:
    """Give NumPy its own loops back."""
    native = front()
    assert native is not None
    for ufunc, number, kind in _loops():
        native.replace_loop(ufunc, number, np.dtype(kind).num, 0, b"")


def _loops() -> Iterator[tuple[np.ufunc, int, str]]:
    """The functions that this NumPy has, with their numbers, and the types of which some product is ours."""
    for number, name in enumerate(UFUNCS):
        for kind in _INTEGERS + _FLOATS + _COMPLEX + _HALF:
            if hasattr(np, name) and not (kind in _COMPLEX and name in _CONJUGATING):
                yield getattr(np, name), number, kind


def _least_work(kind: str) -> tuple[tuple[float, ...], ...]:
    """The row of ``_LEAST`` for a type."""
    return next(least for kinds, least in _LEAST.items() if kind in kinds)


def _multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bool:
    """Compute C = A·B, or return False to leave it to NumPy. ``native/loops.c`` calls it."""
    try:
        matmul(a, b, c)
    except (MemoryError, TilewrightError):
        return False
    return True


def _renew() -> None:
    """A lock that was taken at the fork would never be released in the child."""
    global _lock
    _lock = threading.Lock()


@atexit.register
def _end() -> None:
    """What runs after this, while the interpreter takes modules apart, is multiplied by NumPy."""
    global _count
    if _count:
        _count = 0
        _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
