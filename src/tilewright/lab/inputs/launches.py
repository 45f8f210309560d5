"""The options with which any CUDA kernel is launched. The options can be given on the command line, in the kernel's
file, or in a Python file.

The options are the same in all three places. An array is given as ``NAME:DTYPE:SHAPE``. A further colon and the
contents of the array may follow. The contents are ``random`` (the default: numbers from -1 to 1, for integers 0 to 9),
``zeros``, ``ones``, ``arange``, or a NumPy expression, which can name the arrays given before. ``NAME:FILE.npy`` is an
array from a file, ``n=100`` or ``100`` is a number, and ``none`` is a null pointer. For example, in the kernel's file::

    // explain scale: --grid 8 --block 128 --arg x:float32:1024 --arg y:float32:1024:zeros --arg n=1024 --expect "y = 2 * x"

A Python file sets ``grid``, ``block``, ``args``, ``expect``, ``shared`` and ``constants``. Alternatively, a Python file
has a dictionary of these options for each kernel, which is named after the kernel. In a Python file ``args`` may hold
NumPy arrays, and ``expect`` may be a function of the arguments.
"""

from __future__ import annotations

import argparse
import keyword
import math
import re
import runpy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError

#: Dtypes that NumPy has only with ``ml_dtypes``.
_OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class LaunchOptions:
    """How a kernel is launched: blocks and threads along x, y, z; arguments and constants, as text or values; bytes of
    dynamic shared memory; and what the result must be, as expressions or as a function of the arguments.

    A field that is None or empty was not given.
    """

    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    args: Sequence[Any] | Mapping[str, Any] = ()
    expect: Sequence[Any] = ()
    shared: int | None = None
    constants: Sequence[str] | Mapping[str, Any] = ()

    def over(self, other: LaunchOptions) -> LaunchOptions:
        """Return these options, with the fields that were not given taken from ``other``."""
        given = {name: value for name, value in vars(self).items() if value is not None and value not in ((), [], {})}
        return replace(other, **given)


def extent_of(option: str, text: str) -> tuple[int, ...]:
    """Parse the sizes of a grid or a block along x, y and z.

    >>> extent_of("grid", "8"), extent_of("block", "32x4")
    ((8,), (32, 4))
    """
    if not re.fullmatch(r"\d+(?:[x,]\d+){0,2}", text):
        raise UsageError(f"{option}: must be one to three sizes, such as 8 or 16x16, got {text!r}")
    return tuple(map(int, re.split("[x,]", text)))


# ---- where options stand ---------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message)


def options_in(source: str, kernel: str | None) -> LaunchOptions:
    """The options in the comments ``// explain NAME: …`` of a source. A comment without a name is for every kernel in
    the source."""
    found = LaunchOptions()
    for name, text in re.findall(
        r"^[ \t]*(?://|#|\*)[ \t]*explain(?:[ \t]+([^\s:]\S*?))?:[ \t]*(--.*)$", source, re.MULTILINE
    ):
        if not name or kernel is None or name == kernel:
            try:
                found = options_of(shlex.split(text)).over(found)
            except (UsageError, ValueError) as error:
                raise UsageError(f"the comment 'explain {name}': {error}") from None
    return found


def options_of(words: Sequence[str]) -> LaunchOptions:
    """Parse options that are given as the words of a command line. Raises UsageError for an unknown option."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in ("--grid", "--block", "--shared"):
        parser.add_argument(name)
    for name in ("--arg", "--expect", "--constant"):
        parser.add_argument(name, action="append", default=[])
    given = parser.parse_args(words)
    return launch_options(given.grid, given.block, given.arg, given.expect, given.shared, given.constant)


def launch_options(
    grid: str | None,
    block: str | None,
    args: Sequence[str],
    expect: Sequence[str],
    shared: str | int | None,
    constants: Sequence[str],
) -> LaunchOptions:
    """Make the options of a launch from their texts."""
    if shared is not None and not re.fullmatch(r"\d+", str(shared)):
        raise UsageError(f"shared: must be a number of bytes, got {shared!r}")
    return LaunchOptions(
        None if grid is None else extent_of("grid", grid),
        None if block is None else extent_of("block", block),
        tuple(args),
        tuple(expect),
        None if shared is None else int(shared),
        tuple(constants),
    )


_NAMES = ("grid", "block", "args", "expect", "shared", "constants")


def options_of_file(path: Path, kernel: str | None) -> LaunchOptions:
    """The options that a Python file sets. Raises UsageError if the file fails, or sets no options."""
    if not path.is_file():
        raise UsageError(f"launch: there is no file {path}")
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise UsageError(f"launch: {path} fails: {type(error).__name__}: {error}") from None
    own = names.get((kernel or "").partition("<")[0].rpartition("::")[2])
    values = own if isinstance(own, dict) else names
    found = {name: values[name] for name in _NAMES if name in values}
    if not found:
        raise UsageError(f"launch: {path} sets none of {', '.join(_NAMES)}")
    for name in ("grid", "block"):
        if name in found:
            found[name] = tuple(found[name]) if isinstance(found[name], Sequence) else (found[name],)
    if "expect" in found and (callable(found["expect"]) or isinstance(found["expect"], str)):
        found["expect"] = (found["expect"],)
    return LaunchOptions(**found)


# ---- arguments -------------------------------------------------------------------------------------------------------


@dataclass
class Arguments:
    """The arguments of a launch in order, and their names; the name of an argument without one is its position."""

    values: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays among the arguments, by name."""
        return {n: v for n, v in zip(self.names, self.values, strict=True) if isinstance(v, np.ndarray)}


