"""CUDA's driver, through NVIDIA's bindings: calls, the meaning of errors, and the current context."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from ...errors import LaunchError

#: The meaning of the driver's errors; a message gives it before the driver's own text.
_CAUSES = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "it reads or writes memory that is not there",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "it reads or writes at an address that is no multiple of the access",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "it takes more registers or shared memory than a multiprocessor has",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "it ran longer than this GPU, which also draws a screen, allows",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "it has an instruction that this GPU does not know, or gives one a wrong operand",
    "CUDA_ERROR_ASSERT": "an assertion of the kernel failed",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "it was compiled for another architecture",
    "CUDA_ERROR_INVALID_IMAGE": "the driver does not know this form of binary: it may be older than the compiler",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU's memory is full",
}


def message(what: str, text: str) -> str:
    """The message that ``what`` failed: the meaning of the error, if it is known, and the driver's own ``text``.

    >>> message("k", "CUDA_ERROR_OUT_OF_MEMORY")
    "k: the GPU's memory is full (CUDA_ERROR_OUT_OF_MEMORY)"
    """
    cause = next((meaning for name, meaning in _CAUSES.items() if name in text), "")
    return f"{what}: {cause} ({text})" if cause else f"{what}: {text}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its class."""
    lines = str(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__


def attempt(what: str, function: Any, *args: Any, **named: Any) -> Any:
    """Call a function of ``cuda.core``. Its exceptions become LaunchError, whose message begins with ``what``."""
    try:
        return function(*args, **named)
    except Exception as error:  # cuda.core's own class is not public
        raise LaunchError(message(what, first_line(error))) from None


def call(what: str, function: str, *args: Any) -> tuple[Any, ...]:
    """Call a function of the driver; returns its results after the status. Raises LaunchError if the status is an error."""
    status, *answer = attempt(what, getattr(driver(), function), *args)
    if status != 0:
        raise LaunchError(message(what, status.name))
    return tuple(answer)


@functools.cache
def driver() -> Any:
    """NVIDIA's bindings of the driver, imported at the first call."""
    return importlib.import_module("cuda.bindings.driver")


@contextlib.contextmanager
def restored_context() -> Iterator[None]:
    """Within the block any GPU may become the calling thread's; afterwards the previous CUDA context is current again."""
    known, before = False, None
    with contextlib.suppress(Exception):  # without a driver there is no context
        _, before = driver().cuCtxGetCurrent()
        known = True
    try:
        yield
    finally:
        if known:
            driver().cuCtxSetCurrent(before)


def device_of(pointer: int) -> int:
    """The number of the GPU that an address lies on; 0 for the null address. Raises LaunchError if it lies on no GPU."""
    if not pointer:
        return 0
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call(f"address {pointer:#x}", "cuPointerGetAttribute", attribute, pointer)[0])
