"""A simulated GPU with streams whose launches are executed by the microscope."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from support.simulated_gpu import SimulatedGpu
from support.simulated_streams import SimulatedDevice, SimulatedStream
from tilewright.gpu.runtime.memory import Memory


class ExecutingGpu(SimulatedDevice):
    """Kernels that take tensor maps run on a stream's thread. ``launches`` are their names in order; ``errors`` is what the
    microscope found, after which the stream goes on."""

    arch, sms, pci_bus_id = "sm_90a", 4, "0000:00:00.0"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.launches: list[str] = []
        self.errors: list[BaseException] = []

    def boxed_launcher(self, compiled: Any, entry: str, size: Any, operands: Any, structure: bytes) -> Any:
        """Stands for ``Device.boxed_launcher``."""

        def launch(stream: SimulatedStream, mapped: Any, pointers: Any) -> None:
            self.launches.append(entry)
            stream.ask(lambda: execute(mapped, pointers))

        def execute(mapped: Any, pointers: Any) -> None:
            try:
                SimulatedGpu.run_boxed(self, compiled, entry, size, operands, structure, mapped, pointers)  # type: ignore[arg-type]
            except Exception as error:
                self.errors.append(error)

        return launch

    def _from(self, memory: Memory) -> np.ndarray:
        """What a pointer can reach: all of the reserved memory that follows."""
        at = int(memory.pointer)
        start, reserved = next((x, y) for x, y in self._memory.items() if x <= at < x + y.nbytes)
        return np.frombuffer((ctypes.c_uint8 * (start + reserved.nbytes - at)).from_address(at), np.uint8)
