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

__all__ = ["Linear", "einsum", "gram", "grouped_matmul", "matmul", "replace_linear"]

#: The devices on which we multiply; of others, such as "meta", PyTorch refuses to tell whether autocast is on.
_AUTOCAST = ("cpu", "cuda")


def matmul(a: torch.Tensor, b: torch.Tensor, *, precision: str | float = "standard") -> torch.Tensor:
    """The product of two tensors, with gradients; shapes are those of ``torch.matmul``.

    Inside ``torch.autocast`` both operands are rounded to its dtype first, except float64, as ``torch.matmul``
    does; ``tilewright.matmul`` multiplies what it gets.

    Parameters
    ----------
    a : Tensor of shape (…, m, k) or (k,)
        The left operand, on the host or a GPU.
    b : Tensor of shape (…, k, n) or (k,)
        The right operand, on the same device.
    precision : str or float, default: "standard"
        The error that is promised: see ``matmul``. It holds for the gradients, too.

    Returns
    -------
    Tensor of shape (…, m, n)
        The product, without the axis that was added to a vector.

    Raises
    ------
    TilewrightError
        What ``tilewright.matmul`` raises.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> a = torch.tensor([[1., 2.]], requires_grad=True)
    >>> tilewright.torch.matmul(a, torch.eye(2)).sum().backward()
    >>> a.grad
    tensor([[1., 1.]])
    """
    return product(_by_autocast(a), _by_autocast(b), precision)


def grouped_matmul(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    """``tilewright.grouped_matmul`` of tensors, with gradients.

    Inside ``torch.autocast`` it has its dtype, as ``matmul``.

    Parameters
    ----------
    a : Tensor of shape (m, k) or (G, m, k)
        The left operand.
    b : Tensor of shape (k, n) or (G, k, n)
        The right operand.
    offsets : integer Tensor of shape (G,), optional
        The end of each group. On a GPU it is an int32 array there.

    Returns
    -------
    Tensor of shape (m, n) or (G, m, n)
        The products.

    Raises
    ------
    TilewrightError
        What ``tilewright.grouped_matmul`` raises.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> tokens, experts = torch.ones(3, 2), torch.stack([torch.eye(2), 10 * torch.eye(2)])
    >>> tilewright.torch.grouped_matmul(tokens, experts, torch.tensor([1, 3], dtype=torch.int32))
    tensor([[ 1.,  1.],
            [10., 10.],
            [10., 10.]])
    """
    return grouped_product(_by_autocast(a), _by_autocast(b), offsets)


def einsum(subscripts: str, *operands: torch.Tensor, precision: str | float = "standard") -> torch.Tensor:
    """``tilewright.einsum`` of tensors, with gradients of every order.

    PyTorch permutes and reshapes the operands, as views where it can, and ``matmul`` multiplies two of them at a
    time. Inside ``torch.autocast`` it has its dtype, as ``matmul``.

    Parameters
    ----------
    subscripts : str
        The labels of the axes, such as "ij,jk->ik".
    *operands : Tensor
        The tensors, on one device.
    precision : str or float, default: "standard"
        The error that is promised: see ``matmul``. It holds for each product of two operands.

    Returns
    -------
    Tensor
        The contraction.

    Raises
    ------
    TilewrightError
        What ``tilewright.einsum`` raises.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> a = torch.ones(2, 3, requires_grad=True)
    >>> tilewright.torch.einsum("ij,kj->ik", a, torch.eye(3)).sum().backward()
    >>> a.grad
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    return einsum_of_arrays(subscripts, *map(_by_autocast, operands), precision=precision)


def gram(a: torch.Tensor, *, rows: bool = False) -> torch.Tensor:
    """``tilewright.gram`` of a tensor, with gradients: aᴴ·a, or a·aᴴ with ``rows``.

    One triangle is computed, on a GPU where a kernel can. The gradient is one product, a·(G + Gᴴ) or (G + Gᴴ)·a, of
    the sum of the result's gradient G and its conjugate transpose. Inside ``torch.autocast`` it has its dtype, as
    ``matmul``.

    Parameters
    ----------
    a : Tensor of shape (…, m, n)
        The matrix, or a batch of them.
    rows : bool, default: False
        Whether to multiply rows: A·Aᴴ.

    Returns
    -------
    Tensor of shape (…, n, n), or (…, m, m) with ``rows``
        The Gram matrix.

    Raises
    ------
    TilewrightError
        What ``tilewright.gram`` raises.

    Examples
    --------
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
    """``torch.nn.Linear`` whose products, forward and backward, are Tilewright's.

    It has the same parameters and ``state_dict``. The weight is read as it is, and its gradient has its layout. The
    bias is added in its own dtype to sums that are not rounded yet, also inside of autocast.

    Parameters
    ----------
    in_features : int
        The length of each input row.
    out_features : int
        The length of each output row.
    bias : bool, default: True
        Whether to add a bias.
    device : torch.device or str, optional
        Where the parameters are.
    dtype : torch.dtype, optional
        The dtype of the parameters.
    invariant : bool, default: False
        Whether a row of the result has the same bits whichever rows are computed with it: see ``matmul``.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> tilewright.torch.Linear(4, 3)(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """

    invariant = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        invariant: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.invariant = invariant

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's result: ``input``·weightᵀ + bias.

        Parameters
        ----------
        input : Tensor of shape (…, in_features)
            The rows.

        Returns
        -------
        Tensor of shape (…, out_features)
            A row for each of them.
        """
        weight = _by_autocast(self.weight)  # before it is transposed: so its gradient is rounded row by row
        precision = INVARIANT if self.invariant else "standard"
        return product(_by_autocast(input), weight.t(), precision, self.bias)


def replace_linear(model: torch.nn.Module, *, invariant: bool = False) -> torch.nn.Module:
    """Make every ``torch.nn.Linear`` of a model a ``Linear``, in place.

    Parameters, hooks and the optimizer's references stay. Subclasses of ``torch.nn.Linear``, which may compute
    something else, are left.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    invariant : bool, default: False
        Whether the layers are invariant: see ``Linear``.

    Returns
    -------
    torch.nn.Module
        ``model`` itself.

    Examples
    --------
    >>> import torch, tilewright.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> type(tilewright.torch.replace_linear(model)[0])
    <class 'tilewright.torch.Linear'>
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__, module.invariant = Linear, invariant
    return model
