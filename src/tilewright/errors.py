"""What was wrong, what was given, and what to do about it.

Every error that a caller can cause is one of these. Each is also a fitting built-in exception, so that code can catch it
without importing Tilewright. Messages name the argument, the rule and the value received.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TilewrightError(Exception):
    """Base of every error that Tilewright raises on purpose."""

    exit_code = 2
    #: Whether the message may have several lines where it is shown; elsewhere they are joined.
    multiline = False


class ShapeError(TilewrightError, ValueError):
    """Shapes that cannot be multiplied: a mismatch of k, a scalar operand, an ``out`` of another shape."""


class OperandError(TilewrightError, TypeError):
    """An operand of a type that holds no usable matrix: closed, freed, masked, sparse, of text."""


class ReadOnlyError(OperandError, ValueError):
    """An array that should receive a product and is read-only. NumPy raises ValueError for it."""


class DTypeError(TilewrightError, TypeError):
    """A dtype that cannot be multiplied, or cannot be cast to the one asked for."""


class UsageError(TilewrightError, ValueError):
    """An argument that is not allowed, such as a negative size or an unknown kernel."""


class KernelFileError(UsageError):
    """A file without a kernel of its own, or one whose launch is not described. Below its first line the message has what to
    paste into the file or the terminal."""

    multiline = True


class HeaderError(KernelFileError):
    """A CUDA kernel whose header is missing or wrong; the message shows the lines that it needs."""


class RecordError(TilewrightError, ValueError):
    """A record file that is truncated, of another schema, or not comparable."""


class FileError(TilewrightError, OSError):
    """A file of a matrix that is missing, truncated, damaged or in use, or does not fit on the disk."""


class UnavailableError(TilewrightError, RuntimeError):
    """A device or library that this machine does not have."""

    exit_code = 3


class MemoryLimitError(TilewrightError, MemoryError):
    """A product that needs more memory than there is, or than it may take: the message says how much it needs."""


class ClusterError(TilewrightError, RuntimeError):
    """A cluster that cannot be reached, was lost, or has workers that cannot compute a product together."""

    exit_code = 3


class ResumeError(TilewrightError, ValueError):
    """A product that cannot be resumed, because an input or an option has changed since it was begun."""


class VerificationError(TilewrightError, ArithmeticError):
    """A product that is farther from A·B than was promised.

    Attributes
    ----------
    error : float
        The largest error of an element that was found, relative to |A||B|.
    bound : float
        The error that was promised.
    """

    exit_code = 1

    def __init__(self, message: str, error: float, bound: float) -> None:
        super().__init__(message)
        self.error, self.bound = error, bound

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.error, self.bound)


class CompileError(TilewrightError, ValueError):
    """Source that the CUDA compiler refuses; the message quotes the compiler, with file and line."""

    multiline = True


class RequirementError(TilewrightError, AssertionError):
    """A launch that breaks a requirement of ``Observation.require``; the message names the source lines."""

    exit_code = 1
    multiline = True


class CacheWarning(UserWarning):
    """The cache of compiled code is not safe, or cannot be written: each process compiles again. Shown once per process."""


class LaunchError(TilewrightError, RuntimeError):
    """A GPU refused a kernel, or stopped it: the message names kernel, launch and cause."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint that ends an error about an unknown name.

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
    """The command that installs an extra of this package from where the package itself was installed: an index, a file, a
    repository or a checkout.

    PEP 610 has the installer write that place into ``direct_url.json``, unless it was an index.
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
