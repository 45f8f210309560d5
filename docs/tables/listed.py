"""Lists every record under ``benchmarks/``: on which machine it was made, and with which command."""

from __future__ import annotations

import json
from typing import Any

from .common import RECORDS, command, table, text_of


def records() -> str:
    """Return a table with a row for each file, in alphabetical order."""
    rows = [["record", "machine", "made by"]]
    for path in sorted(RECORDS.glob("*.json*")):
        environment = _environment(text_of(path), lines=path.suffix in (".jsonl", ".xz"))
        gpus = environment.get("gpus") or [environment.get("gpu")]
        several = f"{len(gpus)}× " if len(gpus) > 1 else ""
        where = f"{several}{gpus[0]}" if gpus[0] else environment.get("processor") or "–"
        made = f"`{command(environment)}`" if environment.get("command") else "–"
        rows.append([f"[{path.name}](../benchmarks/{path.name})", where, made])
    return table(rows).replace("---:", "---")


def _environment(text: str, *, lines: bool) -> dict[str, Any]:
    """What the first object of a record says of where it was made; of older ones some say nothing."""
    first = json.loads(text.partition("\n")[0] if lines else text)
    first = first[0] if isinstance(first, list) else first
    return first.get("environment") or {}
