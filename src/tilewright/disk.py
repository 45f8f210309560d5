"""Where compiled code and measured facts are kept: a directory that only this user can write."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path


def private_directory(*parts: str) -> Path:
    """A directory for files that are loaded again later, created with mode 0700.

    ``$TILEWRIGHT_CACHE``, else ``$XDG_CACHE_HOME/tilewright``, else ``~/.cache/tilewright``; where that cannot be
    written, or anybody else can write it, a temporary directory of this process, for cached machine code is code that
    will run.
    """
    try:
        return _made(Path(os.environ.get("TILEWRIGHT_CACHE") or _user_cache()), parts)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return _made(_temporary(), parts)


def _made(path: Path, parts: tuple[str, ...]) -> Path:
    """``parts`` below the directory ``path``, each made private; raises OSError where one is not."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in parts:
        path = path / part
        path.mkdir(mode=0o700, exist_ok=True)
        if not (os.access(path, os.W_OK) and _is_mine(path)):
            raise PermissionError(path)
    return path


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "tilewright"


def _is_mine(path: Path) -> bool:
    """Whether it is this user's and nobody else may write it."""
    status = path.stat()
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


@functools.cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="tilewright-"))


def fingerprint(*facts: object) -> str:
    """A short name for a combination of facts; paths stand for the contents of their files."""
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.read_bytes() if isinstance(fact, Path) else repr(fact).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
