"""The libraries to beat: each multiplies what it is given on as many threads as it is told, or says what is missing."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UnavailableError
from tilewright.host.limits import use_threads
from tilewright.kernels.catalog import catalog, reference

REFERENCES = [kernel for kernel in catalog().values() if kernel.is_reference]


@pytest.mark.parametrize("kernel", REFERENCES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_library_multiplies(kernel: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (5, 7, 3), (70, 33, 90)):
        a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = np.full((m, n), np.nan, dtype)
        a.flags.writeable = False
        try:
            runner(kernel, dtype)(a, b, c)
        except UnavailableError as missing:
            pytest.skip(str(missing))
        assert np.array_equal(c, a @ b)


class Torch(types.ModuleType):
    """What the reference asks of PyTorch."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.threads, self.told = 1, 0

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads, self.told = threads, self.told + 1

    def from_numpy(self, x: np.ndarray) -> np.ndarray:
        assert x.flags.writeable, "PyTorch warns of an array that it may not write to"
        return x

    def mm(self, a: np.ndarray, b: np.ndarray, *, out: np.ndarray) -> None:
        np.matmul(a, b, out=out)


def test_torch_is_told_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Torch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    run = runner(reference("torch"), "float32")
    for threads, told in ((2, 1), (2, 1), (1, 2)):
        with use_threads(threads):
            run(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), c := np.zeros((2, 4), np.float32))
        assert (fake.threads, fake.told) == (threads, told)
        assert (c == 3).all()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    one = np.ones((1, 1))
    with pytest.raises(UnavailableError, match="torch is not installed here: pip install torch"):
        runner(reference("torch"), "float64")(one, one, one.copy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_numpys_library_multiplies_under_every_core_type(dtype: str) -> None:
    rng = np.random.default_rng(0)
    variants = reference("openblas").variants(dtype)
    for m, n, k in ((1, 1, 1), (5, 7, 3), (70, 33, 90), (4, 0, 3), (4, 3, 0)):
        a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        for name, multiply in variants.items():
            c = np.full((m, n), np.nan, dtype)
            multiply(a, b, c)
            assert np.array_equal(c, a @ b), name
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["internal_api"] == "openblas"]
    assert set(variants) <= {pool["architecture"] for pool in pools}, "each is a library of its own"


def test_what_openblas_does_not_multiply_has_one_variant() -> None:
    assert len(reference("openblas").variants("int32")) == 1


def test_every_core_type_that_the_processor_can_run_is_tried() -> None:
    """AVX-512 kernels, which OpenBLAS does not take by itself on a processor that it does not know."""
    from tilewright.host.machine import machine

    cores = set(reference("openblas").variants("float32"))
    assert ("SkylakeX" in cores) >= ({"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(machine().isa))
