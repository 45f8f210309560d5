"""One product of a GPU's matrices by one kernel, prepared once for a shape: each call of it is one launch.

Operands are addresses of contiguous row-major matrices on that GPU. A call allocates nothing and does not wait.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from ...errors import UsageError
from ...kernels.cuda_kernel import CudaKernel
from .device import Device
from .nvrtc import Compiled, compile_kernel

#: ``product(a, b, c, stream)``: addresses, and the handle of a stream of that GPU (an int, or an object with a ``handle``).
GpuProduct = Callable[[int, int, int, Any], None]

#: The largest size: kernels count rows, columns and steps in 32 bits, and round them up to whole tiles.
MOST = 2**31 - 1024

#: Parameters, by name.
Chosen = tuple[tuple[str, int], ...]

#: Only one thread at a time may load kernels.
_lock = threading.Lock()

_beginning = threading.Lock()
_compilations: dict[Any, Future[Compiled]] = {}


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
    """C[m×n] = A[m×k]·B[k×n] on ``device``, or with ``add`` C += A·B: compiled, loaded and checked now, and cached.

    ``params`` are the kernel's parameters that differ from the defaults. The device must be the calling thread's current one
    now and at each call. A call takes microseconds and returns when the work is queued; an error that stops the kernel is
    raised when a thread waits for the stream.

    Raises UsageError for a dtype, a size or parameters that the kernel does not take, or if it cannot ``add``; CompileError;
    LaunchError if the GPU refuses the launch.

    >>> product = prepare_gpu_product(gpu, cuda_catalog()["cuda/register_banks"], "float32", 512, 512, 512)  # doctest: +SKIP
    >>> product(a.data_ptr(), b.data_ptr(), c.data_ptr(), torch.cuda.current_stream().cuda_stream)  # doctest: +SKIP
    """
    with _lock:
        return _prepared(device, kernel, dtype, (m, n, k), add, _chosen(params))


@functools.lru_cache(maxsize=4096)
def _prepared(
    device: Device, kernel: CudaKernel, dtype: str, shape: tuple[int, int, int], add: bool, chosen: Chosen
) -> GpuProduct:
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype}: it takes {', '.join(kernel.dtypes)}")
    if not 0 <= min(shape) <= max(shape) <= MOST:
        m, n, k = shape
        raise UsageError(f"m={m}, n={n}, k={k}: a product on a GPU has sizes from 0 to {MOST}")
    params = dict(chosen)
    compiled = _compilation(kernel, device.arch, add, chosen).result()
    launch = kernel.launch(*shape, **params)
    if not launch.blocks or (add and not shape[2]):
        return _nothing
    run = device.launcher(compiled, compiled.entry(kernel.entry), launch.grid, launch.block, launch.shared_bytes)
    rows, columns, steps = (np.int32(size) for size in shape)

    def product(a: int, b: int, c: int, stream: Any) -> None:
        handle = stream if type(stream) is int else int(getattr(stream, "handle", stream))
        run(handle, a, b, c, rows, columns, steps)

    return product


def compile_ahead(device: Device, kernel: CudaKernel, params: Mapping[str, int]) -> None:
    """Begin to compile a kernel, both for C = A·B and for C += A·B, on threads of their own, unless this has begun before.

    ``prepare_gpu_product`` waits for the compilation that it needs, and raises its error. A compilation takes seconds, and
    two can run at once.
    """
    for add in (False, True):
        _compilation(kernel, device.arch, add, _chosen(params))


def _compilation(kernel: CudaKernel, arch: str, add: bool, chosen: Chosen) -> Future[Compiled]:
    """The compilation of a kernel, which begins once, and again only after it has failed."""
    key = kernel, arch, add, chosen
    with _beginning:
        job = _compilations.get(key)
        if job is None or (job.done() and job.exception() is not None):
            job = _compilations[key] = Future()
            threading.Thread(target=_compile, args=(job, *key), name="compiler").start()
        return job


def _compile(job: Future[Compiled], kernel: CudaKernel, arch: str, add: bool, chosen: Chosen) -> None:
    try:
        job.set_result(compile_kernel(kernel, arch=arch, add=add, **dict(chosen)))
    except BaseException as error:  # raised again by ``prepare_gpu_product``
        job.set_exception(error)


def _chosen(params: Mapping[str, int] | None) -> Chosen:
    return tuple(sorted((params or {}).items()))


def _nothing(a: int, b: int, c: int, stream: Any) -> None:
    """The product if C is empty, or if nothing is to be added to it."""
