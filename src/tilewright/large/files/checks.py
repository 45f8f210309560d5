"""Checks dtypes, shapes, names and rectangles, and defines the errors for wrong arguments and for files that cannot be
read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from ...errors import (
    DTypeError,
    FileError,
    ShapeError,
    TilewrightError,
    UnavailableError,
    UsageError,
    did_you_mean,
    how_to_install,
)
from ...host.machine import bytes_text
from ...product.operands import dtype_of, is_known
from ...records.legible import legible

#: Rows and columns.
Shape = tuple[int, int]
#: The sizes of any number of axes.
ArrayShape = tuple[int, ...]
#: A part of an array: of each axis a slice.
Box = tuple[slice, ...]


class Location(Protocol):
    """The path or URL of a file, as messages show it."""

    @property
    def name(self) -> str:
        """The last part of the path or URL."""


#: What a file may hold: what can be multiplied.
READABLE = "float16, bfloat16, float32, float64, complex64, complex128, bool or integers of up to 64 bits"

#: Rows or columns at most: offsets in a file are 64-bit numbers.
LONGEST = 2**63 - 1
#: Axes of an array at most, of which two become those of a matrix: NumPy has no more than 64.
MOST_AXES = 32


def admit_dtype(dtype: Any, where: object) -> np.dtype:
    """Return ``dtype`` as a dtype object. Raises DTypeError if matrices of this dtype cannot be read."""
    try:
        dtype = dtype_of(dtype, where)
    except DTypeError:
        raise DTypeError(f"{where}: {_brief(dtype)} is not a dtype; it must be {READABLE}") from None
    if not is_known(dtype):
        raise DTypeError(f"{where} has dtype {dtype}: it must be {READABLE}")
    return dtype


def admit_shape(shape: Any, where: object) -> Shape:
    """Return ``shape`` as two integers. Raises ShapeError if ``shape`` is not the shape of a matrix."""
    if not isinstance(shape, (tuple, list)):
        raise ShapeError(f"{where} has shape {_brief(shape)}: it must be two whole numbers")
    if len(shape) != 2:
        raise ShapeError(f"{where} has {len(shape)} dimensions, shape {_brief(tuple(shape))}: a matrix has 2")
    rows, columns = admit_array_shape(shape, where)
    return rows, columns


def admit_array_shape(shape: Any, where: object) -> ArrayShape:
    """Return ``shape`` as integers, one for each axis. Raises ShapeError if ``shape`` is not the shape of an array."""
    if not isinstance(shape, (tuple, list)):
        raise ShapeError(f"{where} has shape {_brief(shape)}: it must be whole numbers")
    if len(shape) > MOST_AXES:
        raise ShapeError(f"{where} has {len(shape)} dimensions: it must have {MOST_AXES} at most")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 0 <= size <= LONGEST:
            raise ShapeError(f"{where} has shape {_brief(tuple(shape))}: sizes are whole numbers from 0 to 2^63 - 1")
    return tuple(map(int, shape))


def _brief(value: object) -> str:
    return one_line(repr(value), 80)


def one_line(text: object, most: int = 200) -> str:
    """Return a message of another library as one line of at most ``most`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def agree(
    where: object, shape: ArrayShape, dtype: np.dtype, wanted_shape: ArrayShape | None, wanted: np.dtype | None
) -> None:
    """Raise ShapeError or DTypeError if the shape or dtype of a file differs from what the caller states."""
    if wanted_shape is not None and shape != wanted_shape:
        raise ShapeError(f"{where} is {shape}, not {wanted_shape}: leave shape out, because the file states it")
    if wanted is not None and dtype != wanted:
        raise DTypeError(f"{where} has dtype {dtype}, not {wanted}: leave dtype out, because the file states it")


def rectangle(shape: Shape, rows: slice, columns: slice, block: np.ndarray) -> tuple[int, int]:
    """Return the first row and column of a rectangle. Raises UsageError if the rectangle does not have the shape of
    ``block``.
    """
    row, column = corner(shape, (rows, columns), block)
    return row, column


def corner(shape: ArrayShape, box: Box, block: np.ndarray) -> tuple[int, ...]:
    """Return the indices at which a box begins. Raises UsageError if the box does not have the shape of ``block``."""
    sides = [range(size)[part] for size, part in zip(shape, box, strict=True)]
    if block.shape != tuple(map(len, sides)) or any(side.step != 1 for side in sides):
        where = "rows {} and columns {}".format(*box) if len(box) == 2 else " × ".join(map(str, box))
        raise UsageError(f"a block of {block.shape} does not fit {where} of {shape}")
    return tuple(side.start for side in sides)


def pick(names: Iterable[str], name: str | None, path: Location, what: str) -> str:
    """Return ``name`` if the file has a matrix of this name, or the only name in the file if ``name`` is None.

    If there is no such name, ``pick`` raises an error that lists the names of the matrices in the file.
    """
    known = sorted(names)
    if name is not None and name in known:
        return name
    shown = [legible(each).replace("\n", "\\n") for each in known]
    if not known:
        raise FileError(f"{path} holds no {what}")
    if name is not None:
        raise UsageError(f"{path} has no {what} {name!r}; {did_you_mean(name, shown)}")
    if len(known) > 1:
        names_text = ", ".join(shown[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
        raise UsageError(
            f"{path} holds {len(known)} {what}s: name one, as in {path.name}:{shown[0]}; it has {names_text}"
        )
    return known[0]


def listed(names: Sequence[str], what: str) -> str:
    """Return a short text that lists some names, or counts them if there are more than two.

    >>> listed(["b"], "tensor"), listed(["b", "c", "d"], "tensor")
    ("the tensor 'b'", "3 tensors: 'b', 'c', …")
    """
    if len(names) == 1:
        return f"the {what} {names[0]!r}"
    plural = f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
    return f"{len(names)} {plural}: {', '.join(map(repr, names[:2]))}{', …' if len(names) > 2 else ''}"


def missing_library(library: str, path: Location) -> UnavailableError:
    """Return the error for a file format whose library is not installed."""
    return UnavailableError(f"{path} needs {library}, which is not installed: {how_to_install('files')}")


def raised(error: OSError) -> NoReturn:
    """Raise ``error``. ``raised`` is passed to ``os.walk``, which by default skips directories that it cannot read."""
    raise error


@contextlib.contextmanager
def os_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError into a FileError that names the file and says what to do."""
    try:
        yield
    except FileError:
        raise
    except FileNotFoundError as error:
        missing = "it" if path.parent.is_dir() else f"the directory {path.parent}"
        raise FileError(f"{path} cannot be {doing}: {missing} does not exist") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise FileError(f"{path} cannot be {doing}: {_full(error, path)}") from error
        raise FileError(f"{path} cannot be {doing}: {error.strerror or error}") from error


@contextlib.contextmanager
def parser_errors(path: Location, what: str) -> Iterator[None]:
    """Turn any exception of a file parser into a FileError, except Tilewright's own errors.

    For a damaged file, libraries raise exceptions of many kinds. Therefore every exception of a parser is taken as a
    sign of a damaged file, except an error of the operating system, which has an error number.
    """
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise FileError(f"{path} cannot be read: {os.strerror(error.errno)}") from error
        why = one_line(error) or type(error).__name__
        raise FileError(f"{path} is no {what}, or a damaged one: {why}") from error


def refuse_empty(path: Location, size: int) -> None:
    """Raise FileError if the file is empty. A program that is stopped before it writes anything leaves an empty
    file.
    """
    if not size:
        raise FileError(f"{path} is empty: a file with a matrix begins with a header; write it again")


def unreadable_error(path: Location, box: Box, error: BaseException) -> FileError:
    """Return the error for a box that a library cannot read."""
    names = ("rows ", "columns ") if len(box) == 2 else ("",) * len(box)
    where = ", ".join(f"{name}{part.start}:{part.stop}" for name, part in zip(names, box, strict=True))
    return FileError(f"{path} cannot be read at {where}: {one_line(error) or type(error).__name__}")


def _full(error: OSError, path: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"the disk is full ({bytes_text(free_bytes(path.parent))} free); free some space or choose another disk"
    if error.errno == errno.EDQUOT:
        return "the quota of this user is used up; free some space or choose another disk"
    return "it would be larger than this file system or the limit of this process (ulimit -f) allows"


def free_bytes(directory: Path) -> int:
    """Return the number of free bytes that this user can write to the disk of ``directory``."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
