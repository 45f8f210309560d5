"""Evidence as plain data: one JSON object a line, readable on any machine, never half-written.

A record says what was run (kernel, shape, dtype, threads, parameters), what came out (verdict, error, raw samples) and
where (environment). Everything else, medians, ratios, charts, verdicts between two files, is derived from it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from .errors import RecordError

SCHEMA = 1

#: Every verdict a bench cell can end with, in the words of the tables (S1.2's marks).
VERDICTS = {
    "ok": "measured and verified",
    "wrong": "wrong result",
    "time_limit": "over the time limit",
    "out_of_memory": "does not fit in memory",
    "unsupported": "not supported here",
}


@dataclass(frozen=True)
class BenchRecord:
    """One cell of a benchmark: one kernel, one shape, one dtype, one thread count.

    Times are seconds, rates are 1e9 floating-point operations a second counted as 2·m·n·k for every algorithm.
    ``ratio`` is the reference's median over ours: above 1 we are faster. ``about`` repeats what the kernel says of
    itself (``idea``, ``parent``, ``row``, ``order``), so that a report needs no kernel to be installed.
    """

    kernel: str
    device: str
    m: int
    n: int
    k: int
    dtype: str
    verdict: str
    threads: int = 1
    precision: str = "standard"
    params: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    samples_s: list[float] = field(default_factory=list)
    median_s: float | None = None
    gflops: float | None = None
    peak_gflops: float | None = None
    peak_fraction: float | None = None
    reference: str | None = None
    reference_samples_s: list[float] = field(default_factory=list)
    ratio: float | None = None
    max_abs_error: float | None = None
    error_over_bound: float | None = None
    seed: int | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    kind: str = "bench"

    @property
    def flops(self) -> int:
        """Operations of the classical product, 2·m·n·k, whatever the kernel really does."""
        return 2 * self.m * self.n * self.k

    @property
    def cell(self) -> tuple[Any, ...]:
        """What must agree for two records to measure the same thing."""
        params = json.dumps(self.params, sort_keys=True)
        return (
            self.kernel,
            self.device,
            self.m,
            self.n,
            self.k,
            self.dtype,
            self.precision,
            self.threads,
            params,
        )

    @property
    def shape(self) -> str:
        """``1000`` for a square product, ``6x2000x4`` (m × n × k) otherwise."""
        return str(self.n) if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"

    def with_rates(self) -> BenchRecord:
        """The same record with median, GFLOPS, peak fraction and ratio derived from its raw samples."""
        if not self.samples_s:
            return self
        median = statistics.median(self.samples_s)
        gflops = self.flops / median / 1e9 if median > 0 else None
        ratio = statistics.median(self.reference_samples_s) / median if self.reference_samples_s and median else None
        fraction = gflops / self.peak_gflops if gflops is not None and self.peak_gflops else None
        derived = {"median_s": median, "gflops": gflops, "ratio": ratio, "peak_fraction": fraction}
        return BenchRecord(**{**asdict(self), **derived})


def to_line(record: BenchRecord) -> str:
    """One record as one line of JSON, without the line's end. NaN and infinity become null: JSON has neither."""
    return json.dumps(_finite(asdict(record)), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def from_line(line: str, where: str = "record") -> BenchRecord:
    """The record on one line; raises RecordError naming ``where`` for anything else."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: not JSON ({error.msg}); the file is damaged or no record file") from None
    if not isinstance(data, dict) or data.get("kind") != "bench":
        kind = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{where}: kind must be 'bench', got {kind!r}")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"{where}: schema must be {SCHEMA}, got {data.get('schema')!r}")
    known = {f.name for f in fields(BenchRecord)}
    try:
        record = BenchRecord(**{key: value for key, value in data.items() if key in known})
    except TypeError as error:
        missing = str(error).split("argument", 1)[-1].lstrip("s: ")
        raise RecordError(f"{where}: fields missing: {missing}") from None
    if record.verdict not in VERDICTS:
        raise RecordError(f"{where}: verdict must be one of {', '.join(VERDICTS)}, got {record.verdict!r}")
    return record


def read(path: str | Path) -> list[BenchRecord]:
    """Every record of a file, in order. Raises RecordError for a file that is missing, empty, damaged or foreign."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read as a record file ({error})") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise RecordError(f"{path}: holds no record")
    return [from_line(line, f"{path}:{number}") for number, line in lines]


class Writer:
    """Writes records line by line into ``path``; what is on disk is whole lines at every moment.

    Each line goes out in one write and is flushed to the disk before the next measurement starts, so an interrupted
    run keeps every finished cell. With ``resume`` the file's earlier records stay and are in ``done``; a torn last
    line, which only a crash of the machine can leave, is cut off.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self.done: list[BenchRecord] = []
        if resume and self.path.exists():
            self._cut_torn_line()
            self.done = read(self.path) if self.path.stat().st_size else []
        self._file: TextIO = self.path.open("a" if resume else "w", encoding="utf-8")

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def write(self, record: BenchRecord) -> None:
        self._file.write(to_line(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def write(path: str | Path, records: Iterable[BenchRecord]) -> None:
    """All records into a new file at once."""
    with Writer(path) as writer:
        for record in records:
            writer.write(record)


def environments(records: Iterable[BenchRecord]) -> Iterator[dict[str, Any]]:
    """The distinct environments of some records, clocks and times aside, in order of appearance."""
    seen = set()
    for record in records:
        stable = {key: value for key, value in record.environment.items() if key not in VOLATILE}
        key = json.dumps(stable, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield record.environment


#: Environment keys that differ from cell to cell of one run.
VOLATILE = ("time", "clock_mhz_before", "clock_mhz_after", "kernel_source")
