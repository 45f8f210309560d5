"""Reads records, writes tables, and says which record a figure is from. Links are those of a page in docs/."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

from tilewright.records.bench import BenchRecord, read_records

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks"


def records_of(name: str) -> list[BenchRecord]:
    return read_records(RECORDS / f"{name}.jsonl")


def text_of(path: Path) -> str:
    """Return the text of a record, which may be compressed."""
    if path.suffix != ".xz" and path.is_file():
        return path.read_text(encoding="utf-8")
    return lzma.decompress(path.with_name(path.name.removesuffix(".xz") + ".xz").read_bytes()).decode()


def lines_of(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the environment in the first line of a record, and its other lines."""
    first, *others = map(json.loads, text_of(RECORDS / f"{name}.jsonl").splitlines())
    return first["environment"], others


def at(records: list[BenchRecord], kernel: str, n: int, threads: int) -> BenchRecord | None:
    return next((r for r in records if (r.kernel, r.n, r.m, r.threads) == (kernel, n, n, threads)), None)


def table(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def made_by(name: str) -> str:
    first = records_of(name)[0].environment
    where = first.get("gpu") or first.get("processor") or f"NumPy {first.get('numpy')}"
    return f"{where}; [record](../benchmarks/{name}.jsonl), made by `{command(first)}`."


def command(environment: dict[str, Any]) -> str:
    """Return the command that made a record. A script that was moved since then has its present path."""
    return re.sub(r"\btests/(?=record_\w+\.py)", "benchmarks/", environment["command"])


def linked(name: str) -> str:
    """Return a link to a record."""
    packed = "" if (RECORDS / f"{name}.jsonl").is_file() else ".xz"
    return f"[{name}](../benchmarks/{name}.jsonl{packed})"
