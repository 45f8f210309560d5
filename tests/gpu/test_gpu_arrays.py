"""``matmul`` of arrays of PyTorch, CuPy and JAX on a real GPU; what a simulated one can tell is in ``test_gpu_matmul.py``."""

# ruff: noqa: E501 - a table has one line for several cases

from __future__ import annotations

import importlib
import itertools
import time
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OperandError
from tilewright.gpu.arrays.gpu_array import GpuMatrix
from tilewright.gpu.runtime.device import gpu_at
from tilewright.gpu.runtime.product import prepare_gpu_product
from tilewright.kernels.catalog import cuda_catalog

pytestmark = pytest.mark.gpu

#: Cycles that keep a stream busy for about a third of a second.
LONG = 600_000_000
SHAPES = [
    ((65, 70), (70, 67)), ((256, 256), (256, 256)), ((1, 1), (1, 1)), ((300,), (300, 40)), ((40, 300), (300,)), ((99,), (99,)),
    ((3, 33, 20), (20, 35)), ((3, 33, 20), (3, 20, 35)), ((2, 1, 9, 20), (3, 20, 5)), ((9, 20), (4, 20, 5)), ((4, 7), (2, 7, 6)),
    ((0, 3), (3, 4)), ((5, 0), (0, 4)), ((5, 3), (3, 0)), ((0, 5, 3), (3, 4)), ((0,), (0,)), ((1000, 4), (4, 5)), ((4, 5000), (5000, 3)),
]  # fmt: skip
LAYOUTS = ("rows", "columns", "strided")


def library(name: str) -> Any:
    try:
        found = importlib.import_module(name)
        if name == "torch" and not found.cuda.is_available():
            pytest.skip("torch sees no GPU")
        if name == "cupy":
            found.cuda.runtime.getDeviceCount()
        if name == "jax" and not [d for d in found.devices() if d.platform in ("gpu", "cuda")]:
            pytest.skip("JAX sees no GPU")
    except Exception as error:  # a library or a driver that is not there
        pytest.skip(f"{name}: {error}")
    return found


@pytest.fixture
def torch() -> Any:
    return library("torch")


@pytest.fixture
def cupy() -> Any:
    return library("cupy")


