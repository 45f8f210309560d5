"""Source and pictures of an explanation: what stands in the margin, and drawings held to the hardware's rules."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("vl_convert", reason="the report's lab extra is not installed")
pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support.explanations import (
    access,
    explanation,
    line_of,
    shared_tile,
    uncoalesced,
    with_defect,
)
from tilewright.records import report
from tilewright.records.explanation import Access, Defect
from tilewright.records.report import access_picture, source_view
from tilewright.simulator.counters.sectors import IDLE, global_sectors, local_sectors

DATA = Path(__file__).parents[1] / "data"


# ---- the source ----


@given(st.text(alphabet="/*\"'\\#\n 0x1.5ef{}int_a<>;&", max_size=60))
def test_colouring_loses_no_character(source: str):
    assert "".join(text for _, text in source_view.cuda_tokens(source)) == source


def test_colouring_knows_cuda():
    source = (
        '#pragma unroll\n__global__ void k(float4* x) { /* two\nlines */ x[threadIdx.x] = 0x1F + 1.5e-3f; } // "no"'
    )
    kinds = {text: kind for kind, text in source_view.cuda_tokens(source) if kind}
    assert kinds == {
        "#pragma": "directive", "__global__": "cuda", "void": "keyword", "float4": "cuda", "/* two\nlines */": "comment",
        "threadIdx": "cuda", "0x1F": "numeral", "1.5e-3f": "numeral", '// "no"': "comment",
    }  # fmt: skip


def test_margin_has_cost_requests_and_waste():
    view = source_view.source_view(with_defect(uncoalesced()), "e0")
    assert [line.number for line in view.header] == [1, 2, 3, 4, 5, 6]
    lines = {line.number: line for line in view.body}
    assert list(lines) == list(range(7, 18))
    loop = lines[line_of(uncoalesced().source, "sum +=")]
    (cost,) = loop.costs
    assert (cost.amount, cost.unit, cost.requests, cost.over) == ("270,336", "sectors", "16,384", "×6.6")
    assert cost.needed + cost.wasted == pytest.approx(100)
    # 67,584 turns of the L1 cache, and 16,384 requests: each takes one at least.
    assert cost.wasted / 100 == pytest.approx(1 - 16384 / 67584, rel=1e-3)
    assert [panel.facts for panel in loop.panels] == [
        "262,144 sectors for 8,192 requests, 32 each; 32,768 would be enough.",
        "8,192 sectors for 8,192 requests, 1 each.",
    ]
    assert [d.kind for d in loop.defects] == ["race"]
    assert [line.number for line in view.body if line.open] == [loop.number]
    assert not lines[7].costs
    assert not lines[7].panels


def test_a_line_with_two_memories_has_two_costs_on_one_scale():
    view = source_view.source_view(shared_tile(), "e0")
    line = next(line for line in view.body if "b_tile[x][y] =" in "".join(text for _, text in line.tokens))
    assert [(c.amount, c.unit) for c in line.costs] == [("8,192", "sectors"), ("8,192", "wavefronts")]
    assert sum((line.costs[1].needed, line.costs[1].wasted)) == pytest.approx(
        4 * sum((line.costs[0].needed, line.costs[0].wasted)), rel=0.01
    )


def test_instructions_that_do_alike_are_one_panel_and_the_rest_is_counted():
    alike = [access(8, "global", "ld", lambda i, s=s: 4 * i + s, 4, 10, 4) for s in (0, 128, 4096)]
    (panel,) = next(line for line in source_view.source_view(explanation("k", "\n" * 9 + "x", 32, *alike), "e").body
                    if line.number == 8).panels  # fmt: skip
    assert panel.title == "Global loads, 4 bytes per lane: 3 similar instructions"
    assert panel.facts == "120 sectors for 30 requests, 4 each."
    many = [access(8, "global", "ld", lambda i, s=s: 4 * s * i, 4 + s, 10, 4) for s in range(2, 12)]
    line = next(
        x for x in source_view.source_view(explanation("k", "\n" * 9 + "x", 32, *many), "e").body if x.number == 8
    )
    assert len(line.panels) == source_view.MOST
    assert line.more == "4 more kinds of access, each cheaper than these."
    assert line.panels[0].facts.startswith("150 sectors")


def test_a_dearest_request_is_called_that():
    """The engine keeps one example a line: 32 sectors here, where the average is 16.5."""
    load, broadcast, _ = uncoalesced().accesses
    both = replace(load, requests=2 * load.requests, sectors=load.sectors + broadcast.sectors)
    made = replace(uncoalesced(), accesses=[both])
    (panel,) = next(line for line in source_view.source_view(made, "e").body if line.costs).panels
    assert "16.5 each" in panel.facts
    assert panel.facts.endswith("The picture shows the most expensive one.")


def test_what_lies_on_no_line_of_the_source_is_shown_all_the_same():
    made = replace(uncoalesced(), defects=[Defect("race", 400, (0, 0, 0), (1, 0, 0), "far away")])
    made = replace(made, accesses=[*made.accesses, access(0, "global", "ld", lambda i: 4 * i, 4, 1, 4)])
    assert [line.number for line in source_view.source_view(made, "e").elsewhere] == [0, 400]
    assert "far away" in report.render_explanation([made])


# ---- the pictures ----


def test_passes_are_those_that_the_hardware_takes():
    """360 patterns counted on an H200: turns are wavefronts, and turns beyond one a pass are bank conflicts."""
    rows = [json.loads(line) for line in (DATA / "shared-memory-wavefronts-h200.jsonl").read_text().splitlines()]
    assert len(rows) == 360
    for row in rows:
        kind, nbytes = row["access"][:2], int(row["access"][2:])
        served = source_view.passes(kind, nbytes, [4 * word for word in row["word_offsets"]])
        turns = sum(one.turns for one in served)
        assert (turns, turns - len(served)) == (row["wavefronts"], row["bank_conflicts"]), row


LANES = st.lists(st.none() | st.integers(0, 1 << 14), min_size=32, max_size=32)


@pytest.mark.slow
@given(LANES, st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["global", "local"]))
def test_sectors_are_those_that_the_microscope_counts(lanes: list[int | None], nbytes: int, space: str):
    lanes = [None if at is None else at // nbytes * nbytes for at in lanes]
    seen = Access(1, space, "ld", nbytes, 1, 0, lanes=lanes)
    table = np.array([[IDLE if at is None else at for at in lanes]])
    count = (global_sectors if space == "global" else local_sectors)(table, nbytes)[0]
    asked = access_picture.asked_bytes(access_picture.ranges(seen))
    assert len(asked) == count
    drawn = access_picture.access_picture(seen, "e")
    assert (drawn is None) == (count == 0)
    if drawn:
        picture = ET.fromstring(drawn.svg)
        boxes = [box for box in picture.iter("rect") if (box.get("class") or "") in ("moved", "asked")]
        inside = [float(b.get("x", 0)) + float(b.get("width", 0)) for b in boxes]
        assert min(float(b.get("x", 0)) for b in boxes) >= 0
        assert max(inside) <= access_picture.WIDTH + 1


@pytest.mark.parametrize(
    ("seen", "caption"),
    [
        (access(1, "global", "ld", lambda i: 4 * i, 4, 1, 4),
         "32 lanes request 128 bytes side by side in 4 sectors, the fewest possible."),
        (access(1, "global", "ld", lambda i: 4000 * i, 32, 1, 4),
         "32 lanes request 128 bytes, 4,000 bytes apart, in 32 sectors; 4 would be enough."),
        (access(1, "global", "ld", lambda i: 0, 1, 1, 1),
         "32 lanes request the same 4 bytes in 1 sector, the fewest possible."),
        (access(1, "global", "st", lambda i: 4 * i if i == 7 else None, 1, 1, 1),
         "1 lane requests 4 bytes in 1 sector, the fewest possible."),
        (access(1, "local", "ld", lambda i: 16, 4, 1, 4), "32 lanes request 128 bytes in 4 sectors."),
        (access(1, "shared", "ld", lambda i: 4 * i, 1, 1, 1),
         "32 lanes request 32 different words of 4 bytes, no two of them in one bank: 1 wavefront, the fewest possible."),
        (access(1, "shared", "ld", lambda i: 128 * i, 32, 1, 1),
         "32 lanes request 32 different words of 4 bytes; 32 of them lie in bank 0: 32 wavefronts; 1 would be enough."),
        (access(1, "shared", "ld", lambda i: 64, 1, 1, 1),
         "32 lanes request one word of 4 bytes, a broadcast: 1 wavefront, the fewest possible."),
        (access(1, "shared", "st", lambda i: 16 * i, 4, 1, 4, 16),
         "32 lanes request 32 different words of 16 bytes in 4 groups of lanes, no two of a group in one bank: "
         "4 wavefronts, the fewest possible."),
        (access(1, "shared", "st", lambda i: 16 + 128 * i, 32, 1, 4, 16),
         "32 lanes request 32 different words of 16 bytes in 4 groups of lanes; 8 of a group lie in banks 4–7: "
         "32 wavefronts; 4 would be enough."),
    ],
)  # fmt: skip
def test_pictures_say_in_words_what_they_draw(seen: Access, caption: str):
    drawn = (source_view.bank_picture if seen.space == "shared" else access_picture.access_picture)(seen, "e0-1-0")
    assert drawn is not None
    assert drawn.caption == caption
    svg = ET.fromstring(drawn.svg)
    assert svg.get("aria-labelledby") == "e0-1-0-t e0-1-0-d"
    assert svg.findtext("desc") == caption


def test_wasted_bytes_are_hatched_and_memory_between_is_left_out():
    wasteful = access_picture.access_picture(access(1, "global", "ld", lambda i: 1 << 20 * (i % 2), 2, 1, 1), "e")
    assert wasteful is not None
    assert 'class="access wasteful"' in wasteful.svg
    assert wasteful.svg.count('class="moved"') == wasteful.svg.count('class="asked"') == 2
    assert 'class="dots"' in wasteful.svg
    fine = access_picture.access_picture(access(1, "global", "ld", lambda i: 4 * i, 4, 1, 4), "e")
    assert fine is not None
    assert not re.search(r'class="(moved|dots|access wasteful)"', fine.svg)


def test_bank_conflicts_stack_and_the_later_turns_stand_out():
    drawn = source_view.bank_picture(access(1, "shared", "ld", lambda i: 8 * i, 2, 1, 1), "e")
    assert drawn is not None
    assert drawn.svg.count('class="word"') == drawn.svg.count('class="word late"') == 16


def test_an_access_without_an_example_has_no_picture():
    nothing = replace(access(1, "shared", "ld", lambda i: None, 0, 5, 0), lanes=[])
    assert source_view.bank_picture(nothing, "e") is None
    assert access_picture.access_picture(replace(nothing, space="global"), "e") is None
    report.render_explanation([explanation("cuda/none", "x\n", 32, nothing)])
