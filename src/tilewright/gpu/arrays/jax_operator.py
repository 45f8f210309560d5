"""A product as a part of JAX programs: a callback that gets the addresses of the program's buffers, and its
gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.buffer_callback import buffer_callback

from ...errors import DTypeError, OperandError
from ...product.operands import admit, is_known
from ...product.precision import check_words
from ...product.problem import combine_shapes
from .buffers import multiply_buffers
from .libraries import library_by_type


def product_of_arrays(a: Any, b: Any, precision: str | float = "standard") -> Any:
    """The product of two arrays, in the dtype to which JAX promotes them.

    >>> product_of_arrays(jnp.eye(2), jnp.array([[1., 2.], [3., 4.]]))
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    x, y = promoted_arrays(a, b)
    if not is_known(x.dtype):
        raise DTypeError(
            f"a and b are multiplied as {x.dtype}, which has no kernel: convert them with astype('float32')"
        )
    check_words(precision, "classical")  # here: JAX makes another error of what a callback raises
    shapes = combine_shapes(x.shape, y.shape)
    x, y = x[None] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y
    axes = len(shapes.batch)  # as many for both, so that a mapped axis can be put in front of them
    x, y = (z.reshape((1,) * (axes + 2 - z.ndim) + z.shape) for z in (x, y))
    return _product(x, y, precision).reshape(shapes.result)


def promoted_arrays(a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands as arrays of the dtype to which JAX promotes them. Raises DTypeError if JAX promotes them to no
    dtype, and OperandError for operands that are arrays neither of JAX nor of NumPy."""
    x, y = _array(a, "a"), _array(b, "b")
    try:
        dtype = jnp.result_type(x, y)
    except (TypeError, ValueError):
        raise DTypeError(
            f"a is {x.dtype}, b is {y.dtype}: JAX promotes them to no dtype; convert one of them"
        ) from None
    return x.astype(dtype), y.astype(dtype)


def _array(x: Any, name: str) -> Any:
    if isinstance(x, jax.Array):
        return x
    if library_by_type(x) is not None:
        kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"
        raise OperandError(f"{name} is a {kind} beside an array of JAX: pass jax.numpy.from_dlpack({name})")
    return jnp.asarray(admit(x, name))


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
