"""What the microscope saw of one launch, and how it prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..errors import UnavailableError
from ..gpu.runtime.cubin import Resources
from ..records.explanation import Access
from ..records.legible import legible
from ..records.pipeline import Pipeline
from ..records.report import pipeline_html
from ..records.report.listing import listing_html
from ..records.source_rows import SourceRow, source_rows
from . import listing
from .assembly.source_files import file_label
from .findings import Finding
from .run.simulate import Run
from .timeline_listing import timeline_lines


@dataclass(frozen=True)
class Observation:
    """What the microscope saw of one launch; prints as the source with its counters in the margin.

    ``arrays`` has one entry per argument: the arrays as the kernel left them, None for numbers. ``counters`` are totals
    under the hardware's names, ``accesses`` the same by source line. ``words`` says which blocks were counted.
    ``exact`` is false if the run was stopped, if accesses of the binary could not be matched, or if the counts of a
    sample may not hold for the whole grid; ``notes`` say how they may differ from the binary's. ``resources`` is None
    for PTX. ``included`` has the texts of included files with accesses or findings,
    ``printed`` what the kernel's threads printed. ``approximate`` are the counters that are not exact.
    ``pipeline`` is what one block did at its mbarriers, None if it has none.
    """

    kernel: str
    file: str
    source: str
    arrays: tuple[Any, ...]
    counters: dict[str, int]
    accesses: list[Access]
    findings: list[Finding]
    run: Run
    exact: bool
    words: str
    seconds: float
    resources: Resources | None = None
    notes: list[str] = field(default_factory=list)
    included: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    approximate: frozenset[str] = frozenset()
    pipeline: Pipeline | None = None

    @property
    def ok(self) -> bool:
        """Whether the kernel ended and nothing was found."""
        return self.run.complete and not self.findings

    def __str__(self) -> str:
        wrong = [listing.wrapped(text, listing.WIDTH) for text in self._without_line]
        below = [*wrong, "", *self._below, *(["", *self._timeline, ""] if self._timeline else [])]
        return listing.listing_text(self._title, self._rows, below, self.notes)

    def __repr__(self) -> str:
        return f"<Observation of {self._title}>"

    def _repr_html_(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        below = [*self._without_line, *self._below, *notes]
        return listing_html(self._title, self._rows, below) + self._pictures()

    @property
    def _title(self) -> str:
        """The kernel, the number of findings, and which blocks were counted, in one line."""
        count = len(self.findings)
        findings = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
        return f"{self.kernel}: {findings}; {self.words}"

    @property
    def _rows(self) -> list[SourceRow]:
        wrong = [(file_label(f.file, self.file), f.line, f.text_in_place) for f in self.findings]
        return source_rows(self.source, self.accesses, wrong, self.included)

    @property
    def _timeline(self) -> list[str]:
        """The timeline of the pipeline as text; empty if there is none."""
        return timeline_lines(self.pipeline) if self.pipeline else []

    def _pictures(self) -> str:
        """The pictures of the pipeline; without the libraries that draw them its timeline as text."""
        if self.pipeline is None:
            return ""
        try:
            return pipeline_html(self.pipeline, f"pipeline-{id(self):x}")
        except UnavailableError:
            return f"<pre>{escape(chr(10).join(self._timeline))}</pre>"

    @property
    def _below(self) -> list[str]:
        """What was printed, and the counters."""
        printed = legible(self.printed).removesuffix("\n").split("\n")
        return [
            *(["printed:", *printed, ""] if self.printed else []),
            *listing.counter_lines(self.counters, self.approximate),
        ]

    @property
    def _without_line(self) -> list[str]:
        """The findings that have no source line."""
        return [f.text_in_place for f in self.findings if not f.line]
