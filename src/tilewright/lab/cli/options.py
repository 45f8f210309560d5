"""What several commands share: options, and the check that files can be written before the work begins."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError
from ...records.legible import json_escaped

Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write as JSON instead; - is standard output.")
]

Param = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LIST", help="Set a parameter of the kernels, or try several values: TILE=8,16,32. Repeatable."
    ),
]


def fraction(name: str, text: str) -> float:
    """A percentage as a fraction. Raises UsageError that names the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%?", text.strip())
    if match is None or float(match[1]) >= 100:
        raise UsageError(f"{name}: must be a percentage from 0% to below 100%, such as 3%, got {text!r}")
    return float(match[1]) / 100


def check_writeable(name: str, path: Path | None, *, dash: bool = False, spare: Iterable[Path | None] = ()) -> None:
    """Raises UsageError, before the work begins, for a file that cannot be written or is in ``spare``, which are read."""
    if path is None or (dash and str(path) == "-"):
        return
    if str(path) == "-":
        raise UsageError(f"{name}: must be a file, got -")
    if path.is_dir() or not path.parent.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise UsageError(f"{name}: {path} cannot be written: {wrong}")
    if Path(os.path.realpath(path)).is_symlink():
        raise UsageError(f"{name}: {path} cannot be written: it is a link that leads back to itself")
    if path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in spare):
        raise UsageError(f"{name}: {path} is read by this command, and would be overwritten")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{name}: {path} cannot be written: permission denied")


def check_different_files(**files: Path | None) -> None:
    """Raises UsageError if two options name the same file; standard output does not count."""
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None or str(path) == "-":
            continue
        other = seen.setdefault(Path(os.path.realpath(path)), name)  # a loop of links raises no error here
        if other != name:
            raise UsageError(f"{name}: {path} is the file of {other} too")


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON with control characters escaped; - is standard output."""
    text = json_escaped(json.dumps(data, indent=1, ensure_ascii=False, default=str))
    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text + "\n", encoding="utf-8")
