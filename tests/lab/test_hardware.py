"""Reading the profiler: what it prints, what it refuses, whose line an instruction is; a script plays ``ncu`` itself."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from support.scripted_ncu import RAW, RESULTS, SOURCE, play
from tilewright.errors import LaunchError, OperandError, UnavailableError, UsageError
from tilewright.gpu.runtime.nvrtc import Compiled
from tilewright.lab.explain import measure, stored_launches
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.simulator.assembly import disassembly

BINARY = Compiled("k.cu", "sm_90", "", b"cubin", "")


def test_doctests() -> None:
    assert doctest.testmod(measure).failed == 0
    assert doctest.testmod(stored_launches).failed == 0
    assert doctest.testmod(measure).failed == 0


def test_the_raw_page() -> None:
    naive, tiled = measure.read_raw(RAW)
    assert naive.counters == {"l1tex__t_sectors.sum": 40960, "sm__inst.avg": 15.52}
    assert (naive.kernel, naive.grid, naive.block) == ("naive", (2, 2, 1), (32, 32, 1))
    assert tiled.counters["l1tex__t_sectors.sum"] == 2048
    assert measure.read_raw("no kernel was here") == []


def test_the_source_page() -> None:
    (name, tiled), (other, vec) = measure.read_instructions(SOURCE)
    assert (name, other) == ("tiled", "vec")
    assert [(i.offset, i.text.split()[0], i.counts) for i in tiled] == [
        (0, "LDC", {"executed": 128}),
        (0x1F0, "LDG.E", {"executed": 256, "sectors": 1024}),
        (0x290, "LDS.128", {"executed": 256, "wavefronts": 512}),
    ]
    assert vec[0].offset == 0


DISASSEMBLY = """.text.tiled:
	//## File "k.cu", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "k.cu", line 7
        /*01f0*/                   LDG.E R10, desc[UR6][R10.64] ;
        /*0290*/                   LDS.128 R12, [R18] ;
