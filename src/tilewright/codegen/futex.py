"""A thread sleeps on a word until another thread changes it: Linux's futex, called from machine code.

The word is the lower half of a 64-bit one, which is the half that comes first on the processors in ``_NUMBERS``. Linux
compares it before the thread sleeps, and does both under a lock that a waking thread takes, too. So no change between the
thread's last look and its sleep is missed, provided that the word is changed first and the wake-up follows.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .atomics import _element
from .vectors import I64

#: By processor, the number of the system call. It is called through ``syscall`` of the C library, which has no other way.
_NUMBERS = {"x86_64": 202, "aarch64": 98}
#: The operations on a word that other processes do not see.
_WAIT, _WAKE = 0 | 128, 1 | 128

#: Whether threads can sleep so here.
HAS_FUTEX = sys.platform == "linux" and platform.machine() in _NUMBERS and sys.maxsize == 2**63 - 1


def _call(context: Any, builder: Any, signature: Any, args: Any, operation: int, value: Any) -> None:
    if not HAS_FUTEX:
        return
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    word, nothing = _element(context, builder, signature, args), I64(0)
    builder.call(function, [I64(_NUMBERS[platform.machine()]), word, I64(operation), value, nothing])


@intrinsic
def _sleep_while(typingctx: Any, words: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(context, builder, signature, args, _WAIT, args[2])
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), codegen


@intrinsic
def _wake(typingctx: Any, words: Any, index: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(context, builder, signature, args, _WAKE, I64(1))
        return context.get_dummy_value()

    return types.void(words, types.intp), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
#: ``sleep_while(words, index, value)``: sleep while the lower half of the word equals that of ``value``. May end early.
sleep_while: Callable[..., None] = _sleep_while
#: ``wake(words, index)``: wake the thread that sleeps on the word.
wake: Callable[..., None] = _wake
