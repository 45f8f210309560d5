"""Products in PyTorch programs: ``matmul``, ``einsum`` and others for tensors, and ``Linear``, which replaces
``torch.nn.Linear``.

The functions have gradients of every order, ``torch.compile`` keeps each product as one node of its graph, and autocast
has the same effect on the functions as on ``torch.matmul``. This module needs PyTorch 2.4 or later.
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
    """The product of two tensors, with gradients and the shapes of ``torch.matmul``.

    Inside ``torch.autocast`` both operands are first rounded to autocast's dtype, as by ``torch.matmul``; operands of
    float64 are not rounded. ``tilewright.matmul`` ignores autocast.

    Parameters
    ----------
    a : Tensor of shape (…, m, k) or (k,)
        The left operand, on the host or a GPU.
    b : Tensor of shape (…, k, n) or (k,)
        The right operand, on the same device.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for the gradients, too.

    Returns
    -------
    Tensor of shape (…, m, n)
        The product. If an operand is a vector, the axis that was added to it is removed from the result.

    Raises
    ------
    TilewrightError
        Any error that ``tilewright.matmul`` raises.

    See Also
    --------
    tilewright.matmul : Takes tensors too, with more options, and ignores autocast.
    tilewright.torch.Linear : A layer whose products are computed by this function.
    tilewright.torch.einsum : Contracts tensors.

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

    Inside ``torch.autocast`` the operands are first rounded to autocast's dtype, as by ``matmul``.

    Parameters
    ----------
    a : Tensor of shape (m, k) or (G, m, k)
        The left operand.
    b : Tensor of shape (k, n) or (G, k, n)
        The right operand.
    offsets : integer Tensor of shape (G,), optional
        The end of each group. For operands on a GPU, ``offsets`` must be an int32 tensor on that GPU.

    Returns
    -------
    Tensor of shape (m, n) or (G, m, n)
        The products.

    Raises
    ------
    TilewrightError
        Any error that ``tilewright.grouped_matmul`` raises.

    See Also
    --------
    tilewright.grouped_matmul : Has more options, and ignores autocast.
    tilewright.torch.matmul : Multiplies two tensors.

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

    PyTorch permutes and reshapes the operands (as views where that is possible), and ``matmul`` multiplies two of them
    at a time. Inside ``torch.autocast`` the operands are first rounded to autocast's dtype, as by ``matmul``.

    Parameters
    ----------
    subscripts : str
        The labels of the axes, such as "ij,jk->ik".
    *operands : Tensor
        The tensors, all on one device.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for each product of two operands.

    Returns
    -------
    Tensor
        The contraction.

    Raises
    ------
    TilewrightError
        Any error that ``tilewright.einsum`` raises.

    See Also
    --------
    tilewright.einsum : Has more options, and ignores autocast.
    tilewright.torch.matmul : Multiplies two tensors.

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
    """``tilewright.gram`` of a tensor, with gradients: aᴴ·a, or with ``rows`` a·aᴴ.

    Only one triangle of the result is computed, except on GPUs that have no kernel for one triangle. To compute the
    gradient of ``a``, one more product is needed: a·(G + Gᴴ), or with ``rows`` (G + Gᴴ)·a, where G is the gradient of
    the result. Inside ``torch.autocast`` the tensor is first rounded to autocast's dtype, as by ``matmul``.

    Parameters
    ----------
    a : Tensor of shape (…, m, n)
        The matrix, or a batch of matrices.
    rows : bool, default: False
        Whether to multiply rows: A·Aᴴ.

    Returns
    -------
    Tensor of shape (…, n, n), or (…, m, m) with ``rows``
        The Gram matrix.

    Raises
    ------
    TilewrightError
        Any error that ``tilewright.gram`` raises.

    See Also
    --------
    tilewright.gram : Has more options, and ignores autocast.
    tilewright.torch.matmul : Multiplies two tensors.

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
    """A ``torch.nn.Linear`` whose forward and backward products are computed by Tilewright.

    The layer has the same parameters and ``state_dict`` as ``torch.nn.Linear``. The weight is not copied, and the
    gradient of the weight has the memory layout of the weight. The bias is added before the sums are rounded, and the
    bias itself is not rounded to autocast's dtype.

    Parameters
    ----------
    in_features : int
        The length of each input row.
    out_features : int
        The length of each output row.
    bias : bool, default: True
        Whether to add a bias.
    device : torch.device or str, optional
        The device of the parameters.
    dtype : torch.dtype, optional
        The dtype of the parameters.
    invariant : bool, default: False
        Whether each row of the result has the same bits, whichever other rows are computed with it: see ``matmul``.

    See Also
    --------
    tilewright.torch.replace_linear : Converts the layers of a model.
    tilewright.torch.matmul : Multiplies two tensors.

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
        """The result of the layer: ``input``·weightᵀ + bias.

        Parameters
        ----------
        input : Tensor of shape (…, in_features)
            The rows.

        Returns
        -------
        Tensor of shape (…, out_features)
            One row for each row of the input.
        """
        weight = _by_autocast(self.weight)  # before it is transposed: so its gradient is rounded row by row
        precision = INVARIANT if self.invariant else "standard"
        return product(_by_autocast(input), weight.t(), precision, self.bias)


def replace_linear(model: torch.nn.Module, *, invariant: bool = False) -> torch.nn.Module:
    """Convert every ``torch.nn.Linear`` of a model to ``tilewright.torch.Linear``, in place.

    The layers keep their parameters and hooks, so an optimizer's references stay valid. Subclasses of
    ``torch.nn.Linear`` are not converted, because subclasses may compute something else than ``torch.nn.Linear``.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    invariant : bool, default: False
        Whether the products of the layers are invariant: see ``Linear``.

    Returns
    -------
    torch.nn.Module
        ``model`` itself.

    See Also
    --------
    tilewright.torch.Linear : The class of the new layers.

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
