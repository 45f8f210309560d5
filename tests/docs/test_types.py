"""The types of the public calls: checkers know them, and programs load nothing for them.

``mypy`` checks the examples in the same run as the package; with PyTorch and JAX they are checked by ``.ci/types``.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MYPY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]


def modules_after(statement: str) -> set[str]:
    command = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    return set(
        subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_package_loads_no_other_module_of_it() -> None:
    loaded = modules_after("import tilewright")
    assert {name for name in loaded if name.startswith("tilewright")} == {"tilewright"}
    assert not loaded & {"numpy", "typing_extensions", "inspect", "dataclasses"}


@pytest.mark.slow
def test_a_product_loads_nothing_for_types() -> None:
    loaded = modules_after("import tilewright as tw; tw.matmul([[1.0]], [[1.0]]); tw.gram([[1.0]]); tw.multiply")
    assert "tilewright.api.matmul" in loaded
    assert not loaded & {"tilewright.product.array_types", "torch", "jax", "cupy", "dask"}


def test_every_example_is_checked_strictly() -> None:
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    left = {Path(path).stem for path in MYPY["exclude"]}
    strict = next(each for each in MYPY["overrides"] if each.get("disallow_untyped_defs"))
    assert set(strict["module"]) | left == scripts
    assert all("import torch" in (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") for name in left)


@pytest.mark.slow
@pytest.mark.thorough  # after the checks of the whole package, whose results mypy keeps
def test_a_wrong_type_a_misspelt_name_and_a_misspelt_option_are_found(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install -e '.[dev]'")
    right = (ROOT / "examples" / "typed.py").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        right.replace("tw.matmul(a, b), NDArray[np.float32]", "tw.matmul(a, b), NDArray[np.float64]", 1)
        + "\ntw.matmull(1, 2)\ntw.matmul([[1]], [[2]], precison='fast')\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(wrong)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "[assert-type]" in done.stdout
    assert 'has no attribute "matmull"' in done.stdout
    assert 'Unexpected keyword argument "precison"' in done.stdout
    assert "Found 3 errors" in done.stdout or "Found 4 errors" in done.stdout, done.stdout
