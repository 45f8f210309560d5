"""``require``: which measures there are, what breaks a requirement, and which lines the message names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import RequirementError, UsageError
from tilewright.records.explanation import Access, Defect
from tilewright.simulator.findings import BY_THE_LETTER, IN_LIBRARY, SURE
from tilewright.simulator.microscope import Observation
from tilewright.simulator.requirements import broken_requirements, required, required_in

ACCESSES = [
    Access(3, "global", "ld", 4, 10, 1280, sectors=40, least=40),
    Access(4, "global", "ld", 4, 10, 1280, sectors=320, least=40, exact=False),
    Access(5, "shared", "ld", 4, 10, 1280, wavefronts=320, conflicts=310, least=10),
    Access(6, "shared", "st", 4, 10, 1280, wavefronts=10, least=10, file="a.cuh", inside="lib.hpp:9"),
    Access(7, "local", "st", 4, 1, 128, sectors=4, least=4),
]
DEFECTS = [Defect("race", 3, (0, 0, 0), (0, 0, 0), "text", grade=grade) for grade in (SURE, BY_THE_LETTER, IN_LIBRARY)]
COUNTER = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def broken(measure: str, comparison: Any) -> list[str]:
    """The lines of text for one requirement; none if it is kept."""
    found = broken_requirements([required(measure, comparison)], DEFECTS, ACCESSES, {COUNTER: 310})
    return [line for each in found for line in each.lines("k.cu")]


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ("findings", 2), ("sure_findings", 1), ("all_findings", 3), ("sectors", 364), ("local_sectors", 4),
        ("sectors_per_request", "== 17.333333333333332"), ("sectors_over_least", "<= 4.34"), ("wavefronts", 330),
        ("wavefronts_per_request", 16.5), ("wavefronts_over_least", 16.5), ("bank_conflicts", 310), (COUNTER, 310),
        ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 0),
    ],
)  # fmt: skip
def test_each_measure_is_kept_and_broken(measure: str, value: Any) -> None:
    assert not broken(measure, value)
    assert broken(measure, "> 1_000")


def test_what_is_said_of_a_sum_and_of_a_ratio() -> None:
    assert broken("bank_conflicts", 0) == [
        "bank_conflicts == 0: it is 310",
        "  k.cu:5: 310 bank conflicts (shared ld)",
    ]
    assert broken("sectors_per_request", "<= 4.1") == [
        "sectors_per_request <= 4.1: it is ≈ 17.3333",
        "  k.cu:4: 32 sectors per request (global ld)",
    ], "only the lines that exceed it"
    assert broken("wavefronts", "< 4")[2] == "  a.cuh:6: 10 wavefronts (shared st; called from here: lib.hpp:9)"
    assert broken("findings", 0) == [
        "findings == 0: there are 2",
        "  k.cu:3: race: text",
        "  k.cu:3: race (by the letter of PTX): text",
    ]


def test_further_lines_are_counted() -> None:
    many = [replace(ACCESSES[2], line=line) for line in range(1, 9)]
    (found,) = broken_requirements([required("bank_conflicts", 0)], [], many, {})
    assert len(found.places) == 8
    assert found.lines("k.cu")[-1] == "  and 3 more lines"


def test_a_ratio_of_nothing_is_broken() -> None:
    (found,) = broken_requirements([required("sectors_per_request", "<= 4")], [], ACCESSES[2:4], {})
    assert found.lines("k.cu") == ["sectors_per_request <= 4: the launch accesses no global or local memory"]


@pytest.mark.parametrize("text", ["findings=0", "findings == 0", "bank_conflicts<=1_000", "sectors_per_request < 4.5"])
def test_requirements_as_text(text: str) -> None:
    name, relation, *_ = str(required_in(text)).split()
    assert (name, relation) == (text.split("=")[0].split("<")[0].strip(), "<=" if "<=" in text else relation)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("findngs=0", "'findngs' is no measure: did you mean findings"),
        ("findings", "must be such as findings=0"),
        ("findings=none", "must be a number or a comparison such as '<= 4.1', got '=none'"),
        ("findings<=-1", "got '<=-1'"),
        ("", "must be such as"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        required_in(text)


@pytest.mark.parametrize("value", [True, None, [0]])
def test_values_that_are_no_numbers(value: Any) -> None:
    with pytest.raises(UsageError, match="must be a number"):
        required("findings", value)


# ---- of a launch -----------------------------------------------------------------------------------------------------

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SOURCE = """
extern "C" __global__ void twice(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] = 2 * x[i];
    while (n < 0) { if (x[0] == 7) break; }
}
"""


def seen(n: int, **options: Any) -> Observation:
    return tw.microscope(SOURCE, "twice", 4, 32, [np.ones(100, np.float32), n], **options)


def test_a_launch_that_keeps_to_all(without_disassembly: None) -> None:
    observed = seen(99)
    assert observed.require(findings=0, sectors_per_request="<= 4") is observed
    assert observed.require() is observed


def test_a_launch_that_breaks_one_of_two(without_disassembly: None) -> None:
    with pytest.raises(AssertionError, match="twice breaks 1 of 2 requirements") as caught:
        seen(100).require(findings=0, bank_conflicts=0)
    assert isinstance(caught.value, RequirementError)
    _, first, place, *_ = str(caught.value).splitlines()
    assert first == "findings == 0: there is 1"
    assert place.startswith("  kernel.cu:5: out of bounds: ")
    with pytest.raises(RequirementError):
        seen(100).require()


def test_a_run_that_was_stopped_breaks_any(without_disassembly: None) -> None:
    with pytest.raises(RequirementError, match="the run was stopped"):
        seen(-1, max_steps=50).require(bank_conflicts=0)
