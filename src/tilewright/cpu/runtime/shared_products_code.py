"""The machine code of shared products, which the C front calls: it posts a call to other threads and computes its own share.

Every function here is compiled. ``call`` points to the call as ``cpu.codegen.crew`` encodes it, the words that ``facts``
lists, and the kernel's counters. ``boxes`` points to the addresses of ``count`` mailboxes.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from ..codegen import affinity, crew
from ..codegen import mailbox as words_of
from .facts import COUNTERS, COUNTS, ELEMENTS, NEEDED, NOT_CALLED, NOT_READY, OTHERS, WAKES

_any_njit: Any = nb.njit
_inner = _any_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called only by each other
_post, _settle, _publish = _inner(crew.post), _inner(crew.settle), _inner(crew.publish)


def enough_are_there(call: Any, boxes: Any, count: int) -> int:
    """Whether as many threads as the call needs stand by, or sleep and are worth waking, on the processors on which this one
    may run. Those that stand by on its own are to leave, so that they can be woken elsewhere."""
    words, addresses = nb.carray(call, COUNTERS), nb.carray(boxes, count)
    allowed, here, awake, asleep, busy = crew.processors(), crew.processor_here(), 0, 0, 0
    for i in range(count):
        mailbox = crew.words_at(addresses, i, 0)
        state = crew.load(mailbox, words_of.STATE)
        if state != words_of.AWAY and mailbox[words_of.ALLOWED] == allowed:
            if state == words_of.STANDING and here >= 0 and mailbox[words_of.PROCESSOR] == here:
                mailbox[words_of.LEAVE] = 1
            asleep += state == words_of.SLEEPING
            awake += state == words_of.STANDING and mailbox[words_of.LEAVE] == 0
            busy += state > words_of.SLEEPING
    words[NOT_READY] = max(0, words[OTHERS] - awake - asleep - busy)
    return int(awake + min(asleep, words[WAKES]) >= words[NEEDED])


@_inner
def posted(words, addresses, address, allowed, others, wakes):
    """Post the call to so many others, to those that sleep if ``wakes``; returns how many are missing."""
    for i in range(addresses.size):
        if others == 0:
            break
        mailbox = crew.words_at(addresses, i, 0)
        if mailbox[words_of.ALLOWED] == allowed and _post(mailbox, words, address, wakes) != words_of.AWAY:
            others -= 1
    return others


@_inner
def write_matrix(words, i, data, rows, columns, row, column, transposed):
    """Write matrix number i of a call: an address, its rows and columns, and two strides in bytes."""
    at = words_of.ARRAYS + 5 * i
    words[at], words[at + 1], words[at + 2], words[at + 3], words[at + 4] = data, rows, columns, row, column
    if transposed:
        words[at + 1], words[at + 2], words[at + 3], words[at + 4] = columns, rows, column, row


def post_and_compute(
    call: Any, boxes: Any, count: int, a: int, b: int, c: int, batch: Any, space: int, itemsize: int
) -> int:
    """Compute C = A·B on this thread and on those others that begin before it has ended. Returns 0 if one found no
    memory.

    a, b, c and ``space``, the workspace, are addresses; ``batch`` points to the words of ``Batch`` in C, with one product;
    C has elements of ``itemsize``. A column-major C is computed as the row-major product Cᵀ = Bᵀ·Aᵀ.
    """
    words, addresses = nb.carray(call, COUNTERS), nb.carray(boxes, count)
    m, n, k, row, column = batch[0], batch[1], batch[2], batch[7], batch[8]
    transposed = column != itemsize and row == itemsize
    write_matrix(words, 1 if transposed else 0, a, m, k, batch[3], batch[4], transposed)
    write_matrix(words, 0 if transposed else 1, b, k, n, batch[5], batch[6], transposed)
    write_matrix(words, 2, c, m, n, row, column, transposed)
    address, allowed = words.ctypes.data, crew.processors()
    at = words_of.ARRAYS + 15
    words[at], words[at + 1] = space, words[ELEMENTS]
    words[at + 2], words[at + 3] = address + 8 * COUNTERS, words[COUNTS]
    words[words_of.BOXES] = addresses.ctypes.data
    affinity.add_to_set(words, words_of.TAKEN, crew.processor_here())
    others = posted(words, addresses, address, allowed, words[OTHERS], False)
    wakes = min(others, words[WAKES])
    if wakes > 0:
        others -= wakes - posted(words, addresses, address, allowed, wakes, True)
        _publish(words, address, count)
    words[NOT_CALLED] = others
    done = crew.call_team(words)
    for i in range(count):
        _settle(crew.words_at(addresses, i, 0), address)
    return int(done and not words[words_of.FAILED])
