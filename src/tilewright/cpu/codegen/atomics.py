"""Counters by which threads coordinate while they compute: a shared array of 64-bit integers.

Threads that wait for a counter do not sleep, because the work that they wait for has begun on another thread and takes
only microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Reads of a counter before a waiting thread offers its processor to others.
_PATIENCE = 2000

#: By processor, LLVM's name of the hint that a thread waits, and its arguments: x86's pause, Arm's yield. Inline assembly
#: would need an assembler, which Numba does not start.
_WAITING = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
    "arm64": ("llvm.aarch64.hint", (1,)),
}


def _element(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def _fetch_add(typingctx: Any, counters: Any, index: Any, amount: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _element(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(counters, types.intp, types.int64), codegen


@intrinsic
def _load(typingctx: Any, counters: Any, index: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_element(context, builder, signature, args), "acquire", 8)

    return types.int64(counters, types.intp), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:  # noqa: ARG001
    """Tell the core that this thread is waiting."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        module = builder.module
        name, numbers = _WAITING.get(module.triple.split("-")[0], ("", ()))
        if name:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)] * len(numbers))
            hint = module.globals.get(name) or ir.Function(module, kind, name)
            builder.call(hint, [ir.IntType(32)(number) for number in numbers])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _offer_processor(typingctx: Any) -> Any:  # noqa: ARG001
    """Let other threads run, if any wait for this processor."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), [])
            module = builder.module
            builder.call(module.globals.get("sched_yield") or ir.Function(module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
_add: Callable[..., int] = _fetch_add
load: Callable[..., int] = _load
pause: Callable[..., None] = _pause
offer_processor: Callable[..., None] = _offer_processor


@nb.njit(nogil=True)
def fetch_add(counters: np.ndarray, index: int, amount: int) -> int:
    """Add ``amount`` to ``counters[index]`` and return the old value. Threads that read the new value also see
    everything that this thread wrote before."""
    return _add(counters, index, amount)


@nb.njit(nogil=True)
def take_below(counters: np.ndarray, index: int, limit: int) -> int:
    """Take the next number from ``counters[index]``. Returns ``limit`` when all numbers below it are taken."""
    if load(counters, index) >= limit:  # a read does not take the cache line from other cores
        return limit
    return min(limit, _add(counters, index, 1))


@nb.njit(nogil=True)
def wait_for(counters: np.ndarray, index: int, least: int) -> None:
    """Wait until ``counters[index]`` is at least ``least``. The waiting thread then sees everything that other threads
    wrote before they raised the counter to ``least``."""
    reads = 0
    while load(counters, index) < least:
        pause()
        reads += 1
        if reads > _PATIENCE:
            offer_processor()


# ---- copies that all threads of a team make together before they share a product -------------------------------------

#: Columns that one thread copies at a time.
_BLOCK = 1024


@nb.njit(nogil=True)
def copy_together(source: np.ndarray, target: np.ndarray, counters: np.ndarray, first: int) -> None:
    """Copy ``source`` (rows × columns, any strides) to the 1-D ``target`` in row-major order. Returns when everything
    is copied.

    Every thread of the team must call this function. The copy uses the counters ``first`` and ``first + 1``, which must
    be 0 before the call.
    """
    rows, columns = source.shape
    blocks = (columns + _BLOCK - 1) // _BLOCK
    while True:
        block = fetch_add(counters, first, 1)
        if block >= blocks:
            break
        for j in range(block * _BLOCK, min(columns, (block + 1) * _BLOCK)):
            for i in range(rows):
                target[i * columns + j] = source[i, j]
        fetch_add(counters, first + 1, 1)
    wait_for(counters, first + 1, blocks)
