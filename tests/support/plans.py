"""Plans of problems, as ``matmul`` makes them of operands."""

from __future__ import annotations

import numpy as np

from tilewright.cpu.plan import HostPlan, host_plan
from tilewright.product.problem import Problem


def make_plan(problem: Problem, algorithm: str = "classical") -> HostPlan:
    """The plan of a problem on the host, with the threads that may be used now."""
    if problem.dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  # gives NumPy the name
    batch = () if problem.batch == 1 else (problem.batch,)
    dtype = np.dtype(problem.dtype)
    a, b = (*batch, problem.m, problem.k), (problem.k, problem.n)
    return host_plan(a, b, dtype, dtype, problem.precision, algorithm)
