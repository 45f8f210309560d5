"""What the errors of CUDA's driver mean."""

from __future__ import annotations

#: What the driver's names of errors mean; the driver's own words follow them.
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


def message(what: str, words: str) -> str:
    """``what`` went wrong, in our words where there are any, and in the driver's.

    >>> message("k", "CUDA_ERROR_OUT_OF_MEMORY")
    "k: the GPU's memory is full (CUDA_ERROR_OUT_OF_MEMORY)"
    """
    cause = next((meaning for name, meaning in _CAUSES.items() if name in words), "")
    return f"{what}: {cause} ({words})" if cause else f"{what}: {words}"


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its class."""
    lines = str(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__
