"""float32 by tensor cores of float16: operands that are split, executed by the microscope, and the bound of the error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.selection import in_turns
from tilewright.gpu.arrays import libraries, matmul
from tilewright.gpu.arrays.copies import sum_step
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.runtime import split_product
from tilewright.gpu.runtime.layout import row_major_matrix
from tilewright.gpu.runtime.split_product import (
    PartsOfK,
    SplitOperand,
    SplitProduct,
    allowed_excess,
    split_bound,
    split_of_rows,
    split_product_steps,
)
from tilewright.gpu.runtime.steps import WORKSPACE, BufferPlace, C, load
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

SPLIT = cuda_engine()["cuda/split_hopper"]
U = 2.0**-24
LAUNCHES = ["split_matrices", "split_hopper", "multiply_flagged"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 24)
    found.sms = 4
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, replace(SPLIT, suits=None))
    return found


def uniform(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def product(gpu: Any, a: np.ndarray, b: np.ndarray, layouts: tuple[str, str] = ("rows", "rows"), **options: Any) -> Any:
    return tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1]), **options).view


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error in units of 2⁻²⁴·|A||B|, beyond what float32 cannot represent."""
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    error = np.maximum(0, abs(c - exact) - a.shape[-1] * 2.0**-149)
    assert (error[size == 0] == 0).all()
    return float(np.divide(error, size, where=size > 0, out=np.zeros_like(size)).max(initial=0) / U)


@pytest.mark.slow
@pytest.mark.parametrize(("shapes", "layouts"), in_turns([
    (((128, 128), (128, 128)), ("rows", "rows")), (((130, 200), (200, 70)), ("columns", "rows")),
    (((1, 150), (150, 129)), ("rows", "columns")), (((33, 1100), (1100, 5)), ("columns", "rows")),
    (((129, 131), (131, 1)), ("columns", "columns")),
    (((9, 530), (530, 40)), ("wider", "columns")),
    (((65, 129), (129, 67)), ("wider", "wider")), (((40, 140), (140, 33)), ("strided", "reversed")),
    (((3, 70, 130), (3, 130, 40)), ("rows", "columns")), (((2, 40, 130), (130, 20)), ("neither", "rows")),
    (((70, 130), (2, 130, 40)), ("wider", "columns")),
], 4), ids=str)  # fmt: skip
def test_every_layout_and_shape_is_split(gpu: Any, shapes: Any, layouts: tuple[str, str]) -> None:
    a, b = uniform(*shapes[0]), uniform(*shapes[1], seed=2)
    assert worst(product(gpu, a, b, layouts), a, b) < 6
    assert [entry for entry, _ in gpu.launches if entry != "add_single_parts"][-3:] == LAUNCHES


@pytest.mark.slow
@pytest.mark.parametrize("params", in_turns([
    {}, {"CLUSTER": 2}, *(preset.params for preset in SPLIT.presets), {"CHUNK": 1}, {"SLOTS": 4, "GROUP": 1}
], 2), ids=str)  # fmt: skip
@pytest.mark.parametrize("k", [128, 257])
def test_every_set_of_parameters(params: dict[str, int], k: int) -> None:
    gpu = fake.Gpu(1 << 22)
    gpu.sms = 2
    a, b = uniform(200, k), uniform(k, 190, seed=2)
    assert worst(by_kernel(gpu, SPLIT, a, b, params), a, b) < 6


