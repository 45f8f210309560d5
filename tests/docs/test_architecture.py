"""The map of the components and the list of sources say what the package has: no component and no cited row is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = re.compile(r"\bS[0-4](?:\.\d+)?\b")
SUFFIXES = {".py", ".cu", ".cuh", ".md", ".j2"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def components() -> list[str]:
    """The components of ``test_house.py``, in its order."""
    tree = ast.parse(text("tests/docs/test_house.py"))
    (listed,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPONENTS"
    )
    return re.findall(r"'([\w.]+)'", ast.unparse(listed))


def cited() -> dict[str, str]:
    """Every row of a source that code or a document cites, and a file that does so."""
    found = {}
    for folder in ("src", "docs", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.name != "sources.md":
                found |= dict.fromkeys(SOURCE.findall(path.read_text(encoding="utf-8")), path.name)
    return found


def rows() -> list[str]:
    """The sources and their rows, as docs/sources.md has them."""
    return re.findall(r"^(?:## |\| )(S\d(?:\.\d+)?)(?: \||$)", text("docs/sources.md"), re.MULTILINE)


def test_the_table_has_every_component_in_its_order() -> None:
    assert "api" in components()
    table = text("docs/architecture.md").partition("## The components")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w.]+)` \| \S", table, re.MULTILINE) == components()


@pytest.mark.parametrize(
    "term",
    ["transposed", "disjoint", "reference", "cache", "predicted", "cached block", "measured rate", "workspace"]
    + ["staging buffer", "eviction", "false sharing", "wake-up tree"],
)
def test_the_glossary_has_the_terms_of_the_house(term: str) -> None:
    assert re.search(rf"^\| {term} \| \S", text("docs/architecture.md").partition("## Glossary")[2], re.MULTILINE)


def test_every_citation_leads_to_a_row() -> None:
    known, missing = set(rows()), cited()
    assert {"S1", "S1.12"} <= missing.keys()
    assert {row: where for row, where in missing.items() if row not in known} == {}


def test_no_row_is_listed_that_nothing_cites() -> None:
    found = cited()
    assert len(set(rows())) == len(rows())
    assert [row for row in rows() if "." in row and row not in found] == []
