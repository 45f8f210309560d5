"""Starts CUDA's driver and creates a GPU's context on another thread before they are needed. The start takes 0.2 s, in
which Python can import modules and plan.

This module uses ctypes, because importing NVIDIA's bindings takes 20 ms, and the start would have to wait for the
import.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import threading

_guard = threading.Lock()
_threads: dict[int, threading.Thread] = {}


def wake(ordinal: int) -> threading.Thread:
    """The thread that creates the context of GPU ``ordinal``; the first call starts it.

    The thread reports no error, because the code that opens the GPU later meets the same error.
    """
    with _guard:
        if ordinal not in _threads:
            thread = threading.Thread(target=_create_context, args=(ordinal,), name="driver", daemon=True)
            thread.start()
            _threads[ordinal] = thread  # only now: an interrupt may prevent the start
        return _threads[ordinal]


def wake_named(device: str | None) -> bool:
    """Wake the first GPU that ``device`` names ("cuda", "cuda:1", "cuda:1,2"). None means the first GPU, if there is
    any.

    Returns whether the thread that starts the driver is still running.
    """
    named = re.match(r"cuda(?::(\d+))?", "cuda" if device is None else str(device))
    return named is not None and wake(int(named[1] or 0)).is_alive()


def _create_context(ordinal: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # no driver
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) == 0:
            library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
