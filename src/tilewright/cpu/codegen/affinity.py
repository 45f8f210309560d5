"""System calls for machine code: to sleep until another thread changes a word of memory, and to read or set the
processors on which a thread may run.

Linux's system call futex uses the lower half of a 64-bit word, which comes first in memory on little-endian processors.
Linux compares the word with the expected value and puts the thread to sleep under one lock, which a waking thread
takes, too. So a thread that goes to sleep misses no change of the word, if the other thread changes the word before it
makes the wake-up call.

A set of processors is an array of 64-bit words with one bit for each processor, in Linux's format. On systems other
than Linux the sets of processors are empty, and the functions of this module do nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.machine import target_arch
from .atomics import _element
from .mailbox import HAS_FUTEX, SET_WORDS, SYSTEM_CALLS
from .vectors import I32, I64

# ---- sleeping on a word ----------------------------------------------------------------------------------------------

_HERE = SYSTEM_CALLS[target_arch()] if HAS_FUTEX else {}
#: The operations on a word that other processes do not see.
_WAIT, _WAKE = 0 | 128, 1 | 128


def system_call(builder: Any, name: str, arguments: list[Any]) -> Any:
    """Emit a system call. If the call's number is not known on this system, nothing is emitted, and the result is 0."""
    if name not in _HERE:
        return I64(0)
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I64, [I64], var_arg=True), "syscall")
    return builder.call(function, [I64(_HERE[name]), *arguments])


@intrinsic
def _sleep_while(typingctx: Any, words: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, forever = _element(context, builder, signature, args), I64(0)
        system_call(builder, "futex", [word, I64(_WAIT), args[2], forever])
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen


@intrinsic
def _wake(typingctx: Any, words: Any, index: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        system_call(builder, "futex", [_element(context, builder, signature, args), I64(_WAKE), I64(1)])
        return context.get_dummy_value()

    return types.void(words, types.intp), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
#: ``sleep_while(words, index, value)``: sleep while the lower half of the word equals that of ``value``. May end early.
sleep_while: Callable[..., None] = _sleep_while
#: ``wake(words, index)``: wake the thread that sleeps on the word.
wake: Callable[..., None] = _wake


# ---- processors ------------------------------------------------------------------------------------------------------

_LINUX = sys.platform == "linux"


def _get_or_set(builder: Any, name: str, thread: Any, place: Any) -> None:
    """Call ``sched_getaffinity`` or ``sched_setaffinity``; a failure, as where a container forbids it, changes nothing."""
    kind = ir.FunctionType(I32, [I32, I64, I64.as_pointer()])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [thread, I64(8 * SET_WORDS), place])


def _empty(builder: Any, place: Any) -> Any:
    for at in range(SET_WORDS):
        builder.store(I64(0), builder.gep(place, [I64(at)]))
    return place


@intrinsic
def _allowed(typingctx: Any, words: Any, index: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _empty(builder, _element(context, builder, signature, args))
        if _LINUX:
            _get_or_set(builder, "sched_getaffinity", I32(0), place)
        return context.get_dummy_value()

    return types.void(words, types.intp), codegen


@intrinsic
def _allow(typingctx: Any, words: Any, index: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _LINUX:
            _get_or_set(builder, "sched_setaffinity", I32(0), _element(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(words, types.intp), codegen


@intrinsic
def _allow_only(typingctx: Any, thread: Any, processor: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if _LINUX:
            place = _empty(builder, cgutils.alloca_once(builder, I64, size=SET_WORDS))
            bit = builder.shl(I64(1), builder.and_(args[1], I64(63)))
            builder.store(bit, builder.gep(place, [builder.lshr(args[1], I64(6))]))
            _get_or_set(builder, "sched_setaffinity", builder.trunc(args[0], I32), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _processors(typingctx: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if not _LINUX:
            return I64(0)
        place = _empty(builder, cgutils.alloca_once(builder, I64, size=SET_WORDS))
        _get_or_set(builder, "sched_getaffinity", I32(0), place)
        number = I64(0)
        for at in range(SET_WORDS):
            word = builder.load(builder.gep(place, [I64(at)]))
            number = builder.add(builder.mul(number, I64(0x5851F42D4C957F2D)), word)
        return number

    return types.int64(), codegen


@intrinsic
def _processor_here(typingctx: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if not _LINUX:
            return I64(-1)
        kind = ir.FunctionType(I32, [])
        return builder.sext(builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu"), []), I64)

    return types.int64(), codegen


@intrinsic
def _thread_here(typingctx: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return system_call(builder, "gettid", [])

    return types.int64(), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
#: ``allowed(words, index)``: write the set of processors on which this thread may run.
allowed: Callable[..., None] = _allowed
#: ``allow(words, index)``: let this thread run on a set of processors.
allow: Callable[..., None] = _allow
#: ``allow_only(thread, processor)``: let another thread run on one processor alone. If it sleeps, it will wake there.
allow_only: Callable[..., None] = _allow_only
#: A number for the set of processors on which this thread may run; 0 where the system has no such set.
processors: Callable[..., int] = _processors
#: The processor on which this thread runs; −1 where the system does not say.
processor_here: Callable[..., int] = _processor_here
#: The number of this thread in the system.
thread_here: Callable[..., int] = _thread_here


@nb.njit(nogil=True)
def add_to_set(words: np.ndarray, at: int, processor: int) -> None:
    """Add a processor to the set that begins at word ``at``. A processor whose number is beyond the size of a set is
    not added."""
    if 0 <= processor < 64 * SET_WORDS:
        words[at + (processor >> 6)] |= np.int64(1) << (processor & 63)


@nb.njit(nogil=True)
def is_in_set(words: np.ndarray, at: int, processor: int) -> bool:
    """Return whether a processor is in the set that begins at word ``at``."""
    return 0 <= processor < 64 * SET_WORDS and (words[at + (processor >> 6)] >> (processor & 63)) & 1 != 0
