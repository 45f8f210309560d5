"""Products of groups of PyTorch's tensors in the host's memory: numbers, gradients, tracing, autocast."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import OperandError, ShapeError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")

import tilewright.torch as tt  # noqa: E402

#: Shapes for four groups of 12 together, of which an empty one, before a rest.
SHAPES = [((14, 5), (4, 5, 6)), ((4, 7, 5), (5, 14)), ((7, 14), (14, 6))]
ENDS = torch.tensor([3, 3, 10, 12], dtype=torch.int32)


def tensors(shapes: Any, dtype: Any = torch.float64, grad: bool = True) -> Any:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(grad) for shape in shapes]


def right(a: Any, b: Any) -> Any:
    """The same by PyTorch, group by group."""
    groups = [slice(*pair) for pair in pairwise([0, *ENDS.tolist()])]
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, some] @ b[some] for some in groups])
    if b.dim() == 3:
        return torch.cat([*(a[some] @ b[g] for g, some in enumerate(groups)), a.new_zeros(2, b.shape[2])])
    return torch.cat([*(a[g] @ b[:, some] for g, some in enumerate(groups)), a.new_zeros(a.shape[1], 2)], 1)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("product", [tw.grouped_matmul, tt.grouped_matmul], ids=["tw", "tt"])
def test_numbers_and_gradients(product: Any, shapes: Any) -> None:
    a, b = tensors(shapes)
    torch.testing.assert_close(product(a, b, ENDS), right(a, b))
    assert torch.autograd.gradcheck(lambda a, b: product(a, b, ENDS), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: product(a, b, ENDS), (a, b))


def test_a_gradient_lies_as_its_weight() -> None:
    a, w = tensors([(14, 5), (4, 6, 5)])
    tt.grouped_matmul(a, w.mT, ENDS).sum().backward()
    assert w.grad.stride() == w.stride()
    assert not a.grad[12:].any()
    assert not w.grad[1].any()


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_compiled_without_a_break(shapes: Any) -> None:
    a, b = tensors(shapes)
    compiled = torch.compile(
        lambda a, b, ends: tw.grouped_matmul(a, b, ends).sin(), fullgraph=True, backend="aot_eager"
    )
    found, exact = compiled(a, b, ENDS), right(a, b).sin()
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(*(torch.autograd.grad(c.square().sum(), (a, b)) for c in (found, exact)))


def test_other_dtypes_and_out() -> None:
    a, b = tensors(SHAPES[0], torch.bfloat16, grad=False)
    exact = right(a.double(), b.double())
    c = tw.grouped_matmul(a, b, ENDS)
    assert c.dtype is torch.bfloat16
    torch.testing.assert_close(c, exact.bfloat16())
    torch.testing.assert_close(
        tw.grouped_matmul(a, b, ENDS, out_dtype=torch.float32).double(), exact, rtol=1e-5, atol=1e-5
    )
    out = torch.full((14, 6), float("nan"), dtype=torch.bfloat16)
    assert tw.grouped_matmul(a, b, ENDS, out=out) is out
    torch.testing.assert_close(out, exact.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert tt.grouped_matmul(a.float(), b.float(), ENDS).dtype is torch.bfloat16


def test_what_is_refused() -> None:
    a, b = tensors(SHAPES[0])
    for error, text, call in (
        (OperandError, "requires grad", lambda: tw.grouped_matmul(a, b, ENDS, out_dtype="float64")),
        (OperandError, "offsets is a list", lambda: tt.grouped_matmul(a, b, [1, 2])),
        (ShapeError, "must not decrease", lambda: tt.grouped_matmul(a, b, ENDS.flip(0))),
        (OperandError, "must be whole numbers", lambda: tt.grouped_matmul(a, b, ENDS.double())),
        (ShapeError, "k mismatch", lambda: tt.grouped_matmul(a, b.mT, ENDS)),
    ):
        with pytest.raises(error, match=text):
            call()
    compiled = torch.compile(lambda a, b: tw.grouped_matmul(a, b, ENDS, out_dtype="float64"), fullgraph=True)
    with pytest.raises(Exception, match="takes a, b and offsets alone"):  # PyTorch wraps a UsageError
        compiled(a, b)


def test_as_an_operator() -> None:
    a, b = tensors(SHAPES[0], grad=False)
    torch.library.opcheck(torch.ops.tilewright.grouped_product.default, (a, b, ENDS))
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        torch.ops.tilewright.grouped_product(a, b, ENDS)
    assert counter.get_total_flops() == 2 * 14 * 5 * 6
