"""A test that is skipped in every job is an error."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support import outcomes

TESTS = Path(__file__).parents[1]
JOB = """
import os, pytest

def test_plain():
    pass

@pytest.mark.skipif("GPU" not in os.environ, reason="no GPU")
def test_of_a_gpu():
    pass

@pytest.mark.skipif("QUANTUM" not in os.environ, reason="no quantum computer")
def test_of_none():
    pass

@pytest.mark.gpu
@pytest.mark.skipif("CARD" not in os.environ, reason="no GPU")
def test_newer_than_the_record():
    pass
"""


def test_doctests() -> None:
    assert doctest.testmod(outcomes).failed == 0


@pytest.mark.slow
def test_a_test_that_no_job_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_job.py").write_text(JOB)
    markers = "\n    ".join(["markers =", "thorough", "further", "each_value", "gpu"])
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n{markers}\n")

    def job(name: str, *how: str) -> Path:
        command = [sys.executable, "-m", "pytest", "-q", *how, "-p", "no:cacheprovider", "--outcomes", name]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        return tmp_path / name

    def checked(*jobs: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TESTS.parent / ".ci" / "skipped"), *map(str, jobs)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ours = job("ours.json", "-n", "2")
    assert json.loads(ours.read_text())["test_job.py::test_plain"] == "ran"
    monkeypatch.setenv("GPU", "0")
    theirs = job("gpu.json", "-p", "no:xdist")
    found = checked(ours, theirs)
    assert found.returncode == 1
    newer = "ran in no job: test_job.py::test_newer_than_the_record: needs a GPU: no GPU\n"
    assert found.stderr == newer + "ran in no job: test_job.py::test_of_none: no quantum computer\n"
    monkeypatch.setenv("QUANTUM", "0")
    found = checked(ours, theirs, job("quantum.json", "-p", "no:xdist"))
    assert (found.returncode, found.stderr) == (0, newer)
    record = tmp_path / "gpu-tests-card.json"
    ran = ["test_job.py::test_newer_than_the_record", "test_job.py::test_of_none", "test_job.py::test_of_a_gpu"]
    record.write_text(json.dumps({"kind": "tests on a GPU", "ran": ran}))
    found = checked(ours, record)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_thread_that_outlives_its_test_is_found() -> None:
    end = threading.Event()

    def wait() -> None:
        end.wait(30)

    waiting, timer = threading.Thread(target=wait), threading.Timer(30, wait)
    others = [threading.Thread(target=wait, daemon=True), threading.Thread(target=end.wait, args=(30,))]
    for thread in (waiting, timer, *others):
        thread.start()
    assert set(outcomes.threads_of_tests()) == {waiting, timer}
    end.set()
    timer.cancel()
    for thread in (waiting, timer, *others):
        thread.join()
    assert not outcomes.threads_of_tests()
