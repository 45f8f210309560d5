"""PTX of other compilers than NVIDIA's for C++: Numba and Triton. Their kernels run right, are silent, name Python lines.

The sources are ``data/numba_kernels.py``, ``data/triton_kernels.py`` and, for Blackwell, ``data/triton_blackwell.py``,
which also say how the PTX was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tensor_kernels import E2M1
from tilewright.errors import UsageError
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.findings import BY_THE_LETTER

DATA = Path(__file__).parents[1] / "data"
#: What Triton says that they need (``compiled.metadata.shared``), and two pointers to scratch memory that it adds.
TRITON_GEMM_SHARED, TRITON_SOFTMAX_SHARED, SCRATCH = 12288, 16, [None, None]


def text(name: str) -> str:
    return (DATA / f"{name}.ptx").read_text(encoding="utf-8")


def line_of(source: str, words: str) -> int:
    """The line of a Python source that holds some words."""
    lines = (DATA / source).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers: sums of their products are exact."""
    return np.random.default_rng(list(shape)).integers(-3, 4, shape).astype(dtype)


def numba_array(array: np.ndarray, *shape: int) -> list[Any]:
    """An array as Numba passes it: two pointers of its own, size, item size, data, shape and strides."""
    return [None, None, array.size, array.itemsize, array, *(shape or array.shape), *array.strides]


def numba_gemm(m: int, n: int, k: int, rows_claimed: int = 0) -> tuple[Run, np.ndarray]:
    a, b, c = numbers(m, k), numbers(k, n), np.full((m, n), np.nan, np.float32)
    args = [*numba_array(a), *numba_array(b), *numba_array(c, rows_claimed or m, n)]
    run = simulate(text("numba_gemm"), "gemm", (-(-n // 16), -(-m // 16)), (16, 16), args, RunOptions(outputs=[22]))
    return run, a.astype(np.float64) @ b


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 16, 16), (40, 33, 50), (5, 70, 0)], ids=str)
def test_numba_gemm(shape: tuple[int, int, int]) -> None:
    run, right = numba_gemm(*shape)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[22], right)


def test_numba_defect_names_the_python_line() -> None:
    """C is said to have a row more than it has."""
    run, _ = numba_gemm(16, 16, 16)
    assert not run.findings
    a, b, c = numbers(17, 16), numbers(16, 16), np.zeros((16, 16), np.float32)
    args = [*numba_array(a), *numba_array(b), *numba_array(c, 17, 16)]
    found = simulate(text("numba_gemm"), "gemm", (1, 2), (16, 16), args).findings
    assert [(f.kind, f.file, f.line) for f in found] == [
        ("out of bounds", "numba_kernels.py", line_of("numba_kernels.py", "c[row, column] = total"))
    ]
    assert (found[0].block, found[0].thread) == ((0, 1, 0), (0, 0, 0))


@pytest.mark.parametrize("block", [32, 96])
def test_numba_dynamic_shared_memory_and_atomics(block: int) -> None:
    values, counts = numbers(500, dtype=np.int32) + 3, np.zeros(40, np.int32)
    args = [*numba_array(values), *numba_array(counts)]
    run = simulate(text("numba_histogram"), "histogram", 3, block, args, RunOptions(outputs=[11], shared_bytes=160))
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[11], np.bincount(values % 40, minlength=40))


def test_numba_dynamic_shared_memory_too_small() -> None:
    args = [*numba_array(np.ones(64, np.int32)), *numba_array(np.zeros(40, np.int32))]
    run = simulate(text("numba_histogram"), "histogram", 1, 32, args, RunOptions(shared_bytes=128))
    lines = {line_of("numba_kernels.py", "held[i] = 0"), line_of("numba_kernels.py", "atomic.add(counts, i, held[i])")}
    assert {(f.kind, f.line) for f in run.findings} == {("out of bounds", line) for line in lines}


