"""Threads that wait without sleeping: one posts a call of machine code in the mailbox of another, which then runs it.

A mailbox is an array of 64-bit words that two threads share: its owner, which stands by, and the caller that has claimed the
owner. Its first word is the state; then follow the address of a ``team`` kernel and its arguments.

    ASLEEP → STANDING → POSTED → RUNNING → STANDING → … → ASLEEP

The owner changes the state from ASLEEP, from POSTED to RUNNING and back to STANDING, and to ASLEEP when no call was posted
for a while. The caller posts, takes back a call that the owner has not begun, and may set a STANDING owner to ASLEEP. A call
passes from one to the other without a lock, a system call or Python code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from .atomics import _element, load, offer_processor, pause
from .vectors import I64

ASLEEP, STANDING, POSTED, RUNNING = 0, 1, 2, 3
#: Words of a mailbox: state, address of the code, itemsize of the operands, then the arrays a, b, c (address, shape,
#: strides), the workspace and the counters (address, size); the itemsizes of C and of the workspace; then whether a call
#: failed since the last ``settle``.
CODE, ITEMSIZE, ARRAYS, ITEMSIZE_OF_C, ITEMSIZE_OF_SPACE, FAILED, WORDS = 1, 2, 3, 22, 23, 24, 25
#: Reads of the state of a running kernel before a waiting thread offers its processor to others.
_PATIENCE = 20000


@intrinsic
def _replace(typingctx: Any, words: Any, index: Any, expected: Any, new: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _element(context, builder, signature, args)
        exchanged = builder.cmpxchg(word, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(exchanged, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), codegen


@intrinsic
def _call_team(typingctx: Any, words: Any) -> Any:  # noqa: ARG001
    """Call the compiled kernel of a mailbox; returns whether it ran to its end, for it may find no memory.

    Arrays of int64 stand for any dtype: only their pointers are passed.
    """
    kinds = [types.Array(types.int64, 2, "A")] * 3 + [types.Array(types.int64, 1, "C")] * 2

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        box = context.make_array(signature.args[0])(context, builder, args[0]).data

        def word(at: int) -> Any:
            return builder.load(builder.gep(box, [I64(at)]))

        def pointer(
            at: int, kind: Any
        ) -> Any:  # loaded as a pointer: of a converted integer LLVM cannot tell the target
            return builder.load(builder.bitcast(builder.gep(box, [I64(at)]), kind.as_pointer()))

        values: list[Any] = []
        at, sizes = ARRAYS, [word(place) for place in (ITEMSIZE, ITEMSIZE, ITEMSIZE_OF_C, ITEMSIZE_OF_SPACE)]
        for kind, itemsize in zip(kinds, [*sizes, I64(8)], strict=True):
            view = context.make_array(kind)(context, builder)
            axes = kind.ndim
            shape = [word(at + 1 + axis) for axis in range(axes)]
            strides = [word(at + 1 + axes + axis) for axis in range(axes)] if axes == 2 else [itemsize]
            populate_array(
                view,
                data=pointer(at, view.data.type),
                shape=cgutils.pack_array(builder, shape),
                strides=cgutils.pack_array(builder, strides),
                itemsize=itemsize,
                meminfo=None,
            )
            values.append(view._getvalue())
            at += 5 if axes == 2 else 2
        function = context.call_conv.get_function_type(types.none, kinds).as_pointer()
        status, _ = context.call_conv.call_function(builder, pointer(CODE, function), types.none, kinds, values)
        return status.is_ok

    return types.boolean(words), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
replace: Callable[..., bool] = _replace
call_team: Callable[..., bool] = _call_team


def stand_by(mailbox: np.ndarray, looks: int) -> int:
    """Run posted calls, until ``looks`` reads of the state in a row have found none; returns the number of calls.

    After a fifth of these reads, each one offers the processor to other threads, which may wait for it.
    """
    replace(mailbox, 0, ASLEEP, STANDING)
    calls, left = 0, looks
    while True:
        state = load(mailbox, 0)
        if state == POSTED and replace(mailbox, 0, POSTED, RUNNING):
            if not call_team(mailbox):
                mailbox[FAILED] = 1
            replace(mailbox, 0, RUNNING, STANDING)
            calls, left = calls + 1, looks
        elif state == STANDING and left > 0:
            pause()
            left -= 1
            if left < 4 * looks // 5:
                offer_processor()
        elif state == ASLEEP or replace(mailbox, 0, STANDING, ASLEEP):
            return calls


def post(mailbox: np.ndarray, call: np.ndarray) -> bool:
    """Post a call in the words from CODE on; False if the owner does not stand by."""
    if load(mailbox, 0) != STANDING:
        return False
    for i in range(call.size):
        mailbox[CODE + i] = call[i]
    return replace(mailbox, 0, STANDING, POSTED)


def settle(mailbox: np.ndarray) -> bool:
    """Take back a posted call, or wait until it has ended if the owner has begun it; returns whether no call failed."""
    replace(mailbox, 0, POSTED, STANDING)
    reads = 0
    while load(mailbox, 0) == RUNNING:
        pause()
        reads += 1
        if reads > _PATIENCE:
            offer_processor()
    return not replace(mailbox, FAILED, 1, 0)
