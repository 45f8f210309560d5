"""Occupancy: the paper's arithmetic, values CUDA's calculator is known to give, and laws of monotony."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.simulator import occupancy as module
from tilewright.simulator.gpus import GPUS, find_gpu
from tilewright.simulator.occupancy import occupancy

KIB = 1024


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "blocks", "percent", "limiting"),
    [
        ("GTX 260", 64, 50, 2248, 4, 25, {"registers"}),  # S3.3, S3.4
        ("GTX 260", 512, 16, 8 * (32 * 16 + 16 * 64), 1, 50, {"shared"}),  # S3.2: 12 KiB of 16
        ("GTX 260", 512, 17, 0, 1, 50, {"registers"}),
        ("GTX 260", 256, 16, 0, 4, 100, {"threads", "registers"}),
        ("GTX 1080 Ti", 256, 32, 48 * KIB, 2, 25, {"shared"}),
        ("V100", 256, 32, 0, 8, 100, {"threads", "registers"}),
        ("V100", 1024, 32, 8 * KIB, 2, 100, {"threads", "registers"}),  # S0.5: 32 x 32
        ("V100", 64, 32, 512, 32, 100, {"threads", "registers", "blocks"}),  # S0.4: 8 x 8
        ("V100", 32, 32, 0, 32, 50, {"blocks"}),
        ("T4", 1024, 64, 0, 1, 100, {"threads", "registers"}),
        ("RTX 2080 Ti", 256, 64, 32 * KIB, 2, 50, {"shared"}),
        ("A100", 1024, 33, 0, 1, 50, {"registers"}),  # 1,056 registers a warp become 1,280
        ("A100", 128, 255, 0, 2, 12.5, {"registers"}),
        ("A100", 128, 128, 163 * KIB, 1, 6.25, {"shared"}),
        ("H100", 384, 168, 0, 1, 18.75, {"registers"}),
        ("H200", 256, 64, 0, 4, 50, {"registers"}),
        ("H200", 256, 32, 100 * KIB, 2, 25, {"shared"}),
        ("H200", 256, 32, 227 * KIB, 1, 12.5, {"shared"}),
        ("B200", 256, 64, 0, 4, 50, {"registers"}),
    ],
)
def test_known_values(
    gpu: str, threads: int, registers: int, shared: int, blocks: int, percent: float, limiting: set[str]
) -> None:
    found = occupancy(find_gpu(gpu), threads, registers, shared)
    assert (found.blocks, 100 * found.fraction, set(found.limiting)) == (blocks, percent, limiting)


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "limiting"),
    [
        ("GTX 260", 1024, 8, 0, "threads"),
        ("H200", 2048, 8, 0, "threads"),
        ("H200", 256, 256, 0, "registers"),
        ("H200", 1024, 65, 0, "registers"),
        ("H200", 256, 32, 228 * KIB, "shared"),
        ("T4", 256, 32, 64 * KIB + 1, "shared"),
    ],
)
def test_what_cannot_launch_says_why(gpu: str, threads: int, registers: int, shared: int, limiting: str) -> None:
    found = occupancy(find_gpu(gpu), threads, registers, shared)
    assert (found.blocks, found.fraction, found.limiting) == (0, 0, (limiting,))
    assert "cannot launch" in str(found)


@given(
    st.sampled_from(GPUS),
    st.integers(1, 512),
    st.integers(1, 124),
    st.integers(0, 16 * KIB),
    st.integers(0, 2),
)
def test_asking_for_more_never_gives_more(gpu: object, threads: int, registers: int, shared: int, which: int) -> None:
    more = [threads, registers, shared]
    more[which] += 1
    less, greater = occupancy(gpu, threads, registers, shared), occupancy(gpu, *more)  # type: ignore[arg-type]
    assert greater.blocks <= less.blocks
    assert 0 <= less.fraction <= 1
    assert set(less.counters().values()) == set(less.limits.values())


def test_bad_arguments() -> None:
    with pytest.raises(UsageError, match="threads: must be at least 1, got 0"):
        occupancy(find_gpu("h200"), 0)
    with pytest.raises(UsageError, match="shared: must be at least 0, got -1"):
        occupancy(find_gpu("h200"), 32, 32, -1)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """``tilewright occupancy`` with these words: exit code, standard output and standard error."""
    from tilewright.__main__ import run_command_line

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["tilewright", "occupancy", *words])
        code = run_command_line()
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["5000"], "5,000 threads a block, of 1,024 at most"),
        (["1025", "--gpu", "H200"], "H200: 1,025 threads a block, of 1,024 at most"),
        (["256", "--registers", "256", "--gpu", "T4"], "T4: 256 registers a thread, of 255 at most"),
        (["1024", "--registers", "65", "--gpu", "H200"], "73,728 registers a block (1,024 threads of 65), of 65,536"),
        (["32", "--shared", "300000"], "H100, H200, B200: 300,000 bytes of shared memory a block, of 232,448 at most"),
        (["99999999999999999999999"], "threads a block, of 1,024 at most"),
    ],
)
def test_a_block_that_no_card_launches_is_refused_in_one_line(command, words: list[str], why: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: no such block can be launched: ")
    assert err.count("\n") == 1
    assert why in err


def test_a_card_that_cannot_launch_a_block_has_no_line_of_zeros(command) -> None:
    code, out, err = command("256", "--shared", "100000")
    assert (code, err) == (0, "")
    assert "Cannot launch: GTX 260: 100,000 bytes of shared memory a block, of 16,384 at most." in out
    table = out.partition("Cannot")[0]
    assert "H200" in table
    assert "T4" not in table
    code, out, _ = command("1024", "--registers", "64")
    assert code == 0
    assert out.count("Cannot launch") == 1  # the oldest card


def test_what_cannot_launch_has_a_refusal_and_nothing_else_has() -> None:
    for gpu in GPUS:
        for threads in (1, 32, 511, 512, 513, 1024, 1025, 10**9):
            for registers in (0, 1, 32, 64, 65, 124, 125, 168, 255, 256):
                for shared in (0, 16384, 16385, 49152, 49153, 101376, 166912, 232448, 232449):
                    found = occupancy(gpu, threads, registers, shared)
                    assert bool(found.refusal) == (found.blocks == 0)
                    assert found.blocks or " of " in found.refusal
