"""Plans: which kernel, how many threads, why, how long, and that each of them can be printed."""

from __future__ import annotations

import dataclasses
import html
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.plans import make_plan
from tilewright.cpu import choice, prediction
from tilewright.cpu import plan as host
from tilewright.cpu.engine.numpy_product import numpy_product
from tilewright.cpu.plan import BYTES_PER_THREAD, WORK_PER_THREAD
from tilewright.cpu.prediction import BlockSizes, predict
from tilewright.cpu.runtime import peaks
from tilewright.cpu.runtime.runner import runner
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError
from tilewright.host.machine import Cache, machine, seconds_text
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog
from tilewright.product.operands import DTYPES, NUMPY_ONLY_DTYPES
from tilewright.product.plan import Choice
from tilewright.product.problem import Problem, combine_shapes


@pytest.mark.any_machine
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_kernel_of_the_catalog(dtype: str) -> None:
    plan = make_plan(Problem(64, 64, 64, dtype))
    assert catalog()[plan.kernel.name] is plan.kernel
    assert plan.compute in plan.kernel.dtypes
    assert plan.kernel.error_bound is None, "only kernels with the classical bound are chosen unasked"
    assert not plan.kernel.is_reference
    assert np.can_cast(dtype, plan.compute), "nothing may be lost on the way in"


@pytest.mark.any_machine
def test_no_kernel_knows_a_dtype_that_is_refused_at_the_door() -> None:
    assert {dtype for kernel in catalog().values() for dtype in kernel.dtypes} <= {*DTYPES, "bfloat16"}


@pytest.mark.any_machine
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8"])
@pytest.mark.parametrize("size", [(8, 8, 8), (1000, 1000, 1000), (1, 4000, 4000), (6, 2000, 2000), (32, 32, 100_000)])
def test_the_highest_rung_that_suits_is_chosen(dtype: str, size: tuple[int, int, int]) -> None:
    chosen = make_plan(Problem(*size, dtype)).kernel
    able = [
        k
        for k in catalog().values()
        if k.device == "cpu" and not k.is_rung and dtype in k.dtypes and k.error_bound is None
    ]
    suiting = [k for k in able if k.suits is not None and k.suits(*size)]
    assert chosen.order == max(k.order for k in suiting or [k for k in able if k.suits is None])


# ---- a ladder of our own ---------------------------------------------------------------------------------------------

PLAIN = dataclasses.replace(catalog()["cpu/register_tile"], path=catalog()["cpu/packed"].path)


def rung(order: int, **changed: Any) -> Kernel:
    return dataclasses.replace(PLAIN, name=f"cpu/rung{order}", order=order, **changed)


def of_kernel(problem: Problem, kernel: Kernel, compute: str, threads: int, why: str = "") -> host.HostPlan:
    shapes = combine_shapes((problem.m, problem.k), (problem.k, problem.n))
    chosen = Choice(kernel, compute, kernel.params, why)
    return host.HostPlan(problem, chosen, shapes, np.dtype(problem.dtype), threads)


Ladder = Callable[..., None]


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ladder]:
    """Put other kernels in the place of the catalog's."""

    def forget() -> None:
        for cache in (choice._highest_first, choice._choose_cpu_cached, host.plan_alone):
            cache.cache_clear()

    def put(*kernels: Kernel) -> None:
        monkeypatch.setattr(choice, "engine", lambda: {k.name: k for k in kernels})
        forget()

    yield put
    monkeypatch.undo()
    forget()


def chosen(m: int = 8, n: int = 8, k: int = 8, dtype: str = "float32", **options: Any) -> str:
    return make_plan(Problem(m, n, k, dtype), **options).kernel.name


@pytest.mark.any_machine
def test_a_rung_that_suits_goes_before_higher_ones_that_do_not_say(ladder: Ladder) -> None:
    square = rung(1, suits=lambda m, n, k: m == n)
    ladder(square, rung(2), rung(3, suits=lambda m, n, k: k == 1))
    assert chosen() == "cpu/rung1"
    assert chosen(k=1) == "cpu/rung3"
    assert chosen(m=7) == "cpu/rung2", "what suits nobody is for those that take everything"


