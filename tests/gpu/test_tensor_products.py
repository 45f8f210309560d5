"""``matmul`` of 16-bit arrays by the engine's kernel for tensor cores, which the microscope executes on a simulated GPU."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.layouts import laid
from support.multiplied import by_columns, by_rows, multiply
from support.selection import in_turns, widest_and_narrowest
from tilewright.gpu.arrays import choose, matmul
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.layouts import layouts_of
from tilewright.gpu.arrays.order import Operands
from tilewright.gpu.planning.ways import EngineShape, ways
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import Card

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

BF16 = np.dtype(ml_dtypes.bfloat16)
HOPPER = cuda_engine()["cuda/hopper"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    found.sms = 4
    fake.install(monkeypatch, [found])
    fake.engine_alone(monkeypatch, HOPPER)
    return found


def whole(*shape: int, dtype: Any = BF16, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def tensor(gpu: Any, values: np.ndarray, layout: str = "rows") -> Any:
    return laid(fake.Tensor, gpu, values, layout)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)


def launched(gpu: Any) -> list[str]:
    return [entry for entry, _ in gpu.launches]


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("layouts", [*itertools.product(("rows", "columns"), repeat=2)], ids="-".join)
def test_no_layout_of_whole_granules_is_copied(gpu: Any, layouts: tuple[str, str], dtype: Any) -> None:
    a, b = whole(96, 72, dtype=dtype), whole(72, 136, dtype=dtype)
    c = tw.matmul(tensor(gpu, a, layouts[0]), tensor(gpu, b, layouts[1])).view
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, product(a, b))
    assert launched(gpu) == ["hopper"]


@pytest.mark.slow_cases("((130, 64), (64, 70))", "((300, 20), (20, 300))", "((2, 1, 5, 7), (3, 7, 9))")
@pytest.mark.parametrize("shapes", [
    ((33, 35), (35, 37)), ((130, 64), (64, 70)), ((1, 64), (64, 200)), ((200, 64), (64, 1)), ((1, 1), (1, 1)),
    ((300, 20), (20, 300)),
    ((3, 64, 40), (3, 40, 24)), ((3, 64, 40), (40, 24)), ((2, 1, 5, 7), (3, 7, 9)), ((64,), (64, 9)), ((5, 64), (64,)),
    ((40, 0), (0, 6)), ((0, 4), (4, 5)), ((2, 3, 0), (2, 0, 4)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "rows"), ("wider", "columns")], ids="-".join)
def test_shapes_are_those_of_matmul(gpu: Any, shapes: Any, layouts: tuple[str, str]) -> None:
    if min(map(len, shapes)) == 1:
        layouts = ("rows", "rows")
    a, b = whole(*shapes[0]), whole(*shapes[1], seed=2)
    c = tw.matmul(tensor(gpu, a, layouts[0]), tensor(gpu, b, layouts[1])).view
    np.testing.assert_array_equal(c, product(a, b))


@pytest.mark.slow_cases("rows", "columns")
@pytest.mark.parametrize("layout", ["rows", "columns", "wider"])
def test_out_keeps_what_lies_around_it(gpu: Any, layout: str) -> None:
    a, b = whole(40, 30), whole(30, 51)
    out = tensor(gpu, np.full((40, 51), 7, BF16), layout)
    around = out.storage.view.copy()
    assert tw.matmul(tensor(gpu, a), tensor(gpu, b), out=out) is out
    np.testing.assert_array_equal(out.view, product(a, b))
    out.view[...] = 7
    np.testing.assert_array_equal(out.storage.view, around)


@pytest.mark.slow_cases("((2, 70, 41), (2, 41, 133))")
@pytest.mark.parametrize("shapes", [((33, 35), (35, 37)), ((2, 70, 41), (2, 41, 133))], ids=str)
def test_copies_may_lie_along_k(gpu: Any, monkeypatch: pytest.MonkeyPatch, shapes: Any) -> None:
    """Of a row-major B that must be copied anyway, the copy may be transposed: then tiles have any width."""
    monkeypatch.setattr(choose, "layouts_of", lambda kernel: layouts_of(kernel)[1:])
    monkeypatch.setattr(choose, "_known", {})
    a, b = whole(*shapes[0]), whole(*shapes[1], seed=2)
    x, y = tensor(gpu, a), tensor(gpu, b)
    assert [text.endswith("transposed") for text in tw.plan(x, y).copies] == [False, True]
    np.testing.assert_array_equal(tw.matmul(x, y).view, product(a, b))


def test_the_width_of_tiles_decides_how_copies_lie(gpu: Any) -> None:
    gpu.sms = 132

    def plan(n: int) -> Any:
        a = GpuArray(0, (n, n), (n, 1), "bfloat16", 0)
        return matmul._plan(matmul._key(a, a, None, True, "standard", None))

    assert plan(1537).params["BN"] % 64
    assert "transposed" in plan(1537).choice.why_params  # was considered, and takes a launch more


def test_a_batch_of_one_product_stores_at_odd_addresses() -> None:
    """A batch times one matrix is one product; the copy engine does not store where ``out`` begins inside of a granule."""
    a = GpuArray(0, (2, 3, 8), (24, 8, 1), "bfloat16", 0)
    b, out = GpuArray(0, (8, 16), (16, 1), "bfloat16", 0), GpuArray(6, (2, 3, 16), (48, 16, 1), "bfloat16", 0)
    order = Operands(a, b, out, disjoint=True, views=True).arranged(a.dtype, layouts_of(HOPPER)[0], None)
    assert order.mnk == (6, 16, 8)
    assert not order.c.used.aligned


@pytest.mark.slow
@pytest.mark.parametrize(("shapes", "batch"), [
    (((40, 3000), (3000, 40)), False), (((17, 5001), (5001, 33)), False), (((2, 64, 2048), (2, 2048, 64)), True),
], ids=str)  # fmt: skip
def test_parts_of_a_long_k_are_added_in_one_order(gpu: Any, shapes: Any, batch: bool) -> None:
    gpu.sms = 132
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-1, 1, shape).astype(BF16) for shape in shapes)
    x, y = tensor(gpu, a), tensor(gpu, b)
    assert tw.plan(x, y).parts > 1
    c = tw.matmul(x, y).view
    np.testing.assert_array_equal(c, tw.matmul(x, y).view)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = a.shape[-1] * 2.0**-24 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64))) + 2.0**-8 * abs(exact)
    assert (abs(c.astype(np.float64) - exact) <= bound).all()
    assert launched(gpu).count("hopper") == 2, "one launch for all products, and no other kernel"


@pytest.mark.slow
def test_the_widest_is_computed_in_float64(gpu: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((20, 70), (70, 21)))
    c = tw.matmul(tensor(gpu, a), tensor(gpu, b), precision="highest").view
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_either_order_stores_the_result_where_it_is(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, swapped: bool, layout: str
) -> None:
    """C = A·B and Cᵀ = Bᵀ·Aᵀ: neither copies, whichever way ``out`` lies."""
    tried = choose._tried
    monkeypatch.setattr(
        choose, "_tried", lambda *given, **says: (x for x in tried(*given, **says) if x[2].swapped == swapped)
    )
    for m, n, k in ((72, 200, 40), (40, 56, 35)):
        a, b, out = whole(m, k), whole(k, n, seed=2), tensor(gpu, np.zeros((m, n), BF16), layout)
        x, y = tensor(gpu, a, "wider"), tensor(gpu, b, "columns")
        plan = tw.plan(x, y, out=out)
        assert plan.swapped == swapped
        assert not any(text.startswith("C") for text in plan.copies)
        np.testing.assert_array_equal(tw.matmul(x, y, out=out).view, product(a, b))


def test_dtypes_promote(gpu: Any) -> None:
    a, b = whole(9, 12), whole(12, 10, dtype=np.float16)
    assert tw.matmul(tensor(gpu, a), tensor(gpu, b)).view.dtype == np.float32
    assert tw.matmul(tensor(gpu, a), tensor(gpu, b.astype(np.float64))).view.dtype == np.float64


@pytest.mark.slow
def test_older_gpus_compute_float16_in_float32(gpu: Any) -> None:
    gpu.capability, gpu.arch = "8.0", "sm_80"
    a, b = whole(9, 12, dtype=np.float16), whole(12, 10, dtype=np.float16)
    np.testing.assert_array_equal(tw.matmul(tensor(gpu, a), tensor(gpu, b)).view, product(a, b))
    assert launched(gpu)[-2:] == ["register_banks", "copy_matrices"]


# ---- the kernel itself


WAYS = [{}, *widest_and_narrowest(preset.params for preset in HOPPER.presets)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", in_turns(WAYS, 2), ids=lambda p: "-".join(f"{name}{value}" for name, value in p.items()) or "default"
)
def test_a_block_takes_many_tiles(gpu: Any, params: dict[str, int]) -> None:
    """Of all tile shapes, with both layouts of B and of C, more tiles than blocks, and results that are stored in boxes or
    not."""
    gpu.sms = 2
    for m, n, down, c_down in (
        (300, 520, False, False),
        (300, 261, True, False),
        (304, 261, False, True),
        (296, 264, True, True),
    ):
        k = 136
        a, b = whole(m, k), whole(k, n)
        c = gpu.allocate(m * n * 2)
        of_b = by_columns(k, n, "bfloat16") if down else by_rows(k, n, "bfloat16", -(-n // 8) * 8)
        stored = np.ascontiguousarray(b.T) if down else np.pad(b, ((0, 0), (0, of_b.step - n)))
        memory = [gpu.put(x.view(np.uint16)) for x in (a, stored)]
        of_c = (by_columns if c_down else by_rows)(m, n, "bfloat16")
        what = EngineProduct("bfloat16", by_rows(m, k, "bfloat16"), of_b, of_c)
        multiply(gpu, HOPPER, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
        found = gpu.get(c, BF16, (n, m)).T if c_down else gpu.get(c, BF16, (m, n))
        np.testing.assert_array_equal(found, product(a, b))
        for each in (c, *memory):
            each.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", [{"BN": 144}, {"BM": 64, "BN": 80, "STAGES": 8}, {"BN": 72, "STAGES": 5}], ids=["144", "80", "72"]
)
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_rows_that_begin_anywhere_are_stored_alone(gpu: Any, params: dict[str, int], out: str) -> None:
    """Rows of all lengths up to more than a slab and a tile, at all places of a sector, and what lies between them stays."""
    size, k = {"bfloat16": 2, "float32": 4}[out], 64
    dtype = BF16 if size == 2 else np.dtype(np.float32)
    a, b = whole(18, k), whole(k, 176)
    operands = [gpu.put(x.view(np.uint16)) for x in (a, b)]
    x, y = (each.pointer for each in operands)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for first, n in enumerate(
        [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 71, 77, 79, 80, 81, 95, 127, 129, 143, 145, 150]
    ):
        step = n + 2 + first % 3
        before = np.full((20, step), 7, dtype)
        c = gpu.put(before.view(f"u{size}"))
        of_c = by_rows(18, n, out, step)._replace(alignment=size)
        what = EngineProduct("bfloat16", by_rows(18, k, "bfloat16"), by_rows(k, n, "bfloat16", 176), of_c)
        multiply(gpu, HOPPER, what, params, (x, y, c.pointer + first * size))
        wanted = before.reshape(-1)
        for row in range(18):
            wanted[first + row * step :][:n] = exact[row, :n]
        np.testing.assert_array_equal(gpu.get(c, dtype, (20 * step,)), wanted)
        c.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{"BN": 144}, {"BN": 208, "CLUSTER": 2, "GROUP": 8}, {"BN": 136, "CLUSTER": 2}, {"BN": 88, "PINGPONG": 1}],
    ids=lambda p: str(p["BN"]),
)
@pytest.mark.parametrize("n", [288, 290])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_the_last_columns_of_a_tile_that_is_no_multiple_of_128_bytes_wide(
    gpu: Any, params: dict[str, int], n: int, out: str
) -> None:
    """They are not stored in a box, which would lie over the next tile. Where rows are not aligned, no column is."""
    m, k, kind = 130, 64, BF16 if out == "bfloat16" else np.dtype(np.float32)
    a, b = whole(m, k), whole(k, n + -n % 8)
    memory = [gpu.put(x.view(np.uint16)) for x in (a, b)]
    c = gpu.allocate(m * n * kind.itemsize)
    factors = by_rows(m, k, "bfloat16"), by_rows(k, n, "bfloat16", b.shape[1])
    what = EngineProduct("bfloat16", *factors, by_rows(m, n, out))
    multiply(gpu, HOPPER, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    exact = a.astype(np.float64) @ b[:, :n].astype(np.float64)
    np.testing.assert_array_equal(gpu.get(c, kind, (m, n)), exact.astype(kind))


@pytest.mark.slow
def test_a_buffer_that_is_stored_from_is_not_written(gpu: Any, tmp_path: Path) -> None:
    """As the kernel once did where a tile has one slab only."""
    gpu.sms = 1
    changes = (r"slab\+\+, buffer \^= 1", "slab++, buffer = 0"), ("store_wait_read<1>", "store_wait_read<2>")
    broken = changed(HOPPER, tmp_path, "hopper_store.cuh", *changes)
    m, n, k = 128, 256, 64
    memory = [gpu.put(x.view(np.uint16)) for x in (whole(m, k), whole(k, n))]
    c = gpu.allocate(m * n * 2)
    a, b, of_c = (by_rows(*shape, "bfloat16") for shape in ((m, k), (k, n), (m, n)))
    addresses = memory[0].pointer, memory[1].pointer, c.pointer
    with pytest.raises(AssertionError, match="still"):
        multiply(gpu, broken, EngineProduct("bfloat16", a, b, of_c), {"BN": 64, "STAGES": 8}, addresses)


# ---- the model


def test_few_tiles_and_a_long_k_are_cut_into_parts() -> None:
    def best(m: int, n: int, k: int) -> Any:
        return ways(HOPPER, EngineShape("bfloat16", "bfloat16", m, n, k), Card())[0]

    assert best(4096, 4096, 4096).parts == 1
    assert best(64, 64, 65536).parts > 32
    assert best(4096, 4096, 4096).params["BN"] == 256
    assert best(8, 8, 8).parts == 1
    assert best(8, 8, 8).seconds < 5e-6


def test_the_engine_has_no_rung() -> None:
    from tilewright.kernels.catalog import cuda_catalog

    assert not cuda_engine().keys() & cuda_catalog().keys()
    assert all(Path(kernel.path).parts[-3:-1] == ("gpu", "kernels") for kernel in cuda_engine().values())
