"""``explain``: formulas beside counts, bounds, occupancy; the command, its words, and kernels of users."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support import measured_rungs
from tilewright.errors import CompileError, HeaderError, RecordError, UsageError
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.cli import app
from tilewright.lab.explain import cuda as explain_cuda
from tilewright.lab.explain.cuda import LeastWork, arithmetic_unit, counted_value, explain, time_bounds, unknown
from tilewright.records.explanation import Access, Bound, Explanation, from_dict, read_explanations, to_json
from tilewright.simulator import listing
from tilewright.simulator.gpus import GPUS, find_gpu

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
LADDER = list(cuda_catalog().values())


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words], env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


# ---- what is counted -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sources_own_count() -> None:
    """S0.3: 5,120 loads and 128 stores at 32×32×32, at their lines; 2,048 requests."""
    found = explain(cuda_catalog()["cuda/coalesced"], 32, 32, 32)
    lines = found.source.splitlines()
    load, store = found.accesses
    assert (load.kind, load.sectors, load.requests) == ("ld", 5120, 2048)
    assert "sum += a[row * k + p] * b[(long long)p * n + col]" in lines[load.line - 1]
    assert (store.kind, store.sectors) == ("st", 128)
    assert "c[row * n + col] = sum" in lines[store.line - 1]
    assert found.verified["ok"]
    assert not found.defects


def choices() -> list[tuple[CudaKernel, dict[str, int]]]:
    """Every kernel with its defaults; where it has few parameters, also with each of their values."""
    found = []
    for kernel in LADDER:
        own = kernel.parameters if len(kernel.parameters) <= 2 else ()
        values = [{p.name: value} for p in own for value in p.values if value <= 32]
        found += [(kernel, chosen) for chosen in [{}, *values] if allowed(kernel, chosen)]
    return found


def allowed(kernel: CudaKernel, params: dict[str, int]) -> bool:
    try:
        return bool(kernel.checked(params))
    except UsageError:
        return False


@pytest.mark.slow_cases(
    "cuda/tf32",
    "cuda/bf16",
    "{'ROWS': 2}",
    "{'ROWS': 4}",
    "{'ROWS': 8}",
    "{'ROWS': 16}",
    "{'ROWS': 32}",
    "cuda/producer",
    "{'STAGES': 2}",
    "{'STAGES': 3}",
    "cuda/warp_tile",
    "cuda/multicast",
    "cuda/vectorised",
    "cuda/async_copy",
    "cuda/persistent",
    "cuda/thread_tile",
    "cuda/dgemm_column",
    "cuda/dgemm_tensor",
    "cuda/stored_boxes",
    "cuda/double_buffer",
    "cuda/thread_columns",
    "cuda/register_banks",
    "cuda/uncoalesced-{'BLOCK_Y': 32}",
    "cuda/coalesced-{'BLOCK_X': 8}",
    "cuda/register_rows-{}",
    "cuda/register_rows-{'TILE': 16}",
    "cuda/register_rows-{'TILE': 32}",
    "cuda/two_consumers-{}",
)
@pytest.mark.usefixtures("without_disassembly")
@pytest.mark.parametrize(("kernel", "params"), choices(), ids=lambda value: getattr(value, "name", str(value)))
def test_formulas_of_global_memory_are_what_is_counted(kernel: CudaKernel, params: dict[str, int]) -> None:
    """At whole blocks; for shared memory the formulas are the sources', which know nothing of fused loads."""
    small = len(kernel.parameters) <= 2
    height, width, _ = measured_rungs.shapes(kernel, kernel.params | params)[-1]
    k = max(16, kernel.params.get("BK", 32))  # two steps of a short tile, one of a long one
    found = explain(kernel, *((64, 64, 32) if small else (height, 2 * width, k)), params=params)
    assert found.verified["ok"], found.verified["reason"]
    assert found.defects == []
    for formula in found.formulas:
        if formula.what.startswith("global"):
            assert formula.counted == pytest.approx(formula.value), formula


@pytest.mark.slow
def test_block_shape_hardly_changes_the_transactions() -> None:
    """S0.4 asks the reader to prove it: 5, 4, 5 sectors a warp and step for blocks 8, 16, 32 wide."""
    kernel = cuda_catalog()["cuda/coalesced"]
    sectors = [explain(kernel, 64, 64, 64, params={"BLOCK_X": x}).accesses[0].sectors for x in (8, 16, 32)]
    steps = 64 * 64 * 64 // 32
    assert [count / steps for count in sectors] == [5, 4, 5]


