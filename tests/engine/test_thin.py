"""Thin products: matrix times vector, outer products, deep sums. What ``test_kernels`` asks of every kernel, at their sizes.

That is: shapes at which strips, bands, stretches and pieces begin anew, results large enough to be streamed past the
caches, and the same bits from any number of threads.
"""

from __future__ import annotations

import functools
import itertools
import math
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numba as nb
import numpy as np
import pytest

import tilewright as tw
from support.plans import make_plan
from tilewright.api import matmul as api
from tilewright.cpu import codegen
from tilewright.cpu.codegen.settings import SETTINGS
from tilewright.cpu.kernels import vector
from tilewright.cpu.runtime import facts, small_products
from tilewright.cpu.runtime.library import BuiltLibrary
from tilewright.cpu.runtime.machine_code import BuiltCode, engine_code
from tilewright.cpu.runtime.runner import runner
from tilewright.host.machine import machine
from tilewright.kernels import FLOATS
from tilewright.kernels.catalog import catalog
from tilewright.lab.verify.verify import Oracle
from tilewright.product.operands import aligned_empty
from tilewright.product.problem import Problem

Shape = tuple[int, int, int]  # m, n, k

SHAPES: dict[str, list[Shape]] = {
    "cpu/vector": [
        *((1, 4097, 33), (4099, 1, 31), (1, 1, 5000), (2, 1025, 70), (1025, 2, 2049), (3, 515, 1), (515, 3, 1)),
        *((6, 1100, 131), (1100, 6, 1029), (7, 530, 66), (530, 7, 66), (13, 600, 10), (35, 4, 4100), (4, 35, 4100)),
        *((5, 1024, 130), (1024, 3, 600), (2, 2304, 300)),  # with rows of C that displace each other from L1
    ],
    "cpu/outer": [
        *((1031, 1041, 1), (1030, 1040, 3), (4099, 16, 16), (4100, 17, 5), (70000, 16, 2), (16, 70000, 2)),
        *((9, 33, 8), (8, 5000, 9), (5000, 8, 9), (1024, 1024, 17), (3, 3, 3), (19, 9001, 64), (400, 391, 61)),
    ],
    "cpu/deep": [
        *((3, 3, 100003), (32, 32, 8191), (1, 1, 70001), (2, 2, 4097), (4, 4, 5003), (5, 4, 3001), (8, 16, 2049)),
        *((17, 33, 3073), (3, 32, 2100), (32, 3, 2100), (12, 2, 2600), (96, 96, 2048), (7, 5, 511), (7, 5, 513)),
    ],
}
#: The kernel for a few rows with any matrix too large for the last cache.
FROM_MEMORY = "cpu/vector from memory"
every_kernel = pytest.mark.parametrize("kernel", [*SHAPES, FROM_MEMORY], indirect=True)
every_dtype = pytest.mark.parametrize("dtype", FLOATS)

