"""The rules of the house, checked: imports point downward, the report needs no kernel, importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent

#: Bottom to top. A module may import from those before it, and within its own folder.
LAYERS = [
    *("legible", "errors", "disk", "json_data", "records", "explanation_rules", "explanation", "timeline"),
    *("problem", "system", "machine", "limits", "operands", "interrupts", "threads"),
    *(
        "simd",
        "peaks",
        "kernels",
        "run",
        "prediction",
        "planner",
        "gpu",
        "files",
        "schedule",
        "factors",
        "api",
        "lab",
        "report",
        "terminal",
        "cli",
        "__main__",
    ),
]

#: What the report may know of: a record file from any machine renders on any laptop.
REPORT_MAY_IMPORT = {"legible", "errors", "records", "explanation", "timeline"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    """The layer a file belongs to: its folder under the package, or its own name."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0].removesuffix(".py")


def imported_rooms(path: Path, source: str) -> set[str]:
    """The layers that a file imports from, also inside functions."""
    package = ("tilewright", *path.relative_to(PACKAGE).parts[:-1])
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        targets: list[str] = []
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            targets = [f"{module}.{alias.name}" if module == "tilewright" else module for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        rooms |= {t.split(".")[1] for t in targets if t.startswith("tilewright.")}
    return rooms


def upward(path: Path, source: str) -> set[str]:
    """The imports of a file that break the rule."""
    own = room(path)
    if own == "report":
        return imported_rooms(path, source) - REPORT_MAY_IMPORT - {own}
    below = set(LAYERS[: LAYERS.index(own)])
    return imported_rooms(path, source) - below - {own}


def test_every_module_has_a_layer() -> None:
    assert {room(path) for path in modules()} == set(LAYERS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    assert not upward(path, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("machine.py", "from .kernels import catalog"),
        ("machine.py", "def f():\n    from .lab import bench"),
        ("kernels/cpu/01_naive.py", "from tilewright.run.cpu import runner"),
        ("kernels/cpu/01_naive.py", "import tilewright.api"),
        ("api.py", "from .lab import bench"),
        ("report/page.py", "from ..machine import machine"),
    ],
)
def test_the_rule_can_be_broken(where: str, source: str) -> None:
    assert upward(PACKAGE / where, source)


def loaded_by(statement: str) -> set[str]:
    command = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"numba", "llvmlite", "typer", "rich", "jinja2", "altair", "vl_convert", "cuda", "psutil", "threadpoolctl"}
    assert not loaded_by("import tilewright") & (heavy | {"numpy"})
    assert not loaded_by("import tilewright as tw, numpy as np; tw.matmul(np.eye(3), np.eye(3))") & (
        heavy - {"numba", "llvmlite"}
    )


def test_rendering_a_report_needs_no_numerical_library() -> None:
    loaded = loaded_by("import tilewright.report.page")
    assert not loaded & {"numba", "llvmlite", "cuda"}


def test_public_names_are_there_whatever_was_imported_first() -> None:
    first = "import tilewright.api, tilewright.planner, tilewright.machine, tilewright.kernels, tilewright as tw"
    check = "assert all(callable(getattr(tw, n)) or n == 'errors' for n in tw.__all__); assert tw.__all__ == dir(tw)"
    subprocess.run([sys.executable, "-c", f"{first}; {check}"], check=True)


def test_kernels_stay_short_and_host_files_readable() -> None:
    long = {str(p.relative_to(PACKAGE)): n for p in modules() if (n := len(p.read_text().splitlines())) > 340}
    assert not long, "longer than a reader likes: reshape first"
