"""Rules of CONTRIBUTING.md, checked: the order of imports, what the report needs, and that importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent

#: The components in the order of the table in docs/architecture.md. A module imports only from its own component and those
#: before.
COMPONENTS = [
    *("errors", "records", "host", "cpu.native", "product"),
    *("cpu.codegen", "kernels", "cpu.engine", "cpu.kernels"),
    *("cpu.runtime", "cpu", "gpu.planning", "gpu.runtime", "gpu.arrays", "prebuilt", "large.files"),
    *("large.streaming.options", "large.streaming.plan", "large.streaming.places", "large.streaming.run"),
    *("large.cluster", "large.verification", "large", "api", "files", "dask", "torch", "jax"),
    *("records.compare", "records.report"),
    *("simulator.findings", "simulator.assembly", "simulator.counters"),
    *("simulator.machine", "simulator.ops", "simulator.run", "simulator"),
    *("lab.inputs", "lab.verify", "lab.bench", "lab.tune", "lab.explain", "lab.scale"),
    *("lab.terminal", "lab.cli", "__main__", "pytest_plugin"),
]

#: What the report may know of: a record file from any machine renders on any laptop.
REPORT_MAY_IMPORT = {"errors", "records", "records.compare"}

Graph = dict[str, set[str]]


def package_modules() -> dict[str, Path]:
    """Every module by its name below the package, such as "runtime.cpu.runner"; a folder's ``__init__`` by the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(folders if name == "__init__" else [*folders, name])] = path
    del found[""]
    return found


MODULES = package_modules()


def component(module: str) -> str | None:
    """The longest of ``COMPONENTS`` that the module lies in."""
    return max(
        (component for component in COMPONENTS if f"{module}.".startswith(f"{component}.")), key=len, default=None
    )


def imports(module: str, source: str, is_package: bool = False) -> set[str]:
    """The package's modules that a source imports, also inside functions."""
    parts = module.split(".")
    folder = parts if is_package else parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else (node.module or "").split(".")
            if node.level:
                base = [*base, *(node.module.split(".") if node.module else [])]
            elif base.pop(0) != "tilewright":
                continue
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                found.add(whole if whole in MODULES else ".".join(base))
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("tilewright.")}
    return found - {"", module}


def upward(module: str, source: str, is_package: bool = False) -> set[str]:
    """The imports of a module that break the rule."""
    own = component(module)
    assert own is not None
    below = {own} | (REPORT_MAY_IMPORT if own == "records.report" else set(COMPONENTS[: COMPONENTS.index(own)]))
    return {name for name in imports(module, source, is_package) if component(name) not in below}


def cycles(graph: Graph) -> list[set[str]]:
    """The sets of modules that import each other, each module of a set reaching every other one of it."""
    reach = {module: set(targets) for module, targets in graph.items()}
    for between in graph:
        for reached in reach.values():
            if between in reached:
                reached |= reach[between]
    found = {frozenset(x for x in graph if x in reach[m] and m in reach[x]) for m in graph if m in reach[m]}
    return [set(one) for one in found]


def test_every_module_has_a_component() -> None:
    assert {module for module in MODULES if component(module) is None} == {"gpu", "lab"}


@pytest.mark.parametrize("module", [name for name in MODULES if component(name)])
def test_imports_point_downward(module: str) -> None:
    path = MODULES[module]
    assert not upward(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")


@pytest.mark.slow
def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imports(name, path.read_text(), path.name == "__init__.py") for name, path in MODULES.items()}
    assert not cycles(graph)


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("host.machine", "from ..kernels import Kernel"),
        ("host.machine", "def f():\n    from ..lab.bench import cpu"),
        ("kernels.cpu.01_naive", "from tilewright.cpu.runtime.runner import runner"),
        ("kernels.cpu.01_naive", "import tilewright.api.matmul"),
        ("api.matmul", "from ..lab.bench import cpu"),
        ("large.streaming.plan.grid", "from ..places import host"),
        ("records.report.page", "from ...host.machine import machine"),
    ],
)
def test_the_rule_can_be_broken(module: str, source: str) -> None:
    assert upward(module, source)


def loaded_by(statement: str) -> set[str]:
    command = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"numba", "llvmlite", "typer", "rich", "jinja2", "altair", "vl_convert", "cuda", "psutil", "threadpoolctl"}
    assert not loaded_by("import tilewright") & (heavy | {"numpy"})
    assert not loaded_by("import tilewright as tw, numpy as np; tw.matmul(np.eye(3), np.eye(3))") & (
        heavy - {"numba", "llvmlite"}
    )


