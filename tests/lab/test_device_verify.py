"""Verification on a GPU, executed by the microscope: what it computes is right, and what it is there to find it finds."""

from __future__ import annotations

import doctest
import functools
import itertools

import numpy as np
import pytest

from support.simulated_gpu import BASE, SimulatedGpu
from tilewright.errors import UnavailableError, UsageError
from tilewright.lab.bench import device
from tilewright.lab.bench.device import DeviceSets, SetLayout, random_values
from tilewright.lab.inputs import formats
from tilewright.lab.inputs.formats import FORMATS, format_of
from tilewright.lab.verify import device_verify
from tilewright.lab.verify.device_verify import DeviceChecks, DeviceOracle
from tilewright.lab.verify.verify import ExactPart, Oracle

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

SHAPES = [(1, 1, 1), (3, 2, 0), (33, 35, 40), (70, 5, 33)]


@pytest.mark.parametrize("module", [formats, device])
def test_doctests(module) -> None:
    assert doctest.testmod(module).failed == 0


@functools.cache
def oracle_of(shape, name: str) -> tuple[SimulatedGpu, DeviceOracle, np.ndarray, np.ndarray]:
    gpu, form = SimulatedGpu(), FORMATS[name]
    values = a, b = random_values(shape, form, 1)
    memories = [gpu.put(form.stored(x)) for x in values]
    return gpu, DeviceOracle(DeviceChecks(gpu, form), shape, *memories, values), a, b  # type: ignore[arg-type]


# ---- formats


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_what_it_can_hold(name: str) -> None:
    form = FORMATS[name]
    x = np.array([[0.0, -0.0, 1.0], [-1.5, 0.09375, np.inf]])
    assert np.array_equal(form.values(form.stored(x)), x)
    assert form.stored(x).itemsize == form.itemsize
    assert np.isnan(form.values(form.stored(np.array([np.nan]))))[0]
    assert np.isnan(form.values(np.full(form.itemsize, 0xFF, np.uint8).view(form.storage)))[0], "poison is no number"


def test_bfloat16_rounds_to_nearest_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install 'tilewright[test]'")
    x = np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    x[:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, 1e-40  # ties, up to infinity, subnormal
    assert np.array_equal(FORMATS["bfloat16"].stored(x), x.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 1000, 1 << 20])
def test_the_bound_is_that_of_the_host(name: str, k: int) -> None:
    oracle = Oracle(np.zeros((1, k), name), np.zeros((k, 1), name))
    line = ExactPart((slice(None), slice(None)), np.zeros((1, 1)), np.array([[3.0]]))
    relative, rounding, tiny = FORMATS[name].bound(k)
    assert rounding == 0
    assert relative * 3 + tiny == pytest.approx(oracle._bound(np.dtype(name), line, None, None)[0, 0], rel=1e-12, abs=0)


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 10), ("bf16", 7)])
def test_rounded_operands_are_within_the_bound_of_their_precision(precision: str, bits: int) -> None:
    """Both cut off after so many bits, all the errors in one direction: nearly the bound, and beyond that of the next."""
    x = np.full((1, 64), 2 - 2.0**-20)
    cut = np.full((1, 64), 2 - 2.0**-bits)
    error, magnitude = abs(x @ x.T - cut @ cut.T)[0, 0], (x @ x.T)[0, 0]
    relative, rounding, _ = format_of("float32", precision).bound(64)
    assert rounding == 0
    assert 0.4 * relative * magnitude < error < relative * magnitude
    assert error > 100 * FORMATS["float32"].bound(64)[0] * magnitude


