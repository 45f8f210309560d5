"""Strassen inside the engine: right on any shape and level, within its bound and its workspace; a planted error is seen."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import pytest

from tilewright.cpu.codegen import memory, strassen_tile
from tilewright.cpu.engine.bilinear import A, B, C, Scheme, coefficients, scheme_of_levels, tables
from tilewright.cpu.runtime import runner as cpu
from tilewright.cpu.runtime.runner import runner
from tilewright.cpu.runtime.stop import STOP
from tilewright.host.machine import machine
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog, load_file
from tilewright.lab.verify.verify import Check, Oracle

KERNEL = catalog()["cpu/strassen_fused"]
MODULE = importlib.import_module(KERNEL.function.__module__)
#: The same function serves both, and takes 5 s to compile for each.
DTYPES = ("float32", pytest.param("float64", marks=pytest.mark.thorough))

Shape = tuple[int, int, int]


def operands(shape: Shape, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    return rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, *, leaf: int, threads: int = 1, kernel: Kernel = KERNEL) -> np.ndarray:
    c = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    runner(kernel, a.dtype, threads=threads, params={"leaf": leaf})(a, b, c)
    return c


def checked(a: np.ndarray, b: np.ndarray, c: np.ndarray, leaf: int) -> Check:
    """Held to the bound that the kernel declares."""
    assert KERNEL.error_bound is not None
    return Oracle(a, b).check(c, normwise=KERNEL.error_bound(*c.shape, a.shape[1], leaf=leaf))


def leaf_for(levels: int, shape: Shape) -> int:
    """The leaf that makes just so many levels."""
    return min(shape) >> levels if levels else min(shape)


# ---- the scheme ------------------------------------------------------------------------------------------------------


def by_scheme(scheme: Scheme, levels: int) -> np.ndarray:
    """What the scheme makes of every pair of elements: [row and column of C, of A, of B]."""
    size = 2**levels
    made = np.zeros((size,) * 6, int)
    for terms in scheme:
        for (i, j, x), (r, s, y), (u, v, z) in itertools.product(terms[C], terms[A], terms[B]):
            made[i, j, r, s, u, v] += x * y * z
    return made


def matrix_product(levels: int) -> np.ndarray:
    one = np.eye(2**levels, dtype=int)
    return np.einsum("ir,su,vj->ijrsuv", one, one, one)


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_the_scheme_multiplies_matrices(levels: int) -> None:
    scheme = scheme_of_levels(levels)
    assert len(scheme) == 7**levels
    assert np.array_equal(by_scheme(scheme, levels), matrix_product(levels))
    i, j, sign = scheme[-1][C][0]
    scheme[-1][C][0] = i, j, -sign
    assert not np.array_equal(by_scheme(scheme, levels), matrix_product(levels)), "a wrong sign is seen"


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_an_element_is_made_of_12_products_a_level_at_most(levels: int) -> None:
    """What the error bound counts: in each block of C, the products of elements that go into it."""
    made = np.zeros((2**levels,) * 2, int)
    for terms in scheme_of_levels(levels):
        for i, j, _ in terms[C]:
            made[i, j] += len(terms[A]) * len(terms[B])
    assert made.max() == 12**levels


def test_tables_say_what_the_schemes_say() -> None:
    schemes = [scheme_of_levels(0), scheme_of_levels(2)]
    terms, counts = tables(schemes)
    for number, said in enumerate([*schemes[0], *schemes[1]]):
        for side in (A, B, C):
            found = [tuple(row[:3]) for row in terms[number, side, : counts[number, side]].tolist()]
            assert found == said[side]
    first = terms[1:, C, :, 3].sum()
    assert first == 16, "every block of C is written by one product that does not add"


def test_every_sum_has_a_term_to_start_from() -> None:
    assert all(max(row) == 1 for side in (A, B) for row in coefficients(side))


# ---- right within the bound ------------------------------------------------------------------------------------------

SHAPES: list[Shape] = [
    (8, 8, 8),
    (9, 65, 17),
    (100, 130, 90),
    (127, 127, 127),
    (97, 300, 33),
    (401, 67, 1100),
    (50, 1100, 70),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_on_any_level(shape: Shape, levels: int, dtype: str) -> None:
    a, b = operands(shape, dtype)
    leaf = leaf_for(levels, shape)
    assert MODULE.levels_of.py_func(*shape, leaf) == levels
    alone = product(a, b, leaf=leaf)
    check = checked(a, b, alone, leaf)
    assert check.ok, check.reason
    for threads in (2, 3, 16):
        assert np.array_equal(product(a, b, leaf=leaf, threads=threads), alone), "the bits know the threads"


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "reversed Fortran": lambda x: np.asfortranarray(x[::-1, ::-1])[::-1, ::-1],
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_no_bit(layout: str, dtype: str) -> None:
    a, b = operands((130, 210, 190), dtype)
    for leaf in (30, 60, 500):
        c = product(a, b, leaf=leaf)
        assert np.array_equal(product(LAYOUTS[layout](a), b, leaf=leaf), c)
        assert np.array_equal(product(a, LAYOUTS[layout](b), leaf=leaf), c)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_size_for_which_the_rule_wants_levels(dtype: str) -> None:
    shape = (MODULE.TWO_FROM + 1,) * 3
    assert MODULE.levels_of.py_func(*shape, 0) == 2
    assert MODULE.levels_of.py_func(*(size - 1 for size in shape), 0) == 0
    a, b = operands(shape, dtype)
    c = product(a, b, leaf=0, threads=2)
    assert checked(a, b, c, 0).ok
    assert np.array_equal(c, product(a, b, leaf=shape[0] // 4 + 1, threads=1))


@pytest.mark.slow
def test_every_repetition_has_the_same_bits() -> None:
    """Whoever comes first: eight threads on a few cores take their jobs in many orders."""
    a, b = operands((600, 700, 1300), "float32")
    first = product(a, b, leaf=100)
    for _ in range(20):
        assert np.array_equal(product(a, b, leaf=100, threads=8), first)


# ---- the checks can fail ---------------------------------------------------------------------------------------------


def planted(path: Path, edit: str) -> Kernel:
    """The kernel with a line more before its code: a file of its own, so that no cache takes it for the right one."""
    source = KERNEL.path.read_text(encoding="utf-8")
    marker = "micro = codegen"
    assert source.count(marker) == 1
    path.write_text(source.replace(marker, f"{edit}\n{marker}"), encoding="utf-8")
    return load_file(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        "INNER[4, 1] *= -1",
        *(
            pytest.param(edit, marks=pytest.mark.further)
            for edit in ("TERMS[3, C, 1, 2] *= -1", "TERMS[2, A, 0, 2] *= -1")
        ),
    ],
)
def test_a_wrong_sign_is_rejected_by_the_bound(edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    wrong = planted(tmp_path / "wrong.py", edit)
    for shape in ((200, 210, 220), (700, 600, 800)):
        a, b = operands(shape, "float32")
        leaf = leaf_for(2, shape)
        c = product(a, b, leaf=leaf, kernel=wrong)
        assert not checked(a, b, c, leaf).ok
        assert checked(a, b, product(a, b, leaf=leaf), leaf).ok


def test_the_bound_grows_by_level_and_is_none_without() -> None:
    assert KERNEL.error_bound is not None
    assert KERNEL.error_bound(4096, 4096, 4096, leaf=4096) is None
    factors = [KERNEL.error_bound(4096, 4096, 4096, leaf=leaf) or 0 for leaf in (2048, 1024, 512)]
    assert factors == sorted(factors)
    assert factors[0] > 0
    assert KERNEL.error_bound(1000, 1000, 1000, leaf=0) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_worst_operands_stay_within_the_bound(dtype: str) -> None:
    """Signs that make every sum of quarters as large as it can be, and products that cancel in C."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        a, b = (np.where(rng.random((160, 160)) < 0.5, 1 - rng.random() / 9, -1.0).astype(dtype) for _ in range(2))
        for leaf in (20, 40, 80):
            check = checked(a, b, product(a, b, leaf=leaf), leaf)
            assert check.ok, check.reason


