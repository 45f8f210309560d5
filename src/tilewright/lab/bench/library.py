"""Measures ``matmul`` in the bench, in comparison with kernels and references, and the time of the first call in a
process.

The first product of a process imports the library and finds its machine code. A process's first product on a GPU also
opens the GPU, compiles its kernel (cold) or loads the kernel from disk (warm), and measures the GPU's rates. The first
call is measured in new processes with an empty cache directory, as on a new user's machine. The time of the first call
is cached on disk until the sources or the machine change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...api.matmul import matmul
from ...cpu.runtime.machine_code import describe_code
from ...errors import UnavailableError
from ...host import sources
from ...host.disk import CacheFile, fingerprint
from ...host.machine import machine
from ...kernels import Kernel, kernel
from ...product.operands import DTYPES

# ---- a row of the bench ----------------------------------------------------------------------------------------------


@kernel(
    idea="The library call: plan, then run what the plan says, threads as the plan says.",
    row="S1.12",
    name="tilewright/matmul",
    dtypes=DTYPES,
    shared="tiles",
    strided=True,
    compiled=False,
)
def library(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    matmul(a, b, out=c)


def _with_every_source(library_kernel: Kernel) -> Kernel:
    """With a hash of all the library's sources, because a change of any of them can change what the call does."""
    object.__setattr__(library_kernel, "source_hash", fingerprint(*sources.files(sources.LIBRARY)))
    return library_kernel


#: The library's call as a kernel. It is not in the catalog; the bench finds it by the names in ``NAMES``, and shows it
#: after the ladder.
LIBRARY = _with_every_source(library)
NAMES = (LIBRARY.name, "matmul")


# ---- the first call --------------------------------------------------------------------------------------------------

#: The fastest of so many starts counts: other processes disturbed it least.
_STARTS = 3
_SCRIPT = """
import time
import numpy as np
start = time.perf_counter()
import tilewright as tw
imported = time.perf_counter()
a = np.ones(({n}, {n}), np.float32)
c = tw.matmul(a, a)
print(imported - start, time.perf_counter() - imported)
"""
#: Side of a product that is large enough to be planned as large ones are.
_SIZE = 512
_GPU_SCRIPT = """
import time
import numpy as np
import tilewright as tw
a = np.ones(({n}, {n}), np.float32)
for _ in range(2):
    start = time.perf_counter()
    try:
        tw.multiply(a, a, device="cuda")
    except tw.errors.UnavailableError:
        break
    print(time.perf_counter() - start)
"""
_GPU_SIZE = 4096


@dataclass(frozen=True)
class FirstCall:
    """Seconds of first calls. ``import_s``: importing Tilewright after NumPy. ``product_s``: the first product. The
    fields that begin with ``gpu_`` are for ``multiply`` of the host's arrays on a GPU. Of these, ``gpu_cold_s`` is for
    a first call that compiles the kernel, ``gpu_warm_s`` for a first call that loads the kernel from disk, and
    ``gpu_later_s`` for the second call. Without a GPU the fields that begin with ``gpu_`` are None.
    """

    import_s: float
    product_s: float
    gpu_cold_s: float | None = None
    gpu_warm_s: float | None = None
    gpu_later_s: float | None = None

    def describe(self) -> list[tuple[str, str]]:
        """Return the seconds as rows of (label, text), to be printed."""
        rows = [
            ("import, after NumPy", f"{1e3 * self.import_s:.1f} ms"),
            ("first product", f"{1e3 * self.product_s:.0f} ms"),
        ]
        if self.gpu_cold_s is not None and self.gpu_warm_s is not None and self.gpu_later_s is not None:
            later = f"; later ones {1e3 * self.gpu_later_s:.0f} ms"
            rows.append(("first GPU product, compiled", f"{self.gpu_cold_s:.2f} s"))
            rows.append(("first GPU product, from disk", f"{self.gpu_warm_s:.2f} s{later}"))
        return rows


def measure_first_call() -> FirstCall:
    """Start processes and measure their first calls, which takes about ten seconds. Raises UnavailableError if Python
    cannot be started."""
    with tempfile.TemporaryDirectory(prefix="tilewright-first-call-") as cache:
        started = [_start(cache) for _ in range(_STARTS)]
        gpu_cold = _start_on_gpu(cache)
        gpu_warm = [_start_on_gpu(cache) for _ in range(_STARTS)] if gpu_cold else []
    on_gpu = (gpu_cold[0], *map(min, zip(*gpu_warm, strict=True))) if gpu_cold else ()
    measured = FirstCall(*map(min, zip(*started, strict=True)), *on_gpu)
    _cache_file().write_json(asdict(measured))
    return measured


def known_first_call() -> FirstCall | None:
    """Return the measured first call for this machine and these sources, or None if it was not measured."""

    def from_cache(cached: dict[str, Any]) -> FirstCall:
        return FirstCall(**{name: float(seconds) for name, seconds in cached.items() if seconds is not None})

    return _cache_file().read_as(from_cache)


def _start(cache: str) -> list[float]:
    """Seconds of the import and of the first product."""
    return _timed(_SCRIPT.format(n=_SIZE), cache)


def _start_on_gpu(cache: str) -> list[float]:
    """Seconds of the first product and the next one; nothing without a GPU."""
    return _timed(_GPU_SCRIPT.format(n=_GPU_SIZE), cache)


def _timed(script: str, cache: str) -> list[float]:
    """The numbers that ``script`` prints, run in a new process."""
    import tilewright

    path = os.pathsep.join([str(Path(tilewright.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    # NVRTC caches compiled code in the driver's cache directory.
    environ = os.environ | {"TILEWRIGHT_CACHE": cache, "CUDA_CACHE_PATH": f"{cache}/driver", "PYTHONPATH": path}
    try:
        command = [sys.executable, "-c", script]
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise UnavailableError(f"first call: the process that measures it failed: {reason}") from None
    return [float(number) for number in answer.split()]


def _cache_file() -> CacheFile:
    facts = (LIBRARY.source_hash, describe_code(), machine().processor, machine().isa, sys.version)
    return CacheFile("first-call", f"{fingerprint(*facts)}.json")
