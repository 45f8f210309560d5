"""Gram matrices of PyTorch's tensors, with gradients."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "muon_step.py"


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
def test_values_and_gradients(dtype: torch.dtype, rows: bool) -> None:
    for shape in [(100, 70), (3, 20, 90)]:
        a, b = (torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        a.requires_grad_(), b.requires_grad_()
        found, expected = tt.gram(a, rows=rows), b @ b.mH if rows else b.mH @ b
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found, found.mH.resolve_conj())
        weights = torch.randn(expected.shape, dtype=dtype)
        (found * weights).real.sum().backward()
        (expected * weights).real.sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients() -> None:
    a = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(tt.gram, a)


def test_tensors_without_gradients() -> None:
    for dtype in (torch.float32, torch.complex64, torch.bfloat16, torch.int64):
        a = (4 * torch.randn(80, 30)).to(dtype)
        found = tw.gram(a)
        assert (type(found), found.dtype) == (torch.Tensor, dtype)
        wide = a.to(torch.complex128 if dtype.is_complex else torch.float64)
        tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(found.to(wide.dtype), wide.mH @ wide, rtol=tolerance, atol=tolerance)
        assert torch.equal(found, found.mH.resolve_conj())


def test_an_optimiser_step() -> None:
    muon: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    gradient = torch.randn(90, 200, generator=torch.Generator().manual_seed(2))
    for given in (gradient, gradient.mT.contiguous()):
        torch.testing.assert_close(
            muon["orthogonalised"](given), muon["orthogonalised_by_torch"](given), rtol=1e-3, atol=1e-4
        )