# ---- workspace -------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("(300, 40, 600)", "(130, 520, 1030)")
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 700, 3), (300, 40, 600), (130, 520, 1030)], ids=str)
def test_it_stays_inside_its_workspace(shape: Shape, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = 4096
    given: list[np.ndarray] = []

    @contextlib.contextmanager
    def fenced(nbytes: int) -> Iterator[np.ndarray]:
        large = np.full(nbytes + 2 * beyond, 0xA5, np.uint8)
        given.append(large)
        yield large[beyond : beyond + nbytes]

    monkeypatch.setattr(cpu, "take_workspace", fenced)
    a, b = operands(shape, dtype)
    for levels, layout in itertools.product(range(4), (np.ascontiguousarray, np.asfortranarray)):
        c = product(layout(a), layout(b), leaf=leaf_for(levels, shape) or 1, threads=20)
        assert np.isfinite(c).all()
    assert given
    assert all((x[:beyond] == 0xA5).all() and (x[-beyond:] == 0xA5).all() for x in given)


def test_workspace_is_bounded() -> None:
    assert KERNEL.workspace is not None
    assert KERNEL.workspace(10**6, 10**6, 10**6) == KERNEL.workspace(10**4, 10**4, 10**4)
    of_a_thread = max(2 << 20, 4 * (machine().l2 or 0)) // 8  # seven blocks of A, each of which L2 holds
    assert KERNEL.workspace(10**4, 10**4, 10**4) < 2 * 2048**2 + MODULE.SLOTS() * of_a_thread


def test_a_stop_ends_it_at_once() -> None:
    """What Ctrl-C does: every counter is far beyond all work."""
    a, b = operands((300, 300, 300), "float32")
    c = np.zeros((300, 300), np.float32)
    assert KERNEL.workspace is not None
    assert KERNEL.counters is not None
    space = np.zeros(KERNEL.workspace(300, 300, 300), np.float32)
    counters = np.full(KERNEL.counters(300, 300, 300) + 1, STOP)
    code = cpu.compiled(KERNEL, np.dtype("float32"))
    code(a, b, c, space, counters, 50)
    assert not c.any()
    counters[:] = 0
    code(a, b, c, space, counters, 50)
    assert checked(a, b, c, 50).ok


# ---- the generators, for other machines ------------------------------------------------------------------------------


@pytest.mark.slow_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mr", "nv", "bits", "unroll"), [(1, 1, 128, 1), (3, 4, 256, 2), (6, 4, 128, 1), (6, 4, 512, 2)]
)
def test_tiles_of_any_machine(mr: int, nv: int, bits: int, unroll: int, dtype: str) -> None:
    stride, nr = 40, nv * bits // 8 // np.dtype(dtype).itemsize
    micro = strassen_tile.spreading_kernel(mr, nv, bits, stride, unroll=unroll)
    adder, ask = strassen_tile.tile_adder(mr, nv, bits), strassen_tile.tile_prefetch(mr, nv, bits)
    element = nb.from_dtype(np.dtype(dtype))
    flat, matrix = nb.types.Array(element, 1, "C"), nb.types.Array(element, 2, "A")

    @nb.njit((nb.intp, flat, flat, flat, nb.int64[::1], matrix, nb.intp, nb.intp))
    def run(kc: int, a: Any, b: Any, tiles: Any, terms: Any, c: Any, sign: int, overwrite: int) -> None:
        ldc = c.strides[0] // c.itemsize
        ask(memory.address(c, 0, 0), ldc)
        micro(kc, memory.offset(a, 0), memory.offset(b, 0), memory.offset(tiles, 0), memory.offset(terms, 0), 2)
        adder(memory.offset(tiles, 0), memory.address(c, 0, 0), ldc, sign, overwrite)

    rng = np.random.default_rng(0)
    for kc, overwrite in itertools.product((1, 2, 7, 40), (0, 1)):
        a, b, old, before = (
            rng.integers(-4, 5, s).astype(dtype) for s in ((mr, stride), (kc, nr), (2, mr, nr), (mr, nr))
        )
        old[1] = np.nan  # the tile that is overwritten
        tiles, exact = old.flatten(), a[:, :kc] @ b
        large = np.full((mr + 2, nr + 4), 7.5, dtype)
        c = large[1:-1, 3:-1]
        c[...] = np.nan if overwrite else before
        run(kc, a.ravel(), b.ravel(), tiles, np.array([0, -1, 0, 1, 1, 1]), c, -1, overwrite)
        assert np.array_equal(tiles.reshape(2, mr, nr), [old[0] - exact, exact])
        assert np.array_equal(c, (0 if overwrite else before) - (old[0] - exact))
        c[...] = 7.5
        assert (large == 7.5).all(), "wrote beside the tile"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_sums_of_rows(bits: int, dtype: str) -> None:
    add = strassen_tile.row_adder(bits)
    combine = strassen_tile.combiner([[1, 0, -1], [0, 1, 1]], bits)
    flat = nb.types.Array(nb.from_dtype(np.dtype(dtype)), 1, "C")

    @nb.njit((flat, flat, nb.intp, nb.intp, nb.intp))
    def row(target: Any, source: Any, count: int, sign: int, overwrite: int) -> None:
        add(memory.offset(target, 1), memory.offset(source, 1), count, sign, overwrite, 8)

    @nb.njit((flat, flat, nb.intp))
    def sums(target: Any, source: Any, count: int) -> None:
        combine(memory.offset(source, 0), 64, memory.offset(target, 0), 64, count)

    x, y = (np.random.default_rng(seed).integers(-9, 10, 192).astype(dtype) for seed in (1, 2))
    for count, sign, overwrite in itertools.product((0, 1, 15, 16, 37), (1, -1), (0, 1)):
        target = y.copy()
        row(target, x, count, sign, overwrite)
        expected = y.copy()
        expected[1 : 1 + count] = sign * x[1 : 1 + count] + (0 if overwrite else y[1 : 1 + count])
        assert np.array_equal(target, expected)
    target = np.zeros(128, dtype)
    sums(target, x, 50)
    terms = x.reshape(3, 64)
    assert np.array_equal(target.reshape(2, 64)[:, :50], [(terms[0] - terms[2])[:50], (terms[1] + terms[2])[:50]])