def by_kernel(gpu: Any, kernel: CudaKernel, a: np.ndarray, b: np.ndarray, params: dict[str, int]) -> np.ndarray:
    (m, k), n = a.shape, b.shape[1]
    made = split_of_rows(m, n, k)
    at = [gpu.put(a).pointer, gpu.put(b).pointer, (c := gpu.put(np.full((m, n), np.nan, np.float32))).pointer]
    steps = split_product_steps(gpu.sms, kernel, params, made)
    load(gpu, steps)(*at, gpu.allocate(made.workspace_bytes).pointer, 1)
    return gpu.get(c, np.float32, (m, n))


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"BN": 64, "SLOTS": 9}, {"CLUSTER": 2, "CHUNK": 1}], ids=str)
def test_pieces_of_a_long_k_are_summed_apart(params: dict[str, int]) -> None:
    """In two products, of which one has a tile that is flagged, and whose last piece is shorter."""
    gpu = fake.Gpu(1 << 23)
    gpu.sms = 4
    batch, m, n, k, steps = 2, 140, 72, 700, 2 if "CHUNK" not in params else 4
    a, b = uniform(batch, m, k), uniform(batch, k, n, seed=2)
    a[1, 3, 5] = np.inf
    of_a, of_b, of_c = (row_major_matrix(*shape, "float32", batch) for shape in ((m, k), (k, n), (m, n)))
    made = SplitProduct(SplitOperand(of_a, batch), SplitOperand(of_b.transposed, batch), of_c, batch)
    places = BufferPlace(WORKSPACE, made.workspace_bytes), BufferPlace(C)
    pieces = PartsOfK(3, steps, sum_step(gpu.sms, 3, batch, "float32", of_c, places))
    at = [gpu.put(a).pointer, gpu.put(b).pointer, (c := gpu.put(np.full((batch, m, n), np.nan, np.float32))).pointer]
    workspace = gpu.allocate(made.workspace_bytes + pieces.many * c.nbytes)
    load(gpu, split_product_steps(gpu.sms, SPLIT, params, made, pieces))(*at, workspace.pointer, 1)
    found, finite = gpu.get(c, np.float32, (batch, m, n)), np.arange(m) != 3
    assert worst(found[0], a[0], b[0]) < 6
    assert worst(found[1][finite], a[1][finite], b[1]) < 6
    np.testing.assert_array_equal(found[1][3], a[1][3] @ b[1])


@pytest.mark.slow
def test_long_lines_are_split_by_more_blocks(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_product, "_LONG_LINES", 1900)
    assert SplitOperand(row_major_matrix(1, 1900, "float32")).blocks == 8
    assert SplitOperand(row_major_matrix(1, 2100, "float32")).blocks == 16
    a, b = uniform(35, 2100), uniform(2100, 9, seed=2)
    assert worst(by_kernel(gpu, SPLIT, a, b, {}), a, b) < 6


def test_a_deep_product_is_cut_by_its_plan(gpu: Any) -> None:
    gpu.sms = 132
    a, b = GpuArray(0, (512, 16384), (16384, 1), "float32", 0), GpuArray(0, (16384, 512), (512, 1), "float32", 0)
    plan = matmul._plan(matmul._key(a, b, None, True, "standard", None))
    assert plan.kernel.name == "cuda/split_hopper"
    assert plan.parts > 1
    assert plan.workspace_bytes > plan.parts * 512 * 512 * 4


# ---- accuracy