def triton_gemm(m: int, n: int, k: int, rows: int = 0) -> tuple[Run, np.ndarray]:
    """``rows`` of C, if not m."""
    a, b = numbers(m, k, dtype=np.float16), numbers(k, n, dtype=np.float16)
    c = np.full((rows or m, n), np.nan, np.float32)
    args = [a, b, c, m, n, k, *SCRATCH]
    grid = (-(-m // 64), -(-n // 32))
    run = simulate(
        text("triton_gemm"), "gemm", grid, 128, args, RunOptions(outputs=[2], shared_bytes=TRITON_GEMM_SHARED)
    )
    return run, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("shape", [(64, 32, 32), (96, 48, 160), (16, 16, 16), (128, 80, 96)], ids=str)
def test_triton_gemm(shape: tuple[int, int, int]) -> None:
    """Tensor cores, fed by ldmatrix from a pipeline of cp.async."""
    run, right = triton_gemm(*shape)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[2], right)


def test_triton_defect_names_the_python_line() -> None:
    """C is a row short."""
    run, _ = triton_gemm(64, 32, 32, rows=63)
    assert {(f.kind, f.file, f.line) for f in run.findings} == {
        ("out of bounds", "triton_kernels.py", line_of("triton_kernels.py", "tl.store(c + rows"))
    }


def the_fence_that_triton_leaves_out(run: Run) -> bool:
    """Triton sets the accumulator to 0 by tcgen05.st, and has no fence of tcgen05 before the first product."""
    return [(f.kind, f.grade) for f in run.findings] == [("missing fence", BY_THE_LETTER)]


def test_triton_multiplies_scaled_numbers_of_4_bits_on_blackwell() -> None:
    """``tcgen05.mma`` with scales, which threads store in tensor memory."""
    random, (m, n, k) = np.random.default_rng(4), (128, 64, 256)
    codes = [random.integers(0, 16, (rows, k)) for rows in (m, n)]
    powers = [random.integers(-1, 2, (rows, k // 32)) for rows in (m, n)]
    args = []
    for code, power in zip(codes, powers, strict=True):
        args += [(code[:, ::2] | code[:, 1::2] << 4).astype(np.uint8), (power + 127).astype(np.uint8)]
    a, b = (E2M1[code] * np.exp2(power.repeat(32, axis=1)) for code, power in zip(codes, powers, strict=True))
    args += [np.zeros((m, n), np.float32), m, n, k, *SCRATCH]
    run = simulate(text("triton_scaled"), "scaled", (1, 2), 128, args, RunOptions(outputs=[4], shared_bytes=20992))
    assert the_fence_that_triton_leaves_out(run)
    np.testing.assert_array_equal(run.arrays[4], a @ b.T)


def test_triton_makes_tensor_maps_on_blackwell() -> None:
    """``tensormap.replace`` of a map of zeros in shared memory, which is copied to scratch memory."""
    m, n, k = 128, 64, 192
    a, b, scratch = numbers(m, k, dtype=np.float16), numbers(n, k, dtype=np.float16), np.zeros(2 * 256, np.uint8)
    args = [a, b, np.zeros((m, n), np.float32), m, n, k, scratch, None]
    run = simulate(text("triton_descriptors"), "descriptors", (1, 2), 128, args, RunOptions(shared_bytes=61488))
    assert the_fence_that_triton_leaves_out(run)
    np.testing.assert_array_equal(run.arrays[2], a.astype(np.float64) @ b.T.astype(np.float64))


@pytest.mark.parametrize("n", [16, 400, 512])
def test_triton_softmax(n: int) -> None:
    """Shuffles, and sums in shared memory; inlined from Triton's own library."""
    x = np.random.default_rng(n).random((5, n), np.float32)
    args = [x, np.full_like(x, np.nan), n, *SCRATCH]
    run = simulate(
        text("triton_softmax"), "softmax", 5, 128, args, RunOptions(outputs=[1], shared_bytes=TRITON_SOFTMAX_SHARED)
    )
    power = np.exp(x.astype(np.float64))
    assert run.findings == []
    np.testing.assert_allclose(run.arrays[1], power / power.sum(axis=1, keepdims=True), rtol=1e-5)


def test_a_finding_inside_a_library_says_who_called() -> None:
    """One reduction uses shared memory that the launch does not give."""
    x = np.ones((1, 512), np.float32)
    run = simulate(text("triton_softmax"), "softmax", 1, 128, [x, x.copy(), 512, *SCRATCH], RunOptions(shared_bytes=8))
    inside = [f for f in run.findings if f.file == "standard.py"]
    callers = {line_of("triton_kernels.py", "tl.max(row"), line_of("triton_kernels.py", "tl.sum(power")}
    assert inside
    assert all(any(f"(called from triton_kernels.py:{line})" in f.text for line in callers) for f in inside)


def test_a_block_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kernel softmax needs blocks of \(128, 1, 1\) threads, given \(64, 1, 1\)"):
        simulate(
            text("triton_softmax"), "softmax", 1, 64, [np.ones(16, np.float32), np.ones(16, np.float32), 16, *SCRATCH]
        )
