"""Kernels describe themselves; this finds them.

A CPU kernel is a Python function under the ``@kernel`` decorator, alone in its file under ``cpu/``. The decorator says
what no compiler can know: the idea in a sentence, the parent rung, the row of the project's sources that it answers.
Runner, bench, tests, report and docs read that, so **adding a kernel means adding one file**. A file of your own with
the same decorator, anywhere on disk, is a first-class kernel too. So it is with CUDA kernels, ``.cu`` files under
``cuda/``, which say the same in a comment (see ``header``).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

from ..disk import fingerprint
from ..errors import UsageError, did_you_mean
from .blocking import Blocking, trying
from .cuda_kernel import CudaKernel
from .header import read_kernel

#: How a kernel may be shared among threads: not at all; by bands of rows of C; by rectangles of C; by itself.
Sharing = Literal["serial", "rows", "tiles", "team"]

FLOATS = ("float32", "float64")
#: Every dtype that a kernel of plain loops can multiply: complex numbers, and integers with wrap-around.
NUMERIC = (
    *FLOATS,
    "complex64",
    "complex128",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)

_HERE = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Kernel:
    """What a kernel says of itself, and its function.

    ``function(a, b, c)`` computes C = A·B for float arrays of shapes (m, k), (k, n), (m, n); it writes every element
    of C and never reads C first. It is compiled by Numba unless ``compiled`` is false. A kernel ``over`` another one,
    such as a recursion, gets a fourth argument, a team of threads with ``multiply`` (that kernel), ``add`` and
    ``subtract``, each ``(x, y, out)``.

    ``error_bound(m, n, k, **params)`` is for algorithms without the classical componentwise bound: a factor f with
    max|C − Ĉ| ≤ f·u·max|A|·max|B|, or None where the classical bound holds. ``workspace(m, n, k)`` counts the
    elements that the kernel allocates on one thread. ``grain`` is the tile that cuts among threads should respect.
    ``params`` are its numbers (tile sizes, leaf), of which those in ``tunable`` can be set at each call.

    A kernel for a ``team`` is called by every thread of it at once, as ``function(a, b, c, space, counters)``: ``space`` is
    ``workspace(m, n, k)`` elements for all threads together, on a 64-byte boundary and uninitialised, ``counters`` are
    ``counters(m, n, k)`` 64-bit zeros (one if not said), by which the threads share out the work (``simd.fetch_add``,
    ``simd.wait_for``), and two more behind them: whether the product is to be added to C, of a kernel that says it
    ``adds``, and how many threads were asked. It must be right with any number of threads, whichever of them come first,
    and no thread that others wait for may allocate: an error on one would leave the others waiting. Ctrl-C sets all
    counters to 2^40 in the middle of anything: then every thread must return soon, and touch nothing beyond its operands
    and its space.

    ``blocking`` is what ``blocking()`` answered when the kernel's module was loaded, said by a kernel that takes its tile
    and blocks from there alone: ``tilewright tune`` may look for better ones.

    ``suits(m, n, k)`` says where the plan prefers this kernel to the rungs below it; a kernel without it is never planned.
    ``source_hash`` is that of the kernel's file as it was when the kernel was declared.
    """

    name: str
    order: int
    function: Callable[..., None]
    path: Path
    idea: str
    row: str
    parent: str | None = None
    dtypes: tuple[str, ...] = FLOATS
    shared: Sharing = "serial"
    grain: tuple[int, int] = (1, 1)
    strided: bool = False
    over: str | None = None
    compiled: bool = True
    fastmath: frozenset[str] = frozenset({"contract"})
    params: dict[str, Any] = field(default_factory=dict)
    tunable: frozenset[str] = frozenset()
    error_bound: Callable[..., float | None] | None = None
    workspace: Callable[[int, int, int], int] | None = None
    counters: Callable[[int, int, int], int] | None = None
    suits: Callable[[int, int, int], bool] | None = None
    adds: bool = False
    blocking: Blocking | None = None
    source_hash: str = field(init=False)

    def __post_init__(self) -> None:
        # Taken now and not when asked for: a file edited since is not what this function does.
        object.__setattr__(self, "source_hash", hashlib.sha256(self.path.read_bytes()).hexdigest()[:16])

    @property
    def device(self) -> str:
        return self.name.split("/")[0]

    @property
    def is_reference(self) -> bool:
        return self.device == "ref"

    @property
    def about(self) -> dict[str, Any]:
        """What a record repeats, so that a report needs no kernel."""
        return {"idea": self.idea, "parent": self.parent, "row": self.row, "order": self.order}


def kernel(
    *,
    idea: str,
    row: str,
    parent: str | None = None,
    name: str | None = None,
    **declared: Any,
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare the decorated function to be a kernel; the other keywords are the fields of ``Kernel``.

    The name is ``<folder>/<file name without its number>`` unless ``name`` is given. Keyword-only arguments of the
    function are its parameters, with their defaults.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        path = Path(inspect.getfile(function))
        number, stem = _split(path.stem)
        signature = inspect.signature(function).parameters.values()
        tunable = {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}
        declared["params"] = {**declared.get("params", {}), **tunable}
        declared["tunable"] = frozenset(tunable)
        own = name or (f"{path.parent.name}/{stem}" if path.parent.parent == _HERE else f"my/{stem}")
        return Kernel(own, number, function, path, idea=idea, row=row, parent=parent, **declared)

    return declare


def _split(stem: str) -> tuple[int, str]:
    """``"03_blocked"`` → (3, "blocked"): the number is for reading order only."""
    match = re.fullmatch(r"(?:(\d+)_)?(\w+)", stem)
    if match is None:
        raise UsageError(f"kernel file {stem!r}: the name must be letters, digits and underscores")
    return int(match[1] or 1000), match[2]


@functools.cache
def catalog() -> dict[str, Kernel]:
    """Every kernel of the package that runs on the CPU by name, in reading order, references last."""
    found = []
    for folder in ("cpu", "ref"):
        for path in sorted((_HERE / folder).glob("[0-9a-z]*.py")):
            found.append(_only_kernel(importlib.import_module(f"{__package__}.{folder}.{path.stem}")))
    return {k.name: k for k in sorted(found, key=lambda k: (k.is_reference, k.order))}


def adding_kernel(dtype: str) -> Kernel | None:
    """The highest rung on the CPU that can add to C, whatever the shape; None for a dtype that none of them has."""
    return next((k for k in reversed(catalog().values()) if k.adds and dtype in k.dtypes), None)


@functools.cache
def cuda_catalog() -> dict[str, CudaKernel]:
    """Every CUDA kernel of the package by name, in reading order."""
    found = [_cuda_kernel(path, "cuda") for path in (_HERE / "cuda").glob("[0-9a-z]*.cu")]
    return {k.name: k for k in sorted(found, key=lambda k: (k.order, k.name))}


def load_cuda_file(path: str | Path) -> CudaKernel:
    """A user's own kernel from a ``.cu`` file anywhere. Raises UsageError for a file without a header, or a wrong one."""
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"kernel file {path} does not exist")
    return _cuda_kernel(path, "my")


