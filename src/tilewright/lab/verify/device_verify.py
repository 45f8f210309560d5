"""Verifies results in a GPU's memory: it compares every element with the product in float64, with the same bound as on
the CPU.

For each pair of operands, A·B and |A||B| are computed once, in float64, by a plain kernel. The plain kernel shares no
code with the kernels that are verified: it is not a rung of the ladder, and calls no library. So cuBLAS and kernels in
float64 are verified like all other kernels. The plain kernel's own product is verified by the host's oracle up to
4096³, where that takes a second or two. The oracle compares every element of a small product; of a larger one it
compares rows, columns and sums with random signs. Products larger than 4096³ are computed by the same kernel and not
compared on the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UnavailableError
from ...gpu.runtime.device import Device
from ...gpu.runtime.launch import Submission
from ...gpu.runtime.memory import Memory
from ...gpu.runtime.nvrtc import compile_file
from ..inputs.formats import NumberFormat
from ..inputs.options import Shape
from .verify import Check, ErrorSample, Oracle

SOURCE = Path(__file__).with_name("device_verify.cu")
#: The largest m·n·k for which the GPU's A·B is verified on the host.
CONFIRMED = 4096**3

_THREADS = 256
_NOTHING = 2**64 - 1


class DeviceComparison(NamedTuple):
    """The result of a comparison: the first element outside its bound, the largest error, and the largest ratio of an
    error to its bound."""

    first: int | None
    worst: float
    ratio: float


class DeviceChecks:
    """The kernels of ``device_verify.cu`` for one number format, on one GPU."""

    def __init__(self, gpu: Device, form: NumberFormat) -> None:
        self.gpu, self.form = gpu, form
        self._compiled = compile_file(SOURCE, arch=gpu.arch, defines={f"DTYPE_{form.name.upper()}": 1})

    def product(self, a: Memory, b: Memory, exact: Memory, magnitude: Memory, shape: Shape) -> None:
        """Compute exact = A·B and magnitude = |A||B| in float64."""
        m, n, k = shape
        grid = (-(-n // 32), min(-(-m // 32), 65535))
        self.gpu.launch(self._compiled, "exact_product", grid, (32, 8), (a, b, exact, magnitude, m, n, k))

    def compare(self, c: Memory, exact: Memory, magnitude: Memory, k: int) -> DeviceComparison:
        """Compare every element of ``c`` with its exact value and its bound."""
        count = c.nbytes // self.form.itemsize
        with self.gpu.put(np.array([_NOTHING, 0, 0], np.uint64)) as memory:
            args = (c, exact, magnitude, count, *self.form.bound(k), memory)
            self.gpu.launch(self._compiled, "compare", self._blocks(count), _THREADS, args)
            found = self.gpu.get(memory, np.uint64, 3)
        worst, ratio = found[1:].view(np.float64)
        return DeviceComparison(None if found[0] == _NOTHING else int(found[0]), float(worst), float(ratio))

    def checksums(self, first: Memory, period: int, parts: int) -> NDArray[np.uint64]:
        """A checksum of each of ``parts`` ranges of memory. The first range is ``first``; the others have the same
        size, and each begins ``period`` bytes after the one before it.

        Contents that differ in one place always have different checksums. Contents that differ in more places have
        different checksums with a probability of 1 - 2^-64.
        """
        units = first.nbytes // 2
        with self.gpu.put(np.zeros(parts, np.uint64)) as sums:
            grid = (self._blocks(units, parts), parts)
            self.gpu.launch(self._compiled, "checksum", grid, _THREADS, (first, period, units, sums))
            return self.gpu.get(sums, np.uint64, parts)

    def touched(self, first: Memory, period: int, parts: int) -> tuple[int, int] | None:
        """The position (part, byte) of the first byte that is not 0xFF, in ranges of memory as for ``checksums``; None
        if there is no such byte."""
        with self.gpu.put(np.array([_NOTHING], np.uint64)) as memory:
            grid = (self._blocks(first.nbytes, parts), parts)
            self.gpu.launch(self._compiled, "touched", grid, _THREADS, (first, period, first.nbytes, memory))
            (at,) = self.gpu.get(memory, np.uint64, 1)
        return None if at == _NOTHING else divmod(int(at), first.nbytes)

    def hold(self, seconds: float) -> Submission:
        """Launch work that keeps the GPU busy for ``seconds``, while other launches are queued behind it."""
        return self.gpu.prepare(self._compiled, "hold", 1, 1, (int(seconds * 1e9),))

    def _blocks(self, count: int, parts: int = 1) -> int:
        """Blocks along x: enough to fill the GPU, but no more than there is work for."""
        return max(1, min(-(-count // _THREADS), 8 * self.gpu.sms // parts))


class DeviceOracle:
    """A·B in float64 for one pair of operands. ``a`` and ``b`` are on a GPU, and ``values`` has the same matrices on
    the host.

    The oracle uses 16 bytes of the GPU's memory for each element of C. Raises UnavailableError if the host's oracle
    rejects this A·B, because then nothing can be verified on this GPU.
    """

    def __init__(
        self,
        checks: DeviceChecks,
        shape: Shape,
        a: Memory,
        b: Memory,
        values: tuple[NDArray[np.floating], NDArray[np.floating]],
        *,
        seed: int = 0,
    ) -> None:
        self._checks, self._gpu, self._shape = checks, checks.gpu, shape
        self._values = values
        self._error_sample: ErrorSample | None = None
        m, n, k = shape
        self._exact, self._magnitude = (self._gpu.allocate(8 * m * n) for _ in range(2))
        checks.product(a, b, self._exact, self._magnitude, shape)
        if m * n * k <= CONFIRMED:
            a_values, b_values = values
            self._confirm(self._exact, a_values, b_values, seed)
            self._confirm(self._magnitude, np.abs(a_values), np.abs(b_values), seed)

    def _confirm(self, product: Memory, a: NDArray[np.floating], b: NDArray[np.floating], seed: int) -> None:
        check = Oracle(a, b, seed=seed).check(self._gpu.get(product, np.float64, self._shape[:2]))
        if not check.ok:
            raise UnavailableError(
                f"{self._gpu.name}: the product that results are verified against is wrong: {check.reason}"
            )

    def check(self, c: Memory) -> Check:
        """Compare ``c``, m×n in this format, with A·B: every element must be finite and within its bound."""
        compared = self._checks.compare(c, self._exact, self._magnitude, self._shape[2])
        if compared.first is None:
            return Check(True, compared.worst, compared.ratio)
        return Check(False, compared.worst, compared.ratio, self._reason(c, compared.first))

    def rms_error(self, c: Memory) -> float | None:
        """The root mean square error of a ``c`` that passes, estimated from the elements that ``verify.ErrorSample``
        takes, as on the CPU."""
        if self._error_sample is None:
            self._error_sample = ErrorSample(*self._values)
        form, sample, (_, n, _) = self._checks.form, self._error_sample, self._shape
        row_bytes = n * form.itemsize
        rows = [self._gpu.get(c.part(int(i) * row_bytes, row_bytes), form.storage, n) for i in sample.rows]
        return sample.rms_error(form.values(np.array(rows)[:, sample.columns]))

    def _reason(self, c: Memory, at: int) -> str:
        """The reason why element number ``at`` is wrong, in the words of ``verify.Oracle``."""
        form, itemsize = self._checks.form, self._checks.form.itemsize
        stored = self._gpu.get(c.part(at * itemsize, itemsize), form.storage, 1)
        value = float(form.values(stored)[0])
        where = f"C{list(divmod(at, self._shape[1]))}"
        if not np.isfinite(value):
            return f"{where} is {value}: not written, or not a number"
        exact, magnitude = (
            float(self._gpu.get(memory.part(at * 8, 8), np.float64, 1)[0]) for memory in (self._exact, self._magnitude)
        )
        relative, rounding, tiny = form.bound(self._shape[2])
        bound = relative * magnitude + rounding * abs(exact) + tiny
        return f"{where} is off by {abs(value - exact):.3g}, the bound is {bound:.3g}"

    def close(self) -> None:
        """Free the GPU's memory."""
        self._exact.close()
        self._magnitude.close()
