"""Some hundred damaged and hostile inputs for every reader (``benchmarks/fuzz_readers.py`` tries thousands), and proof that
what looks at them sees a defect."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

from support import hostile
from support.interrupted import within
from tilewright.errors import FileError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: Inputs of each kind: those that take a page to be drawn are slower.
COUNTS = {"npy": 60, "safetensors": 60, "hdf5": 40, "zarr": 30, "raw": 40, "records": 8, "explanations": 4} | {
    "timelines": 40,
    "headers": 60,
}


@pytest.fixture
def soon() -> Iterator[None]:
    """What waits raises in the middle of it; compiling and importing for the first time may take this long."""
    with within(120):
        yield


def outcomes(kind: str, count: int) -> Counter[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy and zarr about what they find in the files
        return Counter(hostile.outcome(hostile.READERS[kind].attempt, hostile.mutated(kind, i)) for i in range(count))


@pytest.mark.slow_cases("npy", "raw", "hdf5", "zarr", "records", "safetensors", "explanations")
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", hostile.READERS)
def test_every_seed_is_read(kind: str) -> None:
    seeds = hostile.READERS[kind].seeds()
    found = Counter(hostile.outcome(hostile.READERS[kind].attempt, files) for files in seeds)
    assert found["read"]
    assert not found.keys() - {"read", "refused"}  # what holds nothing is refused, in one line


@pytest.mark.slow_cases("npy", "raw", "hdf5", "zarr", "records", "safetensors", "explanations")
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", hostile.READERS)
def test_a_mutated_input_is_read_or_refused_in_one_line(kind: str) -> None:
    found = outcomes(kind, COUNTS[kind])
    assert not found.keys() - {"read", "refused"}, found
    assert found["refused"]


def test_an_input_of_a_number_is_always_the_same() -> None:
    assert all(hostile.mutated(kind, 7) == hostile.mutated(kind, 7) for kind in hostile.READERS)
    assert len({str(hostile.mutated("npy", i)) for i in range(50)}) > 40


def bare_index_error(folder: Path) -> None:
    (folder / "a.npy").read_bytes()[5000]


def several_lines(folder: Path) -> None:
    raise FileError(f"{folder}\nis damaged")


def much_memory(folder: Path) -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise FileError(f"{folder} is damaged") from error


PLANTED = {bare_index_error: "IndexError: index out of range", several_lines: "no one line", much_memory: "memory"}


@pytest.mark.parametrize(("planted", "words"), PLANTED.items())
def test_a_planted_defect_is_seen(planted, words) -> None:
    found = hostile.outcome(planted, hostile.READERS["npy"].seeds()[0])
    assert found.startswith("defect: ")
    assert words in found


@pytest.mark.slow
def test_workers_that_hang_die_or_take_much_are_counted(tmp_path: Path) -> None:
    """Inputs that do so between others, which are all tried all the same."""
    planted = {
        1: ("time.sleep(60)", "defect: hang: no answer for 3 s"),
        3: ("os.abort()", "defect: crash: exit code -6"),
        5: ("bytearray(1 << 33)", "defect: MemoryError"),
        7: ("bytes([1]) * (400 << 20)", "defect: memory: "),
        9: ("(folder / 'a.npy').read_bytes()[5000]", "defect: IndexError"),
    }
    script = tmp_path / "worker.py"
    cases = "".join(f"    if data == b'{number}': {body}\n" for number, (body, _) in planted.items())
    script.write_text(
        "import os, sys, time\n"
        f"sys.path[:0] = [{str(BENCHMARKS)!r}, {str(Path(__file__).parents[1])!r}]\n"
        "from support import hostile\nimport fuzz_readers\n"
        f"def planted(folder):\n    data = (folder / 'a.npy').read_bytes()\n{cases}"
        "hostile.READERS['npy'] = hostile.Reader(lambda: [{'a.npy': b'seed'}], planted)\n"
        "hostile.mutated = lambda kind, number: {'a.npy': str(number).encode()}\n"
        "fuzz_readers.__file__ = __file__\n"
        "if '--worker' in sys.argv: sys.exit(fuzz_readers.main())\n"
        "print(fuzz_readers.tried('npy', 0, 11, 3.0, 4096))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=True)
    found = dict(ast.literal_eval(done.stdout))
    assert [found[number] for number in range(0, 11, 2)] == ["read"] * 6
    for number, (_, words) in planted.items():
        assert found[number].startswith(words), found[number]
