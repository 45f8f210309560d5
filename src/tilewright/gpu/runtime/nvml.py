"""Readings of a GPU: clocks, power, temperature, and the reasons for low clocks.

They are read through NVIDIA's management library (NVML), which comes with the driver, in about a millisecond and without
disturbing work on the GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

# nvmlClockType_t and nvmlTemperatureSensors_t
_SM, _MEMORY = 1, 2
_GPU_SENSOR = 0

#: Reasons for a low clock, as bits (nvml.h), except those that are expected: an idle GPU, and a clock that a user has set.
_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature limit",
    0x40: "hardware temperature limit",
    0x80: "power brake",
}


class Gauge:
    """Readings of one GPU, found by its place on the bus; a reading that fails is None."""

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        try:
            nvml = importlib.import_module("cuda.bindings.nvml")
            nvml.init_v2()
            self._device = nvml.device_get_handle_by_pci_bus_id_v2(pci_bus_id)
            self._nvml = nvml
        except Exception:  # no bindings, no driver, no such GPU: each raises another class
            return

    def facts(self) -> dict[str, Any]:
        """Facts that do not change: driver version, power limit in watts, highest clocks in MHz."""
        return {
            "driver": self._read("system_get_driver_version"),
            "power_limit_w": _thousandth(self._of_device("enforced_power_limit")),
            "max_clock_mhz": self._of_device("max_clock_info", _SM),
            "max_memory_clock_mhz": self._of_device("max_clock_info", _MEMORY),
        }

    def read(self) -> dict[str, Any]:
        """Present readings: clocks in MHz, watts, degrees Celsius, and the reasons for low clocks as text."""
        reasons = self._of_device("current_clocks_event_reasons")
        return {
            "clock_mhz": self._of_device("clock_info", _SM),
            "memory_clock_mhz": self._of_device("clock_info", _MEMORY),
            "power_w": _thousandth(self._of_device("power_usage")),
            "temperature_c": self._of_device("temperature_v", _GPU_SENSOR),
            "throttled": [reason for bit, reason in _REASONS.items() if (reasons or 0) & bit],
        }

    def _of_device(self, reading: str, *which: int) -> int | None:
        return None if self._nvml is None else self._read(f"device_get_{reading}", self._device, *which)

    def _read(self, function: str, *args: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*args)
        except Exception:  # the library's own class, or a function that its release lacks
            return None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
