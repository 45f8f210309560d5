"""``precision="tf32"`` by the kernel of mma.sync, executed by the microscope, or by multiply-adds where these are faster."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.selection import in_turns
from tilewright.gpu.arrays import matmul
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.planning.choice import computed_on_gpu
from tilewright.gpu.runtime.nvrtc import compile_with
from tilewright.kernels.catalog import cuda_engine
from tilewright.product.precision import path_bound

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

MMA = cuda_engine()["cuda/mma_tf32"]
WAYS = [{}, *(preset.params for preset in MMA.presets), {"WN": 32}, {"BM": 16, "WM": 16, "BK": 32, "WN": 32}]
ARCHS = {"8.0": "sm_80", "9.0": "sm_90a"}


def tile_of(params: dict[str, int]) -> str:
    """The sides of the tiles of a block and of a warp."""
    return "x".join(str(MMA.checked(params)[name]) for name in ("BM", "BN", "WM", "WN"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 22)
    found.sms, found.executes = 4, True
    fake.install(monkeypatch, [found])
    return found


@pytest.fixture(params=ARCHS)
def alone(gpu: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU of each capability whose engine has this kernel alone."""
    gpu.capability, gpu.arch = request.param, ARCHS[request.param]
    fake.engine_alone(monkeypatch, MMA)
    return gpu


def tensor(gpu: Any, values: np.ndarray, layout: str = "rows") -> Any:
    return laid(fake.Tensor, gpu, values, layout)


