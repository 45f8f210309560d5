"""How a kernel for the CPU declares itself: it is a Python function with the ``@kernel`` decorator, alone in its file.

The decorator states what no compiler can know: the idea of the kernel in a sentence, the parent kernel that it improves
on, and the row of ``docs/sources.md`` that it implements. Runner, bench, tests, report and documents read this
declaration, so **adding a kernel means adding one file**. A user's own file with this decorator, anywhere on disk,
declares a kernel that can be used in the same ways.
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
    """The declaration of a kernel for the CPU, with its function.

    Attributes
    ----------
    name : str
        The name of the kernel, such as "cpu/ikj".
    order : int
        The kernel's position in the reading order: the number in the file name of a rung, or a number that a kernel of
        the engine declares. A plan takes the engine's kernel with the highest order whose dtype fits and whose
        ``suits(m, n, k)`` is true. If ``suits`` is true for none of the kernels, the plan takes the kernel with the
        highest order that has no ``suits``. A plan never takes a rung, because the ladder is for reading.
    function : function
        ``function(a, b, c)`` computes C = A·B for float arrays of shapes (m, k), (k, n), (m, n); it writes every
        element of C and never reads C first. A kernel with ``over`` gets a fourth argument, and a ``team`` kernel gets
        two more: see the notes.
    path : Path
        The file of the kernel.
    idea : str
        What this kernel does differently from its parent, in one sentence.
    row : str
        The row of docs/sources.md that describes the idea; "" if there is none.
    parent : str or None
        The rung that this kernel improves on.
    dtypes : tuple of str
        The dtypes that the kernel multiplies.
    sums : mapping of str to str
        For some of the kernel's dtypes, the wider dtype in which products are summed; C may have that dtype, too.
    shared : str
        How C may be cut among threads: "serial", "rows", "tiles" or "team".
    grain : tuple of two int
        The tile size at whose multiples C should be cut among threads.
    strided : bool
        Whether operands may have any strides.
    over : str or None
        The name of another kernel, with which this one multiplies; a recursion has one.
    compiled : bool
        Whether Numba compiles the function.
    fastmath : frozenset of str
        The flags with which LLVM may reorder or fuse floating-point operations.
    params : dict
        The parameters of the kernel, such as tile sizes.
    tunable : frozenset of str
        The ``params`` that can be set at each call.
    error_bound : function or None
        For an algorithm without the classical bound for each element: a function of m, n, k and the parameters. The
        function returns a factor f with max|C − Ĉ| ≤ f·u·max|A|·max|B|, or None where the classical bound holds.
    workspace : function or None
        A function of m, n, k that returns the number of elements that the kernel allocates on one thread. For a
        ``team`` kernel this function may have a fourth argument, the number of threads.
    space : str
        The dtype of the workspace, if it is not that of C.
    counters : function or None
        A function of m, n, k that returns the number of counters of a ``team`` kernel. If ``counters`` is None, there
        is one counter.
    in_place : bool
        Whether the kernel reads rows of A without packing them where their layout allows it
        (``cpu.engine.jobs.lies_well``).
    suits : function or None
        A function of m, n, k that returns whether the kernel is meant for this shape.
    for_many : tuple of str and function, or None
        The name of another kernel whose results have the same bits, and a function of m, n, k, threads and itemsize
        that returns whether to use it instead of this one.
    adds : bool
        Whether the kernel can add the product to C.
    triangle : bool
        Whether the kernel can compute one triangle of a symmetric C.
    available : bool
        False if this machine lacks the instructions that the kernel uses.
    blocking : Blocking or None
        The result of ``blocking()`` when the kernel's module was loaded. A kernel declares ``blocking`` if the blocking
        determines all of its tile and block sizes. For such a kernel ``tilewright tune`` can search for a better
        blocking.
    variants : function or None
        For a library that has several kernels for one product: a function of a dtype that returns functions ``(a, b,
        c)`` by name. The first of these functions runs the library as installed. For each shape, the bench takes the
        fastest of these functions.
    source : bytes
        The contents of the kernel's file when it was declared.

    See Also
    --------
    ladder : All kernels for the CPU by name.
    plan : Shows which kernel a product takes.

    Notes
    -----
    The fourth argument of a kernel with ``over`` is a team of threads. The team has the functions ``multiply``, which
    is the other kernel, ``add`` and ``subtract``; each is called as ``(x, y, out)``.

    A ``team`` kernel is called by all threads of a team at once, as ``function(a, b, c, space, counters)``. ``space``
    has ``workspace(m, n, k)`` elements for all threads together; it begins on a 64-byte boundary and is uninitialised.

    ``counters`` begins with ``counters(m, n, k)`` 64-bit zeros, by which the threads divide the work
    (``cpu.codegen.fetch_add``, ``cpu.codegen.wait_for``). Two more numbers follow. The first number after the counters
    holds two bits: whether to add the product to C, for a kernel that ``adds``; and whether C is known to be symmetric,
    for a kernel that computes a ``triangle`` (``cpu.engine.triangle``). The second number after the counters is the
    number of threads that were asked to work.

    The kernel must be right with any number of threads, in whatever order they begin. A thread that other threads wait
    for must not allocate: if the allocation failed, the others would wait forever. Ctrl-C may set all counters to 2^40
    at any moment. After Ctrl-C every thread must return soon, and access only its operands and ``space``.
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
        """Return the bytes that the kernel allocates to compute a C of ``dtype``, on one thread or for a whole team.

        ``threads`` is the size of the team. The size of the team changes the result only for a kernel that ``adds``."""
        if self.workspace is None:
            return 0
        itemsize = itemsize_of(self.space or dtype)
        if self.blocking is not None and itemsize == 8:
            k = min(k, self.blocking.kc_of_8_bytes)
        return self.workspace(m, n, k, *([threads] if threads and self.adds else [])) * itemsize

    @property
    def device(self) -> str:
        """The part of the kernel's name before the slash: "cpu", "ref" for a reference, or "my" for a kernel in a
        user's file."""
        return self.name.split("/")[0]

    @property
    def is_reference(self) -> bool:
        """Whether this kernel is a vendor's library."""
        return self.device == "ref"

    @property
    def is_rung(self) -> bool:
        """Whether the kernel's file is in the folder of the ladder. Kernels of the engine, references and users'
        kernels are not rungs."""
        return self.path.parent == PACKAGE / "kernels" / "cpu"

    @property
    def about(self) -> dict[str, Any]:
        """The facts about the kernel that a record repeats, so that a report does not need the kernel."""
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

    The kernel's name is ``<folder>/<file name without its number>`` unless ``name`` is given. Keyword-only arguments of
    the function are its parameters, with their defaults.
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
    """Split a file's name into number and name: ``"03_blocked"`` → (3, "blocked"). The number sets only the position of
    the kernel in the reading order."""
    match = re.fullmatch(r"(?:(\d+)_)?(\w+)", stem)
    if match is None:
        raise UsageError(f"kernel file {stem!r}: the name must be letters, digits and underscores")
    return int(match[1] or 1000), match[2]
