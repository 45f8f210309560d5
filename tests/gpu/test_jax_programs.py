"""``tilewright.jax`` in compiled programs on a real GPU: several products and their gradients, and a mapped one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def jax() -> Iterator[Any]:
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'tilewright[jax]'")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    # JAX's own products, with which ours are compared, would round float32 to TF32.
    with jax.default_matmul_precision("highest"):
        yield jax


def arrays(jax: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(1)
    return [jax.numpy.asarray(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


@pytest.mark.parametrize("size", [64, 600, 2048])
def test_layers_and_their_gradients(jax: Any, size: int) -> None:
    import tilewright.jax as tj

    x, *layers = arrays(jax, (size, size), *[(size, size)] * 4)
    layers = [w / size**0.5 for w in layers]

    def loss(layers: Any, call: Any) -> Any:
        y = x
        for w in layers:
            y = jax.numpy.tanh(call(y, w))
        return (y * y).sum()

    found, right = (
        jax.jit(jax.value_and_grad(lambda layers, call=call: loss(layers, call)))(layers)
        for call in (tj.matmul, jax.numpy.matmul)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_mapped_product(jax: Any, dtype: str) -> None:
    import tilewright.jax as tj

    a, b = (jax.numpy.rint(2 * x).astype(dtype) for x in arrays(jax, (6, 70, 130), (130, 90)))
    found = jax.jit(jax.vmap(tj.matmul, (0, None)))(a, b)
    np.testing.assert_array_equal(found, (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(found.dtype))
    assert found.dtype == dtype
    assert {d.platform for d in found.devices()} == {"gpu"}
