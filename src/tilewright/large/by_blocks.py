"""Computes ``matmul`` of host arrays on GPUs block by block, in the same way as ``multiply``. The products of a batch
are computed one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cpu.plan import HostPlan
from ..errors import MemoryLimitError, UsageError
from ..product.plan import Plan


def run_by_blocks(
    plan_: HostPlan, x: np.ndarray, y: np.ndarray, c: np.ndarray, algorithm: str, device: str | None
) -> None:
    """Compute the planned products on ``device`` and write them to ``c``."""
    stream = _stream(plan_, algorithm)
    precision = stream.precision_of_blocks(plan_.problem.precision)

    def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        stream.multiply(a, b, c, device=device, precision=precision)

    plan_.run_by(product, x, y, c)


def plan_by_blocks(plan_: HostPlan, algorithm: str, device: str | None) -> Plan:
    """Return the plan of one product of a batch. Planning allocates arrays for the operands but never writes to the
    arrays, so they take no physical memory.
    """
    stream, problem = _stream(plan_, algorithm), plan_.problem
    try:
        a, b = (np.empty(shape, plan_.compute) for shape in ((problem.m, problem.k), (problem.k, problem.n)))
    except MemoryError:
        raise MemoryLimitError(f"{problem}: this machine has too little memory for its operands") from None
    return stream.plan_multiply(a, b, device=device, precision=stream.precision_of_blocks(problem.precision))


def _stream(plan_: HostPlan, algorithm: str) -> Any:
    """The module that multiplies block by block; imported only here, because most programs never need it."""
    from ..errors import DTypeError
    from . import multiply
    from .streaming.places.places import GPU_DTYPES

    if algorithm != "classical":
        raise UsageError(f"algorithm {algorithm!r}: GPUs have only 'classical'")
    if plan_.compute not in GPU_DTYPES:
        raise DTypeError(f"dtype {plan_.compute}: on a GPU it must be {' or '.join(GPU_DTYPES)}")
    return multiply
