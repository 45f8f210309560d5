"""What was wrong, what was given, and what to do about it.

Every error a caller can cause is one of these, and each is also the built-in exception that fits, so that code which
knows nothing of Tilewright still catches it. Messages name the argument, the rule and the value received.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TilewrightError(Exception):
    """Base of every error that Tilewright raises on purpose."""

    exit_code = 2
    #: Whether the message may have several lines where it is shown; elsewhere they are joined.
    multiline = False


class ShapeError(TilewrightError, ValueError):
    """Shapes that no product has: a mismatch of k, a scalar operand, an ``out`` of another shape."""


class OperandError(TilewrightError, TypeError):
    """An operand of a type that holds no usable matrix: closed, freed, masked, sparse, of text."""


class ReadOnlyError(OperandError, ValueError):
    """An array that is to receive a product and cannot be written. NumPy raises ValueError for it."""


class DTypeError(TilewrightError, TypeError):
    """A dtype that cannot be multiplied, or cannot be cast to the one asked for."""


class UsageError(TilewrightError, ValueError):
    """An argument outside its rule: a size that is no size, a kernel nobody knows."""


class HeaderError(UsageError):
    """A CUDA kernel without the header that describes it, or with a wrong one; the message shows the lines it needs."""

    multiline = True


class RecordError(TilewrightError, ValueError):
    """A record file that is truncated, of another schema, or not comparable."""


class FileError(TilewrightError, OSError):
    """A file of a matrix that is not there, truncated, damaged or in use, or that a disk cannot hold."""


class UnavailableError(TilewrightError, RuntimeError):
    """A device or library that this machine does not have."""

    exit_code = 3


class MemoryLimitError(TilewrightError, MemoryError):
    """A product for which there is not enough memory, or less than was allowed: the message says how much it needs."""


class ResumeError(TilewrightError, ValueError):
    """A product that cannot be taken up again: what it was begun with has changed."""


class CompileError(TilewrightError, ValueError):
    """Source that the CUDA compiler refuses; the message has the compiler's own words, with file and line."""

    multiline = True


class CacheWarning(UserWarning):
    """The cache of compiled code is not safe, or cannot be written: each process compiles again. Said once in a process."""


class LaunchError(TilewrightError, RuntimeError):
    """A GPU refused a kernel, or stopped it: the message names kernel, launch and cause."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint that ends an error about an unknown name.

    >>> did_you_mean("cpu/naiv", ["cpu/naive", "cpu/blocked"])
    'did you mean cpu/naive?'
    >>> did_you_mean("zzz", ["cpu/naive", "cpu/blocked"])
    'known: cpu/blocked, cpu/naive'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
