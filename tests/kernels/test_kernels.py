"""Every kernel of the ladder × dtypes × awkward shapes × strides × threads, held to the oracle.

Nothing here knows a kernel by name: a file added to the ladder is tested by being there. Block sizes are read from what
the kernel says of itself, recursions are made to recurse by a small leaf, and every output is NaN before a kernel runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cpu.runtime.runner import runner
from tilewright.errors import UnavailableError
from tilewright.kernels import FLOATS, Kernel
from tilewright.kernels.catalog import catalog
from tilewright.lab.verify.verify import Oracle

LADDER = [kernel for kernel in catalog().values() if not kernel.is_reference]
REFERENCES = [kernel for kernel in catalog().values() if kernel.is_reference]

Shape = tuple[int, int, int]  # m, n, k


@dataclass(frozen=True)
class Variant:
    """A kernel with parameters and a dtype: what one row of the table tests."""

    kernel: Kernel
    dtype: str
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        params = "".join(f"-{name}{value}" for name, value in self.params.items())
        return f"{self.kernel.name}{params}-{self.dtype}"

    @property
    def threads(self) -> tuple[int, ...]:
        return (1,) if self.kernel.shared == "serial" else (1, 2, 3)

    def run(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int = 1) -> np.ndarray:
        """Poison ``c``, compute it, return it."""
        c[...] = np.nan if c.dtype.kind in "fc" else np.iinfo(c.dtype).max
        with np.errstate(all="ignore"):
            runner(self.kernel, self.dtype, threads=threads, params=self.params)(a, b, c)
        return c

    def product(self, a: np.ndarray, b: np.ndarray, threads: int = 1) -> np.ndarray:
        return self.run(a, b, np.empty((a.shape[0], b.shape[1]), self.dtype), threads)

    def verify(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, what: object = "") -> None:
        """Hold ``c`` to the bound that the kernel declares."""
        normwise = None
        if self.kernel.error_bound is not None:
            tunable = {name: self.kernel.params[name] for name in self.kernel.tunable} | self.params
            normwise = self.kernel.error_bound(*c.shape, a.shape[1], **tunable)
        check = Oracle(a, b).check(c, normwise=normwise)
        assert check.ok, f"{self} {c.shape} k={a.shape[1]} {what}: {check.reason}"
        assert check.error_over_bound <= 1


def variants(*leaves: int) -> list[Variant]:
    """Every kernel and float dtype that it takes; those with a leaf once for each of ``leaves``."""
    made = []
    for kernel, dtype in ((kernel, dtype) for kernel in LADDER for dtype in FLOATS if dtype in kernel.dtypes):
        choices: list[dict[str, Any]] = [{"leaf": leaf} for leaf in leaves] if "leaf" in kernel.tunable else [{}]
        made += [Variant(kernel, dtype, params) for params in choices]
    return made


#: Leaf 16: products of 33 to 130 recurse once to three times.
VARIANTS = variants(16)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def operands(shape: Shape, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    return rng.uniform(-1, 1, (m, k)).astype(dtype), rng.uniform(-1, 1, (k, n)).astype(dtype)


def whole_numbers(shape: Shape, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Operands so small that every order of summation, and every recursion, is exact."""
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    return rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)


# ---- shapes ----------------------------------------------------------------------------------------------------------

