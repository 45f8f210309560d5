"""Plans of products on a GPU of which the bits of a row follow from that row and from B alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import DTypeError
from tilewright.gpu.arrays.gpu_array import GpuArray, contiguous_strides
from tilewright.gpu.arrays.matmul import plan_of_views
from tilewright.gpu.planning.choice import invariant_on_gpu
from tilewright.gpu.runtime.device import add_described
from tilewright.prebuilt.gpu import GPUS, _Described

#: The kernels of invariant products; those of a dtype and GPU have the same bits.
KERNELS = {
    ("sm_90a", "bfloat16"): {"cuda/hopper"},
    ("sm_90a", "float16"): {"cuda/hopper"},
    ("sm_90a", "float8_e4m3fn"): {"cuda/hopper_promoted"},
    ("sm_90a", "float32"): {"cuda/simt"},
    ("sm_90a", "float64"): {"cuda/dmma_boxes", "cuda/dmma_copied"},
    ("sm_90a", "complex64"): {"cuda/simt_complex"},
    ("sm_90a", "complex128"): {"cuda/dmma_complex"},
    ("sm_80", "bfloat16"): {"cuda/mma"},
    ("sm_80", "float64"): {"cuda/dmma"},
}


def described(arch: str) -> int:
    capability, gpus = GPUS[arch]
    return add_described(_Described(arch, capability, *gpus[0]))


def planned(device: int, dtype: str, m: int, n: int, k: int, transposed: bool = True, **says: Any) -> Any:
    x = GpuArray(256, (m, k), contiguous_strides((m, k)), dtype, device)
    y = GpuArray(512, (k, n), (1, k) if transposed else (n, 1), dtype, device)
    return plan_of_views(x, y, precision="invariant", **says)


@pytest.mark.parametrize(("arch", "dtype"), KERNELS)
def test_plans_never_cut_k_and_keep_to_kernels_of_the_same_bits(arch: str, dtype: str) -> None:
    device, rng = described(arch), np.random.default_rng(3)
    says = {"out_dtype": "bfloat16"} if dtype.startswith("float8") else {}
    for _ in range(60):
        m, n, k = (int(2 ** rng.uniform(0, 13)) for _ in range(3))
        plan = planned(device, dtype, m, n, k, bool(rng.random() < 0.5) or bool(says), **says)
        for each in [piece.plan for piece in getattr(plan, "pieces", ())] or [plan]:
            assert each.kernel.name in KERNELS[arch, dtype]
            assert each.kernel.invariant(**each.params)
            assert (each.parts, each.split) == (1, None)
            assert not (dtype.startswith("complex") and each.swapped)
    assert "follow from that row of A" in str(plan)


def test_kernels_that_split_k_are_in_other_plans() -> None:
    """The same products without a promise about bits are cut: so the check above is one."""
    device = described("sm_90a")
    x = GpuArray(256, (64, 16384), contiguous_strides((64, 16384)), "bfloat16", device)
    y = GpuArray(512, (16384, 512), (1, 16384), "bfloat16", device)
    plan = plan_of_views(x, y)
    rule = plan.kernel.invariant
    assert plan.parts > 1 or rule is None or not rule(**plan.params)


def test_every_dtype_has_kernels_of_one_capability() -> None:
    for (arch, dtype), names in KERNELS.items():
        word = "float8" if dtype.startswith("float8") else dtype
        assert {kernel.name for kernel in invariant_on_gpu(word, GPUS[arch][0])} == names


def test_what_no_kernel_promises_is_refused() -> None:
    with pytest.raises(DTypeError):
        planned(described("sm_80"), "int8", 64, 64, 64)
