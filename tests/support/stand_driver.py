"""A stand-in for the driver: functions of this process, with addresses as the driver's have."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

WORD, ADDRESS = ctypes.c_uint64, ctypes.c_void_p
#: Kernels of the stand-in: how many bytes each argument has.
WIDTHS = {7: (8, 8, 4, 8), 8: (8,), 9: (128, 128, 8, 12)}


class StandDriver:
    """The driver's functions in C: ``current`` is the thread's context, ``fails`` maps a function to its status."""

    def __init__(self) -> None:
        self.current, self.fails, self.calls = 55, dict[Any, int](), list[Any]()
        kinds = {
            "CtxGetCurrent": (self.get_current, [ctypes.POINTER(WORD)]),
            "CtxPushCurrent": (self.push, [WORD]),
            "CtxPopCurrent": (self.pop, [ADDRESS]),
            "LaunchKernel": (self.launch, [WORD, *[ctypes.c_uint] * 7, WORD, ADDRESS, ADDRESS]),
        }
        self.functions = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *args)(function) for name, (function, args) in kinds.items()
        }

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:  # noqa: N802, ARG002 - as NVIDIA's bindings have it
        status = SimpleNamespace(name="CUDA_ERROR_NOT_FOUND") if name in self.fails else 0
        return status, ctypes.cast(self.functions[name.decode()[2:]], ADDRESS).value, 0

    def CUresult(self, code: int) -> Any:  # noqa: N802
        return SimpleNamespace(name=f"CUDA_ERROR_{code}")

    def get_current(self, to: Any) -> int:
        to[0] = self.current
        return 0

    def push(self, context: int) -> int:
        self.calls.append(("push", context))
        return self.fails.get("push", 0)

    def pop(self, to: int) -> int:  # noqa: ARG002
        self.calls.append("pop")
        return 0

    def launch(self, function: int, *given: int) -> int:
        *size, stream, places, _ = given
        widths = WIDTHS[function]
        args = [
            ctypes.string_at(at, width) for at, width in zip((ADDRESS * 9).from_address(places), widths, strict=False)
        ]
        self.calls.append((function, tuple(size), stream, *args))
        return self.fails.get(function, 0)
