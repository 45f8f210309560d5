"""Products in JAX programs: ``matmul`` works under ``jax.jit``, ``jax.grad`` and ``jax.vmap``, on the host and on a
GPU.

For each product, a program that JAX has compiled calls Python with the addresses of its buffers. No array is copied to
the host. On a GPU the product is submitted to the program's stream. Each call of Python takes tens of microseconds on
the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gpu.arrays.jax_operator import product_of_arrays

if TYPE_CHECKING:
    import jax
    from jax.typing import ArrayLike

__all__ = ["matmul"]


def matmul(a: ArrayLike, b: ArrayLike, *, precision: str | float = "standard") -> jax.Array:
    """The product of two JAX arrays, with the shapes of ``jax.numpy.matmul``.

    The function works under ``jax.jit``, ``jax.grad`` and ``jax.vmap``.

    Parameters
    ----------
    a : array of shape (…, m, k) or (k,)
        The left operand.
    b : array of shape (…, k, n) or (k,)
        The right operand.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for the gradients, too.

    Returns
    -------
    array of shape (…, m, n)
        A JAX array of the dtype to which the operands are promoted.

    Raises
    ------
    TilewrightError
        Any error that ``tilewright.matmul`` raises.

    See Also
    --------
    tilewright.matmul : Takes JAX arrays too, outside ``jax.jit``, with more options.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, tilewright.jax
    >>> a = jnp.array([[1., 2.]])
    >>> jax.jit(tilewright.jax.matmul)(a, a.T)
    Array([[5.]], dtype=float32)
    >>> jax.grad(lambda a: tilewright.jax.matmul(a, a.T).sum())(a)
    Array([[2., 4.]], dtype=float32)
    """
    return product_of_arrays(a, b, precision)
