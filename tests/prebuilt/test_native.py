"""The C front: what is built, and where Python does without it."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.cpu import native
from tilewright.prebuilt import build as building

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in which the extension is built, and nothing else."""
    shutil.copytree(building.PACKAGE / "cpu" / "native", tmp_path / "cpu" / "native")
    monkeypatch.setattr(building, "PACKAGE", tmp_path)
    return tmp_path


@pytest.mark.thorough
@compiler
def test_the_extension_is_built_once_for_each_sources(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CFLAGS", raising=False)
    made = building.build_native()
    assert made.parent == package
    assert native.front_key().encode() in made.read_bytes()
    building.build_native()
    monkeypatch.setattr(building, "front_key", lambda: "another")
    building.build_native()
    monkeypatch.setenv("CFLAGS", "-O0 -g")
    building.build_native()
    assert capsys.readouterr().out.count("built _native") == 3


@pytest.mark.thorough
@compiler
def test_an_error_of_the_compiler_is_told(package: Path) -> None:
    (package / "cpu" / "native" / "gpu.c").write_text("no C at all")
    with pytest.raises(building.BuildError, match=r"gpu\.c"):
        building.build_native()


def test_without_headers_there_is_no_extension(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building.sysconfig, "get_paths", lambda: {"include": str(package)})
    assert building.build_native() is None
    assert "no Python.h: install Python's headers" in capsys.readouterr().out
    assert not list(package.glob("_native*"))


def test_the_extension_for_another_architecture_is_not_found_by_this_interpreter() -> None:
    here, there = (building.native_file(arch) for arch in (platform.machine(), "another"))
    assert here.parent == building.PACKAGE
    assert there.parent != building.PACKAGE
    assert here.name == there.name


def test_an_extension_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(key=native.front_key())
    monkeypatch.setattr(native.importlib, "import_module", lambda name: found)
    assert native.front.__wrapped__() is found
    found.key = "another"
    assert native.front.__wrapped__() is None


def test_without_an_extension_and_without_a_gil_there_is_no_front(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    with monkeypatch.context() as patch:
        patch.setattr(native.importlib, "import_module", missing)
        assert native.front.__wrapped__() is None
    monkeypatch.setattr(sys, "abiflags", "t")
    assert native.front.__wrapped__() is None
