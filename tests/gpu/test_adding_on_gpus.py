"""Kernels that add their product to C, executed without a GPU: on whole tiles, edges and strips; and C unread without."""

from __future__ import annotations

import numpy as np
import pytest

from support.simulated_gpu import parsed
from tilewright.errors import HeaderError, UsageError
from tilewright.gpu.runtime.nvrtc import Compiled, compile_kernel
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.simulator import RunOptions, simulate

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

ADDING = [kernel for kernel in cuda_catalog().values() if kernel.adds]
SMALL = {"cuda/register_banks": {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "TM": 8, "TN": 4, "STAGES": 3}}
#: Whole tiles, edges in rows and columns, strips of few rows and of few columns and both, rows that are not aligned.
SHAPES = [(64, 64, 16), (130, 72, 9), (67, 64, 20), (64, 132, 8), (131, 131, 17), (1, 1, 1), (8, 96, 33), (96, 5, 40)]


def added(kernel: CudaKernel, compiled: Compiled, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    (m, k), n = a.shape, b.shape[1]
    launch = kernel.launch(m, n, k, **SMALL.get(kernel.name, {}))
    args = [np.ascontiguousarray(a), b, c, m, n, k]
    entry = compiled.entry(kernel.entry)
    done = simulate(
        parsed(compiled.ptx),
        entry,
        launch.grid,
        launch.block,
        args,
        RunOptions(shared_bytes=launch.shared_bytes, outputs=[2]),
    )
    assert [finding for finding in done.findings if k or finding.kind != "output never written"] == []
    found = done.arrays[2]
    assert found is not None
    return found.reshape(m, n)


def values(kernel: CudaKernel, *shape: int) -> np.ndarray:
    """Small whole numbers: every order of adding them up gives the same bits."""
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(kernel.dtypes[0])


def binary(kernel: CudaKernel, add: bool) -> Compiled:
    return compile_kernel(kernel, add=add, **SMALL.get(kernel.name, {}))


def test_the_fastest_rungs_of_standard_precision_add() -> None:
    assert {dtype for kernel in ADDING for dtype in kernel.dtypes} == {"float32", "float64"}
    assert all(kernel.precision == "standard" for kernel in ADDING)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", ADDING, ids=lambda kernel: kernel.name)
def test_the_product_is_added(kernel: CudaKernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = values(kernel, m, k), values(kernel, k, n), values(kernel, m, n)
    np.testing.assert_array_equal(added(kernel, binary(kernel, True), a, b, c.copy()), c + a @ b)
    poisoned = np.full_like(c, np.nan)
    np.testing.assert_array_equal(added(kernel, binary(kernel, False), a, b, poisoned), a @ b)


def in_tiles(kernel: CudaKernel, a: np.ndarray, b: np.ndarray, columns: int) -> bytes:
    """The bits of A·B in tiles of so many columns, each of them a launch."""
    parts = [np.ascontiguousarray(b[:, j : j + columns]) for j in range(0, b.shape[1], columns)]
    tiles = [np.full((len(a), part.shape[1]), np.nan, a.dtype) for part in parts]
    plain = binary(kernel, False)
    return np.hstack([added(kernel, plain, a, part, tile) for part, tile in zip(parts, tiles, strict=True)]).tobytes()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ADDING, ids=lambda kernel: kernel.name)
def test_the_bits_of_an_element_do_not_depend_on_the_tile_of_a_plan_that_it_is_in(kernel: CudaKernel) -> None:
    """As long as these are whole tiles of the kernel: the last rows and columns may be summed in another order."""
    rng, side = np.random.default_rng(1), 64
    a, b = (rng.uniform(-1, 1, shape).astype(kernel.dtypes[0]) for shape in ((16, 50), (50, side + 5)))
    assert all(side % size(**kernel.params | SMALL.get(kernel.name, {})) == 0 for size in kernel.tile)
    whole = in_tiles(kernel, a, b, side + 5)
    assert in_tiles(kernel, a, b, side) == whole
    if "STRIPS" in kernel.params:
        assert in_tiles(kernel, a, b, 40) != whole


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ADDING, ids=lambda kernel: kernel.name)
def test_of_no_steps_c_stays_as_it_is(kernel: CudaKernel) -> None:
    c = values(kernel, 70, 67)
    c[:, ::5] = -0.0
    a, b = values(kernel, 70, 0), values(kernel, 0, 67)
    after = added(kernel, binary(kernel, True), a, b, c.copy())
    assert after.tobytes() == c.tobytes(), "not even the sign of a zero"
    assert not added(kernel, binary(kernel, False), a, b, c.copy()).any()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", ADDING, ids=lambda kernel: kernel.name)
