"""Runs one CPU kernel: gets its machine code and workspace, and cuts C, or a batch of products, among threads.

A kernel is a function of three matrices and contains no code for threads. Each kernel declares how its C may be cut
among threads: ``rows`` means that C is cut into bands of whole rows, which stay contiguous; ``tiles`` means that C is
cut into rectangles, for kernels that take any strides. A kernel with the value ``team`` distributes its work itself:
all threads run the same function on the same operands, and take jobs by shared counters.

Workspace is cached between calls, because new memory costs a page fault every 4 KiB. Taking a buffer from the cache is
one operation of a dict, and so is putting it back. The cache has no lock, because an interrupt could leave a lock
taken. A buffer that is not put back because of an interrupt is freed when its last reference is deleted. For a batch of
small products, threads take portions of the batch, and a compiled loop computes the products of a portion.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import MemoryLimitError, ShapeError, UsageError
from ...host.machine import bytes_text, machine
from ...kernels import Kernel
from ...kernels.catalog import catalog
from ...product.operands import aligned_empty, as_row_major, writeable_alias
from ...product.problem import ProductShapes, Symmetry
from ..engine.triangle import ADDS, BITS, LOWER
from .library import STORAGE, code_dtype
from .machine_code import Code, kernel_code, need_machine_code
from .small_products import Short
from .stop import run_stoppable
from .threads import CompiledStandby, Team, call_words

# ---- workspace -------------------------------------------------------------------------------------------------------

#: Bytes of unused buffers that are cached at most. A product with a larger workspace takes
#: seconds, so that the 50 ms of page faults do not matter.
MOST_CACHED_BYTES = 256 << 20

#: Cached buffers, by identity. Other threads may change it at any time, so only a copy is iterated over.
_cached: dict[int, np.ndarray] = {}
_NOTHING = aligned_empty((0,), np.uint8)


@contextlib.contextmanager
def take_workspace(nbytes: int) -> Iterator[np.ndarray]:
    """Return a context manager that gives at least ``nbytes`` uninitialised bytes on a 64-byte boundary. No other call
    uses these bytes until the ``with`` block ends.

    Raises MemoryLimitError, which names the size, if there is not enough memory.

    >>> with take_workspace(100) as memory:
    ...     memory.size >= 100, memory.dtype.name
    (True, 'uint8')
    """
    memory = take_buffer(nbytes)
    try:
        yield memory
    finally:
        put_back_buffer(memory)


def take_buffer(nbytes: int) -> np.ndarray:
    """Return a buffer as ``take_workspace`` gives it, for use until ``put_back_buffer`` is called. A pair of
    ``take_buffer`` and ``put_back_buffer`` is a microsecond faster than ``take_workspace``. A buffer that is not put
    back is freed when its last reference is deleted."""
    if not nbytes:
        return _NOTHING
    # Mostly there is one buffer. A product that has evicted this code from the caches pays for every line of it.
    try:
        key, memory = _cached.popitem()
    except KeyError:
        return _allocated(nbytes)
    if not _cached and memory.size >= nbytes:
        return memory
    _cached[key] = memory
    taken = _taken(nbytes)
    return _allocated(nbytes) if taken is None else taken


def release_workspace() -> None:
    """Free the cached buffers. Running products keep their own."""
    _cached.clear()


def _smallest_first() -> list[np.ndarray]:
    return sorted(_cached.copy().values(), key=len)


def _taken(nbytes: int) -> np.ndarray | None:
    """The smallest cached buffer that is large enough. If there is none, None, and the largest of the others is freed."""
    small = None
    for memory in _smallest_first():
        if memory.size < nbytes:
            small = memory
        elif _cached.pop(id(memory), None) is not None:  # else another thread has just taken it
            return memory
    if small is not None:
        _cached.pop(id(small), None)  # before the new one is allocated: memory may not hold both
    return None


def put_back_buffer(memory: np.ndarray) -> None:
    """Cache a buffer for later products. The largest buffers stay cached, at most one more than the number of usable
    cores."""
    if not 0 < memory.size <= MOST_CACHED_BYTES:
        return
    _cached[id(memory)] = memory
    if len(_cached) == 1:
        return
    cached = _smallest_first()
    while len(cached) > machine().usable_cores + 1 or sum(map(len, cached)) > MOST_CACHED_BYTES:
        _cached.pop(id(cached.pop(0)), None)


#: The least bytes of an array for which ``recycled_empty`` asks the cache. The memory of smaller ones is cached by the
#: allocator of C (glibc: up to 32 MiB).
LEAST_RECYCLED = 32 << 20


class _Lender:
    """The owner of a buffer, for as long as an array over the buffer exists."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, put_back_buffer, memory).atexit = False