def _cuda_kernel(path: Path, folder: str) -> CudaKernel:
    number, stem = _split(re.sub(r"\W+", "_", path.stem))
    return read_kernel(path, name=f"{folder}/{stem}", order=number, entry=stem)


def load_file(path: str | Path) -> Kernel:
    """A user's own kernel from a ``.py`` file anywhere. Raises UsageError for a file that declares none."""
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"kernel file {path} does not exist")
    _split(path.stem)
    return _loaded(path, f"tilewright_user_{path.stem}")


def remade(kernel: Kernel, chosen: Blocking) -> Kernel:
    """The same kernel, from its file, made for another blocking."""
    # A module name of its own goes into the names of its machine code: two of them must not share one.
    with trying(chosen):
        return _loaded(kernel.path, f"tilewright_blocking_{fingerprint(chosen)}_{kernel.path.stem}")


def _loaded(path: Path, name: str) -> Kernel:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"kernel file {path}: must be a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"kernel file {path}: {type(error).__name__}: {error}") from error
    return _only_kernel(module)


def _only_kernel(module: ModuleType) -> Kernel:
    found = [value for value in vars(module).values() if isinstance(value, Kernel)]
    if len(found) != 1:
        raise UsageError(
            f"kernel file {module.__file__}: must declare exactly one kernel, found {len(found)}; it needs\n"
            "    from tilewright.kernels import kernel\n"
            '    @kernel(idea="what it does differently", row="", parent="cpu/naive")\n'
            "    def my_kernel(a, b, c): ..."
        )
    return found[0]