@pytest.mark.slow
def test_swapped_indices() -> None:
    """S1.16: 6.6 times the sectors."""
    swapped, straight = (explain(cuda_catalog()[f"cuda/{n}"], 64, 64, 64) for n in ("uncoalesced", "coalesced"))
    assert swapped.accesses[0].sectors / straight.accesses[0].sectors == pytest.approx(6.6)
    assert swapped.accesses[0].least == straight.accesses[0].sectors == straight.accesses[0].least


def test_counted_by_name() -> None:
    accesses = [
        Access(1, "global", "ld", 4, 2, 256, sectors=8),
        Access(2, "global", "cp.async", 16, 1, 512, sectors=16),
    ]
    accesses += [Access(3, "shared", "st", 4, 3, 384, wavefronts=5, conflicts=2, least=3)]
    assert counted_value(accesses, "global_load_sectors") == 24
    assert counted_value(accesses, "shared_store_wavefronts") == 5
    assert counted_value(accesses, "shared_load_requests") == 0


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_slowest_resource() -> None:
    card = find_gpu("H200")
    work = LeastWork(2 * 4096**3, 3 * 4 * 4096**2)
    nothing = time_bounds(card, card.fp32_gflops, work, 10_000, [])
    assert [b.name for b in nothing] == ["arithmetic", "device memory", "L1 and shared memory"]
    assert nothing[0].seconds == pytest.approx(2 * 4096**3 / 66.9e12, rel=1e-3)
    much = [Access(1, "global", "ld", 4, requests=10**9, bytes=0, sectors=10**10)]
    slow = time_bounds(card, card.fp32_gflops, work, 10_000, much)[2]
    assert slow.amount == 2.5e9
    assert slow.seconds == pytest.approx(2.5e9 / (132 * 1.98e9))
    alone = time_bounds(card, card.fp32_gflops, work, 1, much)[2]
    assert alone.seconds == pytest.approx(132 * slow.seconds), "one block keeps one multiprocessor busy"


@pytest.mark.slow
def test_unknown_rates_give_no_bound_and_are_said() -> None:
    card = dataclasses.replace(find_gpu("H200"), clock_mhz=None)
    unit = arithmetic_unit(card, "bfloat16", "standard", matrix=False)
    assert [b.name for b in time_bounds(card, unit.gflops, LeastWork(1, 1), 1, [])] == ["device memory"]
    assert unknown(card, unit) == [
        "no bound by arithmetic: the H200's rate for bfloat16 is not known here",
        "no bound by L1 and shared memory: the H200's clock is not known here",
    ]
    assert unknown(find_gpu("H200"), arithmetic_unit(card, "float32", "standard", matrix=False)) == []
    found = explain(cuda_catalog()["cuda/coalesced"], 32, 32, 32, gpu="B200")
    assert [b.name for b in found.bounds] == ["arithmetic", "device memory", "L1 and shared memory"]
    assert any("that the B200 follows them" in note for note in found.notes)
    bare = from_dict(found.as_dict() | {"bounds": []}, "here")
    assert bare.bound is None
    assert bare.gflops is None


@pytest.mark.slow_cases("RTX 5090")
@pytest.mark.usefixtures("without_disassembly")
@pytest.mark.parametrize("card", [gpu.name for gpu in GPUS])
def test_every_card_of_the_sources(card: str) -> None:
    found = explain(cuda_catalog()["cuda/shared_tile"], 32, 32, 32, gpu=card, params={"TILE": 16})
    assert found.occupancy["blocks"] >= 1
    assert found.occupancy["limiting"]
    assert found.gpu["name"] == card
    older = find_gpu(card).compute_capability < (7, 5)
    assert any("registers are those of" in note for note in found.notes) == older


# ---- samples, sizes, errors ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_size_is_sampled_and_what_was_written_is_verified() -> None:
    kernel = cuda_catalog()["cuda/shared_tile"]
    found = explain(kernel, 300, 200, 64, whole=False)
    assert found.run["blocks_run"] == 28
    assert found.verified["ok"]
    assert "sampled" in found.verified["of"]
    whole = explain(kernel, 300, 200, 64)
    assert whole.verified["of"] == "every element, and all of C at 33x37x29"
    assert found.counters == whole.counters


