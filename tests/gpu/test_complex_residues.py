"""complex128 by tensor cores of int8, two products for each modulus: exact integers as a model, and the kernels, executed by
the microscope."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.residue_products import (
    ENGINE,
    LAID,
    LAUNCHES,
    RESIDUES,
    TILES,
    by_kernel,
    changed,
    residues_alone,
    small_gpu,
)
from support.selection import in_turns
from tilewright.gpu.arrays import matmul
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.planning.choice import computed_on_gpu
from tilewright.gpu.runtime import residue_product
from tilewright.gpu.runtime.residue_product import ResidueProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.product.precision import path_bound
from tilewright.product.residues import CLASSICAL, MODULI, RESIDUES_IN, largest_norm, residue_bound

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

U = 2.0**-53
Exact = np.ndarray[Any, np.dtype[np.object_]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    matmul._plan.cache_clear()
    yield residues_alone(monkeypatch)
    matmul._plan.cache_clear()


def uniform(*shape: int, seed: int = 1) -> np.ndarray:
    parts = np.random.default_rng(seed).uniform(-1, 1, (*shape, 2))
    return np.ascontiguousarray(parts).view(np.complex128)[..., 0]


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error of a real or an imaginary part in units of 2⁻⁵³·|A||B|, beyond what float64 cannot represent."""
    x, y = a.astype(np.clongdouble), b.astype(np.clongdouble)
    error, size = c - x @ y, abs(x) @ abs(y)
    of_part = np.maximum(abs(error.real), abs(error.imag))
    of_part = np.where(np.isnan(of_part), np.inf, of_part) - 2 * a.shape[-1] * np.longdouble(2.0) ** -1074
    assert (of_part[size == 0] <= 0).all()
    return float(np.divide(of_part, size, where=size > 0, out=np.zeros_like(size)).max(initial=0) / U)


# ---- the scheme, in exact integers


def integers(parts: np.ndarray) -> tuple[Exact, Exact]:
    return parts.real.astype(object), parts.imag.astype(object)


def root(p: int) -> int:
    return next(s for s in range(1, p) if (s * s + 1) % p == 0)


def by_residues(a: tuple[Exact, Exact], b: tuple[Exact, Exact], moduli: int) -> tuple[Exact, Exact]:
    """Real and imaginary parts of the product of complex integers, as the kernels compute them."""
    used = MODULI["complex128"][:moduli]
    product, real, imaginary = math.prod(used), 0, 0
    for p in used:
        s, others = root(p), product // p
        half = pow(others * 2, -1, p)  # in B: by the inverse of the other moduli, and one half
        u = (a[0] + s * a[1]) % p @ ((b[0] + s * b[1]) * half % p) % p
        v = (a[0] - s * a[1]) % p @ ((b[0] - s * b[1]) * half % p) % p
        real, imaginary = real + (u + v) * others, imaginary + (u - v) * (p - s) * others
    return tuple((x + product // 2) % product - product // 2 for x in (real, imaginary))  # type: ignore[return-value]


@pytest.mark.parametrize("moduli", range(5, 16))
def test_two_products_of_residues_determine_a_complex_product(moduli: int) -> None:
    k, rng = 40, np.random.default_rng(moduli)
    most = int(largest_norm(moduli, "complex128") / math.sqrt(2 * k))

    def drawn(*shape: int) -> tuple[Exact, Exact]:
        parts = (rng.integers(-most, most, shape, endpoint=True).astype(object) for _ in range(2))
        return tuple(parts)  # type: ignore[return-value]

    a, b = drawn(5, k), drawn(k, 6)
    a[0][0], a[1][0], b[0][:, 0], b[1][:, 0] = most, -most, most, most  # a real part of 2·k·most²
    a[0][1], a[1][1] = -most, -most  # and an imaginary one
    exact = a[0] @ b[0] - a[1] @ b[1], a[0] @ b[1] + a[1] @ b[0]
    assert exact[0][0, 0] == 2 * k * most**2 == -exact[1][1, 0]
    for found, expected in zip(by_residues(a, b, moduli), exact, strict=True):
        assert (found == expected).all()


def test_the_moduli_have_no_common_divisors_and_are_the_largest() -> None:
    moduli = MODULI["complex128"]
    assert math.lcm(*moduli) == math.prod(moduli)
    assert all((root(p) ** 2 + 1) % p == 0 and math.gcd(2 * root(p), p) == 1 for p in moduli)
    split = [p for p in range(3, 257, 2) if any((s * s + 1) % p == 0 for s in range(p))]
    for p in split:  # every other number shares a divisor with one of them, or is smaller than all
        assert p in moduli or p < min(moduli) or math.gcd(p, math.prod(moduli)) > 1
    in_source = re.search(
        r"#if COMPLEX\nconstexpr int MODULUS\[MOST_MODULI\] = \{(.*?)\}", (ENGINE / "residues.cuh").read_text()
    )
    assert in_source is not None
    assert tuple(map(int, in_source[1].split(","))) == moduli


# ---- the kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "layouts"), in_turns([*LAID, (((17, 1), (1, 19)), ("rows", "columns"))], 2), ids=str
)
def test_every_layout_and_shape(gpu: Any, shapes: Any, layouts: tuple[str, str]) -> None:
    a, b = uniform(*shapes[0]), uniform(*shapes[1], seed=2)
    c = tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1])).view
    assert worst(c, a, b) < 30
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
def test_whole_numbers_are_multiplied_exactly(moduli: int) -> None:
    """As large as the moduli allow: each part is the nearest float64. Of others the error is that of rounding."""
    k = 300
    a, b, gpu = uniform(20, k), uniform(k, 30, seed=2), small_gpu()
    norm = largest_norm(moduli, "complex128")
    if moduli < CLASSICAL["complex128"]:
        error = worst(by_kernel(gpu, RESIDUES, a, b, moduli), a, b) * U
        assert not gpu.flags.any()
        assert 0.5 < error * norm < 16
    a, b = (np.round(x * norm / math.sqrt(2 * k)) for x in (a, b))
    found = by_kernel(gpu, RESIDUES, a, b, moduli)
    (ar, ai), (br, bi) = ([[[int(v) for v in row] for row in part] for part in (x.real, x.imag)] for x in (a, b))
    x, y = ((np.array(re, object), np.array(im, object)) for re, im in ((ar, ai), (br, bi)))
    np.testing.assert_array_equal(found.real, (x[0] @ y[0] - x[1] @ y[1]).astype(np.float64))
    np.testing.assert_array_equal(found.imag, (x[0] @ y[1] + x[1] @ y[0]).astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("moduli", "k"), [(7, 314), (14, 1), (14, 545)])
