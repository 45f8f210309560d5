"""Workers that wait awake for the next product: the machine code for it, and a product in its words."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba as nb
import numpy as np

from ...codegen import crew

#: Seconds that a worker waits awake for the next product: more than one takes that has to wake 15 of them, 0.5 to 0.9 ms on
#: a virtual machine, or those who came first would be asleep again when it ends, and the next one have to wake them all.
AWAKE_S = 1e-3

_WORDS, _INDEX, _FLAG = nb.types.int64[::1], nb.types.intp, nb.types.boolean


class CompiledStandby:
    """What ``threads.Standby`` asks for; ``compile`` makes machine code of a function and a signature."""

    def __init__(self, compile_: Callable[[Any, Any], Any]) -> None:
        self._stand_by = compile_(crew.stand_by, _INDEX(_WORDS, _INDEX))
        self.post = compile_(crew.post, _FLAG(_WORDS, _WORDS))
        self.settle = compile_(crew.settle, nb.types.void(_WORDS))
        self._looks = self._looks_for(AWAKE_S)

    def stand_by(self, mailbox: np.ndarray) -> None:
        self._stand_by(mailbox, self._looks)

    def _looks_for(self, seconds: float) -> int:
        """A processor's pause takes 10 to 140 cycles, so it is measured; the quickest of some, for others may run too."""
        mailbox, looks = np.zeros(crew.WORDS, np.int64), 1000
        taken = []
        for _ in range(4):
            start = time.perf_counter()
            self._stand_by(mailbox, looks)
            taken.append(time.perf_counter() - start)
        return max(1, round(looks * seconds / min(taken)))


def call_words(
    code: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, space: np.ndarray, counters: np.ndarray
) -> np.ndarray:
    """A call of a kernel for a team, as a mailbox holds it behind its state. The arrays must outlive it."""
    matrices = [number for x in (a, b, c) for number in (x.ctypes.data, *x.shape, *x.strides)]
    numbers = [space.ctypes.data, space.size, counters.ctypes.data, counters.size]
    return np.array([_address(code), c.itemsize, *matrices, *numbers], np.int64)


@functools.cache
def _address(code: Any) -> int:
    (compiled,) = code.overloads.values()
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def source_of(function: Any) -> SimpleNamespace:
    """What the cache of machine code wants to know of a function: here as if it were a kernel."""
    return SimpleNamespace(function=function, source_hash=Path(function.__code__.co_filename).stem)
