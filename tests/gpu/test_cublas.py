"""cuBLAS, called through C, and the GPU's instruments: what they are given, and what is made of their answers. Libraries
of Python play them here; ``test_gpu_bench.py`` calls the real ones.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.errors import LaunchError, UnavailableError, UsageError
from tilewright.gpu.runtime import cublas
from tilewright.gpu.runtime.cublas import CUBLAS, Cublas
from tilewright.gpu.runtime.memory import Memory
from tilewright.lab.bench.device import Gauge

GPU: Any = SimpleNamespace(stream=77, name="Example GPU")


def plain(value: Any) -> Any:
    """A ctypes argument as Python's own number."""
    return value._obj.value if hasattr(value, "_obj") else getattr(value, "value", value)


class Library:
    """Notes what is called; ``status`` maps a function to the number it returns."""

    def __init__(self, wide: bool = True, **status: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status, self.wide = status, wide

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublas") or (name.endswith("_64") and not self.wide):
            raise AttributeError(name)

        def function(*args: Any) -> int:
            if name == "cublasGetProperty":
                args[1]._obj.value = 13 - args[0].value
            self.calls.append((name, *map(plain, args)))
            return self.status.get(name, 0)

        return function


@pytest.fixture
def library(monkeypatch) -> Library:
    found = Library()
    monkeypatch.setattr(cublas, "_library", lambda: found)
    return found


def memory(address: int) -> Memory:
    return Memory(SimpleNamespace(handle=address), 64)


A, B, C = memory(1000), memory(2000), memory(3000)


def test_a_handle_is_on_the_gpus_stream_and_strict(library: Library) -> None:
    Cublas(GPU)
    assert [call[0] for call in library.calls] == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode"]
    assert library.calls[1][2] == 77
    assert library.calls[2][2] == 16, "16-bit products are summed in float32"


@pytest.mark.parametrize(
    ("dtype", "precision", "data", "compute"),
    [
        ("float32", "standard", 0, 68),
        ("float32", "tf32", 0, 77),
        ("float32", "bf16", 0, 75),
        ("float32", "f16", 0, 74),
        ("float64", "standard", 1, 70),
        ("float16", "standard", 2, 68),
        ("bfloat16", "standard", 14, 68),
    ],
)
@pytest.mark.parametrize("wide", [True, False])
def test_a_row_major_product_is_the_transposed_one(
    library: Library, dtype: str, precision: str, data: int, compute: int, wide: bool
) -> None:
    library.wide = wide
    call = Cublas(GPU).gemm(A, B, C, (2, 3, 5), dtype, precision=precision)
    assert len(library.calls) == 3, "nothing is called yet"
    call()
    call()
    name, _, *args = library.calls[-1]
    assert library.calls[-2] == library.calls[-1]
    assert name == ("cublasGemmEx_64" if wide else "cublasGemmEx")
    #                n  m  k, one, B, its type, its row, A, …, zero, C, …, compute type, default algorithm
    assert args == [0, 0, 3, 2, 5, 1.0, 2000, data, 3, 1000, data, 5, 0.0, 3000, data, 3, compute, -1]


def test_scalars_are_as_wide_as_the_sum(library: Library) -> None:
    for dtype, scalar in (("float32", ctypes.c_float), ("float64", ctypes.c_double), ("float16", ctypes.c_float)):
        call: Any = Cublas(GPU).gemm(A, B, C, (2, 3, 5), dtype)
        assert {type(arg._obj) for arg in call.args if hasattr(arg, "_obj")} == {scalar}


def test_empty_rows_still_have_a_leading_dimension(library: Library) -> None:
    Cublas(GPU).gemm(A, B, C, (2, 3, 0))()
    assert library.calls[-1][13] == 1


def test_sizes_beyond_32_bits(library: Library) -> None:
    Cublas(GPU).gemm(A, B, C, (1, 1 << 31, 1))()
    assert library.calls[-1][4] == 1 << 31
    library.wide = False
    with pytest.raises(UsageError, match=r"cuBLAS 13.12.11 takes sizes below 2\^31, got 1x2147483648x1"):
        Cublas(GPU).gemm(A, B, C, (1, 1 << 31, 1))


@pytest.mark.parametrize(
    ("dtype", "precision", "words"),
    [
        ("float8", "standard", "dtype 'float8': did you mean"),
        ("float32", "fp32", "precision 'fp32' of float32"),
        ("float64", "tf32", "precision 'tf32' of float64: known: standard"),
        ("bfloat16", "tf32", "precision 'tf32' of bfloat16"),
    ],
)
def test_what_it_has_not(library: Library, dtype: str, precision: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Cublas(GPU).gemm(A, B, C, (2, 3, 5), dtype, precision=precision)


@pytest.mark.parametrize(("status", "name"), [(13, "EXECUTION_FAILED"), (15, "NOT_SUPPORTED"), (99, "99")])
def test_every_status_is_an_error_with_its_name(library: Library, status: int, name: str) -> None:
    call = Cublas(GPU).gemm(A, B, C, (2, 3, 5))
    library.status["cublasGemmEx_64"] = status
    with pytest.raises(LaunchError, match=f"cublasGemmEx_64: CUBLAS_STATUS_{name}$"):
        call()


@pytest.mark.parametrize("function", ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode"])
def test_a_library_that_does_not_start(library: Library, function: str) -> None:
    library.status[function] = 1
    words = f"cuBLAS does not start on Example GPU: {function}: CUBLAS_STATUS_NOT_INITIALIZED"
    with pytest.raises(UnavailableError, match=words):
        Cublas(GPU)


def test_a_library_that_is_not_there(monkeypatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError("No module named 'cuda.pathfinder'\nand more")

    monkeypatch.setattr(cublas.importlib, "import_module", absent)
    cublas._library.cache_clear()
    words = r"cuBLAS cannot be loaded \(No module named 'cuda.pathfinder'\); pip install nvidia-cublas"
    with pytest.raises(UnavailableError, match=words):
        Cublas(GPU)


def test_closing_destroys_the_handle_once(library: Library) -> None:
    handle = Cublas(GPU)
    handle._handle = ctypes.c_void_p(5)
    handle.close()
    handle.close()
    assert [call for call in library.calls if call[0] == "cublasDestroy_v2"] == [("cublasDestroy_v2", 5)]


def test_the_reference_travels_between_processes() -> None:
    assert pickle.loads(pickle.dumps(CUBLAS)) == CUBLAS
    assert CUBLAS.about["idea"]


# ---- instruments


class Instruments:
    """NVML of Python: the readings by function; others are not supported."""

    def __init__(self, starts: bool = True, **readings: int) -> None:
        self.starts, self.readings = starts, readings

    def init_v2(self) -> None:
        if not self.starts:
            raise RuntimeError("Uninitialized")

    def device_get_handle_by_pci_bus_id_v2(self, place: str) -> int:
        if place != "0000:17:00.0":
            raise RuntimeError("Not Found")
        return 42

    def system_get_driver_version(self) -> str:
        return "580.1"

    def __getattr__(self, name: str) -> Any:
        def function(device: int, *which: int) -> int:
            assert device == 42
            key = name + "".join(map(str, which))
            if key not in self.readings:
                raise RuntimeError("Not Supported")
            return self.readings[key]

        return function


READINGS = {
    "device_get_clock_info1": 1980, "device_get_clock_info2": 3201, "device_get_power_usage": 612_500,
    "device_get_temperature_v0": 61, "device_get_current_clocks_event_reasons": 0x4 | 0x1 | 0x20,
    "device_get_enforced_power_limit": 700_000, "device_get_max_clock_info1": 1980, "device_get_max_clock_info2": 3201,
}  # fmt: skip


def test_the_readings_are_functions_of_the_bindings() -> None:
    bindings = pytest.importorskip(
        "cuda.bindings.nvml", reason="cuda-bindings is not installed: pip install 'tilewright[cuda]'"
    )
    assert all(hasattr(bindings, name.rstrip("012")) for name in READINGS)


def test_the_instruments(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", Instruments(**READINGS))
    gauge = Gauge("0000:17:00.0")
    assert gauge.read() == {
        "clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 612.5, "temperature_c": 61,
        "throttled": ["power limit", "temperature limit"],
    }  # fmt: skip
    assert gauge.facts() == {
        "driver": "580.1", "power_limit_w": 700.0, "max_clock_mhz": 1980, "max_memory_clock_mhz": 3201
    }  # fmt: skip


@pytest.mark.parametrize("case", ["no library", "does not start", "no such GPU", "no readings"])
def test_instruments_that_do_not_answer(monkeypatch, case: str) -> None:
    instruments = None if case == "no library" else Instruments(starts=case != "does not start")
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", instruments)
    gauge = Gauge("0000:18:00.0" if case == "no such GPU" else "0000:17:00.0")
    none = {"clock_mhz": None, "memory_clock_mhz": None, "power_w": None, "temperature_c": None, "throttled": []}
    assert gauge.read() == none
    assert set(gauge.facts().values()) <= {None, "580.1"}
