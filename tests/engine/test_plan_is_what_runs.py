"""What ``tw.plan`` prints is the object that the call executes, for every call there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.cpu import gemm
from tilewright.cpu.gemm import GemmPlan
from tilewright.cpu.plan import HostPlan, host_plan
from tilewright.cpu.runtime import small_products
from tilewright.errors import DTypeError, ShapeError, UsageError
from tilewright.gpu.arrays.buffers import host_product
from tilewright.large.streaming.places import places
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.plan import StreamPlan
from tilewright.large.streaming.run.job import Job
from tilewright.product.plan import Plan


def operands(shape_a: tuple[int, ...], shape_b: tuple[int, ...], dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, shape_a).astype(dtype), rng.uniform(-1, 1, shape_b).astype(dtype)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[HostPlan]:
    """The plans that were run."""
    found: list[HostPlan] = []
    run = HostPlan.run

    def noted(self: HostPlan, *arrays: np.ndarray) -> None:
        found.append(self)
        run(self, *arrays)

    monkeypatch.setattr(HostPlan, "run", noted)
    monkeypatch.setattr("tilewright.api.matmul.small_products", SimpleNamespace(multiply=small_products.take_long_way))
    monkeypatch.setattr(
        "tilewright.api.matmul._short_way", small_products.take_long_way
    )  # by the plan's kernel: test_shared_products
    return found


@pytest.mark.usefixtures("given_peaks")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ((8, 9), (9, 7), {}),
        ((600, 500), (500, 400), {}),
        ((40, 64, 64), (64, 64), {}),
        ((3000,), (3000, 3000), {}),
        ((300, 300), (300, 300), {"precision": "highest"}),
        ((900, 900), (900, 900), {"algorithm": "strassen"}),
    ],
)
def test_matmul_runs_the_plan_that_is_printed(
    ran: list[HostPlan], a: tuple[int, ...], b: tuple[int, ...], options: dict[str, str], threads: int
) -> None:
    x, y = operands(a, b)
    with tw.use_threads(threads):
        planned = tw.plan(x, y, **options)
        tw.matmul(x, y, **options)
    assert isinstance(planned, Plan)
    assert ran == [planned]
    assert ran[0] is planned
    assert str(planned).splitlines()[1].startswith(f"  kernel     {planned.kernel.name}: ")


def test_a_plan_at_the_prompt_is_a_line_that_names_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures nothing either: only ``str()`` tells the prediction, for which the machine's peaks are measured."""
    monkeypatch.setattr(HostPlan, "prediction", property(lambda self: pytest.fail("it was predicted")))
    monkeypatch.setattr(places, "host_rates", lambda *_: Rates(1e11, 1e10, 1e9))
    c = np.zeros((5, 7))
    plans: list[Any] = [
        tw.plan((5, 6), (6, 7)),
        tw.plan(np.ones((5, 6)), np.ones((6, 7)), c, beta=1),
        tw.plan_multiply(np.ones((50, 60)), np.ones((60, 70)), device="cpu", memory="64MiB"),
    ]
    assert (
        repr(plans[0]) == f"<HostPlan: (5×6) · (6×7) float64 by {plans[0].kernel.name} on cpu; print it for the whole>"
    )
    for plan in plans:
        assert repr(plan).startswith(f"<{type(plan).__name__}: {plan.title} by {plan.kernel.name} on cpu")
        assert " at 0x" not in repr(plan) + repr(plan.choice)
        assert "\n" not in repr(plan)


def test_another_limit_is_another_plan() -> None:
    with tw.use_threads(2):
        wide: Any = tw.plan((900, 900), (900, 900))
    with tw.use_threads(1):
        narrow: Any = tw.plan((900, 900), (900, 900))
    assert (wide.threads, narrow.threads) == (2, 1)
    assert wide.choice is narrow.choice, "the kernel, and so the bits, depend on the problem alone"


