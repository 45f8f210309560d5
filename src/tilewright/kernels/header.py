"""CUDA kernels describe themselves. The first block comment of a ``.cu`` file is a header in TOML, and states what no
compiler can know.

    /*
    idea = "What it does differently, in a sentence."
    parent = "cuda/coalesced"                       # the rung below; none for a first one
    row = "S0.5"                                    # the row of docs/sources.md that it implements
    block = ["TILE", "TILE"]                        # threads along x, y, z
    grid = ["cdiv(n, TILE)", "cdiv(m, TILE)"]       # blocks along x, y, z
    shared = "2 * TILE * TILE * 4"                  # bytes of dynamic shared memory at launch; default 0
    entry = "my_kernel"                             # its function; default: the only one, or the one named as the file
    dtypes = ["float32"]                            # of the operands; this is the default
    capability = "7.5"                              # least compute capability; "9.0a" if only that one can run it
    constraints = ["TILE * TILE <= 1024"]           # true for every allowed combination of parameters
    stores = ["float32"]                            # further dtypes of C that an engine's kernel can store, except
                                                    # for operands of float64
    precision = "tf32"                              # the format to which operands are rounded; default: "standard", none
    spills = ["sm_80"]                              # architectures on which the compiler must spill registers
    adds = true                                     # compiled with ACCUMULATE it adds to C (see prelude.cuh); default false
    notes = ["Anything else worth knowing."]
    suits = "n >= 8"                                # the sizes for which it is preferred to earlier kernels; for an
                                                    # engine's kernel (with batch as a further name), those for which
                                                    # it is considered
    tile = ["TILE", "TILE"]                         # width and height of the part of C that a block computes
    invariant = "SPLIT == 1"                        # parameters with which the bits of an element of C depend only on its
                                                    # row of A and its column of B, in any product
    triangle = ["BM", "BN", "1"]                    # rows, columns and blocks of a tile, if only the lower triangle of a
                                                    # symmetric C is computed; rows must be a multiple of columns

    persistent = true                               # each block computes one part of C after another; default false

    [boxes]                                         # operands come as tensor maps: the rows and columns of the box of a copy
    a = ["BM", "LINE"]                              # for an A whose rows are contiguous
    a_down = ["LINE", "64"]                         # for an A whose columns are contiguous; without this key A is copied
                                                    # first. LINE is the number of elements in 128 bytes; m is known, too

    [strides]                                       # operands come as pointers and strides; what it reads uncopied:
    a = "either"                                    # "any" strides, or contiguous "rows", "columns" or "either" of them;
    b = "rows"                                      # lists = "either" if it takes lists (see gpu/kernels/lists.cuh);
    c = "rows"                                      # padded = … if it is faster when it may read whole vectors

    step = "BK"                                     # k may be divided into parts of a multiple of these elements
    costs = ["rate"]                                # names of fitted constants in its times; tables have their values
    unfitted = ["launch_s"]                         # further constants, which a fit does not change
    [time]                                          # predicted seconds of a launch: expressions of real numbers over
    tiles = "cdiv(blocks, sms) * part / rate"       # those above it, costs, parameters, LINE and ``cuda_kernel.TIMED``
    seconds = "launch_s + tiles"                    # the last one is the time

    [formulas]                                      # counts by hand, for whole blocks; explain compares its counts with them
    global_load_sectors = "m * n // 32 * k * 5"

    [given]                                         # macros for sizes that need less code. Each is defined only if
    C_ALIGNED = "n % 4 == 0"                        # addresses are multiples of 16 bytes, too

    [[presets]]                                     # parameters for sizes at which the defaults leave multiprocessors idle
    rate = 80                                       # their speed at large sizes, in percent of the defaults'; needs ``tile``
    when = "m * n < 65536"                          # the sizes for which matmul may use them; default: all sizes
    params = { TILE = 16 }

    [params]                                        # each becomes a macro of the source
    TILE = { default = 32, values = [8, 16, 32] }   # or { default = 32, min = 8, max = 64, step = 8 }
    */

A header needs only ``idea``, ``block`` and ``grid``. ``block``, ``grid``, ``shared``, ``tile``, the formulas and
``when`` are arithmetic over m, n, k and the parameters (see ``expression``); ``suits`` is over m, n and k only. If
``params`` of a preset, or one of the values in it, is a list, the table describes one preset for each entry. The name
of a formula states what the formula counts. Such a name joins ``global`` or ``shared``, ``load`` or ``store``, and
``requests`` or ``sectors`` (for shared memory ``requests`` or ``wavefronts``). A macro of ``given`` is defined if its
condition holds. A kernel that is compiled without such a macro must be right for every size and address. Lines that
begin with ``//`` or ``#`` may precede the comment.

The kernel's function takes ``(const T* a, const T* b, T* c, int m, int n, int k)``, with row-major matrices, and sets
C[m×n] = A[m×k]·B[k×n] for any m, n, k ≥ 0. If the header says ``adds``, the function computes C += A·B when it is
compiled with ACCUMULATE; with k = 0 it then leaves C unchanged.

An operand listed in ``boxes`` is passed as a tensor map, ``const __grid_constant__ TensorMap a`` (see ``hopper.cuh``),
instead of a pointer. The tensor map has three dimensions, of which the third counts matrices. The tensor map uses
swizzles of 128 bytes, and reads zeros beyond the edges. Rows of the operand must be a multiple of 16 bytes long, and
not empty; matrices of other shapes are refused. A ``persistent`` kernel gets at most one block for each multiprocessor,
or PER_SM blocks if it has this parameter. The blocks form whole clusters; a cluster has CLUSTER · BESIDE · SPLIT · NEAR
blocks, and these four factors are parameters, too. The engine's kernels with ``boxes`` or ``strides`` take further
arguments, which ``gpu.runtime.engine_product`` describes.

Expressions for times may use the following names. ``part`` is the number of elements of k in each of the ``parts`` of
k. ``size`` and ``out_size`` are the bytes of an element that is read and of one that is stored. ``blocks`` is the
number of blocks of the launch. ``sms``, ``memory_ratio`` and ``int8_rate`` are facts of the GPU (``Card``,
``UnitRates``).

Rows of A and B begin at multiples of ``a_start`` and ``b_start`` bytes, which are 128 at most; ``lines`` is 1 if both
numbers are 128. ``a_down`` and ``c_down`` are 1 if the elements of a column of A or C are neighbours in memory, and
``b_across`` is 1 if the elements of a row of B are neighbours. ``a_vector`` and ``b_vector`` are the most bytes that
one access to A or B can have.

``finished`` is 1 if the kernel applies an epilogue. ``finishes`` is an entry of the header: the bytes of shared memory
that the epilogue needs for each vector. ``scaled`` is 1 if the operands are scaled in blocks.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import HeaderError, UsageError, did_you_mean
from ..host.sources import PACKAGE
from .cuda_kernel import LINE, TIMED, CudaKernel, Preset
from .expression import MACRO, RESERVED, Expression, WrongHeaderError, parameter_of

#: A header for a kernel with blocks of 32 × 32 threads, each of which computes one element of C.
TEMPLATE = """\
/*
idea = "what it does differently"
block = [32, 32]
grid = ["cdiv(n, 32)", "cdiv(m, 32)"]
*/
"""
_EXAMPLE = (
    "the file must begin with a comment that says how the kernel is launched (of a product; for any other, explain takes "
    f"--grid, --block and --arg), such as:\n\n{TEMPLATE}"
)

#: What may precede the header: lines of ``//`` and of the preprocessor.
_ABOVE = r"(?:\s|//[^\n]*+|#[^\n]*+)*+"
_HEADER = _ABOVE + r"/\*(.*?)\*/"
_ENGINE = PACKAGE / "gpu" / "kernels"
_COMMENTS = r"//[^\n]*|/\*.*?\*/"
#: The name of a function after ``__global__``, its type, and attributes such as ``__launch_bounds__(256)``.
_FUNCTION = r"\b__global__\b(?:[^;{}()]*?\b__\w+__\s*\((?:[^()]|\([^()]*\))*\))*[^;{}()]*?\b(\w+)\s*\("


def read_kernel(path: Path, *, name: str, order: int, entry: str) -> CudaKernel:
    """Read the kernel in the file ``path``. ``entry`` names the kernel's function if the header does not name it and
    the file has several functions.

    Raises HeaderError, which names the file, the key and the rule, if the header is missing or wrong.
    """
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"kernel file {path}: cannot be read as text: {error}") from None
    try:
        header = _Header(_toml(source))
        function = header.toml.get("entry") or _only_function(source) or entry
        kernel = header.kernel(name=name, order=order, path=path, source=source, entry=function)
        if path.parent != _ENGINE:  # whose headers a test checks: the first product of a process waits for them
            check_launches(kernel)
        return kernel
    except WrongHeaderError as error:
        raise HeaderError(f"kernel file {path}: {error}") from None


def check_launches(kernel: CudaKernel) -> None:
    """Raise WrongHeaderError if the defaults of a kernel, or one of its presets, cannot be launched."""
    for what, params in (
        ("its own defaults are", {}),
        *((f"presets[{i}] is", preset.params) for i, preset in enumerate(kernel.presets)),
    ):
        try:
            kernel.launch(1, 1, 1, **params)
        except UsageError as error:
            raise WrongHeaderError(f"{what} refused: {error}") from None


def code_of(source: str) -> str:
    """Return a source without its header, because the compiler does not need the header.

    >>> code_of("/* idea = 'x' */ int x;")
    ' int x;'
    """
    match = re.match(_HEADER, source, re.DOTALL)
    return source if match is None else source[match.end() :]


def _only_function(source: str) -> str | None:
    """The kernel that a source defines; None if it defines several, or none outside of macros."""
    found = set(re.findall(_FUNCTION, re.sub(_COMMENTS, " ", source, flags=re.DOTALL)))
    return found.pop() if len(found) == 1 else None


def _toml(source: str) -> dict[str, Any]:
    match = re.match(_HEADER, source, re.DOTALL)
    if match is None:
        raise WrongHeaderError(f"has no header: {_EXAMPLE}")
    import tomllib  # only needed for kernels on a GPU

    above = "\n" * source.count("\n", 0, match.start(1))  # so that TOML's errors name the lines of the file
    try:
        return tomllib.loads(above + match[1].replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:  # TOML's own error is a ValueError, as is that of a number too long
        raise WrongHeaderError(f"its first block comment is not TOML: {error}; {_EXAMPLE}") from None


#: Optional keys that are expressions over the parameters alone.
_OF_PARAMETERS = ("finishes", "blocks", "invariant")
_KEYS = (
    "idea",
    "parent",
    "row",
    "entry",
    "block",
    "grid",
    "shared",
    "dtypes",
    "capability",
    "constraints",
    "notes",
    "tile",
    "precision",
    "spills",
    "adds",
    "suits",
    "presets",
    "persistent",
    "stores",
    "boxes",
    "strides",
    "step",
    "costs",
    "unfitted",
    "time",
    "formulas",
    "given",
    "triangle",
    *_OF_PARAMETERS,
    "params",
)
_STRIDES = ("any", "either", "rows", "columns")
_FORMULA = r"global_(load|store)_(requests|sectors)|shared_(load|store)_(requests|wavefronts)"


class _Header:
    """The tables of a header, which this class reads key by key; every rule for headers is here."""

    def __init__(self, toml: dict[str, Any]) -> None:
        self.toml = toml
        for key in toml:
            if key not in _KEYS:
                raise WrongHeaderError(f"{key} is not a key of a header: {did_you_mean(key, _KEYS)}")
        for key in ("idea", "block", "grid"):
            if key not in toml:
                raise WrongHeaderError(f"{key} is missing: {_EXAMPLE}")

    def kernel(self, *, entry: str, **known: Any) -> CudaKernel:
        parameters = tuple(parameter_of(name, table) for name, table in self._table("params").items())
        names = [p.name for p in parameters]
        sizes = ["m", "n", "k", *names]
        optional: Any = {k: self._expression(k, self.toml[k], names) for k in _OF_PARAMETERS if k in self.toml}
        return CudaKernel(
            **known,
            entry=self._string("entry", entry, r"[A-Za-z_][\w:]*(<[\w:, ]+>)?", "the name of a function"),
            idea=self._string("idea", "", r"(?s).*\S.*", "a sentence"),
            row=self._string("row", ""),
            parent=self._string("parent", "", r"\w+/\w+", "a kernel's name, such as cuda/coalesced") or None,
            dtypes=self._strings("dtypes", ("float32",)),
            capability=self._string(
                "capability", "5.0", r"\d+\.\d[af]?", 'a compute capability, such as "7.5" or "9.0a"'
            ),
            block=self._dimensions("block", sizes),
            grid=self._dimensions("grid", sizes),
            shared=self._expression("shared", self.toml.get("shared", 0), sizes),
            parameters=parameters,
            constraints=tuple(
                self._expression(f"constraints[{i}]", text, names)
                for i, text in enumerate(self._strings("constraints"))
            ),
            notes=self._strings("notes"),
            tile=self._tile(sizes),
            precision=self._string("precision", "standard", r"\w+", 'a precision, such as "tf32"'),
            spills=self._strings("spills"),
            adds=self._truth("adds"),
            suits=self._suits(),
            presets=self._presets([*sizes, *(["size", "triangle"] if "time" in self.toml else [])]),
            formulas={name: self._formula(name, text, sizes) for name, text in self._table("formulas").items()},
            boxes={name: self._box(name, sides, [*names, LINE, "m"]) for name, sides in self._table("boxes").items()},
            strides=self._strides(),
            persistent=self._truth("persistent"),
            stores=self._strings("stores"),
            step=self._expression("step", self.toml["step"], [*names, LINE]) if "step" in self.toml else None,
            costs=self._costs(names),
            unfitted=self._strings("unfitted"),
            time=self._time(names),
            triangle=self._triangle(sizes),
            given={name: self._given(name, text, sizes) for name, text in self._table("given").items()},
            **optional,
        )

    def _triangle(self, names: list[str]) -> Expression | None:
        """The blocks of a launch that computes a triangle, 0 where it cannot: for all rows of tiles above the last the
        tiles left of the diagonal, and those on it."""
        if "triangle" not in self.toml:
            return None
        sides = self._dimensions("triangle", names)
        if len(sides) != 3:
            raise WrongHeaderError("triangle must have the rows and columns of a tile and its blocks")
        rows, columns, blocks = (f"({side.text})" for side in sides)
        left = f"{rows} // {columns} * (cdiv(m, {rows}) * (cdiv(m, {rows}) - 1) // 2)"
        text = f"({rows} % {columns} == 0) * {blocks} * ({left} + cdiv(m, {columns}))"
        return self._expression("triangle", text, names)

    def _suits(self) -> Expression | None:
        engine = {"boxes", "strides"} & set(self.toml)
        names = ["m", "n", "k", *(["batch"] if engine else [])]
        return self._expression("suits", self.toml["suits"], names) if "suits" in self.toml else None

    def _strides(self) -> dict[str, str]:
        table = self._table("strides")
        if table and (set(table) - {"lists", "padded"} != set("abc") or not set(table.values()) <= set(_STRIDES)):
            raise WrongHeaderError(f"strides must have a, b and c, each one of {', '.join(_STRIDES)}, got {table!r}")
        return table

    def _costs(self, params: list[str]) -> tuple[str, ...]:
        costs = (*self._strings("costs"), *self._strings("unfitted"))
        for name in costs:
            if not re.fullmatch(r"[a-z_]+", name) or name in (*TIMED, *RESERVED, *params) or keyword.iskeyword(name):
                raise WrongHeaderError(f"costs: {name} must be a word of small letters that has no other meaning")
        return costs

    def _time(self, params: list[str]) -> dict[str, Expression]:
        known: dict[str, Expression] = {}
        costs = self._costs(params)
        for name, text in self._table("time").items():
            if not re.fullmatch(r"[a-z_]+", name) or name in (*TIMED, *RESERVED, *costs) or keyword.iskeyword(name):
                raise WrongHeaderError(f"time.{name}: must be a word of small letters that has no other meaning")
            known[name] = self._expression(f"time.{name}", text, [*TIMED, LINE, *params, *costs, *known], real=True)
        if known and list(known)[-1] != "seconds":
            raise WrongHeaderError(f"time: the last of its expressions must be seconds, got {list(known)[-1]}")
        return known

    def _presets(self, names: list[str]) -> tuple[Preset, ...]:
        given: Any = self.toml.get("presets", [])
        if not isinstance(given, list):
            raise WrongHeaderError(f"presets must be tables [[presets]], got {given!r}")

        def expression(key: str, text: Any) -> Expression:
            return self._expression(key, text, names)

        found = [each for i, table in enumerate(given) for each in presets_of(f"presets[{i}]", table, expression)]
        if found and "tile" not in self.toml:
            raise WrongHeaderError("tile is missing, by which presets are compared")
        return tuple(found)

    def _tile(self, names: list[str]) -> tuple[Expression, ...]:
        if "tile" not in self.toml:
            return ()
        tile = self._dimensions("tile", names)
        if len(tile) != 2:
            raise WrongHeaderError(f"tile must be two expressions, for width and height, got {self.toml['tile']!r}")
        return tile

    def _formula(self, name: str, text: Any, names: list[str]) -> Expression:
        if not re.fullmatch(_FORMULA, name):
            raise WrongHeaderError(f"formulas.{name}: must be named after what it counts, such as global_load_sectors")
        return self._expression(f"formulas.{name}", text, names)

    def _box(self, name: str, sides: Any, names: list[str]) -> tuple[Expression, Expression]:
        if not re.fullmatch(r"[abc](_down)?", name) or not isinstance(sides, list) or len(sides) != 2:
            raise WrongHeaderError(
                f"boxes.{name} must be a, b or c, or these with _down, and two expressions, got {sides!r}"
            )
        rows, columns = (self._expression(f"boxes.{name}[{i}]", text, names) for i, text in enumerate(sides))
        return rows, columns

    def _given(self, name: str, text: Any, names: list[str]) -> Expression:
        if not re.fullmatch(MACRO, name) or name in names:
            raise WrongHeaderError(f"given.{name}: must be a macro in capitals that is no parameter, such as C_ALIGNED")
        return self._expression(f"given.{name}", text, names)

    def _string(self, key: str, default: str, pattern: str = "", rule: str = "text") -> str:
        value = self.toml.get(key, default)
        if not isinstance(value, str) or (key in self.toml and pattern and not re.fullmatch(pattern, value, re.ASCII)):
            raise WrongHeaderError(f"{key} must be {rule}, got {value!r}")
        return value

    def _strings(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self.toml.get(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or (default and not value):
            raise WrongHeaderError(f"{key} must be a list of text, got {value!r}")
        return tuple(value)

    def _truth(self, key: str) -> bool:
        value = self.toml.get(key, False)
        if type(value) is not bool:
            raise WrongHeaderError(f"{key} must be true or false, got {value!r}")
        return value

    def _table(self, key: str) -> dict[str, Any]:
        value = self.toml.get(key, {})
        if not isinstance(value, dict):
            raise WrongHeaderError(f"{key} must be a table [{key}], got {value!r}")
        return value

    def _dimensions(self, key: str, names: list[str]) -> tuple[Expression, ...]:
        value = self.toml[key]
        if not isinstance(value, list) or not 1 <= len(value) <= 3:
            raise WrongHeaderError(f"{key} must be a list of one to three expressions, for x, y and z, got {value!r}")
        return tuple(self._expression(f"{key}[{i}]", text, names) for i, text in enumerate(value))

    def _expression(self, key: str, text: Any, names: list[str], *, real: bool = False) -> Expression:
        if type(text) not in ((str, int, float) if real else (str, int)):
            raise WrongHeaderError(f"{key} must be an expression or a whole number, got {text!r}")
        try:
            return Expression.parse(text, names, real=real)
        except UsageError as error:
            raise WrongHeaderError(f"{key}: {error}") from None


# ---- presets ---------------------------------------------------------------------------------------------------------
# Presets of CUDA kernels, as their headers declare them.


def presets_of(key: str, table: Any, expression: Callable[[str, Any], Expression]) -> Iterator[Preset]:
    """Read the presets that one table of a header describes: one for each combination of the lists in ``params``.
    ``params`` may itself be a list of tables. The function ``expression(key, text)`` checks and parses a condition.
    Raises WrongHeaderError if the table is wrong."""
    known = isinstance(table, dict) and {"rate", "params"} <= set(table) <= {"rate", "when", "params"}
    sets = _listed(table["params"]) if known else []
    if (
        not sets
        or any(not isinstance(each, dict) for each in sets)
        or type(table["rate"]) is not int
        or table["rate"] < 1
    ):
        raise WrongHeaderError(f"{key} must have rate, from 1, and params, got {table!r}")
    when = expression(f"{key}.when", table.get("when", 1))
    for params in sets:
        for values in itertools.product(*map(_listed, params.values())):
            yield Preset(table["rate"], when, dict(zip(params, values, strict=True)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
