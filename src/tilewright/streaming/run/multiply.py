"""``multiply``: a product of matrices in files or in memory, larger than the memory where it is computed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DTypeError, MemoryLimitError, ShapeError, UsageError, did_you_mean
from ...files import Source, open_matrix
from ...host.limits import get_threads
from ...runtime.cpu.stop import stoppable
from ...runtime.gpu.driver import restored_context
from ..options import Options
from ..places.events import Events
from ..places.places import place_product
from ..plan.partition import PARTITIONS
from ..plan.stream import StreamPlan
from .job import Job, Product, Progress, plan_job

DTYPES = ("float32", "float64")


def multiply(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    device_memory: int | str | None = None,
    partition: str = "rectangles",
    dtype: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    events: Events | None = None,
) -> Any:
    """The product of two matrices, each a file or an array, written to ``out`` block by block; returns ``out``.

    ``a`` is (m, k) and ``b`` is (k, n): arrays of any strides, or paths of ``.npy``, ``.zarr``, ``.h5``, ``.safetensors`` or
    raw files (pass what ``files.open_matrix`` returns for a file that needs options). ``out`` is the path of a file of any
    of these formats, which appears when it is complete; an array of shape (m, n) that shares no memory with the operands; or
    None for a new array. ``dtype`` is float32 or float64, by default the wider one of the operands: they are converted to it
    as they are read, and C has it.

    An existing file is replaced if it holds one matrix of the same format and nothing else. It is refused if anything else
    would be lost: other matrices, attributes, files in a zarr directory, a raw file of another size. With ``overwrite`` it
    is always replaced.

    ``memory`` bounds the host's memory that blocks take ("4GiB", or bytes; by default most of what is free), and
    ``device_memory`` the GPU's. ``device`` is "cpu", "cuda" (as many GPUs as pay), "cuda:1" or "cuda:0,1"; by default the
    GPUs where there are any. Several share C by ``partition``: "rectangles" of tiles, or "strips" of whole rows, which is
    simpler and moves more.

    With ``resume`` an interrupted product into a file goes on where it stopped, with the same cut: each finished tile is in
    a journal in the directory ``OUT.tilewright``. A complete result that was made from these operands stays as it is, and
    any other file of its name is refused. Without ``resume``, or without a journal, the product begins anew.

    The bits of the result depend on the shapes, the dtype, the kernel, ``memory`` and ``device_memory`` alone.
    ``progress(done, all)`` counts operations, those of earlier runs included, and is called on other threads. ``events``
    collects the time of each piece of work. Ctrl-C is raised when all threads of the product have stopped.

    Raises ShapeError, DTypeError, FileError, MemoryLimitError (says the least that is needed), UnavailableError (no such
    device, no library for a format), UsageError, ResumeError (the operands have changed, the journal was changed or
    damaged, ``resume`` would replace another result). Finished tiles are kept whatever happens.

    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6.0).reshape(2, 3)
    >>> tw.multiply(a, a.T, device="cpu")
    array([[ 5., 14.],
           [14., 50.]])
    """
    options = Options(memory, device, device_memory, partition, dtype, resume, overwrite)

    def run() -> Any:
        with open_job(a, b, out, options) as job:
            job.run(progress, events)
            return job.target

    return stoppable(run)


def plan_multiply(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    device_memory: int | str | None = None,
    partition: str = "rectangles",
    dtype: Any = None,
    resume: bool = False,
    overwrite: bool = False,
) -> StreamPlan:
    """What ``multiply`` would do, and the predicted time; nothing is multiplied, and no result begun.

    With ``resume`` it is the plan for what is left to do. Raises what ``multiply`` raises before it begins.

    >>> import numpy as np, tilewright as tw
    >>> a = np.ones((2000, 2000), np.float32)
    >>> plan = tw.plan_multiply(a, a, device="cpu", memory="64MiB")
    >>> plan.place_bytes < 64 << 20
    True
    """
    options = Options(memory, device, device_memory, partition, dtype, resume, overwrite)
    with open_job(a, b, out, options, only_planned=True) as job:
        return job.plan


@contextlib.contextmanager
def open_job(a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False) -> Iterator[Job]:
    """The job of a ``multiply``, planned and ready to run. Raises an error for everything that cannot be done."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(restored_context())
        product = _opened(stack, a, b, options.dtype)
        _refuse_overlap(out, a=a, b=b)
        if options.partition not in PARTITIONS:
            raise UsageError(f"partition {options.partition!r}: {did_you_mean(options.partition, PARTITIONS)}")
        target = _new_array(product) if out is None else out
        placement = place_product(product.sources, product.dtype, options, get_threads())
        yield plan_job(product, placement, target, options, stack, only_planned=only_planned)


def _opened(stack: contextlib.ExitStack, a: Any, b: Any, dtype: Any) -> Product:
    sources: list[Source] = []
    for operand in (a, b):
        if hasattr(operand, "read") and hasattr(operand, "fingerprint"):
            sources.append(operand)  # the caller opened it, and closes it
        else:
            sources.append(open_matrix(operand))
            stack.callback(sources[-1].close)
    x, y = sources
    if x.shape[1] != y.shape[0]:
        raise ShapeError(f"k mismatch: a is {x.shape}, b is {y.shape}: a's columns must be as many as b's rows")
    return Product(x, y, _dtype(x, y, dtype))


def _dtype(a: Source, b: Source, wanted: Any) -> np.dtype[Any]:
    try:
        chosen = np.result_type(a.dtype, b.dtype, np.float32) if wanted is None else np.dtype(wanted)
    except TypeError:
        raise DTypeError(f"dtype {wanted!r}: must be {' or '.join(DTYPES)}") from None
    if chosen.name not in DTYPES:
        raise DTypeError(f"dtype {chosen.name}: must be {' or '.join(DTYPES)}, in which blocks are multiplied")
    return chosen.newbyteorder("=")


def _new_array(product: Product) -> np.ndarray[Any, Any]:
    m, n, _ = product.shape
    try:
        return np.empty((m, n), product.dtype)
    except ValueError:
        raise MemoryLimitError(f"C would be {m}×{n} {product.dtype}, more than an address can reach") from None


def _refuse_overlap(out: Any, **operands: Any) -> None:
    """Refuse a result in an operand's memory: tiles are written while blocks are still read. The path of an operand's file
    is allowed, because a file is replaced when the product is complete."""
    if not isinstance(out, np.ndarray):
        return
    for name, operand in operands.items():
        if (isinstance(operand, np.ndarray) and _share_memory(out, operand)) or _same_file(out, operand):
            raise UsageError(f"out shares memory with {name}, which is read until the end: give another array")


def _share_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]  # any number, says its documentation
    except np.exceptions.TooHardError:
        return True


def _same_file(out: Any, operand: Any) -> bool:
    """Whether ``out`` and the operand are the same file: a path, or an array mapped from a file."""
    files = [x.filename if isinstance(x, np.memmap) else x for x in (out, operand)]
    paths = [Path(os.fspath(file)) for file in files if isinstance(file, (str, os.PathLike))]
    return len(paths) == 2 and all(path.exists() for path in paths) and paths[0].samefile(paths[1])
