"""Paragraphs and list items of the documents are short."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: The most words of a paragraph or of an item, with code and formulas. Cells of tables and blocks of code are not counted.
MOST = 95
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def passages(text: str) -> list[tuple[int, str]]:
    """The first line and the words of each paragraph, also of those in lists and quotations.

    >>> passages("# One\\n\\nTwo *three*\\nfour `five six`.\\n\\n- seven\\n\\n  eight\\n")
    [(3, 'Two three four five six.'), (6, 'seven'), (8, 'eight')]
    """
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found = []
    for before, token in itertools.pairwise(tokens):
        if before.type != "paragraph_open" or token.map is None:
            continue
        words = [" " if child.type == "softbreak" else child.content for child in token.children or []]
        found.append((token.map[0] + 1, "".join(words)))
    return found


def too_long(text: str) -> list[str]:
    """The passages of more than ``MOST`` words, each as its line, its length and its beginning."""
    counted = [(line, len(words.split()), words) for line, words in passages(text)]
    return [f"line {line}: {count} words: {words[:60]}" for line, count, words in counted if count > MOST]


def hidden_lists(text: str) -> list[int]:
    """The lines of lists that follow a paragraph without a blank line. The site shows these as part of the paragraph."""
    tokens = MarkdownIt("commonmark").parse(text)
    lines = text.splitlines()
    starts = [token.map[0] for token in tokens if token.type.endswith("_list_open") and token.level == 0 and token.map]
    return [start + 1 for start in starts if start and lines[start - 1].strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_passages_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert too_long(text) == []
    assert hidden_lists(text) == []


def test_a_long_passage_is_found() -> None:
    long, right = " ".join(["word"] * (MOST + 1)), " ".join(["word"] * MOST)
    assert too_long(f"# A\n\n{right}\n\n- {right}\n- {right}\n") == []
    assert [found[:17] for found in too_long(f"# A\n\n{long}\n")] == ["line 3: 96 words:"]
    assert [found[:17] for found in too_long(f"- short\n- {long}\n")] == ["line 2: 96 words:"]
    assert [found[:17] for found in too_long(f"- short\n\n  {long}\n")] == ["line 3: 96 words:"]
    assert [found[:17] for found in too_long(f"> {long}\n")] == ["line 1: 96 words:"]
    assert too_long(f"| {long} |\n| --- |\n| {long} |\n") == []
    assert too_long(f"```\n{long}\n```\n") == []


def test_a_list_without_a_blank_line_is_found() -> None:
    assert hidden_lists("One\n\n- two\n- three\n") == []
    assert hidden_lists("One\n- two\n") == [2]
