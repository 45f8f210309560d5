"""What will run and why, before anything runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .errors import DTypeError
from .kernels import Kernel, catalog
from .machine import bytes_text, machine
from .operands import DTYPES
from .peaks import bandwidth_gbs, peak_gflops
from .problem import Problem

#: Multiply-adds that must be there for each thread: waking one costs up to 0.1 ms on a virtual machine, in which a core
#: does about 10 million.
WORK_PER_THREAD = 16_000_000


@dataclass(frozen=True)
class Plan:
    """A decision about one problem. ``compute`` is the dtype the kernel works in; ``str()`` tells the whole of it."""

    problem: Problem
    kernel: Kernel
    compute: str
    threads: int
    why: str

    @property
    def workspace_bytes(self) -> int:
        """Memory beyond the operands that the kernel allocates, all threads together."""
        if self.kernel.workspace is None:
            return 0
        elements = self.kernel.workspace(self.problem.m, self.problem.n, self.problem.k)
        return elements * self.problem.itemsize * self.threads

    @property
    def bounds_s(self) -> tuple[float, float] | None:
        """Seconds that arithmetic and memory need at least on this machine, by its measured roofs; None for integers."""
        if self.compute not in ("float32", "float64"):
            return None
        compute = self.problem.flops / (peak_gflops(self.compute, self.threads) * 1e9)
        memory = self.problem.bytes_least / (bandwidth_gbs("float64", self.threads) * 1e9)
        return compute, memory

    def __str__(self) -> str:
        lines = [
            str(self.problem),
            f"  kernel     {self.kernel.name}: {self.kernel.idea}",
            f"  because    {self.why}",
            f"  threads    {self.threads} of {machine().usable_cores}",
            f"  workspace  {bytes_text(self.workspace_bytes)}",
        ]
        if self.compute != self.problem.dtype:
            lines.append(f"  computes   in {self.compute}, rounded once to {self.problem.dtype}")
        if self.bounds_s is not None and self.problem.flops:
            compute, memory = self.bounds_s
            bound = "arithmetic" if compute >= memory else "memory"
            lines.append(f"  at least   {max(compute, memory):.3g} s: bound by {bound} (roofline of this machine)")
        return "\n".join(lines)


def make_plan(problem: Problem) -> Plan:
    """The highest rung of the ladder with a classical error bound that knows the dtype, on as many threads as pay.

    Raises DTypeError for a dtype that no rung can compute.
    """
    compute = _compute_dtype(problem.dtype)
    kernel = _highest_rung(compute)
    if kernel is None:
        raise DTypeError(f"no kernel multiplies {problem.dtype}: {', '.join(DTYPES)} can be")
    threads = max(1, min(machine().usable_cores, problem.flops // 2 // WORK_PER_THREAD // max(1, problem.batch)))
    why = f"the highest rung for {compute} whose error bound is the classical one"
    return Plan(problem, kernel, compute, 1 if kernel.shared == "serial" else threads, why)


@functools.cache
def _highest_rung(compute: str) -> Kernel | None:
    able = [k for k in catalog().values() if k.device == "cpu" and compute in k.dtypes and k.error_bound is None]
    return max(able, key=lambda k: k.order, default=None)


def _compute_dtype(dtype: str) -> str:
    """float16 and bool have no kernels of their own: float32 holds both exactly."""
    return "float32" if dtype in ("float16", "bool") else dtype
