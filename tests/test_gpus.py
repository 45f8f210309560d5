"""Cards: the figures their datasheets print follow from their clocks, and names are found as people write them."""

from __future__ import annotations

import doctest

import pytest

from tilewright.errors import UsageError
from tilewright.lab import gpus
from tilewright.lab.gpus import GPUS, LIMITS, find_gpu


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
        assert card.shared_per_block <= card.shared_per_block_optin <= card.shared_per_sm
        assert card.shared_per_block_optin + card.shared_reserved_per_block <= card.shared_per_sm
        assert card.registers_per_sm % (card.register_unit * card.sub_partitions) == 0


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia-h200", " h 200 "])
def test_names_as_people_write_them(name: str) -> None:
    assert find_gpu(name).name == "H200"


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UsageError, match=r"got 'h20'; did you mean .*h200"):
        find_gpu("h20")
    with pytest.raises(UsageError, match="known: a100, b200"):
        find_gpu("?")