Layout = Callable[[np.ndarray], np.ndarray]
LAYOUTS: dict[str, Layout] = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "rows apart": lambda x: np.repeat(x, 2, axis=0)[::2],
    "columns apart": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a kernel."""
    if request.param != FROM_MEMORY:
        yield request.param
        return
    code = engine_code()
    if not isinstance(code, BuiltCode):
        pytest.skip("the sizes of caches are constants in code that is compiled in the process")
    library = BuiltLibrary(code.level)
    library.write_settings(SETTINGS | {"vector.tiled": 0, "vector.near": 0})
    yield "cpu/vector"
    library.write_settings(SETTINGS)


def operands(shape: Shape, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    return rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)


def multiply(kernel: str, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, threads: int = 1) -> np.ndarray:
    if c is None:
        c = aligned_empty((a.shape[0], b.shape[1]), a.dtype)
    c[...] = np.nan
    runner(catalog()[kernel], a.dtype, threads=threads)(a, b, c)
    return c


@pytest.mark.slow_cases("cpu/deep", "cpu/outer", "cpu/vector")
@every_dtype
@every_kernel
def test_within_the_classical_bound_from_any_strides(kernel: str, dtype: str) -> None:
    for shape in SHAPES[kernel]:
        a, b = operands(shape, dtype)
        oracle = Oracle(a, b)
        for (name_a, of_a), (name_b, of_b) in itertools.product(LAYOUTS.items(), repeat=2):
            if "row-major" not in (name_a, name_b) and name_a != name_b:
                continue
            check = oracle.check(multiply(kernel, of_a(a), of_b(b), threads=2))
            assert check.ok, f"{shape}, a {name_a}, b {name_b}: {check.reason}"


@pytest.mark.slow_cases("cpu/deep", "cpu/outer")
@every_dtype
@every_kernel
def test_into_any_strides_and_nothing_beside(kernel: str, dtype: str) -> None:
    for shape in SHAPES[kernel]:
        m, n, _ = shape
        a, b = operands(shape, dtype)
        oracle = Oracle(a, b)
        whole = aligned_empty((2 * m + 2, 2 * n + 2), dtype)
        for c in (
            whole[1 : m + 1, 1 : n + 1],
            whole[1:-1:2, 1 : n + 1],
            whole[1 : m + 1, 1:-1:2],
            whole[m:0:-1, n:0:-1],
        ):
            for target, x, y in ((c, a, b), (c.T, b.T, a.T)):
                whole[:] = 7.5
                check = oracle.check(
                    multiply(kernel, x, y, target) if target is c else multiply(kernel, x, y, target).T
                )
                assert check.ok, f"{shape}, strides {target.strides}: {check.reason}"
                c[...] = 7.5
                assert (whole == 7.5).all(), f"{shape}: wrote beside C of strides {target.strides}"


@every_dtype
@every_kernel
def test_zero_sizes(kernel: str, dtype: str) -> None:
    sizes = (0, 1, 5)
    for shape in itertools.product(sizes, sizes, sizes):
        a, b = (np.rint(4 * x) for x in operands(shape, dtype))
        assert np.array_equal(multiply(kernel, a, b, threads=2), a @ b), shape
    assert not multiply(kernel, *operands((1100, 1100, 0), dtype)).any(), "an empty sum is zero"


@every_dtype
@every_kernel
def test_the_same_bits_on_any_number_of_threads(kernel: str, dtype: str) -> None:
    for shape, layout in itertools.product(SHAPES[kernel], (np.ascontiguousarray, np.asfortranarray)):
        a, b = (layout(x) for x in operands(shape, dtype))
        alone = multiply(kernel, a, b)
        for threads in (1, 2, 3, 16, 2):
            assert np.array_equal(multiply(kernel, a, b, threads=threads), alone), f"{shape}: other bits on {threads}"


def test_the_pieces_of_a_deep_product_are_added_in_order() -> None:
    """In another order they give other bits: the test above would see it."""
    deep = catalog()["cpu/deep"]
    a, b = operands((9, 9, 64 * 1024), "float32")
    pieces = [multiply("cpu/deep", a[:, p : p + 1024], b[p : p + 1024]) for p in range(0, 64 * 1024, 1024)]
    sums = [functools.reduce(np.add, order) for order in (pieces, pieces[::-1])]
    assert deep.params["pieces"] == 64
    assert np.array_equal(sums[0], multiply("cpu/deep", a, b, threads=3))
    assert not np.array_equal(sums[0], sums[1])


@every_dtype
@every_kernel
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_where_they_belong(kernel: str, dtype: str, special: float) -> None:
    """In corners and in the middle of either operand; zeros beside them make NaN of infinity, and padding must not."""
    for m, n, k in [(5, 37, 67), (37, 5, 67), (3, 3, 1030), (19, 21, 9), (1, 18, 5), (18, 1, 1029)]:
        for layout, row, column in itertools.product(
            (np.ascontiguousarray, np.asfortranarray), (0, 0.5, 1), (0, 0.5, 1)
        ):
            a, b = (layout(x) for x in operands((m, n, k), dtype))
            p = int((k - 1) * column)
            a[int((m - 1) * row), p] = special
            b[p, : n // 2] = 0
            b[k - 1 - p, int((n - 1) * row)] = special
            with np.errstate(invalid="ignore"):
                exact = a.astype(np.float64) @ b.astype(np.float64)
            c = multiply(kernel, a, b, threads=2)
            assert np.array_equal(np.isnan(c), np.isnan(exact)), (m, n, k, layout, row, column)
            assert np.array_equal(c[np.isinf(c)], exact[np.isinf(exact)])


def test_a_plan_takes_them_where_they_win() -> None:
    vector, outer, deep = (("cpu/" + name) for name in ("vector", "outer", "deep"))
    planned = {
        vector: [(6, 2000, 2000), (2000, 6, 2000), (1, 4096, 4096), (4096, 1, 4096)],
        outer: [(2000, 2000, 4), (100000, 16, 16), (3000, 3000, 48)],
        deep: [(32, 32, 100000), (3, 3, 1000000)],
    }
    for name, shapes in planned.items():
        for shape, dtype in itertools.product(shapes, FLOATS):
            assert make_plan(Problem(*shape, dtype)).kernel.name == name, shape
    small = math.isqrt((machine().l2 or 256 << 10) // 4) // 2  # of a C that stays in the second-level cache
    packs = [(3000, 3000, 60), (max(256, small), max(256, small), 28), (300, 5000, 40)]
    for shape in [(1000, 1000, 1000), (16, 16, 16), (1, 1, 1), (200, 200, 5000), (128, 128, 128), *packs]:
        assert make_plan(Problem(*shape, "float32")).kernel.name not in planned, shape
    l2 = machine().l2
    if l2 and l2 >= 2 << 20:
        assert make_plan(Problem(34, 39, 2548, "float32")).kernel.name == "cpu/direct"
        assert make_plan(Problem(57, 1518, 36, "float32")).kernel.name == "cpu/packed"


# ---- generators, for other machines too ------------------------------------------------------------------------------

#: Rows, columns or vectors or steps, bits: registers of NEON, AVX2 and AVX-512.
TILES = [(2, 4, 128), (2, 2, 256), (4, 1, 256), (4, 6, 512), (8, 2, 512)]
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)


def whole_numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Sums of their products are exact. They lie one element off every alignment."""
    flat = np.empty(math.prod(shape) + 1, dtype)[1:]
    flat[:] = rng.integers(-4, 5, flat.size)
    return flat.reshape(shape)


