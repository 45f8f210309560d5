"""A call of ``explain`` from end to end: what it refuses first, what an interrupt keeps, what it says where no rate is."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tilewright.errors import UsageError
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.lab.cli import app
from tilewright.lab.explain import checked_launch
from tilewright.lab.explain import cuda as explain_cuda
from tilewright.lab.explain.checked_launch import CheckedLaunch, verified
from tilewright.lab.explain.cuda import explain
from tilewright.lab.terminal import show_explanations
from tilewright.records.explanation import Explanation, read_explanations

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

EXAMPLES = Path(__file__).parents[2] / "examples"


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words], env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.stdout.split())


def kernel_file(folder: Path, *, store: str = "= sum;", takes: str = "int k") -> Path:
    """A kernel in the way of users: host headers, a hyphen in its name, a comment above the header."""
    path = folder / "my-kernel.cu"
    text = (EXAMPLES / "third_try.cu").read_text().replace("= sum;", store).replace("int k)", f"{takes})")
    path.write_text(f"// mine\n#include <cuda_runtime.h>\n#include <cstdio>\n{text}")
    return path


def shown(made: list[Explanation], width: int = 80, *, brief: bool = False) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        show_explanations(console, made, brief=brief)
    return captured.get()


# ---- an odd size -----------------------------------------------------------------------------------------------------


WRONG = Path(__file__).parents[1] / "data" / "wrong"
ODD = "at 33x37x29"
#: What is said of the kernels in data/wrong at the default size: the reason, and findings by line. The first two are right
#: at 64.
WRONG_KERNELS = [
    ("floor", f"{ODD}: C[0, 32] was never written", [("output never written", 0)]),
    (
        "transposed",
        f"{ODD}: C[29, 20] was never written",
        [("out of bounds", 11), ("race", 12), ("output never written", 0)],
    ),
    (
        "nonatomic",
        "C[0, 0] is not a number: line 12 reads C before anything is written there",
        [("race", 12), ("unwritten read", 12)],
    ),
    (
        "overrun",
        "C[0, 4] is not stored: line 11 accesses memory beyond a local array, and the compiler removes what that leads to",
        [("out of bounds", 11), ("out of bounds", 14), ("out of bounds", 16)],
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "reason", "findings"), WRONG_KERNELS, ids=[each[0] for each in WRONG_KERNELS])
def test_the_default_size_hides_no_wrong_kernel(
    name: str, reason: str, findings: list[tuple[str, int]], tmp_path: Path
) -> None:
    at_64 = ODD not in reason
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    source = str(WRONG / f"{name}.cu")
    code, text = command(source)
    assert code == 1
    assert f"WRONG: {reason}" in text
    assert f"No rate: its result is wrong{'' if at_64 else ' ' + ODD}." in text
    assert command(source, "--json", str(record), "--report", str(page))[0] == 1
    (found,) = read_explanations(record)
    assert (found.verified["ok"], found.verified["reason"]) == (False, reason)
    assert (found.verified.get("at") is None) == at_64
    assert [(defect.kind, defect.line) for defect in found.defects] == findings
    assert all(defect.text.endswith(f"({ODD})") for defect in found.defects if not at_64)
    assert f"The result is wrong: {reason}" in page.read_text()


def test_a_right_kernel_says_at_which_sizes_it_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cuda_catalog()["cuda/coalesced"]
    found = explain(kernel, 16, 16, 16)
    assert (found.verified["of"], found.defects) == (f"every element, and all of C {ODD}", [])
    assert f"right: every element, and all of C {ODD}, at most" in " ".join(shown([found]).split())
    assert explain(kernel, 17, 15, 13).verified["of"] == "every element", "it shows as much"
    floored = load_cuda_file(WRONG / "floor.cu")
    monkeypatch.setattr(checked_launch, "ODD_SIZES", ((16, 32, 48),))
    assert explain(floored, 64, 64, 64).verified["ok"], "a multiple of its tile hides what is wrong"


@pytest.mark.thorough
def test_an_odd_size_that_a_kernel_does_not_take_is_replaced_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxed = cuda_catalog()["cuda/copied_boxes"]
    assert explain(boxed, 64, 64, 64).verified["of"] == "every element, and all of C at 33x40x24"
    monkeypatch.setattr(checked_launch, "ODD_SIZES", checked_launch.ODD_SIZES[:1])
    found = explain(boxed, 64, 64, 64)
    assert found.verified["of"] == "every element"
    assert any(
        n.startswith("verified at this size alone: ") and "rows must be multiples of 16" in n for n in found.notes
    )
    path = tmp_path / "gridless.cu"
    path.write_text((WRONG / "floor.cu").read_text().replace('"n // 16"', '"n // 64 * 4"'))
    found = explain(load_cuda_file(path), 64, 64, 64)
    assert found.verified["reason"] == f"{ODD}: the grid has no block, so that C is never written"


@pytest.mark.thorough
def test_a_kernel_that_does_not_end_at_an_odd_size_is_not_verified_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop ends only at a multiple of 16."""
    monkeypatch.setattr(checked_launch, "ODD_STEPS", 2000)
    path = tmp_path / "endless.cu"
    path.write_text((WRONG / "floor.cu").read_text().replace("p < k / 16", "p * 16 != k"))
    found = explain(load_cuda_file(path), 64, 64, 64)
    assert any(defect.kind == "out of bounds" and defect.text.endswith(f"({ODD})") for defect in found.defects)
    assert f"not verified {ODD}: it did not end within 2,0" in " ".join(found.notes)


