"""What every plan is: one decision about one problem, which prints itself, predicts, and is what runs.

Each path has a plan of its own, with what only it decides: threads on the host (``planning.host``), how operands lie on a
GPU (``arrays.plan``), how a product larger than a memory is cut (``streaming.plan``). What they share stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..host.machine import seconds_text
from ..problem import Problem
from .choice import Choice

#: What a plan tells: labels and texts.
Rows = list[tuple[str, str]]


class Plan(ABC):
    """A decision about one problem; ``str()`` tells the whole of it.

    ``problem`` is what was asked for, ``choice`` the kernel that multiplies, with its parameters and the reasons, and
    ``device`` where it does: "cpu", "cuda:0", or several of them.
    """

    if TYPE_CHECKING:  # subclasses are dataclasses, which would take a property here for the default of a field

        @property
        def problem(self) -> Problem: ...
        @property
        def choice(self) -> Choice[Any]: ...
        @property
        def device(self) -> str: ...

    @property
    @abstractmethod
    def predicted_s(self) -> float | None:
        """Seconds that the product should take; None where nothing is known of them."""

    @abstractmethod
    def rows(self) -> Rows:
        """What this path decides beyond the kernel, label and text."""

    @property
    def kernel(self) -> Any:
        """What multiplies: a ``Kernel``, or on a GPU a ``CudaKernel``."""
        return self.choice.kernel

    @property
    def compute(self) -> str:
        """The dtype in which the kernel works."""
        return self.choice.compute

    @property
    def params(self) -> Mapping[str, Any]:
        """The kernel's parameters."""
        return self.choice.params

    @property
    def title(self) -> str:
        """The first line."""
        return str(self.problem)

    def __str__(self) -> str:
        chosen = self.choice
        kernel = [("kernel", f"{chosen.kernel.name}: {chosen.kernel.idea}"), ("because", chosen.why)] if chosen else []
        return "\n".join([self.title, *(f"  {label:<10} {text}" for label, text in [*kernel, *self.rows()])])


def rate_text(problem: Problem, seconds: float) -> str:
    """A predicted time and the rate that it means.

    >>> rate_text(Problem(1000, 1000, 1000), 0.01)
    '10 ms, 200 GFLOPS'
    """
    return f"{seconds_text(seconds)}, {problem.flops / seconds / 1e9:.3g} GFLOPS"
