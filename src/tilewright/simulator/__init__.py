"""The microscope: runs the PTX of a kernel on the CPU and sees what every instruction does."""

from .findings import Finding
from .machine.simulate import Run, simulate
from .ops import UnknownInstruction

__all__ = ["Finding", "Run", "UnknownInstruction", "simulate"]