@pytest.mark.thorough
def test_atomics_that_add_to_an_empty_c_are_told_so(tmp_path: Path) -> None:
    text = (WRONG / "nonatomic.cu").read_text().replace("c[row * n + col] += s;", "atomicAdd(&c[row * n + col], s);")
    (tmp_path / "atomic.cu").write_text(text)
    kernel = load_cuda_file(tmp_path / "atomic.cu")
    for whole in (True, False):
        found = explain(kernel, 40, 40, 40, whole=whole)
        assert [(d.kind, d.line) for d in found.defects] == [("unwritten read", 12)]
        assert found.defects[0].text.startswith("updates atomically element [0, 0] of c, which holds nothing before")
        assert "is not a number: line 12 reads C before" in found.verified["reason"]


@pytest.mark.thorough
def test_a_kernel_whose_stores_are_gone_is_told_so(tmp_path: Path) -> None:
    path, never = tmp_path / "storeless.cu", "if (sum != sum && sum == sum) c[0] = sum;"
    path.write_text((WRONG / "floor.cu").read_text().replace("c[row * n + col] = sum;", never))
    found = explain(load_cuda_file(path), 16, 16, 16)
    assert "; the compiler left no store to memory in this kernel" in found.defects[0].text
    assert found.verified["reason"] == "C[0, 0] was never written"
    path.write_text((WRONG / "floor.cu").read_text().replace("= sum;", "= sum / 0.0f * 0.0f;"))
    assert explain(load_cuda_file(path), 16, 16, 16).verified["reason"] == "C[0, 0] was written, but is not a number"


