"""What a finished result was made from: a record in the user's cache, from which a later ``resume`` knows whether operands
have changed.

There is no file beside the result, and nothing else depends on the record: if it is lost, ``resume`` says that it is not
known what the result was made from.
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

#: The facts that are compared. The kernel is not one: a newer kernel computes the same product.
COMPARED = ("a", "b", "the dtype", "the precision", "the result's name")


@dataclass(frozen=True)
class Finished:
    """A result on the disk: ``identity`` is the fingerprint of its file, ``facts`` are what it was made from."""

    identity: str
    facts: Mapping[str, str]


def remember(target: Any, path: Path, shape: tuple[int, int], dtype: Any, facts: Mapping[str, str]) -> None:
    """Record what the result at ``path`` was made from. If that fails, no error is raised."""
    with contextlib.suppress(OSError, TilewrightError):
        record = {"result": _identity(target, shape, dtype), "facts": {name: facts[name] for name in COMPARED}}
        record_path = _record_file(path, facts).write_json(record)
        if record_path is None:
            return
        for old in sorted(record_path.parent.glob("*.json"), key=_changed_s, reverse=True)[MOST:]:
            old.unlink(missing_ok=True)


def forget(path: Path, facts: Mapping[str, str]) -> None:
    """Remove the record of the result at ``path``: a later ``resume`` does not take it for the product."""
    record_path = _record_file(path, facts).path
    if record_path is not None:
        with contextlib.suppress(OSError):
            record_path.unlink(missing_ok=True)


def is_finished(
    target: Any, path: Path, shape: tuple[int, int], dtype: Any, facts: Mapping[str, str], *, sure: bool
) -> bool:
    """Whether the result at ``path`` is complete and was made from these operands; False where there is no result.

    ``sure``: a journal says that it was made from them. Raises ResumeError for a matrix of another shape or dtype, for one
    that was made from other operands, and for one whose operands are not known: ``resume`` neither replaces these nor takes
    them for this product.
    """
    if not path.exists():
        return False
    replace = "give overwrite=True (--overwrite) to replace it"
    try:
        identity = _identity(target, shape, dtype)
    except UsageError:  # a file without a matrix of this name
        return False
    except (FileError, ShapeError, DTypeError):
        m, n = shape
        raise ResumeError(f"{path} is there, but is not ({m}, {n}) {dtype}, as this product is: {replace}") from None
    if sure:
        return True
    record = _recall(path, facts)
    if record is None or record.identity != identity:
        raise ResumeError(f"{path} is there and complete, but what it was made from is not known: {replace}")
    changed = [name for name in COMPARED if record.facts.get(name) != facts[name]]
    if changed:
        raise ResumeError(f"{path} is complete, but {' and '.join(changed)} changed since it was made: {replace}")
    return True


def _identity(target: Any, shape: tuple[int, int], dtype: Any) -> str:
    with contextlib.closing(open_matrix(target, shape=shape, dtype=dtype)) as source:
        return source.fingerprint()


def _recall(path: Path, facts: Mapping[str, str]) -> Finished | None:
    """The record of a result; None where there is none, or none that ``remember`` wrote."""
    before = {"the precision": "standard"}  # of records from before there was this fact

    def read(record: Any) -> Finished:
        return Finished(str(record["result"]), before | dict(record["facts"]))

    return _record_file(path, facts).read_as(read)


def _record_file(path: Path, facts: Mapping[str, str]) -> CacheFile:
    name = fingerprint(str(path), facts["the result's name"])
    return CacheFile("finished", f"{name}.json")


def _changed_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
