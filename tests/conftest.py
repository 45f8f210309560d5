"""Fixtures of more than one test file, and which cases the default run takes."""

from __future__ import annotations

import sys

import pytest

from support import selection
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before the markers of the command line select. What is asked for by ``-k`` is run in all its cases."""
    if not config.option.keyword:
        selection.mark_the_rest(items)
