"""``einsum`` and what is like it, of PyTorch's tensors in the host's memory: values, gradients, views, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OperandError, ShapeError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")

import tilewright.torch as tt  # noqa: E402

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 3}
CASES = [
    *("ab,bc->ac", "ab,bc->ca", "ab,cb", "abc,cad->bd", "eab,ebc->eac", "abe,ecb->bac", "ab,ab->", "ab,ab->b", "a,b->ba"),
    *("aab->b", "aa", "aa->a", "ab->ba", "abc->b", "ab,bc,cd->ad", "abc,c,a->b", "a,a,a->a", "...ab,bc->...ac"),
    *("a...,b...->...ab", "abcd,aebc->ed", ",ab->ab"),
]  # fmt: skip


def tensors(text: str, dtype: Any = torch.float64, **options: Any) -> list[Any]:
    terms = text.partition("->")[0].split(",")
    generator = torch.Generator().manual_seed(len(text))
    shapes = [[SIZES[label] for label in term.replace("...", "de")] for term in terms]
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(bool(options)) for shape in shapes]


@pytest.mark.parametrize("text", CASES)
def test_values_and_gradients(text: str) -> None:
    operands, others = tensors(text, grad=True), tensors(text, grad=True)
    found, expected = tt.einsum(text, *operands), torch.einsum(text, *others)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for x, y in zip(operands, others, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.int64, torch.float16], ids=str)
def test_every_dtype(dtype: Any) -> None:
    operands = [(4 * x).to(dtype) for x in tensors("abc,cad->bd", torch.float32)]
    found = tw.einsum("abc,cad->bd", *operands)
    assert (type(found), found.dtype) == (torch.Tensor, dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.einsum("abc,cad->bd", *(x.to(wide) for x in operands))
    tolerance = (
        {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-4, "atol": 1e-4}
    )
    torch.testing.assert_close(found.to(wide), exact, **tolerance)


def test_gradients_of_gradients() -> None:
    operands = tensors("ab,bc,cd->ad", grad=True)
    assert torch.autograd.gradgradcheck(lambda *x: tt.einsum("ab,bc,cd->ad", *x), operands)


def test_what_is_like_einsum() -> None:
    a, b = tensors("abc,cbd->ad")
    torch.testing.assert_close(tw.tensordot(a, b, ([1, 2], [1, 0])), torch.tensordot(a, b, ([1, 2], [1, 0])))
    x = torch.randn(3, 4, dtype=torch.complex128)
    torch.testing.assert_close(tw.vecdot(x, x), torch.linalg.vecdot(x, x))
    torch.testing.assert_close(tw.matvec(a, torch.ones(4, dtype=a.dtype)), a.sum(-1))
    torch.testing.assert_close(tw.vecmat(torch.ones(3, dtype=a.dtype), a), a.sum(-2))
    chain = tensors("ab,bc,cd->ad")
    torch.testing.assert_close(tw.multi_dot(chain), torch.linalg.multi_dot(chain))


def test_out_and_errors() -> None:
    a, b = tensors("ab,bc->ac")
    out = torch.empty(2, 4, dtype=a.dtype)
    assert tw.einsum("ab,bc->ac", a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    with pytest.raises(ShapeError, match=r"out is \(4, 2\), the result is \(2, 4\)"):
        tw.einsum("ab,bc->ac", a, b, out=out.T)
    with pytest.raises(UsageError, match="memory bounds intermediate results of NumPy's arrays"):
        tw.einsum("ab,bc->ac", a, b, memory=100)
    with pytest.raises(OperandError, match="plan_einsum plans for NumPy's arrays"):
        tw.plan_einsum("ab,bc->ac", a, b)
    with pytest.raises(OperandError):
        tw.einsum("ab,bc->ac", a, np.ones((3, 4)))


def test_the_result_is_never_a_view() -> None:
    a = torch.ones(3, 3)
    for text in ("ab->ba", "aa->a", "ab->ab"):
        found = tw.einsum(text, a)
        assert found.data_ptr() != a.data_ptr()


def test_compiled_and_transformed_programs() -> None:
    """In one graph, without a warning; and for each element of a batch."""
    a, b = tensors("abc,cad->bd", torch.float32)
    torch._dynamo.reset()
    for einsum in (tt.einsum, tw.einsum):
        compiled = torch.compile(lambda x, y, e=einsum: e("abc,cad->bd", x, y) * 2, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(a, b), 2 * torch.einsum("abc,cad->bd", a, b))
    mapped = torch.func.vmap(lambda x: tw.einsum("bc,cd->bd", x, b[:, 0]))(a)
    torch.testing.assert_close(mapped, torch.einsum("abc,cd->abd", a, b[:, 0]))


def test_autocast_applies() -> None:
    a, b = tensors("ab,bc->ac", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tt.einsum("ab,bc->ac", a, b).dtype is torch.bfloat16
        assert tw.einsum("ab,bc->ac", a, b).dtype is torch.float32
