"""Fixtures of more than one test file."""

from __future__ import annotations

import sys

import pytest

from support.command_line import Answer
from tilewright.__main__ import run


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tilewright", *arguments])
        code = run()
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
