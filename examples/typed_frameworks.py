"""Show what a type checker knows about products of PyTorch tensors and of JAX arrays: they are tensors and JAX arrays.

    python examples/typed_frameworks.py
    mypy --strict examples/typed_frameworks.py

The script needs PyTorch and JAX. The type checker reports an error at an `assert_type` if the type is not the stated one.
"""

from typing import assert_type

import jax
import numpy as np
import torch

import tilewright as tw
import tilewright.jax
import tilewright.torch


def tensors() -> None:
    """PyTorch."""
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    c = assert_type(tw.matmul(a, b), torch.Tensor)
    assert isinstance(c, torch.Tensor)
    assert_type(tw.matmul(a, b, precision="highest", bias=torch.ones(4)), torch.Tensor)
    assert_type(tw.matmul(a, b, out=torch.empty(2, 4)), torch.Tensor)
    assert_type(tw.matmul([a], [b]), list[torch.Tensor])
    assert_type(tw.gram(a), torch.Tensor)
    assert_type(tw.einsum("ij,jk->ik", a, b), torch.Tensor)
    assert_type(tw.multi_dot([a, b]), torch.Tensor)
    assert_type(tw.grouped_matmul(a, b, torch.tensor([3], dtype=torch.int32)), torch.Tensor)
    assert_type(tilewright.torch.matmul(a, b), torch.Tensor)
    layer = tilewright.torch.Linear(3, 4, invariant=True)
    assert_type(layer.invariant, bool)


def arrays() -> None:
    """JAX, also with NumPy."""
    a = jax.random.normal(jax.random.key(0), (2, 3))
    b = np.ones((3, 4), np.float32)
    c = assert_type(tw.matmul(a, b), jax.Array)
    assert isinstance(c, jax.Array)
    assert_type(tw.matmul(b.T, a.T), jax.Array)
    assert_type(tilewright.jax.matmul(a, b), jax.Array)


def main() -> None:
    tensors()
    arrays()
    print("all types are true")


if __name__ == "__main__":
    main()
