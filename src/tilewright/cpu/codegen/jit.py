"""Selects the processor and the instruction sets for which Numba compiles in this process.

If the machine's description removes instruction sets, the compiler does not use them.
"""

from __future__ import annotations

import os

import numba as nb
from llvmlite import binding

from ...host.machine import machine

if machine().without:
    os.environ["NUMBA_CPU_NAME"] = binding.get_host_cpu_name()
    left_out = [f"-{name}" for name in machine().without]  # last: with a feature LLVM drops all that need it
    os.environ["NUMBA_CPU_FEATURES"] = ",".join([binding.get_host_cpu_features().flatten(), *left_out])
    nb.config.reload_config()