@pytest.mark.parametrize(
    ("alpha", "beta", "sizes", "way"),
    [
        (0.0, 2.0, (5, 6, 7), "scale"),
        (2.0, 1.0, (5, 0, 7), "scale"),
        (1.0, 0.0, (500, 60, 700), "product"),
        (1.0, 1.0, (500, 60, 700), "add"),
        (1.0, 1.0, (5, 6, 7), "combine"),
        (2.0, 0.5, (500, 60, 700), "combine"),
    ],
)
def test_gemm_runs_the_plan_that_is_printed(
    ran: list[HostPlan], alpha: float, beta: float, sizes: tuple[int, int, int], way: str
) -> None:
    m, k, n = sizes
    a, b = operands((m, k), (k, n), "float64")
    c = np.random.default_rng(1).uniform(-1, 1, (m, n))
    planned = tw.plan(a, b, c, alpha=alpha, beta=beta)
    if (alpha, beta) != (1, 0):
        assert isinstance(planned, GemmPlan)
        assert planned.way == way
        assert str(planned).splitlines()[-1].startswith("  C          ")
        assert str(planned).count("\n  C ") == 1
    want = alpha * (a @ b) + beta * c
    tw.gemm(alpha, a, b, beta, c)
    np.testing.assert_allclose(c, want, atol=1e-12)
    kernels = [plan.kernel for plan in ran]
    assert kernels == ([] if way == "scale" else [planned.kernel])


def test_gemm_plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last rows, where C is combined with panels and these are fewer."""
    planned: list[tuple[int, ...]] = []

    def noted(a: tuple[int, ...], *others: Any) -> HostPlan:
        planned.append(a)
        return host_plan(a, *others)

    monkeypatch.setattr(gemm, "host_plan", noted)
    monkeypatch.setattr(gemm, "PANEL_BYTES", 64 * 70 * 8)
    a, b = operands((200, 60), (60, 70), "float64")
    for alpha, beta, expected in (
        (1.0, 0.0, [(200, 60)]),
        (0.0, 1.0, [(200, 60)]),
        (2.0, 1.0, [(200, 60), (64, 60), (8, 60)]),
    ):
        planned.clear()
        c = np.ones((200, 70))
        tw.gemm(alpha, a, b, beta, c)
        np.testing.assert_allclose(c, alpha * (a @ b) + beta, atol=1e-12)
        assert planned == expected


def test_a_narrower_dtype_is_left_where_magnitudes_need_it_also_for_a_compiled_program() -> None:
    """That is how JAX and ``torch.compile`` ask for products on the host."""
    a, b = np.full((700, 700), 1e200), np.full((700, 700), 1e-200)
    assert tw.plan(a, b, precision="fast").compute == "float32"
    np.testing.assert_allclose(host_product(a, b, "fast"), np.full((700, 700), 700.0), rtol=1e-5)


def test_a_c_that_no_kernel_may_write_is_combined() -> None:
    a, b = operands((500, 60), (60, 700))
    big_endian = np.zeros((500, 700), ">f4")
    assert getattr(tw.plan(a, b, np.zeros((500, 700), np.float32), beta=1), "way", "") == "add"
    assert getattr(tw.plan(a, b, big_endian, beta=1), "way", "") == "combine"


def test_what_is_streamed_runs_the_plan_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    run = Job.run
    monkeypatch.setattr(places, "host_rates", lambda *_: Rates(1e11, 1e10, 1e9))
    monkeypatch.setattr(Job, "run", lambda self, *rest: (jobs.append(self), run(self, *rest))[1])
    a, b = operands((700, 600), (600, 500))
    planned = tw.plan_multiply(a, b, device="cpu", memory="64MiB")
    np.testing.assert_allclose(tw.multiply(a, b, device="cpu", memory="64MiB"), a @ b, atol=1e-3)
    (job,) = jobs
    assert isinstance(planned, StreamPlan)
    assert isinstance(planned, Plan)
    assert job.plan.choice is planned.choice is job.placement.choice
    assert (planned.problem, planned.device) == (job.plan.problem, job.plan.device) == (job.plan.problem, "cpu")
    assert planned.grid == job.plan.grid
    assert f"  kernel     {planned.kernel.name}: " in str(planned)


def test_a_device_is_planned_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``matmul(…, device=…)`` multiplies there, with what it refuses."""
    from tilewright.large import multiply as large

    asked: list[tuple[Any, ...]] = []

    def plan_multiply(a: Any, b: Any, device: str, precision: str) -> None:
        asked.append((a.shape, b.shape, a.dtype, device, precision))

    monkeypatch.setattr(large, "plan_multiply", plan_multiply)
    tw.plan((70, 60), (60, 50), device="cuda:1")
    tw.plan(*operands((4, 70, 60), (60, 50)), device="cuda", precision="highest")
    assert asked == [
        ((70, 60), (60, 50), np.dtype("float64"), "cuda:1", "standard"),
        ((280, 60), (60, 50), np.dtype("float64"), "cuda", "standard"),
    ]
    assert tw.plan((3, 4), (4, 5), device="cpu") is tw.plan((3, 4), (4, 5))
    with pytest.raises(DTypeError, match=r"^dtype int8: on a GPU it must be float32 or float64$"):
        tw.plan(*operands((3, 4), (4, 5), "int8"), device="cuda")
    with pytest.raises(UsageError, match=r"^algorithm 'strassen': GPUs have only 'classical'$"):
        tw.plan((3, 4), (4, 5), device="cuda", algorithm="strassen")


