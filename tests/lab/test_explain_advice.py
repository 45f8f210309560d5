"""Advice of ``explain``: its time by the model, and what a run of the changed source shows. Also where it must not be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from support.command_line import Answer
from tilewright.errors import RecordError
from tilewright.lab.explain import advice as advice_module
from tilewright.lab.explain.advice import advice_of, trials
from tilewright.lab.explain.any_kernel import AnyKernel, explain_any
from tilewright.records.explanation import Access, Advice, Bound, Explanation, from_dict, read_explanations, to_json
from tilewright.simulator.counters.advice import Change
from tilewright.simulator.gpus import find_gpu
from tilewright.simulator.microscope import Observation
from tilewright.simulator.occupancy import Occupancy, occupancy

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
pytestmark = pytest.mark.usefixtures("without_disassembly")

#: Columns of a tile are read; the tile is DECLARED, and its element in row r, column c is AT(r, c).
COLUMNS = """
// explain columns: --grid 2 --block 32x8 --arg x:float32:64x32 --arg y:float32:64x32:zeros --expect "y = EXPECTED"
FIRST
__global__ void columns(const float* x, float* y)
{
    DECLARED
    for (int r = threadIdx.y; r < ROWS; r += 8) AT(r, threadIdx.x) = x[blockIdx.x * 1024 + r % 32 * 32 + threadIdx.x];
    __syncthreads();
    for (int c = threadIdx.y; c < 32; c += 8) y[blockIdx.x * 1024 + c * 32 + threadIdx.x] = AT(threadIdx.x, c);
}
"""
TRANSPOSED = "x.reshape(2, 32, 32).transpose(0, 2, 1)"


def explained(tmp_path: Path, declared: str, at: str, first: str = "", gpu: str = "H200", **macros: str) -> Explanation:
    first = f"#define AT(r, c) {at}\n{first}"
    text = COLUMNS.replace("DECLARED", declared).replace("EXPECTED", TRANSPOSED).replace("FIRST", first)
    path = tmp_path / "columns.cu"
    path.write_text(text)
    return explain_any(AnyKernel(path, None, defines={"ROWS": "32"} | macros), gpu=gpu)


def only(e: Explanation) -> Advice:
    assert e.verified["ok"], e.verified
    (found,) = e.advice
    return found


def test_a_longer_row_is_tried(tmp_path: Path) -> None:
    found = only(explained(tmp_path, "__shared__ float tile[32][32];", "tile[r][c]"))
    assert (found.text, found.unit) == ("pad the row from 32 to 33 elements of 4 bytes", "wavefronts")
    assert (found.before, found.after) == (2048, 64)
    assert found.tried == "run again with tile[32][32 + 1]: 64 wavefronts, the same result"
    assert found.seconds is not None
    assert found.seconds[0] > 5 * found.seconds[1]


@pytest.mark.parametrize(
    ("first", "macros", "words"),
    [
        ("#define PAD 0\n#define ROW (32 + PAD)", {}, "PAD 1"),
        ("constexpr int PITCH = 32;\n#define ROW PITCH", {}, "PITCH 33"),
        ("#define ROW TILE_LD", {"TILE_LD": "32"}, "TILE_LD=33"),
    ],
)
def test_a_constant_that_is_named_as_a_pitch_is_tried(
    first: str, macros: dict[str, str], words: str, tmp_path: Path
) -> None:
    found = only(explained(tmp_path, "__shared__ float tile[32 * ROW];", "tile[(r) * ROW + (c)]", first, **macros))
    assert found.tried == f"run again with {words}: 64 wavefronts, the same result"


@pytest.mark.parametrize(
    ("declared", "at"),
    [
        ("__shared__ float tile[1024];", "tile[(r) * 32 + (c)]"),  # no number alone changes the row
        ("__shared__ float tile[32][32];", "(&tile[0][0])[(r) * 32 + (c)]"),  # the declared row has no effect
        ("__shared__ float tile[32][32]; if (sizeof tile > 4096) __trap();", "tile[r][c]"),  # stops when it is longer
    ],
)
def test_a_change_that_does_not_help_is_not_claimed(declared: str, at: str, tmp_path: Path) -> None:
    found = only(explained(tmp_path, declared, at))
    assert (found.after, found.tried) == (64, "")


def test_a_changed_result_is_no_success(tmp_path: Path) -> None:
    declared = "__shared__ float tile[32][32];"
    found = only(explained(tmp_path, declared, "tile[r][(c) + (sizeof tile > 4096 && (c) < 31)]"))
    assert found.tried == ""


def test_a_large_kernel_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "SMALL", 100)
    found = only(explained(tmp_path, "__shared__ float tile[32][32];", "tile[r][c]"))
    assert (found.after, found.tried) == (64, "")


def test_nothing_is_advised_where_nothing_is_wasted(tmp_path: Path) -> None:
    assert explained(tmp_path, "__shared__ float tile[32][33];", "tile[r][c]").advice == []


def test_a_swizzle_where_longer_rows_leave_less_room(tmp_path: Path) -> None:
    """Four blocks of 16 KiB fill a multiprocessor of a T4; longer rows leave room for three."""
    card, declared = "T4", "__shared__ float tile[128][32];"
    found = only(explained(tmp_path, declared, "tile[r][c]", gpu=card, ROWS="128"))
    assert (found.text, found.after) == ("store column c of row r at column c ^ r % 32 (elements of 4 bytes)", 64)
    assert only(explained(tmp_path, declared, "tile[r][c]", ROWS="128")).text.startswith("pad the row")


def test_a_wrong_kernel_has_no_time(tmp_path: Path) -> None:
    e = explained(tmp_path, "__shared__ float tile[32][32];", "tile[r][c]", ROWS="31")
    assert e.verified["ok"] is False
    assert [advice.seconds for advice in e.advice] == [None]


def test_which_sources_are_tried() -> None:
    access = Access(1, "shared", "ld", 4, 32, 4096)
    source = "__shared__ float a[8][32], b[32], c[2][8][N];\n__shared__ half h[8][64];\n__shared__ thing t[8][32];"
    found = [trial.words for trial in trials(source, Change("", access, access, 128, 4), {})]
    assert found == ["a[8][32 + 1]", "c[2][8][N + 1]", "h[8][64 + 2]"]


# ---- of the whole kernel ---------------------------------------------------------------------------------------------

COPY = 'extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
MEMORY = [Bound("device memory", 10**9, "bytes", 4.8e12), Bound("L1 and shared memory", 10**3, "turns", 2.6e11)]


@pytest.fixture
def copied() -> Observation:
    x = np.ones(32, np.float32)
    seen = tw.microscope(COPY, "copy", 1, 32, [x, x])
    return replace(seen, run=replace(seen.run, blocks_total=10**6))


def held(registers: int, shared: int = 0, threads: int = 256) -> Occupancy:
    return occupancy(find_gpu("H200"), threads, registers, shared)


def test_few_warps_that_wait_for_device_memory(copied: Observation) -> None:
    card = find_gpu("H200")
    (found,) = advice_of(copied, card, MEMORY, held(160))
    assert found.text == "few warps wait for device memory: 128 registers a thread instead of 160 make room for more"
    assert (found.unit, found.before, found.after, found.seconds) == ("warps", 8, 16, None)
    (found,) = advice_of(copied, card, MEMORY, held(32, 100_000))
    assert "bytes of shared memory a block instead of 100,000" in found.text
    arithmetic = [Bound("arithmetic", 10**12, "operations", 6e13), *MEMORY]
    assert advice_of(copied, card, arithmetic, held(160)) == [], "its warps wait for something else"
    assert advice_of(copied, card, MEMORY, held(32)) == [], "they are not few"
    few_blocks = replace(copied, run=replace(copied.run, blocks_total=8))
    assert advice_of(few_blocks, card, MEMORY, held(160)) == [], "more room would stay empty"


def test_a_class_of_changes_that_was_not_measured_has_no_time() -> None:
    kernels = Path(__file__).parents[2] / "benchmarks" / "advised_changes.cu"
    x, y = np.ones(1 << 14, np.float32), np.zeros(256, np.float32)
    for kernel, text, timed in (("quads", "access 4 neighbouring", False), ("members", "let lanes access", True)):
        seen = tw.microscope(kernels, kernel, 1, 256, [x, y, 1 << 12], defines={"CHANGED": 0})
        (found,) = advice_of(seen, find_gpu("H200"), MEMORY, held(32))
        assert found.text.startswith(text)
        assert (found.seconds is not None) == timed


def test_registers_that_are_spilled(copied: Observation) -> None:
    assert copied.resources is not None
    spilled = replace(copied, resources=replace(copied.resources, registers=255, local_bytes=40))
    (found,) = advice_of(spilled, find_gpu("H200"), [], held(255))
    assert found.sentence(str).startswith(
        "40 bytes of a thread do not fit into 255 registers and lie in local memory: "
    )
    assert advice_of(copied, find_gpu("H200"), [], held(255)) == []


# ---- records and what is shown ---------------------------------------------------------------------------------------


def test_records_keep_advice(tmp_path: Path) -> None:
    e = explained(tmp_path, "__shared__ float tile[32][32];", "tile[r][c]")
    (tmp_path / "e.json").write_text(to_json([e]))
    (again,) = read_explanations(tmp_path / "e.json")
    assert again.advice[0].sentence(str) == e.advice[0].sentence(str)
    older = {name: value for name, value in e.as_dict().items() if name != "advice"}
    assert from_dict(older, "older").advice == []
    with pytest.raises(RecordError, match=r"advice\[0\]\.seconds"):
        from_dict(e.as_dict() | {"advice": [e.as_dict()["advice"][0] | {"seconds": [1]}]}, "wrong")


@pytest.mark.slow
def test_terminal_and_page_show_advice_with_its_line(cli, tmp_path: Path) -> None:
    explained(tmp_path, "__shared__ float tile[32][32];", "tile[r][c]")
    said: Answer = cli("explain", "columns.cu", "-D", "ROWS=32", "--report", "e.html")
    assert said.code == 0
    words = " ".join(said.out.split())
    assert "→ pad the row from 32 to 33 elements of 4 bytes: wavefronts ≈ 2,048 → 64, least time " in words
    assert "by the model; run again with tile[32][32 + 1]: 64 wavefronts, the same result" in words
    page = (tmp_path / "e.html").read_text(encoding="utf-8")
    assert '<span class="advice">pad the row from 32 to 33 elements' in page


def test_a_time_that_is_no_shorter_is_said() -> None:
    advice = Advice(1, "pad the row", "wavefronts", 64, 2, seconds=(1e-6, 1e-6))
    assert advice.sentence(str) == "pad the row: wavefronts 64 → 2, no less time by the model"
    assert replace(advice, seconds=None).sentence(str) == "pad the row: wavefronts 64 → 2"
