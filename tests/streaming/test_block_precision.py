"""``multiply(…, precision=…)``: what is promised of a whole product in blocks, what is chosen, and that nothing is mixed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.interrupted import interrupted_after
from tilewright.errors import ResumeError, UsageError
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places import places
from tilewright.large.streaming.plan.kernel import choose_streamed, choose_within, word_of_choice
from tilewright.large.streaming.plan.stream import typical_step
from tilewright.product.precision import ROUNDED, SPLIT, blocks_bound, fast_bound, path_bound
from tilewright.product.problem import Problem

U, U2 = 2.0**-24, 2.0**-53
F4 = ("float32", "float32")
HOST: dict[str, Any] = {"device": "cpu", "memory": "48MiB"}


def operands(m: int = 64, k: int = 5000, n: int = 48, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(k)
    return rng.uniform(0, 1, (m, k)).astype(dtype), rng.uniform(0, 1, (k, n)).astype(dtype)


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error relative to |A||B|."""
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    return float((np.abs(c - x @ y) / (np.abs(x) @ np.abs(y))).max())


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_a_sum_of_parts_errs_by_its_longest_part_and_the_number_of_parts() -> None:
    """Summed in float32 as the bound says: products round once, and each part and each further part add roundings."""
    ones = np.float32(1 + 2.0**-12)  # its square is no float32
    for k, part in ((1, 1), (100, 100), (1000, 100), (1001, 100), (512, 1)):
        bound = blocks_bound(F4, "float32", "float32", k, part)
        products = np.full(k, ones) * np.full(k, ones)
        sums = [np.cumsum(each, dtype=np.float32)[-1] for each in np.array_split(products, -(-k // part))]
        error = abs(float(np.cumsum(np.array(sums), dtype=np.float32)[-1]) / (k * float(ones) ** 2) - 1)
        assert error <= bound <= path_bound("float32", "float32", k) * (1 + 1e-9)
    assert blocks_bound(F4, "float32", "float32", 10**6, 1000) == pytest.approx(1999 * U, rel=1e-3)


@pytest.mark.parametrize(("stored", "result", "compute", "units"), [
    (F4, "float32", "float32", 30 * U),
    (("float64", "float32"), "float32", "float32", 31 * U),
    (("float64", "float64"), "float32", "float32", 32 * U),
    (("int32", "float16"), "float32", "float32", 31 * U),
    (("int16", "uint8"), "float32", "float32", 30 * U),
    (F4, "float32", "float64", U + 30 * U2),
    (("float64", "float64"), "float64", "float64", 30 * U2),
    (("int64", "bool"), "float64", "float64", 31 * U2),
    (F4, "float32", SPLIT, 30 * U),
    (F4, "float32", ROUNDED, 2.0**-10 + 30 * U),
])  # fmt: skip
def test_what_is_read_and_stored_in_another_dtype_counts(
    stored: tuple[str, str], result: str, compute: str, units: float
) -> None:
    assert blocks_bound(stored, result, compute, 210, 21) == pytest.approx(units, rel=1e-3)


def test_float16_parts_keep_what_fast_promises_however_k_is_cut() -> None:
    for k, part in itertools.product((512, 4096, 100_000, 1 << 22), (128, 1024, 8192, 1 << 22)):
        assert blocks_bound(F4, "float32", ROUNDED, k, part) <= max(fast_bound(k), path_bound("float32", "float32", k))


@pytest.mark.slow
def test_the_cpus_kernel_adds_whole_parts_to_c() -> None:
    """What comes after a large number in the same sum is lost; later parts are summed before they are added to it."""
    k = 20_000
    a = np.ones((64, k), np.float32)
    a[:, 0] = 2.0**24
    c = tw.multiply(a, np.ones((k, 64), np.float32), **HOST)
    plan = tw.plan_multiply(a, np.ones((k, 64), np.float32), **HOST)
    error = np.abs(c.astype(np.float64) - (2.0**24 + k - 1)).max() / (2.0**24 + k - 1)
    assert error <= plan.error_bound < 2000 * U < k * U


# ---- what is chosen --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "compute"), [
    ("standard", "float32"),
    ("fast", "float32"),
    ("highest", "float64"),
    (1e-3, "float32"),
    (1e-4, "float32"),
    (1e-6, "float64"),
    (1, "float32"),
])  # fmt: skip
def test_the_cheapest_way_that_keeps_it_and_the_plan_says_which(
    tmp_path: Path, precision: str | float, compute: str
) -> None:
    a, b = operands()
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    paths = [tmp_path / f"{name}.npy" for name in "abc"]
    plan = tw.plan_multiply(*paths, precision=precision, **HOST)
    assert plan.compute == compute
    assert f"at most {plan.error_bound:.2g}·|A||B|: {compute} in " in str(plan)
    assert ("rounded to float32 (highest)" in str(plan)) == (compute == "float64")
    c = np.load(tw.multiply(*paths, precision=precision, **HOST))
    assert c.dtype == np.float32
    assert worst(c, a, b) <= plan.error_bound <= (1 if isinstance(precision, str) else precision)
    np.testing.assert_array_equal(tw.multiply(a, b, precision=precision, **HOST), c)


def test_a_longer_k_is_still_float32_where_one_running_sum_would_not_keep_it() -> None:
    k = 200_000
    a, b = (np.ones(shape, np.float32) for shape in ((2, k), (k, 2)))
    assert path_bound("float32", "float32", k) > 2e-4
    assert tw.plan_multiply(a, b, precision=2e-4, **HOST).compute == "float32"


def test_operands_are_not_rounded_before_they_are_summed() -> None:
    """float64 operands of a float32 product: with "highest" the only rounding to float32 is the last."""
    a, b = operands(dtype=np.float64)
    plan = tw.plan_multiply(a, b, dtype="float32", precision=1e-7, **HOST)
    assert (plan.compute, plan.error_bound) == ("float64", pytest.approx(U, rel=1e-3))
    assert worst(tw.multiply(a, b, dtype="float32", precision=1e-7, **HOST), a, b) <= plan.error_bound
    assert tw.plan_multiply(a, b, precision="highest", **HOST).compute == "float64"


@pytest.mark.parametrize(("precision", "says"), [
    (1e-9, r"precision 1e-09: with k = 5,000 the best bound for C of float32 is 6e-08 \(precision 'highest'\)"),
    (0, "precision 0: must be a word, or a positive number"),
    (float("nan"), "precision nan: must be a word, or a positive number"),
    (True, "precision True: must be a word, or a positive number"),
    ("tf32", "precision 'tf32': must be standard, highest, ieee, fast, or a number"),
])  # fmt: skip
def test_what_nothing_keeps_is_refused(tmp_path: Path, cli: Any, precision: Any, says: str) -> None:
    a, b = operands()
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(UsageError, match=says):
            call(a, b, str(tmp_path / "c.npy"), precision=precision, **HOST)
    assert not list(tmp_path.iterdir())


def test_what_float32_cannot_hold_is_infinite_with_every_precision(tmp_path: Path) -> None:
    a = np.full((3, 2), 1e30, np.float32)
    for precision, out in itertools.product(("standard", "highest"), (None, tmp_path / "c.npy", tmp_path / "c.zarr")):
        c = tw.multiply(a, a.T, out, precision=precision, overwrite=True, **HOST)
        assert out is not None or np.isposinf(c).all()
    assert np.isposinf(np.load(tmp_path / "c.npy")).all()


@pytest.mark.slow
def test_a_gpu_chooses_by_the_step_of_k_and_by_its_kernels() -> None:
    """Of a GPU that is not there: the bounds of its kernels, with the steps that they would have."""
    shape = 8192, 8192, 65_536

    def chosen(precision: str | float, capability: str = "9.0") -> tuple[str, float]:
        def choose(word: str) -> Any:
            choice = choose_streamed("float32", *shape, capability=capability, sms=132, precision=word)
            return choice, places._step_on_gpu(choice, shape, 1 << 32)

        choice = choose_within(precision, F4, "float32", shape[2], choose)
        step = places._step_on_gpu(choice, shape, 1 << 32)
        return choice.compute, blocks_bound(F4, "float32", choice.compute, shape[2], step)

    step = typical_step(Problem(*shape, "float32"), grain=128, limit=1 << 32, planes=2)
    assert step < shape[2] // 2
    for precision, compute in (
        ("fast", ROUNDED),
        (0.01, ROUNDED),
        ("standard", SPLIT),
        (1e-3, SPLIT),
        (1e-5, "float64"),
    ):
        found, bound = chosen(precision)
        assert found == compute
        assert isinstance(precision, str) or bound <= precision
    assert chosen("highest")[0] == "float64"
    assert chosen(0.01, "8.0")[0] == chosen("fast", "8.0")[0] == "float32"
    assert word_of_choice(ROUNDED, "float32") == "fast"
    with pytest.raises(UsageError, match="the best bound"):
        chosen(1e-8)


# ---- journals and finished results -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    for name, shape in (("a", (4000, 100)), ("b", (100, 4000))):
        np.save(f"{name}.npy", rng.uniform(0, 1, shape).astype(np.float32))
    return tmp_path


def multiply(precision: str | float, *, resume: bool = True) -> np.ndarray:
    options: dict[str, Any] = {"precision": precision, "resume": resume, "overwrite": not resume}
    tw.multiply("a.npy", "b.npy", "c.npy", device="cpu", memory="44MiB", **options)
    return np.load("c.npy")


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "then"), [("standard", "highest"), (1e-6, "standard"), ("highest", 1e-3)])
def test_a_product_is_not_resumed_in_another_way(folder: Path, begun: Any, then: Any) -> None:
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        multiply(begun, resume=False)
    with pytest.raises(ResumeError, match=r"the precision.* changed since this product was begun"):
        multiply(then)
    a, b = np.load("a.npy"), np.load("b.npy")
    np.testing.assert_array_equal(multiply(begun), tw.multiply(a, b, precision=begun, device="cpu"))


@pytest.mark.slow
def test_another_word_for_the_same_way_goes_on(folder: Path) -> None:
    with interrupted_after(2), pytest.raises(KeyboardInterrupt):
        multiply("highest", resume=False)
    a, b = np.load("a.npy"), np.load("b.npy")
    np.testing.assert_array_equal(multiply(1e-6), tw.multiply(a, b, precision="highest", device="cpu"))


@pytest.mark.slow
def test_a_finished_result_is_not_taken_for_one_of_another_precision(folder: Path) -> None:
    standard = multiply("standard")
    with pytest.raises(ResumeError, match="complete, but the precision changed since it was made"):
        multiply(1e-6)
    np.testing.assert_array_equal(multiply(1e-3), standard)
    assert worst(multiply(1e-6, resume=False)[:50], np.load("a.npy")[:50], np.load("b.npy")) < 1e-7


def test_the_options_reach_the_place_that_computes() -> None:
    source = [ArraySource(each) for each in operands()]
    placed = places.place_product(source, np.dtype(np.float32), Options(device="cpu", precision=1e-6), 1)
    assert (placed.choice.compute, placed.room.kc) == ("float64", places.kc_of(placed.choice.kernel, "float64"))
    assert "precision 1e-06" in placed.choice.why
