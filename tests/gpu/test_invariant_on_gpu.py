"""Rows of products on a GPU whose bits follow from that row and from B alone, as PyTorch's tensors ask for them."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.errors import UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("no GPU that PyTorch can use", allow_module_level=True)

import tilewright.torch  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "complex64", "complex128"])
def test_rows_have_the_same_bits_whatever_is_computed_beside_them(dtype: str) -> None:
    kind, generator = getattr(torch, dtype), torch.Generator("cuda").manual_seed(5)
    for m, k, n in ((300, 1000, 712), (1031, 333, 64), (64, 4096, 256)):
        a, b = (torch.randn(shape, device="cuda", generator=generator).to(kind) for shape in ((m, k), (k, n)))
        whole = tw.matmul(a, b, invariant=True)
        assert torch.allclose(whole, a @ b, rtol=0.05, atol=0.05 * k**0.5)
        for first, count in ((0, 1), (m - 1, 1), (7, 9), (m // 2, m // 3)):
            part = a[first : first + count]
            out = torch.empty(n, count, device="cuda", dtype=kind).mT
            for again in (
                tw.matmul(part, b, invariant=True),
                tw.matmul(part.mT.contiguous().mT, b, invariant=True),
                tw.matmul(torch.stack([part, part]), b, invariant=True)[1],
                tw.matmul(part, b, out, invariant=True),
            ):
                assert torch.equal(again, whole[first : first + count])


def test_layers_of_a_model() -> None:
    layer = torch.nn.Linear(512, 384, device="cuda", dtype=torch.bfloat16)
    assert tilewright.torch.replace_linear(torch.nn.Sequential(layer), invariant=True)[0].invariant
    x = torch.randn(700, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        whole = layer(x)
        for rows in (1, 3, 64, 129):
            assert torch.equal(layer(x[:rows]), whole[:rows])
            assert torch.equal(layer(x[-rows:]), whole[-rows:])
    made = tilewright.torch.Linear(8, 4, device="cuda", dtype=torch.float32, invariant=True)
    assert made(torch.ones(2, 8, device="cuda")).shape == (2, 4)


def test_words_that_are_refused() -> None:
    a = torch.ones(64, 64, device="cuda")
    with pytest.raises(UsageError, match="invariant"):
        tw.matmul(a, a, precision="tf32", invariant=True)
