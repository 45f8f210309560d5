"""Runs one CPU kernel: compiles it, keeps the machine code on disk, cuts C among threads.

A kernel is a function of three matrices and knows no threads. What it declares is how its C may be cut: ``rows`` (bands
of whole rows stay contiguous) or ``tiles`` (rectangles; for kernels that take any strides). A kernel for a ``team`` shares
its work out itself: all threads run the same function on the same operands, and counters that all see tell each what to do.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba as nb
import numpy as np
from llvmlite import binding
from numba.core import caching, types

from ..disk import fingerprint, private_directory
from ..errors import ShapeError, UsageError
from ..interrupts import apart
from ..kernels import Kernel, catalog
from ..kernels.blocking import in_force
from ..machine import machine
from ..operands import row_major, writeable_alias
from ..threads import Team, cuts
from .standby import Standby, source_of, words
from .stop import run_stoppable
from .workspace import workspace

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]

_PACKAGE = Path(__file__).parent.parent

#: What compiled code gets for dtypes that Numba does not know: integers with their bits (``simd.row_converter``).
_STORAGE = {"float16": np.dtype(np.uint16), "bfloat16": np.dtype(np.int16)}


# ---- compile ---------------------------------------------------------------------------------------------------------


@functools.cache
def compiled(kernel: Kernel, dtype: np.dtype) -> Callable[..., None]:
    """The kernel's machine code for ``dtype``: from disk where it was compiled before, else compiled now (about 1 s).

    On a thread of its own: an interrupt would leave the compiler's locks taken and its registries half filled.
    """
    return apart(functools.partial(_compile, kernel, dtype))


def _compile(kernel: Kernel, dtype: np.dtype) -> Callable[..., None]:
    dispatcher = nb.njit(nogil=True, fastmath=set(kernel.fastmath), error_model="numpy")(kernel.function)
    dispatcher._cache = _Cache(kernel, dtype)  # type: ignore[attr-defined]  # what njit(cache=True) does, with our directory and key
    element = nb.from_dtype(_STORAGE.get(dtype.name, dtype))
    matrix = types.Array(element, 2, "A" if kernel.strided else "C")
    shared = (types.Array(element, 1, "C"), types.int64[::1]) if kernel.shared == "team" else ()
    tunable = [nb.typeof(value) for name, value in kernel.params.items() if name in kernel.tunable]
    dispatcher.compile((matrix, matrix, matrix, *shared, *tunable))
    dispatcher.disable_compile()
    return dispatcher


@functools.cache
def standby() -> Standby:
    """The machine code by which workers wait awake."""
    return apart(_compile_standby)


def _compile_standby() -> Standby:
    def machine_code(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
        dispatcher = nb.njit(nogil=True)(function)
        dispatcher._cache = _Cache(source_of(function), np.dtype(np.int64))  # type: ignore[arg-type,attr-defined]
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return Standby(machine_code)


class _Locator(caching._CacheLocator):
    """Keeps machine code in the user's private directory, keyed by everything that shapes it.

    Numba's own key is the one file's time stamp: it does not notice an edited intrinsic, an edited helper in another
    file, or a tile that was chosen for another machine.
    """

    def __init__(self, function: Any, source: str) -> None:
        self._key = fingerprint(_generator(), function.__qualname__, Path(source))
        self._path = str(private_directory("numba", self._key))

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._key

    def get_disambiguator(self) -> None:
        return None

    @classmethod
    def from_function(cls, function: Any, source: str) -> _Locator:
        return cls(function, source)


@functools.cache
def _generator() -> str:
    """All that shapes machine code beside the kernel's own file: generators, compilers, and the machine it is made for."""
    here = machine()
    compilers = (nb.__version__, llvmlite.__version__, binding.llvm_version_info)
    processor = (here.llvm_cpu, here.isa, here.vector_bits, here.vector_registers, here.l1d, here.l2, here.l3)
    sources = [path for folder in ("simd", "kernels") for path in sorted((_PACKAGE / folder).glob("*.py"))]
    return fingerprint(*compilers, *processor, in_force(), *sources)


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012  # as the base class has it


