"""Bench records as plain data: one JSON object in each line. Any machine can read the records, and a file never ends in
the middle of a record.

A record says what was run (kernel, shape, dtype, threads, parameters), what the result was (verdict, error, raw
samples), and where it was run (environment). Medians, ratios, charts and the comparison of two files are all computed
from records.
"""

from __future__ import annotations

import json
import os
import stat
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RecordError
from .json_data import (
    COUNT,
    NUMBER,
    OBJECT,
    PLAIN_VALUES,
    POSITIVE,
    TEXT,
    TIMES,
    Rule,
    check_fields,
    dumped,
    is_finite,
    is_seconds,
    nullable,
    parse_json,
    value_excerpt,
)

SCHEMA = 1

#: How every line of a record file begins.
_BEGINNING = b'{"kernel": "'

#: Every verdict that a cell of the bench can have, and its text in the tables (marks of row S1.2 in docs/sources.md).
VERDICTS = {
    "ok": "measured and verified",
    "wrong": "wrong result",
    "time_limit": "over the time limit",
    "out_of_memory": "does not fit in memory",
    "unsupported": "not supported here",
}


@dataclass(frozen=True)
class BenchRecord:
    """One cell of a benchmark: one kernel, one shape, one dtype, and one number of threads.

    Times are in seconds and rates in GFLOPS. The rates count 2·m·n·k operations for every algorithm. ``ratio`` is the
    reference's median time divided by the kernel's; if the ratio is above 1, the kernel is faster. ``about`` has what
    the kernel declares (``idea``, ``parent``, ``row``, ``order``), so that a report can be made where the kernel is not
    installed. ``rms_error`` is ‖C − A·B‖ divided by ‖A·B‖ (Frobenius norms over a sample of the elements of C). Unlike
    a largest error, ``rms_error`` does not grow with the size of the sample.
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
    rms_error: float | None = None
    seed: int | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    kind: str = "bench"

    @property
    def flops(self) -> int:
        """The number of operations of the classical product, 2·m·n·k, even for kernels that do fewer operations."""
        return 2 * self.m * self.n * self.k

    @property
    def cell(self) -> tuple[Any, ...]:
        """The values that are equal in two records if both measure the same cell."""
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
        """The shape as text: ``1000`` for a square product, otherwise for example ``6x2000x4`` (m × n × k)."""
        return str(self.n) if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"

    def with_rates(self) -> BenchRecord:
        """Return the record with its median time, GFLOPS, fraction of the peak and ratio, computed from its raw
        samples."""
        if not self.samples_s:
            return self
        median = statistics.median(self.samples_s)
        gflops = self.flops / median / 1e9 if median > 0 else None
        ratio = statistics.median(self.reference_samples_s) / median if self.reference_samples_s and median else None
        fraction = gflops / self.peak_gflops if gflops is not None and self.peak_gflops else None
        derived = {"median_s": median, "gflops": gflops, "ratio": ratio, "peak_fraction": fraction}
        return BenchRecord(**{**asdict(self), **derived})


def to_line(record: BenchRecord) -> str:
    """Convert a record to one line of JSON, without a line feed. NaN and infinity become null, because JSON has
    neither."""
    return dumped(_finite(asdict(record)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


#: What each field of a line must be.
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("m", "n", "k", "threads"), COUNT),
    **dict.fromkeys(("kernel", "device", "dtype", "precision", "reason"), TEXT),
    **{"params": PLAIN_VALUES, "about": OBJECT, "environment": OBJECT},
    **dict.fromkeys(("samples_s", "reference_samples_s"), TIMES),
    "median_s": nullable(Rule("a finite number above 0, in seconds,", lambda x: is_seconds(x) and x > 0)),
    **dict.fromkeys(
        ("gflops", "peak_gflops", "peak_fraction", "ratio", "max_abs_error", "error_over_bound", "rms_error"),
        Rule("a finite number or null, not negative", lambda x: x is None or POSITIVE.holds(x)),
    ),
    "reference": nullable(TEXT),
    "seed": nullable(Rule("a whole number", lambda x: type(x) is int and is_finite(x))),
    "verdict": Rule(f"one of {', '.join(VERDICTS)}", lambda x: isinstance(x, str) and x in VERDICTS),
}

#: The rules of the fields in ``about``.
_ABOUT_RULES = {"order": nullable(NUMBER), **dict.fromkeys(("idea", "parent", "row"), nullable(TEXT))}


def from_line(line: str, where: str = "record") -> BenchRecord:
    """Read the record on one line.

    Raises RecordError for a field that breaks its rule; the error names ``where``, the origin of the line.
    """
    data = parse_json(line, where, "record file")
    if not isinstance(data, dict) or data.get("kind") != "bench":
        kind = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{where}: kind must be 'bench', got {value_excerpt(kind)}")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"{where}: schema must be {SCHEMA}, got {value_excerpt(data.get('schema'))}")
    check_fields(data, _RULES, where)
    check_fields(data.get("about", {}), _ABOUT_RULES, where, "about.")
    known = {f.name for f in fields(BenchRecord)}
    try:
        return BenchRecord(**{key: value for key, value in data.items() if key in known})
    except TypeError as error:
        missing = str(error).split("argument", 1)[-1].lstrip("s: ")
        raise RecordError(f"{where}: fields missing: {missing}") from None


def read_records(path: str | Path) -> list[BenchRecord]:
    """Read every record of a file, in order.

    Raises RecordError, which names the line and the field, for a file that is missing, empty, damaged or of another
    kind. Times and rates that no product can have (negative, infinite, zero seconds) are refused, so other code does
    not check them.
    """
    path = Path(path)
    records = _parsed(_bytes_of(path), path)
    if not records:
        raise RecordError(f"{path}: holds no record")
    return records


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read as a record file ({error.strerror})") from None


def _parsed(data: bytes, path: Path) -> list[BenchRecord]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: cannot be read as a record file ({error})") from None
    # Not splitlines: a JSON text may contain U+2028 and other characters at which that function splits too.
    numbered = enumerate(text.split("\n"), 1)
    return [from_line(line, f"{path}:{number}") for number, line in numbered if line.strip()]


class Writer:
    """Writes records line by line to ``path``. At every moment the file on disk consists of whole lines.

    Each line is on the disk before the next measurement starts, so an interrupted run keeps the record of every
    finished cell. With ``resume``, the file's earlier records are kept, and ``done`` contains them. If the file's last
    line is incomplete, which only a crash can cause, it is removed. A file that is not a file of bench records is
    refused and not changed. The path ``-`` means standard output.

    Raises RecordError if the file cannot be read or written.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self.done: list[BenchRecord] = []
        keep = self._read_whole_lines() if resume and self.path.exists() else 0
        try:
            if str(path) == "-":
                self._file, self._on_disk = open(1, "wb", 0, closefd=False), False  # noqa: SIM115
            else:
                self._file = self.path.open("ab", 0)
                self._on_disk = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
            if self._on_disk:
                self._file.truncate(keep)
        except OSError as error:
            raise RecordError(f"{path}: cannot be written ({error.strerror})") from None

    def _read_whole_lines(self) -> int:
        """Fill ``done`` from the complete lines; returns the byte at which the last of them ends."""
        data = _bytes_of(self.path)
        keep = data.rfind(b"\n") + 1
        torn = data[keep:]
        if not (torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn)):
            raise RecordError(f"{self.path}: does not end like a record file; it was left as it is")
        self.done = _parsed(data[:keep], self.path)
        return keep

    def write(self, record: BenchRecord) -> None:
        """Append a record; when the method returns, the record is on the disk."""
        # A lone surrogate, as in a path that is not UTF-8, becomes its JSON escape.
        line = (to_line(record) + "\n").encode("utf-8", "backslashreplace")
        end = os.fstat(self._file.fileno()).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            if self._on_disk:
                os.fsync(self._file.fileno())
        except OSError as error:
            if self._on_disk:
                self._file.truncate(end)
            if isinstance(error, BrokenPipeError):
                raise
            raise RecordError(
                f"{self.path}: cannot be written ({error.strerror}); its records so far are whole"
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def write_records(path: str | Path, records: Iterable[BenchRecord]) -> None:
    """Write all records to a new file."""
    with Writer(path) as writer:
        for record in records:
            writer.write(record)


#: The keys of the environment that differ between cells of one run.
VOLATILE = (
    *("time", "clock_mhz_before", "clock_mhz_after", "memory_clock_mhz", "power_w", "temperature_c", "throttled"),
    *("kernel_source", "variants", "starved"),
)
