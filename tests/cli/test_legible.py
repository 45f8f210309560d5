"""Names from elsewhere on a terminal: their control characters are text, in tables, messages, progress and JSON alike."""

from __future__ import annotations

import doctest
import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rich.console
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

import tilewright
from support.report_records import measured
from tilewright.__main__ import run_command_line
from tilewright.lab.bench.cells import TimeLeft
from tilewright.lab.cli.application import Console, say
from tilewright.lab.terminal import BenchProgress, TuneProgress, blocks_progress, show_bench, show_facts
from tilewright.records import legible as module
from tilewright.records.bench import write_records
from tilewright.records.legible import json_escaped, legible

SOURCE = Path(tilewright.__file__).parent.parent
EVIL = "a\x1b[31m\x1b]0;owned\x07\r\x08\x7f\x9b2J\u202etxt\u2066\u2028\x85[red]:bomb:"
SHOWN = "a\\x1b[31m\\x1b]0;owned\\x07\\x0d\\x08\\x7f\\x9b2J\\u202etxt\\u2066\\u2028\\x85[red]:bomb:"
CONTROLS = (*range(9), *range(11, 32), *range(127, 160))
MARKS = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
UNSAFE = [chr(code) for code in (*CONTROLS, *MARKS)]


def commands(text: str) -> set[str]:
    return set(text) & set(UNSAFE)


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


def test_what_commands_a_terminal_is_shown_and_all_else_stays() -> None:
    assert legible(EVIL) == SHOWN
    assert not commands(legible("".join(UNSAFE)))
    same = "plain × ² → – … µ 日本 😀 \t\n é\u0301 \ud800 {x} [bold] \\x1b"
    assert legible(same) == same
    assert legible(legible(EVIL)) == SHOWN
    text = json.dumps({EVIL: [EVIL]}, ensure_ascii=False)
    assert not commands(json_escaped(text))
    assert json.loads(json_escaped(text)) == {EVIL: [EVIL]}


def printed(show: Any, kind: type[rich.console.Console] = Console) -> str:
    console = kind(file=io.StringIO(), width=300, force_terminal=True, color_system=None)
    show(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def a_table(console: rich.console.Console) -> None:
    table = Table(EVIL, "", title=EVIL.replace("[red]", ""))
    table.add_row(EVIL.replace("[", r"\["), Text(EVIL))
    console.print(table)


def a_progress(console: rich.console.Console) -> None:
    with Progress(TextColumn("{task.description}", markup=False), console=console, transient=True) as progress:
        progress.add_task(EVIL.replace("\r", ""), total=3)
        progress.refresh()


HOSTILE = replace(measured("cpu/ikj", 64), kernel=EVIL, dtype=EVIL, reference=EVIL)
SHOWS = {
    "text": lambda console: console.print(EVIL, markup=False, highlight=False),
    "markup": lambda console: console.print(f"[bold]{EVIL.replace('[red]', '')}[/]"),
    "facts": lambda console: show_facts(console, [(EVIL, EVIL)]),
    "bench": lambda console: show_bench(
        console, [replace(measured("cpu/ikj", 64), kernel=EVIL, dtype=EVIL, reference=EVIL)]
    ),
    "table": a_table,
    "progress": a_progress,
}


@pytest.mark.parametrize("name", SHOWS)
def test_a_console_shows_no_command_of_a_name(name: str) -> None:
    text = printed(SHOWS[name])
    own = ("\x1b[", "\r") if name == "progress" else ()  # those of the bar itself
    for part in own:
        text = text.replace(part, "")
    assert not commands(text.replace("\x1b", "") if own else text)
    assert "a\\x1b[31m\\x1b]0;ow" in text
    assert name == "progress" or commands(printed(SHOWS[name], rich.console.Console))  # the guard is what does it


def test_a_name_is_no_markup_and_no_emoji() -> None:
    text = printed(SHOWS["facts"]) + printed(SHOWS["bench"]) + printed(SHOWS["text"])
    assert text.count("[red]:bomb:") >= 4
    assert "💣" not in text


def test_say_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"page: {EVIL}")
    assert capsys.readouterr().out == f"page: {SHOWN}\n"


def test_every_command_has_that_console() -> None:
    folder = SOURCE / "tilewright/lab/cli"
    for path in folder.glob("*.py"):
        assert path.name == "application.py" or "rich.console" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("command", ["bench", "tune", "explain"])
def test_progress_takes_names_as_they_are(command: str) -> None:
    """Of a file ``{x}[red].cu``: braces are no format, brackets no markup."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    name = "my/{x}[red]{0}"
    if command == "bench":
        with BenchProgress(console) as bench:
            bench.begin(SimpleNamespace(label=name), 1, 2, lambda: TimeLeft(3.0, known=True))  # type: ignore[arg-type]
    elif command == "tune":
        with TuneProgress(console) as tell:
            tell(replace(measured("cpu/ikj", 64), kernel=name))
    else:
        with blocks_progress(console, name) as blocks:
            blocks(1, 2)
    assert name in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_commands_in_names_do_not_reach_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    name = "\x1b]0;owned\x07\x9b31m\u202e[red]"
    np.save(tmp_path / f"{name}.npy", np.ones((4, 4), np.float32))
    write_records(tmp_path / f"{name}.jsonl", [replace(measured("cpu/ikj", 64), kernel=name, dtype=name)])
    for words in (
        ("multiply", f"{name}.npy", f"{name}.npy", "-o", f"{name}c.npy", "--device", "cpu"),
        ("multiply", f"{name}x.npy", f"{name}.npy", "-o", f"{name}c.npy"),
        ("report", f"{name}.jsonl", "-o", f"{name}.html"),
        ("compare", f"{name}.jsonl", f"{name}.jsonl"),
        ("compare", f"{name}.jsonl", f"{name}.jsonl", "--json", "-"),
        ("tune", name),
        (name,),
    ):
        monkeypatch.setattr(sys, "argv", ["tilewright", *words])
        run_command_line()
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert not commands(said), words
        assert "]0;owned" in said, words
        assert "[red]" in said, words


@pytest.mark.slow
def test_a_terminal_sees_text(tmp_path: Path) -> None:
    """The same to a real one, from a process of its own."""
    (tmp_path / "\x1b]0;owned\x07.jsonl").write_text("{")
    master, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200", "TERM": "dumb"}
    command = [sys.executable, "-W", "ignore", "-m", "tilewright", "report", "\x1b]0;owned\x07.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=slave, stderr=slave, check=False)
    said = os.read(master, 4096).decode()
    os.close(slave)
    os.close(master)
    assert done.returncode == 2
    assert said.startswith("error: \\x1b]0;owned\\x07.jsonl:1: not JSON")
    assert not commands(said.replace("\r\n", "\n"))