@overload
def find(names: Iterable[str], *, device: Literal["cpu"] = "cpu") -> list[Kernel]: ...
@overload
def find(names: Iterable[str], *, device: Literal["cuda"]) -> list[CudaKernel]: ...
def find(names: Iterable[str], *, device: str = "cpu") -> list[Kernel] | list[CudaKernel]:
    """Kernels by name (``cpu/ikj``, or ``ikj`` for short) or by path of a user's file, in the order given.

    No name at all means the whole ladder of ``device``. Raises UsageError with a suggestion for a name not known, and for a
    kernel of another device.
    """
    known: dict[str, Any] = dict(cuda_catalog() if device == "cuda" else catalog())
    chosen = [_find_one(name, device, known) for name in names]
    return chosen or [k for k in known.values() if k.device == device]


def _find_one(name: str, device: str, known: dict[str, Any]) -> Any:
    full = name if "/" in name else f"{device}/{name}"
    if name.endswith((".py", ".cu")):
        runs_on = "cuda" if name.endswith(".cu") else "cpu"
        if runs_on == device:
            return load_cuda_file(name) if device == "cuda" else load_file(name)
    elif full in known:
        return known[full]
    elif full in (other := catalog() if device == "cuda" else cuda_catalog()):
        runs_on = other[full].device
    else:
        raise UsageError(f"kernel {name!r} is not known: {did_you_mean_kernel(name, [*known, *other], listed=known)}")
    raise UsageError(f"kernel {name!r} runs on device {runs_on}, not on device {device}")


def did_you_mean_kernel(name: str, names: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """``did_you_mean`` for kernels of several devices: a name without its device is compared with names without theirs.

    Where none is like it, those ``listed`` are named, by default all.

    >>> did_you_mean_kernel("coalescd", ["cpu/packed", "cuda/coalesced", "cuda/tf32"])
    'did you mean cuda/coalesced?'
    """
    pool = list(names)
    compared = {full: full if "/" in name else full.partition("/")[2] for full in pool}
    close = difflib.get_close_matches(name, dict.fromkeys(compared.values()), n=2, cutoff=0.6)
    found = [full for like in close for full in pool if compared[full] == like]
    return f"did you mean {' or '.join(found)}?" if found else f"known: {', '.join(sorted(listed or pool))}"


def tunable() -> list[str]:
    """The kernels of which ``tilewright tune`` has something to try: a blocking, or parameters."""
    cpu = [name for name, kernel in catalog().items() if kernel.blocking is not None]
    return cpu + [name for name, kernel in cuda_catalog().items() if kernel.parameters]


def reference(name: str) -> Kernel:
    """A vendor library by name (``openblas``, ``mkl``, …), installed or not."""
    known = {k.name.split("/")[1]: k for k in catalog().values() if k.is_reference}
    short = name.removeprefix("ref/")
    if short not in known:
        raise UsageError(f"reference {name!r} is not known: {did_you_mean(short, known)}")
    return known[short]