# ---- sizes that compare -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernels", "params", "gpu", "size"),
    [
        (["shared_tile"], [], "H200", 64),
        (["shared_tile"], ["TILE=8,16,32"], "H200", 1024),
        (["coalesced", "shared_tile"], [], "H200", 1024),
        (["coalesced", "thread_tile"], [], "H200", 2048),
        (["coalesced", "thread_tile"], [], "T4", 1024),
    ],
)
def test_what_is_compared_fills_the_card(
    kernels: list[str], params: list[str], gpu: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 64 few of a GPU's multiprocessors have a block, fewest under large tiles, so that these seem slow."""
    prepared: list[CheckedLaunch] = []
    made = explain(cuda_catalog()["cuda/coalesced"], 8, 8, 8)
    monkeypatch.setattr(explain_cuda, "explain_launch", lambda one, **_: (prepared.append(one), made)[1])
    explain_cuda.run_explanations(explain_cuda.ExplainRequest(kernels, gpu=gpu, params=params))
    assert {(one.m, one.n, one.k) for one in prepared} == {(size,) * 3}
    assert size == 64 or all(one.launch.blocks >= one.card.sms for one in prepared)


@pytest.mark.slow
def test_launches_that_leave_the_card_idle_are_not_compared_in_silence() -> None:
    kernel = cuda_catalog()["cuda/shared_tile"]
    small = [explain(kernel, 64, 64, 64, params={"TILE": tile}) for tile in (8, 32)]
    full = dataclasses.replace(small[0], launch=small[0].launch | {"blocks": 132})
    assert [e.busy_multiprocessors for e in (*small, full)] == [(64, 132), (4, 132), (132, 132)]

    def last(*made: Explanation) -> str:
        return " ".join(shown([*made], brief=True).split("an upper bound.")[1].split())

    assert last(*small, full).startswith("These GFLOPS do not compare: there are blocks for 4 to 132 of 132 multiproc")
    assert last(*small).startswith("These GFLOPS do not compare: there are blocks for 4 to 64 of 132 multiprocessors.")
    assert last(small[0], small[0]) == "In each launch there are blocks for 64 of 132 multiprocessors."
    assert last(full, full) == ""
    assert "There are blocks for 4 of 132 multiprocessors: at a larger --size" in " ".join(shown([small[1]]).split())
    assert "There are blocks for" not in shown([full])


# ---- no rate ---------------------------------------------------------------------------------------------------------


def test_an_infinite_bound_is_no_reason_to_fail() -> None:
    made = explain(cuda_catalog()["cuda/coalesced"], 8, 8, 8)
    for ok, says in ((False, "WRONG: C[0, 0] is off"), (True, "right: every element\n")):
        of = {"ok": ok, "reason": "C[0, 0] is off", "error_over_bound": None, "of": "every element"}
        text = "\n".join(line.rstrip() for line in shown([dataclasses.replace(made, verified=of)]).splitlines()) + "\n"
        assert says in text


@pytest.mark.slow
def test_a_kernel_that_adds_to_c_is_told_so(tmp_path: Path) -> None:
    path = kernel_file(tmp_path, store="+= 0 * sum;")
    line = 1 + next(i for i, text in enumerate(path.read_text().splitlines()) if "+= 0 * sum" in text)
    code, text = command(str(path), "--size", "20")
    assert code == 1
    assert f"WRONG: C[0, 0] is not a number: line {line} reads C before anything is written there" in text
    assert "reads element [0, 0] of c, which holds nothing before it is written" in text
    assert "never written" not in text
    assert "No rate: its result is wrong." in text
    assert "At best" not in text
    kernel = cuda_catalog()["cuda/coalesced"]
    a = np.ones((2, 2), np.float32)
    assert verified(kernel, a, a, a).reason.startswith("C[0, 0] is off by 1"), "other words stay"


@pytest.mark.slow
def test_a_kernel_that_no_multiprocessor_has_room_for() -> None:
    words = ("tf32", "--size", "32", "--gpu", "RTX 4090")
    code, text = command(*words)
    assert code == 1
    assert text.count("cannot be launched on this card: a block needs too much of shared memory") == 2
    assert "At best" not in text
    code, text = command(*words, "--brief")
    assert code == 1
    assert "cuda/tf32 cannot launch" in text


@pytest.mark.slow
def test_a_run_that_was_stopped_has_no_rate_and_no_verdict() -> None:
    for more in ((), ("--brief",)):
        words = ["explain", "coalesced", "--size", "32", "--max-steps", "99", *more]
        result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
        with pytest.raises(
            UsageError, match="max-steps: cuda/coalesced did not end within 99 steps, so it was not ver"
        ):
            raise result.exception or AssertionError(result.stdout)
        assert "stopped" in result.stdout
        assert "wrong" not in result.stdout.lower()
        if not more:
            assert "No rate: its run was stopped before the end." in result.stdout
            assert re.search(r"result +stopped after 1\d\d steps: result not complete, not verified", result.stdout)
    assert "At best" in command("coalesced", "--size", "32", "--max-steps", "9999")[1]


@pytest.mark.slow
def test_a_stopped_run_with_a_defect_is_wrong(tmp_path: Path) -> None:
    endless = kernel_file(tmp_path, store="= a[1 << 20]; while (row < m) atomicAdd(c, 1.0f);")
    found = explain(load_cuda_file(endless), 8, 8, 8, max_steps=500)
    assert found.stopped
    assert found.failed
    assert "step limit" not in [defect.kind for defect in found.defects]
    assert any("still running after 500 steps" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "tflops"), [("H200", 494.7), pytest.param("A100", 156.0, marks=pytest.mark.thorough)])
def test_matrix_instructions_have_the_peak_of_their_format(gpu: str, tflops: float) -> None:
    found = explain(cuda_catalog()["cuda/tf32"], 16, 16, 16, gpu=gpu)
    assert found.gpu["peak_gflops"] == pytest.approx(1000 * tflops)
    assert found.bounds[0].name == "arithmetic"


# ---- 80 columns ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_no_number_is_cut() -> None:
    made = explain(cuda_catalog()["cuda/shared_tile"], 32, 32, 32)
    many = dataclasses.replace(made, m=10_000, n=20_000, k=30_000, params={"BLOCK_TILE_M": 128, "BLOCK_TILE_N": 16})
    other = dataclasses.replace(many, params={"BLOCK_TILE_M": 64, "BLOCK_TILE_N": 8})
    large = [dataclasses.replace(a, sectors=123_456_789_012, wavefronts=98_765_432_109) for a in made.accesses[:1]]
    several = [dataclasses.replace(e, accesses=large) for e in (many, other)]
    wide = shown(several, 200, brief=True)
    assert "123,456,789,012" in wide
    narrow = shown(several, brief=True)
    assert max(map(len, narrow.splitlines())) <= 80
    for part in ("10000x20000x30000", "123 G", "98.8 G", f"{several[0].gflops:,.0f}"):
        assert part in narrow, part
    assert "shared\n" in "\n".join(line.strip() for line in narrow.replace("bank", "").splitlines()) + "\n"


