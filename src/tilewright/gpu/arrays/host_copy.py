"""Arrays of any library as NumPy's arrays: copies of those on a GPU, and the memory of those on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ...product.operands import dtype_of
from ...product.problem import itemsize_of
from ..runtime.device import gpu_at
from ..runtime.memory import Memory
from .host_libraries import host_library
from .libraries import library_of


def on_host(x: Any) -> Any:
    """A copy of an array on a GPU as a NumPy array, when the work on the caller's stream is done; the memory of another
    library's array on the host; anything else as it is.

    bfloat16 and float8 have the dtypes of ``ml_dtypes``, which must be installed for them. Raises OperandError and
    DTypeError for what cannot be read.
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
