"""Arrays of other libraries in the host's memory. NumPy reads the memory of these arrays, and the result of ``matmul``
is an array of the same library.

Without options, a product of PyTorch or JAX arrays is computed as in programs of those libraries, with gradients
(``torch_operator``, ``jax_operator``). With options, the product is that of NumPy arrays over the same memory.
``on_host`` copies arrays from a GPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...errors import OperandError
from ...product.operands import admit, dtype_of, promoted
from ...product.problem import itemsize_of
from ..runtime.device import gpu_at
from ..runtime.memory import Memory
from .dtypes import dtype_name
from .libraries import library_by_type, library_of

Multiply = Callable[..., Any]


class HostLibrary:
    """A library whose arrays have ``__array_namespace__`` and DLPack's interface."""

    def product(self, multiply: Multiply, a: Any, b: Any, precision: str | float) -> Any:
        """A product without options; ``multiply`` is ``matmul``."""
        return self.answer(multiply(*self.operands(a, b, precision), precision=precision), a, b)

    def operands(self, a: Any, b: Any, precision: str | float) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        """Both operands as NumPy arrays, in the dtypes in which they are multiplied. Raises OperandError and
        DTypeError."""
        return self.array(a, "a"), self.array(b, "b")

    def array(self, x: Any, name: str) -> np.ndarray:
        """An argument other than the operands, as a NumPy array."""
        return admit(x, name)

    def stored(self, x: Any, name: str) -> np.ndarray:
        """An argument other than the operands, as a NumPy array of the dtype that ``x`` has. bfloat16 becomes the dtype
        of ``ml_dtypes``, which must be installed."""
        return self.array(x, name)

    def refuse_recorded(self, x: Any, name: str) -> None:
        """Raise OperandError for an argument whose gradient the library records. With options no gradient is
        recorded."""

    def target(self, out: Any, name: str) -> np.ndarray:
        """The memory of ``out``, or a copy of it. Raises OperandError if ``out`` cannot be written."""
        return self.array(out, name)

    def written(self, out: Any, target: np.ndarray) -> None:
        """Finish writing to ``out``. This method is called when ``target``, made from ``out``, holds the product."""

    def computed(self, a: Any, b: Any, x: np.ndarray, y: np.ndarray, out_dtype: Any) -> Any:  # noqa: ARG002
        """The ``out_dtype`` with which x and y are multiplied to get the product of a and b; None for the dtype to
        which NumPy promotes them."""
        return None if out_dtype is None else dtype_name(out_dtype)

    def answer(self, c: Any, a: Any, b: Any, out_dtype: Any = None) -> Any:  # noqa: ARG002
        """The product as an array of the library."""
        like = a if hasattr(type(a), "__array_namespace__") and not isinstance(a, np.ndarray) else b
        return like.__array_namespace__().from_dlpack(np.asarray(c))


class _HostTorch(HostLibrary):
    def __init__(self) -> None:
        from . import torch_operator

        self._operator, self._torch = torch_operator, sys.modules["torch"]

    def product(self, multiply: Multiply, a: Any, b: Any, precision: str | float) -> Any:  # noqa: ARG002
        return self._operator.product(a, b, precision)

    def operands(self, a: Any, b: Any, precision: str | float) -> tuple[np.ndarray, np.ndarray]:
        return self._read(a, "a", precision), self._read(b, "b", precision)

    def array(self, x: Any, name: str) -> np.ndarray:
        return self._read(x, name, "standard")

    def stored(self, x: Any, name: str) -> np.ndarray:
        array = self.array(x, name)
        return array.astype(dtype_of("bfloat16", name)) if x.dtype is self._torch.bfloat16 else array

    def target(self, out: Any, name: str) -> np.ndarray:
        return self._read(out, name, "highest")

    def _read(self, x: Any, name: str, precision: str | float) -> np.ndarray:
        self._operator.check_tensor(x, name)
        if x.device.type != "cpu":
            raise OperandError(f"{name} is a tensor on {x.device}: without numbers on the host it has no such product")
        return self._operator.as_numpy(x, name, precision)

    def refuse_recorded(self, x: Any, name: str) -> None:
        library: Any = library_by_type(x)
        if library is not None and library.name == "torch":
            library.refuse_recorded(x, name)

    def written(self, out: Any, target: np.ndarray) -> None:
        if out.data_ptr() == target.ctypes.data:
            library: Any = library_by_type(out)
            library.written(out)
        else:
            out.copy_(self._torch.from_numpy(target))

    def computed(self, a: Any, b: Any, x: np.ndarray, y: np.ndarray, out_dtype: Any) -> Any:
        name = dtype_name(self._dtype(a, b, out_dtype))
        if name == "bfloat16":  # rounded by PyTorch, once
            return np.result_type(promoted(x.dtype, y.dtype), np.float32)
        return name

    def _dtype(self, a: Any, b: Any, out_dtype: Any) -> Any:
        if out_dtype is None:
            return self._operator.promoted_dtype(a, b)
        return getattr(self._torch, dtype_name(out_dtype), out_dtype)

    def answer(self, c: Any, a: Any, b: Any, out_dtype: Any = None) -> Any:
        return self._torch.from_numpy(np.asarray(c)).to(self._dtype(a, b, out_dtype))


