"""The machine code of ``shared_call``: it checks two matrices and C, posts the call and computes its own share.

Every function here is compiled. ``call`` is the address of an array of words: the call as ``codegen.crew`` encodes it, three
numbers, and on cache lines of their own the kernel's counters. ``boxes`` is an array of the addresses of all mailboxes.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from ...codegen import affinity, crew, objects
from ...codegen import mailbox as words_of
from .facts import (
    ABSENT,
    ALIGNED,
    AXES,
    COUNTERS,
    COUNTS,
    DATA,
    DTYPE,
    ELEMENTS,
    LEAST,
    MISSING,
    NONE,
    OTHERS,
    RESULT,
    UNWRAP,
    WAKES,
)
from .small_products_code import (
    is_plain_array,
    matrix,
    new_result,
    out_fits,
    size,
    transposed_matrix,
)

_any_njit: Any = nb.njit
_inner = _any_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called only by each other
_post, _settle, _publish = _inner(crew.post), _inner(crew.settle), _inner(crew.publish)


@_inner
def mailbox_of(boxes, i):
    """The words of a mailbox."""
    return nb.carray(objects.follow(objects.follow(boxes, DATA), 8 * i), words_of.MAILBOX_WORDS, np.int64)


@_inner
def enough_are_there(words, boxes):
    """Whether as many threads as the call needs stand by, or sleep and are worth waking, on the processors on which this one
    may run. Those that stand by on its own are to leave, so that they can be woken elsewhere."""
    allowed, here, awake, asleep, busy = crew.processors(), crew.processor_here(), 0, 0, 0
    for i in range(size(boxes, 0)):
        mailbox = mailbox_of(boxes, i)
        state = crew.load(mailbox, words_of.STATE)
        if state != words_of.AWAY and mailbox[words_of.ALLOWED] == allowed:
            if state == words_of.STANDING and here >= 0 and mailbox[words_of.PROCESSOR] == here:
                mailbox[words_of.LEAVE] = 1
            asleep += state == words_of.SLEEPING
            awake += state == words_of.STANDING and mailbox[words_of.LEAVE] == 0
            busy += state > words_of.SLEEPING
    words[ABSENT] = max(0, words[OTHERS] - awake - asleep - busy)
    return awake + min(asleep, words[WAKES]) >= words[LEAST]


@_inner
def posted(words, boxes, address, allowed, others, wakes):
    """Post the call to so many others, to those that sleep if ``wakes``; returns how many are missing."""
    for i in range(size(boxes, 0)):
        if others == 0:
            break
        mailbox = mailbox_of(boxes, i)
        if mailbox[words_of.ALLOWED] == allowed and _post(mailbox, words, address, wakes) != words_of.AWAY:
            others -= 1
    return others


@_inner
def post_and_compute(a, b, c, itemsize, call, boxes, space):
    """Compute C = A·B on this thread and on those others that begin before it has ended; False if one found no
    memory."""
    x, y, z = matrix(a, False), matrix(b, True), matrix(c, False)
    if z[4] != itemsize and z[3] == itemsize:  # a column-major C is the row-major product Cᵀ = Bᵀ·Aᵀ
        x, y, z = transposed_matrix(y), transposed_matrix(x), transposed_matrix(z)
    words = nb.carray(call, COUNTERS, np.int64)
    at = words_of.ARRAYS
    for data, rows, columns, row, column in (x, y, z):
        words[at], words[at + 1], words[at + 2] = objects.integer(data), rows, columns
        words[at + 3], words[at + 4] = row, column
        at += 5
    words[at], words[at + 1] = objects.integer(space), words[ELEMENTS]
    words[at + 2], words[at + 3] = objects.integer(objects.behind(call, 8 * COUNTERS)), words[COUNTS]
    address, allowed = objects.integer(call), crew.processors()
    words[words_of.BOXES] = objects.word(boxes, DATA)
    affinity.add_to_set(words, words_of.TAKEN, crew.processor_here())
    others = posted(words, boxes, address, allowed, words[OTHERS], False)
    wakes = min(others, words[WAKES])
    if wakes > 0:
        others -= wakes - posted(words, boxes, address, allowed, wakes, True)
        _publish(words, address, size(boxes, 0))
    words[MISSING] = others
    done = crew.call_team(words)
    for i in range(size(boxes, 0)):
        _settle(mailbox_of(boxes, i), address)
    return done and not words[words_of.FAILED]


@_inner
def shared_result(facts, a, b, c, call, boxes, space):
    """The result, as a new reference; NULL, with Python's exception set, if it could not be allocated.

    Or None, as a borrowed reference: then the long way must compute the product.
    """
    none = objects.follow(facts, NONE)
    if not enough_are_there(nb.carray(call, COUNTERS, np.int64), boxes):
        return none
    if not is_plain_array(a, facts, ALIGNED, False) or not is_plain_array(b, facts, ALIGNED, False):
        return none
    if objects.word(a, DTYPE) != objects.word(b, DTYPE) or objects.number(a, AXES) != 2 or objects.number(b, AXES) != 2:
        return none
    (_, m, k, _, _), (_, k_of_b, n, _, _) = matrix(a, False), matrix(b, True)
    itemsize, dtype = objects.word(call, 8 * words_of.ITEMSIZE_OF_C), objects.follow(call, 8 * RESULT)
    if k != k_of_b or m * n * k == 0:
        return none
    allocates = objects.integer(c) == objects.integer(none)
    if allocates:
        c = new_result(facts, dtype, a, b, m, n, 0)
        if objects.integer(c) == 0:
            return c
    elif not out_fits(facts, dtype, c, a, b, m, n, 0, itemsize, False):
        return none
    thread = objects.save_thread()
    done = post_and_compute(a, b, c, itemsize, call, boxes, space)
    objects.restore_thread(thread)
    if not done:
        if allocates:
            objects.drop_reference(c)
        return none
    if not allocates:
        objects.new_reference(c)
        return c
    return objects.unwrapped(objects.follow(facts, UNWRAP), c)


# Not compiled here: ``shared_products`` compiles it as a C function.
def shared_call(self: Any, arguments: Any, count: Any) -> Any:
    """The function that Python calls: ``self`` is the array of facts; a, b, out, the words of the call, the addresses of all
    mailboxes, the workspace."""
    facts = objects.follow(self, DATA)
    result = none = objects.follow(facts, NONE)
    if count == 6:
        a, b, c = objects.follow(arguments, 0), objects.follow(arguments, 8), objects.follow(arguments, 16)
        call = objects.follow(objects.follow(arguments, 24), DATA)
        space = objects.follow(objects.follow(arguments, 40), DATA)
        result = shared_result(facts, a, b, c, call, objects.follow(arguments, 32), space)
    if objects.integer(result) == objects.integer(none):
        objects.new_reference(none)
    return result
