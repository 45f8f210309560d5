"""The job of a ``multiply`` from what its caller gave: operands opened, checked, placed and planned."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DTypeError, MemoryLimitError, ShapeError, UsageError, did_you_mean
from ....gpu.runtime.driver import restored_context
from ....host.limits import get_threads
from ....product.operands import DTYPES, dtype_of, is_known, promoted
from ...files import Source, locate, open_matrix
from ...files.array import ArraySource
from ..options import Options
from ..places.places import place_product
from ..plan.partition import PARTITIONS, stated_parts
from .computation import Product, compute_here
from .job import Job, plan_job


@contextlib.contextmanager
def open_job(a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False) -> Iterator[Job]:
    """The job of a ``multiply``, planned and ready to run. Raises an error for everything that cannot be done."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(restored_context())
        product = opened_product(stack, a, b, options.dtype)
        refuse_overlap(out, a=product.a, b=product.b)
        check_partition(options.partition)
        target = array_for(product) if out is None else out
        placement = place_product(product.sources, product.dtype, options, get_threads())
        check_parts(options.partition, placement.names)
        compute = functools.partial(compute_here, placement)
        yield plan_job(product, placement, compute, target, options, stack, only_planned=only_planned)


def check_partition(partition: str) -> None:
    """Raises UsageError for one that has neither a known name nor numbers of parts, such as "2x3"."""
    if partition not in PARTITIONS and (not isinstance(partition, str) or stated_parts(partition) is None):
        hint = did_you_mean(str(partition), [*PARTITIONS, "parts down and across, such as 2x3"])
        raise UsageError(f"partition {partition!r}: {hint}")


def check_parts(partition: str, places: Sequence[str]) -> None:
    """Raises UsageError unless stated parts are as many as the places."""
    parts = stated_parts(partition)
    if parts is not None and parts[0] * parts[1] != len(places):
        raise UsageError(f"partition {partition} has {parts[0] * parts[1]} parts, and there are {len(places)} places")


def opened_product(stack: contextlib.ExitStack, a: Any, b: Any, dtype: Any) -> Product:
    """The operands, opened until ``stack`` is closed, and the dtype of their product. Raises ShapeError, DTypeError."""
    sources: list[Source] = []
    for name, operand in (("a", a), ("b", b)):
        if hasattr(operand, "read") and hasattr(operand, "fingerprint"):
            sources.append(operand)  # the caller opened it, and closes it
        elif isinstance(operand, (str, os.PathLike, np.memmap)):
            sources.append(open_matrix(operand))
            stack.callback(sources[-1].close)
        else:
            sources.append(ArraySource(operand, name))
    x, y = sources
    if x.shape[1] != y.shape[0]:
        raise ShapeError(f"k mismatch: a is {x.shape}, b is {y.shape}: a's columns must be as many as b's rows")
    return Product(x, y, product_dtype(x.dtype, y.dtype, dtype))


def product_dtype(a: np.dtype, b: np.dtype, wanted: Any = None) -> np.dtype[Any]:
    """The dtype of C for operands of these dtypes: ``wanted``, else that to which ``matmul`` promotes them. Raises
    DTypeError where no dtype holds both, and unless both cast to ``wanted`` by the ``same_kind`` rule.

    >>> int8, float16 = np.dtype(np.int8), np.dtype(np.float16)
    >>> product_dtype(int8, int8), product_dtype(int8, float16), product_dtype(int8, int8, "float32")
    (dtype('int8'), dtype('float16'), dtype('float32'))
    """
    if wanted is None:
        return promoted(a, b).newbyteorder("=")
    chosen = dtype_of(wanted, "dtype")
    if not is_known(chosen):
        raise DTypeError(f"dtype {chosen}: must be {', '.join(DTYPES)} or bfloat16")
    for name, dtype in (("a", a), ("b", b)):
        if not (
            np.can_cast(dtype, chosen, casting="same_kind") or (chosen.name == "bfloat16" and dtype.kind in "biuf")
        ):
            raise DTypeError(
                f"dtype {chosen.name}: {name} has dtype {dtype}, which does not cast to it by the same_kind rule; leave "
                "dtype out, or give a wider one"
            )
    return chosen.newbyteorder("=")


def array_for(product: Product) -> np.ndarray[Any, Any]:
    """A new array for the result. Raises MemoryLimitError where none can be that large."""
    m, n, _ = product.shape
    try:
        return np.empty((m, n), product.dtype)
    except ValueError:
        raise MemoryLimitError(f"C would be {m}×{n} {product.dtype}, more than an address can reach") from None


def refuse_overlap(out: Any, **operands: Any) -> None:
    """Refuse a result in an operand's memory: tiles are written while blocks are still read. The path of an operand's file
    is allowed where it may be overwritten, because a file is replaced when the product is complete."""
    if not isinstance(out, np.ndarray):
        return
    for name, operand in operands.items():
        array = operand.array if isinstance(operand, ArraySource) else operand
        if (isinstance(array, np.ndarray) and _share_memory(out, array)) or is_in(operand, out):
            raise UsageError(f"out shares memory with {name}, which is read until the end: give another array")


def _share_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]  # any number, says its documentation
    except np.exceptions.TooHardError:
        return True


def is_in(operand: Any, out: Any) -> bool:
    """Whether the operand is in the file or directory of ``out``, each a path, a source or an array mapped from a file."""
    inner, outer = _file_of(operand), _file_of(out)
    if inner is None or outer is None or not (inner.exists() and outer.exists()):
        return False
    return outer.samefile(inner) or inner.resolve().is_relative_to(outer.resolve())


def _file_of(matrix: Any) -> Path | None:
    """The file or directory here in which a matrix lies; None for one in memory or at a URL."""
    if isinstance(matrix, (str, os.PathLike)):
        found: Any = locate(os.fspath(matrix))[1]
    else:
        array = matrix.array if isinstance(matrix, ArraySource) else matrix
        while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
            array = array.base
        found = array.filename if isinstance(array, np.memmap) else getattr(matrix, "path", None)
    return Path(found) if isinstance(found, (str, os.PathLike)) else None
