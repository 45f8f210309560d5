"""``tilewright::matmul``, an operator of PyTorch that has a gradient, and that ``torch.compile`` traces without a
break.

There are three paths to a product. An eager product calls no operator of PyTorch. If a gradient is recorded or
``torch.func`` transforms the product, the eager product runs inside ``RecordedProduct``. A traced product becomes a
node of a graph. The node is ``tilewright::matmul`` for the product as the program states it, and
``tilewright::product`` for each product after differentiation. ``tilewright::product`` has no gradient and does as
little as possible, because compiled graphs call it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...errors import DTypeError, OperandError, ShapeError, UsageError
from ...product.epilogue import Epilogue
from ...product.problem import combine_shapes
from .buffers import host_product
from .matmul import matmul_on_gpu
from .repeated import short_ways

_library = torch.library.Library("tilewright", "DEF")
# Any strides will do. Otherwise compiled code lays operands anew as they were traced, and of what is also kept for the
# gradient there are two copies.
for _name in ("matmul", "product"):
    _library.define(
        f"{_name}(Tensor a, Tensor b, str precision='standard', Tensor? bias=None) -> Tensor",
        tags=(torch.Tag.flexible_layout,),
    )
#: Dtypes of results, and of biases, for which a kernel on a GPU adds the bias.
_WITH_BIAS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_operator, _node = torch.ops.tilewright.matmul.default, torch.ops.tilewright.product.default


def product(a: Tensor, b: Tensor, precision: str | float = "standard", bias: Tensor | None = None) -> Tensor:
    """The product of two tensors on the host or on one GPU, as a tensor on the same device. Gradients of every order
    are recorded. The product has the dtype to which both operands are promoted. ``bias`` has one number for each column
    of the product, which is added to that column.

    >>> product(torch.eye(2), torch.tensor([[1., 2.], [3., 4.]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    precision = str(precision)  # as an operator of PyTorch takes it, which has one type for each argument
    if torch.compiler.is_compiling():
        return _operator(a, b, precision, bias)
    try:
        return _differentiable(a, b, precision, bias)
    except Exception:  # looked at only now: each look at a tensor takes as long as a part of the call
        check_tensor(a, "a")
        check_tensor(b, "b")
        raise


def check_tensor(x: Any, name: str) -> None:
    """Raise OperandError for an operand ``name`` that is not a tensor of numbers in memory. The message says how to
    make such a tensor."""
    if not isinstance(x, Tensor):
        kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}".removeprefix("builtins.")
        rule = "a tensor is multiplied by a tensor, as in PyTorch"
        raise OperandError(f"{name} is a {kind}: {rule}; pass torch.as_tensor({name})")
    kind, step = "", ""
    if x.is_nested:
        kind, step = "nested tensor", f"multiply those of {name}.unbind()"
    elif x.layout is not torch.strided:
        kind, step = f"tensor of layout {x.layout}", f"pass {name}.to_dense()"
    elif x.is_quantized:
        kind, step = "quantized tensor", f"pass {name}.dequantize()"
    elif x.device.type not in ("cpu", "cuda", "meta"):
        kind, step = f"tensor on {x.device}, for which there are no kernels", f"pass {name}.cpu()"
    if kind:
        raise OperandError(f"{name} is a {kind}: {step}")


def _differentiable(a: Tensor, b: Tensor, precision: str | float = "standard", bias: Tensor | None = None) -> Tensor:
    if _is_transformed(a) or _is_transformed(b) or (bias is not None and _is_transformed(bias)):
        c = RecordedProduct.apply(a, b, precision, None)
        return c if bias is None else c + bias.to(c.dtype)
    recorded = a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and recorded:
        return _recorded(a, b, precision, bias)
    if _is_traced(a) or _is_traced(b):
        return _node(a, b, precision, bias)
    return _multiply(a, b, precision, bias)


def compiled_matmul(a: Any, b: Any, precision: str | float, *given: str) -> Any:
    """``tilewright.matmul`` in compiled code: the product of tensors is a tensor, that of NumPy arrays an array.

    Raises UsageError if ``given`` names arguments that only an eager call takes.
    """
    if given:
        raise UsageError(f"{given[0]}: inside torch.compile matmul takes a, b and precision alone; call it outside")
    result = product(torch.as_tensor(a), torch.as_tensor(b), precision)
    return result if isinstance(a, Tensor) or isinstance(b, Tensor) else result.numpy()


def _is_traced(x: Tensor) -> bool:
    """Whether PyTorch dispatches operations on ``x`` to other code, because ``x`` belongs to a subclass or a dispatch
    mode is active."""
    plain = type(x) is Tensor or type(x) is torch.nn.Parameter
    return not plain or torch._C._len_torch_dispatch_stack() > 0


def _is_transformed(x: Tensor) -> bool:
    """Whether ``x`` is an operand within ``torch.func``, or may have a tangent of forward differentiation."""
    if torch.autograd.forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        return True
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


# ---- the numbers -----------------------------------------------------------------------------------------------------


def _multiply(a: Tensor, b: Tensor, precision: str | float, bias: Tensor | None = None) -> Tensor:
    if isinstance(precision, str) and precision[:1].isdigit():
        precision = float(precision)
    if a.is_cuda and bias is not None:
        known = bias.dtype in _WITH_BIAS and torch.promote_types(a.dtype, b.dtype) in _WITH_BIAS
        if known and min(a.dim(), b.dim()) > 1:
            return matmul_on_gpu(a, b, None, precision, epilogue=Epilogue(bias=bias))
        c = _multiply(a, b, precision)
        return c + bias.to(c.dtype)
    if a.is_cuda:
        way = short_ways.get(type(a)) if precision == "standard" else None
        c = None if way is None else way(a, b, None)
        return matmul_on_gpu(a, b, None, precision) if c is None else c
    if a.device != b.device:
        raise OperandError(f"a is on {a.device}, b on {b.device}: move one to the other")
    if a.device.type != "cpu":  # a tensor without memory, or of a device for which PyTorch says that we have no kernel
        return _node(a, b, precision, bias)
    x, y = as_numpy(a, "a", precision), as_numpy(b, "b", precision)
    dtype = promoted_dtype(a, b)
    c = torch.from_numpy(host_product(x, y, precision))
    return c.to(dtype) if bias is None else (c + bias.to(c.dtype)).to(dtype)


def promoted_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype to which PyTorch promotes both operands. Raises DTypeError if PyTorch promotes them to no dtype."""
    try:
        return torch.promote_types(a.dtype, b.dtype)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise DTypeError(f"a is {a.dtype}, b is {b.dtype}: PyTorch says {reason}; convert one of them") from None


def as_numpy(x: Tensor, name: str, precision: str | float = "standard") -> np.ndarray:
    """The memory of a tensor on the host as a NumPy array. For bfloat16, which NumPy does not have, the result is a
    copy in a wider dtype.

    Raises DTypeError for a tensor that NumPy cannot read.
    """
    x = x.detach().resolve_conj().resolve_neg()
    if x.dtype is torch.bfloat16:
        x = x.double() if precision == "highest" else x.float()
    try:
        return x.numpy()
    except (TypeError, RuntimeError) as error:
        if x.is_floating_point():
            step = f"no kernel of the host multiplies it; pass {name}.float(), which is exact"
        else:
            step = str(error).splitlines()[0]
        raise DTypeError(f"{name} is a tensor of {x.dtype}: {step}") from None


def _as_node(a: Tensor, b: Tensor, precision: str | float = "standard", bias: Tensor | None = None) -> Tensor:
    """The product as a node of a graph computes it: the result is row-major, as ``_described`` promises."""
    return _multiply(a, b, precision, bias).contiguous()


def _described(a: Tensor, b: Tensor, precision: str | float = "standard", bias: Tensor | None = None) -> Tensor:  # noqa: ARG001
    """A tensor with the shape, dtype and strides of the product, without values."""
    if not (a.dim() and b.dim()):
        raise ShapeError("a and b need at least one axis each: for scalars use *")
    k = b.shape[-2] if b.dim() > 1 else b.shape[0]
    torch._check(a.shape[-1] == k, lambda: f"k mismatch: a is {tuple(a.shape)}, b is {tuple(b.shape)}")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.dim() > 1 else ()
    return a.new_empty((*batch, *rows, *columns), dtype=torch.promote_types(a.dtype, b.dtype))


# ---- the gradient ----------------------------------------------------------------------------------------------------


class _GradientShape(NamedTuple):
    """What the gradient of an operand must look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    #: Whether the rows of a matrix follow each other more closely than its columns, as in the transpose of a weight.
    is_column_major: bool

    @classmethod
    def of(cls, x: Tensor) -> _GradientShape:
        return cls(x.shape, x.dtype, x.dim() == 2 and x.stride(0) == 1 and x.stride(1) != 1)


def _fitted(gradient: Tensor, like: _GradientShape, added: int) -> Tensor:
    """A gradient in the shape and dtype of its operand. ``added`` is the axis that was added to an operand that is a
    vector."""
    if len(like.shape) == 1:
        gradient = gradient.squeeze(added)
    return gradient.sum_to_size(like.shape).to(like.dtype)


def _conjugate(x: Tensor) -> Tensor:
    return x.conj().resolve_conj()


def _adjoint(x: Tensor) -> Tensor:
    return _conjugate(x).mT


def _mapped(info: Any, axes: tuple[Any, ...], a: Tensor, b: Tensor, precision: str | float, _: None) -> Any:  # noqa: ARG001
    """``torch.vmap``: the mapped axis becomes the first axis of the batch. There is no bias in transformed products."""
    is_row, is_column = (x.dim() - (axis is not None) == 1 for x, axis in zip((a, b), axes, strict=False))
    a, b = (x.unsqueeze(0) if axis is None else x.movedim(axis, 0) for x, axis in zip((a, b), axes, strict=False))
    a, b = a.unsqueeze(-2) if is_row else a, b.unsqueeze(-1) if is_column else b
    axes_needed = max(a.dim(), b.dim())
    a, b = (x.reshape(x.shape[0], *(1,) * (axes_needed - x.dim()), *x.shape[1:]) for x in (a, b))
    c = product(a, b, precision)
    c = c.squeeze(-1) if is_column else c
    return c.squeeze(-1 if is_column else -2) if is_row else c, 0


class RecordedProduct(torch.autograd.Function):
    """A product whose gradient is recorded, or which ``torch.func`` transforms."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, precision: str | float, bias: Tensor | None) -> Tensor:
        """The product. No gradient of this computation is recorded, but a trace or an outer transformation may record
        the computation."""
        return _differentiable(a, b, precision, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the operands for the tangent; for the gradients, save only the operands that a gradient needs."""
        a, b, ctx.precision, bias = inputs
        of_a, of_b = ctx.needs_input_grad[:2]
        ctx.bias = None if bias is None else _GradientShape.of(bias)
        ctx.operands = _GradientShape.of(a), _GradientShape.of(b)
        ctx.save_for_backward(a if of_b else None, b if of_a else None)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> Any:
        """The gradients of the operands, C·Bᴴ and Aᴴ·C for the gradient C of the product, summed over axes that were
        broadcast; and the gradient of the bias, the sums of columns."""
        (a, b), (like_a, like_b) = ctx.saved_tensors, ctx.operands
        of_bias = None
        if ctx.bias is not None and ctx.needs_input_grad[3]:
            of_bias = c.flatten(0, -2).sum(0, dtype=ctx.bias.dtype) if c.dim() > 1 else c.to(ctx.bias.dtype)
        if len(like_b.shape) == 1:
            c, b = c.unsqueeze(-1), None if b is None else b.unsqueeze(-1)
        if len(like_a.shape) == 1:
            c, a = c.unsqueeze(-2), None if a is None else a.unsqueeze(-2)
        of_a = None if b is None else _fitted(product(c, _adjoint(b), ctx.precision), like_a, -2)
        if a is None:
            return of_a, None, None, of_bias
        if len(like_b.shape) <= 2:  # one matrix for the whole batch: the sum over the batch is part of k
            a, c = a.flatten(0, -2), c.flatten(0, -2)
        if like_b.is_column_major:
            of_b = product(c.mT, _conjugate(a), ctx.precision).mT
        else:
            of_b = product(_adjoint(a), c, ctx.precision)
        return of_a, _fitted(of_b, like_b, -1), None, of_bias

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> Tensor | None:
        """The tangent of the product: dA·B + A·dB."""
        a, b = ctx.saved_tensors
        terms = [product(x, y, ctx.precision) for x, y in ((da, b), (a, db)) if x is not None and y is not None]
        return sum(terms[1:], terms[0]) if terms else None

    vmap = staticmethod(_mapped)


#: ``RecordedProduct.apply`` outside of transformations, without its search for default arguments, which takes longer than
#: all the rest.
_recorded = super(torch.autograd.Function, RecordedProduct).apply


# ---- what PyTorch asks of an operator ----------------------------------------------------------------------------------


def _flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """The number of operations for ``torch.utils.flop_counter``: a multiplication and an addition count as two."""
    shapes = combine_shapes(tuple(a), tuple(b))
    return 2 * math.prod(shapes.batch) * shapes.m * shapes.n * shapes.k


_library.impl("matmul", _differentiable, "CompositeImplicitAutograd")
for _device in ("CPU", "CUDA"):
    _library.impl("product", _as_node, _device)
torch.library.register_fake("tilewright::product", _described, lib=_library)
register_flop_formula(torch.ops.tilewright.product)(_flops)
