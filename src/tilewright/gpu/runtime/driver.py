"""CUDA's driver, called through NVIDIA's bindings: calls, the meaning of errors, and the current context."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

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
    """The message that ``what`` failed: the meaning of the error, if it is known, and the driver's ``text``.

    >>> message("k", "CUDA_ERROR_OUT_OF_MEMORY")
    "k: the GPU's memory is full (CUDA_ERROR_OUT_OF_MEMORY)"
    """
    cause = next((meaning for name, meaning in _CAUSES.items() if name in text), "")
    return f"{what}: {cause} ({text})" if cause else f"{what}: {text}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its class."""
    lines = str(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__


def call(what: str, function: str, *args: Any) -> tuple[Any, ...]:
    """Call a function of the driver, and return its results after the status. Raises LaunchError if the status is an
    error."""
    try:
        status, *answer = getattr(driver(), function)(*args)
    except Exception as error:  # of a driver that is not there, or does not have the function
        raise LaunchError(message(what, first_line(error))) from None
    if status != 0:
        raise LaunchError(message(what, status.name))
    return tuple(answer)


@functools.cache  # each call of the driver asks
def driver() -> Any:
    """NVIDIA's bindings of the driver, which are imported at the first call."""
    return importlib.import_module("cuda.bindings.driver")


class DeviceFacts(NamedTuple):
    """Facts that the driver reports about a GPU.

    The facts are the GPU's number, name, compute capability and multiprocessors; the bytes of its second-level cache,
    and of the shared memory that a block can have; the most threads of a ``block`` and blocks of a ``grid`` along each
    axis; the clock (kHz) and the width (bits) of its memory; its address on the PCI bus; and whether memory can be
    allocated in the order of a stream."""

    ordinal: int
    name: str
    capability: str
    sms: int
    l2_bytes: int
    shared_bytes: int
    block: tuple[int, ...]
    grid: tuple[int, ...]
    memory_clock: int
    memory_bits: int
    pci_bus_id: str
    has_pools: bool

    @classmethod
    def of(cls, ordinal: int) -> DeviceFacts:
        """The facts of a GPU of this process. Raises LaunchError."""
        what = f"GPU {ordinal}"
        (device,) = call(what, "cuDeviceGet", ordinal)

        def fact(name: str) -> int:
            attribute = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(call(what, "cuDeviceGetAttribute", attribute, device)[0])

        def text(function: str, length: int) -> str:
            return str(call(what, function, length, device)[0].split(b"\0")[0].decode())

        return cls(
            ordinal,
            text("cuDeviceGetName", 128),
            f"{fact('COMPUTE_CAPABILITY_MAJOR')}.{fact('COMPUTE_CAPABILITY_MINOR')}",
            fact("MULTIPROCESSOR_COUNT"),
            fact("L2_CACHE_SIZE"),
            fact("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            tuple(fact(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"),
            tuple(fact(f"MAX_GRID_DIM_{axis}") for axis in "XYZ"),
            fact("MEMORY_CLOCK_RATE"),
            fact("GLOBAL_MEMORY_BUS_WIDTH"),
            text("cuDeviceGetPCIBusId", 13),
            bool(fact("MEMORY_POOLS_SUPPORTED")),
        )


@contextlib.contextmanager
def restored_context() -> Iterator[None]:
    """Within the ``with`` block, any GPU may become the calling thread's current one. Afterwards the previous CUDA
    context is current again."""
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
    """The number of the GPU whose memory holds an address; 0 for the null address. Raises LaunchError if no GPU's
    memory holds the address."""
    if not pointer:
        return 0
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call(f"address {pointer:#x}", "cuPointerGetAttribute", attribute, pointer)[0])