"""


def test_counts_by_source_line() -> None:
    instructions = measure.read_instructions(SOURCE)[0][1]
    lines = measure.counts_by_line(instructions, disassembly.parse_sass(DISASSEMBLY)["tiled"])
    assert lines["k.cu", 7] == {"executed": 512, "sectors": 1024, "wavefronts": 512}
    assert list(lines) == [("k.cu", 3), ("k.cu", 7)]
    for other in (DISASSEMBLY.replace("LDG.E", "STG.E"), DISASSEMBLY.replace("0290", "02a0")):
        with pytest.raises(UnavailableError, match="the disassembly is of another binary"):
            measure.counts_by_line(instructions, disassembly.parse_sass(other)["tiled"])


def test_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "touch $report; echo '==PROF== Connected'")
    naive, tiled = measure.profile(["program"], "tiled", ["sm__inst.avg", "b.sum"])
    assert (naive.kernel, len(naive.instructions), len(tiled.instructions)) == ("naive", 3, 1)
    assert naive.counters == {"sm__inst.avg": 15.52}, "no more than was asked"
    totals, lines = (tmp_path / "options").read_text().splitlines()
    assert totals.startswith(
        "--clock-control none --target-processes all --kernel-name-base mangled --kernel-name tiled "
    )
    assert "--metrics sm__inst.avg,b.sum" in totals
    assert "--section SourceCounters" in lines
    assert [c["l1tex__t_sectors.sum"] for c in measure.ncu_counters(["program"], metrics=["l1tex__t_sectors.sum"])] == [
        40960,
        2048,
    ]


def test_few_counters_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """More than one pass can count are asked for in runs of their own, and come back together."""
    play(monkeypatch, tmp_path, "touch $report")
    wanted = ["l1tex__t_sectors.sum", *(f"m{i}.sum" for i in range(measure.AT_ONCE)), "sm__inst.avg"]
    found = measure.profile(["program"], metrics=wanted, lines=False)
    runs = (tmp_path / "options").read_text().splitlines()
    assert [len(run.split("--metrics ")[1].split()[0].split(",")) for run in runs] == [8, 2]
    assert found[0].counters == {"l1tex__t_sectors.sum": 40960, "sm__inst.avg": 15.52}


def test_a_program_that_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, f"touch $report; sed -i 's/naive/other/; t; s/other/naive/' {tmp_path}/raw")
    with pytest.raises(LaunchError, match="other kernels each time"):
        measure.ncu_counters(["program"])


@pytest.mark.slow_cases("sleep 5")
@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", UnavailableError, "ncu: ERR_NVGPUCTRPERM"),
        ("echo '==ERROR== Failed to find metric x'; exit 0", UnavailableError, "Failed to find metric x"),
        ("exit 9", UnavailableError, "exit code 9"),
        ("echo 'error: k.cu: gone' >&2; echo '==ERROR== The application returned an error code (2).'; exit 1",
         LaunchError, "the program under ncu failed: error: k.cu: gone"),
        ("echo '==WARNING== No kernels were profiled.'", LaunchError, "launched no such kernel.*No kernels were profiled"),
        ("sleep 5", UnavailableError, "did not end within 1 s"),
    ],
)  # fmt: skip
def test_what_ncu_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: str, kind: type[Exception], words: str
) -> None:
    play(monkeypatch, tmp_path, run)
    with pytest.raises(kind, match=f"(?s){words}"):
        measure.profile(["program"], timeout=1)


def test_launches_that_ncu_did_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launch = StoredLaunch("k", 1, 32, (np.zeros(3),))
    np.savez(tmp_path / "left.npz", **{"0.0": np.arange(3), "1.0": np.ones(3)})
    play(monkeypatch, tmp_path, RESULTS.format(tmp_path / "left.npz"))
    with pytest.raises(LaunchError, match="1 launches were made, but ncu counted 2"):
        measure.profile_launches(BINARY, [launch])
    one, two = measure.profile_launches(BINARY, [launch] * 2)
    assert (one.arrays[0].tolist(), two.arrays[0].tolist()) == ([0, 1, 2], [1, 1, 1])
    play(monkeypatch, tmp_path, "touch $report")
    with pytest.raises(LaunchError, match="left no results"):
        measure.profile_launches(BINARY, [launch] * 2)


def test_no_ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(UnavailableError, match="ncu: not found"):
        measure.find_ncu()


def test_launches_on_disk(tmp_path: Path) -> None:
    args = (np.arange(6, dtype=np.float16).reshape(2, 3), -5, 0.25, np.uint32(7), True)
    stored_launches.save_launches(
        tmp_path / "l.npz", BINARY, [StoredLaunch("a", (2, 3), 64, args, 128), StoredLaunch("b", 1, (8, 8, 2), ())]
    )
    binary, (a, b) = stored_launches.load_launches(tmp_path / "l.npz")
    assert (binary.cubin, binary.arch, binary.name) == (b"cubin", "sm_90", "k.cu")
    assert (a.entry, a.grid, a.block, a.shared_bytes) == ("a", (2, 3, 1), (64, 1, 1), 128)
    np.testing.assert_array_equal(a.args[0], args[0])
    assert a.args[0].dtype == np.float16
    assert a.args[1:] == args[1:]
    assert [type(value) for value in a.args[1:]] == [int, float, np.uint32, bool]
    assert b.block == (8, 8, 2)
    with pytest.raises(OperandError, match="b: argument 0 is a str"):
        stored_launches.save_launches(tmp_path / "x.npz", BINARY, [StoredLaunch("b", 1, 1, ("text",))])
    with pytest.raises(UsageError, match="grid must be one to three"):
        stored_launches.save_launches(tmp_path / "x.npz", BINARY, [StoredLaunch("b", (1, 0), 1, ())])


def test_launching_what_is_no_file_of_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("absent.npz", "text.npz", "other.npz"):
        assert stored_launches.main([str(tmp_path / name)]) == 2
        assert "is no file of launches" in capsys.readouterr().err


def test_a_kernel_that_is_listed_twice_a_launch() -> None:
    """As ncu 2025.3 does where one kernel is launched several times."""

    def listed(executed: int) -> tuple[str, list[measure.CountedInstruction]]:
        return ("k", [measure.CountedInstruction(0, "EXIT", {"executed": executed})])

    def launches() -> list[measure.Profile]:
        return [measure.Profile("k", (1,), (32,), {}) for _ in range(2)]

    found = launches()
    measure._add_instructions(found, [listed(1), listed(1), listed(2), listed(2)])
    assert [launch.instructions[0].counts["executed"] for launch in found] == [1, 2]
    for wrong in ([listed(1)], [], [listed(1)] * 3, [listed(1), listed(2), listed(2), listed(2)]):
        with pytest.raises(UnavailableError, match="launched 2 times"):
            measure._add_instructions(launches(), wrong)
