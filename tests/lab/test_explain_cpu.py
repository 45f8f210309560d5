"""``tilewright explain`` of kernels on the CPU: model, verified run and counters side by side, and the command."""

from __future__ import annotations

import dataclasses
import errno
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.scripted_counters import ScriptedCounters
from tilewright.__main__ import run_command_line
from tilewright.cpu.engine.dots import dot_instruction_here
from tilewright.errors import UsageError
from tilewright.host.machine import machine
from tilewright.kernels.catalog import catalog
from tilewright.lab.explain import cpu as explain_cpu
from tilewright.lab.explain import cpu_counts, cpu_events
from tilewright.lab.explain.cpu_counts import InnerLoop
from tilewright.lab.explain.cpu_events import events_of
from tilewright.product.problem import Problem

WRONG = """
from tilewright.kernels import kernel

@kernel(idea="Forgets the last step.", row="", strided=True)
def wrong(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            sum = a[i, 0] * b[0, j]
            for l in range(1, a.shape[1] - 1):
                sum += a[i, l] * b[l, j]
            c[i, j] = sum
"""
SPOILS = WRONG.replace("a.shape[1] - 1", "a.shape[1]").replace(
    "c[i, j] = sum", "c[i, j] = sum\n            a[i, 0] = a[i, 0]"
)


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder, in this process, with little time for the counters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(cpu_events, "COUNTED_S", 0.01)

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tilewright", *arguments])
        code = run_command_line()
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def unread(monkeypatch):
    """Without the seconds that compiling for the inner loop takes."""
    monkeypatch.setattr(explain_cpu, "inner_loop", lambda kernel, dtype: None)
    monkeypatch.setattr(cpu_events, "COUNTED_S", 0.01)


# ---- one explanation -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "threads", "note"),
    [
        ("cpu/naive", "float64", 1, "no tile"),
        ("cpu/blocked", "float32", 2, "no tile"),
        ("cpu/register_tile", "float64", 1, ""),
        ("cpu/strassen", "float32", 1, "fewer multiplications"),
        ("cpu/packed", "int32", 2, "wait for one another"),
        ("cpu/vector", "float32", 1, "no tile"),
        ("cpu/complex", "complex64", 1, ""),
        ("cpu/narrow_integers", "int8", 1, ""),
        ("cpu/half_floats", "float16", 1, ""),
        ("cpu/integer_dots", "int8", 2, ""),
        ("cpu/integer_tiles", "int8", 2, ""),
        ("cpu/direct", "float32", 1, "no blocks"),
    ],
)
@pytest.mark.usefixtures("unread")
def test_every_kind_of_kernel_is_explained(name: str, dtype: str, threads: int, note: str) -> None:
    found = explain_cpu.explain_cpu(catalog()[name], 40, 56, 33, dtype=dtype, threads=threads)
    assert found.verified["ok"], found.verified["reason"]
    assert found.measured["seconds"] > 0
    assert note in " ".join(found.notes)
    assert [row.what for row in found.rows][-2:] == ["processor time", "page faults"]
    assert all(row.counted is not None or row.reason for row in found.rows), "what is missing has a reason"
    assert (found.predicted is None) == (dtype.startswith(("int", "float16")) or name == "cpu/strassen")
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.skipif(dot_instruction_here("int8") != "vpdpbusd", reason="counts vpdpbusd, which this processor lacks")
def test_groups_of_narrow_elements_are_counted_as_words() -> None:
    words, single = (
        cpu_counts.tiling(catalog()[name], Problem(60, 128, k, dtype), 1)
        for name, k, dtype in (("cpu/integer_dots", 801, "int8"), ("cpu/packed", 201, "int32"))
    )
    assert words is not None
    assert single is not None
    assert (words.k, words.size, words.tile, words.multiplies) == (201, 4, single.tile, single.multiplies)


