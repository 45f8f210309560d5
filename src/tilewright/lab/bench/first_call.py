"""What the first product of a process costs: importing, and then compiling (cold) or loading (warm) its machine code.

Measured in processes of their own, with a cache of their own, so that "cold" compiles everything as a new user's first call
does. Kept on disk until the sources, the compilers or the machine change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import UnavailableError
from ...host.disk import CacheFile, fingerprint
from ...host.machine import machine
from .library import LIBRARY

#: Best of so many warm starts: the best is the start-up of an undisturbed machine.
_WARM = 3
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
#: A product that is planned as large ones are.
_SIZE = 512


@dataclass(frozen=True)
class FirstCall:
    """Seconds: ``import_s`` of importing Tilewright after NumPy, then of the first product, compiled or loaded."""

    import_s: float
    cold_s: float
    warm_s: float

    def describe(self) -> list[tuple[str, str]]:
        """Rows of (label, text) for people."""
        return [
            ("import, after NumPy", f"{1e3 * self.import_s:.1f} ms"),
            ("first product, compiled", f"{self.cold_s:.2f} s"),
            ("first product, from disk", f"{self.warm_s:.2f} s"),
        ]


def measure_first_call() -> FirstCall:
    """Start processes and time them; about ten seconds. Raises UnavailableError where Python cannot be started."""
    with tempfile.TemporaryDirectory(prefix="tilewright-first-call-") as cache:
        _, cold = _start(cache)
        warm = [_start(cache) for _ in range(_WARM)]
    found = FirstCall(min(w[0] for w in warm), cold, min(w[1] for w in warm))
    _kept_in().write_json(asdict(found))
    return found


def known_first_call() -> FirstCall | None:
    """What was measured for this machine and these sources, or None."""
    return _kept_in().read_as(lambda kept: FirstCall(**{name: float(value) for name, value in kept.items()}))


def _start(cache: str) -> tuple[float, float]:
    import tilewright

    path = os.pathsep.join([str(Path(tilewright.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environ = os.environ | {"TILEWRIGHT_CACHE": cache, "PYTHONPATH": path}
    command = [sys.executable, "-c", _SCRIPT.format(n=_SIZE)]
    try:
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise UnavailableError(f"first call: a process of its own cannot be measured: {words}") from None
    imported, first = map(float, answer.split())
    return imported, first


def _kept_in() -> CacheFile:
    import numba

    facts = (LIBRARY.source_hash, numba.__version__, machine().processor, machine().llvm_cpu, sys.version)
    return CacheFile("first-call", f"{fingerprint(*facts)}.json")
