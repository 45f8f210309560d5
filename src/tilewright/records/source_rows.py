"""The source of a kernel, line by line, with the cost of each line and the defects there.

All listings of source code are made from these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .explanation import APPROXIMATELY, Access

#: The number of lines shown around each line that has something to show.
CONTEXT = 1


@dataclass(frozen=True)
class SourceRow:
    """One source line: its sectors of global and local memory, its wavefronts of shared memory, its defects, and
    advice.

    ``sectors_waste`` and ``wavefronts_waste`` are the cost divided by the lowest cost of accessing the same bytes; 1
    means that nothing is wasted.
    """

    number: int
    text: str
    sectors: int
    sectors_waste: float
    wavefronts: int
    wavefronts_waste: float
    wrong: tuple[str, ...] = ()
    file: str = ""  # the included file that has the line; empty for the kernel's own
    sectors_exact: bool = True
    wavefronts_exact: bool = True
    inside: str = ""  # where in a library's header its accesses are, if the line calls a function there
    advice: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """The place in a library's header of the accesses that the line causes, as a line of a listing; empty if the
        accesses are in the line itself."""
        return f"(called from here: {self.inside})" if self.inside else ""

    @property
    def speaks(self) -> bool:
        """Whether the line has costs, defects or advice to show."""
        return bool(self.sectors or self.wavefronts or self.wrong)


def source_rows(
    source: str,
    accesses: Sequence[Access],
    wrong: Iterable[tuple[str, int, str]],
    included: Mapping[str, str] | None = None,
    advice: Iterable[tuple[str, int, str]] = (),
) -> list[SourceRow]:
    """Return a row for each line of ``source``, and then for each line of the ``included`` files, whose texts are given
    by name.

    ``wrong`` and ``advice`` are triples: a file (empty for ``source``), a line, and a message for the line. The text of
    an included file is empty if it could not be read. For a file that could not be read, only the lines with accesses
    and messages are returned.
    """
    messages, advised = _by_place(wrong), _by_place(advice)
    by_line: dict[tuple[str, int], list[Access]] = {}
    for access in accesses:
        by_line.setdefault((access.file, access.line), []).append(access)
    all_rows = []
    for file, text in {"": source, **(included or {})}.items():
        texts = (
            dict(enumerate(text.replace("\r\n", "\n").removesuffix("\n").split("\n"), 1)) if text or not file else {}
        )
        known = {line for name, line in (*by_line, *messages) if name == file and line} if not texts else set()
        for number in sorted({*texts, *known}):
            here = by_line.get((file, number), [])
            shared = [access for access in here if access.space == "shared"]
            moved = [access for access in here if access.space != "shared"]
            said = tuple(messages.get((file, number), ()))
            inside = ", ".join(dict.fromkeys(access.inside for access in here if access.inside))
            row = SourceRow(number, texts.get(number, ""), *_cost(moved), *_cost(shared), said, file)
            row = replace(row, advice=tuple(advised.get((file, number), ())))
            exact, shared_exact = (all(access.exact for access in some) for some in (moved, shared))
            all_rows.append(replace(row, sectors_exact=exact, wavefronts_exact=shared_exact, inside=inside))
    return all_rows


def _by_place(triples: Iterable[tuple[str, int, str]]) -> dict[tuple[str, int], list[str]]:
    """Messages by file and line."""
    found: dict[tuple[str, int], list[str]] = {}
    for file, line, message in triples:
        found.setdefault((file, line), []).append(message)
    return found


def _cost(accesses: Sequence[Access]) -> tuple[int, float]:
    """Sectors, or wavefronts, and their number over the least possible."""
    cost, least = (sum(getattr(access, name) for access in accesses) for name in ("cost", "least"))
    return cost, cost / least if least else 1.0


def excerpt(all_rows: Sequence[SourceRow]) -> list[SourceRow | None]:
    """Return the rows that have something to show, and the rows near them; None marks a gap."""
    speaking = {(row.file, row.number) for row in all_rows if row.speaks}
    shown: list[SourceRow | None] = []
    file = ""
    for row in all_rows:
        near = {(row.file, number) for number in range(row.number - CONTEXT, row.number + CONTEXT + 1)}
        if row.file != file and shown and shown[-1] is None:
            shown.pop()
        file = row.file
        if speaking.intersection(near):
            shown.append(row)
        elif shown and shown[-1] is not None and shown[-1].file == file:
            shown.append(None)
    return shown[:-1] if shown and shown[-1] is None else shown


def margin(row: SourceRow) -> tuple[str, str, str, str]:
    """Return the texts in front of a source line: its sectors and wavefronts, each with its waste."""

    def cells(cost: int, waste: float, exact: bool) -> tuple[str, str]:
        amount = f"{cost:,}" if exact else f"{APPROXIMATELY} {cost:,}"
        return amount if cost else "", f"{waste:.1f}" if waste > 1.005 else ""

    return (
        *cells(row.sectors, row.sectors_waste, row.sectors_exact),
        *cells(row.wavefronts, row.wavefronts_waste, row.wavefronts_exact),
    )


#: The headings of the columns of ``margin``.
HEADS = ("sectors", "×least", "wavefronts", "×least")
