"""The machine code by which workers wait for the next product, awake or asleep, and how a call is encoded for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..codegen import mailbox as words
from ..codegen.mailbox import HAS_FUTEX, SET_WORDS
from .library import address_of

#: Seconds that a worker stands by. A product that must wake 15 workers takes 0.5 to 0.9 ms on a virtual machine. With less
#: time than that, the first workers to finish would sleep before it ends, and the next product would wake them again.
AWAKE_S = 1e-3


class CompiledStandby:
    """Implements ``threads.Standby``; ``machine_code`` gives the functions of ``cpu.codegen.crew`` by name."""

    def __init__(self, machine_code: Callable[[str], Callable[..., int]], sleeps: bool = HAS_FUTEX) -> None:
        self.sleeps = sleeps
        names = "stand_by", "post", "ring", "publish", "rouse", "settle"
        self._stand_by, self._post, self._ring, self._publish, self._rouse, self._settle = map(machine_code, names)
        self._looks = self._looks_for(AWAKE_S)

    def called(self, mailbox: np.ndarray) -> int:
        return int(mailbox[words.BELL]) >> 32

    def stand_by(self, mailbox: np.ndarray, called: int, awake: bool) -> None:
        self._stand_by(mailbox, self._looks, self._looks if awake else 0, called, self.sleeps)

    def call_back(self, mailbox: np.ndarray) -> None:
        self._ring(mailbox, words.CALL_BACK)

    def begin(self, call: np.ndarray, boxes: np.ndarray, here: int) -> None:
        call[words.BOXES] = address_of(boxes)
        _add_to_set(call, words.TAKEN, here)

    def post(self, mailbox: np.ndarray, call: np.ndarray) -> bool:
        return bool(self._post(mailbox, call, address_of(call), True) != words.AWAY)

    def rouse(self, mailboxes: Sequence[np.ndarray], here: int) -> list[bool]:
        taken = np.zeros(SET_WORDS, np.int64)
        _add_to_set(taken, 0, here)
        return [bool(self._rouse(mailbox, taken)) for mailbox in mailboxes]

    def wake(self, call: np.ndarray, boxes: np.ndarray) -> None:
        self._publish(call, call.ctypes.data, boxes.size)

    def settle(self, mailbox: np.ndarray, call: int) -> None:
        self._settle(mailbox, call)

    def failed(self, call: np.ndarray) -> bool:
        return bool(call[words.FAILED])

    def _looks_for(self, seconds: float) -> int:
        """How often a worker looks at its mailbox in so many seconds.

        It is measured, because a processor's pause takes 10 to 140 cycles. The fastest of four runs counts, because other
        programs may run meanwhile.
        """
        mailbox, looks = np.zeros(words.MAILBOX_WORDS, np.int64), 1000
        taken = []
        for _ in range(4):
            start = time.perf_counter()
            self._stand_by(mailbox, looks, looks, 0, False)
            taken.append(time.perf_counter() - start)
        return max(1, round(looks * seconds / min(taken)))


def _add_to_set(words: np.ndarray, at: int, processor: int) -> None:
    """Add a processor to the set that begins at word ``at``, as ``cpu.codegen.affinity`` does."""
    if 0 <= processor < 64 * SET_WORDS:
        bit = 1 << (processor & 63)
        words[at + (processor >> 6)] |= bit if bit < 1 << 63 else bit - (1 << 64)


def call_words(
    code: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, space: np.ndarray, counters: np.ndarray
) -> np.ndarray:
    """A call of a ``team`` kernel in words. The arrays must outlive it."""
    matrices = [number for x in (a, b, c) for number in (x.ctypes.data, *x.shape, *x.strides)]
    numbers = [address_of(space), space.size, address_of(counters), counters.size]
    call = np.zeros(words.WORDS, np.int64)
    call[: words.FAILED] = code.address, a.itemsize, *matrices, *numbers, c.itemsize, space.itemsize
    return call