def test_the_largest_sums_are_determined(moduli: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts are as large as they can be. Of so small a k the product would be flagged."""
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    gpu, most = small_gpu(), int(largest_norm(moduli, "complex128") / math.sqrt(2 * k) * (1 - 2.0**-20))
    signs = np.array([1 + 1j, 1 - 1j, -1 - 1j, -1 + 1j])
    found = by_kernel(
        gpu, RESIDUES, np.repeat(most * signs[:, None], k, 1), np.repeat(most * signs[None], k, 0), moduli
    )
    np.testing.assert_array_equal(found, float(most**2 * k) * (signs[:, None] * signs[None]))
    assert not gpu.flags.any()


def distributions() -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """Operands, and whether something of their product is flagged."""
    rng, k = np.random.default_rng(3), 192
    normal = rng.standard_normal((20, k)) + 1j * rng.standard_normal((20, k))
    other = rng.standard_normal((k, 30)) + 1j * rng.standard_normal((k, 30))
    graded = 2.0 ** np.linspace(-40, 0, k)
    return {
        "normal": (normal, other, False),
        "real": (normal.real + 0j, other.real + 0j, False),
        "imaginary": (1j * normal.imag, 1j * other.imag, False),
        "a small imaginary part": (normal.real + 2.0**-45 * 1j * normal.imag, other, False),
        "a small real part": (2.0**-45 * normal.real + 1j * normal.imag, other.conj(), False),
        "lognormal": (normal * np.exp(9 * rng.standard_normal(normal.shape)), other, True),
        "products that cancel": (normal, np.conj(normal.T), False),
        "graded": (normal * graded, other / graded[:, None], True),
        "graded rows": (normal * 2.0 ** np.linspace(-990, 900, 20)[:, None], other * 2.0 ** np.linspace(-80, 80, 30), False),
        "one huge element": (np.where(np.arange(20 * k).reshape(20, k) == 999, 2.0**90 * 1j, normal), other, True),
        "denormal": (normal * 2.0**-1055, other, False),
        "results that underflow": (normal * 2.0**-600, other * 2.0**-460, False),
        "a zero row": (normal * (np.arange(20) != 7)[:, None], other, False),
        "blocks": (normal * (np.arange(k) < 96), other * (np.arange(k) >= 96)[:, None], True),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", distributions())
def test_the_classical_bound_holds_for_every_distribution(name: str) -> None:
    a, b, is_flagged = distributions()[name]
    gpu = small_gpu()
    c = by_kernel(gpu, RESIDUES, a, b)
    assert worst(c, a, b) < 40
    assert gpu.flags.any() == is_flagged
    assert name not in ("real", "imaginary") or (c.imag == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 1, 5), (2, 2, 3), (1, 7, 1)], ids=str)
def test_few_products_are_right(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = uniform(m, k), uniform(k, n, seed=2)
    assert worst(by_kernel(small_gpu(), RESIDUES, a, b), a, b) <= 2 * k


@pytest.mark.slow
def test_more_than_one_part_of_k(gpu: Any) -> None:
    """k is searched in parts, rounded by several blocks, and sampled for the lower bound of |A||B|."""
    a, b = uniform(6, 2600), uniform(2600, 9, seed=2)
    c = tw.matmul(fake.Tensor.of(gpu, a), laid(fake.Tensor, gpu, b, "columns")).view
    assert worst(c, a, b) < 40


def half_off(k: int, binades: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands of which all parts that meet are rounded by almost one half, always down; each line has a 1 beside."""
    a, b = np.zeros((8, k), complex), np.zeros((k, 8), complex)
    a[:, 0], b[1, :] = 1, 1
    norm = math.hypot(1, math.sqrt(2 * k - 4) * 2.0**-binades)
    of_parts = 2.0**-binades + 0.499 * 2.0 ** -math.floor(math.log2(largest_norm(14, "complex128") / norm))
    a[:, 2:], b[2:] = of_parts * (1 + 1j), of_parts * (1 - 1j)  # real parts add up, imaginary ones cancel
    return a, b


@pytest.mark.slow
def test_the_bound_is_sharp() -> None:
    """Operands that lose the most are computed from residues if it is within the bound, and flagged if not."""
    k, gpu = 256, small_gpu()
    a, b = half_off(k, 4)
    error = worst(by_kernel(gpu, RESIDUES, a, b), a, b)
    assert 0.2 * k < error < 2 * k
    assert not gpu.flags.any()
    a, b = half_off(k, 7)
    assert worst(by_kernel(gpu, RESIDUES, a, b), a, b) < 40
    assert gpu.flags.all()


@pytest.mark.slow
def test_infinities_and_nan_are_those_of_ieee() -> None:
    a, b = uniform(140, 130), uniform(130, 70, seed=2)
    a[3, 5], a[7, 7], b[9, 30] = complex(np.nan, 1), complex(0.5, np.inf), complex(-np.inf, 2)
    a[20, :] = 0
    gpu = small_gpu()
    c = by_kernel(gpu, RESIDUES, a, b)
    with np.errstate(all="ignore"):
        real, imaginary = a.real @ b.real - a.imag @ b.imag, a.real @ b.imag + a.imag @ b.real
    for found, exact in ((c.real, real), (c.imag, imaginary)):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
        np.testing.assert_array_equal(found[np.isinf(exact)], exact[np.isinf(exact)])
        fine = np.isfinite(exact)
        np.testing.assert_allclose(found[fine], exact[fine], rtol=1e-12, atol=1e-12)
    assert list(gpu.flags) == [1, 1, 1, 0]


# ---- defects


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], CudaKernel]:
    return functools.partial(changed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "before", "after"), [
    ("residues.cuh", "if ((s * s + 1) % p == 0) return s;", "if ((s * s + 1) % p == 0) return p == 193 ? s + 1 : s;"),
    ("residues.cuh", "return COMPLEX && p <= 128 ? 2 * p : p;", "return p;"),
    ("residues.cuh", "221, 205, 197, 193", "221, 205, 195, 193"),
    ("pack/write_residues.cu", "half = COMPLEX ? (p + 1) / 2 : 1", "half = 1"),
    ("pack/write_residues.cu", "residue_of<p>(x - y)", "residue_of<p>(x + y)"),
    ("pack/write_residues.cu", "[j * PARTS + PARTS - 1] = two.y", "[j * PARTS + PARTS - 1] = 0"),
    ("pack/reconstruct.cu", "t = PART ? t - v : t + v;", "t = PART ? t + v : t - v;"),
    ("pack/reconstruct.cu", "PART ? p - root_of_minus_one(p) : 1", "PART ? root_of_minus_one(p) : 1"),
    ("pack/reconstruct.cu", "-4503599627370496.0 - BIAS", "-4503599627370496.0"),
    ("pack/reconstruct.cu", "residues.of[I * EACH + EACH - 1]", "residues.of[I * EACH]"),
], ids=str)  # fmt: skip
def test_a_wrong_kernel_is_rejected(
    change: Callable[[str, str, str], CudaKernel], monkeypatch: pytest.MonkeyPatch, file: str, before: str, after: str
) -> None:
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    a, b = uniform(20, 200), uniform(200, 40, seed=2)
    b.imag[:, 3] *= 2.0**40  # of which the imaginary parts are the largest
    assert not worst(by_kernel(small_gpu(), change(file, before, after), a, b), a, b) < 2 * a.shape[1]