def matrices(dtype: str, count: int) -> list[nb.types.Array]:
    return [nb.types.Array(nb.from_dtype(np.dtype(dtype)), 2, "A")] * count


@every_dtype
@every_tile
def test_row_dots(tile: tuple[int, int, int], dtype: str) -> None:
    rows, columns, bits = tile
    dots = codegen.row_dots(rows, columns, 2, bits, ahead=64)

    @nb.njit((*matrices(dtype, 3), nb.intp))
    def run(x, y, z, accumulate):
        size = codegen.itemsize(x)
        dots(
            *(x.shape[1], codegen.address(x, 0, 0), x.strides[0] // size, x.shape[0]),
            *(codegen.address(y, 0, 0), y.strides[0] // size, y.shape[0]),
            *(codegen.address(z, 0, 0), z.strides[0] // size, z.strides[1] // size, accumulate),
        )

    rng = np.random.default_rng(1)
    for k, r, s in itertools.product((0, 1, 15, 64, 131), (1, rows), (1, columns)):
        x, y = whole_numbers(rng, (r, k), dtype), whole_numbers(rng, (s, k), dtype)
        for z in (np.full((r + 1, s + 1), 7, dtype), np.full((2 * r, 3 * s), 7, dtype)[::2, ::-3]):
            run(x, y, z[:r, :s], 0)
            assert np.array_equal(z[:r, :s], x @ y.T)
            run(x, y, z[:r, :s], 1)
            assert np.array_equal(z[:r, :s], 2 * (x @ y.T))
            assert (z[r:] == 7).all()
            assert (z[:, s:] == 7).all()


@every_dtype
@every_tile
def test_row_updates(tile: tuple[int, int, int], dtype: str) -> None:
    rows, steps, bits = tile
    update = codegen.row_updates(rows, steps, bits, ahead=64)

    @nb.njit(tuple(matrices(dtype, 3)))
    def run(x, y, z):
        size = codegen.itemsize(x)
        update(
            *(x.shape[1], codegen.address(x, 0, 0), x.strides[0] // size),
            *(codegen.address(y, 0, 0), y.strides[0] // size, y.strides[1] // size),
            *(codegen.address(z, 0, 0), z.strides[0] // size, z.shape[0]),
        )

    rng = np.random.default_rng(2)
    for count, r in itertools.product((0, 1, 15, 16, 33, 131), (1, rows)):
        x, y = whole_numbers(rng, (steps, count), dtype), whole_numbers(rng, (steps, r), dtype).T
        z = whole_numbers(rng, (r + 1, count + 3), dtype)
        before = z.copy()
        run(x, y, z[:r, :count])
        before[:r, :count] += y @ x
        assert np.array_equal(z, before)


@pytest.mark.slow_cases("(4, 6, 512)", "(8, 2, 512)")
@every_dtype
@every_tile
def test_tile_in_place(tile: tuple[int, int, int], dtype: str) -> None:
    rows, nv, bits = tile
    product = codegen.tile_in_place(rows, nv, bits, prefetch=True)

    @nb.njit((*matrices(dtype, 3), nb.intp))
    def run(a, b, c, accumulate):
        size = codegen.itemsize(a)
        product(
            *(a.shape[1], codegen.address(a, 0, 0), a.strides[0] // size, a.strides[1] // size, a.shape[0]),
            *(codegen.address(b, 0, 0), b.strides[0] // size, b.shape[1]),
            *(codegen.address(c, 0, 0), c.strides[0] // size, accumulate, 40, 40),
        )

    rng = np.random.default_rng(3)
    nr = nv * bits // 8 // np.dtype(dtype).itemsize
    for k, m, n in itertools.product((0, 1, 9, 35), {1, rows - 1, rows}, (1, nr - 1, nr)):
        a, b = whole_numbers(rng, (m, k), dtype), whole_numbers(rng, (k, n), dtype)
        for x in (a, np.asfortranarray(a), a[::-1]):
            c = np.full((m + 1, n + 1), 7, dtype)
            run(x, b, c[:m, :n], 0)
            assert np.array_equal(c[:m, :n], x @ b)
            run(x, b, c[:m, :n], 1)
            assert np.array_equal(c[:m, :n], 2 * (x @ b))
            assert (c[m:] == 7).all()
            assert (c[:, n:] == 7).all()


@pytest.mark.each_value
@every_dtype
@pytest.mark.parametrize(("columns", "bits"), list(itertools.product((1, 2, 3, 4, 7), (128, 256, 512))))
def test_deinterleave(columns: int, bits: int, dtype: str) -> None:
    apart = codegen.deinterleave(columns, bits)
    spare = bits // 8 // np.dtype(dtype).itemsize

    @nb.njit(tuple(matrices(dtype, 2)))
    def run(source, target):
        apart(source.shape[0], codegen.address(source, 0, 0), codegen.address(target, 0, 0), target.shape[1])

    for count in (0, 1, 5, 16, 47, 64):
        source = np.arange(count * columns, dtype=dtype).reshape(count, columns)
        target = np.full((columns + 1, count + spare), np.nan, dtype)
        run(source, target)
        assert np.array_equal(target[:columns, :count], source.T)
        assert np.isnan(target[columns]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_short_way_multiplies_what_is_planned_for_its_kernels(dtype: str) -> None:
    tw.matmul(*operands((3, 3, 3), dtype))  # learns the dtype
    some = 0
    for m, n, k in itertools.product((1, 2, 12, 13, 24, 25, 97, 2000), (1, 6, 12, 96, 900), (32, 64, 500, 2048, 9000)):
        if m * k + k * n > 1_000_000:
            continue
        scale = 1 if dtype in FLOATS else 100
        a, b = ((scale * x).astype(dtype) for x in operands((m, n, k), "float64"))
        got, kernel = small_products.multiply_any_work(a, b, None), make_plan(Problem(m, n, k, dtype)).kernel
        if kernel not in facts.OF_SHORT_WAY or dtype not in kernel.dtypes:
            assert got is None, (m, n, k)
            continue
        some += kernel is facts.FOR_VECTORS
        assert got.tobytes() == api._matmul(a, b, None, "standard", "classical").tobytes(), (m, n, k)
    assert (some > 10) == (dtype != "int32")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_matrix_times_a_vector_goes_the_short_way(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, v = operands((1500, 1, 1200), "float32")
    v = v[:, 0]
    by_rows, by_columns = (api._matmul(x, v, None, "standard", "classical") for x in (a, np.asfortranarray(a)))
    with tw.use_threads(threads):
        for _ in range(3):
            tw.matmul(a, v)  # threads begin to stand by

        def planned(*_: Any, **__: Any) -> Any:
            raise NotImplementedError

        monkeypatch.setattr(api, "_matmul", planned)
        out, apart = np.full(1500, np.nan, np.float32), np.full(3000, np.nan, np.float32)
        for x, want in ((a, by_rows), (np.asfortranarray(a), by_columns)):
            got = (tw.matmul(x, v), tw.matmul(x, v, out=out), tw.matmul(x, v, out=apart[::2]), tw.matmul(v, x.T))
            assert all(y.shape == (1500,) and y.tobytes() == want.tobytes() for y in got)
            assert got[1] is out
        assert np.isnan(apart[1::2]).all()
        for wrong in (
            lambda: tw.matmul(a, v[1:]),
            lambda: tw.matmul(a, v, out=out[:, None]),
            lambda: tw.matmul(a, v, out=a[0]),
        ):
            with pytest.raises(NotImplementedError):  # the long way says what is wrong
                wrong()


@nb.njit
def _dots_and_updates(near, x, y, z, w):
    """z = X·Y by dot products, and w = X·Y by scaled columns of X, whose copy with unit stride down columns is read."""
    (f, k), t, xt = x.shape, y.shape[1], x.T.copy()
    at_once = vector.ROWS_OF_ONE if t == 1 else vector.ROWS
    yt, wt = y.T.copy(), w.T.copy()
    for i in range(0, f, at_once):
        rows, of_z = min(at_once, f - i), codegen.address(z, i, 0)
        vector.dot(near, k, codegen.address(x, i, 0), k, rows, codegen.address(yt, 0, 0), k, t, of_z, t, 1, 0)
    vector.update_strip(near, xt.T, y, codegen.address(wt, 0, 0), f)
    w[:] = wt.T


@pytest.mark.thorough
@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 2])
def test_an_operand_that_is_read_without_prefetches_gives_the_same_bits(columns: int, dtype: str) -> None:
    """Only one that may be in the last cache is, so the products of the other tests are."""
    x, y = operands((37, columns, 501), dtype)
    far, near = (np.full((2, 37, columns), np.nan, dtype) for _ in range(2))
    _dots_and_updates(False, x, y, *far)
    _dots_and_updates(True, x, y, *near)
    assert far.tobytes() == near.tobytes()
    assert all(Oracle(x, y).check(c).ok for c in far)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64") or "fma" not in machine().isa,
    reason="reads the assembly of x86-64 with FMA",
)
def test_only_the_outer_product_streams_past_the_caches() -> None:
    found = {name: _assembly(name) for name in SHAPES}
    assert [name for name, text in found.items() if "vmovntp" in text] == ["cpu/outer"]
    assert "sfence" in found["cpu/outer"], "else another thread might read what was there before"


def _assembly(name: str) -> str:
    """Compiled anew where the code came from disk, which keeps no assembly."""
    kernel = catalog()[name]
    element = nb.from_dtype(np.dtype("float32"))
    matrix, flat = nb.types.Array(element, 2, "A"), nb.types.Array(element, 1, "C")
    function = nb.njit(nogil=True, error_model="numpy")(kernel.function)
    function.compile((matrix, matrix, matrix, flat, nb.int64[::1]))
    (text,) = function.inspect_asm().values()
    return text
