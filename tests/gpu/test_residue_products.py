"""float64 by tensor cores of int8: operands as residues, executed by the microscope, and the bound of the error."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.residue_products import LAID, LAUNCHES, RESIDUES, TILES, by_kernel, changed, residues_alone, small_gpu
from support.selection import in_turns
from tilewright.errors import UsageError
from tilewright.gpu.runtime import residue_product
from tilewright.gpu.runtime.residue_product import ResidueProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.product.residues import (
    MODULI,
    MOST_K,
    REALS_PER_ELEMENT,
    RESIDUES_IN,
    check_factor,
    largest_norm,
    residue_bound,
)

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

U = 2.0**-53


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return residues_alone(monkeypatch)


def uniform(*shape: int, seed: int = 1) -> np.ndarray:
    """Of a scale with which products of so few as 130 are within the bound."""
    return np.random.default_rng(seed).uniform(-0.85, 0.85, shape)


def product(gpu: Any, a: np.ndarray, b: np.ndarray, layouts: tuple[str, str] = ("rows", "rows"), **options: Any) -> Any:
    return tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1]), **options).view


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error in units of 2⁻⁵³·|A||B|, beyond what float64 cannot represent."""
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    exact, size = x @ y, abs(x) @ abs(y)
    error = np.maximum(0, abs(c - exact) - a.shape[-1] * np.longdouble(2.0) ** -1074)
    assert (error[size == 0] == 0).all()
    return float(np.divide(error, size, where=size > 0, out=np.zeros_like(size)).max(initial=0) / U)


@pytest.mark.slow
@pytest.mark.parametrize(("shapes", "layouts"), in_turns(LAID, 2), ids=str)
def test_every_layout_and_shape(gpu: Any, shapes: Any, layouts: tuple[str, str]) -> None:
    a, b = uniform(*shapes[0]), uniform(*shapes[1], seed=2)
    assert worst(product(gpu, a, b, layouts), a, b) < 30
    assert [entry for entry, _ in gpu.launches][-6:] == LAUNCHES


@pytest.mark.slow
@pytest.mark.parametrize("params", TILES, ids=str)
def test_every_set_of_parameters(params: dict[str, int]) -> None:
    gpu, rows = small_gpu(), 129 if "CLUSTER" in params else 20
    a, b = uniform(rows, 130), uniform(130, 66, seed=2)
    assert worst(by_kernel(gpu, RESIDUES, a, b, **params), a, b) < 30
    assert not gpu.flags.any()


