"""Grouped products as two operators of PyTorch, with gradients, also in ``torch.compile``.

The two operators have the roles of those in ``torch_operator``. In a traced graph, ``tilewright::grouped_matmul`` stands
for the product as the program states it, and ``tilewright::grouped_product``, which has no gradient, stands for each
product of a compiled graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...errors import OperandError
from ...product.problem import Part, checked_ends, combine_grouped_shapes, multiply_groups
from .buffers import host_product
from .groups import grouped_matmul_on_gpu
from .torch_operator import as_numpy, check_tensor, promoted_dtype

_library = torch.library.Library("tilewright", "FRAGMENT")
for _name in ("grouped_matmul", "grouped_product"):
    _library.define(f"{_name}(Tensor a, Tensor b, Tensor? offsets=None) -> Tensor", tags=(torch.Tag.flexible_layout,))
_operator, _node = torch.ops.tilewright.grouped_matmul.default, torch.ops.tilewright.grouped_product.default


def grouped_product(a: Tensor, b: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The grouped product of two tensors on one device, as ``tilewright.grouped_matmul`` describes it. Gradients of
    every order are recorded."""
    if torch.compiler.is_compiling():
        return _operator(a, b, offsets)
    for name, x in {"a": a, "b": b, "offsets": offsets}.items():
        if x is not None:
            check_tensor(x, name)
    return _differentiable(a, b, offsets)


def _differentiable(a: Tensor, b: Tensor, offsets: Tensor | None = None) -> Tensor:
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return RecordedGroups.apply(a, b, offsets)
    traced = (
        any(type(x) not in (Tensor, torch.nn.Parameter) for x in (a, b)) or torch._C._len_torch_dispatch_stack() > 0
    )
    return _node(a, b, offsets) if traced else _multiply(a, b, offsets)


def _multiply(a: Tensor, b: Tensor, offsets: Tensor | None = None) -> Tensor:
    if a.is_cuda:
        return grouped_matmul_on_gpu(a, b, offsets)
    if any(x is not None and x.device != a.device for x in (b, offsets)):
        raise OperandError(f"a is on {a.device}, and others are not: move all to one device")
    if a.device.type != "cpu":
        return _node(a, b, offsets)
    shapes = combine_grouped_shapes(a.shape, b.shape, None if offsets is None else offsets.shape)
    x, y = as_numpy(a, "a"), as_numpy(b, "b")
    dtype = promoted_dtype(a, b)
    if offsets is None:
        return torch.from_numpy(host_product(x, y, "standard")).to(dtype)
    ends = checked_ends(shapes, as_numpy(offsets, "offsets"))
    c = np.empty(shapes.result, host_product(x[..., :0, :0], y[..., :0, :0], "standard").dtype)

    def multiply(of_a: Part, of_b: Part, c: np.ndarray) -> None:
        np.copyto(c, host_product(x[of_a], y[of_b], "standard"))

    multiply_groups(shapes, ends, c, multiply)
    return torch.from_numpy(c).to(dtype)


def _as_node(a: Tensor, b: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The products as a node of a graph computes them: the result is row-major, as ``_described`` promises."""
    return _multiply(a, b, offsets).contiguous()


def _described(a: Tensor, b: Tensor, offsets: Tensor | None = None) -> Tensor:
    """A tensor with the shape, dtype and strides of the result, without values."""
    shapes = combine_grouped_shapes(tuple(a.shape), tuple(b.shape), None if offsets is None else tuple(offsets.shape))
    return a.new_empty(shapes.result, dtype=torch.promote_types(a.dtype, b.dtype))


class RecordedGroups(torch.autograd.Function):
    """A grouped product whose gradient is recorded."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, offsets: Tensor | None) -> Tensor:
        """The product. No gradient of this computation is recorded, but a trace may record the computation."""
        return _differentiable(a, b, offsets)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the operands that a gradient needs."""
        a, b, offsets = inputs
        of_a, of_b = ctx.needs_input_grad[:2]
        ctx.is_column_major = b.stride(-2) == 1 and b.stride(-1) != 1
        ctx.save_for_backward(a if of_b else None, b if of_a else None, offsets)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> Any:
        """The gradients C·Bᵀ and Aᵀ·C, group by group, for the gradient C of the result. The groups divide the same
        axis in these products as in the product itself."""
        a, b, offsets = ctx.saved_tensors
        c = c if 1 in c.stride()[-2:] else c.contiguous()  # one number that is repeated, as the gradient of a sum
        of_a = None if b is None else grouped_product(c, b.mT, offsets)
        if a is None:
            return of_a, None, None
        if ctx.is_column_major:  # the gradient of a weight that is stored transposed has its layout
            return of_a, grouped_product(c.mT, a, offsets).mT, None
        return of_a, grouped_product(a.mT, c, offsets), None


def _flops(a: Any, b: Any, offsets: Any = None, **_: Any) -> int:
    """The number of operations for ``torch.utils.flop_counter``, as if all rows, or all of k, belonged to one group."""
    shapes = combine_grouped_shapes(tuple(a), tuple(b), None if offsets is None else tuple(offsets))
    return 2 * shapes.m * shapes.n * shapes.k * (1 if shapes.grouped_axis else shapes.groups)


_library.impl("grouped_matmul", _differentiable, "CompositeImplicitAutograd")
for _device in ("CPU", "CUDA"):
    _library.impl("grouped_product", _as_node, _device)
torch.library.register_fake("tilewright::grouped_product", _described, lib=_library)
register_flop_formula(torch.ops.tilewright.grouped_product)(_flops)
