"""What the engine calls in machine code, and with which types: the same for a library that is built and for one process.

A function of Python is compiled here under a name. Its kind says how it is called: a *kernel* by a team of threads, through
the words of a call; a *function* with numbers, addresses and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numba as nb
import numpy as np
from numba.core import types

from ...kernels import Kernel
from ...kernels.catalog import engine
from ..codegen import crew
from ..codegen.deferred import tell_compiler
from . import peaks_code, shared_products_code, small_products_code
from .facts import FOR_VECTORS, KERNEL
from .names import NO_KERNEL, code_name, function_name, kernel_name, products_name, storage

tell_compiler()

Kind = Literal["kernel", "function"]
_WORDS, _INDEX, _FLAG, _NOTHING = types.int64[::1], types.intp, types.boolean, types.void
_POINTER = types.CPointer(types.int64)


@dataclass(frozen=True)
class Entry:
    """A function to compile: what it returns (None where Numba finds it), the types of its arguments, Numba's options."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    returns: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        """The name of its kernel; of other functions ``NO_KERNEL``."""
        return self.name.split()[1] if self.kind == "kernel" else NO_KERNEL


def entries() -> Iterator[Entry]:
    """Everything that a library has: for each kernel of the engine that this machine's instructions suit, each dtype."""
    for kernel in engine().values():
        if kernel.available:
            for dtype, result in dict.fromkeys(kinds_of(kernel)):
                yield kernel_entry(kernel, dtype, result)
    yield from functions().values()
    yield from c_functions().values()


def kinds_of(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """The dtypes of operands and of C for which a kernel is compiled."""
    for name in kernel.dtypes:
        yield code_name(name), code_name(name)
        if name in kernel.sums:
            yield name, kernel.sums[name]


def kernel_entry(kernel: Kernel, dtype: str, result: str) -> Entry:
    """A kernel for operands of a dtype and a C of another, or the same. It is called with its parameters, too."""
    operand, product = (nb.from_dtype(storage(name)) for name in (dtype, result))
    matrix, target = (types.Array(element, 2, "A" if kernel.strided else "C") for element in (operand, product))
    space = nb.from_dtype(np.dtype(kernel.space)) if kernel.space else product
    shared = (types.Array(space, 1, "C"), _WORDS) if kernel.shared == "team" else ()
    tunable = [nb.typeof(value) for name, value in kernel.params.items() if name in kernel.tunable]
    options = {"fastmath": set(kernel.fastmath), "error_model": "numpy"}
    arguments = (matrix, matrix, target, *shared, *tunable)
    return Entry(kernel_name(kernel.name, dtype, result), "kernel", kernel.function, arguments, options=options)


def functions() -> dict[str, Entry]:
    """The functions that Python calls with numbers and arrays, by name."""
    of_crew: dict[Any, tuple[Any, ...]] = {
        crew.stand_by: (_INDEX, _WORDS, _INDEX, _INDEX, _INDEX, _FLAG),
        crew.post: (_INDEX, _WORDS, _WORDS, _INDEX, _FLAG),
        crew.ring: (_NOTHING, _WORDS, _INDEX),
        crew.publish: (_NOTHING, _WORDS, _INDEX, _INDEX),
        crew.rouse: (_FLAG, _WORDS, _WORDS),
        crew.settle: (_NOTHING, _WORDS, _INDEX),
        crew.run_call: (_FLAG, _WORDS),
    }
    found = [Entry(function_name(f.__name__), "function", f, sig[1:], sig[0]) for f, sig in of_crew.items()]
    for name in ("float32", "float64"):
        row = types.Array(nb.from_dtype(np.dtype(name)), 1, "C")
        contracted = {"fastmath": {"contract"}}
        for function, arguments in (
            (peaks_code.multiply_add, (_INDEX, row)),
            (peaks_code.triad, (row, row, row, _INDEX)),
        ):
            called = function_name(function.__name__, name)
            found.append(Entry(called, "function", function, arguments, _NOTHING, contracted))
    return {entry.name: entry for entry in found}


def c_functions() -> dict[str, Entry]:
    """The functions that the C front calls, by name: they take numbers and addresses."""
    small, shared = small_products_code, shared_products_code
    found: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        (function_name("are_small"), small.are_small, (_INDEX,) * 3),
        (function_name("are_small_or_of_vectors"), small.are_small_or_of_vectors, (_INDEX,) * 3),
        (function_name("enough_are_there"), shared.enough_are_there, (_POINTER, _POINTER, _INDEX)),
        (
            function_name("post_and_compute"),
            shared.post_and_compute,
            (_POINTER, _POINTER, _INDEX, _INDEX, _INDEX, _INDEX, _POINTER, _INDEX, _INDEX),
        ),
    ]
    for dtype in dict.fromkeys(map(code_name, KERNEL.dtypes)):
        matrix = types.CPointer(nb.from_dtype(np.dtype(dtype)))
        function = small.products_with_vectors if dtype in FOR_VECTORS.dtypes else small.products
        found.append((products_name(dtype), function, (matrix, matrix, matrix, _POINTER)))
    options = {"error_model": "numpy"}
    return {name: Entry(name, "function", function, kinds, _INDEX, options) for name, function, kinds in found}