@pytest.mark.usefixtures("unread")
def test_counters_stand_beside_what_the_model_expects(monkeypatch) -> None:
    monkeypatch.setattr(cpu_events, "COUNTED_S", 0.0)  # the job runs once
    kernel, loop = catalog()["cpu/packed"], InnerLoop(96, 40, 16, 156)
    monkeypatch.setattr(explain_cpu, "inner_loop", lambda kernel, dtype: loop)
    events = events_of(machine(), "float32", kernel.params["vector_bits"])
    answers: dict[str, Any] = {event.name: [errno.ENOENT] for _, event in events}
    answers |= {"instructions": [(3000, 100, 50)], "L1-dcache-loads": [(77, 9, 9)], "cycles": [errno.EACCES]}
    found = explain_cpu.explain_cpu(kernel, 60, 128, 200, system=ScriptedCounters(answers))
    rows = {row.counter: row for row in found.rows}
    fmas = cpu_events.cpu_counts.vector_multiplies(kernel, Problem(60, 128, 200, "float32"), 1)
    assert fmas
    assert (rows["instructions"].expected, rows["instructions"].counted) == (fmas / 96 * 156, 6000)
    assert rows["instructions"].share == 0.5
    assert rows["instructions"].ratio == pytest.approx(6000 / (fmas / 96 * 156))
    assert (rows["L1-dcache-loads"].expected, rows["L1-dcache-loads"].counted) == (fmas / 96 * 56, 77)
    assert rows["cycles"].counted is None
    assert "EACCES" in rows["cycles"].reason
    assert rows["page-faults"].reason.endswith("(ENOENT)")


def test_each_processor_has_its_own_events() -> None:
    def on(vendor: str, dtype: str = "float32", bits: int = 512, family: int = 6) -> dict[str, Any]:
        return {
            e.name: (what, e)
            for what, e in events_of(dataclasses.replace(machine(), vendor=vendor, family=family), dtype, bits)
        }

    intel, amd, arm = on("GenuineIntel"), on("AuthenticAMD", family=26), on("ARM")
    assert intel["cache-references"][0] == "lines into L2"
    assert amd["cache-references"][0] == "lines into L1"
    assert amd["cache-misses"][0] == "lines into L2"
    # Intel's event 0xC7, unit masks 0x80 and 0x10: 512 bits of singles, 256 of doubles; a multiply-add counts twice
    assert (intel["fp_arith.512b_single"][1].config, intel["fp_arith.512b_single"][1].each) == (0x80C7, 2)
    assert on("GenuineIntel", "float64", 256)["fp_arith.256b_double"][1].config == 0x10C7
    # AMD's event 3, unit mask 8 counts operations: two for each of 16 or 8 lanes
    assert (amd["fp_ret_sse_avx_ops.mac"][1].config, amd["fp_ret_sse_avx_ops.mac"][1].each) == (0x803, 32)
    assert on("AuthenticAMD", "complex128", 512, 25)["fp_ret_sse_avx_ops.mac"][1].each == 16
    assert {what for what, _ in arm.values()}.isdisjoint({"multiply-adds"})
    assert {what for what, _ in on("GenuineIntel", "int32").values()}.isdisjoint({"multiply-adds"})


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_registers_that_spill_are_noted(monkeypatch) -> None:
    kernel = catalog()["cpu/packed"]
    mr, nv = kernel.params["mr"], kernel.params["nv"]
    for spilled in (0, 5):
        loop = InnerLoop(2 * mr * nv, 2 * (mr + nv) + spilled, 0, 100)
        monkeypatch.setattr(explain_cpu, "inner_loop", lambda kernel, dtype, loop=loop: loop)
        notes = explain_cpu.explain_cpu(kernel, 30, 70, 40).notes
        assert any("too few registers" in note for note in notes) == bool(spilled)


