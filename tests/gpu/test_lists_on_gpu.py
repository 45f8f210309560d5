"""Lists of products of PyTorch's tensors on a real GPU: ragged, scattered, repeated, captured, with ``out``."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu

#: (m, k, n) of a list, among them an empty one and one of an odd width.
RAGGED = [(64, 128, 96), (1, 128, 96), (130, 128, 33), (0, 128, 96), (257, 64, 8), (16, 1, 16)]


def operands(torch: Any, shapes: list[tuple[int, int, int]], dtype: str) -> tuple[list[Any], list[Any], list[Any]]:
    """A, B and the product, of integers so small that each dtype holds the sums exactly."""

    def whole(rows: int, columns: int) -> Any:
        return torch.randint(-1, 2, (rows, columns), device="cuda").to(getattr(torch, dtype))

    a, b = [whole(m, k) for m, k, _ in shapes], [whole(k, n) for _, k, n in shapes]
    return a, b, [(x.double() @ y.double()).to(x.dtype) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shapes", [RAGGED, [(m, 64, 72) for m in (5, 300, 1, 64)] * 32, [(48, 40, 56)] * 600], ids=len)
def test_each_product_of_a_list(torch: Any, shapes: Any, dtype: str) -> None:
    for _ in range(3):  # the third time by machine code
        a, b, right = operands(torch, shapes, dtype)
        assert all(map(torch.equal, tw.matmul(a, b), right))
        assert all(map(torch.equal, tw.matmul(a, [y.T.contiguous().T for y in b]), right))


def test_products_go_where_out_says(torch: Any) -> None:
    a, b, right = operands(torch, RAGGED, "float32")
    out = [torch.full_like(c, float("nan")) for c in right]
    assert all(x is y for x, y in zip(tw.matmul(a, b, out=out), out, strict=True))
    assert all(map(torch.equal, out, right))


def test_a_list_is_captured_in_a_graph(torch: Any) -> None:
    a, b, right = operands(torch, RAGGED[:3] * 8, "bfloat16")
    tw.matmul(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tw.matmul(a, b)
    for x in a:
        x.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(c, -r) for c, r in zip(found, right, strict=True))
