"""The source of a kernel, line by line, with the cost of each line and what is wrong there, for all listings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .explanation import Access

#: Lines shown around each line that has something to show.
CONTEXT = 1


@dataclass(frozen=True)
class SourceRow:
    """One source line: sectors of global and local memory, wavefronts of shared memory, and what is wrong there.

    ``sectors_waste`` and ``wavefronts_waste``: the cost over the least that the same bytes can cost; 1 where nothing is
    wasted.
    """

    number: int
    text: str
    sectors: int
    sectors_waste: float
    wavefronts: int
    wavefronts_waste: float
    wrong: tuple[str, ...] = ()

    @property
    def speaks(self) -> bool:
        """Whether the line has something to show."""
        return bool(self.sectors or self.wavefronts or self.wrong)


def source_rows(source: str, accesses: Sequence[Access], wrong: Iterable[tuple[int, str]]) -> list[SourceRow]:
    """Every line of ``source``; ``wrong`` are pairs of a line and a message for it."""
    messages: dict[int, list[str]] = {}
    for line, message in wrong:
        messages.setdefault(line, []).append(message)
    all_rows = []
    for number, text in enumerate(source.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1):
        here = [access for access in accesses if access.line == number]
        shared = [access for access in here if access.space == "shared"]
        moved = [access for access in here if access.space != "shared"]
        all_rows.append(SourceRow(number, text, *_cost(moved), *_cost(shared), tuple(messages.get(number, ()))))
    return all_rows


def _cost(accesses: Sequence[Access]) -> tuple[int, float]:
    """Sectors, or wavefronts, and their number over the least possible."""
    cost, least = (sum(getattr(access, name) for access in accesses) for name in ("cost", "least"))
    return cost, cost / least if least else 1.0


def excerpt(all_rows: Sequence[SourceRow]) -> list[SourceRow | None]:
    """The rows that have something to show, and their neighbours; None stands for a gap."""
    speaking = {row.number for row in all_rows if row.speaks}
    shown: list[SourceRow | None] = []
    for row in all_rows:
        near = range(row.number - CONTEXT, row.number + CONTEXT + 1)
        if speaking.intersection(near):
            shown.append(row)
        elif shown and shown[-1] is not None:
            shown.append(None)
    return shown[:-1] if shown and shown[-1] is None else shown


def margin(row: SourceRow) -> tuple[str, str, str, str]:
    """The texts before a line: its sectors and wavefronts, each with its waste."""

    def cells(cost: int, waste: float) -> tuple[str, str]:
        return f"{cost:,}" if cost else "", f"{waste:.1f}" if waste > 1.005 else ""

    return (*cells(row.sectors, row.sectors_waste), *cells(row.wavefronts, row.wavefronts_waste))


#: The headings of the columns of ``margin``.
HEADS = ("sectors", "×least", "wavefronts", "×least")
