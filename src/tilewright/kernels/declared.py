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
        The place in the reading order: the number of a rung's file, or what a kernel of the engine declares. Among the
        engine's kernels for a dtype, a plan takes the one of the highest order whose ``suits(m, n, k)`` is true; if
        there is none, the one of the highest order without ``suits``. It never takes a rung, because the ladder is for
        reading.
    function : function
        ``function(a, b, c)`` computes C = A·B for float arrays of shapes (m, k), (k, n), (m, n); it writes every
        element of C and never reads C first. A kernel that has ``over`` gets a fourth argument, and a ``team`` kernel
        gets further ones: see the notes.
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
        For some of these dtypes, the wider dtype in which products are summed. C may have that dtype, too.
    shared : str
        How the work may be divided among threads: "serial" (not at all), "rows" or "tiles" of C, or "team" (the kernel
        divides it).
    grain : tuple of two int
        Rows and columns of the tile at whose multiples C should be divided among threads.
    strided : bool
        Whether operands may have any strides.
    over : str or None
        The name of the kernel that computes the products of this one. A recursion such as Strassen's has one.
    compiled : bool
        Whether Numba compiles the function.
    fastmath : frozenset of str
        LLVM's fast-math flags: the changes to floating-point arithmetic that the compiler may make.
    params : dict
        Its numerical parameters, such as tile sizes or the leaf of a recursion.
    tunable : frozenset of str
        The names of the ``params`` that can be set at each call.
    error_bound : function or None
        For algorithms without the classical componentwise error bound. It takes m, n, k and the parameters, and returns
        a factor f with max|C − Ĉ| ≤ f·u·max|A|·max|B|, or None if the classical bound holds.
    workspace : function or None
        It takes m, n, k and returns the number of elements that the kernel allocates on one thread. For a ``team``
        kernel it takes the number of threads as an optional fourth argument.
    space : str
        The dtype of the workspace, if it is not that of C.
    counters : function or None
        It takes m, n, k and returns the number of counters of a ``team`` kernel. Without it the kernel has one counter.
    in_place : bool
        Whether it reads rows of A without packing them if their strides allow that (``cpu.engine.jobs.lies_well``).
    suits : function or None
        Whether the kernel is meant for m, n, k.
    for_many : tuple of str and function, or None
        The name of another kernel that computes the same bits, and a function of m, n, k, threads and itemsize that
        says whether it is used instead of this one.
    adds : bool
        Whether it can add the product to C.
    triangle : bool
        Whether it can compute one triangle of a symmetric C.
    available : bool
        False if this machine lacks instructions that the kernel needs.
    blocking : Blocking or None
        The result of ``blocking()`` when the kernel's module was loaded. A kernel declares it if its tile and blocks
        depend on nothing else; then ``tilewright tune`` can search for a better blocking.
    variants : function or None
        For a library that has several kernels for the same product. It takes a dtype and returns functions ``(a, b,
        c)`` by name; the first calls the library as it is installed. The bench takes the fastest of them for each
        shape.
    source : bytes
        The kernel's file at the time of the declaration.

    If a kernel has ``over``, its fourth argument is a team of threads with three functions: ``multiply``, which runs
    the kernel named by ``over``, ``add`` and ``subtract``. Each takes ``(x, y, out)``.

    All threads of a team call a ``team`` kernel at the same time, as ``function(a, b, c, space, counters)``. ``space``
    is one workspace for all threads together: ``workspace(m, n, k)`` uninitialised elements that begin on a 64-byte
    boundary. ``counters`` begins with ``counters(m, n, k)`` 64-bit zeros, by which the threads divide the work
    (``cpu.codegen.fetch_add``, ``cpu.codegen.wait_for``). Two more numbers follow. The first has two bits: whether to
    add the product to C, for a kernel that ``adds``; and whether C is known to be symmetric, for a kernel that then
    computes only a ``triangle`` of it (``cpu.engine.triangle``). The second is the number of threads that were asked to
    work. The kernel must compute the right result with any number of threads, in whatever order they begin. A thread
    for which others wait must not allocate memory: if the allocation failed, the others would wait forever. Ctrl-C sets
    all counters to 2^40, at any moment. Then every thread must return soon, and must access only its operands and
    ``space`` until it does.
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
        """The bytes of workspace that the kernel allocates, on one thread or for a whole team, to compute a C of
        ``dtype``. ``threads`` is the size of the team; it matters only for a kernel that ``adds``, which needs less for
        a smaller team."""
        if self.workspace is None:
            return 0
        itemsize = itemsize_of(self.space or dtype)
        if self.blocking is not None and itemsize == 8:
            k = min(k, self.blocking.kc_of_8_bytes)
        return self.workspace(m, n, k, *([threads] if threads and self.adds else [])) * itemsize

    @property
    def device(self) -> str:
        """The part of the name before the slash: "cpu" or "ref" for the package's kernels, "my" for a user's file."""
        return self.name.split("/")[0]

    @property
    def is_reference(self) -> bool:
        """Whether it calls a vendor's library."""
        return self.device == "ref"

    @property
    def is_rung(self) -> bool:
        """Whether its file lies in the ladder's folder. The engine's kernels, references and users' kernels are not
        rungs."""
        return self.path.parent == PACKAGE / "kernels" / "cpu"

    @property
    def about(self) -> dict[str, Any]:
        """What a record stores about the kernel, so that a report can be made without it."""
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
