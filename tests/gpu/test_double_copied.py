"""float64 by the engine's kernel whose warps copy rows that begin anywhere, executed by the microscope."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.strided_products import check, whole
from tilewright.gpu.runtime import engine_product
from tilewright.gpu.runtime.engine_product import ListedShape, prepare_listed_product
from tilewright.gpu.runtime.layout import Matrix
from tilewright.gpu.runtime.nvrtc import compile_file
from tilewright.kernels.catalog import cuda_engine
from tilewright.lab.explain.cuda import explain

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

NAME = "cuda/dmma_copied"
COPIED = cuda_engine()[NAME]
WAYS = [{}, *(preset.params for preset in COPIED.presets)]
#: Small tiles, which take little time in the microscope.
SMALL = {"BM": 32, "BN": 32, "WM": 16, "WN": 16, "STAGES": 3}
#: Whether columns of A and of B follow each other in memory, the most frequent case first.
LAYOUTS = [*itertools.product((False, True), repeat=2)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield fake.installed(monkeypatch, 1 << 23, sms=2)
    engine_product.prepare_listed_product.cache_clear()


@pytest.mark.slow_cases("(0, 1, 0)")
@pytest.mark.parametrize("down", LAYOUTS, ids=str)
@pytest.mark.parametrize(("shape", "gaps"), [
    ((33, 35, 21), (0, 0, 0)),  # numbers one by one
    ((36, 68, 48), (0, 0, 0)),  # pairs
    ((37, 33, 21), (1, 1, 1)),  # pairs, the last of which are halves
    ((6, 7, 3), (2, 1, 1)),
    ((70, 67, 35), (0, 1, 0)),  # pairs of B alone
], ids=str)  # fmt: skip
def test_any_layout(gpu: Any, shape: Any, gaps: Any, down: tuple[bool, bool]) -> None:
    check(gpu, NAME, shape, SMALL, down=down, gaps=gaps)


@pytest.mark.slow
def test_batches_and_parts_of_k(gpu: Any) -> None:
    check(gpu, NAME, (20, 36, 100), SMALL, batch=3, parts=3)
    check(gpu, NAME, (33, 31, 131), SMALL, batch=2, parts=4, down=(True, True))


@pytest.mark.further
@pytest.mark.parametrize("params", WAYS, ids=lambda params: "-".join(f"{k}{v}" for k, v in params.items()) or "default")
@pytest.mark.parametrize("down", LAYOUTS, ids=str)
def test_a_block_takes_many_tiles(gpu: Any, params: dict[str, int], down: tuple[bool, bool]) -> None:
    chosen = COPIED.checked(params)
    shape = chosen["BM"] + 3, 2 * chosen["BN"] + 5, 16 * chosen["STAGES"] + 7
    check(gpu, NAME, shape, params, down=down, gaps=(0, 0, 1))


@pytest.mark.parametrize("down", LAYOUTS, ids=str)
def test_lists_are_one_launch(gpu: Any, down: tuple[bool, bool]) -> None:
    sizes = [(3, 9, 5), (33, 70, 40), (2, 3, 0), (1, 1, 1)]
    a, b = [whole(m, k, dtype="float64") for m, _, k in sizes], [whole(k, n, dtype="float64") for _, n, k in sizes]
    stored = [[x.T.copy() if d else x for x in side] for side, d in zip((a, b), down, strict=True)]
    memory = [gpu.put(np.concatenate([x.reshape(-1) for x in side])) for side in stored]
    tops = [np.cumsum([0, *(x.nbytes for x in side)])[:-1] for side in stored]
    addresses = np.concatenate([m.pointer + at for m, at in zip(memory, tops, strict=True)])
    of_c = np.cumsum([0, *(m * n for m, n, _ in sizes)])
    shapes = tuple(
        ListedShape(
            *(m, n, k),
            Matrix(m, k, *((1, m) if down[0] else (k, 1)), "float64", 8, down=down[0]),
            Matrix(k, n, *((1, k) if down[1] else (n, 1)), "float64", 8, down=down[1]),
            int(at) * 8,
        )
        for (m, n, k), at in zip(sizes, of_c[:-1], strict=True)
    )
    c = gpu.allocate(int(of_c[-1]) * 8)
    prepare_listed_product(gpu, COPIED, "float64", shapes, tuple(SMALL.items()))(addresses, c.pointer, 0)
    found = gpu.get(c, np.dtype(np.float64), int(of_c[-1]))
    np.testing.assert_array_equal(found, np.concatenate([(x @ y).reshape(-1) for x, y in zip(a, b, strict=True)]))
    assert [name for name, _ in gpu.launches] == ["dmma_copied"]


@pytest.mark.slow
def test_odd_rows_of_c_are_stored_in_whole_sectors() -> None:
    """Each row of a warp's tile may begin and end within a sector; none between is written by two instructions."""
    m, n = 64, 101
    found = explain(COPIED, m, n, 16, params={"BM": 64, "BN": 64, "WM": 32})
    assert found.defects == []
    stored = sum(access.sectors for access in found.accesses if (access.space, access.kind) == ("global", "st"))
    assert m * n / 4 < stored <= m * (n / 4 + 4)


@pytest.mark.further
@pytest.mark.parametrize(("params", "down"), list(zip(WAYS, itertools.cycle(LAYOUTS))), ids=str)
def test_no_register_spills(params: dict[str, int], down: tuple[bool, bool]) -> None:
    """Where rows begin anywhere. The warps that copy have 24 registers, and those that multiply what is left."""
    macros = {"A_DOWN": int(down[0]), "B_ACROSS": int(not down[1]), "A_VECTOR": 8, "B_VECTOR": 8, "C_VECTOR": 8}
    compiled = compile_file(COPIED.path, arch="sm_90a", defines=COPIED.checked(params) | macros)
    assert compiled.resources["dmma_copied"].local_bytes == 0


def test_odd_rows_are_multiplied_without_copies(gpu: Any) -> None:
    gpu.sms, gpu.heap = 132, np.zeros(1 << 26, np.uint8)
    x, y = (fake.Tensor.of(gpu, np.zeros((1537, 1537))) for _ in range(2))
    plan = tw.plan(x, y, precision="ieee")
    assert plan.kernel.name == NAME
    assert not plan.copies
    even = fake.Tensor.of(gpu, np.zeros((1536, 1536)))
    assert tw.plan(even, even, precision="ieee").kernel.name == "cuda/dmma_boxes"
