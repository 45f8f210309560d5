"""Where compiled code and measured facts are kept: a directory that no other user can change.

Every measured fact is a ``CacheFile`` of JSON, read by ``read_as`` and written by ``write_json``.

Cached machine code will be run, so the directory must be safe: ``safe`` says what is checked, and why a path that was
checked stays safe. If the user's cache is not safe or cannot be written, one warning says so, and the files lie in a
temporary directory of this process (``temporary``). If there is no safe place for that either, nothing is cached.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import CacheWarning
from .safe import safe_directory

try:  # ``hashlib`` would load OpenSSL, too: a tenth of the time of a process's first product
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

Found = TypeVar("Found")

#: Caches that could not be written, each with the reason; and caches that a warning was shown for.
_unusable: dict[str, str] = {}
_warned: set[str] = set()


def private_directory(*parts: str) -> Path | None:
    """A directory for files that are loaded again later; it is made with mode 0700 if it does not exist.

    It lies in ``$TILEWRIGHT_CACHE``, else ``$XDG_CACHE_HOME/tilewright``, else ``~/.cache/tilewright``. If that cannot be
    written, or another user could change what it holds, a CacheWarning says so, once per process, and the directory lies in
    the temporary directory of this process. None where there is no safe place for that.
    """
    cache = "the cache"
    try:
        cache = str(_user_cache())
        if cache not in _unusable:
            return safe_directory(cache, parts)
        reason = _unusable[cache]
    except RuntimeError:
        reason = "this user has no home directory"
    except OSError as error:
        reason = _reason_text(error)
    from .temporary import temporary_directory  # rarely needed, and it imports much

    temporary = temporary_directory()
    _warn(cache, reason, temporary)
    with contextlib.suppress(OSError):
        return temporary and safe_directory(temporary, parts)
    return None


def give_up(error: OSError) -> None:
    """Stop using the user's cache in this process, because writing to it failed with ``error``."""
    with contextlib.suppress(RuntimeError):
        _unusable.setdefault(str(_user_cache()), _reason_text(error))
    private_directory()  # shows the warning


def _user_cache() -> Path:
    """The directory of the user's cache, unchecked. Raises RuntimeError for a user without a home directory."""
    return _cache_of(*map(os.environ.get, ("TILEWRIGHT_CACHE", "XDG_CACHE_HOME", "HOME")))


@functools.lru_cache(maxsize=8)
def _cache_of(own: str | None, base: str | None, _home: str | None) -> Path:
    if own:
        return Path(own)
    is_given = base and Path(base).is_absolute()  # by its standard, a relative path is ignored
    return (Path(base or "") if is_given else Path.home() / ".cache") / "tilewright"


def _reason_text(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror


def _warn(cache: str, reason: str, temporary: Path | None) -> None:
    if cache in _warned:
        return
    _warned.add(cache)
    instead = f"kept in {str(temporary)!r} until this process ends" if temporary else "not kept at all"
    warnings.warn(
        f"the cache {cache!r} is not used: {reason}; compiled code and measured facts are {instead}, and made again in the "
        "next process; set $TILEWRIGHT_CACHE to a directory that you can write and no other user can",
        CacheWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class CacheFile:
    """One file of the cache. A file that cannot be read counts as missing; a file is written completely or not at all."""

    folder: str
    name: str

    @property
    def path(self) -> Path | None:
        """Its path, whether it exists or not; None where nothing can be cached."""
        folder = private_directory(self.folder)
        return folder and folder / self.name

    @property
    def is_absent(self) -> bool:
        """Whether there is certainly no such file. This takes a fiftieth of the time of ``read``, which checks the cache."""
        try:
            cache = str(_user_cache())
        except RuntimeError:
            return False
        return cache not in _warned and not os.path.exists(f"{cache}/{self.folder}/{self.name}")  # noqa: PTH110

    def read(self) -> bytes | None:
        """Its contents; None where it is missing or cannot be read."""
        path = self.path
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def read_json(self) -> dict[str, Any]:
        """The JSON object in it; an empty one where it holds anything else or is missing."""
        try:
            known = json.loads(self.read() or b"{}")
        except (ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def read_as(self, make: Callable[[dict[str, Any]], Found | None]) -> Found | None:
        """The result of ``make`` for the JSON object; None where the file is missing, or its contents are not as written."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return make(self.read_json())
        return None

    def write(self, content: bytes) -> Path | None:
        """Write it, so that another process sees either the old file or the new one. If that fails, the cache is no longer
        used, and the file is written to the temporary directory. Returns its path; None if that fails too."""
        for _ in range(2):
            path = self.path
            if path is None:
                return None
            try:
                return _written(path, content)
            except FileNotFoundError:  # the directory was removed since; the next round makes it again
                continue
            except OSError as error:
                give_up(error)
        return None

    def write_json(self, known: Mapping[str, Any]) -> Path | None:
        """``write`` of a JSON object."""
        return self.write(json.dumps(known, indent=1).encode() + b"\n")

    def read_checked(self) -> bytes | None:
        """What ``write_checked`` wrote; None where the file is missing or is not what was written."""
        digest, _, content = (self.read() or b"").partition(b"\n")
        return content if fingerprint(content).encode() == digest else None

    def write_checked(self, content: bytes) -> Path | None:
        """``write`` of the content after a line with its digest."""
        return self.write(fingerprint(content).encode() + b"\n" + content)

    def remove(self) -> bool:
        """Remove it. Returns whether it was there."""
        path = self.path
        try:
            if path is not None:
                path.unlink()
        except FileNotFoundError:
            return False
        return path is not None


def _written(path: Path, content: bytes) -> Path:
    import tempfile

    handle, draft = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def fingerprint(*facts: object) -> str:
    """A short name for a combination of facts; paths stand for the contents of their files."""
    digest = blake2b(digest_size=8)
    for fact in facts:
        content = fact.read_bytes() if isinstance(fact, Path) else fact
        digest.update(content if isinstance(content, bytes) else repr(content).encode())
        digest.update(b"\0")
    return digest.hexdigest()