def test_what_cannot_be_explained_is_refused_before_anything_runs() -> None:
    for names, size, dtype, threads, words in [
        (["cpu/packed"], "64", "float31", 1, "float31"),
        (["cpu/packed"], "64", "int8", 1, "has no int8"),
        (["cpu/packed"], "64,0", "float32", 1, "nothing to multiply"),
        (["cpu/packed"], "64", "float32", 0, "at least 1"),
        (["cpu/naive"], "64", "float32", 2, "one thread"),
        (["cpu/packed"], "900000", "float32", 1, "GiB"),
        (["ref/openblas"], "64", "float32", 1, "library"),
        (["cpu/packd"], "64", "float32", 1, "did you mean"),
    ]:
        with pytest.raises(UsageError, match=words):
            explain_cpu.check_request(names, size, dtype, threads, 1)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_shows_model_and_counters(cli) -> None:
    answer = cli("explain", "cpu/packed", "--size", "96x128x64", "--threads", "1")
    assert answer.code == 0, answer.err
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    for words in (
        "cpu/packed at 96×128×64 (float32, 1 thread)",
        "predicted / measured",
        "operations an access",
        "(S3.1)",
    ):
        assert words in answer.out
    for words in ("inner loop", "L2 → L1", "L1-dcache-loads", "task-clock", "result      right"):
        assert words in answer.out


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_the_command_writes_what_it_found_as_json(cli) -> None:
    assert cli("explain", "packed", "--size", "32,48", "--dtype", "float64", "--json", "found.json").out == ""
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert [(one["kind"], one["kernel"], one["m"], one["dtype"]) for one in found] == [
        ("explain cpu", "cpu/packed", 32, "float64"),
        ("explain cpu", "cpu/packed", 48, "float64"),
    ]
    assert {"what", "expected", "counter", "counted", "reason"} <= found[0]["rows"][0].keys()
    one = cli("explain", "packed", "--size", "32", "--json", "-")
    assert json.loads(one.out)["verified"]["ok"] is True


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(("source", "words"), [(WRONG, "is off by"), (SPOILS, "right")])
def test_a_wrong_product_is_reported_and_the_exit_code_says_so(cli, source: str, words: str) -> None:
    Path("mine.py").write_text(source)
    answer = cli("explain", "mine.py", "--size", "24")
    assert words in answer.out
    assert answer.code == (1 if source is WRONG else 0)
    assert ("wrong:" in answer.out) == (source is WRONG)


UNGUARDED = """
from tilewright.kernels import kernel

@kernel(idea="Tiles without guards.", row="", strided=True)
def unguarded(a, b, c):
    for top in range(0, a.shape[0], 8):
        for left in range(0, b.shape[1], 8):
            for i in range(top, top + 8):
                for j in range(left, left + 8):
                    sum = a.dtype.type(0)
                    for l in range(a.shape[1]):
                        sum += a[min(i, a.shape[0] - 1), l] * b[l, min(j, b.shape[1] - 1)]
                    c[i, j] = sum
"""


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (WRONG.replace("a.shape[1] - 1", "a.shape[1] // 8 * 8"), "wrong: at 33x37x29: C[0, 0] is off by"),
        (UNGUARDED, "wrong: at 33x37x29: the kernel has written outside C"),
        (WRONG.replace("a.shape[1] - 1", "a.shape[1]"), "right: every element that is checked, and all of C at 33x37x29"),
    ],
)  # fmt: skip
def test_a_kernel_that_is_right_at_multiples_of_its_tile_is_wrong_at_an_odd_size(cli, source: str, words: str) -> None:
    Path("mine.py").write_text(source)
    answer = cli("explain", "mine.py", "--size", "24")
    assert words in " ".join(answer.out.split())
    assert answer.code == words.startswith("wrong")
    Path("mine.py").write_text(source)
    assert cli("explain", "mine.py", "--size", "40x24x16").code == answer.code, "no side is odd"


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_a_kernel_that_writes_to_an_operand_is_wrong(cli) -> None:
    Path("mine.py").write_text(SPOILS.replace("a[i, 0] = a[i, 0]", "b[0, 0] = 0"))
    answer = cli("explain", "mine.py", "--size", "24")
    assert answer.code == 1
    assert "wrong:" in answer.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["packed", "--gpu", "T4"], "--gpu means nothing for a kernel on the CPU"),
        (["cpu/packed", "--gpu", "H200"], "--gpu"),
        (["cpu/packed", "--param", "TILE=8"], "--param"),
        (["cpu/packed", "--report", "page.html"], "--report"),
        (["cpu/packed", "--max-steps", "5"], "--max-steps"),
        (["cpu/packed", "--measure"], "--measure"),
        (["cuda/coalesced", "--threads", "1"], "--threads means nothing for a CUDA kernel"),
        (["coalesced", "--dtype", "float64"], "--dtype"),
        (["cpu/packed", "cuda/coalesced"], "one device"),
        (["cpu/packed", "--size", "x"], "a size is N"),
        (["cpu/packed", "--json", "nowhere/found.json"], "cannot be written"),
    ],
)
def test_options_of_the_other_device_are_refused(cli, arguments: list[str], words: str) -> None:
    answer = cli("explain", *arguments)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert answer.err.count("\n") == 1


def test_the_help_tells_of_both_devices(cli) -> None:
    text = " ".join(cli("explain", "--help").out.split())
    for words in ("CUDA kernel", "kernel on the CPU", "--gpu", "--dtype", "--threads", "cost model"):
        assert words in text
