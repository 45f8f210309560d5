"""The base class of all plans: a plan holds the chosen kernel, can be printed, predicts its time, and runs.

Each way to compute has its own class of plans, with the decisions that only this way needs: threads on the host
(``cpu.plan``), the order of operands on a GPU (``gpu.arrays.plan``), or how a product that is larger than the memory
is cut (``large.streaming.plan``). This module holds what all plans have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..host.machine import seconds_text
from .problem import Problem

#: A ``Kernel`` of the CPU, or a ``CudaKernel``.
AnyKernel = TypeVar("AnyKernel")
#: The printed lines of a plan, as labels and texts.
Rows = list[tuple[str, str]]
#: The line in which a plan says that its product is invariant.
INVARIANT_ROW = ("bits", "those of a row of C follow from that row of A and from B alone")


@dataclass(frozen=True, eq=False)
class Choice(Generic[AnyKernel]):
    """A kernel, the dtype in which it computes, and all of its parameters.

    ``why`` is the reason why this kernel was chosen. ``reasons`` are the reasons for the parameters: a text, or a
    function that makes the text on demand, because making the text takes longer than choosing the kernel."""

    kernel: AnyKernel
    compute: str
    params: Mapping[str, Any]
    why: str
    reasons: str | Callable[[], str] = "the kernel's own"

    @property
    def why_params(self) -> str:
        """The reasons for the parameters, as text."""
        return self.reasons if isinstance(self.reasons, str) else self.reasons()


class Plan(ABC):
    """The plan of one product: what runs, where, and why. ``print`` shows all of it.

    Attributes
    ----------
    problem : Problem
        The product: m, n, k, batch, dtype.
    choice : Choice
        The kernel that computes the product, with its parameters and the reasons for them.
    device : str
        The device that computes the product: "cpu" or "cuda:0", or several devices.

    See Also
    --------
    plan : Returns the plan of a product.
    tilewright.large.streaming.plan.plan.StreamPlan : The plan of a product larger than memory.
    """

    if TYPE_CHECKING:  # subclasses are dataclasses: a property here would count as the default of their field

        @property
        def problem(self) -> Problem: ...
        @property
        def choice(self) -> Choice[Any]: ...
        @property
        def device(self) -> str: ...

    @property
    @abstractmethod
    def predicted_s(self) -> float | None:
        """The predicted seconds of the product; None if the kernel has no model of its time or a rate for the model
        was not measured."""

    @abstractmethod
    def rows(self) -> Rows:
        """Return the decisions of this class of plans other than the kernel, as pairs of a label and a text."""

    @property
    def kernel(self) -> Any:
        """The kernel that computes the product: a ``Kernel``, or on a GPU a ``CudaKernel``."""
        return self.choice.kernel

    @property
    def compute(self) -> str:
        """The dtype in which the kernel computes."""
        return self.choice.compute

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the kernel."""
        return self.choice.params

    @property
    def title(self) -> str:
        """The first line of the printed plan."""
        return str(self.problem)

    def __repr__(self) -> str:
        """One line, alike in every process; the prediction, which may have to be measured first, is left to ``str()``."""
        by = f" by {self.kernel.name}" if self.choice else ""
        return f"<{type(self).__name__}: {self.title}{by} on {self.device}; print it for the whole>"

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {label:<10} {text}".rstrip() for label, text in self.all_rows)])

    def _repr_html_(self) -> str:
        """What notebooks show: the lines of ``str()`` as a table."""
        from html import escape  # a millisecond that no product needs

        cells = ((f'<td style="text-align:left">{escape(cell)}</td>' for cell in row) for row in self.all_rows)
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        return f"<div><b>{escape(self.title)}</b><table>{rows}</table></div>"

    @property
    def all_rows(self) -> Rows:
        """The rows of a printed plan below its title: those of the kernel, then those of ``rows``."""
        chosen = self.choice
        kernel = [("kernel", f"{chosen.kernel.name}: {chosen.kernel.idea}"), ("because", chosen.why)] if chosen else []
        return [*kernel, *self.rows()]


def rate_text(problem: Problem, seconds: float) -> str:
    """Return a predicted time as text, with the rate that follows from this time.

    >>> rate_text(Problem(1000, 1000, 1000), 0.01)
    '10 ms, 200 GFLOPS'
    """
    return f"{seconds_text(seconds)}, {problem.flops / seconds / 1e9:.3g} GFLOPS"
