"""Blocks of a cluster that share rows of A and columns of B, and slabs of C in a stage of the ring, on a simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.epilogues import BF16, whole
from support.multiplied import by_columns, by_rows, multiply
from tilewright.errors import UsageError
from tilewright.gpu.planning.ways import EngineShape, ways
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import Card, CudaKernel

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

HOPPER = cuda_engine()["cuda/hopper"]
SMALL = {"BM": 64, "BN": 64, "STAGES": 3}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake.installed(monkeypatch, 1 << 22, sms=2)


def check(
    gpu: Any,
    shape: tuple[int, int, int],
    params: dict[str, int],
    *,
    kernel: CudaKernel = HOPPER,
    down: tuple[bool, bool] = (False, False),
) -> None:
    """Compares what the kernel stores with A·B. ``down``: whether columns of A and B follow each other in memory."""
    m, n, k = shape
    a, b = whole(m, k, dtype=BF16), whole(k, n, dtype=BF16, seed=2)
    memory = [
        gpu.put(np.ascontiguousarray(x.T if is_down else x).view(np.uint16))
        for x, is_down in zip((a, b), down, strict=True)
    ]
    c = gpu.allocate(m * n * 2)
    factors = [
        (by_columns if is_down else by_rows)(*x.shape, "bfloat16") for x, is_down in zip((a, b), down, strict=True)
    ]
    what = EngineProduct("bfloat16", *factors, by_rows(m, n, "bfloat16"))
    multiply(gpu, kernel, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(BF16)
    np.testing.assert_array_equal(gpu.get(c, BF16, (m, n)), exact)


@pytest.mark.slow
@pytest.mark.parametrize("down", [(False, True), (True, False)], ids=["along k", "across k"])
@pytest.mark.parametrize(("cluster", "beside"), [(1, 2), (2, 2), (2, 4), (4, 2)])
def test_blocks_share_both_operands(gpu: Any, cluster: int, beside: int, down: tuple[bool, bool]) -> None:
    """C has more tiles than blocks, of which the last ones are partly beyond its edges."""
    check(gpu, (72 * cluster + 64, 64 * beside + 200, 200), SMALL | {"CLUSTER": cluster, "BESIDE": beside}, down=down)


def test_a_cluster_has_eight_blocks_at_most() -> None:
    with pytest.raises(UsageError, match="BESIDE"):
        HOPPER.checked({"CLUSTER": 4, "BESIDE": 4})


@pytest.mark.slow
def test_a_block_that_does_not_wait_for_those_beside_it_is_found(gpu: Any, tmp_path: Path) -> None:
    """It would copy rows of A over those that the other one still multiplies."""
    broken = changed(HOPPER, tmp_path, "hopper_shared.cuh", (r"MATES = CLUSTER \+ BESIDE - 1;", "MATES = CLUSTER;"))
    with pytest.raises(AssertionError, match=r"has waited but this thread has not|returned at once|still"):
        check(gpu, (128, 256, 1000), SMALL | {"CLUSTER": 2, "BESIDE": 2}, kernel=broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "m", "n"), [({"BN": 136}, 300, 200), ({"BM": 192, "BN": 192, "STAGES": 2}, 400, 390), (SMALL, 200, 190)]
)
def test_slabs_lie_in_the_last_stage(gpu: Any, params: dict[str, int], m: int, n: int) -> None:
    """Of tiles with fewer steps than stages and with more, whose rows of C are stored in boxes and alone."""
    for k in (64, 264):
        check(gpu, (m, n, k), params, down=(False, True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("hopper.cu", r"if \(!OWN_SLABS && step == 0\) slabs_leave\(half\);"),
        ("hopper_store.cuh", r"if \(STORE_BOXES && threadIdx.x % 128 == 0\) store_wait_read<0>\(\);"),
        ("hopper_store.cuh", r"if \(!OWN_SLABS && GROUPS > 1 && slab == 1\) group_sync\(.*\);"),
    ],
    ids=["given back at once", "without waiting", "while B is read"],
)
def test_slabs_that_come_or_go_too_early_are_found(gpu: Any, tmp_path: Path, file: str, line: str) -> None:
    broken = changed(HOPPER, tmp_path, file, (line, ""))
    with pytest.raises(AssertionError, match=r"still|no barrier"):
        check(gpu, (600, 256, 136), {"BN": 128, "STAGES": 2}, kernel=broken, down=(False, True))


def test_integers_have_widths_of_whole_sixteens() -> None:
    """Tensor cores multiply them in no others."""

    def widths(dtype: str, out: str) -> set[int]:
        return {way.params["BN"] % 16 for way in ways(HOPPER, EngineShape(dtype, out, 520, 2000, 512), Card())}

    assert (widths("int8", "int32"), widths("bfloat16", "bfloat16")) == ({0}, {0, 8})