def distributions() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng, k = np.random.default_rng(3), 192
    normal, other = rng.standard_normal((140, k)), rng.standard_normal((k, 70))
    graded = 2.0 ** np.linspace(-20, 0, k)
    huge = uniform(140, k).copy()
    huge[77] *= 2.0**100
    cancelling = np.concatenate([normal[:, : k // 2], -normal[:, : k // 2] * (1 + 1e-5)], axis=1)
    found = {
        "uniform": (uniform(140, k), uniform(k, 70, seed=2)),
        "normal": (normal, other),
        "lognormal": (normal * np.exp(4 * rng.standard_normal(normal.shape)), other),
        "positive": (abs(normal), abs(other)),
        "cancelling": (cancelling, np.concatenate([other[: k // 2]] * 2)),
        "graded": (normal * graded, other / graded[:, None]),
        "graded rows": (normal * 2.0 ** np.linspace(-140, 100, 140)[:, None], other * 2.0 ** np.linspace(-20, 20, 70)),
        "vandermonde": (np.linspace(0.1, 1, 140)[:, None] ** np.arange(k), other),
        "one huge row": (huge, other),
        "one huge element": (np.where(np.arange(140 * k).reshape(140, k) == 999, 2.0**60, normal), other),
        "denormal": (normal * 2.0**-140, other),
        "zeros": (normal * (rng.random(normal.shape) < 0.1), other * (rng.random(other.shape) < 0.1)),
    }
    return {name: (a.astype(np.float32), b.astype(np.float32)) for name, (a, b) in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", distributions())
def test_the_classical_bound_holds_for_every_distribution(gpu: Any, name: str) -> None:
    a, b = distributions()[name]
    assert worst(product(gpu, a, b), a, b) < min(30, split_bound(a.shape[1], 2))


@pytest.mark.slow
def test_the_bound_of_a_line_with_small_magnitudes_is_sharp() -> None:
    """The largest excess that is allowed, and the only elements that meet are those that lose the most, all alike."""
    k = 1200
    t = allowed_excess(k, 2)
    assert t == 3
    a, b = np.zeros((32, k), np.float32), np.zeros((k, 32), np.float32)
    a[:, 0], b[1, :] = 1, 1
    a[:, 2:], b[2:] = (2.0 ** -(28 + excess) + 2.0**-39 + 2.0**-50 for excess in (1, 2))
    error = worst(by_kernel(fake.Gpu(1 << 22), SPLIT, a, b, {}), a, b)
    represented = 4 + 8 * 2**t
    assert 0.8 * represented < error < represented < split_bound(k, 2, t) <= k


@pytest.mark.parametrize(("k", "steps"), [(128, 2), (256, 2), (512, 1), (4096, 2), (1 << 20, 2), (128, 1)])
def test_the_allowed_excess_keeps_the_classical_bound(k: int, steps: int) -> None:
    t = allowed_excess(k, steps)
    assert t >= 0
    assert split_bound(k, steps, t) <= k < split_bound(k, steps, t + 1)
    assert allowed_excess(64, 2) == -1


@pytest.mark.slow
def test_sums_of_high_parts_are_promoted(gpu: Any) -> None:
    """Sums of positive numbers lose most in a tensor core: they must not grow with k."""
    a, b = abs(uniform(16, 2048)), abs(uniform(2048, 16, seed=2))
    assert worst(product(gpu, a, b), a, b) < 20


# ---- what cannot be split


@pytest.mark.slow
def test_infinities_and_nan_are_those_of_ieee(gpu: Any) -> None:
    a, b = uniform(260, 130), uniform(130, 33, seed=2)
    a[3, 5], a[200, 7], b[9, 30], b[10, 31] = np.nan, np.inf, -np.inf, 3e38
    a[:, 10] = 2
    c = product(gpu, a, b)
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(c), np.isnan(exact))
    np.testing.assert_array_equal(c[np.isinf(exact)], exact[np.isinf(exact)])
    fine = np.isfinite(exact)
    np.testing.assert_allclose(c[fine], exact[fine], rtol=1e-5, atol=1e-4)
    assert 250 * 30 < fine.sum() < fine.size - 500


#: Of each 32 rows of the second tile one has a number that is too small.
FLAGGED_ROWS = np.arange(140, 256, 32)


def three_tiles(kernel: CudaKernel, params: dict[str, int]) -> float:
    """The error of a product of three tiles, the second of which is flagged, by two multiprocessors or one."""
    gpu = fake.Gpu(1 << 22)
    gpu.sms = params.get("CLUSTER", 1)
    a, b = uniform(300 * gpu.sms, 128), uniform(128, 40, seed=2)
    for tile in range(gpu.sms):
        a[(gpu.sms - 1) * 128 + FLAGGED_ROWS + tile * 128, 7] = 2.0**-60
    return worst(by_kernel(gpu, kernel, a, b, params), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"CLUSTER": 2}], ids=str)
def test_a_tile_that_is_flagged_as_a_whole_is_left_out(params: dict[str, int]) -> None:
    assert three_tiles(SPLIT, params) < 6


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ("if (flags == ALL_FLAGGED) continue;", ""), ("if (flags == ALL_FLAGGED && tile != first)", "if (false)"),
])  # fmt: skip
def test_threads_that_disagree_on_what_is_left_out_are_found(before: str, after: str) -> None:
    assert SPLIT.source.count(before) == 1
    wrong = replace(SPLIT, source=SPLIT.source.replace(before, after))
    with pytest.raises(AssertionError, match=r"wait for ever|is wrong"):
        assert three_tiles(wrong, {}) < 6, "the product is wrong"


@pytest.mark.slow
def test_a_product_that_does_not_fit_float16_overflows_as_float32_does(gpu: Any) -> None:
    a, b = uniform(20, 128) * np.float32(3e38), uniform(128, 20, seed=2) * np.float32(1e-38)
    assert worst(product(gpu, a, b), a, b) < 6
    c = product(gpu, abs(a), abs(b) * np.float32(1e38))
    assert np.isposinf(c).all()
    c = product(gpu, a * np.float32(1e-38) * np.float32(1e-5), b * np.float32(1e-6))
    assert worst(c, a * np.float32(1e-38) * np.float32(1e-5), b * np.float32(1e-6)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ("cross[i + l] * (1.0f / 2048)", "0"), ("upper + columns[i / 4].x", "lower + columns[i / 4].x"),
    ("bh + NEXT_B * q, i > 0 || q > 0", "bh + NEXT_B * q, 1"), ("sum[i] += high[i];", "sum[i] = high[i];"),
])  # fmt: skip
def test_a_wrong_kernel_is_rejected(before: str, after: str) -> None:
    assert SPLIT.source.count(before) == 1
    wrong = replace(SPLIT, source=SPLIT.source.replace(before, after))
    a = uniform(64, 300) * (2.0 ** np.arange(64)[:, None]).astype(np.float32)
    b = uniform(300, 40, seed=2)
    gpu = fake.Gpu(1 << 22)
    assert worst(by_kernel(gpu, SPLIT, a, b, {}), a, b) < 6
    assert not worst(by_kernel(gpu, wrong, a, b, {}), a, b) < split_bound(300, 2)


@pytest.mark.slow
def test_without_the_second_multiplication_small_elements_would_be_lost(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = distributions()["one huge element"]
    b[999 % 192] = 0
    assert worst(product(gpu, a, b), a, b) < 30
    monkeypatch.setattr(split_product, "allowed_excess", lambda k, steps: 1 << 30)
    assert worst(by_kernel(gpu, SPLIT, a, b, {}), a, b) > a.shape[1]


# ---- the library


@pytest.mark.slow
def test_out_and_epilogue(gpu: Any) -> None:
    a, b = uniform(70, 130), uniform(130, 90, seed=2)
    out = laid(fake.Tensor, gpu, np.full((70, 90), 7, np.float32), "wider")
    around = out.storage.view.copy()
    assert tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b), out=out) is out
    c = out.view.copy()
    assert worst(c, a, b) < 6
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, around)
    bias = fake.Tensor.of(gpu, uniform(90, seed=5))
    finished = product(gpu, a, b, alpha=2.0, bias=bias)
    np.testing.assert_allclose(finished, 2 * c + bias.view, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_repeated_products_have_the_same_bits(gpu: Any) -> None:
    a, b = (fake.Tensor.of(gpu, x) for x in (uniform(70, 200), uniform(200, 90, seed=2)))
    c = [tw.matmul(a, b).view for _ in range(4)]
    assert all((each == c[0]).all() for each in c)
    assert gpu.replays


def test_what_the_plan_says(gpu: Any) -> None:
    a, b = (fake.Tensor.of(gpu, x) for x in (uniform(70, 4096), uniform(4096, 90, seed=2)))
    text = str(tw.plan(a, b))
    for words in ("float32 as two float16", "28 binades", "4096·2⁻²⁴·|A||B|", "by multiply-adds"):
        assert words in text
    plan = tw.plan(a, b)
    assert plan.split is not None
    assert plan.workspace_bytes >= 4 * 4096 * (70 + 90)


def test_ieee_and_short_k_are_not_split(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    every = cuda_engine().values()
    found = lambda dtype, capability: [x for x in every if dtype in x.dtypes and x.fits(capability)]  # noqa: E731
    monkeypatch.setattr("tilewright.gpu.arrays.choose.engine_on_gpu", found)
    gpu.sms = 132
    x = fake.Tensor.of(gpu, np.zeros((1024, 1024), np.float32))
    assert tw.plan(x, x).kernel is SPLIT
    assert tw.plan(x, x, precision="ieee").split is None
    assert tw.plan(x, x, precision="highest").compute == "float64"
    assert tw.plan(x[:, :100], x[:100]).split is None
    gpu.capability, gpu.arch = "8.0", "sm_80"
    libraries._known.clear()
    assert tw.plan(fake.Tensor.of(gpu, np.zeros((512, 1024), np.float32)), x).split is None


@pytest.mark.slow
def test_without_memory_for_split_operands_they_are_multiplied_as_they_are(gpu: Any) -> None:
    a, b = uniform(130, 130), uniform(130, 130, seed=2)
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    least = 2 * a.nbytes + 4096  # for the result, and little else
    taken = gpu.allocate(gpu.memory_bytes()[0] - least - 4096)
    for _ in range(2):
        assert worst(tw.matmul(x, y).view, a, b) < 20
        assert [entry for entry, _ in gpu.launches] == ["register_banks"]
        gpu.launches.clear()
    taken.close()
    tw.matmul(x[:, :129], y[:129])
    assert [entry for entry, _ in gpu.launches] == LAUNCHES