def arguments_of(given: Sequence[Any] | Mapping[str, Any], seed: int) -> Arguments:
    """The values of arguments that were given as text; other values are returned unchanged.

    Raises UsageError for a text that describes no value.

    >>> made = arguments_of(["x:float32:2x3:ones", "n=6", "0.5", "idx:int32:4:arange(4)[::-1]"], seed=1)
    >>> made.names, made.values[0].shape, made.values[1:3], made.values[3].tolist()
    (['x', 'n', '2', 'idx'], (2, 3), [6, 0.5], [3, 2, 1, 0])
    """
    found, random = Arguments(), np.random.default_rng(seed)
    pairs = list(given.items()) if isinstance(given, Mapping) else [(str(i), each) for i, each in enumerate(given)]
    for name, value in pairs:
        own, made = _argument(value, found, random) if isinstance(value, str) else ("", value)
        found.names.append(own or name)
        found.values.append(made)
    return found


def _argument(text: str, known: Arguments, random: np.random.Generator) -> tuple[str, Any]:
    """The name, empty if it has none, and the value of an argument."""
    name, colon, rest = text.partition(":")
    if not colon:
        name, equals, number = text.rpartition("=")
        return name if equals else "", _number(text, number)
    if rest.endswith(".npy"):
        try:
            return name, np.load(rest)
        except (OSError, ValueError) as error:
            raise UsageError(f"arg {text}: {error}") from None
    dtype, _, rest = rest.partition(":")
    shape, _, content = rest.partition(":")
    if not re.fullmatch(r"\w+", name) or not re.fullmatch(r"\d+(?:x\d+)*", shape):
        raise UsageError(
            f"arg: {text!r} is not an argument: give NAME:DTYPE:SHAPE, such as x:float32:64x32, with :zeros, :arange or an "
            "expression after it; NAME:FILE.npy; or NAME=NUMBER"
        )
    return name, _array(text, _dtype(dtype), tuple(map(int, shape.split("x"))), content or "random", known, random)


def _number(text: str, number: str) -> Any:
    if number.lower() in ("none", "null", "nullptr"):
        return None
    for kind in (lambda word: int(word, 0), float):
        try:
            return kind(number)
        except ValueError:
            continue
    raise UsageError(
        f"arg: {text!r} is not an argument: give NAME=NUMBER, or for an array NAME:DTYPE:SHAPE, such as x:float32:1024"
    )


def _dtype(name: str) -> np.dtype[Any]:
    try:
        if name in _OF_ML_DTYPES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, name))
        return np.dtype({"half": "float16", "float": "float32", "double": "float64", "int": "int32"}.get(name, name))
    except ImportError:
        raise UsageError(f"arg: {name} needs ml_dtypes; pip install ml_dtypes") from None
    except TypeError:
        raise UsageError(f"arg: {name!r} is not a dtype: give one such as float32, float16, int32, uint8") from None


