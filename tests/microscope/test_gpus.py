"""Cards: the figures their datasheets print follow from their clocks, and names are found as people write them."""

from __future__ import annotations

import doctest
import math

import pytest

from tilewright.errors import UsageError
from tilewright.simulator import gpus
from tilewright.simulator.gpus import GPUS, LIMITS, GpuModel, find_gpu


def test_doctests() -> None:
    assert doctest.testmod(gpus).failed == 0


@pytest.mark.parametrize(
    ("name", "fp32_tflops", "fp64_tflops"),
    [
        ("GTX 260", 0.5365, 0.06707),  # S3.3's peak
        ("GTX 1080 Ti", 11.34, 0.354),
        ("V100", 14.13, 7.07),
        ("T4", 8.14, 0.254),
        ("RTX 2080 Ti", 13.45, 0.420),
        ("A100", 19.5, 9.7),
        ("H100", 66.9, 33.5),
        ("H200", 66.9, 33.5),
        ("B200", 75, 37),
        ("A10", 31.2, 0.488),
        ("RTX 3090", 35.6, 0.556),
        ("L4", 30.3, 0.473),
        ("L40S", 91.6, 1.431),
        ("RTX 4090", 82.6, 1.29),
        ("RTX 5090", 104.8, 1.637),
    ],
)
def test_peaks_are_those_of_the_datasheets(name: str, fp32_tflops: float, fp64_tflops: float) -> None:
    gpu = find_gpu(name)
    assert gpu.fp32_gflops == pytest.approx(1000 * fp32_tflops, rel=3e-3)
    assert gpu.fp64_gflops == pytest.approx(1000 * fp64_tflops, rel=6e-3)


def test_every_card_has_limits_that_hang_together() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
    for gpu in GPUS:
        card = gpu.limits
        assert gpu.source
        assert card is LIMITS[gpu.compute_capability]
        assert card.max_warps_per_sm * card.warp_size == card.max_threads_per_sm
        assert card.shared_per_block_optin + card.shared_reserved_per_block <= card.shared_per_sm
        assert card.registers_per_sm % (card.register_unit * card.sub_partitions) == 0


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia-h200", " h 200 "])
def test_names_as_people_write_them(name: str) -> None:
    assert find_gpu(name).name == "H200"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_names_as_drivers_write_them(said: str, name: str) -> None:
    assert find_gpu(said).name == name


@pytest.mark.parametrize(
    "other",
    ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 3090 Ti", "RTX 4090 Laptop GPU", "L40", "A100X"],
)
def test_another_card_is_not_taken_for_one_of_like_name(other: str) -> None:
    with pytest.raises(UsageError, match="must be one of"):
        find_gpu(other)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("V100", {"f16": 112}),
        ("T4", {"f16": 65}),
        ("A100", {"tf32": 156, "f16": 312, "bf16": 312}),
        ("H200", {"tf32": 494.7, "f16": 989.4, "bf16": 989.4}),
        ("B200", {"tf32": 1125, "f16": 2250, "bf16": 2250}),
        ("GTX 1080 Ti", {}),
    ],
)
def test_tensor_peaks_are_those_of_the_datasheets(name: str, tflops: dict[str, float]) -> None:
    assert find_gpu(name).tensor_gflops == {key: 1000 * value for key, value in tflops.items()}


@pytest.mark.parametrize("gpu", [g for g in GPUS if g.tensor_gflops], ids=lambda g: g.name)
def test_tensor_peaks_are_whole_operations_a_cycle(gpu: GpuModel) -> None:
    """A power of two a multiprocessor and cycle, as datasheets round; from Hopper on at a clock below the boost."""
    for name, gflops in gpu.tensor_gflops.items():
        a_cycle = 1000 * gflops / gpu.sms / gpu.clock_mhz
        nearest = 2.0 ** round(math.log2(a_cycle))
        assert a_cycle == pytest.approx(nearest, rel=0.015 if gpu.compute_capability[0] not in (9, 10) else 0.08), name


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UsageError, match=r"got 'h20'; did you mean H200"):
        find_gpu("h20")
    with pytest.raises(UsageError, match=r"GTX 260, .*RTX 5090, got '.'$"):
        find_gpu("?")
