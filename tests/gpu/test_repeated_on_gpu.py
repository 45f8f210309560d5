"""Repeated products of PyTorch's tensors on a real GPU: on streams, in threads, captured, and in PyTorch's modes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tilewright as tw
from tilewright.gpu.arrays.libraries import library_of
from tilewright.gpu.arrays.repeated import RepeatedProducts

pytestmark = pytest.mark.gpu

SHAPES = [((256, 256), (256, 256)), ((300, 200), (200, 130)), ((16, 4096), (4096, 64)), ((8, 64, 64), (8, 64, 64))]


def whole(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.randint(-3, 4, shape, device="cuda").to(dtype)


def repeated(x: Any) -> RepeatedProducts:
    library = library_of(x)
    assert library is not None
    assert library.repeated is not None
    return library.repeated


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_that_lie_elsewhere_each_time(torch: Any, shapes: Any, dtype: str) -> None:
    pool = [tuple(whole(torch, shape, getattr(torch, dtype)) for shape in shapes) for _ in range(12)]
    right = [(a.double() @ b.double()).to(a.dtype) for a, b in pool]
    main = torch.cuda.current_stream()
    for turn in range(4):
        stream = torch.cuda.Stream() if turn % 2 else main
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            found = [tw.matmul(a, b) for _ in range(10) for a, b in pool]
            into = [tw.matmul(a, b, out=torch.empty_like(c)) for (a, b), c in zip(pool, right, strict=True)]
        torch.cuda.synchronize()
        assert all(torch.equal(c, right[i % 12]) for i, c in enumerate([*found, *into]))


def test_threads_with_streams_of_their_own_and_without(torch: Any) -> None:
    pool = [tuple(whole(torch, (256, 256), torch.bfloat16) for _ in range(2)) for _ in range(8)]
    right = [(a.double() @ b.double()).bfloat16() for a, b in pool]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        stream = torch.cuda.Stream() if i % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                found = [tw.matmul(*pool[i]) for _ in range(30)]
                stream.synchronize()
                wrong.extend(i for c in found if not torch.equal(c, right[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_captured_products(torch: Any) -> None:
    x, y = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(4):
        tw.matmul(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = tw.matmul(tw.matmul(x, y), y)
    for _ in range(3):
        x.copy_(torch.randn(256, 256, device="cuda"))
        graph.replay()
        assert torch.equal(z, tw.matmul(tw.matmul(x, y), y))


def test_modes_of_pytorch(torch: Any) -> None:
    x, y = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    right = tw.matmul(x, y)
    with torch.inference_mode():
        for _ in range(3):
            assert tw.matmul(x, y).is_inference()
    weight = torch.nn.Parameter(y)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(tw.matmul(x, weight), right)


def test_repetitions_are_recorded_and_without_error(torch: Any) -> None:
    x = whole(torch, (200, 200), torch.float16)
    for _ in range(4):
        tw.matmul(x, x)
    known = list(repeated(x)._plain.values())
    replays = [each.replay for each in known if not each.is_first]
    assert replays
    assert all(replay is not None for replay in replays), "every launch can be recorded"
    graphs = [replay._graph for replay in replays if replay is not None and replay._graph is not None]
    assert graphs
    assert all(graph._state[1] != -1 for graph in graphs), "no graph had an error"
