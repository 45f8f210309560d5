"""Products of groups of PyTorch's tensors on a real GPU: shapes of models, gradients, captured in a graph."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu


def random_ends(groups: int, total: int, rest: int, seed: int) -> np.ndarray:
    """The ends of groups of random sizes, among them empty ones, before a ``rest``."""
    rng = np.random.default_rng(seed)
    shares = rng.random(groups) * (rng.random(groups) > 0.2) + 1e-9
    return np.cumsum(rng.multinomial(total - rest, shares / shares.sum())).astype(np.int32)


def right(torch: Any, a: Any, b: Any, ends: Any) -> Any:
    """The products in float64."""
    x, y = a.double(), b.double()
    groups = [slice(*pair) for pair in pairwise([0, *map(int, ends)])]
    if x.dim() == y.dim() == 2:
        return torch.stack([x[:, some] @ y[some] for some in groups])
    c = x.new_zeros(x.shape[-2], y.shape[-1])
    for g, some in enumerate(groups):
        if y.dim() == 3:
            c[some] = x[some] @ y[g]
        else:
            c[:, some] = x[g] @ y[:, some]
    return c


def whole(torch: Any, *shape: int, dtype: str = "bfloat16") -> Any:
    """Integers so small that every dtype holds most sums exactly."""
    return torch.randint(-1, 2, shape, device="cuda").to(getattr(torch, dtype))


SHAPES = {
    "m": lambda g, total, k, n: ((total, k), (g, k, n)),
    "n": lambda g, total, k, n: ((g, n, k), (k, total)),
    "k": lambda g, total, k, n: ((k, total), (total, n)),
}


#: Groups, the size of what they divide, and the other two sizes.
SIZES = [(1, 300, 128, 96), (8, 2000, 512, 264), (128, 5000, 256, 192), (1024, 3000, 64, 72)]
SIZES += [(37, 3001, 200, 136), (5, 77, 33, 21)]
OTHERS = "float16", "float32", "float64"
CASES = [*((*sizes, "bfloat16") for sizes in SIZES), *((*sizes, dtype) for sizes in SIZES[-2:] for dtype in OTHERS)]


@pytest.mark.parametrize("divides", list(SHAPES))
@pytest.mark.parametrize(("groups", "total", "k", "n", "dtype"), CASES, ids=str)
def test_random_groups(torch: Any, groups: int, total: int, k: int, n: int, dtype: str, divides: str) -> None:
    for seed, down in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        a, b = (whole(torch, *shape, dtype=dtype) for shape in SHAPES[divides](groups, total, k, n))
        a, b = (x.mT.contiguous().mT if is_down else x for x, is_down in zip((a, b), down, strict=True))
        ends = random_ends(groups, total, 3 * (seed % 2), seed)
        offsets, exact = torch.from_numpy(ends).cuda(), right(torch, a, b, ends)
        poisoned = torch.full(exact.shape, float("nan"), device="cuda", dtype=a.dtype)
        assert torch.equal(tw.grouped_matmul(a, b, offsets), exact.to(a.dtype))
        if divides != "n":
            assert torch.equal(tw.grouped_matmul(a, b, offsets, out=poisoned), exact.to(a.dtype))


@pytest.mark.parametrize(("groups", "rows", "k", "n"), [(8, 700, 1024, 520), (64, 3000, 272, 200)], ids=str)
def test_float8_with_scales_of_blocks(torch: Any, groups: int, rows: int, k: int, n: int) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("float8 needs a Hopper GPU")
    ends = random_ends(groups, rows, 30, 3)
    a, b = (whole(torch, *shape).to(torch.float8_e4m3fn) for shape in ((rows, k), (groups, n, k)))
    scale_a, scale_b = (
        2.0 ** torch.randint(-2, 3, shape, device="cuda").float()
        for shape in ((rows, -(-k // 128)), (groups, -(-k // 128), -(-n // 128)))
    )
    wide_a = scale_a.repeat_interleave(128, 1)[:, :k]
    wide_b = scale_b.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :k, :n]
    exact = right(torch, a.double() * wide_a, b.double().mT * wide_b, ends)
    scale_a[ends[-1] :] = float("nan")
    offsets = torch.from_numpy(ends).cuda()
    found = tw.grouped_matmul(a, b.mT, offsets, scale_a=scale_a, scale_b=scale_b, out_dtype="float32")
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
    plain = tw.grouped_matmul(a, b.mT, offsets)
    assert torch.equal(plain, right(torch, a, b.mT, ends).bfloat16())


def test_what_is_no_number_stays_in_its_group(torch: Any) -> None:
    ends = [50, 90, 150, 230]
    tokens, gradient = whole(torch, 260, 136), whole(torch, 260, 72)
    tokens[50:90], gradient[230:] = float("inf"), float("nan")
    offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
    c = tw.grouped_matmul(tokens.mT, gradient, offsets)
    exact = right(torch, tokens.mT, gradient, ends)
    assert torch.equal(c[[0, 2, 3]], exact[[0, 2, 3]].bfloat16())
    assert not torch.isfinite(c[1]).any()


def test_gradients_are_those_of_each_expert(torch: Any) -> None:
    ends = random_ends(16, 1500, 20, 5)
    offsets = torch.from_numpy(ends).cuda()
    tokens, weights = whole(torch, 1500, 256), whole(torch, 16, 192, 256)
    results = []
    for dtype, product in ((torch.bfloat16, lambda x, w: tw.grouped_matmul(x, w, offsets)),
                           (torch.float64, lambda x, w: right(torch, x, w, ends))):  # fmt: skip
        x, w = (each.clone().to(dtype).requires_grad_() for each in (tokens, weights))
        c = product(x, w.mT)
        c.backward((torch.arange(c.numel(), device="cuda").reshape(c.shape) % 3 - 1).to(c.dtype))
        results.append((c, x.grad, w.grad))
    for found, exact in zip(*results, strict=True):
        assert torch.equal(found, exact.to(found.dtype))


def test_other_sizes_are_found_when_a_graph_is_replayed(torch: Any) -> None:
    """The launches do not depend on the sizes of groups."""
    tokens, weights = whole(torch, 700, 128), whole(torch, 9, 128, 96)
    offsets = torch.from_numpy(random_ends(9, 700, 0, 1)).cuda()
    tw.grouped_matmul(tokens, weights, offsets)
    tw.grouped_matmul(tokens.mT, whole(torch, 700, 96), offsets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = tw.grouped_matmul(tokens, weights, offsets)
        d = tw.grouped_matmul(tokens.mT, c, offsets)
    for seed in range(3):
        ends = random_ends(9, 700, 11 * seed, seed)
        offsets.copy_(torch.from_numpy(ends))
        graph.replay()
        torch.cuda.synchronize()
        exact = right(torch, tokens, weights, ends).bfloat16()
        assert torch.equal(c, exact)
        torch.testing.assert_close(d.double(), right(torch, tokens.mT, exact, ends), rtol=2**-8, atol=0)


def test_offsets_that_are_none_harm_nothing(torch: Any) -> None:
    tokens, weights = whole(torch, 700, 128), whole(torch, 4, 128, 96)
    around = torch.full((3, 700, 96), 7, device="cuda", dtype=torch.bfloat16)
    for ends in ([-5, 900, 20, 1 << 30], [700, 0, 700, 0], [-(1 << 31)] * 4):
        offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        tw.grouped_matmul(tokens, weights, offsets, out=around[1])
        tw.grouped_matmul(tokens.mT, around[0], offsets)
        torch.cuda.synchronize()
        assert bool((around[[0, 2]] == 7).all())


def test_it_agrees_with_pytorch(torch: Any) -> None:
    grouped = getattr(torch, "_grouped_mm", None)
    if grouped is None or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this PyTorch has no grouped product here")
    ends = np.cumsum([64, 0, 128, 208], dtype=np.int32)
    tokens, weights, offsets = whole(torch, 400, 128), whole(torch, 4, 96, 128), torch.from_numpy(ends).cuda()
    assert torch.equal(tw.grouped_matmul(tokens, weights.mT, offsets), grouped(tokens, weights.mT, offs=offsets))