# ---- refused before anything runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--size", "8,0"], "at 0x0x0: C has no elements"),
        (["--size", "8,1000000"], "its operands and a copy of them take"),
        (["--size", "8,2000000x1x1"], "grid y is 125000, must be from 0 to 65535"),
        (["--size", "8", "--param", "TILE=3"], "param 'TILE': none of the chosen kernels has it"),
        (["--max-steps", "0"], "max-steps must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_one_bad_size_is_refused_before_anything_runs(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_cuda, "explain_launch", lambda *_, **__: pytest.fail("it was run"))
    with pytest.raises(UsageError, match=says):
        command(str(EXAMPLES / "third_try.cu"), *words)


@pytest.mark.slow
def test_another_signature_is_refused_with_what_it_must_be(tmp_path: Path) -> None:
    path = kernel_file(tmp_path, takes="int k, float alpha")
    with pytest.raises(
        UsageError, match=r"my-kernel\.cu: third_try must take \(const T\* a, .*, takes .*f32.*microscope"
    ):
        command(str(path))
    assert load_cuda_file(kernel_file(tmp_path)).name == "my/my_kernel"
    assert command(str(kernel_file(tmp_path)), "--size", "20")[0] == 0
    help_text = " ".join(CliRunner().invoke(app, ["explain", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "(const T* a, const T* b, T* c, int m, int n, int k)" in help_text


def test_json_and_report_are_two_files(tmp_path: Path) -> None:
    same = tmp_path / "x" / ".." / "why.html"
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="is the file of json too"):
        command("coalesced", "--json", str(tmp_path / "why.html"), "--report", str(same))


def test_the_known_cards_are_listed() -> None:
    code, text = command("--gpu", "list")
    assert code == 0
    assert text.startswith("GTX 260 GTX 1080 Ti V100")
    with pytest.raises(UsageError, match=r"must be one of GTX 260, .*RTX 5090"):
        command("coalesced", "--gpu", "nothing")


@pytest.mark.slow
def test_a_card_named_by_its_driver_says_what_the_table_has() -> None:
    found = explain(cuda_catalog()["cuda/coalesced"], 8, 8, 8, gpu="NVIDIA A100-SXM4-40GB")
    assert "the 40GB card has 1555 GB/s" in found.notes[0]
    assert len(set(found.notes)) == len(found.notes)
    assert not explain(cuda_catalog()["cuda/coalesced"], 8, 8, 8, gpu="NVIDIA H200").notes


# ---- interrupts ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = explain_cuda.explain_launch
    made: list[Explanation] = []

    def second_time(*given: object, **options: object) -> Explanation:
        if made:
            raise KeyboardInterrupt
        made.append(real(*given, **options))  # type: ignore[arg-type]
        return made[0]

    monkeypatch.setattr(explain_cuda, "explain_launch", second_time)
    page, data = tmp_path / "why.html", tmp_path / "why.json"
    code, _ = command("coalesced", "--size", "8,9,10", "--json", str(data), "--report", str(page))
    assert code == 130
    assert [e.n for e in read_explanations(data)] == [8]
    assert "cuda/coalesced" in page.read_text(encoding="utf-8")
    code, text = command("coalesced", "--size", "9", "--json", str(tmp_path / "none.json"))
    assert (code, text) == (130, "")
    assert not (tmp_path / "none.json").exists(), "nothing was finished"


@pytest.mark.slow
def test_each_is_printed_when_it_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    real = explain_cuda.explain_launch
    seen: list[str] = []

    def watched(*given: object, **options: object) -> Explanation:
        seen.append("run")
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(explain_cuda, "explain_launch", watched)
    request = explain_cuda.ExplainRequest(["coalesced"], size="8,9")
    explain_cuda.run_explanations(request, finished=lambda e: seen.append(str(e.n)))
    assert seen == ["run", "8", "run", "9"]
    code, text = command("coalesced", "--size", "8,9")
    assert code == 0
    assert text.count("cuda/coalesced at") == 2
    assert text.count("GFLOPS: an upper bound") == 1


def test_the_json_says_whether_the_run_was_whole() -> None:
    made = CliRunner().invoke(app, ["explain", "coalesced", "--size", "8", "--json", "-"]).stdout
    assert json.loads(made)["run"]["complete"] is True
