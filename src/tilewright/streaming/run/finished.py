"""What a finished result was made from: a record in the user's cache, by which a later ``resume`` sees whether that changed.

Nothing lies beside the result, and nothing else depends on the record: where it is lost, ``resume`` says that the origin is
not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DTypeError, FileError, ResumeError, ShapeError, TilewrightError, UsageError
from ...files import open_matrix
from ...host.disk import CacheFile, fingerprint

#: Results that are remembered; the oldest records are removed.
MOST = 256

#: What a record compares: a newer kernel makes no other product.
COMPARED = ("a", "b", "the dtype", "the result's name")


@dataclass(frozen=True)
class Finished:
    """A result as it lies on the disk: ``identity`` is the fingerprint of its file, ``facts`` are what it was made from."""

    identity: str
    facts: Mapping[str, str]


def remember(target: Any, place: Path, shape: tuple[int, int], dtype: Any, facts: Mapping[str, str]) -> None:
    """Keep what the result at ``place`` was made from; where that is not possible it is not known later."""
    with contextlib.suppress(OSError, TilewrightError):
        record = {"result": _identity(target, shape, dtype), "facts": {name: facts[name] for name in COMPARED}}
        path = _kept_in(place, facts).write_json(record)
        if path is None:
            return
        for old in sorted(path.parent.glob("*.json"), key=_changed_s, reverse=True)[MOST:]:
            old.unlink(missing_ok=True)


def is_finished(
    target: Any, place: Path, shape: tuple[int, int], dtype: Any, facts: Mapping[str, str], *, sure: bool
) -> bool:
    """Whether the result at ``place`` is complete and was made from these operands; False where there is no result.

    ``sure``: a journal says what it was made from. Raises ResumeError where there is another matrix, one that was made from
    other operands, and one of which that is not known: ``resume`` neither replaces them nor takes them for this product.
    """
    if not place.exists():
        return False
    replace = "multiply without resume to replace it"
    try:
        identity = _identity(target, shape, dtype)
    except UsageError:  # a file without a matrix of this name
        return False
    except (FileError, ShapeError, DTypeError):
        m, n = shape
        raise ResumeError(f"{place} is there, but is not ({m}, {n}) {dtype}, as this product is: {replace}") from None
    if sure:
        return True
    known = _recall(place, facts)
    if known is None or known.identity != identity:
        raise ResumeError(f"{place} is there and complete, but what it was made from is not known: {replace}")
    changed = [name for name in COMPARED if known.facts.get(name) != facts[name]]
    if changed:
        raise ResumeError(f"{place} is complete, but {' and '.join(changed)} changed since it was made: {replace}")
    return True


def _identity(target: Any, shape: tuple[int, int], dtype: Any) -> str:
    with contextlib.closing(open_matrix(target, shape=shape, dtype=dtype)) as source:
        return source.fingerprint()


def _recall(place: Path, facts: Mapping[str, str]) -> Finished | None:
    """What is kept; None where nothing is, or nothing that was written here."""
    return _kept_in(place, facts).read_as(lambda kept: Finished(str(kept["result"]), dict(kept["facts"])))


def _kept_in(place: Path, facts: Mapping[str, str]) -> CacheFile:
    name = fingerprint(str(place), facts["the result's name"])
    return CacheFile("finished", f"{name}.json")


def _changed_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