class _HostJax(HostLibrary):
    def __init__(self) -> None:
        from . import jax_operator

        self._operator, self._jax = jax_operator, sys.modules["jax"]

    def product(self, multiply: Multiply, a: Any, b: Any, precision: str | float) -> Any:  # noqa: ARG002
        return self._operator.product_of_arrays(a, b, precision)

    def operands(self, a: Any, b: Any, precision: str | float) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        self.refuse_recorded(a, "a")
        self.refuse_recorded(b, "b")
        x, y = self._operator.promoted_arrays(a, b)
        return np.asarray(x), np.asarray(y)

    def refuse_recorded(self, x: Any, name: str) -> None:
        if isinstance(x, self._jax.core.Tracer):
            raise OperandError(f"{name} is traced by JAX: there matmul takes a, b and precision alone")

    def target(self, out: Any, name: str) -> np.ndarray:  # noqa: ARG002
        raise OperandError(f"{name} cannot be given beside arrays of JAX, which are never written: use the result")

    def answer(self, c: Any, a: Any, b: Any, out_dtype: Any = None) -> Any:  # noqa: ARG002
        return self._jax.numpy.asarray(c, np.asarray(c).dtype)


def host_library(*values: Any) -> HostLibrary | None:
    """The library of the first value that is an array of another library than NumPy; the result belongs to that
    library. None if there is none. None of the values may be on a GPU."""
    for value in values:
        library = library_by_type(value)
        if library is None:
            continue
        if library.name in ("torch", "jax"):
            return _of(library.name)
        if library.name == "DLPack" and hasattr(type(value), "__array_namespace__"):
            return _of("")
    return None


@functools.cache  # one object of each library
def _of(name: str) -> HostLibrary:
    return {"torch": _HostTorch, "jax": _HostJax}.get(name, HostLibrary)()


def multiply_on_host(
    library: HostLibrary,
    multiply: Multiply,
    a: Any,
    b: Any,
    out: Any,
    precision: str | float,
    options: dict[str, Any],
) -> Any:
    """``matmul`` of arrays of ``library``. ``options`` are the options that the caller gave. Raises any error of
    ``matmul``."""
    if out is None and not options:
        return library.product(multiply, a, b, precision)
    for name, value in {"a": a, "b": b, "out": out, **options}.items():
        library.refuse_recorded(value, name)
    x, y, target, given = read_on_host(library, a, b, out, precision, options)
    c = multiply(x, y, target, precision=precision, **given)
    if out is None:
        return library.answer(c, a, b, options.get("out_dtype"))
    library.written(out, target)
    return out


def read_on_host(
    library: HostLibrary, a: Any, b: Any, out: Any, precision: str | float, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, Any, dict[str, Any]]:
    """a, b, out and the options for the product of NumPy arrays that ``multiply_on_host`` computes."""
    x, y = library.operands(a, b, precision)
    target = None if out is None else library.target(out, "out")
    given = {name: library.array(value, name) if host_library(value) else value for name, value in options.items()}
    if (out is None and options) or options.get("out_dtype") is not None:
        given["out_dtype"] = library.computed(a, b, x, y, options.get("out_dtype"))
    return x, y, target, given


# ---- arrays of any library as NumPy's --------------------------------------------------------------------------------


def on_host(x: Any) -> Any:
    """An array as a NumPy array. An array on a GPU is copied, after the work on the caller's stream is done. For an
    array of another library on the host, the result has the same memory. Any other value is returned unchanged.

    bfloat16 and float8 become dtypes of ``ml_dtypes``, which must be installed for such arrays. Raises OperandError and
    DTypeError for arrays that cannot be read.
    """
    library = library_of(x)
    if library is None:
        on_host = host_library(x)
        return x if on_host is None else on_host.stored(x, "the array")
    if library.records(x):
        x = x.detach()
    array, stream = library.view(x, "the array"), library.stream(library.view(x, "the array").device)
    gpu, (low, high), size = gpu_at(array.device), array.extent, itemsize_of(array.dtype)
    if low == high:
        return np.empty(array.shape, dtype_of(array.dtype, "the array"))
    with gpu:
        gpu.order(stream, gpu.stream)
        memory = Memory(SimpleNamespace(handle=low, close=lambda: None, whole=x), high - low)
        raw = gpu.get(memory, np.uint8, high - low)
    first = raw[array.pointer - low :][:size].view(dtype_of(array.dtype, "the array"))
    return np.lib.stride_tricks.as_strided(first, array.shape, [s * size for s in array.strides])
