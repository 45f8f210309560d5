"""Every example that is printed runs: docstrings, README, docs. And no document says what the records do not."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import linecache
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import typer

import tilewright

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tilewright.__file__).parent
NEEDS_TORCH = "torch is not installed: pip install 'tilewright[torch]'"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def module_names() -> list[str]:
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    parts = [("tilewright", *path.relative_to(PACKAGE).with_suffix("").parts) for path in paths]
    return [".".join(part for part in names if part != "__init__") for names in parts]


@pytest.mark.slow_cases("tilewright", "tilewright.api", "tilewright.lab.explain.cpu", "tilewright.simulator.microscope")
@pytest.mark.parametrize("name", module_names())
def test_docstrings(name: str) -> None:
    if name in ("tilewright.torch", "tilewright.gpu.arrays.torch_operator", "tilewright.gpu.arrays.torch_grouped"):
        pytest.importorskip("torch", reason=NEEDS_TORCH)
    if name in ("tilewright.jax", "tilewright.gpu.arrays.jax_operator"):
        pytest.importorskip("jax", reason="jax is not installed: pip install 'tilewright[jax]'")
    module = importlib.import_module(name)
    linecache.clearcache()  # or for each docstring the runner's debugger looks at every file that is in it
    assert doctest.testmod(module).failed == 0


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.slow_cases(
    "README.md",
    "docs/microscope.md",
    "docs/asynchronous.md",
    "docs/guides/matmul.md",
    "docs/guides/cluster.md",
    "docs/guides/explain.md",
)
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents(path: Path) -> None:
    if path.stem == "pytorch":
        pytest.importorskip("torch", reason=NEEDS_TORCH)
    assert doctest.testfile(str(path), module_relative=False).failed == 0


def commands() -> list[list[str]]:
    """Every ``tilewright …`` line of the documents, without its comment."""
    texts = [path.read_text(encoding="utf-8").replace("\\\n", " ") for path in DOCUMENTS]
    lines = [line for text in texts for line in text.splitlines()]
    typed = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("tilewright ")]
    return [shlex.split(line, comments=True)[1:] for line in typed]


def parsed(command: list[str]) -> None:
    """Parse a command line as the shell would hand it over, without running the command; raises what the parser does."""
    from tilewright.lab.cli import app

    group = typer.main.get_command(app)  # a new object at each call
    for subcommand in group.commands.values():
        subcommand.callback = None
    group.main(command, "tilewright", standalone_mode=False)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_documented_commands_parse(command: list[str]) -> None:
    """The option parser accepts it; running it is other tests' work."""
    parsed(command)


@pytest.mark.parametrize("typed", ["explain naive --sized 64", "explain naive --size", "explian naive", "compare one"])
def test_a_command_that_does_not_parse_is_found(typed: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|requires an argument|missing (argument|parameter)"):
        parsed(typed.split())


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_documents_say_what_the_records_say(build: ModuleType) -> None:
    assert build.stale() == []


WITH_OUTPUTS = [path for path in DOCUMENTS if "<!-- output: " in path.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("path", WITH_OUTPUTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_show_what_the_commands_print(build: ModuleType, path: Path) -> None:
    assert path in build.documents()
    if build.differing():
        pytest.skip(f"other versions than docs/constraints.txt has: {'; '.join(build.differing())}")
    assert build.written(path) == path.read_text(encoding="utf-8")


def test_the_guide_shows_the_transpose_that_it_explains() -> None:
    guide = (ROOT / "docs" / "guides" / "explain.md").read_text(encoding="utf-8")
    source = (ROOT / "examples" / "transpose.cu").read_text(encoding="utf-8")
    assert f"```c\n{source}```\n" in guide


#: The pictures of pipelines; those that take no second are compared in every run.
PICTURES = [
    "ring-timeline",
    "ring-full",
    "ring-empty",
    *(
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ("product-timeline", *(f"swizzle-{kind}" for kind in ("none", 32, 64, 128, "contradicted")))
    ),
]


@pytest.mark.slow_cases("swizzle", "timeline", "full")
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_show_what_the_microscope_records(build: ModuleType, name: str) -> None:
    if build.differing():
        pytest.skip(f"other versions than docs/constraints.txt has: {'; '.join(build.differing())}")
    assert name in build.pipelines.PICTURES
    for theme, end in (("light", ""), ("dark", "-dark")):
        path = ROOT / "docs" / "figures" / f"{name}{end}.svg"
        assert build.pipelines.drawn(name, theme) == path.read_text(encoding="utf-8"), "run python docs/build.py"


def test_every_picture_of_a_pipeline_is_compared_and_shown(build: ModuleType) -> None:
    compared = {each if isinstance(each, str) else each.values[0] for each in PICTURES}
    assert compared == set(build.pipelines.PICTURES)
    chapter = (ROOT / "docs" / "asynchronous.md").read_text(encoding="utf-8")
    assert all(f"figures/{name}.svg" in chapter and f"figures/{name}-dark.svg" in chapter for name in compared)


@pytest.mark.slow
def test_a_document_depends_on_no_version_of_a_dependency(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under others than the pinned versions, what the records say is the same, and no output is made."""
    monkeypatch.setattr(build, "compiler", lambda: "NVRTC 99.0")
    monkeypatch.setattr(build, "version", lambda library: "98.0")
    monkeypatch.setattr(build, "output", lambda command: pytest.fail("an output of other versions"))
    assert "nvidia-cuda-nvrtc 99.0, not 13." in "; ".join(build.differing())
    assert len(build.differing()) == len(build.pinned())
    before = {path: path.read_bytes() for path in build.documents()}
    assert build.main([]) == 2
    assert build.main(["--check"]) == 0
    assert "rich 98.0, not " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in build.documents()} == before


@pytest.mark.slow
def test_a_stale_output_is_found(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "tilewright occupancy 64 --registers 50 --shared 2248 --gpu T4"
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text(f"<!-- output: {command} -->\n{build.output(command)}<!-- end -->\n", encoding="utf-8")
    bad.write_text(good.read_text(encoding="utf-8").replace("16", "15"), encoding="utf-8")
    monkeypatch.setattr(build, "documents", lambda: [good, bad])
    assert build.stale() == []
    assert build.stale(outputs=True) == [bad]
    with pytest.raises(RuntimeError, match=r"(?i)no such option"):
        build.output("tilewright occupancy 64 --cards T4")


def test_a_stale_document_is_found(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "stale.md"
    stale.write_text("<!-- generated: ideas cpu -->\nsomething else\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(build, "documents", lambda: [stale])
    assert build.stale() == [stale]


def test_links_from_documents_lead_somewhere(build: ModuleType) -> None:
    for path in build.documents():
        words = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)  # without code
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", words):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
