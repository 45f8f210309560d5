"""A thread sleeps on a word until another thread changes it: Linux's futex, called from machine code.

The word is the lower half of a 64-bit one, which comes first in memory on these processors. Linux compares it before the
thread sleeps, and does both under a lock that a waking thread takes, too. So no change between the thread's last look and
its sleep is missed, provided that the word is changed first and the wake-up follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.machine import target_arch
from .atomics import _element
from .mailbox import HAS_FUTEX, SYSTEM_CALLS
from .vectors import I64

_HERE = SYSTEM_CALLS[target_arch()] if HAS_FUTEX else {}
#: The operations on a word that other processes do not see.
_WAIT, _WAKE = 0 | 128, 1 | 128


def system_call(builder: Any, name: str, arguments: list[Any]) -> Any:
    """Emit a system call; where its number is not known, nothing, and the result is 0."""
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
