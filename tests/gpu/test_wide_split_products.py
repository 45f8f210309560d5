"""Parts of split products whose lines span too many binades for float16: three products of TF32, by the microscope."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support import simulated_libraries as fake
from tilewright.gpu.runtime import compilations, split_product
from tilewright.gpu.runtime.compilations import Compilations
from tilewright.gpu.runtime.layout import Matrix, row_major_matrix
from tilewright.gpu.runtime.split_product import (
    WIDEST,
    SplitOperand,
    SplitProduct,
    allowed_excess,
    split_product_steps,
    wide_bound,
)
from tilewright.gpu.runtime.steps import load
from tilewright.host.sources import PACKAGE
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SPLIT = cuda_engine()["cuda/split_hopper"]
U = 2.0**-24
K = 200
#: The two ways of the kernel for flagged parts, in its source.
BY_TF32 = "mma_sync::multiply_split_strided(a, b, c, flagged.call, rows, columns)"
BY_MULTIPLY_ADDS = "multiply_strided(a, b, c, flagged.call);"

#: ``change(file, before, after)``: kernels are compiled from a copy in which a file of the engine is changed.
Change = Callable[[str, str, str], None]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    engine = tmp_path / "gpu" / "kernels"

    def changed(file: str, before: str, after: str) -> None:
        shutil.copytree(PACKAGE / "gpu" / "kernels", engine)
        shutil.copytree(PACKAGE / "kernels" / "cuda", tmp_path / "kernels" / "cuda")
        source = (engine / file).read_text()
        assert source.count(before) == 1
        (engine / file).write_text(source.replace(before, after))
        monkeypatch.setattr(split_product, "_PACK", engine / "pack")
        monkeypatch.setattr(compilations, "_compilations", Compilations())

    return changed


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
    """A·B, added to C if that is given; the operands lie row by row or column by column."""
    gpu = fake.Gpu(1 << 23)
    gpu.sms = 4
    m, n = len(a), b.shape[1]
    of_a, of_b = (Matrix(*x.shape, *(step // 4 for step in x.strides), "float32") for x in (a, b.T))
    made = SplitProduct(SplitOperand(of_a), SplitOperand(of_b), row_major_matrix(m, n, "float32"), add=c is not None)
    stored = [x if x.flags.c_contiguous else x.T for x in (a, b)]
    out = gpu.put(np.full((m, n), np.nan, np.float32) if c is None else c)
    at = [*(gpu.put(x).pointer for x in stored), out.pointer, gpu.allocate(made.workspace_bytes).pointer]
    load(gpu, split_product_steps(gpu.sms, SPLIT, {}, made))(*at, 1)
    return gpu.get(out, np.float32, (m, n))


def error(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error in units of 2⁻²⁴·|A||B|, beyond what float32 cannot represent."""
    exact, size = (f(a.astype(np.float64)) @ f(b.astype(np.float64)) for f in (np.asarray, np.abs))
    return float((np.maximum(0, abs(c - exact) - a.shape[1] * 2.0**-149) / size).max() / U)


def spanning(binades: int, m: int = 70, n: int = 140, k: int = K, positive: bool = False) -> list[np.ndarray]:
    """Operands of which each line spans so many binades, in a random order."""
    rng = np.random.default_rng(binades)
    along = 2.0 ** np.linspace(0, -binades, k)
    lines = [rng.permuted(np.tile(along, (count, 1)), axis=1) * rng.uniform(1, 2, (count, k)) for count in (m, n)]
    signs = [1 if positive else rng.choice([-1, 1], x.shape) for x in lines]
    a, b = (np.asarray(x * sign, np.float32) for x, sign in zip(lines, signs, strict=True))
    return [a, np.ascontiguousarray(b.T)]


@pytest.mark.slow
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("k", [128, 200, 1000])
def test_the_bound_holds(k: int, positive: bool) -> None:
    a, b = spanning(60, k=k, positive=positive)
    assert error(product(a, b), a, b) < 12 < wide_bound(k) < k


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(70, 140, 200), (1, 129, 150), (65, 1, 131), (128, 128, 128)], ids=str)
@pytest.mark.parametrize("layouts", ["rows rows", "rows columns", "columns rows", "columns columns"])
def test_layouts_and_sizes(shape: tuple[int, int, int], layouts: str) -> None:
    m, n, k = shape
    a, b = (
        x if layout == "rows" else np.asfortranarray(x)
        for x, layout in zip(spanning(50, m, n, k), layouts.split(), strict=True)
    )
    assert error(product(a, b), a, b) < 12


