"""How a kernel for the CPU declares itself: it is a Python function with the ``@kernel`` decorator, alone in its file.

The decorator states what no compiler can know: the idea in a sentence, the parent kernel that it improves on, and the
row of ``docs/sources.md`` that it implements. Runner, bench, tests, report and documents read this declaration, so
**adding a kernel means adding one file**. A user's own file with this decorator, anywhere on disk, declares a kernel
that can be used in the same ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError
from ..host.cached_property import cached_property
from ..host.disk import fingerprint
from ..host.sources import PACKAGE
from ..product.problem import itemsize_of
from .blocking import Blocking

#: How a kernel may be divided among threads: not at all ("serial"), by bands of rows of C ("rows"), by rectangles of C
#: ("tiles"), or by the kernel itself ("team").
Sharing = Literal["serial", "rows", "tiles", "team"]

FLOATS = ("float32", "float64")
#: Every dtype that a kernel of plain loops can multiply. Integers wrap around at overflow.
NUMERIC = (
    *FLOATS,
    "complex64",
    "complex128",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """What a kernel declares, and its function.

    Attributes
    ----------
    name : str
        Its name, such as "cpu/ikj".
    order : int
        The place in the reading order: the number of a rung's file, or what a kernel of the engine declares. Of the
        engine's kernels with the dtype, the plan takes the one of the highest order whose ``suits(m, n, k)`` holds;
        if none holds, the one of the highest order without ``suits``. It never takes a rung: the ladder is for
        reading.
    function : function
        ``function(a, b, c)`` computes C = A·B for float arrays of shapes (m, k), (k, n), (m, n); it writes every
        element of C and never reads C first. A kernel ``over`` another one gets a fourth argument, and a ``team``
        kernel others: see the notes.
    path : Path
        The file.
    idea : str
        What the kernel does differently, in one sentence.
    row : str
        The row of docs/sources.md that describes the idea; "" where there is none.
    parent : str or None
        The rung that it improves on.
    dtypes : tuple of str
        The dtypes that it multiplies.
    sums : mapping of str to str
        For some of them the wider dtype of their sums: C may have that dtype, too.
    shared : str
        How C may be cut among threads: "serial", "rows", "tiles" or "team".
    grain : tuple of two int
        The tile that cuts among threads should respect.
    strided : bool
        Whether operands may have any strides.
    over : str or None
        The kernel that this one multiplies with, such as a recursion.
    compiled : bool
        Whether Numba compiles the function.
    fastmath : frozenset of str
        The liberties with floating-point arithmetic that LLVM is given.
    params : dict
        Its numbers: tile sizes, leaf.
    tunable : frozenset of str
        Those of ``params`` that can be set at each call.
    error_bound : function or None
        For algorithms without the classical componentwise bound: of m, n, k and the parameters, a factor f with
        max|C − Ĉ| ≤ f·u·max|A|·max|B|, or None where the classical bound holds.
    workspace : function or None
        Of m, n, k, the elements that the kernel allocates on one thread; of a ``team`` kernel also of the number of
        threads, a fourth argument that may be left out.
    space : str
        The dtype of the workspace, if it is not that of C.
    counters : function or None
        Of m, n, k, the number of counters of a ``team`` kernel; one if it is not declared.
    in_place : bool
        Whether it packs no rows of A that lie well (``cpu.engine.jobs.lies_well``).
    suits : function or None
        Whether the kernel is meant for m, n, k.
    for_many : tuple of str and function, or None
        Another kernel with the same bits, and where it takes the place of this one: of m, n, k, threads, itemsize.
    adds : bool
        Whether it can add the product to C.
    triangle : bool
        Whether it can compute one triangle of a symmetric C.
    available : bool
        False where this machine lacks the instructions that the kernel is for.
    blocking : Blocking or None
        The result of ``blocking()`` when the kernel's module was loaded. A kernel declares it if its tile and
        blocks follow from it alone: then ``tilewright tune`` may search for a better one.
    variants : function or None
        For a library with several kernels for one product: of a dtype, functions ``(a, b, c)`` by name, the first
        of which is the library as installed. The bench takes the fastest of them for each shape.
    source : bytes
        The kernel's file at the time of the declaration.

    Notes
    -----
    A kernel ``over`` another one gets a team of threads with ``multiply`` (that kernel), ``add`` and ``subtract``,
    each ``(x, y, out)``.

    A ``team`` kernel is called by all threads of a team at once, as ``function(a, b, c, space, counters)``.
    ``space`` is ``workspace(m, n, k)`` elements for all threads together, on a 64-byte boundary and uninitialised.
    ``counters`` are ``counters(m, n, k)`` 64-bit zeros, by which the threads share the work
    (``cpu.codegen.fetch_add``, ``cpu.codegen.wait_for``), followed by two more: bits that say whether to add the
    product to C, for a kernel that ``adds``, and whether C is known to be symmetric, for one that then computes a
    ``triangle`` of it (``cpu.engine.triangle``); and the number of threads that were asked to work. The kernel must
    be right with any number of threads, in whatever order they begin. A thread that others wait for must not
    allocate: if the allocation failed, the others would wait forever. Ctrl-C sets all counters to 2^40 at any
    moment: then every thread must return soon, and access only its operands and ``space``.
    """

    name: str
    order: int
    function: Callable[..., None]
    path: Path
    idea: str
    row: str
    parent: str | None = None
    dtypes: tuple[str, ...] = FLOATS
    sums: Mapping[str, str] = field(default_factory=dict)
    shared: Sharing = "serial"
    grain: tuple[int, int] = (1, 1)
    strided: bool = False
    over: str | None = None
    compiled: bool = True
    fastmath: frozenset[str] = frozenset({"contract"})
    params: dict[str, Any] = field(default_factory=dict)
    tunable: frozenset[str] = frozenset()
    error_bound: Callable[..., float | None] | None = None
    workspace: Callable[..., int] | None = None
    space: str = ""
    counters: Callable[[int, int, int], int] | None = None
    in_place: bool = False
    suits: Callable[[int, int, int], bool] | None = None
    for_many: tuple[str, Callable[[int, int, int, int, int], bool]] | None = None
    adds: bool = False
    triangle: bool = False
    available: bool = True
    blocking: Blocking | None = None
    variants: Callable[[str], Mapping[str, Callable[..., None]]] | None = None
    source: bytes = field(init=False)

    def __post_init__(self) -> None:
        # Read now and not at the first use: if the file is edited later, this function is still the old one.
        object.__setattr__(self, "source", self.path.read_bytes())

    @cached_property
    def source_hash(self) -> str:
        """The hash of ``source``."""
        return fingerprint(self.source)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"

    def workspace_bytes(self, m: int, n: int, k: int, dtype: str, threads: int | None = None) -> int:
        """Bytes that the kernel allocates on one thread, or for a whole team, to compute a C of ``dtype``. ``threads`` is
        the size of the team; only a kernel that ``adds`` needs less for a smaller one."""
        if self.workspace is None:
            return 0
        itemsize = itemsize_of(self.space or dtype)
        if self.blocking is not None and itemsize == 8:
            k = min(k, self.blocking.kc_of_8_bytes)
        return self.workspace(m, n, k, *([threads] if threads and self.adds else [])) * itemsize

    @property
    def device(self) -> str:
        """ "cpu" or "ref", or "my" for a user's file: the part of the name before the slash."""
        return self.name.split("/")[0]

    @property
    def is_reference(self) -> bool:
        """Whether it is a vendor's library."""
        return self.device == "ref"

    @property
    def is_rung(self) -> bool:
        """Whether its file lies in the ladder's folder: not the engine's, not a reference, not a user's own."""
        return self.path.parent == PACKAGE / "kernels" / "cpu"

    @property
    def about(self) -> dict[str, Any]:
        """What a record repeats, so that a report does not need the kernel."""
        return {"idea": self.idea, "parent": self.parent, "row": self.row, "order": self.order}