@pytest.mark.parametrize(
    ("dtype", "precision", "words"),
    [
        ("int8", "standard", "dtype 'int8'"),
        ("float32", "fast", "precision of float32 'fast'"),
        ("float64", "tf32", "'tf32'"),
    ],
)
def test_formats_there_are_not(dtype: str, precision: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        format_of(dtype, precision)


def test_of_a_bound_that_says_nothing() -> None:
    assert FORMATS["float32"].bound(1 << 24)[0] == np.inf


# ---- the oracle


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_right_result_passes(name: str, shape) -> None:
    gpu, oracle, a, b = oracle_of(shape, name)
    form = FORMATS[name]
    check = oracle.check(gpu.put(form.stored(a.astype(np.float64) @ b)))  # type: ignore[arg-type]
    assert check.ok, check.reason
    assert check.error_over_bound <= 1
    host = Oracle(a, b).check(form.values(form.stored(a.astype(np.float64) @ b)))
    assert check.max_abs_error == pytest.approx(host.max_abs_error, rel=1e-3, abs=1e-13)


@pytest.mark.each_value
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("at", [(0, 0), (32, 34), (7, 31)])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x, bound: np.nan, "not written, or not a number"),
        (lambda x, bound: np.inf, "not a number"),
        (lambda x, bound: -np.inf, "not a number"),
        (lambda x, bound: x + 1.5 * bound, "is off by"),
        (lambda x, bound: x - 1.5 * bound, "is off by"),
        (lambda x, bound: 0, "is off by"),
    ],
)
def test_one_wrong_element_is_found(name: str, at, spoil, words) -> None:
    gpu, oracle, a, b = oracle_of((33, 35, 40), name)
    form, exact = FORMATS[name], a.astype(np.float64) @ b
    c = form.values(form.stored(exact)).copy()
    relative, rounding, tiny = form.bound(40)
    bound = relative * (np.abs(a.astype(np.float64)) @ np.abs(b))[at] + rounding * abs(exact[at]) + tiny
    c[at] = spoil(exact[at], bound + 2 * form.rounding * abs(exact[at]))  # beyond what storing it rounds
    check = oracle.check(gpu.put(form.stored(c)))  # type: ignore[arg-type]
    assert not check.ok
    assert check.reason.startswith(f"C[{at[0]}, {at[1]}] ")
    assert words in check.reason


def test_the_first_of_many_wrong_elements_is_named_and_the_worst_counted() -> None:
    gpu, oracle, a, b = oracle_of((33, 35, 40), "float32")
    c = (a.astype(np.float64) @ b).astype(np.float32)
    c[3, 4] += 1
    c[30, 2] -= 7
    check = oracle.check(gpu.put(c))  # type: ignore[arg-type]
    assert check.reason.startswith("C[3, 4] is off by 1")
    assert check.max_abs_error == pytest.approx(7, rel=1e-5)


def test_nothing_written_at_all() -> None:
    gpu, oracle, *_ = oracle_of((33, 35, 40), "float64")
    c = gpu.allocate(33 * 35 * 8)
    gpu.fill(c, 0xFF)
    assert oracle.check(c).reason == "C[0, 0] is nan: not written, or not a number"  # type: ignore[arg-type]


@pytest.mark.parametrize("which", [0, 1], ids=["product", "magnitude"])
def test_an_oracle_that_is_wrong_itself_is_not_believed(monkeypatch, which: int) -> None:
    product = DeviceChecks.product

    def spoilt(checks: DeviceChecks, a, b, *rest) -> None:
        product(checks, a, b, *rest)
        checks.gpu.bytes_of(rest[which])[-8:].view(np.float64)[0] += 1e-9  # type: ignore[attr-defined]

    monkeypatch.setattr(DeviceChecks, "product", spoilt)
    with pytest.raises(UnavailableError, match=r"results are verified against is wrong: C\[32, 34\] is off by 1e-09"):
        oracle_of.__wrapped__((33, 35, 40), "float32")


def test_beyond_the_confirmed_sizes_the_host_computes_nothing(monkeypatch) -> None:
    monkeypatch.setattr(device_verify, "CONFIRMED", 10)
    monkeypatch.setattr(device_verify, "Oracle", None)
    oracle_of.__wrapped__((33, 35, 40), "float32")