def test_adding_costs_no_register_that_does_not_fit(kernel: CudaKernel, arch: str) -> None:
    plain, adds = (compile_kernel(kernel, arch=arch, add=add).resources[kernel.entry] for add in (False, True))
    assert adds.local_bytes == 0
    assert adds.registers <= plain.registers


def test_a_kernel_that_does_not_add() -> None:
    with pytest.raises(UsageError, match="cuda/coalesced cannot add to C"):
        compile_kernel(cuda_catalog()["cuda/coalesced"], add=True)


def test_what_a_header_says_of_it(tmp_path) -> None:
    header = '/*\nidea = "x"\nblock = [1]\ngrid = ["m * n"]\nadds = {}\n*/\n__global__ void f() {{}}\n'
    path = tmp_path / "f.cu"
    for text, adds in (("true", True), ("false", False)):
        path.write_text(header.format(text))
        assert load_cuda_file(path).adds is adds
    path.write_text(header.format("1"))
    with pytest.raises(HeaderError, match="adds must be true or false, got 1"):
        load_cuda_file(path)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("add", [False, True], ids=["C = AB", "C += AB"])
@pytest.mark.parametrize("shape", [(64, 64, 16), (139, 76, 10), (65, 132, 8)], ids=str)
@pytest.mark.parametrize("kernel", [x for x in ADDING if x.given], ids=lambda kernel: kernel.name)
def test_code_that_a_size_does_not_need_changes_no_bit(
    kernel: CudaKernel, shape: tuple[int, int, int], add: bool
) -> None:
    (m, n, k), params, rng = shape, SMALL.get(kernel.name, {}), np.random.default_rng(2)
    given = kernel.holds(m, n, k, **params)
    assert "C_ALIGNED" in given
    a, b, c = (rng.uniform(-1, 1, size).astype(kernel.dtypes[0]) for size in ((m, k), (k, n), (m, n)))
    both = binary(kernel, add), compile_kernel(kernel, given, add=add, **params)
    assert len(both[1].ptx) < len(both[0].ptx)
    assert both[1].resources[kernel.entry].local_bytes == 0
    first, second = (added(kernel, compiled, a, b, c.copy()).tobytes() for compiled in both)
    assert first == second


def test_which_macros_are_given() -> None:
    banks, tensor = cuda_catalog()["cuda/register_banks"], cuda_catalog()["cuda/dgemm_tensor"]
    assert banks.holds(4096, 4096, 4095) == {"C_ALIGNED", "NO_STRIPS"}
    assert banks.holds(128 + 9, 256 + 12, 1) == {"C_ALIGNED", "NO_STRIPS"}
    assert banks.holds(128 + 8, 256, 1) == banks.holds(128, 256 + 8, 1) == {"C_ALIGNED"}, "the last 8 are a strip"
    assert banks.holds(128 + 8, 256 + 8, 1, STRIPS=0) == {"C_ALIGNED", "NO_STRIPS"}
    assert banks.holds(128, 255, 1) == {"NO_STRIPS"}
    assert tensor.holds(4096, 4096, 4096) == set()
    with pytest.raises(
        UsageError, match=r"cuda/dgemm_tensor: C_ALIGNED, NO_STRIPS is not in the table given of its header"
    ):
        compile_kernel(tensor, ["C_ALIGNED", "NO_STRIPS"])


@pytest.mark.parametrize("name", ["aligned", "TILE"])
def test_what_cannot_be_given(tmp_path, name: str) -> None:
    path = tmp_path / "f.cu"
    lines = 'idea = "x"', "block = [1]", 'grid = ["m"]', "[params]", "TILE = { default = 1, values = [1] }", "[given]"
    header = "\n".join([*lines, f"{name} = 1"])
    path.write_text(f"/*\n{header}\n*/\n__global__ void f() {{}}\n")
    with pytest.raises(HeaderError, match=f"given.{name}: must be a macro in capitals that is no parameter"):
        load_cuda_file(path)