#: The first part of the name of a kernel by the folder of its file, elsewhere "my".
_DEVICES = {PACKAGE / "kernels" / "cpu": "cpu", PACKAGE / "cpu" / "kernels": "cpu", PACKAGE / "kernels" / "ref": "ref"}


def kernel(
    *,
    idea: str,
    row: str,
    parent: str | None = None,
    name: str | None = None,
    **declared: Any,
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare that the decorated function is a kernel; the other keywords are the fields of ``Kernel``.

    The name is ``<folder>/<file name without its number>`` unless ``name`` is given. Keyword-only arguments of the
    function are its parameters, with their defaults.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        path = Path(function.__code__.co_filename)
        number, stem = split_name(path.stem)
        number = declared.pop("order", number)
        tunable = dict(function.__kwdefaults__ or {})
        declared["params"] = {**declared.get("params", {}), **tunable}
        declared["tunable"] = frozenset(tunable)
        own = name or f"{_DEVICES.get(path.parent, 'my')}/{stem}"
        return Kernel(own, number, function, path, idea=idea, row=row, parent=parent, **declared)

    return declare


def split_name(stem: str) -> tuple[int, str]:
    """Split a file's name into number and name: ``"03_blocked"`` → (3, "blocked"). The number sets only the reading
    order."""
    match = re.fullmatch(r"(?:(\d+)_)?(\w+)", stem)
    if match is None:
        raise UsageError(f"kernel file {stem!r}: the name must be letters, digits and underscores")
    return int(match[1] or 1000), match[2]
