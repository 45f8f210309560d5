"""Products in files, verified: A, B and C are read by rectangles, within a limit of memory."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ...cpu.runtime.stop import Stopped, current_stop
from ...errors import MemoryLimitError
from ...host.machine import available_memory, bytes_text
from ..files import Source, open_matrix
from ..streaming.places.places import parse_bytes
from ..streaming.plan.cuts import own_bytes
from .comparing import Budget, compare_floats, compare_integers
from .found import Verification

#: What a verification takes where no limit is stated; less where a quarter of the free memory is less.
MOST_BYTES = 1 << 30


class SourceMatrix:
    """A matrix that is read as it is compared; Ctrl-C ends that before the next rectangle."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape, self.grain, self.dtype = source.shape, source.grain, source.dtype.newbyteorder("=")

    def __getitem__(self, where: tuple[Any, slice]) -> np.ndarray[Any, Any]:
        if current_stop().asked:
            raise Stopped
        rows, columns = where
        width = columns.stop - columns.start
        if isinstance(rows, slice):
            out = np.empty((rows.stop - rows.start, width), self.dtype)
            self._source.read(rows, columns, out)
            return out
        out = np.empty((len(rows), width), self.dtype)
        for at, row in enumerate(rows.tolist()):
            self._source.read(slice(row, row + 1), columns, out[at : at + 1])
        return out


def verify_files(a: Any, b: Any, c: Any, bound: float, memory: float | str | None = None) -> Verification:
    """Check afterwards that ``c`` is the product of ``a`` and ``b``: no element's error may be above ``bound``·(|A||B|).

    They are paths of files, sources or arrays: (m, k), (k, n) and (m, n). Integers are compared modulo the size of C's.
    ``memory`` bounds the bytes that are taken ("4GiB", or a number). A and C are read once, and B twice, or three times
    where float64 cannot decide. Raises MemoryLimitError where the limit is too small, and FileError.

    >>> a = np.random.default_rng(1).uniform(-1, 1, (300, 200))
    >>> verify_files(a, a.T, a @ a.T, 1e-13).ok
    True
    """
    with contextlib.ExitStack() as stack:
        sources = []
        for operand in (a, b, c):
            if hasattr(operand, "read") and hasattr(operand, "fingerprint"):
                sources.append(operand)  # the caller opened it, and closes it
            else:
                sources.append(stack.enter_context(contextlib.closing(open_matrix(operand))))
        x, y, z = map(SourceMatrix, sources)
        (m, k), n = x.shape, y.shape[1]
        found = Verification(0.0, bound, (), f"{m}×{k} · {k}×{n} {z.dtype.name}")
        if not m * n:
            return found
        limit = min(MOST_BYTES, (available_memory() or MOST_BYTES) // 4)
        if memory is not None:
            limit = parse_bytes("memory", memory)
        reserved = own_bytes(limit) + 2 * max(source.workspace for source in sources)
        budget = Budget.within(limit - reserved, m, n, k)
        if budget is None:
            raise MemoryLimitError(
                f"memory is {bytes_text(limit)}: that is too little to verify ({m}×{k}) · ({k}×{n}), of which each row and "
                "column needs about 100 bytes; give more, or leave verify out"
            )
        if z.dtype.kind in "iu":
            error, where = compare_integers(x, y, z, budget)
        else:
            error, where = compare_floats(x, y, z, bound, budget)
        return Verification(error, bound, where, found.what)
