"""Products in programs of PyTorch: ``matmul`` and ``einsum`` of tensors, and ``Linear`` in place of
``torch.nn.Linear``.

Gradients of every order are recorded, ``torch.compile`` keeps a product as one node of its graph, and autocast
applies as to ``torch.matmul``. PyTorch 2.4 or later is needed.
"""

from __future__ import annotations

from typing import Any

import torch

from .api.contraction import einsum as einsum_of_arrays
from .api.symmetric import gram as gram_of_arrays
from .gpu.arrays.torch_grouped import grouped_product
from .gpu.arrays.torch_operator import product
from .product.precision import INVARIANT

#: The devices on which we multiply; of others, such as "meta", PyTorch refuses to tell whether autocast is on.
_AUTOCAST = ("cpu", "cuda")


def matmul(a: torch.Tensor, b: torch.Tensor, *, precision: str | float = "standard") -> torch.Tensor:
    """The product of two tensors on one device, the host or a GPU, as a tensor; shapes are those of ``torch.matmul``.

    ``precision`` is that of ``tilewright.matmul``, also for the gradients. Inside ``torch.autocast`` both operands are
    rounded to its dtype first, except float64, as ``torch.matmul`` does; ``tilewright.matmul`` multiplies what it gets.

    Raises what ``tilewright.matmul`` raises.

    >>> import torch, tilewright.torch
    >>> a = torch.tensor([[1., 2.]], requires_grad=True)
    >>> tilewright.torch.matmul(a, torch.eye(2)).sum().backward()
    >>> a.grad
    tensor([[1., 1.]])
    """
    return product(_by_autocast(a), _by_autocast(b), precision)


def grouped_matmul(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    """``tilewright.grouped_matmul`` of tensors, with gradients; inside ``torch.autocast`` in its dtype, as ``matmul``.

    Raises what ``tilewright.grouped_matmul`` raises.

    >>> import torch, tilewright.torch
    >>> tokens, experts = torch.ones(3, 2), torch.stack([torch.eye(2), 10 * torch.eye(2)])
    >>> tilewright.torch.grouped_matmul(tokens, experts, torch.tensor([1, 3], dtype=torch.int32))
    tensor([[ 1.,  1.],
            [10., 10.],
            [10., 10.]])
    """
    return grouped_product(_by_autocast(a), _by_autocast(b), offsets)


def einsum(subscripts: str, *operands: torch.Tensor, precision: str | float = "standard") -> torch.Tensor:
    """``tilewright.einsum`` of tensors, with gradients of every order; inside ``torch.autocast`` in its dtype, as
    ``matmul``.

    PyTorch permutes and reshapes the operands, as views where it can, and ``matmul`` multiplies two of them at a time.

    Raises what ``tilewright.einsum`` raises.

    >>> import torch, tilewright.torch
    >>> a = torch.ones(2, 3, requires_grad=True)
    >>> tilewright.torch.einsum("ij,kj->ik", a, torch.eye(3)).sum().backward()
    >>> a.grad
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    return einsum_of_arrays(subscripts, *map(_by_autocast, operands), precision=precision)


def gram(a: torch.Tensor, *, rows: bool = False) -> torch.Tensor:
    """``tilewright.gram`` of a tensor (…, m, n), with gradients: aᴴ·a, or a·aᴴ with ``rows``. One triangle is computed, on a
    GPU where a kernel can. The gradient is one product, a·(G + Gᴴ) or (G + Gᴴ)·a, of the sum of the result's gradient G and
    its conjugate transpose. Inside ``torch.autocast`` it has its dtype, as ``matmul``.

    Raises what ``tilewright.gram`` raises.

    >>> import torch, tilewright.torch
    >>> a = torch.tensor([[1., 2.]], requires_grad=True)
    >>> c = tilewright.torch.gram(a)
    >>> c.sum().backward()
    >>> c.detach(), a.grad
    (tensor([[1., 2.],
            [2., 4.]]), tensor([[6., 6.]]))
    """
    return _Gram.apply(_by_autocast(a), rows)


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, rows: bool) -> torch.Tensor:
        ctx.save_for_backward(a)
        ctx.rows = rows
        return gram_of_arrays(a.detach(), rows=rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (a,) = ctx.saved_tensors
        both = gradient + gradient.mH
        return (product(both, a) if ctx.rows else product(a, both)), None


def _by_autocast(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype in which autocast multiplies it."""
    if not isinstance(x, torch.Tensor):
        return x  # refused later
    device = x.device.type
    if device not in _AUTOCAST or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device)) if x.is_floating_point() and x.dtype is not torch.float64 else x


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` whose products, forward and backward, are Tilewright's: the same constructor, parameters
    and ``state_dict``. The weight is read as it is, and its gradient has its layout. The bias is added in its own
    dtype to sums that are not rounded yet, also inside of autocast. With ``invariant`` a row of the result has the
    same bits whichever rows are computed with it, as ``tilewright.matmul`` says.

    >>> import torch, tilewright.torch
    >>> tilewright.torch.Linear(4, 3)(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """

    invariant = False

    def __init__(self, *args: Any, invariant: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.invariant = invariant

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(…, in_features) to (…, out_features)."""
        weight = _by_autocast(self.weight)  # before it is transposed: so its gradient is rounded row by row
        precision = INVARIANT if self.invariant else "standard"
        return product(_by_autocast(input), weight.t(), precision, self.bias)


def replace_linear(model: torch.nn.Module, *, invariant: bool = False) -> torch.nn.Module:
    """Make every ``torch.nn.Linear`` of a model a ``Linear``, in place, which is ``invariant`` or not; returns the
    model.

    Parameters, hooks and the optimizer's references stay. Subclasses of ``torch.nn.Linear``, which may compute
    something else, are left.

    >>> import torch, tilewright.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> type(tilewright.torch.replace_linear(model)[0])
    <class 'tilewright.torch.Linear'>
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__, module.invariant = Linear, invariant
    return model
