"""The machine code by which workers wait for the next product, awake or asleep, and how a call is encoded for them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba as nb
import numpy as np

from ...codegen import crew
from ...codegen.affinity import SET_WORDS, add_to_set
from ...codegen.futex import HAS_FUTEX

#: Seconds that a worker stands by. A product that must wake 15 workers takes 0.5 to 0.9 ms on a virtual machine. With less
#: time than that, the first workers to finish would sleep before it ends, and the next product would wake them again.
AWAKE_S = 1e-3

_add = getattr(add_to_set, "py_func", add_to_set)  # as Python, which takes no time to compile
_WORDS, _INDEX, _FLAG = nb.types.int64[::1], nb.types.intp, nb.types.boolean


class CompiledStandby:
    """Implements ``threads.Standby``; ``compile_`` compiles a function for a signature."""

    def __init__(self, compile_: Callable[[Any, Any], Any], sleeps: bool = HAS_FUTEX) -> None:
        nothing = nb.types.void
        self.sleeps = sleeps
        self._stand_by = compile_(crew.stand_by, _INDEX(_WORDS, _INDEX, _INDEX, _INDEX, _FLAG))
        self._post = compile_(crew.post, _INDEX(_WORDS, _WORDS, _INDEX, _FLAG))
        self._ring = compile_(crew.ring, nothing(_WORDS, _INDEX))
        self._publish = compile_(crew.publish, nothing(_WORDS, _INDEX, _INDEX))
        self._rouse = compile_(crew.rouse, _FLAG(_WORDS, _WORDS))
        self.settle = compile_(crew.settle, nothing(_WORDS, _INDEX))
        self._looks = self._looks_for(AWAKE_S)

    def called(self, mailbox: np.ndarray) -> int:
        return int(mailbox[crew.BELL]) >> 32

    def stand_by(self, mailbox: np.ndarray, called: int, awake: bool) -> None:
        self._stand_by(mailbox, self._looks, self._looks if awake else 0, called, self.sleeps)

    def call_back(self, mailbox: np.ndarray) -> None:
        self._ring(mailbox, crew.CALL_BACK)

    def begin(self, call: np.ndarray, boxes: np.ndarray, here: int) -> None:
        call[crew.BOXES] = boxes.ctypes.data
        _add(call, crew.TAKEN, here)

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        return bool(self._post(mailbox, call, call.ctypes.data, True) != crew.AWAY)

    def rouse(self, mailboxes: Sequence[np.ndarray], here: int) -> list[bool]:
        taken = np.zeros(SET_WORDS, np.int64)
        _add(taken, 0, here)
        return [self._rouse(mailbox, taken) for mailbox in mailboxes]

    def wake(self, call: np.ndarray, boxes: np.ndarray) -> None:
        self._publish(call, call.ctypes.data, boxes.size)

    def failed(self, call: np.ndarray) -> bool:
        return bool(call[crew.FAILED])

    def _looks_for(self, seconds: float) -> int:
        """How often a worker looks at its mailbox in so many seconds.

        It is measured, because a processor's pause takes 10 to 140 cycles. The fastest of four runs counts, because other
        programs may run meanwhile.
        """
        mailbox, looks = np.zeros(crew.MAILBOX_WORDS, np.int64), 1000
        taken = []
        for _ in range(4):
            start = time.perf_counter()
            self._stand_by(mailbox, looks, looks, 0, False)
            taken.append(time.perf_counter() - start)
        return max(1, round(looks * seconds / min(taken)))


def call_words(
    code: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, space: np.ndarray, counters: np.ndarray
) -> np.ndarray:
    """A call of a ``team`` kernel in words. The arrays must outlive it."""
    matrices = [number for x in (a, b, c) for number in (x.ctypes.data, *x.shape, *x.strides)]
    numbers = [space.ctypes.data, space.size, counters.ctypes.data, counters.size]
    call = np.zeros(crew.WORDS, np.int64)
    call[: crew.FAILED] = address_of(code), a.itemsize, *matrices, *numbers, c.itemsize, space.itemsize
    return call


@functools.cache
def address_of(code: Any) -> int:
    """The address of a compiled kernel's machine code."""
    (compiled,) = code.overloads.values()
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def source_of(function: Any) -> SimpleNamespace:
    """The attributes of a kernel that ``CodeCache`` reads, for a function that is not a kernel."""
    return SimpleNamespace(function=function, source_hash=Path(function.__code__.co_filename).stem)
