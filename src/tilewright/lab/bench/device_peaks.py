"""The measured peak of a GPU: multiply-adds a second in registers; in float64 by tensor cores too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...runtime.gpu.device import Device
from ...runtime.gpu.nvrtc import compile_file

SOURCE = Path(__file__).with_name("device_peaks.cu")
_SAMPLES = 10
_SAMPLE_S = 0.02
_THREADS = 256
_BLOCKS = 8  # for each multiprocessor: all the threads it can hold

#: Operations of one round of 256 threads, without and with matrix instructions; the latter for one multiply-add each.
_PLAIN = 2 * 8 * 32 * _THREADS
_MATRIX = 2 * 8 * 8 * _THREADS // 32


def device_peak_gflops(gpu: Device, dtype: str) -> float | None:
    """The peak of this GPU in 1e9 operations a second, two for each multiply-add: the best of ten samples of 20 ms.

    None for dtypes whose multiply-adds are not measured here, float16 and bfloat16.
    """
    if dtype not in ("float32", "float64"):
        return None
    peaks = [_measured(gpu, dtype, "multiply_add", _PLAIN)]
    generation = int(gpu.capability.split(".")[0])
    if dtype == "float64" and generation >= 8:
        size = 16 * 8 * 16 if generation >= 9 else 8 * 8 * 4  # multiply-adds of one matrix instruction
        peaks.append(_measured(gpu, dtype, "multiply_add_matrix", _MATRIX * size))
    return max(peaks)


def _measured(gpu: Device, dtype: str, entry: str, operations: int) -> float:
    compiled = compile_file(SOURCE, arch=gpu.arch, defines={f"DTYPE_{dtype.upper()}": 1})
    number, timer, blocks = np.dtype(dtype).type, gpu.timer(), _BLOCKS * gpu.sms

    def seconds(rounds: int) -> float:
        timer.start()
        gpu.submit(compiled, entry, blocks, _THREADS, (out, rounds, number(0.5), number(1)))
        return timer.stop()

    with gpu.allocate(8) as out:
        rounds = 64
        while seconds(rounds) < _SAMPLE_S and rounds < 1 << 24:
            rounds *= 2
        best = min(seconds(rounds) for _ in range(_SAMPLES))
    return operations * blocks * rounds / best / 1e9
