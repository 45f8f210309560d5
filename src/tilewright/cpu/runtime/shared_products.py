"""The fast path for products on several threads: threads that wait in machine code get their part without any Python
code.

The general path (``runner``, ``Team.rally``) has an overhead of 40 µs. In 40 µs two threads compute a product of 200³.
The general path is needed if Python must wake threads, and for all unusual arrays and arguments.

On the fast path one call of machine code reads the arrays, posts the product to workers, and wakes as many sleeping
workers as make the product faster. After posting, the call of machine code computes the caller's own part of the
product and waits for the workers' parts. The overhead of the fast path is 2 µs if the workers are polling. No Python
code runs during the call, so no interrupt can occur, and no worker need be claimed. The C front remembers how products
of a shape are shared, and shares later products of that shape without any Python code.
"""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...host import limits
from ...kernels import Kernel
from ...product.problem import Symmetry
from ..codegen import mailbox as words
from ..engine.triangle import BITS
from . import facts as code
from . import small_products, stop
from .machine_code import engine_code
from .runner import compiled, put_back_buffer, standby, take_buffer, team_needs
from .threads import AWAKE_S, Team
from .threads import crew as workers

#: Nanoseconds that it takes to wake each thread, and all of them at most, for they wake each other; and for which they then
#: stand by.
WAKING_EACH_NS, WAKING_NS, GAP_NS = 50_000, 300_000, round(AWAKE_S * 1e9)
#: Nanoseconds between two attempts to bring absent workers into machine code, where later products reach them: it takes
#: about a hundredth of that.
ENTERING_NS = 100_000_000

#: When the latest product that could have been shared began, and the first of those that it follows closely. Products of all
#: threads count, for these numbers only decide when to wake others.
_first_ns = _last_ns = 0
#: Whether the next product is to wake all threads, whatever it is worth; the C front sets it back.
wakes_all = False
#: When this process last tried to bring absent workers into machine code.
_entered_ns = -ENTERING_NS


@dataclass(frozen=True, eq=False)
class Sharing:
    """The data by which ``threads`` threads share products of one shape and dtype: the words of the call, the bytes of
    its workspace, and the dtype of C."""

    threads: int
    call: np.ndarray
    workspace: int
    result: np.dtype


def sharing(
    kernel: Kernel,
    dtype: np.dtype,
    shape: tuple[int, int, int],
    threads: int,
    least: int | None = None,
    wakes: int = 0,
    result: np.dtype | None = None,
    symmetry: Symmetry = "",
) -> Sharing | None:
    """Return how a ``team`` kernel without tunable parameters shares products of this shape (m, n, k). The kernel is
    compiled now.

    A product is shared if at least ``least`` other threads (by default all) are ready: they poll, or they sleep in
    machine code. At most ``wakes`` sleeping threads are counted as ready, because only so many are worth waking.
    ``result`` is the dtype of C, by default that of the operands. ``symmetry`` says whether C is known to be symmetric
    or Hermitian, and why.

    The result is None if there is no C front.
    """
    if _c_front() is None:
        return None
    standby()  # compiled now, too
    m, n, k = shape
    result = dtype if result is None else result
    # A column-major C is computed as Cᵀ, which may need more.
    needs = (team_needs(kernel, sizes, result, threads) for sizes in (shape, (n, m, k)))
    nbytes, counted = (max(both) for both in zip(*needs, strict=True))
    counters = counted + 2
    call = np.zeros(code.COUNTERS + counters, np.int64)
    call[words.CODE] = compiled(kernel, dtype, result).address
    call[words.ITEMSIZE], call[words.ITEMSIZE_OF_C] = dtype.itemsize, result.itemsize
    call[words.ITEMSIZE_OF_SPACE] = np.dtype(kernel.space or result).itemsize
    elements = nbytes // call[words.ITEMSIZE_OF_SPACE]
    call[code.ELEMENTS], call[code.COUNTS], call[code.OTHERS] = elements, counters, threads - 1
    call[code.NEEDED], call[code.WAKES] = (threads - 1 if least is None else least), wakes
    call[-2:] = BITS[symmetry], threads
    return Sharing(threads, call, nbytes, result)


def multiply_shared(how: Sharing, a: np.ndarray, b: np.ndarray, out: Any) -> Any:
    """Return A·B, computed by the threads that are available, in ``out`` or a new array.

    The result is None if the general path must compute the product: too few threads are available, the arrays are
    unusual, or the product belongs to a run that can be stopped."""
    memory = take_buffer(how.workspace)
    result = _c_front().shared_product(a, b, out, how.result, how.call.copy(), memory)
    put_back_buffer(memory)
    return result


def remember_shape(
    dtype: np.dtype, shape: tuple[int, ...], limit: int, alone: bool, how: Sharing | None, symmetric: bool = False
) -> None:
    """Make ``small_products.multiply`` compute products of this shape (m, n, k) from now on, while the limit of threads
    is ``limit``.

    Threads share these products as ``how`` says, without any workspace. With ``alone`` one thread computes a product if
    ``how`` is None or too few threads are available. ``symmetric`` means that the products are of a matrix and its
    transpose."""
    m, n, k = shape
    result, call = (dtype, ()) if how is None else (how.result, how.call[: code.COUNTERS])
    if np.dtype(result.type) is result:  # not a caller's own with metadata, which others would get
        _c_front().remember(
            result, np.array([dtype.num, m, -n if symmetric else n, k, limit, alone, *call], np.int64).tobytes()
        )


def enter(threads: int, at_once: bool = False) -> None:
    """Bring workers into machine code. The C front calls ``enter`` for each product that would have woken threads which
    do not wait in machine code: they do not exist yet, run Python code, or may run on other processors.

    ``enter`` does nothing if it was tried a moment ago, except with ``at_once``."""
    global _entered_ns
    now = time.perf_counter_ns()
    if at_once or now - _entered_ns >= ENTERING_NS:
        _entered_ns = now
        Team(threads).wake(standby())


def wake_if_many(threads: int) -> None:
    """Wake threads if many products follow each other. The C front, and rarely Python, calls ``wake_if_many`` for each
    product that found fewer than ``threads`` threads polling.

    When products that found too few threads polling have followed each other for as long as waking threads takes, the
    next product wakes the threads, so that they poll for later products. So waking the threads takes at most about as
    long as the products before it took."""
    global _first_ns, _last_ns, wakes_all
    now = time.perf_counter_ns()
    if now - _last_ns > GAP_NS:
        _first_ns = now
    elif now - _first_ns > min(WAKING_NS, threads * WAKING_EACH_NS):
        wakes_all = True
        _first_ns = now + threads * WAKING_EACH_NS
    _last_ns = now


@functools.cache  # connects it once
def _c_front() -> Any:
    """The C front, which knows the machine code of shared products and what it reads without Python code; or None."""
    c, source = small_products.c_front(), engine_code()
    if c is None or source is None:
        return None
    addresses = map(source.address, ("enough_threads_wait", "post_and_compute"))
    functions = stop.current.get, limits.of_this_context.get, limits.most_by_default
    here = sys.modules[__name__]
    c.connect(*addresses, *functions, limits, "of_the_process", workers, "mailboxes", here, "wakes_all")
    return c
