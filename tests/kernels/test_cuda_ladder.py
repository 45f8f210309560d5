"""Every CUDA rung, executed without a GPU: right on awkward shapes, silent, and with the transactions its source counts."""

from __future__ import annotations

import numpy as np
import pytest

from support import source_formulas as formulas
from tilewright.gpu.runtime.nvrtc import compile_kernel
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.lab.explain.checked_launch import operands, verified
from tilewright.lab.inputs.formats import FORMATS
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.counters.tally import Counters

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of every shape; ``test_wgmma_rungs`` has those whose operands are tensor maps.
LADDER = [kernel for kernel in cuda_catalog().values() if not kernel.boxes]
SHAPES = [(1, 1, 1), (3, 2, 0), (31, 33, 32), (65, 7, 17), (5, 97, 40), (64, 64, 64), (129, 130, 67), (130, 259, 35)]


def run(
    kernel: CudaKernel, m: int, n: int, k: int, *, check: bool = True, infinite: bool = False
) -> tuple[Run, Counters]:
    """Execute a kernel on random operands and a poisoned C; if asked, with an infinity last in A's first and last row."""
    a, b, c = operands(kernel, m, n, k, seed=m + n + k)
    if infinite:
        a[[0, -1], -1] = FORMATS[kernel.dtypes[0]].stored(np.full(2, np.inf, np.float32))
    compiled, launch, counters = compile_kernel(kernel), kernel.launch(m, n, k), Counters()
    done = simulate(
        compiled.ptx,
        compiled.entry(kernel.entry),
        launch.grid,
        launch.block,
        [a, b, c, m, n, k],
        RunOptions(shared_bytes=launch.shared_bytes, outputs=[2], observer=counters),
    )
    if check:
        right = verified(kernel, a, b, done.arrays[2].reshape(m, n))
        assert right.ok, right.reason
    return done, counters


@pytest.mark.slow_cases(
    "cuda/tf32",
    "cuda/bf16",
    "(129, 130, 67)",
    "(130, 259, 35)",
    "cuda/warp_tile",
    "cuda/dgemm_tensor",
    "cuda/register_banks",
)
@pytest.mark.each_value
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_rung_is_right_and_touches_nothing_else(kernel: CudaKernel, shape: tuple[int, int, int]) -> None:
    done, _ = run(kernel, *shape)
    assert done.findings == []


@pytest.mark.slow_cases(
    "cuda/tf32",
    "cuda/bf16",
    "cuda/warp_tile",
    "cuda/vectorised",
    "cuda/async_copy",
    "cuda/dgemm_column",
    "cuda/dgemm_tensor",
    "cuda/register_banks",
)
@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(9, 10, 35), (130, 259, 5)], ids=str)
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_an_infinity_stays_in_its_row(kernel: CudaKernel, shape: tuple[int, int, int]) -> None:
    """Where an edge is filled up with zeros, an infinity times zero would be NaN, and show."""
    done, _ = run(kernel, *shape, check=False, infinite=True)
    c = FORMATS[kernel.dtypes[0]].values(done.arrays[2].reshape(shape[:2]))
    assert np.isinf(c[[0, -1]]).all()
    assert np.isfinite(c[1:-1]).all()


def loads_and_stores(counters: Counters) -> tuple[int, int, int]:
    """Global load sectors, load requests and store sectors, under the hardware's names."""
    total = counters.total()
    names = [
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
        for what, op in (("sectors", "ld"), ("requests", "ld"), ("sectors", "st"))
    ]
    loads, requests, stores = (total[name] for name in names)
    return loads, requests, stores


def test_coalesced_loads_are_those_of_the_formula() -> None:
    """S0.3: 5,120 loads and 128 stores at 32×32×32, as a profiler confirmed on a V100 and on an H200."""
    _, counters = run(cuda_catalog()["cuda/coalesced"], 32, 32, 32)
    assert loads_and_stores(counters) == (5120, 2048, 128)
    assert formulas.load_sectors(32, 32, 32) == 5120
    assert formulas.load_requests(32, 32, 32) == 2048
    assert formulas.store_sectors(32, 32) == 128


def test_swapped_indices_cost_6_6_times_the_sectors() -> None:
    """S1.16 could not explain why swapped indices ran at an eighth: a warp reads 32 rows at once."""
    _, swapped = run(cuda_catalog()["cuda/uncoalesced"], 32, 32, 32)
    _, straight = run(cuda_catalog()["cuda/coalesced"], 32, 32, 32)
    assert loads_and_stores(swapped)[0] / loads_and_stores(straight)[0] == pytest.approx(6.6)
