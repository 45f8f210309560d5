"""The notebooks run, show what is stored in them, and are whole notebooks."""

from __future__ import annotations

import ast
import copy
import doctest
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
#: What a cell of the version of the format has.
FIELDS = {"markdown": {"cell_type", "id", "metadata", "source"}}
FIELDS["code"] = FIELDS["markdown"] | {"execution_count", "outputs"}


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return importlib.import_module("notebooks")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("build")


def test_docstrings(notebooks: ModuleType) -> None:
    done = doctest.testmod(notebooks)
    assert done.attempted
    assert not done.failed


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_of_the_format_and_its_outputs_are_those_of_its_cells(path: Path, notebooks: ModuleType) -> None:
    notebook = notebooks.read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert [cell for cell in cells if set(cell) != FIELDS[cell["cell_type"]]] == []
    assert notebooks.source(cells[0]).startswith("# ")
    code = notebooks.code_cells(notebook)
    for cell in code:
        ast.parse(notebooks.source(cell))
    if any(cell["outputs"] for cell in code):
        assert notebook["metadata"].get("digest") == notebooks.digest(notebook), (
            f"the cells have changed: python docs/site/notebooks.py {path.relative_to(ROOT)}"
        )


def test_cells_that_change_change_the_digest(notebooks: ModuleType) -> None:
    notebook = notebooks.read(PATHS[0])
    changed = copy.deepcopy(notebook)
    notebooks.code_cells(changed)[0]["source"].append("\n0")
    assert notebooks.digest(changed) != notebooks.digest(notebook)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["multiply_files_larger_than_memory", "profile_without_a_gpu", "see_a_bank_conflict"])
def test_cells_show_what_is_stored(name: str, notebooks: ModuleType, build: ModuleType) -> None:
    if name != "multiply_files_larger_than_memory":
        pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    stored = notebooks.read(notebooks.FOLDER / f"{name}.ipynb")
    ran, _ = notebooks.executed(stored)
    if build.differing():
        pytest.skip(f"other versions than docs/constraints.txt has: {'; '.join(build.differing())}")
    assert notebooks.differences(stored, ran) == []


def test_every_notebook_is_run_by_a_test(notebooks: ModuleType) -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert len(PATHS) == 4
    assert [path.stem for path in PATHS if path.stem not in tests] == []


def with_outputs(notebooks: ModuleType, *sources: str, tags: tuple[str, ...] = ()) -> Any:
    cells = [{"cell_type": "code", "source": [s], "metadata": {"tags": list(tags)}, "outputs": []} for s in sources]
    return notebooks.executed({"metadata": {}, "cells": cells})[0]


def test_an_output_that_differs_is_found(notebooks: ModuleType) -> None:
    before, after = with_outputs(notebooks, "print(3)", "1"), with_outputs(notebooks, "print(4)", "1")
    (found,) = notebooks.differences(before, after)
    assert "cell 1 shows\n4" in found
    assert notebooks.differences(before, copy.deepcopy(before)) == []


def test_of_a_cell_that_varies_an_output_must_be_there(notebooks: ModuleType) -> None:
    before, after, none = (with_outputs(notebooks, text, tags=("varies",)) for text in ("1.5", "2.5", "x = 1"))
    assert notebooks.differences(before, after) == []
    assert len(notebooks.differences(before, none)) == 1


def test_an_error_names_its_cell(notebooks: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with_outputs(notebooks, "x = 1", "x / 0")
    assert caught.value.__notes__ == ["in cell 2:\nx / 0"]


@pytest.mark.gpu
def test_float32_on_tensor_cores(notebooks: ModuleType) -> None:
    """On a Hopper GPU: the products are faster than PyTorch's, and no less accurate."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch sees no Hopper GPU")
    _, found = notebooks.executed(notebooks.read(notebooks.FOLDER / "float32_on_tensor_cores.ipynb"))
    assert found["best"]["torch.matmul"] > 2 * found["best"]["tw.matmul"]
    assert found["errors"]["tw.matmul"] <= found["errors"]["torch.matmul"]
    assert found["errors"]["torch.matmul in TF32"] > 10 * found["errors"]["tw.matmul"]
    assert found["c"][0].isfinite().all()
