"""What will run and why, before anything runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..catalog import catalog
from ..codegen.jit import VARIABLE, jit_is_disabled
from ..engine.numpy_product import numpy_product
from ..errors import DTypeError, UsageError, did_you_mean
from ..host.limits import get_threads, why_threads
from ..host.machine import bytes_text
from ..kernels import Kernel
from ..operands import DTYPES, NUMPY_DTYPES
from ..problem import Problem
from .prediction import Blocks, Prediction, predict, seconds_text

#: Multiply-adds, or bytes of operands, that must be there for each thread. Two that stand by are ahead of one from 160³
#: multiply-adds on; waking one that sleeps costs up to 0.1 ms on a virtual machine, in which a core reads 4 MiB, but nobody
#: waits for it.
WORK_PER_THREAD = 2_000_000
BYTES_PER_THREAD = 4 << 20
#: Multiply-adds of a batch for each thread: one of Python's own, which sleeps, and takes up to 0.1 ms to wake.
WORK_PER_BAND = 8_000_000

ALGORITHMS = ("classical", "strassen")
PRECISIONS = ("standard", "highest")

#: dtypes without kernels of their own, and one that holds them exactly.
_HELD_BY = {"float16": "float32", "bfloat16": "float32", "bool": "float32"}
#: What ``precision="highest"`` computes in: with inputs of fewer than 27 bits, not even their products are rounded there.
_WIDEST = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}


@dataclass(frozen=True)
class Plan:
    """A decision about one problem; ``str()`` tells the whole of it.

    ``compute`` is the dtype the kernel works in. ``threads`` share each product; of a batch whose products are too small to
    be shared, ``bands`` threads take a part of the products each.
    """

    problem: Problem
    kernel: Kernel
    compute: str
    threads: int
    why: str
    bands: int = 1

    @property
    def workspace_bytes(self) -> int:
        """Memory beyond the operands that the kernel works in, all threads together; kept from call to call."""
        if self.kernel.workspace is None:
            return 0
        elements = self.kernel.workspace(self.problem.m, self.problem.n, self.problem.k)
        copies = self.threads if self.kernel.shared in ("rows", "tiles") and self.kernel.over is None else 1
        return elements * self._itemsize * copies

    @property
    def converted_bytes(self) -> int:
        """Memory for the operands and the result in the dtype that the kernel works in, where that is another one."""
        if self.compute == self.problem.dtype:
            return 0
        return self.problem.bytes_least // self.problem.itemsize * self._itemsize

    @property
    def prediction(self) -> Prediction | None:
        """How long it should take by a simple model of this machine; None for dtypes whose peak is not measured."""
        if self.kernel is numpy_product:
            return None
        return predict(self.problem, self.kernel.params, self.compute, max(self.threads, self.bands))

    def __str__(self) -> str:
        rows = [
            ("kernel", f"{self.kernel.name}: {self.kernel.idea}"),
            ("because", self.why),
            *self._blocks(),
            ("threads", self._threads()),
            ("workspace", bytes_text(self.workspace_bytes)),
        ]
        if self.compute != self.problem.dtype:
            words = f"in {self.compute}, rounded once to {self.problem.dtype}"
            rows.append(("computes", f"{words}; converted copies take {bytes_text(self.converted_bytes)}"))
        rows += [*self._error(), *self._expected()]
        return "\n".join([str(self.problem), *(f"  {label:<10} {text}" for label, text in rows)])

    @property
    def _itemsize(self) -> int:
        return Problem(1, 1, 1, self.compute).itemsize

    def _threads(self) -> str:
        if self.kernel is numpy_product:
            return "as many as NumPy uses"
        each = ", each with products of its own" if self.bands > 1 else ""
        return f"{max(self.threads, self.bands)} of {get_threads()} ({why_threads()}){each}"

    def _blocks(self) -> list[tuple[str, str]]:
        params, shape = self.kernel.params, (self.problem.m, self.problem.n, self.problem.k)
        blocks = Blocks.of(params, self.compute, *shape)
        rows = []
        if "mr" in params:
            vectors = f" ({params['nv']} vectors of {params['vector_bits']} bits)" if blocks.nr > 1 else ""
            rows.append(("tile", f"{blocks.mr} × {blocks.nr} of C in registers{vectors}"))
        if blocks.packs:
            m, n, k = (min(block, size) for block, size in zip((blocks.mc, blocks.nc, blocks.kc), shape, strict=True))
            words = f"A packed {m} × {k} at a time for L2, B {k} × {n} for the last cache"
            rows.append(("blocks", f"MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}: {words}"))
        return rows

    def _error(self) -> list[tuple[str, str]]:
        """Only where it is not the classical bound."""
        factor = _bound(self.kernel, self.problem.m, self.problem.n, self.problem.k)
        return [] if factor is None else [("error", f"at most {factor:.3g} · u · max|A| · max|B|, u the unit roundoff")]

    def _expected(self) -> list[tuple[str, str]]:
        if not self.problem.flops:
            return []
        prediction = self.prediction
        if prediction is None:
            unknown = "NumPy's rate" if self.kernel is numpy_product else f"the peak of {self.compute} arithmetic"
            return [("predicted", f"nothing: {unknown} is not measured")]
        seconds = prediction.seconds
        rate = f"{self.problem.flops / seconds / 1e9:.3g} GFLOPS"
        limit = "" if self.kernel.error_bound is None else "at most "
        return [
            ("predicted", f"{limit}{seconds_text(seconds)}, {rate}: bound by {prediction.bound}"),
            ("model", f"{prediction}; by this machine's measured roofs and the traffic of the blocks"),
        ]


def make_plan(problem: Problem, *, algorithm: str = "classical") -> Plan:
    """The highest rung of the ladder that suits the problem, on as many threads as pay and may be used.

    ``algorithm="strassen"`` takes the highest rung with fewer multiplications; its error bound is normwise, and wider
    (``kernel.error_bound``). ``problem.precision`` is a promise about error. With "standard" every element is within the
    classical bound γ_k·(|A||B|) of the exact one, in the dtype's own unit roundoff (that of float32 for what is narrower,
    then rounded once). With "highest" float16, bfloat16, float32 and complex64 are computed in float64 or complex128 and
    rounded once, at half the speed or less: the bound has float64's unit roundoff, plus that one rounding. float64 and
    complex128, for which nothing is wider, and integers, which are exact modulo their size, are computed as ever.

    What no rung multiplies and NumPy does (long double, Python objects) is left to NumPy; and so is everything where
    ``$NUMBA_DISABLE_JIT`` forbids to compile. Python objects are added and multiplied by their own rules on the calling
    thread, whatever the precision.

    Raises DTypeError for a dtype that can be multiplied in none of these ways, UsageError for a word that is not known.

    >>> print(make_plan(Problem(8, 8, 8, "float32", precision="highest")).compute)
    float64
    """
    for name, word, known in (("algorithm", algorithm, ALGORITHMS), ("precision", problem.precision, PRECISIONS)):
        if word not in known:
            raise UsageError(f"{name} {word!r} is not known: {did_you_mean(str(word), known)}")
    kernel, compute, why = _decision(problem, algorithm, not jit_is_disabled())
    if kernel is numpy_product:
        return Plan(problem, kernel, compute, 1, why)
    threads = _threads(problem, kernel)
    return Plan(problem, kernel, compute, threads, why, _bands(problem) if threads == 1 else 1)


@functools.lru_cache(maxsize=1024)
def _decision(problem: Problem, algorithm: str, compiles: bool) -> tuple[Kernel, str, str]:
    """The kernel, the dtype it works in, and the reason: what depends on the problem alone, as the bits must."""
    dtype = problem.dtype
    widest = _WIDEST.get(dtype, dtype) if problem.precision == "highest" else dtype
    if dtype in NUMPY_DTYPES and algorithm == "classical":
        return numpy_product, dtype, f"no kernel multiplies {dtype}"
    if not compiles:
        return numpy_product, _HELD_BY.get(widest, widest), f"${VARIABLE} is set, so no kernel can be compiled"
    for compute in dict.fromkeys((widest, _HELD_BY.get(widest, widest))):
        kernel, why = _rung(compute, algorithm, problem.m, problem.n, problem.k)
        if kernel is not None:
            return kernel, compute, why
    known = {dtype for kernel in _rungs(algorithm) for dtype in kernel.dtypes}
    can = ", ".join(name for name in DTYPES if {name, _HELD_BY.get(name)} & known)
    raise DTypeError(f"no {'' if algorithm == 'classical' else algorithm + ' '}kernel multiplies {dtype}: {can} can be")


def _threads(problem: Problem, kernel: Kernel) -> int:
    """In proportion to the work of each product; the limit is asked only where there is enough for two."""
    work, bytes_least = problem.m * problem.n * problem.k, problem.bytes_least // max(1, problem.batch)
    worth = max(work // WORK_PER_THREAD, bytes_least // BYTES_PER_THREAD)
    return 1 if worth < 2 or kernel.shared == "serial" else min(worth, get_threads())


def _bands(problem: Problem) -> int:
    """In proportion to the work of all products of a batch."""
    worth = min(problem.batch, problem.flops // 2 // WORK_PER_BAND)
    return 1 if worth < 2 else min(worth, get_threads())


def _rung(compute: str, algorithm: str, m: int, n: int, k: int) -> tuple[Kernel | None, str]:
    """The kernel to take and the reason, in words."""
    able = [kernel for kernel in _rungs(algorithm) if compute in kernel.dtypes]
    if algorithm != "classical":
        if able and _bound(able[0], m, n, k) is None:
            kernel, why = _rung(compute, "classical", m, n, k)
            return kernel or able[0], f"{why}; {algorithm} gains nothing at this size"
        words = f"the highest {algorithm} rung for {compute}: fewer multiplications, a wider error bound"
        return (able[0] if able else None), words
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m, n, k):
            return kernel, f"the highest rung for {compute} that suits this shape, with the classical error bound"
    rest = [kernel for kernel in able if kernel.suits is None]
    return (
        rest[0] if rest else None
    ), f"the highest rung for {compute} that takes every shape; none above suits this one"


def _bound(kernel: Kernel, m: int, n: int, k: int) -> float | None:
    """The factor of a normwise error bound; None where the classical bound holds."""
    if kernel.error_bound is None:
        return None
    return kernel.error_bound(m, n, k, **{name: kernel.params[name] for name in kernel.tunable})


@functools.cache
def _rungs(algorithm: str) -> tuple[Kernel, ...]:
    """The kernels of one algorithm, the highest first."""
    found = [kernel for kernel in catalog().values() if kernel.device == "cpu"]
    chosen = [kernel for kernel in found if (kernel.error_bound is None) == (algorithm == "classical")]
    return tuple(sorted(chosen, key=lambda kernel: -kernel.order))
