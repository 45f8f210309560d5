"""Performance counters of the processor with given values."""

from __future__ import annotations

from tilewright.lab.explain.cpu_events import PerfEvent


class ScriptedCounters:
    """Counters that run while they are on; ``counts`` are (value, wanted, ran) of each thread's, or an error's number."""

    def __init__(self, counts: dict[str, list[tuple[int, int, int] | int]]) -> None:
        self.counts = counts
        self.held: dict[int, tuple[int, int, int]] = {}
        self.on: set[int] = set()
        self.calls: list[str] = []

    def threads(self) -> list[int]:
        return [100 + t for t in range(len(next(iter(self.counts.values()))))]

    def open(self, event: PerfEvent, thread: int) -> int:
        answer = self.counts[event.name][thread - 100]
        if isinstance(answer, int):
            raise OSError(answer, "refused")
        counter = len(self.calls)
        self.calls.append(f"open {event.name} {thread}")
        self.held[counter] = answer
        return counter

    def switch(self, counter: int, *, on: bool) -> None:
        (self.on.add if on else self.on.discard)(counter)

    def read(self, counter: int) -> tuple[int, int, int]:
        assert counter not in self.on, "read while it still runs"
        return self.held[counter]

    def close(self, counter: int) -> None:
        del self.held[counter]
