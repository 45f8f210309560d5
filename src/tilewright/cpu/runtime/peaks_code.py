"""The compiled loops that ``peaks`` times."""

from __future__ import annotations

import numpy as np

from ...host.machine import machine
from .. import codegen

#: Independent chains of FMAs: latency 4 on two pipes needs 8; 12 leaves slack and fits 16 registers.
CHAINS = 12
BITS = machine().vector_bits or 128

_chains = codegen.fma_chains(CHAINS, BITS)


def multiply_add(steps: int, x: np.ndarray) -> None:
    """Compiled code: Run CHAINS independent chains of ``steps`` multiply-adds each."""
    _chains(steps, codegen.offset(x, 0))


def triad(x: np.ndarray, y: np.ndarray, out: np.ndarray, repeats: int) -> None:
    """Compute out = x + factor·y, ``repeats`` times, in compiled code."""
    for r in range(repeats):
        factor = x.dtype.type(3 + r)  # changes each time: otherwise the compiler may compute the loop once
        for i in range(out.size):
            out[i] = x[i] + factor * y[i]