@pytest.mark.slow
def test_a_bound_that_is_none_is_rejected(change: Callable[[str, str, str], CudaKernel]) -> None:
    """The sum of the magnitudes of both parts in place of a lower bound."""
    a, b = half_off(256, 6)
    wrong = change("pack/write_residues.cu", "(28 * more + 15 * less) / 32", "2 * (more + less)")
    assert worst(by_kernel(small_gpu(), wrong, a, b), a, b) > 0.9 * 2 * 256


@pytest.mark.slow
def test_nan_is_missing_where_nothing_is_flagged(
    change: Callable[[str, str, str], CudaKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = uniform(20, 130), uniform(130, 30, seed=2)
    a[3, 5] = complex(1, np.nan)
    wrong = change("residue_sums.cuh", "if (line.kind & UNFIT)", "if (false)")
    monkeypatch.setattr(residue_product, "check_factor", lambda *_: 0.0)
    assert not np.isnan(by_kernel(small_gpu(), wrong, a, b)[3]).all()


# ---- the library


@pytest.mark.slow
def test_conjugates_and_transposes(gpu: Any) -> None:
    a, b = uniform(70, 130), uniform(90, 130, seed=2)
    x, y = (fake.Tensor.of(gpu, each) for each in (a, b))
    y = y.like(y.view.T)
    y.conjugated = True
    c = tw.matmul(x, y).view
    assert worst(c, a, b.conj().T) < 30
    assert gpu.launches[-1][0] == LAUNCHES[-1]


@pytest.mark.slow
def test_out_and_epilogue(gpu: Any) -> None:
    a, b = uniform(70, 130), uniform(130, 90, seed=2)
    out = laid(fake.Tensor, gpu, np.full((70, 90), 7.0 + 0j), "wider")
    around = out.storage.view.copy()
    assert tw.matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b), out=out) is out
    assert worst(out.view.copy(), a, b) < 30
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, around)