def whole(*shape: int, dtype: str = "float32", seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def laid(put: Any, values: np.ndarray, layout: str) -> Any:
    if values.ndim < 2 or layout == "rows":
        return put(values)
    if layout == "columns":
        return put(np.ascontiguousarray(values.swapaxes(-1, -2))).swapaxes(-1, -2)
    wider = np.zeros((*values.shape[:-1], 2 * values.shape[-1] + 3), values.dtype)
    wider[..., 1 : 1 + 2 * values.shape[-1] : 2] = values
    return put(wider)[..., 1 : 1 + 2 * values.shape[-1] : 2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_every_layout(name: str, shapes: Any, dtype: str) -> None:
    module = library(name)
    put = (lambda x: module.from_numpy(x).cuda()) if name == "torch" else module.asarray
    got = (lambda x: x.cpu().numpy()) if name == "torch" else (lambda x: x.get())
    a, b = whole(*shapes[0], dtype=dtype), whole(*shapes[1], dtype=dtype, seed=2)
    for first, second in itertools.product(LAYOUTS, LAYOUTS):
        x, y = laid(put, a, first), laid(put, b, second)
        c = tw.matmul(x, y)
        assert type(c) is type(x)
        np.testing.assert_array_equal(got(c), np.matmul(a, b))
        assert got(c).shape == np.matmul(a, b).shape
        out = laid(put, np.full(np.matmul(a, b).shape, np.nan, dtype), second)
        assert tw.matmul(x, y, out=out) is out
        np.testing.assert_array_equal(got(out), np.matmul(a, b))


def test_steps_backwards_and_none(cupy: Any) -> None:
    a, b = whole(33, 40), whole(40, 35)
    x, y = cupy.asarray(a)[::-1, ::-2], cupy.asarray(b)[::2, ::-1]
    np.testing.assert_array_equal(tw.matmul(x, y).get(), a[::-1, ::-2] @ b[::2, ::-1])
    repeated = cupy.broadcast_to(cupy.asarray(a[:1]), (7, 40))
    np.testing.assert_array_equal(tw.matmul(repeated, cupy.asarray(b)).get(), np.broadcast_to(a[:1], (7, 40)) @ b)


def test_highest_and_promotion(torch: Any) -> None:
    a, b = (torch.randn(shape, device="cuda") for shape in ((200, 3000), (3000, 100)))
    exact = a.double() @ b.double()
    assert torch.equal(tw.matmul(a, b, precision="highest"), exact.float())
    assert tw.matmul(a, b.double()).dtype == torch.float64
    assert (tw.matmul(a, b.double()) - exact).abs().max() < 1e-10


def test_random_products_are_within_the_bound(torch: Any) -> None:
    for dtype, u in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
        for m, n, k in ((1000, 1000, 1000), (4097, 33, 4099), (8, 4096, 4096), (4096, 5, 513)):
            a, b = (
                torch.rand(m, k, dtype=dtype, device="cuda") - 0.5,
                torch.rand(k, n, dtype=dtype, device="cuda") - 0.5,
            )
            bound = k * u * (a.abs().double() @ b.abs().double()) * 1.01
            assert ((tw.matmul(a, b).double() - a.double() @ b.double()).abs() <= bound).all()


# ---- adding, as the schedules of larger products do


@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (129, 130, 67), (4, 700, 90), (700, 5, 90), (257, 257, 33), (9, 9, 0)]
)
@pytest.mark.parametrize(("name", "dtype"), [("cuda/register_banks", "float32"), ("cuda/dgemm_tensor", "float64")])
def test_products_that_are_added(torch: Any, name: str, dtype: str, shape: Any) -> None:
    (m, n, k), kind, kernel = shape, getattr(torch, dtype), cuda_catalog()[name]
    a, b, c = (torch.randint(-8, 9, size, device="cuda").to(kind) for size in ((m, k), (k, n), (m, n)))
    right = c + a @ b
    stream = torch.cuda.current_stream().cuda_stream
    with gpu_at(0) as gpu:
        for params in (None, kernel.presets[0].params):
            before = c.clone()
            product = prepare_gpu_product(gpu, kernel, dtype, m, n, k, add=True, params=params)
            assert prepare_gpu_product(gpu, kernel, dtype, m, n, k, add=True, params=params) is product
            product(a.data_ptr(), b.data_ptr(), before.data_ptr(), stream)
            assert torch.equal(before, right)


def test_a_call_costs_microseconds(torch: Any) -> None:
    x, c = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    for call in (lambda: tw.matmul(x, x), lambda: tw.matmul(x, x, out=c)):
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            call()
        assert (time.perf_counter() - start) / 1000 < 100e-6
        torch.cuda.synchronize()


# ---- streams


def test_an_inference_script_on_a_stream_of_its_own(torch: Any) -> None:
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        x = torch.randn(512, 300, device="cuda")
        weights = [torch.randn(300, 300, device="cuda") / 17 for _ in range(8)]
        y, z = x, x.double()
        for w in weights:
            y, z = torch.relu(tw.matmul(y, w.T)), torch.relu(z @ w.double().T)
        assert y.is_inference()
        assert (y - z).abs().max() < 1e-4
    weight = torch.randn(3, 3, device="cuda", requires_grad=True)
    tw.matmul(weight.detach(), weight).sum().backward()
    torch.testing.assert_close(weight.grad, weight.detach().sum(0)[:, None].expand(3, 3))
    with pytest.raises(OperandError, match="b requires grad"):
        tw.matmul(weight.detach(), weight, out=torch.empty(3, 3, device="cuda"))


def test_nothing_waits(torch: Any) -> None:
    """A stream that is busy delays neither the host nor the product on another one; and the product waits for its own."""
    x = torch.randn(1024, 1024, device="cuda")
    views = [(x, x), (x, x.T), (x[::2], x[:, ::2].T.contiguous().T)]
    want = [tw.matmul(a, b) for a, b in views]  # compiled and loaded now
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(LONG)
    with torch.cuda.stream(other):
        for (a, b), right in zip(views, want, strict=True):
            start = time.perf_counter()
            c = tw.matmul(a, b)
            assert time.perf_counter() - start < 0.1, "the call waited"
            other.synchronize()
            assert torch.equal(c, right)
        assert not busy.query(), "the product waited for another stream"
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(LONG)
        y = torch.zeros_like(x).copy_(x)  # not there yet when the product is asked for
        start = time.perf_counter()
        c = tw.matmul(y, y)
        assert time.perf_counter() - start < 0.1, "the call waited for its own stream"
        assert not busy.query()
        busy.synchronize()
        assert torch.equal(c, want[0])


