"""What a benchmark multiplies on a GPU: operands in one piece of memory, with guards between them.

Every set holds the same two matrices at other addresses, so that one oracle serves them all. Guards are bytes before and
behind each matrix that no kernel may write. They are 0xFF, as C is before a kernel runs: a NaN in every format. So a guard
that is read makes the result NaN, and an element of C that is not written is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.gpu.device import Device
from ...runtime.gpu.memory import Memory
from ..inputs.formats import NumberFormat
from ..inputs.sizes import Shape
from ..verify.device_verify import DeviceChecks

#: Bytes of all sets together, as a multiple of the L2 cache: then a set has left it when its turn comes again.
ROTATION = 2
MOST_SETS = 4096
#: A guard is as large as C, but within these bytes: a tile that hangs over C's edge would write to it.
LEAST_GUARD, MOST_GUARD = 4096, 1 << 20

_ALIGNMENT = 256
_POISON = 0xFF
_NAMES = ("A", "B", "C", "the reference's C")

Values = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]


def random_values(shape: Shape, form: NumberFormat, seed: int) -> Values:
    """A and B, uniform in [−1, 1), which depend on the seed and the shape alone; rounded to the format."""
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    a, b = (_uniform(rng, size, form.working) for size in ((m, k), (k, n)))
    return form.values(form.stored(a)), form.values(form.stored(b))


def given_values(a: NDArray[Any], b: NDArray[Any], form: NumberFormat) -> Values:
    """The user's own matrices, rounded to the format."""
    return form.values(form.stored(a)), form.values(form.stored(b))


def _uniform(rng: np.random.Generator, size: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[np.floating[Any]]:
    x = rng.random(size, dtype=dtype.type)
    x *= 2
    x -= 1
    return x


@dataclass(frozen=True)
class SetLayout:
    """Where the matrices are: the starts and sizes in bytes of A, B, C and the reference's C in a set, the bytes of a set
    (``period``), and the number of sets."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    period: int
    count: int

    @classmethod
    def of(cls, shape: Shape, form: NumberFormat, l2_bytes: int) -> SetLayout:
        """The layout with so many sets that a set has left the L2 cache when its turn comes again.

        >>> from tilewright.lab.inputs.formats import FORMATS
        >>> SetLayout.of((256, 256, 256), FORMATS["float32"], 60_000_000).count
        115
        """
        m, n, k = shape
        sizes = tuple(elements * form.itemsize for elements in (m * k, k * n, m * n, m * n))
        guard = _aligned(min(MOST_GUARD, max(LEAST_GUARD, sizes[2])))
        starts, at = [], guard
        for size in sizes:
            starts.append(at)
            at = _aligned(at + size) + guard
        count = math.ceil(ROTATION * l2_bytes / max(1, sum(sizes)))
        return cls(tuple(starts), sizes, at, min(MOST_SETS, max(1, count)))

    @property
    def nbytes(self) -> int:
        """Bytes of all sets, guards included."""
        return self.period * self.count

    @property
    def guards(self) -> list[tuple[str, int, int]]:
        """Name, start and size of each guard of a set: the bytes between the end of a matrix and the start of the next."""
        ends = [start + size for start, size in zip(self.starts, self.sizes, strict=True)]
        begins = zip(("before A", *(f"behind {name}" for name in _NAMES)), (0, *ends), strict=True)
        return [
            (name, start, end - start) for (name, start), end in zip(begins, (*self.starts, self.period), strict=True)
        ]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class DeviceSets:
    """The sets of one shape and format. ``c`` are the kernel's outputs, ``r`` the reference's, one a set.

    Raises LaunchError where the GPU's memory does not hold them.
    """

    def __init__(self, gpu: Device, checks: DeviceChecks, layout: SetLayout, values: Values) -> None:
        self._gpu, self.checks, self.layout = gpu, checks, layout
        self._memory = gpu.allocate(layout.nbytes)
        gpu.fill(self._memory, _POISON)
        self.a, self.b, self.c, self.r = (
            [self._part(start, size, i) for i in range(layout.count)]
            for start, size in zip(layout.starts, layout.sizes, strict=True)
        )
        for copies, matrix in zip((self.a, self.b), values, strict=True):
            gpu.copy_to(copies[0], checks.form.stored(matrix))
            for other in copies[1:]:
                gpu.copy(other, copies[0])
        self._sums = [int(checks.checksums(copies[0], 0, 1)[0]) for copies in (self.a, self.b)]

    def __len__(self) -> int:
        return self.layout.count

    def _part(self, start: int, size: int, index: int) -> Memory:
        return self._memory.part(start + index * self.layout.period, size)

    def poison(self) -> None:
        """Fill every output of the kernel with NaN."""
        for c in self.c:
            self._gpu.fill(c, _POISON)

    def changed(self) -> str:
        """What a kernel has written besides C, as text; empty if it wrote to C alone. All sets are checked."""
        period, parts = self.layout.period, len(self)
        operands = zip("AB", (self.a, self.b), self._sums, strict=True)
        names = [name for name, x, sum_ in operands if (self.checks.checksums(x[0], period, parts) != sum_).any()]
        if names:
            return f"it changed {' and '.join(names)}"
        for name, start, size in self.layout.guards:
            if (touched := self.checks.touched(self._part(start, size, 0), period, parts)) is not None:
                return f"it wrote memory {name}, byte {touched[1]} of {size} there"
        return ""

    def close(self) -> None:
        """Free the GPU's memory."""
        self._memory.close()
