"""The errors that callers can cause. Each error message says what was wrong, what was given, and what to do.

All classes of errors derive from ``TilewrightError``. Each class also derives from a built-in exception such as
ValueError, so that a program can catch an error without importing Tilewright.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TilewrightError(Exception):
    """Base class of all errors that Tilewright raises on purpose."""

    exit_code = 2
    #: Whether the message may have several lines where it is shown; elsewhere they are joined.
    multiline = False


class ShapeError(TilewrightError, ValueError):
    """Arrays of the given shapes cannot be multiplied: the operands differ in k, an operand is a scalar, or ``out`` has
    another shape."""


class OperandError(TilewrightError, TypeError):
    """An operand that holds no usable matrix: it is closed, freed, masked or sparse, or it holds text."""


class ReadOnlyError(OperandError, ValueError):
    """The array that should receive a product is read-only. ReadOnlyError is a ValueError, as is NumPy's error for
    read-only arrays."""


class DTypeError(TilewrightError, TypeError):
    """A dtype that cannot be multiplied, or that cannot be cast to the requested dtype."""


class UsageError(TilewrightError, ValueError):
    """An argument that is not allowed, such as a negative size or an unknown kernel."""


class KernelFileError(UsageError):
    """A file that defines no kernel, or a file that does not describe the launch of its kernel. Below its first line,
    the error message has the text to paste into the file or the terminal."""

    multiline = True


class HeaderError(KernelFileError):
    """A CUDA kernel without the comment that describes it, or with a wrong one. The error message shows the lines that
    the comment needs."""


class RecordError(TilewrightError, ValueError):
    """A file of benchmark records that is truncated, has another schema, or cannot be compared."""


class FileError(TilewrightError, OSError):
    """A file of a matrix that is missing, truncated, damaged, in use, or too large for the disk."""


class UnavailableError(TilewrightError, RuntimeError):
    """A device or library that is not available on this machine."""

    exit_code = 3


class MemoryLimitError(TilewrightError, MemoryError):
    """A product needs more memory than there is, or than it may use. The error message says how much memory the product
    needs."""


class ClusterError(TilewrightError, RuntimeError):
    """A cluster cannot be reached or was lost, or its workers cannot compute a product together."""

    exit_code = 3


class ResumeError(TilewrightError, ValueError):
    """An interrupted product cannot be resumed, because an input or an option has changed since it began."""


class VerificationError(TilewrightError, ArithmeticError):
    """A product differs from A·B by more than the guaranteed error.

    Attributes
    ----------
    error : float
        The largest error of an element that was found, relative to |A||B|.
    bound : float
        The guaranteed error bound.
    """

    exit_code = 1

    def __init__(self, message: str, error: float, bound: float) -> None:
        super().__init__(message)
        self.error, self.bound = error, bound

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.error, self.bound)


class CompileError(TilewrightError, ValueError):
    """The CUDA compiler refuses the source. The error message quotes the compiler's errors, with file and line."""

    multiline = True


class RequirementError(TilewrightError, AssertionError):
    """A launch does not keep a requirement of ``Observation.require``. The error message names the source lines that
    are the cause."""

    exit_code = 1
    multiline = True


class CacheWarning(UserWarning):
    """The cache of compiled code is unsafe or cannot be written, so each process compiles again. Shown once per
    process."""


class LaunchError(TilewrightError, RuntimeError):
    """A GPU refused or stopped a kernel. The error message names the kernel, the launch and the cause."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: names that are similar to it, or all known names.

    >>> did_you_mean("cpu/naiv", ["cpu/naive", "cpu/blocked"])
    'did you mean cpu/naive?'
    >>> did_you_mean("zzz", ["cpu/naive", "cpu/blocked"])
    'known: cpu/blocked, cpu/naive'
    """
    import difflib  # slow to import, and needed for a wrong name only

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this package from the place from which the package itself was
    installed: an index, a file, a repository or a checkout.

    If the package was not installed from an index, the installer has written the place into ``direct_url.json`` (PEP
    610).
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        place = json.loads(distribution("tilewright").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in the checkout"
    if "dir_info" in place:
        editable = "-e " if place["dir_info"].get("editable") else ""
        return f"pip install {editable}'{url2pathname(urlsplit(place['url']).path)}[{extra}]'"
    protocol = f"{place['vcs_info']['vcs']}+" if "vcs_info" in place else ""
    at = f" @ {protocol}{place['url']}" if place else ""
    return f"pip install 'tilewright[{extra}]{at}'"