def recycled_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array. The buffer of a large array is cached when the array's last reference is deleted.
    So the next large array takes cached memory and causes no page faults: the first write to 40 MiB of new memory takes
    20 ms on a virtual machine.

    >>> recycled_empty((2, 3), np.dtype("float32")).shape
    (2, 3)
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not LEAST_RECYCLED <= nbytes <= MOST_CACHED_BYTES:
        return np.empty(shape, dtype)
    memory = take_buffer(nbytes)
    if memory.size > 2 * nbytes:  # an array would keep more than it needs
        put_back_buffer(memory)
        memory = _allocated(nbytes)
    array: np.ndarray = np.asarray(_Lender(memory))[:nbytes].view(dtype).reshape(shape)
    return array


def _allocated(nbytes: int) -> np.ndarray:
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        release_workspace()
    try:
        return aligned_empty((nbytes,), np.uint8)
    except MemoryError:
        raise MemoryLimitError(
            f"this product needs a workspace of {bytes_text(nbytes)}, which could not be allocated"
        ) from None


# ---- how a length is cut into parts, one for each thread -------------------------------------------------------------


def even_slices(length: int, parts: int, grain: int = 1) -> list[slice]:
    """Return at most ``parts`` consecutive slices of nearly equal length. The length of each slice but the last is a
    multiple of ``grain``.

    >>> even_slices(10, 3), even_slices(10, 2, grain=4)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)], [slice(0, 4, None), slice(4, 10, None)])
    """
    grains = max(1, math.ceil(length / grain))
    parts = min(parts, grains)
    edges = [min(length, (grains * part // parts) * grain) for part in range(parts)] + [length]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


def run_in_slices(job: Callable[[slice], None], length: int, threads: int) -> None:
    """Cut ``length`` into at most ``threads`` even slices, and call ``job`` with each slice, each on another thread.

    >>> found = []
    >>> run_in_slices(found.append, 10, 1)
    >>> found
    [slice(0, 10, None)]
    """
    parts = even_slices(length, threads)
    Team(len(parts)).run([functools.partial(job, part) for part in parts])


Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


# ---- machine code ----------------------------------------------------------------------------------------------------


def compiled(kernel: Kernel, dtype: np.dtype, result: np.dtype | None = None) -> Code:
    """Return the kernel's machine code for ``dtype``, from the library or compiled now, which takes about 1 s.

    It takes matrices of ``code_dtype(dtype)``. If ``result`` is given, C has that wider dtype, and the operands have
    ``dtype``. Raises UnavailableError if the code must be compiled and there is no compiler.
    """
    if result is None or result == dtype:
        dtype = result = code_dtype(dtype)
    return kernel_code(kernel, dtype.name, result.name)


@functools.cache  # one for all teams
def standby() -> CompiledStandby:
    """Return the functions with which worker threads wait, in machine code, for the next product."""
    return CompiledStandby(need_machine_code("what workers wait in").function)


# ---- cut among threads -----------------------------------------------------------------------------------------------


def grid(m: int, n: int, threads: int) -> tuple[int, int]:
    """Return the numbers of bands of rows and of columns into which to cut C. Each thread computes one rectangle of C,
    and all threads together read as few elements as possible.

    If C is cut into p bands of rows and q bands of columns, A is read q times and B is read p times: k·(q·m + p·n)
    elements.

    >>> grid(1000, 1000, 4), grid(100, 10000, 4), grid(10000, 10, 2)
    ((2, 2), (1, 4), (2, 1))
    """
    p = min((p for p in range(1, threads + 1) if threads % p == 0), key=lambda p: threads // p * m + p * n)
    return p, threads // p


class Composer(Team):
    """The functions that a composed kernel calls. Such a kernel, for example Strassen's algorithm, consists of products
    by a base kernel and of additions, all on the same threads."""

    def __init__(self, threads: int, base: Product) -> None:
        super().__init__(threads)
        self.multiply = base

    def add(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """Compute out = x + y; the rows are shared among the threads."""
        self._elementwise(np.add, x, y, out)

    def subtract(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """Compute out = x − y; the rows are shared among the threads."""
        self._elementwise(np.subtract, x, y, out)

    def _elementwise(self, operation: Any, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        run_in_slices(lambda rows: operation(x[rows], y[rows], out=out[rows]), out.shape[0], self.threads)


# ---- run -------------------------------------------------------------------------------------------------------------


def runner(
    kernel: Kernel,
    dtype: Any,
    *,
    threads: int = 1,
    params: dict[str, Any] | None = None,
    add: bool = False,
    result: Any = None,
    symmetry: Symmetry = "",
    mirrored: bool = True,
) -> Product:
    """Return a function ``run(a, b, c)`` that computes c = a·b with this kernel. The kernel is compiled now, not at the
    first call of ``run``.

    ``a``, ``b`` and ``c`` are matrices of ``dtype`` with any strides; ``c`` may have a wider dtype ``result``, if it is
    one of the kernel's ``sums``. ``run`` writes every element of ``c``, and reads none. With ``add``, which only
    kernels with ``adds`` allow, ``run`` adds the product to ``c``.

    A ``symmetry``, which only kernels with a ``triangle`` allow, says that ``c`` is known to be symmetric. If
    ``mirrored`` is False, only the diagonal and the lower triangle of ``c`` are right afterwards, so that further
    products can be added. Raises UsageError for a dtype, a number of threads or a parameter that the kernel does not
    have.
    """
    dtype = np.dtype(dtype)
    result = dtype if result is None else np.dtype(result)
    if dtype.name not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype.name}: it takes {', '.join(kernel.dtypes)}")
    if result != dtype and kernel.sums.get(dtype.name) != result.name:
        raise UsageError(f"{kernel.name} does not write {result.name} for {dtype.name}")
    if add and not kernel.adds:
        raise UsageError(f"{kernel.name} cannot add to C")
    if symmetry and not kernel.triangle:
        raise UsageError(f"{kernel.name} computes no triangle of C")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    params = {name: kernel.params[name] for name in kernel.tunable} | _checked(kernel, params or {})
    if kernel.over is not None:
        base = runner(catalog()[kernel.over], dtype, threads=threads)
        return functools.partial(_run_composed, kernel.function, Composer(threads, base), params)
    if not kernel.compiled:
        return functools.partial(kernel.function, **params) if params else kernel.function
    how = BITS[symmetry] | (ADDS if add else 0) | (LOWER if symmetry and not mirrored else 0)
    run = _runner_of_code(kernel, compiled(kernel, dtype, result), threads, params, how)
    stored, target = (STORAGE.get(x.name, code_dtype(x) if result == dtype else x) for x in (dtype, result))
    return run if (stored, target) == (dtype, result) else functools.partial(_run_as, stored, target, run)


def _runner_of_code(
    kernel: Kernel, machine_code: Callable[..., None], threads: int, params: dict[str, Any], how: int
) -> Product:
    code = functools.partial(machine_code, **params) if params else machine_code
    if kernel.shared == "team":
        if threads > 1:
            standby()  # compiled now
        return functools.partial(_run_team, code, Team(threads), kernel, how)
    if kernel.strided:
        return functools.partial(_run_tiles, code, Team(threads), kernel.grain)
    workers = threads if kernel.shared == "rows" else 1
    return functools.partial(_run_rows, code, Team(workers), kernel.grain[0])


def _check_shapes(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Machine code does not check its arguments: with wrong shapes it would write to memory outside C."""
    if a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
        raise ShapeError(f"a is {a.shape}, b is {b.shape}, c is {c.shape}: must be (m, k), (k, n), (m, n)")


def call_once(run: Product, dtype: Any) -> None:
    """Multiply 1×1 matrices once, because the first call of a kernel may search for a library or compile further code.

    Raises the kernel's own exceptions, and UnavailableError if the kernel needs a library that is not installed.
    """
    a, b, c = (np.ones((1, 1), dtype) for _ in range(3))
    run(a, b, c)


def _checked(kernel: Kernel, params: dict[str, Any]) -> dict[str, Any]:
    for name in params:
        if name not in kernel.tunable:
            rule = "is fixed in its source" if name in kernel.params else "is not one of its parameters"
            raise UsageError(f"{kernel.name}: {name} {rule}; tunable: {', '.join(sorted(kernel.tunable)) or 'none'}")
    return params


def _run_as(stored: np.dtype, target: np.dtype, run: Product, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """``run`` on the same bits as elements of ``stored``, those of C as elements of ``target``."""
    run(a.view(stored), b.view(stored), c.view(target))


def _run_composed(
    function: Callable[..., None],
    team: Composer,
    params: dict[str, Any],
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
) -> None:
    function(a, b, c, team, **params)


def _run_rows(code: Callable[..., None], team: Team, grain: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """For kernels that need C order: operands of other strides are copied first, C is copied back last."""
    _check_shapes(a, b, c)
    a, b = writeable_alias(as_row_major(a)), writeable_alias(as_row_major(b))
    target = c if c.flags.c_contiguous else np.empty(c.shape, c.dtype)
    if team.threads == 1:
        code(a, b, target)
    else:
        bands = even_slices(c.shape[0], team.threads, grain)
        team.run([functools.partial(code, a[band], b, target[band]) for band in bands])
    if target is not c:
        np.copyto(c, target)


def _run_team(
    code: Callable[..., None], team: Team, kernel: Kernel, how: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """For kernels that distribute their own work. A column-major C is the row-major product Cᵀ = Bᵀ·Aᵀ."""
    _check_shapes(a, b, c)
    if c.strides[1] != c.itemsize and c.strides[0] == c.itemsize:
        a, b, c = b.T, a.T, c.T
    a, b = writeable_alias(a), writeable_alias(b)
    shape = (c.shape[0], c.shape[1], a.shape[1])
    nbytes, counted = team_needs(kernel, shape, c.dtype, team.threads)
    counters = np.zeros(counted + 2, np.int64)
    counters[-2:] = how, team.threads  # where kernels read them
    with take_workspace(nbytes) as memory:
        arrays = a, b, c, memory[:nbytes].view(kernel.space or c.dtype), counters
        job, flops = functools.partial(code, *arrays), 2 * math.prod(shape)
        if team.threads == 1 or isinstance(code, functools.partial):  # a call in words has no parameters
            run_stoppable(team, job, counters, flops)
        else:
            run_stoppable(team, job, counters, flops, call=call_words(code, *arrays), standby=standby())


@functools.lru_cache(maxsize=1024)  # every product of a shape asks
def team_needs(kernel: Kernel, shape: tuple[int, int, int], dtype: np.dtype, threads: int) -> tuple[int, int]:
    """Return the bytes of workspace and the number of counters that a ``team`` kernel needs."""
    return kernel.workspace_bytes(*shape, dtype.name, threads), kernel.counters(*shape) if kernel.counters else 1


def _run_tiles(
    code: Callable[..., None], team: Team, grain: tuple[int, int], a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """For kernels that take any strides. A column-major C is the row-major product Cᵀ = Bᵀ·Aᵀ."""
    _check_shapes(a, b, c)
    if c.strides[1] != c.itemsize and c.strides[0] == c.itemsize:
        a, b, c = b.T, a.T, c.T
    a, b = writeable_alias(a), writeable_alias(b)
    if team.threads == 1:
        code(a, b, c)
        return
    (m, n), (grain_m, grain_n) = c.shape, grain
    across, along = grid(m, n, team.threads)
    rows, columns = even_slices(m, across, grain_m), even_slices(n, along, grain_n)
    team.run([functools.partial(code, a[r], b[:, s], c[r, s]) for r in rows for s in columns])


# ---- batches of products of one shape --------------------------------------------------------------------------------

#: Multiply-adds of a portion of the batch: about 10 ms. Ctrl-C takes effect between two portions.
PORTION = 1 << 30
#: Threads are not equally fast on a shared machine. So there are so many portions for each, unless these would have fewer
#: multiply-adds than LEAST: Python code, which only one thread at a time can run, comes between two portions.
PORTIONS, LEAST = 8, 1 << 23


def as_matrices(
    shapes: ProductShapes, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return views of the operands with the shapes (…, m, k), (…, k, n), (…, m, n). A vector gets its missing axis, and
    a and b get the axes of the batch."""
    a = a if a.ndim > 1 else a[None, :]
    b = b if b.ndim > 1 else b[:, None]
    if c.ndim != len(shapes.batch) + 2:
        c = c.reshape((1, 1)) if not shapes.result else _with_vector_axis(c, shapes)
    if shapes.batch:
        a = np.broadcast_to(a, shapes.batch + a.shape[-2:])
        b = np.broadcast_to(b, shapes.batch + b.shape[-2:])
    return a, b, c


def _with_vector_axis(c: np.ndarray, shapes: ProductShapes) -> np.ndarray:
    """A view of C with the axis of m or n that a vector operand lacks."""
    if c.ndim == len(shapes.batch):
        return c[..., None, None]
    return c[..., None, :] if shapes.result[-1] == shapes.n and shapes.m == 1 else c[..., None]


def multiply_batch(
    short: Short, product: Callable[[], Product], bands: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """Multiply the operands of a batch that ``as_matrices`` returned. The batch is cut along its longest axis, and at
    most ``bands`` threads share it.

    Each thread takes the next portion of the batch until none is left. ``short`` is a function that computes a portion
    in one call, or returns None. If ``short`` returns None, ``product()`` gives the function that computes one product.
    Ctrl-C takes effect between two portions.
    """
    if not c.size:
        return
    if c.ndim == 2:
        _portion(short, product, a, b, c)
        return
    axis = int(np.argmax(c.shape[:-2]))
    left = deque(_portions(c.shape[axis], c.size * a.shape[-1], bands))

    def compute() -> None:
        while left:
            try:
                where = (slice(None),) * axis + (left.popleft(),)
            except IndexError:  # another thread took the last one
                return
            _portion(short, product, a[where], b[where], c[where])

    Team(bands).rally(compute, stop=left.clear)


def _portions(length: int, work: int, bands: int) -> list[slice]:
    """The portions of an axis of ``length`` products, or rows of products, which ``bands`` threads take one after the other.
    ``work`` is the multiply-adds of all.

    Portions differ by one product at most. Where they would have one or two, each product is a portion: a thread that took
    two last would need twice the time of the others. The longer ones come first, so that the last ones to end are short.
    """
    count = max(bands, min(PORTIONS * bands, work // LEAST)) if bands > 1 else 1
    count = max(count, math.ceil(work / PORTION))
    if count < length <= 2 * count:
        count = length
    return sorted(even_slices(length, count), key=lambda portion: portion.stop - portion.start, reverse=True)


def _portion(short: Short, product: Callable[[], Product], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    if short(a, b, c, True) is not None:
        return
    run = product()
    if c.ndim == 2:
        run(a, b, c)
        return
    for index in np.ndindex(c.shape[:-2]):
        run(a[index], b[index], c[index])
