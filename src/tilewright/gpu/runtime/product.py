"""A product of matrices on a GPU by one kernel, which is prepared once for a shape. Each call of the prepared product
makes one launch.

The operands are addresses of contiguous row-major matrices on that GPU. A call allocates nothing and does not wait.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel
from .compilations import Chosen, KernelCode, chosen_params
from .device import Device

#: ``product(a, b, c, stream)``: addresses, and the handle of a stream of that GPU (an int, or an object with a ``handle``).
#: With an epilogue the addresses of its arrays follow.
GpuProduct = Callable[..., None]

#: The largest size: kernels count rows, columns and steps in 32 bits, and round them up to whole tiles.
MOST = 2**31 - 1024

#: Bytes of which all addresses must be multiples where a macro of a kernel's table ``given`` is set.
ALIGNMENT = 16


#: Only one thread at a time may load kernels.
_lock = threading.Lock()


def prepare_gpu_product(
    device: Device,
    kernel: CudaKernel,
    dtype: str,
    m: int,
    n: int,
    k: int,
    *,
    add: bool = False,
    params: Mapping[str, int] | None = None,
) -> GpuProduct:
    """Prepare C[m×n] = A[m×k]·B[k×n] on ``device``, or with ``add`` C += A·B. The kernel is compiled, loaded and
    checked now, and cached.

    ``params`` are the kernel's parameters that differ from the defaults. The device must be the calling thread's
    current one now and at each call. A call takes microseconds and returns when the work is queued. An error that stops
    the kernel is raised when a thread waits for the stream. If the kernel has a table ``given``, the first call with an
    address that is not a multiple of ALIGNMENT compiles the kernel once more.

    Raises UsageError for a dtype, a size or parameters that the kernel does not take, or if it cannot ``add``. Raises
    CompileError, and LaunchError if the GPU refuses the launch.

    >>> product = prepare_gpu_product(gpu, cuda_catalog()["cuda/register_banks"], "float32", 512, 512, 512)  # doctest: +SKIP
    >>> product(a.data_ptr(), b.data_ptr(), c.data_ptr(), torch.cuda.current_stream().cuda_stream)  # doctest: +SKIP
    """
    with _lock:
        return _prepared(device, kernel, dtype, (m, n, k), add, chosen_params(params))


@functools.lru_cache(maxsize=4096)  # kernels stay loaded; addresses come with each launch
def _prepared(
    device: Device, kernel: CudaKernel, dtype: str, shape: tuple[int, int, int], add: bool, chosen: Chosen
) -> GpuProduct:
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype}: it takes {', '.join(kernel.dtypes)}")
    if not 0 <= min(shape) <= max(shape) <= MOST:
        m, n, k = shape
        raise UsageError(f"m={m}, n={n}, k={k}: a product on a GPU has sizes from 0 to {MOST}")
    if add and not kernel.adds:
        raise UsageError(f"{kernel.name} cannot add to C")
    if not kernel.launch(*shape, **dict(chosen)).blocks or (add and not shape[2]):
        return _nothing
    given = kernel.holds(*shape, **dict(chosen))
    aligned = _loaded(device, kernel, _code(kernel, chosen, add, given), shape)
    if not given:
        return aligned

    def product(a: int, b: int, c: int, stream: Any) -> None:
        if (a | b | c) % ALIGNMENT == 0:
            aligned(a, b, c, stream)
            return
        with _lock:
            anywhere = _loaded(device, kernel, _code(kernel, chosen, add), shape)
        anywhere(a, b, c, stream)

    return product


@functools.lru_cache(maxsize=4096)  # as ``_prepared``, of which several may launch the same code
def _loaded(device: Device, kernel: CudaKernel, code: KernelCode, shape: tuple[int, int, int]) -> GpuProduct:
    compiled = code.compiled(device.arch)
    launch = kernel.launch(*shape, **dict(code.params))
    run = device.launcher(compiled, compiled.entry(kernel.entry), launch.grid, launch.block, launch.shared_bytes)
    sizes = tuple(map(np.int32, shape))

    def product(a: int, b: int, c: int, stream: Any) -> None:
        run(stream_handle(stream), a, b, c, *sizes)

    return product


def compile_ahead(
    device: Device, kernel: CudaKernel, params: Mapping[str, int], shapes: Iterable[tuple[int, int, int]]
) -> None:
    """Begin to compile a kernel for products of ``shapes`` (m, n, k), both for C = A·B and for C += A·B, on other
    threads. A compilation that was begun before is not repeated.

    ``prepare_gpu_product`` waits for the compilation that it needs, and raises the compilation's error.
    """
    for given in {kernel.holds(*shape, **params) for shape in shapes}:
        for add in (False, True):
            _code(kernel, chosen_params(params), add, given).begin(device.arch)


def _code(kernel: CudaKernel, chosen: Chosen, add: bool, given: Iterable[str] = ()) -> KernelCode:
    """How the kernel is compiled: whether it adds to C, and the macros of its table ``given`` that are set."""
    return KernelCode(kernel, tuple((name, 1) for name in (*["ACCUMULATE"] * add, *sorted(given))), chosen)


def stream_handle(stream: Any) -> int:
    """The handle of a stream: ``stream`` is an int, or an object with a ``handle``."""
    return stream if type(stream) is int else int(getattr(stream, "handle", stream))


def _nothing(a: int, b: int, c: int, stream: Any) -> None:
    """The function for a product with an empty C, or with nothing to add to C."""
