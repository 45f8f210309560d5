"""What a terminal shows while a step takes long: compiling, measuring peaks. Elsewhere nothing is shown."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.cpu.runtime.runner import compiled
from tilewright.host.steps import announced, listening
from tilewright.kernels.catalog import catalog, load_file
from tilewright.lab.bench.cells import Cell, TimeLeft
from tilewright.lab.cli.application import Console
from tilewright.lab.terminal import BenchProgress, ProductProgress, steps_shown

KERNEL = """
from tilewright.kernels import kernel

@kernel(idea="A line.", row="")
def mine(a, b, c):
    c[:, :] = 0
"""


def console(*, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def test_compiling_is_announced_and_loading_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    heard: list[str] = []

    @contextlib.contextmanager
    def listener(words: str) -> Iterator[None]:
        heard.append(words)
        yield
        heard.append("done")

    path = tmp_path / "mine.py"
    path.write_text(KERNEL)
    with listening(listener):
        compiled(load_file(path), np.dtype("float32"))
        compiled(load_file(path), np.dtype("float32"))
    assert heard == ["compiling my/mine for float32", "done"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_is_a_line_that_goes_away(terminal: bool) -> None:
    on = console(terminal=terminal)
    with steps_shown(on), announced("explaining"), announced("compiling cpu/ikj for float32"):
        during = written(on)
    assert ("compiling cpu/ikj for float32 …" in during) == terminal
    assert written(on).endswith("\x1b[2K") if terminal else written(on) == ""
    with announced("measuring"):
        assert "measuring" not in written(on), "nothing listens any more"


def test_a_bar_shows_the_step_in_place_of_its_description() -> None:
    on = console()
    cell = Cell(catalog()["cpu/ikj"], (64, 64, 64), "float32", 1, {})
    with BenchProgress(on) as bar:
        bar.begin(cell, 0, 9, lambda: TimeLeft(12.0, False))
        assert written(on).endswith(" at least 12 s left")
        with announced("compiling cpu/ikj for float32"):
            assert "compiling cpu/ikj for float32 … " in written(on).rsplit("\x1b[2K", 1)[1]
        assert "cpu/ikj 64 float32 " in written(on).rsplit("\x1b[2K", 1)[1]
        bar.begin(cell, 1, 9, lambda: TimeLeft(12.0, True))
        assert written(on).endswith(" about 12 s left")


def test_a_steps_time_says_nothing_of_a_products_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tilewright.lab.terminal.progress.time.perf_counter", lambda: now[0])
    on = console()
    with ProductProgress(on, 1.0) as progress:
        progress(0, 100 * 10**9)
        with announced("compiling cpu/packed for float32"):
            now[0] = 30.0
        now[0] += 1.0
        progress(50 * 10**9, 100 * 10**9)
    assert "50 GFLOPS, about 1 s left" in written(on)
