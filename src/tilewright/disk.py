"""Where compiled code and measured facts are kept: a directory that only this user can write."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def private_directory(*parts: str) -> Path:
    """A directory for files that are loaded again later, created with mode 0700.

    ``$TILEWRIGHT_CACHE``, else ``$XDG_CACHE_HOME/tilewright``, else ``~/.cache/tilewright``; where that cannot be
    written or belongs to somebody else, a fresh temporary directory, for cached machine code is code that will run.
    """
    home = os.environ.get("TILEWRIGHT_CACHE") or _user_cache()
    path = Path(home).joinpath(*parts)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK) and _is_mine(path):
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="tilewright-"))


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "tilewright"


def _is_mine(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()


def fingerprint(*facts: object) -> str:
    """A short name for a combination of facts; paths stand for the contents of their files."""
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.read_bytes() if isinstance(fact, Path) else repr(fact).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
