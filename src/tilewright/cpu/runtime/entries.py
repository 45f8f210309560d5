"""Lists the functions that are compiled to machine code, with the types of their arguments. This module also defines
the functions of machine code that no kernel defines.

The build of the library and the compiler in the process use the same list of functions (``entries``). Entries of the
list are of two kinds, kernels and functions. An entry that is a *kernel* is called by a team of threads, with an array
of int64 that describes the call (``cpu.codegen.crew``). An entry that is a *function* is called with numbers, addresses
and arrays. The C front (``cpu/native/front.c``) reads and checks arrays, and calls the functions for small and for
shared products.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numba as nb
import numpy as np
from numba.core import types
from numpy.lib.stride_tricks import as_strided

from ...kernels import Kernel
from ...kernels.catalog import engine
from .. import codegen
from ..codegen import affinity, crew
from ..codegen import mailbox as words_of
from ..codegen.deferred import tell_compiler
from . import peaks_code
from .facts import (
    BEFORE_VECTORS,
    COUNTERS,
    COUNTS,
    ELEMENTS,
    FOR_VECTORS,
    KERNEL,
    NEEDED,
    NOT_CALLED,
    NOT_READY,
    OTHERS,
    WAKES,
)
from .library import NO_KERNEL, code_name, function_name, kernel_name, products_name, storage

# ---- small products: which sizes suit, and the loop over a batch -----------------------------------------------------

_module = sys.modules[KERNEL.function.__module__]
#: The kernel's loop over a batch; a single product is a batch of one.
products_of_kernel = _module.batch_products
_product_by_vectors = sys.modules[FOR_VECTORS.function.__module__].streamed_product_alone

_any_njit: Any = nb.njit
_inner = _any_njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called only by each other
_suits, _suits_vectors, _suits_before = (_inner(kernel.suits) for kernel in (KERNEL, FOR_VECTORS, BEFORE_VECTORS))
_better_transposed = _inner(
    getattr(_module.better_transposed, "py_func", _module.better_transposed)
)  # a plain function where JIT is disabled


def are_small(m: int, n: int, k: int) -> int:
    """Return whether a product of these sizes is a small product."""
    return int(_suits(m, n, k))


def are_small_or_of_vectors(m: int, n: int, k: int) -> int:
    """Return whether a product of these sizes is small, or is a single product for which the kernel for vectors is
    planned."""
    return int(_suits(m, n, k) or (_suits_vectors(m, n, k) and not _suits_before(m, n, k)))


@_inner
def matrix_at(data, rows, columns, row, column):
    """Return the matrix at an address, with its two strides in bytes."""
    return as_strided(nb.carray(data, (rows, columns)), (rows, columns), (row, column))


@_inner
def batch_operands(a, b, c, batch):
    """Return the matrices of the first product of a batch, the number of products, and the bytes from each product to
    the next.

    If C is column-major, or if the product is a column-major matrix times a vector, the returned matrices are those of
    the transposed product Cᵀ = Bᵀ·Aᵀ.
    """
    m, n, k = batch[0], batch[1], batch[2]
    x, y = matrix_at(a, m, k, batch[3], batch[4]), matrix_at(b, k, n, batch[5], batch[6])
    z, count, step_x, step_y = matrix_at(c, m, n, batch[7], batch[8]), batch[9], batch[10], batch[11]
    row, column, itemsize = batch[7], batch[8], codegen.itemsize(z)
    transposed = n > 1 and column != itemsize and row == itemsize
    if transposed or _better_transposed(m, n, batch[3], batch[4], batch[5], batch[6], row, itemsize):
        x, y, z, step_x, step_y = y.T, x.T, z.T, step_y, step_x
    return x, y, z, count, step_x, step_y, batch[12]


def products(a: Any, b: Any, c: Any, batch: Any) -> int:
    """Compute all products of a batch. ``batch`` points to the words of the struct ``Batch``, which is defined in C.
    Returns 1 if all products were computed; any other number means that there was not enough memory."""
    x, y, z, count, step_x, step_y, step_z = batch_operands(a, b, c, batch)
    products_of_kernel(x, y, z, count, step_x, step_y, step_z)
    return 1


def products_with_vectors(a: Any, b: Any, c: Any, batch: Any) -> int:
    """Compute the batch as ``products`` does, or a single product with a vector or a few vectors that does not suit the
    kernel for small products."""
    x, y, z, count, step_x, step_y, step_z = batch_operands(a, b, c, batch)
    if count == 1 and not _suits(x.shape[0], y.shape[1], x.shape[1]):
        _product_by_vectors(x, y, z)
    else:
        products_of_kernel(x, y, z, count, step_x, step_y, step_z)
    return 1


# ---- shared products: a thread posts a call to others and computes its own share -------------------------------------

_post, _settle, _publish = _inner(crew.post), _inner(crew.settle), _inner(crew.publish)


def enough_threads_wait(call: Any, boxes: Any, count: int) -> int:
    """Return whether enough threads for the call are polling, or sleep and are worth waking, on the processors on which
    this thread may run.

    Threads that poll on this thread's own processor are told to leave, so that they can be woken elsewhere."""
    words, addresses = nb.carray(call, COUNTERS), nb.carray(boxes, count)
    allowed, here, awake, asleep, busy = crew.processors(), crew.processor_here(), 0, 0, 0
    for i in range(count):
        mailbox = crew.words_at(addresses, i, 0)
        state = crew.load(mailbox, words_of.STATE)
        if state != words_of.AWAY and mailbox[words_of.ALLOWED] == allowed:
            if state == words_of.STANDING and here >= 0 and mailbox[words_of.PROCESSOR] == here:
                mailbox[words_of.LEAVE] = 1
            asleep += state == words_of.SLEEPING
            awake += state == words_of.STANDING and mailbox[words_of.LEAVE] == 0
            busy += state > words_of.SLEEPING
    words[NOT_READY] = max(0, words[OTHERS] - awake - asleep - busy)
    return int(awake + min(asleep, words[WAKES]) >= words[NEEDED])


