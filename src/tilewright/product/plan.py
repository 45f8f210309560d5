"""The chosen kernel, and the base of every plan: a decision about one problem that prints itself, predicts its time, runs.

Each path has a plan class with what only this path decides: threads on the host (``cpu.plan``), the order of operands on a
GPU (``gpu.arrays.plan``), how a product larger than a memory is cut (``large.streaming.plan``). What they share is here.
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
    """A kernel, the dtype in which it computes, and all of its parameters. ``why``: the reason for the kernel.
    ``reasons``: those for the parameters, as text, or as a function that makes it on demand, which takes longer than
    choosing."""

    kernel: AnyKernel
    compute: str
    params: Mapping[str, Any]
    why: str
    reasons: str | Callable[[], str] = "the kernel's own"

    @property
    def why_params(self) -> str:
        """The reasons for the parameters."""
        return self.reasons if isinstance(self.reasons, str) else self.reasons()


class Plan(ABC):
    """A decision about one problem; ``print`` shows all of it.

    Attributes
    ----------
    problem : Problem
        The product: m, n, k, batch, dtype.
    choice : Choice
        The kernel that computes it, with its parameters and the reasons.
    device : str
        The place where it runs: "cpu", "cuda:0", or several of them.
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
        """Predicted seconds of the product; None where there is no model or no measured rate."""

    @abstractmethod
    def rows(self) -> Rows:
        """What this path decides beyond the kernel, as labels and texts."""

    @property
    def kernel(self) -> Any:
        """The kernel that multiplies: a ``Kernel``, or on a GPU a ``CudaKernel``."""
        return self.choice.kernel

    @property
    def compute(self) -> str:
        """The dtype in which the kernel computes."""
        return self.choice.compute

    @property
    def params(self) -> Mapping[str, Any]:
        """The kernel's parameters."""
        return self.choice.params

    @property
    def title(self) -> str:
        """The first line of ``str()``."""
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
        """The kernel, and ``rows``: what is printed below the title."""
        chosen = self.choice
        kernel = [("kernel", f"{chosen.kernel.name}: {chosen.kernel.idea}"), ("because", chosen.why)] if chosen else []
        return [*kernel, *self.rows()]


def rate_text(problem: Problem, seconds: float) -> str:
    """A predicted time, and the rate that follows from it.

    >>> rate_text(Problem(1000, 1000, 1000), 0.01)
    '10 ms, 200 GFLOPS'
    """
    return f"{seconds_text(seconds)}, {problem.flops / seconds / 1e9:.3g} GFLOPS"
