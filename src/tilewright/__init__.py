"""Tilewright multiplies matrices as fast as the machine allows, at any scale, and shows why.

>>> import numpy as np, tilewright as tw
>>> tw.matmul(np.eye(2), np.ones((2, 3))).shape
(2, 3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .api import matmul as matmul
    from .api import plan as plan
    from .blas import gemm as gemm
    from .catalog import catalog as ladder
    from .host.limits import get_threads as get_threads
    from .host.limits import set_threads as set_threads
    from .host.limits import use_threads as use_threads
    from .host.machine import machine as info
    from .large import multiply as multiply
    from .large import plan_multiply as plan_multiply
    from .numpy_loops import accelerate_numpy as accelerate_numpy
    from .operands import aligned_empty as aligned_empty
    from .simulator.machine.tensor_map import TensorMap as TensorMap
    from .simulator.microscope import microscope as microscope
    from .verification import verify as verify

__version__ = "0.1.0"

#: Public name → (module, name there). Loaded at first use: importing this package loads nothing but this file.
_PUBLIC = {
    "matmul": ("api", "matmul"),
    "gemm": ("blas", "gemm"),
    "plan": ("api", "plan"),
    "accelerate_numpy": ("numpy_loops", "accelerate_numpy"),
    "multiply": ("large", "multiply"),
    "plan_multiply": ("large", "plan_multiply"),
    "ladder": ("catalog", "catalog"),
    "microscope": ("simulator.microscope", "microscope"),
    "TensorMap": ("simulator.machine.tensor_map", "TensorMap"),
    "verify": ("verification", "verify"),
    "info": ("host.machine", "machine"),
    "aligned_empty": ("operands", "aligned_empty"),
    "set_threads": ("host.limits", "set_threads"),
    "get_threads": ("host.limits", "get_threads"),
    "use_threads": ("host.limits", "use_threads"),
    "errors": ("errors", ""),
}

__all__ = [
    "TensorMap",
    "accelerate_numpy",
    "aligned_empty",
    "errors",
    "gemm",
    "get_threads",
    "info",
    "ladder",
    "matmul",
    "microscope",
    "multiply",
    "plan",
    "plan_multiply",
    "set_threads",
    "use_threads",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    module_name, attribute = _PUBLIC[name]
    module = importlib.import_module(f".{module_name}", __name__)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
