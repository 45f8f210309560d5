"""The commands as a person meets them: run in this process by the fixture ``cli``, or started as a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import tilewright

SOURCE = Path(tilewright.__file__).parent.parent


COMMAND = [sys.executable, "-W", "ignore", "-m", "tilewright"]


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80", "TERM": "xterm"} | more


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=environment(), **pipes)


def is_one_line(answer: Answer, *words: str) -> bool:
    lines = answer.err.splitlines()
    return len(lines) == 1 and lines[0].startswith("error: ") and all(word in lines[0] for word in words)