#: Nothing, one, primes, odd at every level of a recursion (2ⁿ − 1), tall, wide, deep.
AWKWARD: list[Shape] = [
    *((0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (0, 0, 5), (70, 70, 0)),
    *((1, 1, 1), (1, 97, 31), (97, 1, 31), (31, 97, 1), (2, 3, 5), (13, 17, 11), (97, 89, 83)),
    *((33, 33, 33), (63, 63, 63), (127, 127, 127), (35, 64, 70), (66, 33, 48)),
    *((500, 3, 5), (3, 500, 5), (3, 5, 2000), (1, 1, 4099), (301, 302, 2)),
]


def block_sizes(kernel: Kernel, dtype: str) -> tuple[set[int], set[int], set[int]]:
    """The sizes at which something in the kernel begins anew, along m, n and k."""
    params = kernel.params | (catalog()[kernel.over].params if kernel.over else {})
    square = {params[name] for name in ("block",) if name in params}
    nr = {params["nv"] * params["vector_bits"] // 8 // np.dtype(dtype).itemsize} if "nv" in params else set()
    own = {axis: {params[name] for name in names if name in params} for axis, names in _AXES.items()}
    return square | own["m"], square | own["n"] | nr, square | own["k"]


_AXES = {"m": ("mr", "mc"), "n": ("nr", "nc"), "k": ("kc",)}


def shapes(kernel: Kernel, dtype: str) -> Iterator[Shape]:
    """The table, and one below, at and above each block size of the kernel; the other two sizes stay small."""
    yield from AWKWARD
    along_m, along_n, along_k = block_sizes(kernel, dtype)
    for off in (-1, 0, 1):
        yield from ((size + off, 37, 29) for size in along_m)
        yield from ((29, size + off, 7) for size in along_n)
        yield from ((7, 37, size + off) for size in along_k)
        small_m, small_n = min(along_m, default=7), min(along_n, default=7)
        yield (small_m + off, small_n + off, max(along_k, default=7) + off)


@pytest.mark.slow_cases("leaf16", "cpu/blocked-float64", "cpu/aligned-float64", "cpu/unrolled-float64")
@pytest.mark.each_value
@every_variant
def test_shapes(variant: Variant) -> None:
    for shape in shapes(variant.kernel, variant.dtype):
        a, b = operands(shape, variant.dtype)
        results = [variant.product(a, b, threads) for threads in variant.threads]
        variant.verify(a, b, results[0])
        for threads, c in zip(variant.threads, results, strict=True):
            # C is cut among threads, k never is: the bits do not depend on how many there are
            assert np.array_equal(c, results[0]), f"{variant} {shape}: other bits on {threads} threads"


@pytest.mark.slow_cases(
    "cpu/strassen-leaf0-float32",
    "cpu/strassen-leaf1-float32",
    "cpu/strassen-leaf0-float64",
    "cpu/strassen-leaf1-float64",
    "cpu/strassen_buffer-leaf0-float32",
    "cpu/strassen_buffer-leaf1-float32",
    "cpu/strassen_buffer-leaf0-float64",
    "cpu/strassen_buffer-leaf1-float64",
    "cpu/strassen_winograd-leaf0-float64",
    "cpu/strassen_winograd-leaf1-float64",
    "cpu/strassen_fused-leaf20-float32",
    "cpu/strassen_fused-leaf2048-float32",
    "cpu/strassen_fused-leaf0-float64",
    "cpu/strassen_fused-leaf1-float64",
    "cpu/strassen_fused-leaf20-float64",
    "cpu/strassen_fused-leaf2048-float64",
)
@pytest.mark.parametrize("variant", [v for v in variants(0, 1, 20, 2048) if v.params], ids=str)
def test_recursions_to_any_depth(variant: Variant) -> None:
    for shape in [(1, 1, 1), (2, 2, 2), (3, 3, 3), (7, 9, 5), (15, 15, 15), (17, 12, 13), (41, 43, 83)]:
        a, b = operands(shape, variant.dtype)
        if min(shape) > 20 and variant.params["leaf"] < 2:
            continue  # 7⁵ products of single numbers prove nothing that 7³ do not
        for threads in (1, 2):
            variant.verify(a, b, variant.product(a, b, threads), threads)


@pytest.mark.slow
def test_recursions_recurse() -> None:
    """Else the table above would test the kernel below three times: a recursion rounds otherwise than its leaf."""
    for variant in (v for v in VARIANTS if v.params):
        a, b = operands((64, 64, 64), variant.dtype)
        leaf = Variant(variant.kernel, variant.dtype, {"leaf": 64})
        assert not np.array_equal(variant.product(a, b), leaf.product(a, b))


# ---- strides ---------------------------------------------------------------------------------------------------------


def spread(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """``x`` in every ``rows``-th row and ``columns``-th column of a larger array, which is NaN elsewhere."""
    large = np.full((x.shape[0] * rows + 1, x.shape[1] * columns + 1), np.nan, x.dtype)
    view = large[: x.shape[0] * rows : rows, : x.shape[1] * columns : columns]
    view[...] = x
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def one_element_off(x: np.ndarray) -> np.ndarray:
    """C-ordered, and aligned to nothing but its elements."""
    flat = np.empty(x.size + 1, x.dtype)[1:]
    flat[:] = x.ravel()
    return flat.reshape(x.shape)


Layout = Callable[[np.ndarray], np.ndarray]
INPUTS: dict[str, Layout] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "part of C": lambda x: spread(x, 1, 1),
    "part of Fortran": lambda x: spread(x.T, 1, 1).T,
    "every second row": lambda x: spread(x, 2, 1),
    "every second column": lambda x: spread(x, 1, 2),
    "transposed and spread": lambda x: spread(x.T, 3, 2).T,
    "upside down": lambda x: x[::-1].copy()[::-1],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "one element off": one_element_off,
    "read-only": read_only,
    "read-only Fortran": lambda x: read_only(x.T).T,
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one number for all": lambda x: np.broadcast_to(x[:1, :1], x.shape),
}

#: Where C lies in a larger array of (2m + 4) × (2n + 4), or in the transpose of one.
OUTPUTS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "part of C": lambda x, m, n: x[2 : 2 + m, 3 : 3 + n],
    "every second row": lambda x, m, n: x[1 : 1 + 2 * m : 2, 2 : 2 + n],
    "every second column": lambda x, m, n: x[2 : 2 + m, 1 : 1 + 2 * n : 2],
    "both": lambda x, m, n: x[1 : 1 + 2 * m : 2, 1 : 1 + 2 * n : 2],
    "upside down": lambda x, m, n: x[2 : 2 + m, 2 : 2 + n][::-1],
    "mirrored": lambda x, m, n: x[2 : 2 + m, 2 : 2 + n][:, ::-1],
    "backwards": lambda x, m, n: x[2 : 2 + m, 2 : 2 + n][::-1, ::-1],
}


@pytest.mark.slow_cases("leaf16")
@pytest.mark.each_value
@every_variant
def test_strides_of_inputs(variant: Variant) -> None:
    a, b = operands((45, 53, 39), variant.dtype)
    for (name_a, of_a), (name_b, of_b) in itertools.product(INPUTS.items(), repeat=2):
        if "C" not in (name_a, name_b) and name_a != name_b:
            continue  # one operand at a time, and both alike
        x, y = of_a(a), of_b(b)
        before = x.tobytes(), y.tobytes()
        for threads in variant.threads[:2]:
            variant.verify(x, y, variant.product(x, y, threads), f"a: {name_a}, b: {name_b}, {threads} threads")
        assert (x.tobytes(), y.tobytes()) == before, f"{variant} writes its operands"


@pytest.mark.slow_cases("leaf16")
@pytest.mark.each_value
@every_variant
@pytest.mark.parametrize("transposed", [False, True], ids=["row-major", "column-major"])
def test_strides_of_output(variant: Variant, transposed: bool) -> None:
    for (name, place), shape in itertools.product(OUTPUTS.items(), [(35, 53, 39), (1, 9, 3), (9, 1, 3), (5, 4, 0)]):
        m, n, _ = shape
        a, b = operands(shape, variant.dtype)
        for threads in variant.threads:
            large = np.full((2 * m + 4, 2 * n + 4), 7.5, variant.dtype, order="F" if transposed else "C")
            c = place(large, m, n)
            variant.verify(a, b, variant.run(a, b, c, threads), name)
            c[...] = 7.5  # then all of it is as it was, unless something else was written too
            assert (large == 7.5).all(), f"{variant} {shape}: writes beside C, {name}, {threads} threads"


@pytest.mark.slow_cases("cpu/strassen_fused")
@every_variant
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    shape=st.tuples(*[st.integers(0, 70)] * 3),
    offsets=st.tuples(*[st.integers(0, 15)] * 3),
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_any_shape_at_any_address(variant: Variant, shape: Shape, offsets: Shape, threads: int, seed: int) -> None:
    """Operands that start at any element of a cache line; the oracle is float64."""
    m, n, _ = shape
    a, b = (_at(x, offset) for x, offset in zip(operands(shape, variant.dtype, seed), offsets, strict=False))
    c = _at(np.empty((m, n), variant.dtype), offsets[2])
    variant.verify(a, b, variant.run(a, b, c, threads), offsets)


def _at(x: np.ndarray, offset: int) -> np.ndarray:
    flat = np.empty(x.size + offset, x.dtype)[offset:]
    flat[:] = x.ravel()
    return flat.reshape(x.shape)


# ---- what must hold exactly ------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("cpu/strassen_fused")
@every_variant
def test_whole_numbers_are_exact(variant: Variant) -> None:
    for shape in [(37, 41, 43), (64, 64, 64), (70, 33, 129)]:
        a, b = whole_numbers(shape, variant.dtype)
        exact = a.astype(np.int64) @ b.astype(np.int64)
        for threads in variant.threads:
            assert np.array_equal(variant.product(a, b, threads), exact)


@pytest.mark.slow_cases("cpu/strassen_fused")
@every_variant
def test_identity_permutation_and_linearity(variant: Variant) -> None:
    a, b = whole_numbers((66, 66, 66), variant.dtype)
    order = np.random.default_rng(1).permutation(66)
    one = np.eye(66, dtype=variant.dtype)
    c = variant.product(a, b)
    assert np.array_equal(variant.product(a, one), a)
    assert np.array_equal(variant.product(one, b), b)
    assert np.array_equal(variant.product(one[order], b), b[order])
    assert np.array_equal(variant.product(a[order], b), c[order])
    assert np.array_equal(variant.product(a[:, order], b[order]), c)
    assert np.array_equal(variant.product(a + b, b), c + variant.product(b, b))
    assert np.array_equal(variant.product(a.T, b.T), variant.product(b, a).T)


@pytest.mark.slow_cases("cpu/strassen_fused")
@every_variant
def test_scaling_by_powers_of_two_keeps_the_bits(variant: Variant) -> None:
    a, b = operands((51, 67, 45), variant.dtype)
    scaled = variant.product(a * 1024, b / 8)
    assert np.array_equal(scaled, variant.product(a, b) * 128)


# ---- NaN and infinity ------------------------------------------------------------------------------------------------

#: Where something special stands in A, 37×45, and in B, 45×41: a corner, the inside, the tail of every block.
SPECIAL_PLACES = [(0, 0), (17, 20), (36, 40)]


@pytest.mark.slow_cases("cpu/strassen_fused", "-inf-cpu/direct-float64")
@every_variant
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_propagate(variant: Variant, special: float) -> None:
    for row, column in SPECIAL_PLACES:
        a, b = operands((37, 41, 45), variant.dtype)
        a[row, column + 4] = special
        b[column + 4, :5] = 0  # infinity times zero is NaN
        c = variant.product(a, b)
        with np.errstate(invalid="ignore"):
            expected = a.astype(np.float64) @ b.astype(np.float64)
        assert not np.isfinite(c[row]).any(), "the row that it stands in"
        if variant.kernel.error_bound is None:  # recursions subtract quarters: there it spreads, and infinity turns NaN
            assert np.array_equal(np.isnan(c), np.isnan(expected))
            assert np.array_equal(np.isposinf(c), np.isposinf(expected))
            assert np.array_equal(np.isneginf(c), np.isneginf(expected))


# ---- integers, complex numbers ---------------------------------------------------------------------------------------

#: Floats of 16 bits have tests of their own: Numba sees them as integers.
OTHER_DTYPES = [
    Variant(k, dtype) for k in LADDER for dtype in k.dtypes if dtype not in (*FLOATS, "float16", "bfloat16")
]


@pytest.mark.slow_cases(
    "cpu/direct", "complex128", "cpu/integer_dots", "cpu/integer_tiles", "cpu/narrow_integers", "cpu/packed-int64"
)
@pytest.mark.parametrize("variant", OTHER_DTYPES, ids=str)
def test_integers_wrap_and_complex_numbers_multiply(variant: Variant) -> None:
    rng = np.random.default_rng(3)
    dtype = np.dtype(variant.dtype)
    for m, n, k in [(0, 3, 2), (3, 2, 0), (1, 1, 1), (37, 41, 67), (65, 3, 129)]:
        a, b = (_any_numbers(rng, shape, dtype) for shape in ((m, k), (k, n)))
        for threads, layout in itertools.product(variant.threads, (np.ascontiguousarray, np.asfortranarray)):
            c = variant.product(layout(a), layout(b), threads)
            if dtype.kind == "c":
                magnitude = np.abs(a) @ np.abs(b)
                assert (np.abs(c - a @ b) <= 8 * (k + 1) * np.finfo(dtype).eps * magnitude).all()
            else:
                assert np.array_equal(c, a @ b)


def _any_numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """The whole range of an integer, so that sums overflow; the unit square of complex numbers."""
    if dtype.kind == "c":
        return (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


# ---- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda kernel: kernel.name)
def test_references_are_right_too(reference: Kernel, dtype: str) -> None:
    variant = Variant(reference, dtype)
    try:
        variant.product(np.ones((1, 1), dtype), np.ones((1, 1), dtype))
    except UnavailableError as missing:
        pytest.skip(str(missing))
    for shape in AWKWARD:
        a, b = operands(shape, dtype)
        variant.verify(a, b, variant.product(a, b))


# ---- what kernels say of themselves ----------------------------------------------------------------------------------


@pytest.mark.slow_cases(
    "cpu/integer_dots", "cpu/bfloat16_dots", "cpu/integer_tiles", "cpu/bfloat16_tiles", "cpu/narrow_integers"
)
@pytest.mark.parametrize("kernel", [*LADDER, *REFERENCES], ids=lambda kernel: kernel.name)
def test_a_kernel_describes_itself(kernel: Kernel) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", kernel.idea), "one sentence"
    assert ". " not in kernel.idea, "one sentence"
    assert re.fullmatch(r"S\d+(\.\d+)?(, S\d+(\.\d+)?)*", kernel.row)
    assert kernel.parent is None or kernel.parent in catalog()
    assert kernel.over is None or kernel.over in catalog()
    assert set(kernel.dtypes) >= set(FLOATS) or not set(kernel.dtypes) & set(FLOATS), "both or neither"
    assert kernel.tunable <= kernel.params.keys()
    assert kernel.path.is_file()
    assert (kernel.path.read_text().split('"""')[1]).strip(), "the file says what it does"


def test_the_ladder_is_a_chain_from_one_root() -> None:
    assert len({kernel.order for kernel in LADDER}) == len(LADDER)
    assert [kernel.name for kernel in LADDER if kernel.parent is None] == [LADDER[0].name]
    for kernel in LADDER[1:]:
        assert kernel.parent is not None
        assert catalog()[kernel.parent].order < kernel.order, "upward only, so no cycle"


@pytest.mark.slow_cases(
    "cpu/integer_dots", "cpu/bfloat16_dots", "cpu/integer_tiles", "cpu/bfloat16_tiles", "cpu/narrow_integers"
)
@pytest.mark.parametrize("kernel", [k for k in LADDER if k.workspace is not None], ids=lambda kernel: kernel.name)
def test_workspace_is_a_number_of_elements(kernel: Kernel) -> None:
    assert kernel.workspace is not None
    sizes = [kernel.workspace(n, n, n) for n in (0, 1, 100, 5000)]
    assert all(isinstance(size, int) and size >= 0 for size in sizes)
    assert sizes == sorted(sizes)
