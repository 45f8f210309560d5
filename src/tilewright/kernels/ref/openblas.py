"""NumPy's OpenBLAS at its fastest: for each shape, the bench takes the fastest of OpenBLAS's kernels that this
processor can run.

When OpenBLAS is loaded it chooses its kernels by the processor's model, and takes older kernels for a model that it
does not know. ``$OPENBLAS_CORETYPE`` overrides the choice. So that each set of kernels can be measured, this module
loads copies of NumPy's own library, one for each core type. BLAS has no products of integers and of float16. For
integers and float16 the bench measures NumPy's own loop.
"""

import atexit
import ctypes
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tilewright.errors import UnavailableError
from tilewright.host.machine import machine
from tilewright.kernels import NUMERIC, kernel
from tilewright.kernels.ref import _cblas

#: Core types of OpenBLAS for x86-64, and the processor features (by LLVM's names) that their kernels need.
CORE_TYPES = {
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "Cooperlake": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512bf16"},
    "SapphireRapids": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512bf16", "avx512fp16", "amx-bf16"},
}


def variants(dtype: str) -> Mapping[str, _cblas.Gemm]:
    """Return functions ``(a, b, c)`` by the core type whose kernels they run; the first function runs the kernels that
    NumPy itself uses."""
    core, copies = _copies()
    return {core: np_matmul, **(copies if dtype in _cblas.DTYPES else {})}


@kernel(
    idea="NumPy's OpenBLAS with the fastest of its kernels for each shape, of all core types that this processor can run.",
    row="S1",
    dtypes=(*NUMERIC, "float16"),
    shared="tiles",
    strided=True,
    compiled=False,
    variants=variants,
)
def openblas(a, b, c):
    np_matmul(a, b, c)


def np_matmul(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Compute c = a·b by NumPy. Raises UnavailableError if NumPy uses another BLAS than OpenBLAS."""
    if "openblas" not in BUILT_WITH:
        raise UnavailableError(f"openblas: this numpy is built with {BUILT_WITH}; pip's numpy brings OpenBLAS")
    np.matmul(a, b, out=c)


@functools.cache  # copies files and loads them
def _copies() -> tuple[str, dict[str, _cblas.Gemm]]:
    """The core type that OpenBLAS chose by itself, and copies of NumPy's library with others."""
    packages = Path(np.__file__).parent.parent
    own = next(((path, core) for path, core in _loaded().items() if packages in path.parents), None)
    if own is None:
        return "as installed", {}
    library, installed = own
    copies: dict[str, _cblas.Gemm] = {}
    for core, needs in CORE_TYPES.items():
        if core.lower() != installed.lower() and needs <= set(machine().isa):
            path = _copied(library)
            gemm = _under(core, path)
            took = _loaded().get(path, installed)  # a library built without that core type takes an older one
            if gemm is not None and took != installed:
                copies.setdefault(took, gemm)
    return installed, copies


def _loaded() -> dict[Path, str]:
    """Every OpenBLAS in this process, and its core type."""
    import threadpoolctl  # of the extra lab; the library imports this module without it

    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["internal_api"] == "openblas"]
    return {Path(pool["filepath"]): str(pool["architecture"]) for pool in pools}


def _copied(library: Path) -> Path:
    """The same file under another name, for as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-openblas-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copy(library, folder))


def _under(core: str, path: Path) -> _cblas.Gemm | None:
    """``gemm(a, b, c)`` of a library that is loaded under a core type; None where it cannot be loaded."""
    before = os.environ.get("OPENBLAS_CORETYPE")
    os.environ["OPENBLAS_CORETYPE"] = core
    try:
        return _cblas.gemm_of(ctypes.CDLL(str(path)))
    except OSError:
        return None
    finally:
        if before is None:
            del os.environ["OPENBLAS_CORETYPE"]
        else:
            os.environ["OPENBLAS_CORETYPE"] = before


BUILT_WITH = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
