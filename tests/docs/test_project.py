"""What other tools read agrees: pyproject.toml, the policy on versions, CITATION.cff, the recipe, templates of issues."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tilewright

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PYTHON = PROJECT["requires-python"].removeprefix(">=")
(NUMPY,) = (each.removeprefix("numpy>=") for each in PROJECT["dependencies"])


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def loaded(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install -e '.[docs]'")
    return yaml.safe_load(text(name))


def test_the_oldest_versions_are_the_same_everywhere() -> None:
    assert f"**Python {PYTHON} and later**, and **NumPy {NUMPY} and later**" in " ".join(text("docs/start.md").split())
    assert f"numpy=={NUMPY}.0\n" in text("tests/oldest.txt")
    assert f"Python {PYTHON} or later" in text("README.md")
    versions = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert versions[0] == PYTHON
    workflow = re.findall(r'"(3\.\d+)"', text(".github/workflows/ci.yml"))
    assert [versions[0], versions[-1]] == workflow
    assert PYPROJECT["tool"]["mypy"]["python_version"] == PYPROJECT["tool"]["pyright"]["pythonVersion"] == PYTHON


def test_a_group_of_dependencies_repeats_no_list() -> None:
    extras = PROJECT["optional-dependencies"]
    for name, needed in PYPROJECT["dependency-groups"].items():
        named = [each for each in needed if isinstance(each, str)]
        assert all(re.fullmatch(r"tilewright\[[\w,]+\]", each) for each in named), name
        assert {one for each in named for one in each[11:-1].split(",")} <= set(extras)
        assert name in extras


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert tilewright.__version__ == version
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert f'\n  version: "{version}"\n' in text("packages/conda/recipe.yaml")


def test_the_recipe_asks_for_the_versions_of_the_project() -> None:
    recipe = loaded("packages/conda/recipe.yaml")
    known = {"torch": "pytorch", "dask[array]": "dask"}
    extras = [each for needed in PROJECT["optional-dependencies"].values() for each in needed]
    stated = dict[str, str]()
    for each in [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"], *extras]:
        name, _, version = each.partition(">=")
        stated[known.get(name, name)] = version.partition(",")[0]
    needed = recipe["requirements"]
    asked = [each.split(" >=") for part in ("host", "run", "run_constraints") for each in needed[part] if ">=" in each]
    assert dict(asked) == {name: stated[name] for name, _ in asked}
    assert {each.partition(">=")[0] for each in PROJECT["dependencies"]} <= {each.split()[0] for each in needed["run"]}
    assert f'match(python, "<{PYTHON}")' in recipe["build"]["skip"]
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry == f"tilewright = {PROJECT['scripts']['tilewright']}"


def test_the_recipe_builds_the_levels_of_the_wheels() -> None:
    (levels,) = re.findall(r'x86_64\) levels="([^"]+)"', text(".ci/wheels"))
    assert f'else "{levels}"' in text("packages/conda/recipe.yaml")


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_a_template_of_issues_can_be_shown(path: Path) -> None:
    form = loaded(f".github/ISSUE_TEMPLATE/{path.name}")
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert set(form) == {"name", "description", "labels", "body"}
    asked = [item for item in form["body"] if item["type"] != "markdown"]
    assert len({item["id"] for item in asked}) == len(asked) > 1
    assert all(item["type"] in ("textarea", "dropdown") and item["attributes"]["label"] for item in asked)
    assert any(item["validations"]["required"] for item in asked)


def test_the_citation_has_what_its_schema_requires() -> None:
    citation = loaded("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    assert all("name" in author or "family-names" in author for author in citation["authors"])


def test_the_changes_are_for_users() -> None:
    """The sections of Keep a Changelog, and one line for each change."""
    changes = text("CHANGELOG.md")
    titles = re.findall(r"^### (.+)$", changes, re.MULTILINE)
    assert set(titles) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert re.findall(r"^## (.+)$", changes, re.MULTILINE)[0] == "[Unreleased]"
    body = changes.partition("\n### ")[2].splitlines()
    assert [line for line in body if line.startswith(" ")] == []
    assert [line for line in body if len(line) > 155] == []
