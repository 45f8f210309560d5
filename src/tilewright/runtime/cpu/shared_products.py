"""The short way to share a product: threads that stand by get their part from machine code, without Python code between.

The long way (``runner``, ``Team.rally``) takes 40 µs for what surrounds a product, as long as two threads multiply matrices
of 200³. It is needed where threads must be woken, and for everything unusual. Here the caller claims the workers, and one
call of machine code reads the arrays, posts the product in the workers' mailboxes, computes its own share and waits for
theirs: 12 µs in all.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...codegen import crew
from ...kernels import Kernel
from . import shared_products_code as code
from . import small_products, stop
from .interrupts import run_on_thread
from .runner import compiled, standby
from .standby import address_of
from .threads import Team
from .workspace import take_workspace


@dataclass(frozen=True, eq=False)
class Sharing:
    """How ``threads`` share a product of one shape and dtype: the words of the call, and the bytes of its workspace."""

    threads: int
    call: np.ndarray
    workspace: int


def sharing(kernel: Kernel, dtype: np.dtype, shape: tuple[int, int, int], threads: int) -> Sharing | None:
    """How a ``team`` kernel without tunable parameters shares products of this shape (m, n, k); compiles it now.

    None where machine code cannot read Python's objects.
    """
    if _function() is small_products.decline:
        return None
    standby()  # compiled now, too
    counters = (kernel.counters(*shape) if kernel.counters else 1) + 2
    call = np.zeros(code.COUNTERS + counters + threads - 1, np.int64)
    call[crew.CODE] = address_of(compiled(kernel, dtype))
    call[crew.ITEMSIZE] = call[crew.ITEMSIZE_OF_C] = dtype.itemsize
    call[crew.ITEMSIZE_OF_SPACE] = np.dtype(kernel.space or dtype).itemsize
    elements = kernel.workspace(*shape) if kernel.workspace else 0
    call[code.ELEMENTS], call[code.COUNTS], call[code.MAILBOXES] = elements, counters, threads - 1
    call[code.COUNTERS + counters - 1] = threads
    return Sharing(threads, call, kernel.workspace_bytes(*shape, dtype.name))


def multiply_shared(how: Sharing, a: np.ndarray, b: np.ndarray, out: Any) -> Any:
    """A·B, into ``out`` unless that is None; None where the long way must compute it: if too few threads stand by, or the
    arrays are unusual, or the product belongs to a run that can be stopped."""
    if stop.can_be_stopped():
        return None

    def work(mailboxes: list[int]) -> Any:
        call = how.call.copy()
        call[-len(mailboxes) :] = mailboxes
        with take_workspace(how.workspace) as space:
            return _function()(a, b, out, call, space)

    return Team(how.threads).with_standing(work)


@functools.cache
def _function() -> small_products.Short:
    return run_on_thread(functools.partial(small_products.c_function, code.shared_call))