def whole(*shape: int) -> np.ndarray:
    """Small whole numbers, which TF32 represents, and whose sums float32 does."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.slow_cases(
    "(6, 34, 70)",
    "8.0-(64, 72, 48)-rows-rows",
    "8.0-(64, 72, 48)-columns-rows",
    "8.0-(64, 72, 48)-columns-columns",
    "8.0-(64, 72, 48)-columns-wider",
    "8.0-(64, 72, 48)-wider-rows",
)
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns", "wider"), repeat=2)], ids="-".join)
@pytest.mark.parametrize("shape", [(64, 72, 48), (33, 45, 37), (6, 34, 70)], ids=str)
def test_any_layout_is_read_as_it_lies(alone: Any, shape: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    m, k, n = shape
    a, b = whole(2, m, k), whole(2, k, n)
    c = tw.matmul(tensor(alone, a, layouts[0]), tensor(alone, b, layouts[1]), precision="tf32").view
    np.testing.assert_array_equal(c, a @ b)
    assert [entry for entry, _ in alone.launches] == ["mma_tf32"]


@pytest.mark.slow
@pytest.mark.parametrize("params", in_turns(WAYS, 2), ids=tile_of)
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns"), repeat=2)], ids="-".join)
def test_every_tile_and_parts_of_k(
    gpu: Any, params: dict[str, int], layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.engine_alone(monkeypatch, MMA)
    monkeypatch.setattr("tilewright.gpu.planning.ways.best_params", lambda *_: MMA.checked(params))
    monkeypatch.setattr("tilewright.gpu.arrays.choose.tuned_card", lambda card: card)
    gpu.sms = 64
    m, k = params.get("BM", 128) + 6, 32000 // params.get("BM", 128)
    a, b = whole(m, k), whole(k, 70)
    x, y, out = tensor(gpu, a, layouts[0]), tensor(gpu, b, layouts[1]), tensor(gpu, np.zeros((m, 70), "f4"), "neither")
    assert tw.plan(x, y, out=out, precision="tf32").parts > 1
    tw.matmul(x, y, out=out, precision="tf32")
    np.testing.assert_array_equal(out.view, a @ b)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16"])
def test_sums_are_rounded_once(alone: Any, out_dtype: str) -> None:
    a, b = whole(33, 45), whole(45, 37)
    c = tw.matmul(tensor(alone, a), tensor(alone, b), precision="tf32", out_dtype=out_dtype).view
    np.testing.assert_array_equal(c, (a @ b).astype(c.dtype))


@pytest.mark.slow
def test_operands_are_rounded_to_nearest(alone: Any) -> None:
    up, down = 1 + 2.0**-11 + 2.0**-20, 1 + 2.0**-11 - 2.0**-20
    a, b = np.full((20, 16), up, np.float32), np.full((16, 24), -down, np.float32)
    for x, y in ((a, b), (b.T, a.T)):
        c = tw.matmul(tensor(alone, x), tensor(alone, np.ascontiguousarray(y)), precision="tf32").view
        assert (c == -16 * (1 + 2.0**-10)).all()


@pytest.mark.thorough
def test_infinities_and_every_nan_stay_what_they_are(alone: Any) -> None:
    """The NaN that GPUs make has all bits set: where rounding carries, it would become zero."""
    a, b = np.ones((20, 8), np.float32), np.ones((8, 9), np.float32)
    a.view(np.uint32)[[3, 5, 7], 2] = 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000
    a[9, 1] = np.inf
    c = tw.matmul(tensor(alone, a), tensor(alone, b), precision="tf32").view
    assert np.isnan(c[[3, 5, 7]]).all()
    assert (c[9] == np.inf).all()
    assert (np.delete(c, [3, 5, 7, 9], axis=0) == 8).all()


# ---- the choice


@pytest.mark.parametrize(("shape", "layout", "kernel", "compute", "copied"), [
    ((25, 3201, 5313), "rows", "cuda/mma_tf32", "tf32", False),
    ((96, 703, 257, 135), "rows", "cuda/mma_tf32", "tf32", False),
    ((4096, 4096, 4096), "rows", "cuda/hopper", "tf32", False),
    ((2047, 2047, 2047), "rows", "cuda/hopper", "tf32", True),
    ((25, 3200, 5312), "columns", "cuda/hopper", "tf32", False),
    ((1, 4096, 4096), "rows", "cuda/slices_fma", "float32", False),
], ids=str)  # fmt: skip
def test_what_is_predicted_to_be_the_fastest(
    gpu: Any, shape: tuple[int, ...], layout: str, kernel: str, compute: str, copied: bool
) -> None:
    """Rows that begin anywhere are copied for the copy engine of Hopper only where that is worth it."""
    gpu.sms = 132
    m, k, n, *batch = shape
    a, b = GpuArray(0, (m, k), (k, 1), "float32", 0), GpuArray(0, (k, n), (n, 1), "float32", 0)
    if layout == "columns":
        b = b._replace(strides=(1, k))
    if batch:
        a, b = (x._replace(shape=(*batch, *x.shape), strides=(x.shape[0] * x.shape[1], *x.strides)) for x in (a, b))
    plan = matmul._plan(matmul._key(a, b, None, True, "tf32", None))
    assert (plan.kernel.name, plan.compute) == (kernel, compute)
    assert bool(plan.copies) == copied


def test_cards_without_a_kernel_for_tf32_multiply_in_float32(gpu: Any) -> None:
    gpu.capability, gpu.arch = "7.5", "sm_75"
    plan = tw.plan(tensor(gpu, whole(8, 8)), tensor(gpu, whole(8, 8)), precision="tf32")
    assert (plan.compute, plan.kernel.dtypes) == ("float32", ("float32",))


def test_multiply_adds_keep_the_promise_but_for_a_very_long_k() -> None:
    for k, computes in ((1, ("tf32", "float32")), (60000, ("tf32", "float32")), (1 << 20, ("tf32",))):
        assert computed_on_gpu("float32", "tf32", k=k) == computes
        assert all(path_bound("float32", each, k) <= path_bound("float32", "tf32", k) for each in computes)


@pytest.mark.further
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"])
@pytest.mark.parametrize("params", WAYS, ids=tile_of)
def test_all_registers_fit(arch: str, params: dict[str, int]) -> None:
    macros = {"TYPE": "TF32", "OUT": "FLOAT32", "A_DOWN": 0, "B_ACROSS": 1}
    compiled = compile_with(MMA, params, arch, {**macros, "A_VECTOR": 16, "B_VECTOR": 16, "C_VECTOR": 16})
    assert compiled.resources["mma_tf32"].local_bytes == 0
    assert MMA.launch(512, 512, 512, **params).shared_bytes <= 99 << 10, "the least that these have"