# ---- sets


def sets_of(shape=(5, 7, 6), name: str = "float32", l2: int = 1200) -> tuple[SimulatedGpu, DeviceSets]:
    gpu, form = SimulatedGpu(), FORMATS[name]
    checks = DeviceChecks(gpu, form)  # type: ignore[arg-type]
    return gpu, DeviceSets(gpu, checks, SetLayout.of(shape, form, l2), random_values(shape, form, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 6), (3, 2, 0), (31, 33, 17)], ids=str)
def test_sets_lie_apart_and_hold_the_same(name: str, shape) -> None:
    gpu, sets = sets_of(shape, name, l2=400)
    matrices = [x for of_kind in (sets.a, sets.b, sets.c, sets.reference_c) for x in of_kind]
    spans = sorted((x.pointer, x.pointer + x.nbytes) for x in matrices)
    assert all(start - end >= 4096 for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(x.pointer % 256 == 0 for x in matrices)
    for copies in (sets.a, sets.b):
        assert all(np.array_equal(gpu.bytes_of(copies[0]), gpu.bytes_of(x)) for x in copies)
    assert all((gpu.bytes_of(x) == 0xFF).all() for x in (*sets.c, *sets.reference_c))
    assert len(sets) * sum(sets.layout.sizes) >= 2 * 400
    assert sets.changed() == ""


def test_writing_to_c_is_allowed() -> None:
    gpu, sets = sets_of()
    for c in (*sets.c, *sets.reference_c):
        gpu.bytes_of(c)[:] = 0
    assert sets.changed() == ""


@pytest.mark.parametrize(("name", "last"), [("A", False), ("A", True), ("B", False), ("B", True)])
def test_a_changed_operand_is_found(name: str, last: bool) -> None:
    gpu, sets = sets_of()
    x = gpu.bytes_of({"A": sets.a, "B": sets.b}[name][-1 if last else 0])
    x[-1 if last else 0] ^= 1
    assert sets.changed() == f"it changed {name}"


def test_swapped_elements_are_a_change() -> None:
    gpu, sets = sets_of()
    x = gpu.bytes_of(sets.a[1]).view(np.float32)
    x[[3, 8]] = x[[8, 3]]
    assert sets.changed() == "it changed A"


@pytest.mark.parametrize("guard", range(5))
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("index", [0, -1])
def test_every_byte_that_is_no_matrix_is_guarded(guard: int, end: bool, index: int) -> None:
    gpu, sets = sets_of()
    name, start, size = sets.layout.guards[guard]
    which = range(len(sets))[index]
    at = sets.a[0].pointer - sets.layout.starts[0] + which * sets.layout.period + start + (size - 1 if end else 0)
    gpu.heap[at - BASE] = 0
    assert sets.changed() == f"it wrote memory {name}, byte {size - 1 if end else 0} of {size} there"


def test_matrices_and_guards_are_all_there_is() -> None:
    layout = SetLayout.of((5, 7, 6), FORMATS["float32"], 0)
    pieces = sorted(
        [*((start, size) for _, start, size in layout.guards), *zip(layout.starts, layout.sizes, strict=True)]
    )
    assert pieces[0][0] == 0
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(pieces))
    assert sum(pieces[-1]) == layout.period


def test_poison_is_for_the_kernels_outputs() -> None:
    gpu, sets = sets_of()
    for c in (*sets.c, *sets.reference_c):
        gpu.bytes_of(c)[:] = 0
    sets.poison()
    assert all((gpu.bytes_of(c) == 0xFF).all() for c in sets.c)
    assert not any(gpu.bytes_of(r).any() for r in sets.reference_c)


def test_operands_follow_from_seed_and_shape() -> None:
    form = FORMATS["float32"]
    one, same, other = (random_values((50, 60, 70), form, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.min() >= -1
    assert one.max() < 1
    assert abs(one.mean()) < 0.05
