"""A few hundred mutated journals; ``benchmarks/fuzz_journals.py`` tries thousands, and looks for new ways with atheris."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mutated_journals import Unfinished, changed, forged, small_places
from tilewright.large.streaming.run import journal as module
from tilewright.large.streaming.run.journal import BegunProduct

COUNT = 100


@pytest.fixture
def unfinished(tmp_path: Path) -> Iterator[Unfinished]:
    with small_places(tmp_path):
        yield Unfinished.begun()


def verdicts(unfinished: Unfinished, kind: str, count: int) -> Counter[str]:
    """Of so many journals, each of a seed of its own."""
    found: Counter[str] = Counter()
    for seed in range(count):
        rng = random.Random(seed)
        made = (
            changed(rng, unfinished.journal, unfinished.other) if kind == "changed" else forged(rng, unfinished.journal)
        )
        found[unfinished.verdict(made)] += 1
    return found


def test_without_a_change_the_product_is_taken_up(unfinished: Unfinished) -> None:
    assert unfinished.verdict(unfinished.journal) == "whole"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["changed", "forged"])
def test_a_mutated_journal_is_refused_or_gives_the_right_product(unfinished: Unfinished, kind: str) -> None:
    """Only a line with a right digest can name a tile that was not computed."""
    found = verdicts(unfinished, kind, COUNT)
    assert not found.keys() - {"refused", "whole", *(["lie"] if kind == "forged" else [])}, found
    assert found["refused"] > COUNT // 2
    assert found["whole"] > COUNT // 20
    assert found["lie"] < COUNT // 20


@pytest.mark.parametrize(("kind", "guard"), [("changed", "digests"), ("forged", "checks")])
def test_without_a_guard_some_journal_would_do_harm(
    unfinished: Unfinished, kind: str, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if guard == "digests":
        monkeypatch.setattr(module, "_checked", lambda line, _: (json.loads(line), b""))
    else:
        monkeypatch.setattr(BegunProduct, "check", lambda *_: None)
    assert verdicts(unfinished, kind, COUNT // 4).keys() - {"refused", "whole", "lie"}
