"""Products in programs of JAX: ``matmul`` under ``jax.jit``, ``jax.grad`` and ``jax.vmap``, on the host and on a GPU.

A compiled program calls back into Python for each product, with the addresses of its buffers: nothing is copied to the host,
and on a GPU the product is submitted to the program's stream. A call costs tens of microseconds of host time.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.buffer_callback import buffer_callback

from .arrays.buffers import multiply_buffers
from .problem import combine_shapes


def matmul(a: Any, b: Any, *, precision: str | float = "standard") -> Any:
    """The product of two JAX arrays, as an array of their promoted dtype; shapes are those of ``jax.numpy.matmul``.

    ``precision`` is that of ``tilewright.matmul``, also for the gradients. Raises what ``tilewright.matmul`` raises.

    >>> import jax, jax.numpy as jnp, tilewright.jax
    >>> a = jnp.array([[1., 2.]])
    >>> jax.jit(tilewright.jax.matmul)(a, a.T)
    Array([[5.]], dtype=float32)
    >>> jax.grad(lambda a: tilewright.jax.matmul(a, a.T).sum())(a)
    Array([[2., 4.]], dtype=float32)
    """
    x, y = jnp.asarray(a), jnp.asarray(b)
    shapes, dtype = combine_shapes(x.shape, y.shape), jnp.result_type(x, y)
    x, y = x[None] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y
    axes = len(shapes.batch)  # as many for both, so that a mapped axis can be put in front of them
    x, y = (z.astype(dtype).reshape((1,) * (axes + 2 - z.ndim) + z.shape) for z in (x, y))
    return _product(x, y, precision).reshape(shapes.result)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(a: Any, b: Any, precision: str | float) -> Any:
    """The product of arrays with equally many axes and one dtype."""

    def fill(context: Any, out: Any, x: Any, y: Any) -> None:
        multiply_buffers(context, out, x, y, precision)

    result = jax.ShapeDtypeStruct(combine_shapes(a.shape, b.shape).result, a.dtype)
    return buffer_callback(fill, result, vmap_method="broadcast_all")(a, b)


def _forward(a: Any, b: Any, precision: str | float) -> Any:
    return _product(a, b, precision), (a, b)


def _backward(precision: str | float, operands: Any, c: Any) -> Any:
    """C·Bᵀ and Aᵀ·C, summed over the axes along which an operand was repeated."""
    a, b = operands
    of_a = _product(c, b.swapaxes(-1, -2), precision)
    if b.ndim > 2 and b.size == b.shape[-2] * b.shape[-1]:  # one b for the whole batch: its sum is part of k
        of_b = _product(a.reshape(-1, a.shape[-1]).T, c.reshape(-1, c.shape[-1]), precision).reshape(b.shape)
    else:
        of_b = _product(a.swapaxes(-1, -2), c, precision)
    return _summed(of_a, a.shape), _summed(of_b, b.shape)


def _summed(gradient: Any, shape: tuple[int, ...]) -> Any:
    repeated = tuple(i for i, (n, size) in enumerate(zip(gradient.shape, shape, strict=True)) if n != size)
    return gradient.sum(repeated, keepdims=True) if repeated else gradient


_product.defvjp(_forward, _backward)
