"""``einsum`` and what is like it, of arrays of JAX: values, gradients, compiled programs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OperandError

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'tilewright[jax]'")
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5}


@pytest.mark.parametrize(
    "text", ["ab,bc->ca", "abc,cad->bd", "aab->b", "ab,ab->b", "a,b->ba", "ab,bc,cd->ad", "ab->ba", "...a,...a->..."]
)
def test_values(text: str) -> None:
    rng = np.random.default_rng(1)
    terms = text.partition("->")[0].split(",")
    operands = [rng.uniform(-1, 1, [SIZES[x] for x in term.replace("...", "d")]).astype(np.float32) for term in terms]
    found = tw.einsum(text, *map(jax.numpy.asarray, operands))
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, np.einsum(text, *operands), rtol=1e-5, atol=1e-6)


def test_gradients_and_compiled_programs() -> None:
    a, b = jax.numpy.arange(24.0).reshape(2, 3, 4), jax.numpy.ones((4, 2, 5))

    def total(x: jax.Array, y: jax.Array) -> jax.Array:
        return tw.einsum("abc,cad->bd", x, y).sum()

    def expected(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.numpy.einsum("abc,cad->bd", x, y).sum()

    for x, y in zip(jax.grad(total, (0, 1))(a, b), jax.grad(expected, (0, 1))(a, b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(total)(a, b), expected(a, b), rtol=1e-5)


def test_an_array_of_jax_cannot_be_out() -> None:
    a = jax.numpy.ones((2, 2))
    with pytest.raises(OperandError, match="never written"):
        tw.einsum("ab->ba", a, out=a)
    np.testing.assert_allclose(tw.tensordot(a, a, 1), np.full((2, 2), 2))
    np.testing.assert_allclose(tw.vecdot(a, a), [2, 2])
