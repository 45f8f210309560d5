"""Fixtures of more than one test file, which cases the default run takes, and a record of what became of each."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

from support import outcomes, selection
from support.command_line import Answer
from tilewright.__main__ import run_command_line


@pytest.fixture
def few_operand_sets(monkeypatch) -> None:
    """A cell of the bench rotates through 64 sets of operands, not 16,384: which set is taken changes no verdict."""
    monkeypatch.setattr("tilewright.lab.bench.operand_sets._MOST_SETS", 64)


@pytest.fixture
def given_peaks(monkeypatch) -> None:
    """What a plan predicts is computed from these figures; on a busy machine measuring takes seconds in each process."""
    for measured in ("peak_gflops", "bandwidth_gbs", "cache_bandwidth_gbs"):
        monkeypatch.setattr(f"tilewright.cpu.prediction.{measured}", lambda dtype, threads: 20.0 * threads)


@pytest.fixture
def without_disassembly(monkeypatch) -> None:
    """The microscope runs the PTX as it is: findings and results are the same, and nvdisasm takes 0.3 s for any binary."""
    monkeypatch.setattr("tilewright.simulator.assembly.disassembly.find_tool", lambda: None)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path, few_operand_sets):
    """Runs a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tilewright", *arguments])
        code = run_command_line()
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before the markers of the command line select."""
    selection.mark(items)
    if config.option.share is not None:
        kept, left = selection.shared(items, config.option.share)
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A test ends its threads, also where it fails: after its fixtures are torn down none may be left."""
    for thread in outcomes.threads_of_tests():
        thread.join(1)
    if left := [thread.name for thread in outcomes.threads_of_tests()]:
        pytest.fail(f"threads of the test are left: {', '.join(left)}")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="write which tests ran, and why others were skipped")
    parser.addoption(
        "--share", type=int, metavar="SEED", help="of further cases of a table run a part, chosen by the seed"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (
        config.option.keyword and config.option.markexpr == selection.DEFAULT
    ):  # what is asked for by name is run in all its cases
        config.option.markexpr = "not browser"
    # A compilation makes a million objects. Tests of memory that is not freed run in processes of their own, which have
    # Python's own thresholds.
    gc.set_threshold(20_000, 20, 20)
    hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is no reason to fail
    hypothesis.settings.load_profile("any machine")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Dask looks at the stacks of its workers every 10 ms. In CPython before 3.11.9 this now and then deadlocks with a thread
    # that ends (python/cpython#106883), and Dask gives such a worker up after five minutes.
    os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
    # JAX would take three quarters of a GPU's memory, which tests in several processes share.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if config.option.outcomes and not hasattr(config, "workerinput"):
        config.pluginmanager.register(outcomes.Recorder(config.option.outcomes))