@pytest.mark.slow
def test_a_number_takes_the_fewest_residues_that_keep_it(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.gpu.arrays.choose._PARTED", {dtype: dtype for dtype in RESIDUES_IN})
    a, b = uniform(40, 260), uniform(260, 50, seed=2)
    tensors, taken = [fake.Tensor.of(gpu, x) for x in (a, b)], []
    for precision in ("fast", 1e-4, 1e-5, 1e-9, 1e-11):
        plan = tw.plan(*tensors, precision=precision)
        assert isinstance(plan.split, ResidueProduct)
        moduli = plan.split.a.moduli
        limit = 1.01 * 2.0**-10 + 260 * 2.0**-24 if precision == "fast" else precision
        of_these, of_fewer = (path_bound("complex128", f"complex_int8x{count}", 260) for count in (moduli, moduli - 1))
        assert of_these <= limit < of_fewer
        found = tw.matmul(*tensors, precision=precision).view
        assert worst(found, a, b) * U < residue_bound(260, moduli, "complex128")
        assert f"modulo {moduli} numbers" in str(plan)
        taken.append(moduli)
    assert taken == [6, 7, 8, 11, 13]
    assert computed_on_gpu("complex128", 3e-13, k=260) == ("complex128",)  # 14 only for the classical bound


@pytest.mark.slow
def test_what_the_plan_says(gpu: Any) -> None:
    a, b = (fake.Tensor.of(gpu, x) for x in (uniform(70, 4096), uniform(4096, 90, seed=2)))
    plan = tw.plan(a, b)
    for words in (
        "int8x28",
        "up to 2^51.0 in the 2-norm of a line",
        "modulo 14 numbers",
        "8192·2⁻⁵³·|A||B|",
        "by complex128",
    ):
        assert words in str(plan)
    assert isinstance(plan.split, ResidueProduct)
    assert plan.workspace_bytes >= 28 * 4096 * (70 + 90)


@pytest.mark.slow
def test_large_products_are_computed_so_and_none_by_residues_of_reals(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = cuda_engine().values()
    found = lambda dtype, capability: [x for x in every if dtype in x.dtypes and x.fits(capability)]  # noqa: E731
    monkeypatch.setattr("tilewright.gpu.arrays.choose.engine_on_gpu", found)
    gpu.sms, computes = 132, {}
    for size in (64, 1000, 2048, 4096, 8192):
        x = GpuArray(0, (size, size), (size, 1), "complex128", 0)
        plans = [matmul._plan(matmul._key(x, x, None, True, p, None)) for p in ("standard", "ieee", "invariant")]
        computes[size] = [piece.compute for plan in plans for piece in (plan, *(each for each, _ in plan.pieces))]
    assert not {name for size in (64, 8192) for name in computes[size][1:] if "int8" in name}
    assert not any(
        name in RESIDUES_IN and RESIDUES_IN[name].dtype == "float64" for x in computes.values() for name in x
    )
    assert [computes[size][0] for size in (2048, 4096, 8192)] == ["complex_int8x14"] * 3
    assert computes[64][0] != "complex_int8x14"