@pytest.mark.slow
def test_the_bound_of_the_split_is_sharp() -> None:
    """Every number loses the most that one can, in the same direction: 2u when its low part is rounded, 4u as low·low."""
    x = 1 + 2.0**-11 - 3 * 2.0**-23
    binades = np.linspace(-40, 0, 128).round()
    a, b = np.full((40, 128), x * 2.0**binades, np.float32), np.full((40, 128), x * 2.0**-binades, np.float32).T
    assert 6 < error(product(a, b), a, b) < wide_bound(128)


@pytest.mark.slow
def test_which_way_is_taken(change: Change) -> None:
    """Multiply-adds store nothing here: what they would compute is what remains NaN."""
    change("pack/multiply_flagged.cu", f"else {BY_MULTIPLY_ADDS}", "")
    for binades, stored in ((28 + WIDEST // 2, True), (28 + WIDEST // 2 + 1, False)):
        c = product(*spanning(binades))
        assert np.isfinite(c).all() == stored
        assert np.isfinite(c).any() == stored
    small = [x * np.float32(factor) for x, factor in zip(spanning(30), (2.0**-113, 1), strict=True)]
    assert np.isnan(product(*small)).all()
    infinite = spanning(50)
    infinite[0][3, 5] = np.inf
    c = product(*infinite)
    assert np.isnan(c[:64]).all()
    assert np.isfinite(c[64:]).all()


@pytest.mark.slow
def test_beyond_the_widest_span_tf32_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (x * np.float32(2.0**-50) for x in spanning(0))
    a[:, 0], b[0], a[:, 1], b[1] = 2.0**60, 0, 0, 2.0**60  # the small numbers alone meet
    assert error(product(a, b), a, b) < 12
    monkeypatch.setattr(split_product, "WIDEST", 1 << 10)
    assert error(product(a, b), a, b) > K


@pytest.mark.slow
def test_lines_of_any_magnitude_are_scaled() -> None:
    a, b = spanning(40)
    a *= np.float32(2.0) ** np.linspace(-70, 60, len(a), dtype=np.float32)[:, None]
    b *= np.float32(2.0) ** np.linspace(60, -70, b.shape[1], dtype=np.float32)
    assert error(product(a, b), a, b) < 12
    assert np.isposinf(product(*(abs(x) / abs(x).max() * np.float32(2.0**120) for x in (a, b)))).any()


@pytest.mark.slow
def test_products_are_added_to_c() -> None:
    a, b = spanning(50)
    c = np.random.default_rng(1).uniform(-1, 1, (len(a), b.shape[1])).astype(np.float32)
    np.testing.assert_array_equal(product(a, b, c.copy()), product(a, b) + c)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ("term == 0 ? of_a[r].low : of_a[r].high", "of_a[r].high"), ("term == 1 ? of_b.low : of_b.high", "of_b.high"),
    ("row_exponents[i] + column_exponents[j + l]", "row_exponents[i] + column_exponents[j]"),
    ("OF_B ? i / 2 : i % 2", "i % 2"), ("copy_async_wait<COUNT - 2>();", "copy_async_wait<COUNT>();"),
    ("sum[r][s][l] += of_stage[r][s][l]", "sum[r][s][l] = of_stage[r][s][l]"),
])  # fmt: skip
def test_a_wrong_kernel_is_rejected(change: Change, before: str, after: str) -> None:
    a, b = spanning(50)
    b *= np.float32(2.0) ** (np.arange(b.shape[1]) % 7 * 5)
    change("mma_tiles.cuh" if "copy_async" in before else "mma_split.cuh", before, after)
    with pytest.raises(AssertionError):
        assert error(product(a, b), a, b) < wide_bound(K), "the product is wrong"


@pytest.mark.slow
def test_sums_that_are_not_promoted_lose_too_much(change: Change) -> None:
    """Of positive numbers, whose sums grow with each of 3·k/8 instructions."""
    a, b = spanning(40, 16, 16, 4000, positive=True)
    assert error(product(a, b), a, b) < 20
    change("mma_split.cuh", "multiply_add(of_stage[r][s + t],", "multiply_add(sum[r][s + t],")
    assert error(product(a, b), a, b) > 40


def test_the_allowed_excess_is_below_the_widest() -> None:
    assert 0 <= allowed_excess(128, 2) <= allowed_excess(1 << 20, 2) < WIDEST
    assert all(wide_bound(k) <= k for k in (128, 129, 1000, 1 << 20))
