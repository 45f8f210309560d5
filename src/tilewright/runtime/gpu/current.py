"""The GPUs of a caller's arrays: current while they are used and not longer, and streams that wait for each other."""

from __future__ import annotations

import importlib
import threading
from collections import deque
from typing import Any

from ...errors import LaunchError
from .causes import message
from .device import Device, open_device

_lock = threading.Lock()


def gpu_at(ordinal: int) -> Gpu:
    """The GPU of that number. Raises UnavailableError where ``cuda.core`` is not there."""
    return _open.get(ordinal) or _opened(ordinal)


_open: dict[int, Gpu] = {}


def device_of(pointer: int) -> int:
    """The number of the GPU that an address lies on; 0 of no address. Raises LaunchError where it lies on none."""
    if not pointer:
        return 0
    driver = importlib.import_module("cuda.bindings.driver")
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = driver.cuPointerGetAttribute(attribute, pointer)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(message(f"address {pointer:#x}", status.name))
    return int(ordinal)


def _opened(ordinal: int) -> Gpu:
    with _lock:
        if ordinal not in _open:
            _open[ordinal] = Gpu(ordinal)
        return _open[ordinal]


class Gpu:
    """One GPU: ``with gpu:`` makes it the thread's current one, and then the one before again."""

    def __init__(self, ordinal: int) -> None:
        self._waiting: deque[tuple[Any, Any]] = deque()
        driver: Any = None
        try:
            driver = importlib.import_module("cuda.bindings.driver")
            _, before = driver.cuCtxGetCurrent()
        except ImportError:  # opening it says so better
            before = None
        self.device: Device = open_device(ordinal)
        self.ordinal, self._driver = ordinal, driver
        (self._context,) = self._call("cuCtxGetCurrent")
        self._call("cuCtxSetCurrent", before)
        self._push, self._pop = driver.cuCtxPushCurrent, driver.cuCtxPopCurrent

    def __enter__(self) -> Gpu:
        if self._push(self._context)[0]:
            raise LaunchError(f"GPU {self.ordinal} cannot be made the current one")
        return self

    def __exit__(self, *_: object) -> None:
        self._pop()

    def order(self, earlier: int, later: int) -> None:
        """What is asked of the stream ``later`` from now on begins when what was asked of ``earlier`` is done."""
        if earlier == later:
            return
        with self:
            event = self._event(earlier)
            self._call("cuStreamWaitEvent", _handle(later), event, 0)
            self._call("cuEventDestroy", event)  # when it is reached

    def keep_until_now(self, stream: int, things: Any) -> None:
        """Things live until all that was asked of the stream so far is done; nothing waits."""
        with _lock, self:
            while self._waiting and self._is_reached(self._waiting[0][0]):
                self._call("cuEventDestroy", self._waiting.popleft()[0])
            self._waiting.append((self._event(stream), things))

    def _event(self, stream: int) -> Any:
        (event,) = self._call("cuEventCreate", int(self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._call("cuEventRecord", event, _handle(stream))
        return event

    def _is_reached(self, event: Any) -> bool:
        (status,) = self._driver.cuEventQuery(event)
        return status == self._driver.CUresult.CUDA_SUCCESS

    def _call(self, function: str, *args: Any) -> tuple[Any, ...]:
        status, *answer = getattr(self._driver, function)(*args)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(message(f"GPU {self.ordinal}, {function}", status.name))
        return tuple(answer)


def _handle(stream: int) -> int:
    """0 is the default stream of all threads (``CU_STREAM_LEGACY``), whatever bindings take it for."""
    return stream or 1