def test_a_wrong_out_is_refused_as_by_matmul() -> None:
    with pytest.raises(ShapeError, match=r"^out is \(3, 4\)"):
        tw.plan((3, 4), (4, 5), np.zeros((3, 4)))


def test_a_gemm_by_panels_is_planned_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cpu.gemm.PANEL_BYTES", 70 * 8 * 700)
    planned: Any = tw.plan((500, 60), (60, 700), alpha=2.0, beta=1.0)
    assert (planned.problem.m, planned.panel) == (500, 70)
    assert str(planned).startswith("(500×60) · (60×700) float64\n")
    a, b = operands((500, 60), (60, 700), "float64")
    np.testing.assert_allclose(tw.gemm(2.0, a, b, 1.0, np.ones((500, 700))), 2 * (a @ b) + 1, atol=1e-12)


def test_matmul_into_an_array_that_it_scales_is_gemm(ran: list[HostPlan]) -> None:
    a, b = operands((500, 60), (60, 700))
    c = np.ones((500, 700), np.float32)
    planned = tw.plan(a, b, c, beta=1.0)
    assert isinstance(planned, GemmPlan)
    assert planned.way == "add"
    np.testing.assert_allclose(tw.matmul(a, b, c, beta=1.0), a @ b + 1, rtol=1e-4, atol=1e-4)
    assert [(plan.kernel, plan.adds) for plan in ran] == [(planned.kernel, True)]


@pytest.mark.parametrize(("how", "dtype", "says"), [
    ({"alpha": 2.0}, "float32", "2 · A·B, by NumPy after the product"),
    ({"alpha": 2.0, "precision": "highest"}, "float32", "2 · A·B, by NumPy after the product"),
    ({"alpha": 2.0, "beta": 1.0, "out": np.ones((30, 50), np.float16)}, "float16", "2 · A·B + 1 · out, by NumPy"),
    ({"bias": np.ones(50, np.float32), "activation": "relu"}, "float32", "relu(A·B + bias), by NumPy"),
], ids=str)  # fmt: skip
def test_an_epilogue_is_in_the_plan_of_matmul(ran: list[HostPlan], how: dict[str, Any], dtype: str, says: str) -> None:
    a, b = operands((30, 40), (40, 50), dtype)
    planned = tw.plan(a, b, **how)
    assert not isinstance(planned, GemmPlan)
    assert f"  result     {says}" in str(planned)
    tw.matmul(a, b, **how)
    assert [plan.choice for plan in ran] == [planned.choice]  # type: ignore[attr-defined]


def test_what_matmul_refuses_is_planned_as_gemm_or_refused() -> None:
    assert isinstance(tw.plan(*operands((3, 4), (4, 5), "int64"), alpha=2), GemmPlan)
    with pytest.raises(UsageError, match="there is no out"):
        tw.plan((2, 3, 4), (4, 5), beta=2.0)
    with pytest.raises(DTypeError, match="needs real floating-point numbers"):
        tw.plan(*operands((2, 3, 4), (4, 5), "int64"), alpha=2)