def _array(
    text: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    content: str,
    known: Arguments,
    random: np.random.Generator,
) -> np.ndarray:
    if content == "random":
        values = random.integers(0, 10, shape) if dtype.kind in "iu" else random.uniform(-1, 1, shape)
        return values.astype(dtype)
    if content in ("zeros", "ones"):
        return np.full(shape, content == "ones", dtype)
    if content == "arange":
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    value = np.asarray(evaluated(f"arg {text}", content, named_values(known)))
    try:
        return np.broadcast_to(value, shape).astype(dtype) if value.size == 1 else value.reshape(shape).astype(dtype)
    except ValueError:
        raise UsageError(f"arg {text}: {content} has the shape {value.shape}, not {shape}") from None


def named_values(arguments: Arguments) -> dict[str, Any]:
    """The arguments that have names, by name."""
    return {n: v for n, v in zip(arguments.names, arguments.values, strict=True) if n.isidentifier()}


def evaluated(where: str, expression: str, names: Mapping[str, Any]) -> Any:
    """Evaluate a NumPy expression, in which ``names`` may occur. Raises UsageError if the evaluation fails."""
    # Python's own words may be names of arguments, such as in.
    words = [name for name in names if keyword.iskeyword(name)]
    if words:
        expression = re.sub(rf"\b({'|'.join(words)})\b", r"\1_", expression)
    known = {f"{name}_" if name in words else name: value for name, value in names.items()}
    try:
        with np.errstate(all="ignore"):
            return eval(expression, {**vars(np), "np": np, "__builtins__": {}}, known)
    except Exception as error:
        raise UsageError(f"{where}: {expression} fails: {type(error).__name__}: {error}") from None


# ---- what the result must be -----------------------------------------------------------------------------------------


def expected_arrays(
    expect: Sequence[str | Callable[..., Any]], arguments: Arguments, changed: Sequence[str]
) -> dict[str, np.ndarray]:
    """What arrays must contain after the launch, by name. ``changed`` names the arrays that the kernel wrote.

    An expression is computed in float64. A function gets copies of the arguments, and returns an array or a dictionary
    of arrays, or writes into the copies and returns None.
    """
    found: dict[str, np.ndarray] = {}
    for each in expect:
        if callable(each):
            found |= _by_function(each, arguments, changed)
            continue
        module = re.fullmatch(r"(\S+\.py):(\w+)", each)
        if module:
            found |= _by_function(_function(Path(module[1]), module[2]), arguments, changed)
            continue
        named = re.match(r"\s*(\w+)\s*=(?!=)\s*(.*)", each, re.DOTALL)
        name, expression = (named[1], named[2]) if named else (_only(each, arguments, changed), each)
        if name not in arguments.arrays():
            raise UsageError(f"expect: {name} is no array among the arguments: {', '.join(arguments.arrays())}")
        wide = {n: _in_double(value) for n, value in named_values(arguments).items()}
        found[name] = np.asarray(evaluated("expect", expression, wide))
    for name, value in found.items():
        if value.size not in (1, arguments.arrays()[name].size):
            raise UsageError(
                f"expect: {name} has {arguments.arrays()[name].size} elements, the expectation {value.shape}"
            )
    return found


def _in_double(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "iubc":
        return value.astype(np.float64)
    return value


def _only(expression: str, arguments: Arguments, changed: Sequence[str]) -> str:
    """The array that an expression without a name describes: the only array that the kernel wrote."""
    likely = list(changed) or list(arguments.arrays())[-1:]
    if len(likely) == 1:
        return likely[0]
    preferred = [name for name in likely if name in ("out", "output", "result")]
    if len(preferred) == 1:
        return preferred[0]
    raise UsageError(f"expect: the kernel wrote {', '.join(likely)}: say which, such as {likely[0]} = {expression}")


def _function(path: Path, name: str) -> Callable[..., Any]:
    try:
        found = runpy.run_path(str(path)).get(name)
    except Exception as error:
        raise UsageError(f"expect: {path} fails: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise UsageError(f"expect: {path} has no function {name}")
    return found


def _by_function(function: Callable[..., Any], arguments: Arguments, changed: Sequence[str]) -> dict[str, np.ndarray]:
    copies = [value.copy() if isinstance(value, np.ndarray) else value for value in arguments.values]
    try:
        made = function(*copies)
    except Exception as error:
        raise UsageError(f"expect: the function fails: {type(error).__name__}: {error}") from None
    if isinstance(made, Mapping):
        return {str(name): np.asarray(value) for name, value in made.items()}
    if made is None:
        return {n: v for n, v in zip(arguments.names, copies, strict=True) if isinstance(v, np.ndarray)}
    return {_only("…", arguments, changed): np.asarray(made)}
