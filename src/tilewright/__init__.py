"""Tilewright multiplies matrices as fast as the machine allows, at any scale, and shows why.

>>> import numpy as np, tilewright as tw
>>> tw.matmul(np.eye(2), np.ones((2, 3))).shape
(2, 3)
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .api.contraction import einsum as einsum
    from .api.contraction import matvec as matvec
    from .api.contraction import multi_dot as multi_dot
    from .api.contraction import plan_einsum as plan_einsum
    from .api.contraction import tensordot as tensordot
    from .api.contraction import vecdot as vecdot
    from .api.contraction import vecmat as vecmat
    from .api.gemm import gemm as gemm
    from .api.grouped import grouped_matmul as grouped_matmul
    from .api.matmul import matmul as matmul
    from .api.matmul import plan as plan
    from .api.numpy_loops import accelerate_numpy as accelerate_numpy
    from .api.symmetric import gemmt as gemmt
    from .api.symmetric import gram as gram
    from .api.symmetric import syrk as syrk
    from .host.limits import get_threads as get_threads
    from .host.limits import set_threads as set_threads
    from .host.limits import use_threads as use_threads
    from .host.machine import machine as info
    from .kernels.catalog import catalog as ladder
    from .large.multiply import multiply as multiply
    from .large.multiply import plan_multiply as plan_multiply
    from .large.verification import verify as verify
    from .product.operands import aligned_empty as aligned_empty
    from .simulator.machine.tensor_map import TensorMap as TensorMap
    from .simulator.microscope import microscope as microscope

__version__ = "0.1.0"

#: Public name → (module, name there). Loaded at first use: importing this package loads nothing but this file.
_PUBLIC = {
    "matmul": ("api.matmul", "matmul"),
    "gemm": ("api.gemm", "gemm"),
    "grouped_matmul": ("api.grouped", "grouped_matmul"),
    "einsum": ("api.contraction", "einsum"),
    "tensordot": ("api.contraction", "tensordot"),
    "vecdot": ("api.contraction", "vecdot"),
    "matvec": ("api.contraction", "matvec"),
    "vecmat": ("api.contraction", "vecmat"),
    "multi_dot": ("api.contraction", "multi_dot"),
    "plan": ("api.matmul", "plan"),
    "gram": ("api.symmetric", "gram"),
    "syrk": ("api.symmetric", "syrk"),
    "gemmt": ("api.symmetric", "gemmt"),
    "plan_einsum": ("api.contraction", "plan_einsum"),
    "accelerate_numpy": ("api.numpy_loops", "accelerate_numpy"),
    "multiply": ("large.multiply", "multiply"),
    "plan_multiply": ("large.multiply", "plan_multiply"),
    "ladder": ("kernels.catalog", "catalog"),
    "microscope": ("simulator.microscope", "microscope"),
    "TensorMap": ("simulator.machine.tensor_map", "TensorMap"),
    "verify": ("large.verification", "verify"),
    "info": ("host.machine", "machine"),
    "aligned_empty": ("product.operands", "aligned_empty"),
    "set_threads": ("host.limits", "set_threads"),
    "get_threads": ("host.limits", "get_threads"),
    "use_threads": ("host.limits", "use_threads"),
    "errors": ("errors", ""),
}

__all__ = [
    "TensorMap",
    "accelerate_numpy",
    "aligned_empty",
    "einsum",
    "errors",
    "gemm",
    "gemmt",
    "get_threads",
    "gram",
    "grouped_matmul",
    "info",
    "ladder",
    "matmul",
    "matvec",
    "microscope",
    "multi_dot",
    "multiply",
    "plan",
    "plan_einsum",
    "plan_multiply",
    "set_threads",
    "syrk",
    "tensordot",
    "use_threads",
    "vecdot",
    "vecmat",
    "verify",
]


if not TYPE_CHECKING:  # a checker would take any misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
        module_name, attribute = _PUBLIC[name]
        with _gate:
            _importing.append(_thread.get_ident())
        try:
            module = importlib.import_module(f".{module_name}", __name__)
        finally:
            _importing.remove(_thread.get_ident())
        value = getattr(module, attribute) if attribute else module
        globals()[name] = value
        return value


#: Threads that import a module for ``__getattr__``; a fork closes the gate to further ones.
_importing: list[int] = []
_gate = _thread.RLock()


def _before_fork() -> None:
    """Wait until no other thread imports a module of this package: the child would have a lock that nothing releases, and
    wait for it at its first product. Ten seconds at most, lest what is imported waits for this fork."""
    until = time.monotonic() + 10
    _gate.acquire()
    while _others_import() and time.monotonic() < until:
        _gate.release()
        time.sleep(0.001)
        _gate.acquire()


def _others_import() -> bool:
    own = _thread.get_ident()
    if own in _importing:
        return any(thread != own for thread in _importing)
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(f"{__name__}.")]
    begun = any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)
    return begun or bool(_importing)


def _after_fork_in_child() -> None:
    _importing[:] = [thread for thread in _importing if thread == _thread.get_ident()]
    _gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_gate.release, after_in_child=_after_fork_in_child)


def __dir__() -> list[str]:
    return sorted(__all__)
