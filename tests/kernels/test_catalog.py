"""Finding kernels: by name, by file, and with nothing but a new file in the folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright
from support.command_line import Answer
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UsageError
from tilewright.host.sources import PACKAGE
from tilewright.kernels.catalog import catalog, cuda_catalog, find, load_file, reference

GOOD = """
from tilewright.kernels import kernel

@kernel(idea="Three loops.", row="S1.3", parent="cpu/naive")
def mine(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = 0
            for p in range(a.shape[1]):
                c[i, j] += a[i, p] * b[p, j]
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# ---- by name ---------------------------------------------------------------------------------------------------------


def test_no_name_means_the_ladder_in_reading_order() -> None:
    ladder = find([])
    assert ladder == [kernel for kernel in catalog().values() if kernel.path.parent.match("kernels/cpu")]
    assert len(ladder) == len(list(ladder[0].path.parent.glob("[0-9]*.py")))
    assert [kernel.order for kernel in ladder] == sorted(kernel.order for kernel in ladder)


def test_names_are_found_long_and_short_in_the_order_given() -> None:
    names = [kernel.name for kernel in find([])][::-1]
    assert [kernel.name for kernel in find(names)] == names
    assert [kernel.name for kernel in find(name.removeprefix("cpu/") for name in names)] == names
    assert find(["ref/openblas"]) == [reference("openblas")] == [reference("ref/openblas")]


def test_names_come_from_folder_and_file() -> None:
    folders = {"kernels/cpu": "cpu", "cpu/kernels": "cpu", "kernels/ref": "ref"}
    devices = {PACKAGE / folder: device for folder, device in folders.items()}
    for name, kernel in catalog().items():
        number, _, stem = kernel.path.stem.partition("_")
        assert name == kernel.name == f"{devices[kernel.path.parent]}/{stem if number.isdigit() else kernel.path.stem}"
        assert kernel.order == (int(number) if kernel.is_rung else kernel.order)
        assert number.isdigit() == kernel.is_rung, "the ladder is numbered, the engine and references are not"
    orders = [kernel.order for kernel in catalog().values() if not kernel.is_reference]
    assert orders == sorted(set(orders)), "every kernel has an order of its own"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpu/naiv", "kernel 'cpu/naiv' is not known: did you mean cpu/naive"),
        ("strasen", "kernel 'strasen' is not known: did you mean cpu/strassen"),
        ("zzz", "known: cpu/"),
        ("", "kernel '' is not known"),
    ],
)
def test_unknown_kernels_get_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        find([name])
    assert hint in str(error.value)


@pytest.mark.parametrize(("name", "hint"), [("openblass", "did you mean openblas"), ("zzz", "known: ")])
def test_unknown_references_get_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        reference(name)


# ---- by file ---------------------------------------------------------------------------------------------------------


def test_a_users_file_is_a_kernel_like_any_other(tmp_path: Path) -> None:
    path = written(tmp_path, "07_mine.py", GOOD)
    (kernel,) = find([str(path)])
    assert (kernel.name, kernel.order, kernel.path) == ("my/mine", 7, path)
    assert (kernel.device, kernel.parent, kernel.idea) == ("my", "cpu/naive", "Three loops.")
    before = kernel.source_hash
    assert before == load_file(path).source_hash
    written(tmp_path, "07_mine.py", GOOD + "\n# edited\n")
    assert load_file(path).source_hash != before


def test_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = load_file(written(tmp_path, "mine.py", GOOD))
    second = load_file(written(tmp_path / "other", "mine.py", GOOD.replace("Three loops.", "Others.")))
    assert (first.idea, second.idea) == ("Three loops.", "Others.")
    assert first.path != second.path


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("none.py", "x = 1\n", "must declare exactly one kernel, found 0"),
        ("two.py", GOOD + GOOD.replace("mine", "another"), "must declare exactly one kernel, found 2"),
        ("empty.py", "", "must declare exactly one kernel, found 0"),
        ("syntax.py", "def f(:\n", "SyntaxError"),
        ("raises.py", "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("imports.py", "import a_module_that_is_not_there\n", "ModuleNotFoundError"),
        ("keyword.py", GOOD.replace("row=", "rwo="), "missing 1 required keyword-only argument: 'row'"),
        ("unknown.py", GOOD.replace("row=", "speed=3, row="), "unexpected keyword argument 'speed'"),
        ("no idea.py", GOOD, "the name must be letters, digits and underscores"),
        ("my-kernel.py", GOOD, "the name must be letters, digits and underscores"),
        ("mine.txt", GOOD, r"must be a Python file \(\.py\)"),
    ],
)
def test_a_file_that_is_no_kernel_says_why(file: str, text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, file, text)
    with pytest.raises(UsageError, match=message) as error:
        load_file(path)
    assert Path(file).stem in str(error.value), "the message names the file"


def test_a_file_without_a_kernel_is_shown_one_that_works(cli: Callable[..., Answer], tmp_path: Path) -> None:
    """What stands below the error's first line is pasted into the file as it is."""
    written(tmp_path, "mine.py", "x = 1\n")
    answer = cli("bench", "mine.py", "--sizes", "8", "--against", "none")
    sentence, template = answer.err.split("\n\n", 1)
    assert sentence.startswith("error: kernel file ")
    assert "\n" not in sentence
    written(tmp_path, "mine.py", template)
    (kernel,) = find([str(tmp_path / "mine.py")])
    a, c = np.full((3, 3), 2.0), np.full((3, 3), np.nan)
    runner(kernel, "float64")(a, a, c)
    assert (c == a @ a).all()


def test_a_kernel_is_told_by_its_name() -> None:
    assert (
        repr([catalog()["cpu/packed"], cuda_catalog()["cuda/tf32"]]) == "[<Kernel cpu/packed>, <CudaKernel cuda/tf32>]"
    )


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py does not exist"):
        find([str(tmp_path / "nowhere.py")])
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match=r"folder\.py does not exist"):
        load_file(tmp_path / "folder.py")


# ---- a new file and nothing else -------------------------------------------------------------------------------------

NEW_RUNG = """
import numpy as np, tilewright as tw
from tilewright.kernels.catalog import catalog, find
from tilewright.cpu.runtime.runner import runner
a, c = np.eye(5) * 3, np.zeros((5, 5))
for name in ("cpu/new_rung", "cpu/new_kernel"):
    runner(catalog()[name], "float64")(a, a, c)
    assert (c == a @ a).all()
print(catalog()["cpu/new_rung"].order, [k.name for k in find([])][-1], tw.plan((9, 9), (9, 9)).kernel.name)
"""


@pytest.mark.slow
def test_adding_a_kernel_means_adding_one_file(tmp_path: Path) -> None:
    """In a copy of the package: found, run and planned with, and no other file knows of it."""
    copy = tmp_path / "tilewright"
    shutil.copytree(Path(tilewright.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    written(copy / "kernels" / "cpu", "99_new_rung.py", GOOD)
    suiting = GOOD.replace("row=", "order=100, suits=lambda m, n, k: True, row=")
    written(copy / "cpu" / "kernels", "new_kernel.py", suiting)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", NEW_RUNG]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert answer.stdout.split() == ["99", "cpu/new_rung", "cpu/new_kernel"]
