"""16-bit products before Hopper: the kernel of mma.sync, which the microscope executes, compiled for every architecture."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.layouts import laid
from support.selection import in_turns
from tilewright.gpu.runtime.nvrtc import compile_with
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
MMA = cuda_engine()["cuda/mma"]
WAYS = [{}, *(preset.params for preset in MMA.presets)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 22)
    found.sms, found.capability, found.arch = 4, "8.0", "sm_80"
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, MMA)
    return found


def whole(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.mark.slow_cases(
    "(33, 45, 37)-float16-rows-rows",
    "(33, 45, 37)-float16-rows-columns",
    "(33, 45, 37)-float16-columns-rows",
    "(33, 45, 37)-float16-columns-columns",
)
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns", "wider"), repeat=2)], ids="-".join)
@pytest.mark.parametrize(("shape", "dtype"), [((64, 72, 48), BF16), ((33, 45, 37), F16)], ids=str)
def test_any_layout_is_read_as_it_lies(gpu: Any, shape: Any, dtype: Any, layouts: tuple[str, str]) -> None:
    m, k, n = shape
    a, b = whole(2, m, k, dtype=dtype), whole(2, k, n, dtype=dtype)
    c = tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1])).view
    np.testing.assert_array_equal(c, (a.astype(float) @ b.astype(float)).astype(dtype))
    assert [entry for entry, _ in gpu.launches] == ["mma"]


@pytest.mark.slow
@pytest.mark.parametrize("params", in_turns(WAYS, 2), ids=lambda p: f"{p.get('BM', 128)}x{p.get('BN', 128)}")
def test_every_tile_and_parts_of_k(gpu: Any, params: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.gpu.planning.ways.best_params", lambda *_: MMA.checked(params))
    monkeypatch.setattr("tilewright.gpu.arrays.choose.tuned_card", lambda card: card)
    gpu.sms = 64
    m, k = params.get("BM", 128) + 6, 64000 // params.get("BM", 128)
    a, b = whole(m, k), whole(k, 70)
    x, y = laid(fake.Tensor, gpu, a, "rows"), laid(fake.Tensor, gpu, b, "rows")
    out = laid(fake.Tensor, gpu, np.zeros((m, 70), BF16), "columns")
    plan = tw.plan(x, y, out=out)
    assert plan.parts > 1
    assert plan.params == MMA.checked(params)
    tw.matmul(x, y, out=out)
    np.testing.assert_array_equal(out.view, (a.astype(float) @ b.astype(float)).astype(BF16))


@pytest.mark.slow
@pytest.mark.further
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"])
@pytest.mark.parametrize("params", WAYS, ids=lambda p: f"{p.get('BM', 128)}x{p.get('BN', 128)}")
def test_all_registers_fit(arch: str, params: dict[str, int]) -> None:
    macros = {"TYPE": "FLOAT16", "OUT": "FLOAT16", "A_DOWN": 0, "B_ACROSS": 1}
    compiled = compile_with(MMA, params, arch, {**macros, "A_VECTOR": 16, "B_VECTOR": 16, "C_VECTOR": 16})
    assert compiled.resources["mma"].local_bytes == 0
    assert MMA.launch(512, 512, 512, **params).shared_bytes <= 99 << 10, "the least that these have"