def test_a_product_on_a_gpu_needs_no_numba() -> None:
    """It takes longer to import than a GPU to open."""
    assert not loaded_by("import tilewright.large.multiply") & {"numba", "llvmlite", "cuda"}


def test_the_plugin_for_pytest_loads_nothing_more() -> None:
    """Every run of pytest loads it where the package is installed."""
    loaded = loaded_by(
        "import pytest; before = set(sys.modules); import tilewright.pytest_plugin; "
        "sys.modules = {name: 0 for name in sys.modules if name not in before}"
    )
    assert loaded == {"tilewright"}


@pytest.mark.slow
def test_rendering_a_report_needs_no_numerical_library() -> None:
    """A page of a committed record, rendered; drawing its charts may load NumPy, which Altair's own dependencies do."""
    record = Path(__file__).parents[2] / "benchmarks" / "cpu-openblas-avx512.jsonl"
    imports = "from tilewright.records.bench import read_records; from tilewright.records.report import render"
    loaded = loaded_by(f"{imports}; page = render(read_records({str(record)!r})); assert '</html>' in page")
    assert "altair" in loaded
    assert not loaded & {"numba", "llvmlite", "cuda"}


@pytest.mark.slow
def test_public_names_are_there_whatever_was_imported_first() -> None:
    modules = "api.matmul", "cpu.plan", "host.machine", "kernels.catalog"
    first = f"import {', '.join(f'tilewright.{each}' for each in modules)}, tilewright as tw"
    check = "assert all(callable(getattr(tw, n)) or n == 'errors' for n in tw.__all__); assert tw.__all__ == dir(tw)"
    subprocess.run([sys.executable, "-c", f"{first}; {check}"], check=True)


# ---- two different things never share a name --------------------------------------------------------------------------

#: Public functions that several modules define under one name, and why.
SHARED_NAMES = {
    "add_corner": "each kernel writes the tiles at the edges of its own C",
    "copy_rows": "each kernel of the engine packs for its own inner loop",
    "pack_a": "each kernel packs A in its own order",
    "pack_b": "each kernel packs B in its own order",
    "write": "what a kernel of the engine gives team_product, which writes its tiles to C",
    "workspace": "what a kernel of the engine declares",
    "suits": "what a kernel of the engine declares",
    "one_level": "the same step of two rungs that differ in it",
    "matmul": "the same product, of arrays in memory, of Dask arrays, of PyTorch's and of JAX's",
    "einsum": "the same contraction, of any arrays and of PyTorch's",
    "grouped_matmul": "the same product, of any arrays and of PyTorch's",
    "gram": "the same product, of any arrays and of PyTorch's",
    "main": "what `python -m` runs",
    "gpu_at": "arrays.libraries imports it only when it is called",
    "device_of": "arrays.libraries imports it only when it is called",
}


def definitions(source: str) -> tuple[set[str], set[str]]:
    """The classes of a module, and its public functions; but not those that only call one of the same name."""
    body = ast.parse(source).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return classes, {node.name for node in functions if not passes_on(node)}


def passes_on(function: ast.FunctionDef) -> bool:
    """Whether all that a function does is to call one of its own name in a module."""
    statements = [node for node in function.body if not isinstance(node, ast.Expr)]
    match statements:
        case [ast.Return(value=ast.Call(func=ast.Attribute(attr=name)))]:
            return name == function.name
    return False


def shared_names(sources: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Names of classes, and of public functions, that more than one module defines."""
    found = [definitions(source) for source in sources.values()]
    classes, functions = ([name for one in found for name in one[kind]] for kind in (0, 1))
    return {n for n in classes if classes.count(n) > 1}, {n for n in functions if functions.count(n) > 1}


@pytest.mark.thorough
def test_two_different_things_never_share_a_name() -> None:
    classes, functions = shared_names({name: path.read_text(encoding="utf-8") for name, path in MODULES.items()})
    assert not classes
    assert functions == set(SHARED_NAMES), "part them, or say in SHARED_NAMES why one name is right"


def test_a_shared_name_is_found() -> None:
    planted = {
        "a": "class Row: pass\ndef run(): pass\ndef _own(): pass",
        "b": "class Row: pass\ndef run(): pass\ndef _own(): pass\ndef page(): pass",
        "c": 'def page():\n    """The page."""\n    return load(\'b\').page()',
    }
    assert shared_names(planted) == ({"Row"}, {"run"})