@_inner
def posted(words, addresses, address, allowed, others, wakes):
    """Post the call to ``others`` other threads; to sleeping threads only if ``wakes`` is set. Returns the number of
    threads that the call still lacks: ``others`` less the number of threads to which it was posted."""
    for i in range(addresses.size):
        if others == 0:
            break
        mailbox = crew.words_at(addresses, i, 0)
        if mailbox[words_of.ALLOWED] == allowed and _post(mailbox, words, address, wakes) != words_of.AWAY:
            others -= 1
    return others


@_inner
def write_matrix(words, i, data, rows, columns, row, column, transposed):
    """Write the description of matrix number i into the words of a call: its address, its rows and columns, and two
    strides in bytes."""
    at = words_of.ARRAYS + 5 * i
    words[at], words[at + 1], words[at + 2], words[at + 3], words[at + 4] = data, rows, columns, row, column
    if transposed:
        words[at + 1], words[at + 2], words[at + 3], words[at + 4] = columns, rows, column, row


def post_and_compute(
    call: Any, boxes: Any, count: int, a: int, b: int, c: int, batch: Any, space: int, itemsize: int
) -> int:
    """Compute C = A·B on this thread, and on each other thread that begins before this thread has finished. Returns 0
    if a thread could not allocate its memory, otherwise another number.

    a, b, c and the workspace ``space`` are addresses. ``batch`` points to the words of the struct ``Batch`` in C, with
    one product. Each element of the matrix C has ``itemsize`` bytes. If C is column-major, the function computes the
    row-major product Cᵀ = Bᵀ·Aᵀ.
    """
    words, addresses = nb.carray(call, COUNTERS), nb.carray(boxes, count)
    m, n, k, row, column = batch[0], batch[1], batch[2], batch[7], batch[8]
    transposed = column != itemsize and row == itemsize
    write_matrix(words, 1 if transposed else 0, a, m, k, batch[3], batch[4], transposed)
    write_matrix(words, 0 if transposed else 1, b, k, n, batch[5], batch[6], transposed)
    write_matrix(words, 2, c, m, n, row, column, transposed)
    address, allowed = words.ctypes.data, crew.processors()
    at = words_of.ARRAYS + 15
    words[at], words[at + 1] = space, words[ELEMENTS]
    words[at + 2], words[at + 3] = address + 8 * COUNTERS, words[COUNTS]
    words[words_of.BOXES] = addresses.ctypes.data
    affinity.add_to_set(words, words_of.TAKEN, crew.processor_here())
    others = posted(words, addresses, address, allowed, words[OTHERS], False)
    wakes = min(others, words[WAKES])
    if wakes > 0:
        others -= wakes - posted(words, addresses, address, allowed, wakes, True)
        _publish(words, address, count)
    words[NOT_CALLED] = others
    done = crew.call_team(words)
    for i in range(count):
        _settle(crew.words_at(addresses, i, 0), address)
    return int(done and not words[words_of.FAILED])


