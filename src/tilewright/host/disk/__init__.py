"""Where compiled code and measured facts are kept: a directory that no other user can change.

Every measured fact is a ``CacheFile`` of JSON, read by ``read_as`` and written by ``write_json``.

Cached machine code is code that will run: ``safe`` says what is checked, and why a path that was checked stays safe. Where
the user's cache is not, or cannot be written, that is said once, and the files live in a temporary directory that ends with
this process (``temporary``). Where there is no safe place for that either, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import CacheWarning
from .safe import safe_directory
from .temporary import temporary_directory

Found = TypeVar("Found")

#: Caches that could not be written, each with the reason; and those of which the user was told.
_given_up: dict[str, str] = {}
_said: set[str] = set()


def private_directory(*parts: str) -> Path | None:
    """A directory for files that are loaded again later, made with mode 0700 where it is not there.

    It lies in ``$TILEWRIGHT_CACHE``, else ``$XDG_CACHE_HOME/tilewright``, else ``~/.cache/tilewright``. Where that cannot be
    written, or another user could change what it holds, a CacheWarning says so, once in a process, and the directory lies
    in a temporary one of this process. None where no place for that is safe.
    """
    cache = "the cache"
    try:
        cache = str(_user_cache())
        if cache not in _given_up:
            return safe_directory(cache, parts)
        reason = _given_up[cache]
    except RuntimeError:
        reason = "this user has no home directory"
    except OSError as error:
        reason = _words(error)
    own = temporary_directory()
    _say(cache, reason, own)
    with contextlib.suppress(OSError):
        return own and safe_directory(own, parts)
    return None


def give_up(error: OSError) -> None:
    """Use the user's cache no more in this process: writing to it failed with ``error``."""
    with contextlib.suppress(RuntimeError):
        _given_up.setdefault(str(_user_cache()), _words(error))
    private_directory()  # which says so


def _user_cache() -> Path:
    """Raises RuntimeError for a user without a home."""
    if own := os.environ.get("TILEWRIGHT_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")  # which counts only if it is absolute, says the standard
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tilewright"


def _words(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror


def _say(cache: str, reason: str, own: Path | None) -> None:
    if cache in _said:
        return
    _said.add(cache)
    instead = f"kept in {str(own)!r} until this process ends" if own else "not kept at all"
    warnings.warn(
        f"the cache {cache!r} is not used: {reason}; compiled code and measured facts are {instead}, and made again in the "
        "next process; set $TILEWRIGHT_CACHE to a directory that you can write and no other user can",
        CacheWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class CacheFile:
    """One file of the cache: read whole, or as if it were not there; written whole, or not at all."""

    folder: str
    name: str

    @property
    def path(self) -> Path | None:
        """Where it lies, or would; None where nothing is kept."""
        folder = private_directory(self.folder)
        return folder and folder / self.name

    def read(self) -> bytes | None:
        """What it holds; None where it is not there or cannot be read."""
        path = self.path
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def read_json(self) -> dict[str, Any]:
        """The JSON object that it holds; an empty one where it holds anything else, or nothing."""
        try:
            known = json.loads(self.read() or b"{}")
        except (ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def read_as(self, make: Callable[[dict[str, Any]], Found | None]) -> Found | None:
        """What ``make`` makes of the JSON object; None where nothing is there, or not what was written."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return make(self.read_json())
        return None

    def write(self, content: bytes) -> Path | None:
        """Write it, so that another process sees the old file or the new one. Where that fails, the cache is used no more,
        and it is written to the temporary directory; None where that fails too."""
        for _ in range(2):
            path = self.path
            if path is None:
                return None
            try:
                return _written(path, content)
            except FileNotFoundError:  # the directory was removed since it was made: it is made again
                continue
            except OSError as error:
                give_up(error)
        return None

    def write_json(self, known: Mapping[str, Any]) -> Path | None:
        """``write`` of a JSON object."""
        return self.write(json.dumps(known, indent=1).encode() + b"\n")

    def remove(self) -> bool:
        """Remove it; whether it was there."""
        path = self.path
        try:
            if path is not None:
                path.unlink()
        except FileNotFoundError:
            return False
        return path is not None


def _written(path: Path, content: bytes) -> Path:
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
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.read_bytes() if isinstance(fact, Path) else repr(fact).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