@pytest.mark.slow
def test_sizes_of_nothing() -> None:
    kernel = cuda_catalog()["cuda/coalesced"]
    with pytest.raises(UsageError, match="C has no elements"):
        explain(kernel, 0, 5, 5)
    assert explain(kernel, 3, 2, 0).verified["ok"]


def test_a_kernel_of_a_dtype_that_numpy_has_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        (EXAMPLES / "third_try.cu").read_text().replace("block =", 'entry="third_try"\ndtypes = ["fp8"]\nblock =', 1)
    )
    with pytest.raises(UsageError, match="dtype 'fp8'"):
        explain(load_cuda_file(path), 8, 8, 8)


@pytest.mark.slow
def test_a_wrong_kernel_is_called_wrong(tmp_path: Path) -> None:
    path = tmp_path / "third_try.cu"
    path.write_text((EXAMPLES / "third_try.cu").read_text().replace("= sum;", "= sum * 1.001f;"))
    found = explain(load_cuda_file(path), 40, 40, 40)
    assert not found.verified["ok"]
    assert "is off by" in found.verified["reason"]
    code, shown = command(str(path), "--size", "40")
    assert code == 1
    assert "WRONG" in shown
    sampled = explain(load_cuda_file(path), 200, 200, 40, whole=False)
    assert not sampled.verified["ok"]


# ---- the examples, step by step --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_a_wrong_kernel_to_a_better_one() -> None:
    first, second, third = (
        explain(load_cuda_file(EXAMPLES / f"{n}_try.cu"), 50, 50, 50) for n in ("first", "second", "third")
    )
    lines = first.source.splitlines()
    assert {(d.kind, lines[d.line - 1].split("[")[0].strip()) for d in first.defects} == {
        ("out of bounds", "a_tile"),
        ("race", "a_tile"),
        ("race", "b_tile"),
    }
    assert not second.defects
    assert not third.defects
    assert third.gflops > 3 * second.gflops


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_command_in_80_columns() -> None:
    code, shown = command("coalesced", "--size", "32")
    assert code == 0
    assert max(len(line) for line in shown.splitlines()) <= 80
    for words in ("5,120", "2,048", "128", "held back by L1 and shared memory", "right: every element"):
        assert words in shown


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_source_line_is_cut(width: int) -> None:
    """What is wrong with a line cannot be seen in its first half."""
    long = "int row = threadIdx.x; if (row <= m && threadIdx.x + y < k) c[row * k + threadIdx.x + y] = a[row];"
    for source in (long, "\t\t" + long, "x" * 150, ""):
        text = listing.folded_line(listing.ListingLine("  5,100     3.9    18", source), width)
        first, *others = text.split("\n")
        assert first.startswith("  5,100     3.9    18")
        assert all(other.startswith(" " * 21) for other in others)
        assert "".join(text[21:].split()) == "".join(source.split()), "nothing is lost"
        assert all(len(line) <= max(width, 21 + 2 + 8 + 24) for line in text.split("\n"))


@pytest.mark.slow
def test_defects_end_with_code_1() -> None:
    code, shown = command(str(EXAMPLES / "first_try.cu"), "--size", "20")
    assert code == 1
    assert "^ race, block (0, 0, 0), thread (0, 0, 0): writes" in shown
    assert "of a\n    (float32, shape (20, 20)" in shown, "an argument has its name"
    assert "argument 0" not in shown


@pytest.mark.slow
def test_a_kernel_of_blackwell_is_explained_for_its_card() -> None:
    file = str(EXAMPLES / "blackwell_product.cu")
    code, shown = command(file, "--gpu", "B200")
    assert code == 0, shown
    assert "No defect found." in shown
    assert "right: every element of c" in shown
    assert "≈ 32 products by tcgen05.mma" in shown
    with pytest.raises(CompileError, match="hint: tcgen05 needs sm_100a: choose a card that has it"):
        command(file)