# ---- the list --------------------------------------------------------------------------------------------------------

tell_compiler()  # the deferred functions of the generator, which the functions below call

Kind = Literal["kernel", "function"]
_WORDS, _INDEX, _FLAG, _NOTHING = types.int64[::1], types.intp, types.boolean, types.void
_POINTER = types.CPointer(types.int64)


@dataclass(frozen=True)
class Entry:
    """A function to compile: its return type (None if Numba finds it), the types of its arguments, and Numba's
    options."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    returns: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        """The name of the kernel of this entry; ``NO_KERNEL`` for other functions."""
        return self.name.split()[1] if self.kind == "kernel" else NO_KERNEL


def entries() -> Iterator[Entry]:
    """Return all entries of a library: each kernel of the engine that this machine's instructions support, for each
    dtype, and all functions."""
    for kernel in engine().values():
        if kernel.available:
            for dtype, result in dict.fromkeys(dtype_pairs(kernel)):
                yield kernel_entry(kernel, dtype, result)
    yield from functions().values()
    yield from c_functions().values()


def dtype_pairs(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """Return the pairs of dtypes for which a kernel is compiled: the dtype of the operands, and the dtype of C."""
    for name in kernel.dtypes:
        yield code_name(name), code_name(name)
        if name in kernel.sums:
            yield name, kernel.sums[name]


def kernel_entry(kernel: Kernel, dtype: str, result: str) -> Entry:
    """Return the entry of a kernel, for operands of a dtype and a C of the dtype ``result``. Tunable parameters of the
    kernel are arguments after the arrays."""
    operand, product = (nb.from_dtype(storage(name)) for name in (dtype, result))
    matrix, target = (types.Array(element, 2, "A" if kernel.strided else "C") for element in (operand, product))
    space = nb.from_dtype(np.dtype(kernel.space)) if kernel.space else product
    shared = (types.Array(space, 1, "C"), _WORDS) if kernel.shared == "team" else ()
    tunable = [nb.typeof(value) for name, value in kernel.params.items() if name in kernel.tunable]
    options = {"fastmath": set(kernel.fastmath), "error_model": "numpy"}
    arguments = (matrix, matrix, target, *shared, *tunable)
    return Entry(kernel_name(kernel.name, dtype, result), "kernel", kernel.function, arguments, options=options)


def functions() -> dict[str, Entry]:
    """Return the functions that Python calls with numbers and arrays, by name."""
    of_crew: dict[Any, tuple[Any, ...]] = {
        crew.stand_by: (_INDEX, _WORDS, _INDEX, _INDEX, _INDEX, _FLAG),  # a worker waits for calls and runs them
        crew.post: (_INDEX, _WORDS, _WORDS, _INDEX, _FLAG),  # post a call in a mailbox
        crew.ring: (_NOTHING, _WORDS, _INDEX),  # wake the owner of a mailbox
        crew.publish: (_NOTHING, _WORDS, _INDEX, _INDEX),  # a call is posted: wake the first sleepers
        crew.rouse: (_FLAG, _WORDS, _WORDS),  # wake the owner, so that it stands by
        crew.settle: (_NOTHING, _WORDS, _INDEX),  # take a call back, or wait for its end
        crew.run_call: (_FLAG, _WORDS),  # run a call on this thread
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
    """Return the functions that the C front calls with numbers and addresses, by name."""
    found: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        (function_name("are_small"), are_small, (_INDEX,) * 3),
        (function_name("are_small_or_of_vectors"), are_small_or_of_vectors, (_INDEX,) * 3),
        (function_name("enough_threads_wait"), enough_threads_wait, (_POINTER, _POINTER, _INDEX)),
        (
            function_name("post_and_compute"),
            post_and_compute,
            (_POINTER, _POINTER, _INDEX, _INDEX, _INDEX, _INDEX, _POINTER, _INDEX, _INDEX),
        ),
    ]
    for dtype in dict.fromkeys(map(code_name, KERNEL.dtypes)):
        matrix = types.CPointer(nb.from_dtype(np.dtype(dtype)))
        function = products_with_vectors if dtype in FOR_VECTORS.dtypes else products
        found.append((products_name(dtype), function, (matrix, matrix, matrix, _POINTER)))
    options = {"error_model": "numpy"}
    return {name: Entry(name, "function", function, arguments, _INDEX, options) for name, function, arguments in found}
