"""What became of each test in a job, and which tests ran in none: a test that is skipped everywhere tests nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

#: Node id → "ran", "failed", or why it was skipped.
Outcomes = dict[str, str]
RAN = "ran"
#: What begins the reason of a skipped test that is marked ``gpu``: no job of CI has a GPU, and records of GPUs say what ran
#: there.
NEEDS_GPU = "needs a GPU: "
#: What begins or ends the reason of a test that needs an instruction: where a processor lacks it, no job of that machine can
#: run the test, and jobs of others do.
LACKS = "which this processor lacks", "this processor has no"


class Recorder:
    """A plugin of pytest that writes the outcomes of a run into a file; under xdist the reports of all workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: Outcomes = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.outcomes[report.nodeid] = reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.outcomes[report.nodeid] = reason(report)
        elif report.when == "call" or report.failed:
            self.outcomes[report.nodeid] = "failed" if report.failed else RAN

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(dict(sorted(self.outcomes.items())), indent=0) + "\n", encoding="utf-8")


def reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    marked = "gpu" in getattr(report, "keywords", ())  # which the report of a module that was skipped has not
    return NEEDS_GPU * marked + words.removeprefix("Skipped: ")


def ran_nowhere(jobs: Iterable[Mapping[str, str]]) -> Outcomes:
    """The tests that were skipped in every job that has them, with the reason of one.

    A module that was skipped as a whole ran where any of its tests did. Those that need an instruction of another processor
    do not count.

    >>> ran_nowhere([{"a.py::x": "no GPU", "a.py::y": "no GPU", "b.py": "no zarr"}, {"a.py::x": "ran", "b.py::z": "ran"}])
    {'a.py::y': 'no GPU'}
    >>> ran_nowhere([{"a.py::x": "this processor has no vdpbf16ps"}])
    {}
    """
    jobs = list(jobs)
    ran = {
        name for job in jobs for test, outcome in job.items() if outcome == RAN for name in (test, test.split("::")[0])
    }
    return {
        test: why
        for job in jobs
        for test, why in job.items()
        if why != RAN and test not in ran and not any(words in why for words in LACKS)
    }


def read(path: Path) -> Outcomes:
    """What ``--outcomes`` wrote, or a record of ``benchmarks/gpu_tests.py``."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return dict.fromkeys(found["ran"], RAN) if found.get("kind") == "tests on a GPU" else found


def threads_of_tests() -> list[threading.Thread]:
    """The threads that run a function of a test and keep the process alive: such a thread may disturb tests that follow."""
    found = []
    for thread in threading.enumerate():
        function = getattr(thread, "_target", None) or getattr(thread, "function", None)  # the latter of a timer
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        if not thread.daemon and Path(file).is_relative_to(Path(__file__).parents[1]):
            found.append(thread)
    return found