class _Cache(caching.FunctionCache):
    """One index a dtype, for numba's are lost or crossed when two processes write the same one at once; one a source as it
    was loaded, which the file on disk may no longer be; and one a blocking, of which a tuner makes many.

    A cache that fails costs a compilation, never a product: what a crash has torn is written anew, and where nothing can
    be written (a full disk, a directory that was removed) nothing is.
    """

    _impl_class = _CacheImpl

    def __init__(self, kernel: Kernel, dtype: np.dtype) -> None:
        super().__init__(kernel.function)
        blocking = getattr(kernel, "blocking", None)
        name = f"{self._impl.filename_base}-{kernel.source_hash}-{dtype.name}" + (
            f"-{fingerprint(blocking)}" if blocking else ""
        )
        self._cache_file = caching.IndexDataCacheFile(self._cache_path, name, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # torn pickles raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


# ---- cut among threads -----------------------------------------------------------------------------------------------


def grid(m: int, n: int, threads: int) -> tuple[int, int]:
    """How many cuts along m and along n give ``threads`` rectangles of the least perimeter.

    A thread of a p×q grid reads A's m/p rows and B's n/q columns, so the operands are read q·m·k + p·k·n times in all.

    >>> grid(1000, 1000, 4), grid(100, 10000, 4), grid(10000, 10, 2)
    ((2, 2), (1, 4), (2, 1))
    """
    divisors = [p for p in range(1, threads + 1) if threads % p == 0]
    return min(((p, threads // p) for p in divisors), key=lambda pq: pq[1] * m + pq[0] * n)


class Composer(Team):
    """What a composed kernel works with: the kernel it is built over, and additions, all on the same threads."""

    def __init__(self, threads: int, base: Product) -> None:
        super().__init__(threads)
        self.multiply = base

    def add(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """out = x + y, rows shared among the threads."""
        self._elementwise(np.add, x, y, out)

    def subtract(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """out = x − y, rows shared among the threads."""
        self._elementwise(np.subtract, x, y, out)

    def _elementwise(self, operation: Any, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        bands = cuts(out.shape[0], self.threads)
        self.run([functools.partial(operation, x[r], y[r], out=out[r]) for r in bands])


# ---- run -------------------------------------------------------------------------------------------------------------


def runner(
    kernel: Kernel, dtype: Any, *, threads: int = 1, params: dict[str, Any] | None = None, add: bool = False
) -> Product:
    """A function ``run(a, b, c)`` that computes c = a·b by this kernel; compiles it now, so that calls do not.

    ``a``, ``b`` and ``c`` are matrices of ``dtype`` of any strides; every element of ``c`` is written, none is read; with
    ``add`` the product is added to what ``c`` holds, by a kernel that ``adds``.
    Raises UsageError for a dtype, thread count or parameter that the kernel does not have.
    """
    dtype = np.dtype(dtype)
    if dtype.name not in kernel.dtypes:
        raise UsageError(f"{kernel.name} has no {dtype.name}: it takes {', '.join(kernel.dtypes)}")
    if add and not kernel.adds:
        raise UsageError(f"{kernel.name} cannot add to C")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    params = {name: kernel.params[name] for name in kernel.tunable} | _checked(kernel, params or {})
    if kernel.over is not None:
        base = runner(catalog()[kernel.over], dtype, threads=threads)
        return functools.partial(_run_composed, kernel.function, Composer(threads, base), params)
    if not kernel.compiled:
        return functools.partial(kernel.function, **params) if params else kernel.function
    machine_code = compiled(kernel, dtype)
    code = functools.partial(machine_code, **params) if params else machine_code
    if kernel.shared == "team":
        if threads > 1:
            standby()  # compiled now
        return functools.partial(_run_team, code, Team(threads), kernel, add)
    if kernel.strided:
        return functools.partial(_run_tiles, code, Team(threads), kernel.grain)
    workers = threads if kernel.shared == "rows" else 1
    return functools.partial(_run_rows, code, Team(workers), kernel.grain[0])


def _check_shapes(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Machine code trusts its arguments: what does not fit here would be written to somebody else's memory."""
    if a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
        raise ShapeError(f"a is {a.shape}, b is {b.shape}, c is {c.shape}: must be (m, k), (k, n), (m, n)")


def call_once(run: Product, dtype: Any) -> None:
    """Multiply 1×1 matrices: a library is looked for, and code of a kernel's own making compiled, at the first call.

    Raises what the kernel raises, UnavailableError for a library that is not installed.
    """
    a, b, c = (np.ones((1, 1), dtype) for _ in range(3))
    run(a, b, c)


def _checked(kernel: Kernel, params: dict[str, Any]) -> dict[str, Any]:
    for name in params:
        if name not in kernel.tunable:
            rule = "is fixed in its source" if name in kernel.params else "is not a parameter of it"
            raise UsageError(f"{kernel.name}: {name} {rule}; tunable: {', '.join(sorted(kernel.tunable)) or 'none'}")
    return params


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
    a, b = writeable_alias(row_major(a)), writeable_alias(row_major(b))
    target = c if c.flags.c_contiguous else np.empty(c.shape, c.dtype)
    if team.threads == 1:
        code(a, b, target)
    else:
        bands = cuts(c.shape[0], team.threads, grain)
        team.run([functools.partial(code, a[band], b, target[band]) for band in bands])
    if target is not c:
        np.copyto(c, target)


def _run_team(
    code: Callable[..., None], team: Team, kernel: Kernel, add: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> None:
    """For kernels that share their work out themselves. A column-major C is the row-major product Cᵀ = Bᵀ·Aᵀ."""
    _check_shapes(a, b, c)
    if c.strides[1] != c.itemsize and c.strides[0] == c.itemsize:
        a, b, c = b.T, a.T, c.T
    if c.dtype.name in _STORAGE:
        a, b, c = (x.view(_STORAGE[c.dtype.name]) for x in (a, b, c))
    a, b = writeable_alias(a), writeable_alias(b)
    shape = (*c.shape, a.shape[1])
    elements = kernel.workspace(*shape) if kernel.workspace else 0
    counters = np.zeros((kernel.counters(*shape) if kernel.counters else 1) + 2, np.int64)
    counters[-2:] = add, team.threads
    with workspace(elements * c.itemsize) as memory:
        arrays = a, b, c, memory[: elements * c.itemsize].view(c.dtype), counters
        awake = () if team.threads == 1 or isinstance(code, functools.partial) else (words(code, *arrays), standby())
        run_stoppable(team, functools.partial(code, *arrays), counters, 2 * math.prod(shape), *awake)


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
    across, along = grid(c.shape[0], c.shape[1], team.threads)
    rows, columns = cuts(c.shape[0], across, grain[0]), cuts(c.shape[1], along, grain[1])
    team.run([functools.partial(code, a[r], b[:, s], c[r, s]) for r in rows for s in columns])