def test_a_graph_can_be_captured(torch: Any) -> None:
    """What synchronises or allocates by itself cannot be."""
    x = torch.randn(300, 300, device="cuda")
    tw.matmul(x, x.T)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = tw.matmul(x, x.T)
    x.copy_(torch.randn(300, 300, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, tw.matmul(x, x.T))


def test_from_another_thread(torch: Any) -> None:
    """A thread in which nobody has used the GPU yet."""
    from concurrent.futures import ThreadPoolExecutor

    x = torch.randn(200, 200, device="cuda")
    right = tw.matmul(x, x)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tw.matmul(x, x), range(64)))
    torch.cuda.synchronize()
    assert all(torch.equal(c, right) for c in found)


def test_cupy_works_on_its_current_stream(cupy: Any) -> None:
    x = cupy.random.rand(512, 512)
    right = tw.matmul(x, x)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(20):
            c = tw.matmul(x, x)
        stream.synchronize()
        assert (c == right).all()


# ---- other libraries


class Only:
    """An array of which no more is known than one protocol."""

    def __init__(self, x: Any) -> None:
        self.x = x


class OnlyDlpack(Only):
    def __dlpack__(self, **asked: Any) -> Any:
        return self.x.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class OnlyInterface(Only):
    @property
    def __cuda_array_interface__(self) -> Any:
        return self.x.__cuda_array_interface__


@pytest.mark.parametrize("kind", [OnlyDlpack, OnlyInterface])
def test_protocols(torch: Any, kind: Any) -> None:
    x, y = (torch.randn(shape, device="cuda") for shape in ((300, 200), (100, 200)))
    right = tw.matmul(x, y.T)
    torch.cuda.synchronize()
    for _ in range(50):
        c = tw.matmul(kind(x), kind(y.T))
        assert type(c) is GpuMatrix
        found = torch.from_dlpack(c)
        del c
        assert torch.equal(found, right), "in torch's order, without waiting"
    assert found.data_ptr() != right.data_ptr()


def test_the_unknown_array_goes_to_cupy(cupy: Any) -> None:
    x = cupy.arange(12, dtype="f4").reshape(3, 4)
    c = tw.matmul(OnlyDlpack(x), OnlyDlpack(x.T.copy()))
    np.testing.assert_array_equal(cupy.asarray(c).get(), x.get() @ x.get().T)
    np.testing.assert_array_equal(cupy.from_dlpack(c).get(), x.get() @ x.get().T)


def test_torch_and_cupy_together(torch: Any, cupy: Any) -> None:
    a, b = whole(100, 200), whole(200, 90)
    c = tw.matmul(torch.from_numpy(a).cuda(), cupy.asarray(b))
    assert isinstance(c, torch.Tensor)
    np.testing.assert_array_equal(c.cpu().numpy(), a @ b)


def test_jax() -> None:
    jax = library("jax")
    a, b = whole(3, 100, 200), whole(200, 90)
    x, y = jax.numpy.asarray(a), jax.numpy.asarray(b)
    for _ in range(20):
        c = tw.matmul(x * 2, y)
        assert isinstance(c, jax.Array)
        np.testing.assert_array_equal(np.asarray(c + 1), 2 * np.matmul(a, b) + 1)
    with pytest.raises(OperandError, match="cannot be written by others"):
        tw.matmul(x, y, out=c)
    np.testing.assert_array_equal(jax.jit(tw.matmul)(x, y), np.matmul(a, b))


def test_the_plan(torch: Any) -> None:
    x, y = torch.empty(2, 4096, 4096, device="cuda")
    text = str(tw.plan(x, y.T))
    assert "cuda/simt" in text
    assert "predicted to be the fastest" in text
