"""``tilewright.jax`` on JAX's arrays, ``matmul`` on those in the host's memory, and buffers on a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError
from tilewright.gpu.arrays import gpu_array
from tilewright.gpu.arrays.buffers import multiply_buffers

SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 3)), ((3, 0), (0, 2)),
]  # fmt: skip


@pytest.fixture(scope="module")
def jax() -> Iterator[Any]:
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'tilewright[jax]'")
    # On a GPU its own products, with which ours are compared, would round float32 to TF32.
    with jax.default_matmul_precision("highest"):
        yield jax


@pytest.fixture
def on_the_host(jax: Any) -> Iterator[None]:
    """New arrays are in the host's memory, also where JAX has a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def arrays(jax: Any, *shapes: Any, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(1)
    return [jax.numpy.asarray(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_numbers_and_gradients_of_every_shape(jax: Any, shapes: Any) -> None:
    import tilewright.jax as tj

    a, b = arrays(jax, *shapes)
    (weights,) = arrays(jax, (a @ b).shape)
    found, right = (
        jax.jit(jax.value_and_grad(lambda a, b, call=call: (call(a, b) * weights).sum(), (0, 1)))(a, b)
        for call in (tj.matmul, jax.numpy.matmul)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "complex64"])
def test_every_dtype(jax: Any, dtype: str, request: pytest.FixtureRequest) -> None:
    import tilewright.jax as tj

    if dtype == "int32":  # which no kernel for a GPU multiplies
        request.getfixturevalue("on_the_host")
    a, b = (x.astype(dtype) for x in arrays(jax, (9, 40), (40, 7)))
    c = jax.jit(tj.matmul, static_argnames="precision")(a, b, precision="highest")
    wide = np.complex128 if dtype == "complex64" else np.float64
    np.testing.assert_array_equal(c, (np.asarray(a, wide) @ np.asarray(b, wide)).astype(c.dtype))
    assert c.dtype == dtype


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("shapes", [((7, 3, 4), (7, 4, 5)), ((7, 4), (7, 4, 5)), ((7, 2, 3, 4), (7, 4, 5))])
def test_mapped(jax: Any, shapes: Any, axes: Any) -> None:
    import tilewright.jax as tj

    a, b = (x[0] if axis is None else x for x, axis in zip(arrays(jax, *shapes), axes, strict=True))
    found, right = (jax.vmap(call, axes)(a, b) for call in (tj.matmul, jax.numpy.matmul))
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-6)


def test_gradients_of_gradients(jax: Any) -> None:
    import tilewright.jax as tj

    a, b = arrays(jax, (3, 4), (4, 5))
    found, right = (
        jax.jacrev(jax.grad(lambda a, call=call: (call(a, b) ** 3).sum()))(a) for call in (tj.matmul, jax.numpy.matmul)
    )
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_shapes_that_are_refused(jax: Any) -> None:
    import tilewright.jax as tj

    with pytest.raises(ShapeError, match="k mismatch"):
        jax.jit(tj.matmul)(*arrays(jax, (3, 4), (5, 2)))


# ---- tilewright.matmul -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_product_of_jaxs_arrays_is_one(jax: Any, shapes: Any) -> None:
    """Also where the program is traced, and beside NumPy's arrays."""
    a, b = arrays(jax, *shapes)
    right = a @ b
    for c in (tw.matmul(a, b), jax.jit(tw.matmul)(a, b), tw.matmul(a, np.asarray(b)), tw.matmul(np.asarray(a), b)):
        assert isinstance(c, jax.Array)
        assert (c.shape, c.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(c, right, rtol=2e-5, atol=1e-6)
    found, expected = (jax.grad(lambda a, call=call: call(a, b).sum())(a) for call in (tw.matmul, jax.numpy.matmul))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("on_the_host")
@pytest.mark.parametrize("left", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("right", ["bfloat16", "float16", "int32", "uint8"])
def test_dtypes_promote_as_those_of_jax(jax: Any, left: str, right: str) -> None:
    a, b = jax.numpy.arange(6.0).reshape(2, 3).astype(left), jax.numpy.arange(12.0).reshape(3, 4).astype(right)
    expected = a @ b
    for c in (tw.matmul(a, b), tw.matmul(a, b, device="cpu")):
        assert (type(c), c.dtype) == (type(expected), expected.dtype)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.usefixtures("on_the_host")
def test_options_of_jaxs_arrays(jax: Any) -> None:
    a, b, bias = arrays(jax, (6, 7), (7, 5), (5,))
    c = tw.matmul(a, b, alpha=2, bias=bias)
    assert isinstance(c, jax.Array)
    np.testing.assert_allclose(c, 2 * (a @ b) + bias, rtol=2e-5, atol=1e-6)
    assert tw.matmul(a, b, out_dtype=jax.numpy.bfloat16).dtype == "bfloat16"
    assert tw.verify(a, b, tw.matmul(a, b, verify=True)).ok
    assert tw.plan(a.astype("bfloat16"), b).dtype == np.float32
    assert all(isinstance(x, jax.Array) for x in tw.matmul([a, a], [b, b]))


@pytest.mark.usefixtures("on_the_host")
def test_what_jax_does_not_do_is_refused(jax: Any) -> None:
    a, b = arrays(jax, (6, 7), (7, 5))
    with pytest.raises(OperandError, match="never written: use the result"):
        tw.matmul(a, b, np.empty((6, 5), "f4"))
    with pytest.raises(OperandError, match="never written: use the result"):
        tw.gemm(1, a, b, 0, a @ b)
    with pytest.raises(OperandError, match="a is traced by JAX: there matmul takes a, b and precision alone"):
        jax.jit(lambda a: tw.matmul(a, b, alpha=2))(a)
    with pytest.raises(DTypeError, match=r"float8_e5m2, which has no kernel: convert them with astype\('float32'\)"):
        tw.matmul(a.astype("float8_e5m2"), b.astype("float8_e5m2"))
    with pytest.raises(DTypeError, match="a is float8_e5m2, b is float32: JAX promotes them to no dtype"):
        tw.matmul(a.astype("float8_e5m2"), b)
    with pytest.raises(UsageError, match="precision 'exact' is not known"):
        tw.matmul(a, b, precision="exact")


# ---- on a GPU --------------------------------------------------------------------------------------------------------


class Buffer(fake.Array):
    """Memory on the simulated GPU, as a compiled program passes it to a function."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return gpu_array.CUDA, self.gpu.ordinal

    def __dlpack__(self) -> Any:
        place = fake.address(self.gpu, self.view)
        return gpu_array.make_capsule(place, self.shape, self.view.dtype.name, self.gpu.ordinal, self)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    found = fake.Gpu(1 << 23)
    fake.install(monkeypatch, [found])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [((65, 70), (70, 67)), ((3, 1, 9, 20), (1, 4, 20, 5))], ids=str)
def test_buffers_on_a_gpu_are_multiplied_on_the_programs_stream(gpu: Any, shapes: Any) -> None:
    a, b = (np.random.default_rng(1).integers(-8, 9, shape).astype(np.float32) for shape in shapes)
    out = Buffer.of(gpu, np.full((a @ b).shape, np.nan, np.float32))
    multiply_buffers(SimpleNamespace(stream=77), out, Buffer.of(gpu, a), Buffer.of(gpu, b), "highest")
    np.testing.assert_array_equal(out.view, a @ b)
    assert {stream for _, stream in gpu.launches} == {77}
    assert gpu.orders == [(gpu.stream, 77)], "its workspace is allocated on the stream of the GPU"
    assert [stream for stream, _ in gpu.kept] == [77]
