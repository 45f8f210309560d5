"""Threads that wait without sleeping: one posts a call of machine code in the mailbox of another, which then runs it.

A mailbox is a cache line of 64-bit words that two threads share: its owner, which stands by, and a caller. A call is an
array of words that the caller owns: the address of a ``team`` kernel and its arguments. One word of the mailbox holds the
whole state, so a call passes from one thread to the other by one atomic operation, without a lock, a system call or Python
code:

    ASLEEP → STANDING → address of a call → address + 1: it runs → STANDING → … → ASLEEP

The caller changes STANDING to the address of its call, and takes back a call that the owner has not begun. So a mailbox
serves one caller at a time, and callers need no other claim on the owner. Everything else is changed by the owner, which
falls asleep when no call was posted for a while, or when ``LEAVE`` asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from .atomics import _element, load, offer_processor, pause
from .vectors import I8, I64

ASLEEP, STANDING = 0, 1
#: Words of a mailbox: its state; whether the owner should stop standing by; on which processors the owner may run, and on
#: which one it runs; how many calls in a row it did not begin. The words fill a cache line, to avoid false sharing.
STATE, LEAVE, ALLOWED, PROCESSOR, MISSED, MAILBOX_WORDS = 0, 1, 2, 3, 4, 8
#: An owner that misses so many calls stands by on a processor that is busy: it is to be woken on another one.
_MOST_MISSED = 16
#: Words of a call: address of the code, itemsize of the operands, then the arrays a, b, c (address, shape, strides), the
#: workspace and the counters (address, size); the itemsizes of C and of the workspace; then whether a thread failed.
CODE, ITEMSIZE, ARRAYS, ITEMSIZE_OF_C, ITEMSIZE_OF_SPACE, FAILED, WORDS = 0, 1, 2, 21, 22, 23, 24
#: Reads of the state of a running kernel before a waiting thread offers its processor to others.
_PATIENCE = 20000
#: Words of a set of processors, as Linux returns it: for 1024 of them.
_MASK_WORDS = 16


@intrinsic
def _replace(typingctx: Any, words: Any, index: Any, expected: Any, new: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _element(context, builder, signature, args)
        exchanged = builder.cmpxchg(word, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(exchanged, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), codegen


@intrinsic
def _call_team(typingctx: Any, words: Any) -> Any:  # noqa: ARG001
    """Call the compiled kernel of a call; returns whether it ran to its end, for it may find no memory.

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


@intrinsic
def _running_call(typingctx: Any, mailbox: Any) -> Any:  # noqa: ARG001
    """The words of the call that a mailbox's owner runs: their address is in the state, plus one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Loaded as a pointer: of a converted integer LLVM cannot tell the target.
        state = _element(context, builder, signature, [args[0], I64(STATE)])
        after = builder.load(builder.bitcast(state, I8.as_pointer().as_pointer()))
        words = context.make_array(signature.return_type)(context, builder)
        populate_array(
            words,
            data=builder.bitcast(builder.gep(after, [I64(-1)]), I64.as_pointer()),
            shape=cgutils.pack_array(builder, [I64(WORDS)]),
            strides=cgutils.pack_array(builder, [I64(8)]),
            itemsize=I64(8),
            meminfo=None,
        )
        return words._getvalue()

    return types.int64[::1](mailbox), codegen


@intrinsic
def _processors(typingctx: Any) -> Any:  # noqa: ARG001
    """A number for the set of processors that this thread may run on; 0 where the system has no such set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if sys.platform != "linux":
            return I64(0)
        place = cgutils.alloca_once(builder, I64, size=_MASK_WORDS)
        for at in range(_MASK_WORDS):
            builder.store(I64(0), builder.gep(place, [I64(at)]))
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), I64, I64.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "sched_getaffinity")
        builder.call(function, [ir.IntType(32)(0), I64(8 * _MASK_WORDS), place])
        number = I64(0)
        for at in range(_MASK_WORDS):
            number = builder.add(
                builder.mul(number, I64(0x5851F42D4C957F2D)), builder.load(builder.gep(place, [I64(at)]))
            )
        return number

    return types.int64(), codegen


@intrinsic
def _processor_here(typingctx: Any) -> Any:  # noqa: ARG001
    """The processor on which this thread runs; −1 where the system does not say."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if sys.platform != "linux":
            return I64(-1)
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu"), []), I64)

    return types.int64(), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
replace: Callable[..., bool] = _replace
call_team: Callable[..., bool] = _call_team
processors: Callable[..., int] = _processors
processor_here: Callable[..., int] = _processor_here
running_call: Callable[..., np.ndarray] = _running_call


def stand_by(mailbox: np.ndarray, looks: int) -> int:
    """Run posted calls, until ``looks`` reads of the state in a row have found none; returns the number of calls.

    After a fifth of these reads, each one offers the processor to other threads, which may wait for it.
    """
    mailbox[ALLOWED], mailbox[PROCESSOR], mailbox[MISSED] = processors(), processor_here(), 0
    replace(mailbox, STATE, ASLEEP, STANDING)
    calls, left = 0, looks
    while True:
        state = load(mailbox, STATE)
        if state == STANDING and left > 0 and not load(mailbox, LEAVE):
            pause()
            left -= 1
            here = processor_here()
            if mailbox[PROCESSOR] != here:
                mailbox[PROCESSOR] = here
            if left < 4 * looks // 5:
                offer_processor()
        elif state > STANDING:
            if replace(mailbox, STATE, state, state + 1):
                mailbox[MISSED] = 0
                call = running_call(mailbox)
                if not call_team(call):
                    call[FAILED] = 1
                replace(mailbox, STATE, state + 1, STANDING)
                calls, left = calls + 1, looks
        elif state == ASLEEP or replace(mailbox, STATE, STANDING, ASLEEP):
            return calls


def post(mailbox: np.ndarray, call: int) -> bool:
    """Post the call at this address; False if the owner does not stand by, or has another call.

    False, too, where the owner sits on the caller's processor: it would not run before the caller sleeps. It is to leave, so
    that the caller can wake it elsewhere.
    """
    here = processor_here()
    if mailbox[PROCESSOR] == here and here >= 0:
        mailbox[LEAVE] = 1
    return not load(mailbox, LEAVE) and replace(mailbox, STATE, STANDING, call)


def settle(mailbox: np.ndarray, call: int) -> None:
    """Take back this call if it was posted and not begun; wait until it has ended if the owner has begun it."""
    if load(mailbox, STATE) == call and replace(mailbox, STATE, call, STANDING):
        mailbox[MISSED] += 1
        if mailbox[MISSED] >= _MOST_MISSED:
            mailbox[LEAVE] = 1
        return
    reads = 0
    while load(mailbox, STATE) == call + 1:
        pause()
        reads += 1
        if reads > _PATIENCE:
            offer_processor()
