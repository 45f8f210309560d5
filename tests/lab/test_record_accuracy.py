"""The record of accuracy: its lines on the CPU and on a simulated GPU, and products that it must call wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import record_accuracy as record
import tilewright as tw
from support import simulated_libraries as fake
from tilewright.gpu.arrays import libraries
from tilewright.kernels.catalog import cuda_engine
from tilewright.lab.inputs.distributions import distributed
from tilewright.lab.verify.grades import Exact


def line(way: record.Way, name: str, shape: tuple[int, int, int], dtype: str = "float32") -> dict[str, Any]:
    a, b = distributed(name, shape, dtype)
    return record.line_of(way, name, a, b, Exact(a, b))


def test_a_record_of_small_products_on_the_cpu() -> None:
    ways = [way for way in record.cpu_paths() if not way.name.endswith("mkl")]
    lines = list(record.lines_of(ways, 24, (16, 24), (8, 16)))
    assert all(map(record.is_right, lines))
    of_ours = [each for each in lines if each["path"] == "tilewright" and each["dtype"] == "float64"]
    assert {each["distribution"] for each in of_ours[:-1]} >= {"uniform", "infinity", "lognormal:4", "graded:80"}
    assert of_ours[-1]["grade"] == "A"
    assert {each["path"] for each in lines} == {way.name for way in ways}


@pytest.mark.parametrize("wrong", [
    lambda a, b: np.nan_to_num(tw.matmul(a, b)),
    lambda a, b: tw.matmul(a, b) * np.float32(1.001),
    lambda a, b: tw.matmul(a, b) * np.float32(np.nan),
])  # fmt: skip
def test_a_wrong_product_is_called_wrong(wrong: Any) -> None:
    way = replace(record.cpu_paths()[0], multiply=wrong)
    assert not record.is_right(line(way, "nan", (20, 20, 20)))
    assert not record.is_right({"kind": "accuracy grade", "path": "tilewright", "grade": "B"})


def test_only_tf32_may_lose_bits_of_subnormal_numbers() -> None:
    known = {"kind": "accuracy", "kernel": "k", "as_ieee": True, "over_promise": 2.0, "path": record.TF32}
    assert record.is_right(known | {"distribution": "subnormal"})
    assert not record.is_right(known | {"distribution": "normal"})
    assert not record.is_right(known | {"distribution": "subnormal", "path": "tilewright"})
    assert not record.is_right(known | {"distribution": "subnormal", "as_ieee": False})


# ---- on a GPU --------------------------------------------------------------------------------------------------------

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")


def engine(monkeypatch: pytest.MonkeyPatch, name: str, **defaults: int) -> record.Gpu:
    """A simulated GPU on which this kernel alone is chosen, of any size."""
    gpu = fake.Gpu(1 << 27)
    gpu.sms = 2
    kernel = cuda_engine()[name]
    parameters = tuple(replace(p, default=defaults.get(p.name, p.default)) for p in kernel.parameters)
    kernel = replace(kernel, suits=None, presets=(), parameters=parameters)
    fake.install(monkeypatch, [gpu])
    fake.engine_alone(monkeypatch, kernel)
    monkeypatch.setattr("tilewright.gpu.arrays.split._LEAST", {})
    monkeypatch.setattr(record, "cuda_engine", lambda: {name: kernel})

    def empty(count: int) -> Any:
        return fake.Tensor.of(gpu, np.full(count, np.nan, np.float32))

    return record.Gpu(lambda x: fake.Tensor.of(gpu, x), lambda x: x.view.copy(), empty, gpu, 1)


@pytest.fixture(autouse=True)
def forgets_libraries() -> Any:
    yield
    libraries._known.clear()
    libraries._instance.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "defaults", "shape", "parts"), [
    ("cuda/split_hopper", "float32", {}, (70, 40, 136), {"infinity": 1, "graded:60": 2}),
    ("cuda/residues_hopper", "float64", {"BN": 64, "CLUSTER": 1}, (130, 40, 136), {"infinity": 1, "graded:80": 2}),
])  # fmt: skip
def test_parts_that_a_gpu_computes_from_the_operands_are_counted(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: str,
    defaults: dict[str, int],
    shape: tuple[int, int, int],
    parts: dict[str, int],
) -> None:
    way = record.gpu_paths(engine(monkeypatch, name, **defaults), {})[0]
    for distribution, count in parts.items():
        found = line(way, distribution, shape, dtype)
        assert record.is_right(found), found
        assert (found["kernel"], found["flagged"], found["parts"]) == (name, count, 2), found
