"""What a GPU's own instruments say: clocks, power, temperature, and what holds the clocks down.

They are read through the driver's NVML library, which is there wherever the driver is, in about a millisecond and without
touching what runs on the GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

_SM, _MEMORY = 1, 2
_GPU_SENSOR = 0

#: Reasons for a low clock, as bits (nvml.h); not those that are no fault: idle, and a clock that was asked for.
_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature limit",
    0x40: "hardware temperature limit",
    0x80: "power brake",
}


class Gauge:
    """The instruments of one GPU, by its place on the bus; every reading is None where they do not answer."""

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._device = ctypes.c_void_p()
            if nvml.nvmlInit_v2() == 0:
                found = nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(self._device))
                self._nvml = None if found else nvml
        except (OSError, AttributeError):  # no driver, or one of another system
            return

    def facts(self) -> dict[str, Any]:
        """What does not change: driver version, power limit in watts, highest clocks in MHz."""
        return {
            "driver": self._text("nvmlSystemGetDriverVersion"),
            "power_limit_w": _thousandth(self._number("nvmlDeviceGetEnforcedPowerLimit")),
            "max_clock_mhz": self._number("nvmlDeviceGetMaxClockInfo", _SM),
            "max_memory_clock_mhz": self._number("nvmlDeviceGetMaxClockInfo", _MEMORY),
        }

    def read(self) -> dict[str, Any]:
        """What there is now: clocks in MHz, watts, degrees Celsius, and what holds the clocks down, in words."""
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", wide=True)
        return {
            "clock_mhz": self._number("nvmlDeviceGetClockInfo", _SM),
            "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", _MEMORY),
            "power_w": _thousandth(self._number("nvmlDeviceGetPowerUsage")),
            "temperature_c": self._number("nvmlDeviceGetTemperature", _GPU_SENSOR),
            "throttled": [words for bit, words in _REASONS.items() if (reasons or 0) & bit],
        }

    def _number(self, function: str, *which: int, wide: bool = False) -> int | None:
        value = ctypes.c_ulonglong() if wide else ctypes.c_uint()
        if self._nvml is None:
            return None
        status = getattr(self._nvml, function)(self._device, *map(ctypes.c_int, which), ctypes.byref(value))
        return None if status else int(value.value)

    def _text(self, function: str) -> str | None:
        text = ctypes.create_string_buffer(96)
        if self._nvml is None or getattr(self._nvml, function)(text, ctypes.c_uint(len(text))):
            return None
        return text.value.decode(errors="replace")


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