@pytest.mark.any_machine
def test_a_rung_that_does_not_suit_is_never_taken(ladder: Ladder) -> None:
    ladder(rung(1, suits=lambda m, n, k: False))
    with pytest.raises(DTypeError, match="no kernel multiplies float32"):
        chosen()


@pytest.mark.any_machine
def test_a_wider_error_bound_is_taken_on_request_alone(ladder: Ladder) -> None:
    recursion = rung(3, error_bound=lambda m, n, k: 1.0, suits=lambda m, n, k: False)
    ladder(rung(1), rung(2, error_bound=lambda m, n, k: 1.0), recursion, dataclasses.replace(recursion, name="ref/x"))
    assert chosen() == "cpu/rung1"
    assert chosen(algorithm="strassen") == "cpu/rung3", "the highest: below its leaf it is classical anyway"
    with pytest.raises(
        DTypeError, match=r"^no strassen kernel multiplies int8: it must be one of bool, float16, float32, float64$"
    ):
        chosen(dtype="int8", algorithm="strassen")


@pytest.mark.any_machine
@pytest.mark.usefixtures("given_peaks")
def test_a_wider_error_bound_is_said(ladder: Ladder) -> None:
    ladder(
        rung(1, error_bound=lambda m, n, k, leaf: 3.0 * m if m > leaf else None, params={"leaf": 64}, tunable={"leaf"})
    )
    wide, classical = (str(make_plan(Problem(n, n, n, "float32"), algorithm="strassen")) for n in (100, 50))
    assert "  error      at most 300 · u · max|A| · max|B|, " in wide
    assert "predicted  at most " in wide
    assert "  error " not in classical


@pytest.mark.any_machine
def test_a_dtype_with_a_kernel_of_its_own_is_not_converted(ladder: Ladder) -> None:
    ladder(rung(1), rung(2, dtypes=("float16",), suits=lambda m, n, k: k > 8))
    assert make_plan(Problem(9, 9, 9, "float16")).compute == "float16"
    assert make_plan(Problem(8, 8, 8, "float16")).compute == "float32"


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("dtype", "compute"),
    [
        *(("float16", "float64"), ("float32", "float64"), ("complex64", "complex128")),
        *(("float64", "float64"), ("complex128", "complex128"), ("int8", "int8"), ("bool", "float32")),
    ],
)
@pytest.mark.usefixtures("given_peaks")
def test_the_highest_precision_is_the_next_wider_dtype_rounded_once(dtype: str, compute: str) -> None:
    plan = make_plan(Problem(300, 200, 100, dtype, precision="highest"))
    assert plan.compute == compute
    assert plan.compute in plan.kernel.dtypes
    assert (f"rounded once to {dtype}" in str(plan)) == (compute != dtype)
    elements = 300 * 100 + 100 * 200 + 300 * 200
    assert plan.converted_bytes == (elements * np.dtype(compute).itemsize if compute != dtype else 0)


