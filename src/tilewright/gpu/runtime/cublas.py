"""NVIDIA's cuBLAS, the reference on GPUs. cuBLAS is found at run time and called through its C interface; Tilewright is
not linked with it.

cuBLAS comes with the CUDA toolkit, with PyTorch, or as ``nvidia-cublas`` from PyPI; ``cuda.pathfinder`` finds it in all
three places. cuBLAS takes column-major matrices. A row-major C = A·B is Cᵀ = Bᵀ·Aᵀ in column-major order. So the
operands are exchanged, and nothing is transposed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LaunchError, UnavailableError, UsageError, did_you_mean
from .device import Device
from .launch import Submission
from .memory import Memory

# Numbers of cublas_api.h and library_types.h, which never change.
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_64F = 68, 70
_NO_TRANSPOSE, _DEFAULT_ALGORITHM = 0, -1
#: ``precision`` → compute type of float32: to what its operands may be rounded for tensor cores.
_FLOAT32 = {"standard": _COMPUTE_32F, "tf32": 77, "bf16": 75, "f16": 74}

_STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}

#: Environment variables that change cuBLAS's arithmetic, whatever compute type a call gives.
ARITHMETIC_VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
)


@dataclass(frozen=True)
class Reference:
    """A vendor's library that takes the place of a kernel in a bench. The object has those attributes of a kernel that
    the bench and its records use."""

    name: str
    idea: str
    dtypes: tuple[str, ...]
    source_hash: str
    order: int = 1000
    is_reference: bool = True

    @property
    def params(self) -> dict[str, Any]:
        """Empty, because Tilewright sets no parameter of cuBLAS."""
        return {}

    @property
    def tunable(self) -> frozenset[str]:
        """Empty, because cuBLAS chooses its own parameters."""
        return frozenset()

    @property
    def about(self) -> dict[str, Any]:
        """The facts that a record repeats, so that a report does not need the library."""
        return {"idea": self.idea, "parent": None, "row": "", "order": self.order}


CUBLAS = Reference(
    "ref/cublas",
    "NVIDIA cuBLAS, by cublasGemmEx; float32 without TF32.",
    tuple(_DATA_TYPES),
    hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16],
)


#: No TF32 unless asked for (the default), and partial sums of 16-bit products never rounded to 16 bits.
_MATH_MODE = 0 | 16


class Cublas:
    """A cuBLAS handle for one GPU's stream. Raises UnavailableError if cuBLAS is not installed or does not start."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._library = _library()
        self._handle = ctypes.c_void_p()
        try:
            self._call("cublasCreate_v2", ctypes.byref(self._handle))
            self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(gpu.stream))
            self._call("cublasSetMathMode", self._handle, ctypes.c_int(_MATH_MODE))
        except LaunchError as error:
            raise UnavailableError(f"cuBLAS does not start on {gpu.name}: {error}") from None

    @property
    def version(self) -> str:
        """The version of cuBLAS, such as "13.1.0"."""
        number, parts = ctypes.c_int(), []
        for part in range(3):
            self._call("cublasGetProperty", ctypes.c_int(part), ctypes.byref(number))
            parts.append(str(number.value))
        return ".".join(parts)

    def gemm(
        self,
        a: Memory,
        b: Memory,
        c: Memory,
        shape: tuple[int, int, int],
        dtype: str = "float32",
        *,
        precision: str = "standard",
    ) -> Submission:
        """A function that computes row-major C[m×n] = A[m×k]·B[k×n], and may be called repeatedly. ``shape`` is (m, n,
        k).

        ``dtype`` is the dtype of A, B and C: float32, float64, float16 or bfloat16. Products of float16 and bfloat16
        are summed in float32. With ``precision`` "standard" no operand is rounded. With "tf32", "bf16" and "f16"
        float32 operands may be rounded to these types. Raises UsageError for a dtype or precision that is not named
        above. The returned function raises LaunchError with cuBLAS's name of the error.
        """
        m, n, k = shape
        kind, scalar = _data_type(dtype), ctypes.c_double if dtype == "float64" else ctypes.c_float
        one, zero = scalar(1), scalar(0)
        wide = hasattr(self._library, "cublasGemmEx_64")
        size = ctypes.c_int64 if wide else ctypes.c_int
        if not wide and max(shape) >= 1 << 31:
            raise UsageError(f"cuBLAS {self.version} takes sizes below 2^31, got {m}x{n}x{k}")

        def matrix(memory: Memory, columns: int) -> tuple[Any, ...]:
            return ctypes.c_void_p(memory.pointer), ctypes.c_int(kind), size(max(1, columns))

        return functools.partial(
            self._call,
            "cublasGemmEx_64" if wide else "cublasGemmEx",
            *(self._handle, ctypes.c_int(_NO_TRANSPOSE), ctypes.c_int(_NO_TRANSPOSE), size(n), size(m), size(k)),
            *(ctypes.byref(one), *matrix(b, n), *matrix(a, k), ctypes.byref(zero), *matrix(c, n)),
            *(ctypes.c_int(_compute_type(dtype, precision)), ctypes.c_int(_DEFAULT_ALGORITHM)),
        )

    def close(self) -> None:
        """Destroy the cuBLAS handle."""
        if self._handle:
            self._call("cublasDestroy_v2", self._handle)
            self._handle = ctypes.c_void_p()

    def _call(self, function: str, *args: Any) -> None:
        if status := getattr(self._library, function)(*args):
            raise LaunchError(f"{function}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


@functools.cache  # loads it once
def _library() -> ctypes.CDLL:
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    except Exception as error:  # a package or library that is missing or does not load: each raises another class
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UnavailableError(f"cuBLAS cannot be loaded ({reason}); pip install nvidia-cublas") from None
    if not hasattr(library, "cublasGemmEx"):
        raise UnavailableError("cuBLAS is too old: it has no cublasGemmEx; pip install nvidia-cublas")
    return library


def _data_type(dtype: str) -> int:
    if dtype not in _DATA_TYPES:
        raise UsageError(f"dtype {dtype!r}: {did_you_mean(dtype, _DATA_TYPES)}")
    return _DATA_TYPES[dtype]


def _compute_type(dtype: str, precision: str) -> int:
    known = _FLOAT32 if dtype == "float32" else ["standard"]
    if precision not in known:
        raise UsageError(f"precision {precision!r} of {dtype}: {did_you_mean(precision, known)}")
    return _COMPUTE_64F if dtype == "float64" else _FLOAT32[precision]
