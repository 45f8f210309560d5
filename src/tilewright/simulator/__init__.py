"""The microscope: runs the PTX of a kernel on the CPU, and observes what every instruction does."""

from .findings import Finding
from .machine.options import RunOptions
from .ops import UnknownInstruction
from .run.simulate import Run, simulate

__all__ = ["Finding", "Run", "RunOptions", "UnknownInstruction", "simulate"]