@pytest.mark.slow
def test_json_is_an_explanation_that_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    assert command("uncoalesced", "coalesced", "--size", "4x40x8", "--json", str(path))[0] == 0
    two = read_explanations(path)
    assert [e.kernel for e in two] == ["cuda/uncoalesced", "cuda/coalesced"]
    assert two[0].shape == "4x40x8"
    assert json.loads(to_json(two)) == json.loads(path.read_text())
    code, printed = command("coalesced", "--size", "8", "--json", "-")
    assert code == 0
    assert from_dict(json.loads(printed), "here").n == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cuda/coalesce",), "did you mean cuda/coalesced"),
        (("coalesced", "--size", "x"), "sizes 'x'"),
        (("coalesced", "--gpu", "H2000"), "did you mean H200"),
        (("coalesced", "--param", "TILE=16"), "param 'TILE': none of the chosen kernels has it"),
        (("coalesced", "--param", "BLOCK_X=7"), "BLOCK_X must be one of 8, 16, 32"),
        (("coalesced", "--seed", "-1"), "seed must not be negative"),
        (("nothing.cu",), "does not exist"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        command(*words)


@pytest.mark.slow
def test_a_parameter_goes_to_the_kernels_that_have_it() -> None:
    request = explain_cuda.ExplainRequest(kernels=["coalesced", "shared_tile"], size="16", params=["TILE=16"])
    found = explain_cuda.run_explanations(request)
    assert [e.params for e in found] == [{"BLOCK_X": 32, "BLOCK_Y": 32}, {"TILE": 16}]


def test_a_kernel_without_a_header_is_told_what_it_needs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cu"
    path.write_text("__global__ void mine(const float* a, const float* b, float* c, int m, int n, int k) {}")
    with pytest.raises(HeaderError, match=r"(?s)has no header.*idea = .*block = .*grid = "):
        command(str(path))
    from tilewright.__main__ import _failed

    _failed(HeaderError("one\n  two"))
    assert capfd.readouterr().err == "error: one\n  two\n", "the lines it needs stay lines"
    _failed(UsageError("one\n  two"))
    assert capfd.readouterr().err == "error: one two\n"


@pytest.mark.slow
def test_a_sweep_is_a_line_each() -> None:
    code, shown = command("shared_tile", "--size", "32,64", "--param", "TILE=8,16,32", "--brief")
    assert code == 0
    assert max(len(line) for line in shown.splitlines()) <= 80
    rows = [line.split() for line in shown.splitlines() if line.startswith("cuda/")]
    assert [row[1:3] for row in rows] == [[n, tile] for tile in ("8", "16", "32") for n in ("32", "64")]
    with pytest.raises(UsageError, match="TILE must be one of 8, 16, 32"):
        command("shared_tile", "--param", "TILE=8,9")


def test_occupancy_of_s3_4() -> None:
    result = CliRunner().invoke(app, ["occupancy", "64", "--registers", "50", "--shared", "2248", "--gpu", "GTX 260"])
    assert result.exit_code == 0
    caption, *heads, row = result.stdout.splitlines()
    assert caption.startswith("Blocks that fit on a multiprocessor")
    assert max(map(len, heads)) <= 80
    columns = ("GPU", "by threads", "by registers", "by shared memory", "by number of blocks")
    words = " ".join(heads).split()
    assert sorted(words) == sorted(" ".join((*columns, "resident blocks", "resident warps", "most warps")).split())
    assert row.split() == ["GTX", "260", "16", "4", "6", "8", "4", "8", "32"]


# ---- plain data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [None, [], {}, {"kind": "bench"}, {"kind": "explain", "schema": 2}, {"kind": "explain", "schema": 1}]
)
def test_what_is_no_explanation_is_refused(data: object) -> None:
    with pytest.raises(RecordError, match="here: "):
        from_dict(data, "here")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_files_that_hold_no_explanation_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RecordError, match=r"x\.json"):
        read_explanations(path)


def test_bounds_and_rates() -> None:
    bound = Bound("arithmetic", 10.0, "operations", 5.0)
    assert bound.seconds == 2.0
    assert isinstance(explain(cuda_catalog()["cuda/coalesced"], 8, 8, 8), Explanation)


@pytest.mark.slow
def test_explanations_from_any_machine_become_a_page(tmp_path: Path) -> None:
    why, page = tmp_path / "why.json", tmp_path / "why.html"
    assert command("coalesced", "--size", "8", "--json", str(why))[0] == 0
    result = CliRunner().invoke(app, ["report", str(why), "-o", str(page)])
    assert result.exit_code == 0
    assert "cuda/coalesced" in page.read_text(encoding="utf-8")
    records = str(Path(__file__).parents[2] / "benchmarks" / "cpu-strassen.jsonl")
    for words in ([str(why), records], [str(why), "--figures", str(tmp_path)]):
        mixed = CliRunner().invoke(app, ["report", *words, "-o", str(page)])
        assert isinstance(mixed.exception, UsageError)