@pytest.mark.slow
def test_the_promise_of_the_highest_precision_holds() -> None:
    """The exact product of float32 matrices, rounded once, but for float64's own error; float32 arithmetic is far off."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((50, 3000), (3000, 60)))
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b)

    def within(c: np.ndarray) -> bool:
        half_ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
        return bool(np.all(np.abs(c - exact) <= half_ulp * (1 + 1e-6) + 3000 * 2.0**-53 * magnitude))

    for precision, expected in (("highest", True), ("standard", False)):
        plan = make_plan(Problem(50, 60, 3000, "float32", precision=precision))
        c = np.empty((50, 60), plan.compute)
        runner(plan.kernel, plan.compute, threads=plan.threads)(a.astype(plan.compute), b.astype(plan.compute), c)
        assert within(c.astype(np.float32)) == expected


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("options", "precision", "message"),
    [
        ({"algorithm": "strasen"}, "standard", "algorithm 'strasen' is not known: did you mean strassen?"),
        ({}, "high", "precision 'high' is not known: did you mean highest? (or a number, which bounds the error)"),
    ],
)
def test_words_that_are_not_known(options: dict[str, str], precision: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        make_plan(Problem(2, 2, 2, precision=precision), **options)
    assert str(refusal.value) == message


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.any_machine
def test_threads_grow_with_the_work_and_stay_within_the_limit() -> None:
    sizes = [2**p for p in range(15)]
    with tw.use_threads(7):
        threads = [make_plan(Problem(n, n, n)).threads for n in sizes]
    assert threads == sorted(threads)
    assert threads[0] == 1
    assert threads[-1] == 7
    for n, count in zip(sizes, threads, strict=True):
        assert count == 1 or n**3 >= count * WORK_PER_THREAD or 24 * n * n >= count * BYTES_PER_THREAD


@pytest.mark.any_machine
def test_a_product_that_memory_limits_gets_threads_too() -> None:
    with tw.use_threads(4):
        assert make_plan(Problem(1, 4096, 4096, "float32")).threads == 4
        assert make_plan(Problem(1, 512, 512, "float32")).threads == 1


@pytest.mark.any_machine
def test_without_a_limit_threads_are_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_plan(Problem(4096, 4096, 4096)).threads == tw.get_threads() <= machine().usable_cores


@pytest.mark.any_machine
@pytest.mark.usefixtures("given_peaks")
@pytest.mark.parametrize(("batch", "bands"), [(0, 1), (1, 1), (20, 1), (100, 3), (1000, 8), (1_000_000, 8)])
def test_a_batch_of_small_products_is_cut_between_them(batch: int, bands: int) -> None:
    with tw.use_threads(8):
        plan = make_plan(Problem(64, 64, 64, batch=batch))
        assert (plan.threads, plan.bands) == (1, bands)
        assert ("each with products of its own" in str(plan)) == (bands > 1)


@pytest.mark.any_machine
def test_a_batch_of_large_products_is_not() -> None:
    with tw.use_threads(8):
        plan = make_plan(Problem(2000, 2000, 2000, batch=3))
        assert (plan.threads, plan.bands) == (8, 1)


@pytest.mark.any_machine
@pytest.mark.parametrize("dtype", ["datetime64[s]", "str"])
def test_a_dtype_without_a_kernel_is_named(dtype: str) -> None:
    with pytest.raises(DTypeError, match=r"^no kernel multiplies .*: it must be one of bool, int8, .*, complex128$"):
        make_plan(Problem(2, 2, 2, dtype))


@pytest.mark.any_machine
@pytest.mark.parametrize("dtype", NUMPY_ONLY_DTYPES)
@pytest.mark.parametrize("precision", ["standard", "highest"])
def test_what_only_numpy_multiplies_is_left_to_it(dtype: str, precision: str) -> None:
    plan = make_plan(Problem(500, 400, 300, dtype, batch=100, precision=precision))
    assert (plan.kernel, plan.compute, plan.threads, plan.bands) == (numpy_product, dtype, 1, 1)
    assert plan.prediction is None
    for line in (
        "  kernel     numpy: NumPy's own matmul.",
        f"  because    no kernel multiplies {dtype}",
        "  threads    as many as NumPy uses",
        "  predicted  nothing: NumPy's rate is not measured",
    ):
        assert line in str(plan).splitlines()
    with pytest.raises(DTypeError, match=f"^no strassen kernel multiplies {dtype}"):
        make_plan(Problem(2, 2, 2, dtype), algorithm="strassen")


# ---- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.any_machine
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "int8", "complex64"])
@pytest.mark.parametrize("size", [(0, 0, 0), (0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (500, 400, 300)])
def test_a_plan_prints_what_it_will_do(dtype: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    plan = make_plan(Problem(m, n, k, dtype))
    first, *lines = str(plan).splitlines()
    rows = {line.split()[0]: line[13:] for line in lines}
    assert first == f"({m}×{k}) · ({k}×{n}) {dtype}"
    assert list(rows)[:2] == ["kernel", "because"]
    assert rows["kernel"] == f"{plan.kernel.name}: {plan.kernel.idea}"
    assert rows["threads"].startswith(f"{plan.threads} of {tw.get_threads()} (")
    assert "workspace" in rows
    assert ("computes" in rows) == (plan.compute != dtype)
    assert ("tile" in rows) == ("mr" in plan.kernel.params)
    assert ("predicted" in rows) == (m * n * k > 0)
    if m * n * k > 0 and plan.prediction is not None:
        pattern = r"[\d.e+]+ (ns|µs|ms|s), \S+ GFLOPS: bound by (compute|cache|memory|the call itself)"
        assert re.fullmatch(pattern, rows["predicted"])
        assert rows["model"].startswith("compute ")


@pytest.mark.any_machine
def test_notebooks_show_the_same_as_a_table() -> None:
    plan = make_plan(Problem(500, 400, 300, "float32"))
    first, *lines = str(plan).splitlines()
    page = html.unescape(plan._repr_html_())
    assert re.search(r"<b>(.*?)</b>", page)[1] == first
    assert re.findall(r"<td[^>]*>(.*?)</td>", page) == [cell for x in lines for cell in (x[2:13].strip(), x[13:])]


@pytest.mark.any_machine
def test_the_words_for_tile_blocks_and_limit() -> None:
    params = {"mr": 6, "nv": 4, "vector_bits": 512, "kc": 384, "mc": 168, "nc": 4096}
    plan = of_kernel(Problem(1000, 1000, 1000, "float32"), rung(1, params=params), "float32", 1, "it was asked for")
    with tw.use_threads(3):
        text = str(plan)
    assert "  because    it was asked for\n" in text
    assert "  tile       6 × 64 of C in registers (4 vectors of 512 bits)\n" in text
    assert "  blocks     MC 168, KC 384, NC 4096: 168 × 384 of A at a time for L2, 384 × 1000 of B packed " in text
    assert "  threads    1 of 3 (use_threads)\n" in text


@pytest.mark.any_machine
def test_workspace_is_that_of_every_thread_in_the_dtype_of_the_arithmetic() -> None:
    def nbytes(threads: int, dtype: str = "float32", compute: str = "float32", **changed: Any) -> int:
        one = rung(1, workspace=lambda m, n, k: 1000, **changed)
        return of_kernel(Problem(8, 8, 8, dtype), one, compute, threads).workspace_bytes

    assert nbytes(1) == 4000
    assert nbytes(3) == 12000
    assert nbytes(3, shared="team") == 4000, "a team shares one"
    assert nbytes(3, over="cpu/ikj") == 4000
    assert nbytes(1, "float16") == 4000


# ---- how long --------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("float64-1000-700-1500")
@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 512), (1000, 700, 1500), (300, 2000, 300)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_prediction_is_near_the_measurement(
    m: int, n: int, k: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak is measured in turns with the product: whatever slows this processor down now slows both."""
    rng, chains, steps = np.random.default_rng(1), np.array([0.5, 1.0], dtype), 100_000
    a, b, c = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    products, peaks_s = [], []
    with tw.use_threads(1):
        tw.matmul(a, b, out=c)
        multiply_add = peaks._compiled(peaks.multiply_add, dtype)
        multiply_add(1, chains)
        for _ in range(8):
            products.append(processor_s(lambda: tw.matmul(a, b, out=c)))
            peaks_s.append(processor_s(lambda: multiply_add(steps, chains)))
        operations = 2 * peaks.CHAINS * (peaks.BITS // 8 // chains.itemsize) * steps
        monkeypatch.setattr(prediction, "peak_gflops", lambda dtype, threads: operations / min(peaks_s) / 1e9)
        plan = tw.plan(a, b)
    assert plan.prediction is not None
    assert 1 / 3 < min(products) / plan.prediction.seconds < 3


def processor_s(run: Callable[[], object]) -> float:
    """Seconds that this thread has a processor: others on this machine count for nothing."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


BLOCKED = {"mr": 6, "nv": 4, "vector_bits": 512, "kc": 384, "mc": 168, "nc": 4096}


@pytest.mark.any_machine
def test_the_bound_is_the_roof_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "peak_gflops", lambda dtype, threads: 100.0 * threads)
    monkeypatch.setattr(prediction, "cache_bandwidth_gbs", lambda dtype, threads: 50.0)
    monkeypatch.setattr(prediction, "bandwidth_gbs", lambda dtype, threads: 10.0)
    l3 = Cache(3, "Unified", 32 << 20)  # which the operands of the second product exceed
    monkeypatch.setattr(prediction, "machine", lambda: dataclasses.replace(machine(), caches=(l3,)))

    def bound(m: int, n: int, k: int, dtype: str = "float32", params: Any = BLOCKED) -> tuple[str, float]:
        predicted = predict(Problem(m, n, k, dtype), params, dtype, 1)
        assert predicted is not None
        return predicted.bound, predicted.seconds

    assert bound(3000, 3000, 3000)[0] == "compute"
    assert bound(1, 4096, 16384, params={})[0] == "memory"
    assert bound(168, 4096, 3)[0] == "cache", "packing costs more than so short a sum"
    assert bound(2, 2, 2)[0] == "the call itself"
    assert bound(1536, 1536, 1536)[1] == pytest.approx(2 * 1536**3 / 1e11, rel=1e-4), "whole tiles: nothing is wasted"
    assert bound(1, 1536, 1536)[1] >= 6 * 2 * 1536**2 / 1e11, "one row takes as long as a tile of six"
    four = bound(1536, 1536, 1536, "complex64", {})[1] / bound(1536, 1536, 1536, "float32", {})[1]
    assert four == pytest.approx(4, rel=1e-3), "a complex multiply-add is four real ones"


@pytest.mark.any_machine
def test_blocks_of_kernels_that_have_none_are_the_product() -> None:
    assert BlockSizes.of({}, "float32", 10, 20, 30) == BlockSizes(1, 1, 10, 30, 20, packs=False)
    assert BlockSizes.of(BLOCKED, "float64", 10, 20, 30) == BlockSizes(6, 32, 168, 384, 4096, packs=True)
    assert predict(Problem(3, 3, 3, "int8"), {}, "int8", 1) is None


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ns"), (3.21e-9, "3.21 ns"), (1e-6, "1 µs"), (0.0123, "12.3 ms"), (75, "75 s")]
)
def test_seconds_in_words(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ((3, 4), (4, 5), "(3×4) · (4×5) float64"),
        ((np.int64(3), 4), (4,), "(3×4) · (4×1) float64"),
        ((4,), (4,), "(1×4) · (4×1) float64"),
        ((0, 4), (4, 0), "(0×4) · (4×0) float64"),
        ((2, 1, 3, 4), (5, 4, 6), "10 × (3×4) · (4×6) float64"),
        (np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), "(3×4) · (4×5) float32"),
        (np.ones((3, 4), "i1"), (4, 5), "(3×4) · (4×5) float64"),
        (np.ones((3, 4), "u1"), np.ones((4, 5), ">i1"), "(3×4) · (4×5) int16"),
        ([[1, 2]], [[1], [2]], "(1×2) · (2×1) int64"),
    ],
)
def test_plans_of_shapes_and_of_arrays(a: object, b: object, text: str) -> None:
    assert str(tw.plan(a, b)).splitlines()[0] == text


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ((3, 4), (5, 2), ShapeError, "k mismatch: a is (3, 4), b is (5, 2)"),
        ((-3, 4), (4, 2), ShapeError, "a is (-3, 4): a size must be at least 0"),
        ((3, 4), (4, -1), ShapeError, "b is (4, -1): a size must be at least 0"),
        ((), (4,), ShapeError, "a is a scalar"),
        (None, (4,), OperandError, "a is None, not an array"),
        ((3, 4), np.zeros((4, 2), "m8[s]"), DTypeError, "b is an array of dtype timedelta64[s]"),
    ],
)
def test_what_has_no_plan_is_refused_by_name(a: object, b: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refusal:
        tw.plan(a, b)
    assert str(refusal.value).startswith(message)
