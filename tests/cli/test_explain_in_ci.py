"""``explain`` in CI: requirements and the exit code, SARIF, and GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import Answer
from support.explanations import coalesced
from tilewright.lab.terminal.problems import CodeProblem, annotation, problems_of, sarif
from tilewright.records.explanation import Defect
from tilewright.simulator.findings import BY_THE_LETTER, IN_LIBRARY, SURE
from tilewright.simulator.requirements import broken_requirements, required

Cli = Callable[..., Answer]

SOURCE = """
__global__ void scale(const float* x, float* y, int n)
{
    __shared__ float tile[32][32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x][0] = x[i];
    if (i <= n) y[i] = 2 * tile[threadIdx.x][0];
}
"""


# ---- problems --------------------------------------------------------------------------------------------------------


def graded(*grades: str) -> list[Defect]:
    """A defect of each grade, the last of them in an included file."""
    places = ["", "", "inc/a.cuh"]
    return [
        Defect("race", i, (0, 0, 0), (1, 0, 0), "text", file, grade)
        for i, (grade, file) in enumerate(zip(grades, places, strict=False), 1)
    ]


def test_problems_have_levels_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "inc").mkdir(parents=True)
    (tmp_path / "src" / "inc" / "a.cuh").touch()
    (tmp_path / "src" / "k.cu").touch()
    e = replace(
        coalesced(), defects=graded(SURE, BY_THE_LETTER, IN_LIBRARY), verified={"ok": False, "reason": "C is off"}
    )
    found = problems_of(e, Path("src/k.cu"), [])
    assert [(p.rule, p.level, p.file, p.line) for p in found] == [
        ("race", "error", "src/k.cu", 1),
        ("race", "warning", "src/k.cu", 2),
        ("race", "note", "src/inc/a.cuh", 3),
        ("wrong result", "error", "src/k.cu", 0),
    ]
    assert found[1].text == "race (by the letter of PTX) in cuda/coalesced, block (0, 0, 0), thread (1, 0, 0): text"
    assert not problems_of(coalesced(), Path("src/k.cu"), [])


def test_broken_requirements_are_problems_at_their_lines() -> None:
    e = replace(coalesced(), defects=graded(SURE))
    asked = [required("findings", 0), required("sectors", 0), required("wavefronts_per_request", "<= 1")]
    found = problems_of(e, Path("k.cu"), broken_requirements(asked, e.defects, e.accesses, e.counters))
    assert [p.rule for p in found if p.line == 1] == ["race"], "the finding once, and not as a broken requirement too"
    sectors = [p for p in found if p.rule == "require sectors"]
    assert {p.line for p in sectors} == {access.line for access in e.accesses}
    assert "breaks sectors == 0: it is " in sectors[0].text
    assert [(p.line, p.level) for p in found if p.rule == "require wavefronts_per_request"] == [(0, "error")]


def test_sarif_has_a_rule_for_each_kind_and_a_line_for_each_result() -> None:
    problems = [
        CodeProblem("out of bounds", "error", "a b.cu", 7, "x"),
        CodeProblem("race", "note", "/inc/t.cuh", 0, "y"),
    ]
    (run,) = sarif([*problems, problems[0]])["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["out-of-bounds", "race"]
    assert [(r["ruleId"], r["ruleIndex"], r["level"]) for r in run["results"]] == [
        ("out-of-bounds", 0, "error"),
        ("race", 1, "note"),
        ("out-of-bounds", 0, "error"),
    ]
    places = [r["locations"][0]["physicalLocation"] for r in run["results"]]
    assert places[0]["artifactLocation"] == {"uri": "a%20b.cu", "uriBaseId": "%SRCROOT%"}
    assert places[1]["artifactLocation"] == {"uri": "file:///inc/t.cuh"}
    assert [place["region"]["startLine"] for place in places] == [7, 1, 7]


def test_an_annotation_is_one_line_whatever_it_says() -> None:
    text = annotation(CodeProblem("race", "warning", "a:b,c.cu", 0, "%r1\n::error::no"))
    assert text == "::warning file=a%3Ab%2Cc.cu,title=race::%25r1%0A::error::no"


# ---- the command -----------------------------------------------------------------------------------------------------

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")


@pytest.fixture
def explained(cli: Cli, tmp_path: Path, without_disassembly: None) -> Callable[..., Answer]:
    """Explains a kernel with bank conflicts; with n=64 it writes beyond its end, too."""
    (tmp_path / "scale.cu").write_text(SOURCE)
    launch = ["--grid", "2", "--block", "32", "--arg", "x:float32:64", "--arg", "y:float32:64"]
    return lambda n, *options: cli("explain", "scale.cu::scale", *launch, "--arg", f"n={n}", *options)


def test_requirements_decide_the_exit_code(explained: Callable[..., Answer]) -> None:
    kept = ["--require", "findings=0", "--require", "sectors_per_request<=4"]
    assert explained(63, *kept).code == 0
    code, out, _ = explained(63, *kept, "--require", "bank_conflicts = 0")
    assert code == 1
    assert out.endswith(
        "scale breaks 1 of 3 requirements\n"
        "bank_conflicts == 0: it is ≈ 62\n"
        "  scale.cu:6: 62 bank conflicts (shared st); pad the row from 32 to 33 elements of 4 bytes: wavefronts ≈ 64 → 2\n"
    )


def test_findings_are_errors_unless_a_requirement_names_them(
    cli: Cli, tmp_path: Path, without_disassembly: None
) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }')
    command = ["explain", "k.cu::k", "--block", "32", "--arg", "x:float32:31"]
    assert cli(*command, "--require", "bank_conflicts=0").code == 1
    assert cli(*command, "--require", "findings=0").code == 1
    assert cli(*command, "--require", "findings<=1").code == 0


def test_annotations_and_sarif(explained: Callable[..., Answer], tmp_path: Path) -> None:
    options = ["--annotations", "--sarif", "found.sarif", "--json", "record.json", "--expect", "y = 3 * x"]
    code, out, _ = explained(63, *options)
    assert code == 1
    (line,) = out.splitlines()
    assert line.startswith("::error file=scale.cu,title=wrong result::scale: 64 of 64 elements differ")
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert log["version"] == "2.1.0"
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == ["wrong-result"]
    assert explained(63, *options[:-1], "y = 2 * x") == Answer(0, "", "")
    assert json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"] == [], "no defect found is said too"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--require", "conflicts=0"], "'conflicts' is no measure"),
        (["--annotations", "--json", "-"], "--annotations and --json - both print on standard output"),
        (["--sarif", "a", "--json", "a"], "sarif: a is the file of json too"),
        (["--sarif", "no/where"], "sarif: no/where cannot be written"),
    ],
)
def test_what_is_refused_before_anything_runs(explained: Callable[..., Answer], options: list[str], words: str) -> None:
    code, out, err = explained(63, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_files_of_one_name_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("explain", "a/k.cu::k", "b/k.cu::k", "--require", "findings=0")
    assert code == 2
    assert "explain files of the same name in separate runs, got a/k.cu, b/k.cu" in err


def test_a_kernel_on_the_cpu_has_none(cli: Cli) -> None:
    code, _, err = cli("explain", "cpu/naive", "--sarif", "a.sarif")
    assert code == 2
    assert "--sarif means nothing for a kernel on the CPU" in err