@pytest.mark.slow
@pytest.mark.parametrize("moduli", range(5, 16))
def test_other_numbers_of_moduli(moduli: int) -> None:
    """Their errors are close to that of rounding the operands, and whole numbers with small norms have none."""
    a, b, gpu = uniform(20, 300), uniform(300, 30, seed=2), small_gpu()
    error = worst(by_kernel(gpu, RESIDUES, a, b, moduli), a, b) * U
    assert not gpu.flags.any()
    norm = largest_norm(moduli)
    assert 0.5 < error * norm < 16
    a, b = (np.round(x * norm / math.sqrt(300)) for x in (a, b))
    found = by_kernel(gpu, RESIDUES, a, b, moduli)
    exact = np.array([[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])
    np.testing.assert_array_equal(found, exact.astype(np.float64))


@pytest.mark.slow
def test_a_number_takes_the_fewest_residues_that_keep_it(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.gpu.arrays.choose._PARTED", {dtype: dtype for dtype in RESIDUES_IN})
    a, b = uniform(40, 260), uniform(260, 50, seed=2)
    tensors = [fake.Tensor.of(gpu, x) for x in (a, b)]
    taken = []
    for precision in ("fast", 1e-2, 1e-5, 1e-9, 1e-11):
        plan = tw.plan(*tensors, precision=precision)
        assert isinstance(plan.split, ResidueProduct)
        moduli = plan.split.a.moduli
        limit = 1.01 * 2.0**-10 + 260 * 2.0**-24 if precision == "fast" else precision
        assert residue_bound(260, moduli) <= limit < residue_bound(260, moduli - 1)
        assert worst(tw.matmul(*tensors, precision=precision).view, a, b) * U < residue_bound(260, moduli)
        assert f"modulo {moduli} numbers" in str(plan)
        taken.append(moduli)
    assert taken == [6, 5, 7, 11, 12]
    assert tw.plan(*tensors, precision=1e-13).split is None  # 13, and those only for the classical bound
    with pytest.raises(UsageError, match=r"the best bound for float64 is 2\.9e-14"):
        tw.plan(*tensors, precision=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("moduli", [6, 9, 12])
def test_fewer_moduli_flag_what_would_exceed_their_bound(moduli: int) -> None:
    a, b, gpu = uniform(140, 300), uniform(300, 40, seed=2), small_gpu()
    a[:8, 1:] /= largest_norm(moduli)  # of these rows one element is seen, and it meets a zero
    b[0] = 0
    found = by_kernel(gpu, RESIDUES, a, b, moduli)
    assert worst(found, a, b) * U < residue_bound(300, moduli)
    assert gpu.flags.tolist() == [1, 0]


# ---- accuracy


def distributions() -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """Operands, and whether something of their product is flagged."""
    rng, k = np.random.default_rng(3), 192
    normal, other = 0.84 * rng.standard_normal((20, k)), 0.84 * rng.standard_normal((k, 30))
    graded = 2.0 ** np.linspace(-40, 0, k)
    cancelling = np.concatenate([normal[:, : k // 2], -normal[:, : k // 2] * (1 + 1e-9)], axis=1)
    return {
        "normal": (normal, other, False),
        "lognormal": (normal * np.exp(9 * rng.standard_normal(normal.shape)), other, True),
        "positive": (abs(normal), abs(other), False),
        "cancelling": (cancelling, np.concatenate([other[: k // 2]] * 2), False),
        "graded": (normal * graded, other / graded[:, None], True),
        "graded rows": (normal * 2.0 ** np.linspace(-990, 900, 20)[:, None], other * 2.0 ** np.linspace(-80, 80, 30), False),
        "one huge element": (np.where(np.arange(20 * k).reshape(20, k) == 999, 2.0**90, normal), other, True),
        "denormal": (normal * 2.0**-1055, other, False),
        "tiny and denormal": (normal * np.where(np.arange(k) % 8, 2.0**-1000, 2.0**-1060), other, False),
        "results that underflow": (normal * 2.0**-600, other * 2.0**-460, False),
        "zeros": (normal * (rng.random(normal.shape) < 0.3), other * (rng.random(other.shape) < 0.3), True),
        "a zero row": (normal * (np.arange(20) != 7)[:, None], other, False),
        "blocks": (normal * (np.arange(k) < 96), other * (np.arange(k) >= 96)[:, None], True),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", distributions())
def test_the_classical_bound_holds_for_every_distribution(name: str) -> None:
    a, b, is_flagged = distributions()[name]
    gpu = small_gpu()
    assert worst(by_kernel(gpu, RESIDUES, a, b), a, b) < 30
    assert gpu.flags.any() == is_flagged


@pytest.mark.slow
def test_whole_numbers_are_multiplied_exactly() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-(2**20), 2**20, (20, 200)) * 1.0, rng.integers(-(2**20), 2**20, (200, 30)) * 1.0
    a[:, 100:] = 0
    b[:50] = 0
    gpu = small_gpu()
    np.testing.assert_array_equal(by_kernel(gpu, RESIDUES, a, b), a @ b)
    b[:100] = 0  # no element of A meets one of B that is not zero
    np.testing.assert_array_equal(by_kernel(gpu, RESIDUES, a, b), 0)
    assert not gpu.flags.any()


def half_off(k: int, binades: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands of which all elements that meet are rounded by almost one half, always down; each line has a 1 beside."""
    a, b = np.zeros((8, k)), np.zeros((k, 8))
    a[:, 0], b[1, :] = 1, 1
    norm = math.hypot(1, math.sqrt(k - 2) * 2.0**-binades)
    a[:, 2:] = b[2:] = 2.0**-binades + 0.499 * 2.0 ** -math.floor(math.log2(largest_norm(13) / norm))
    return a, b


@pytest.mark.slow
def test_the_bound_is_sharp() -> None:
    """Operands that lose the most are computed from residues if it is within the bound, and flagged if not."""
    k, gpu = 256, small_gpu()
    a, b = half_off(k, 4)
    assert 0.45 * k < worst(by_kernel(gpu, RESIDUES, a, b), a, b) < 0.55 * k
    assert not gpu.flags.any()
    a, b = half_off(k, 5)
    assert worst(by_kernel(gpu, RESIDUES, a, b), a, b) < 30
    assert gpu.flags.all()


# ---- norms


def square(numbers: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in numbers), Fraction(0))


@pytest.mark.parametrize("dtype", MODULI)
@pytest.mark.parametrize("moduli", range(5, 16))
def test_the_sums_of_all_products_are_determined(dtype: str, moduli: int) -> None:
    used, norm = MODULI[dtype][:moduli], Fraction(largest_norm(moduli, dtype))
    assert math.lcm(*used) == math.prod(used)
    most = (norm + Fraction(math.isqrt(MOST_K * REALS_PER_ELEMENT[dtype]) + 1, 2)) ** 2
    assert 2 * most < math.prod(used) * (1 - Fraction(1, 2**16))
    assert norm < 2**51 - 1
    assert MOST_K * 128**2 <= 2**30
    assert all(check_factor(k, moduli, dtype) > 0 for k in (1, 512, MOST_K))


@pytest.mark.parametrize("moduli", [5, 8, 13])
@pytest.mark.parametrize("k", [1, 2, 3, 1000, MOST_K])
def test_residues_of_extreme_lines_determine_their_sums(k: int, moduli: int) -> None:
    """Exact integers, and lines of the largest norm that are rounded up everywhere."""
    used, norm = MODULI["float64"][:moduli], largest_norm(moduli)
    product, of_all = math.prod(used), math.floor(norm / math.sqrt(k) + 0.5)
    equal, one = np.full(k, of_all), np.where(np.arange(k) == 0, math.floor(norm), 0)
    for x, y in itertools.combinations_with_replacement([equal, -equal, equal * (-1) ** np.arange(k), one, -one], 2):
        exact, found = int(x.astype(object) @ y.astype(object)), 0
        for p in used:
            found += int(x % p @ (y % p)) * (product // p) * pow(product // p, -1, p)
        assert (found + product // 2) % product - product // 2 == exact


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3, 260])
def test_the_largest_sums_are_determined(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no bound, for which so small a k would be flagged."""
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    gpu, most = small_gpu(), int(largest_norm(13) / math.sqrt(k) * (1 - 2.0**-20))
    rows = np.array([np.full(k, most), np.full(k, -most), most * (-1) ** np.arange(k)], np.float64)
    found = by_kernel(gpu, RESIDUES, rows, np.ascontiguousarray(rows.T))
    exact = [[sum(int(x) * int(y) for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
    np.testing.assert_array_equal(found, np.array(exact, object).astype(np.float64))
    assert not gpu.flags.any()


def norms_of(kernel: CudaKernel) -> bool:
    """Whether the norms that it finds are upper bounds, and all powers of two the largest that these allow."""
    rng, k = np.random.default_rng(5), 1100
    a = rng.standard_normal((12, k)) * 2.0 ** np.array([0, 0, 0, 1020, -1022, -1060, 0, 0, 0, 0, 0, 0])[:, None]
    a[1] *= 2.0 ** rng.uniform(-900, 900, k)
    a[2, 1030] = 2.0**600
    a[6], a[7], a[8], a[9] = 0, 1, np.where(np.arange(k) == 5, 1 / 3, 0), 5e-324
    b, gpu, most = np.ascontiguousarray(a[::-1].T), small_gpu(), Fraction(largest_norm(13)) ** 2
    by_kernel(gpu, kernel, a, b, launches=2)
    are_bounds = are_largest = True
    for lines, norms, known in zip((a, b.T), gpu.norms, gpu.lines, strict=True):
        for i, line in enumerate(lines):
            exact = square(line)
            for part, norm in enumerate(norms[:, i]):
                of_part = square(line[part * 1024 :][:1024])
                bound = Fraction(float(norm["squares"])) * Fraction(4) ** int(norm["exponent"])
                are_bounds &= of_part <= bound <= of_part * (1 + Fraction(1, 2**18))
            scaled = exact * Fraction(4) ** int(known["shift"][i])
            are_largest &= scaled <= most and (exact == 0 or 4 * scaled > most * (1 - Fraction(1, 2**17)))
            are_largest &= max(abs(line)) * 2.0**-10 <= 2.0 ** (int(known["bits"][i]) - int(known["shift"][i]) - 10)
    return bool(are_bounds and are_largest)


@pytest.mark.slow
def test_norms_are_upper_bounds() -> None:
    assert norms_of(RESIDUES)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ("__double2float_ru(sum * (1 + 1.0 / (1ll << 40)))", "__double2float_rd(sum)"), ("__fadd_ru", "__fadd_rd"),
    ("(quotient >> 1)", "(quotient + 1 >> 1)"),
    ("2 * max(of.exponent - exponent, -60)", "3 * max(of.exponent - exponent, -40)"),
    ("norm.exponent + 2 + shift", "norm.exponent + 1 + shift"),
])  # fmt: skip
def test_norms_that_are_too_small_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    assert not norms_of(changed(tmp_path, monkeypatch, "pack/write_residues.cu", before, after))


# ---- what is not computed from residues


@pytest.mark.slow
def test_infinities_and_nan_are_those_of_ieee() -> None:
    a, b = uniform(140, 130), uniform(130, 70, seed=2)
    a[3, 5], a[7, 7], b[9, 30], b[10, 31] = np.nan, np.inf, -np.inf, 1.5e308
    a[:, 10], a[20, :] = 2, 0
    gpu = small_gpu()
    c = by_kernel(gpu, RESIDUES, a, b)
    with np.errstate(all="ignore"):
        exact = a @ b
    np.testing.assert_array_equal(np.isnan(c), np.isnan(exact))
    np.testing.assert_array_equal(c[np.isinf(exact)], exact[np.isinf(exact)])
    fine = np.isfinite(exact)
    np.testing.assert_allclose(c[fine], exact[fine], rtol=1e-12, atol=1e-12)
    assert list(gpu.flags) == [1, 1, 1, 0]


@pytest.mark.slow
def test_without_the_bound_small_elements_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = distributions()["graded"]
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    gpu = small_gpu()
    assert worst(by_kernel(gpu, RESIDUES, a, b), a, b) > a.shape[1]
    assert not gpu.flags.any()


@pytest.mark.slow
def test_too_few_moduli_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of such norms as 13 moduli allow, and 12 moduli."""
    monkeypatch.setattr(residue_product, "largest_norm", lambda *_: largest_norm(13))
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    a, b = abs(uniform(20, 300)), abs(uniform(300, 30, seed=2))
    assert not worst(by_kernel(small_gpu(), RESIDUES, a, b, 12), a, b) < a.shape[1]
    assert worst(by_kernel(small_gpu(), RESIDUES, a, b, 13), a, b) < 30


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [
    ("inverse_of_divisor(p)", "inverse_of_divisor(p) / 2"), ("step > 0 || q > 0", "1"), ("d[chunk * 16 + i]", "d[i]"),
    ("x + 2 * q", "x"),
    ("divisor_of_plane(z)", "divisor_of_plane(z ^ 1)"),
])  # fmt: skip
def test_a_wrong_kernel_is_rejected(before: str, after: str) -> None:
    assert RESIDUES.source.count(before) == 1
    wrong = replace(RESIDUES, source=RESIDUES.source.replace(before, after))
    a, b = uniform(40, 200), uniform(200, 40, seed=2)
    assert not worst(by_kernel(small_gpu(), wrong, a, b), a, b) < a.shape[1]


# ---- the library


@pytest.mark.slow
def test_out_and_epilogue(gpu: Any) -> None:
    a, b = uniform(70, 130), uniform(130, 90, seed=2)
    out = laid(fake.Tensor, gpu, np.full((70, 90), 7.0), "wider")
    around = out.storage.view.copy()
    assert tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b), out=out) is out
    c = out.view.copy()
    assert worst(c, a, b) < 30
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, around)
    finished = product(gpu, a, b, alpha=2.0)
    np.testing.assert_array_equal(finished, 2 * c)


@pytest.mark.slow
def test_what_the_plan_says(gpu: Any) -> None:
    a, b = (fake.Tensor.of(gpu, x) for x in (uniform(70, 4096), uniform(4096, 90, seed=2)))
    plan = tw.plan(a, b)
    for words in ("up to 2^50.8 in the 2-norm of a line", "modulo 13 numbers", "4096·2⁻⁵³·|A||B|", "by float64"):
        assert words in str(plan)
    assert isinstance(plan.split, ResidueProduct)
    assert plan.workspace_bytes >= 13 * 4096 * (70 + 90)


@pytest.mark.slow
def test_only_large_products_of_standard_precision_are_computed_so(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    every = cuda_engine().values()
    found = lambda dtype, capability: [x for x in every if dtype in x.dtypes and x.fits(capability)]  # noqa: E731
    monkeypatch.setattr("tilewright.gpu.arrays.choose.engine_on_gpu", found)
    gpu.sms = 132
    x = fake.Tensor.of(gpu, np.zeros((4096, 4096)))
    assert tw.plan(x, x).kernel is RESIDUES
    assert tw.plan(x, x, precision="ieee").split is None
    assert tw.plan(x[:512], x).split is None
    assert tw.plan(x[:, :512], x[:512]).split is None
