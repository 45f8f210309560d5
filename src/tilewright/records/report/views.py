"""Groups records into views, the records that one chart can show together, and makes the rows that charts draw.

A *section* is one machine, device, dtype and precision; a *view* of a section is one thread count. A serial kernel is
measured with one thread only, so the view of T threads shows every kernel at its largest thread count not above T. The
rows that charts draw say which kernels are drawn at first, and which sizes a curve goes through.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RecordError
from ..bench import VOLATILE, BenchRecord
from ..compare import busy
from .words import digits, duration, finite, with_noun

# ---- sections and views ----------------------------------------------------------------------------------------------

#: Environment keys that tell one run from another on the same machine; ``VOLATILE`` tells cells apart.
RUN_KEYS = (
    *("command", "command_line", "argv", "git", "git_revision", "revision", "kernel_sources"),
    *("started", "finished", "date", "load", "clock_mhz", "memory_available"),
)


#: A page has this many cells in its tables at most: few records with nothing in common make large tables.
MOST_CELLS = 50_000


def is_reference(kernel: str) -> bool:
    """Return whether a kernel is a reference: the name of a reference begins with ``ref/``."""
    return kernel.startswith("ref/")


def is_library_call(kernel: str) -> bool:
    """Return whether a kernel is the library's call.

    ``tilewright/matmul`` is no rung of the ladder: it runs the kernel that the product's plan chooses.
    """
    return kernel.startswith("tilewright/")


def rungs_order(record: BenchRecord) -> float:
    """Return a kernel's position on the ladder, or infinity if the record has no position, so that such kernels come
    last."""
    order = finite(record.about.get("order"))
    return float("inf") if order is None else order


@dataclass(frozen=True)
class Section:
    """All records of one machine and device with one dtype and precision."""

    machine: str
    device: str
    dtype: str
    precision: str
    records: tuple[BenchRecord, ...]

    @property
    def thread_counts(self) -> list[int]:
        """The numbers of threads in the section's records, the largest first. A GPU has one view, because numbers of
        threads do not apply to it."""
        return sorted({r.threads for r in self.records}, reverse=True) if self.device == "cpu" else [_ANY]

    @property
    def most_cells(self) -> int:
        """An upper bound on the number of cells in all tables of the section's views: kernels × shapes × thread
        counts."""
        kernels, shapes = {r.kernel for r in self.records}, {(r.m, r.n, r.k) for r in self.records}
        return len(self.thread_counts) * len(kernels) * len(shapes)


#: Stands for the thread count of a GPU; above every real one.
_ANY = 1 << 30


@dataclass(frozen=True)
class View:
    """The records of a section at one number of threads: one for each kernel and shape, in the order of the ladder,
    with references last."""

    section: Section
    threads: int | None
    records: tuple[BenchRecord, ...]

    @property
    def label(self) -> str:
        """Machine and what was measured."""
        return f"{self.section.machine} · {self.what}"

    @property
    def what(self) -> str:
        """The label without the machine: the dtype, the precision if it is not the default, the device and the
        threads."""
        s = self.section
        promise = f"precision {s.precision}" if s.precision not in ("", "standard") else ""
        device = s.device if s.device != "cpu" else ""
        threads = with_noun(self.threads, "thread") if self.threads else ""
        return " · ".join(part for part in (s.dtype, promise, device, threads) if part)

    @property
    def kernels(self) -> list[str]:
        """The kernels of the view's records, each once."""
        return list(dict.fromkeys(r.kernel for r in self.records))

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """The shapes of the view: square shapes by size, then the other shapes by number of operations."""
        shapes = {(r.m, r.n, r.k) for r in self.records}
        return sorted(shapes, key=lambda s: (not s[0] == s[1] == s[2], s[0] * s[1] * s[2], s))

    @property
    def squares(self) -> list[int]:
        """The sizes of the square products with at least one measured result."""
        return sorted({r.n for r in self.measured if r.m == r.n == r.k})

    @property
    def measured(self) -> list[BenchRecord]:
        """The records with a result."""
        return [r for r in self.records if is_measured(r)]

    @property
    def peak(self) -> float | None:
        """The measured peak of the view's machine with the view's number of threads, in GFLOPS."""
        widest = max((r.threads for r in self.records), default=0)
        peaks = [p for r in self.records if r.threads == widest and (p := finite(r.peak_gflops))]
        return statistics.median(peaks) if peaks else None

    @property
    def reference(self) -> str | None:
        """The reference of most ratios."""
        names = Counter(r.reference for r in self.records if r.reference and not is_reference(r.kernel))
        return names.most_common(1)[0][0] if names else None


def is_measured(record: BenchRecord) -> bool:
    """Return whether the record's result was verified and has a time."""
    return record.verdict == "ok" and bool(finite(record.median_s)) and bool(finite(record.gflops))


def threads_of(record: BenchRecord) -> str:
    """Return the number of threads as text, such as "2 threads"; empty on a GPU, where thread counts do not apply."""
    return with_noun(record.threads, "thread") if record.device == "cpu" else ""


def machine_name(record: BenchRecord) -> str:
    """Return the processor or GPU that the environment names."""
    keys = ("gpu", "processor") if record.device != "cpu" else ("processor", "cpu")
    for key in (*keys, "cpu", "machine", "host", "hostname"):
        value = record.environment.get(key)
        if isinstance(value, dict):
            value = next((value[k] for k in ("name", "model", "brand", "processor") if value.get(k)), None)
        if value:
            return str(value)
    return "unnamed machine"


def machine_names(records: Iterable[BenchRecord]) -> dict[str, str]:
    """Return a unique name for each ``machine_key``.

    If a processor occurs with several sets of libraries, its second and later names end in a number.
    """
    first: dict[str, str] = {}
    for record in records:
        first.setdefault(machine_key(record), machine_name(record))
    seen: Counter[str] = Counter()
    for key, name in first.items():
        seen[name] += 1
        first[key] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return first


def machine_key(record: BenchRecord) -> str:
    """Return a key that is equal for two records if they are from the same machine with the same libraries."""
    return json.dumps(_stable(record.environment), sort_keys=True, default=str)


def _stable(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {str(k): _stable(v) for k, v in value.items() if k not in VOLATILE and k not in RUN_KEYS}


def sections(records: Iterable[BenchRecord]) -> list[Section]:
    """Return the records as sections by machine, device, dtype and precision, in the order in which these first appear.

    Raises RecordError if the records have too many cells.
    """
    groups: dict[tuple[str, str, str, str], list[BenchRecord]] = {}
    for record in records:
        derived = record.with_rates() if record.median_s is None else record
        key = (machine_key(record), record.device, record.dtype, record.precision)
        groups.setdefault(key, []).append(derived)
    names = machine_names(record for group in groups.values() for record in group)
    found = [
        Section(names[machine], device, dtype, precision, tuple(group))
        for (machine, device, dtype, precision), group in groups.items()
    ]
    cells = sum(section.most_cells for section in found)
    if cells > MOST_CELLS:
        raise RecordError(f"tables of up to {cells:,} cells, more than {MOST_CELLS:,}: give fewer records at once")
    return found


def views(section: Section) -> list[View]:
    """Return one view of a section for each number of threads, the largest number first."""
    ladder = sorted(section.records, key=lambda r: (is_reference(r.kernel), rungs_order(r)))
    result = []
    for threads in section.thread_counts:
        widest: dict[str, int] = {}
        for r in ladder:
            if r.threads <= threads:
                widest[r.kernel] = max(widest.get(r.kernel, 0), r.threads)
        shown = best_of_cells(r for r in ladder if widest.get(r.kernel) == r.threads)
        result.append(View(section, None if threads == _ANY else threads, tuple(shown)))
    return result


def best_of_cells(records: Iterable[BenchRecord]) -> list[BenchRecord]:
    """Return one record for each kernel and shape: the latest of repeated measurements, and the fastest of several
    sets of parameters."""
    latest = {record.cell: record for record in records}
    best: dict[tuple[Any, ...], BenchRecord] = {}
    for record in latest.values():
        key = (record.kernel, record.m, record.n, record.k)
        if key not in best or _rank(record) < _rank(best[key]):
            best[key] = record
    # Kernels stay together, in the order of their first record.
    place = {kernel: i for i, kernel in enumerate(dict.fromkeys(r.kernel for r in best.values()))}
    return sorted(best.values(), key=lambda r: (place[r.kernel], r.m * r.n * r.k, r.shape))


def varied(records: Iterable[BenchRecord]) -> dict[str, tuple[str, ...]]:
    """Return for each kernel the parameters that have several values in one cell.

    Such parameters were varied on purpose. Parameters that differ only from size to size, such as tuned ones, were not
    varied on purpose.
    """
    groups: dict[tuple[Any, ...], list[BenchRecord]] = {}
    for record in records:
        groups.setdefault(record.cell[:-1], []).append(record)  # the cell without its parameters
    found: dict[str, dict[str, None]] = {}
    for group in groups.values():
        names = dict.fromkeys(name for r in group for name in r.params)
        several = [name for name in names if any(r.params.get(name) != group[0].params.get(name) for r in group)]
        if several:
            found.setdefault(group[0].kernel, {}).update(dict.fromkeys(several))
    return {kernel: tuple(names) for kernel, names in found.items()}


def params_text(record: BenchRecord, names: Iterable[str]) -> str:
    """Return the named parameters that the record has as text, such as ``BLOCK_X=8 BLOCK_Y=16``."""
    return " ".join(f"{name}={record.params[name]}" for name in names if name in record.params)


def _rank(record: BenchRecord) -> tuple[int, float]:
    if is_measured(record):
        return (0, record.median_s or 0.0)
    return (1 if record.verdict == "wrong" else 2, 0.0)


def spread(samples: Sequence[float]) -> str:
    """Return the range from the best to the worst sample as text.

    >>> spread([0.010, 0.011, 0.012])
    '10.0 ms … 12.0 ms'
    """
    return f"{duration(min(samples))} … {duration(max(samples))}" if samples else "not recorded"


# ---- rows for charts -------------------------------------------------------------------------------------------------

#: Charts draw up to this many kernels at first; of more only the emphasised ones.
FEW_KERNELS = 5
#: Sizes closer than this part of the axis share one place on it: their marks overlap.
ONE_PLACE = 1 / 80


def best_kernel(records: Iterable[BenchRecord]) -> BenchRecord | None:
    """Return the fastest of some measured records in their largest shape; square shapes come before other shapes."""
    sized = [((r.m == r.n == r.k, r.flops), r.gflops or 0.0, r) for r in records]
    return max(sized, key=lambda entry: entry[:2])[2] if sized else None


def best_rung(view: View) -> BenchRecord | None:
    """Return the fastest kernel of the largest shape, without references and the library's call."""
    return best_kernel(r for r in view.measured if not is_reference(r.kernel) and not is_library_call(r.kernel))


def emphasised(view: View) -> list[str]:
    """Return the kernels that charts draw at first: the library's call, the best rung and two references, or all
    kernels if they are few. More lines cannot be distinguished. The page draws all other kernels when the reader asks
    for them."""
    if len(view.kernels) <= FEW_KERNELS:
        return view.kernels
    best = best_rung(view)
    coloured = [kernel for kernel in view.kernels if is_library_call(kernel)] + ([best.kernel] if best else [])
    return coloured + references(view)


def references(view: View) -> list[str]:
    """Return the reference that most ratios refer to, and the fastest other library in the largest shape. A variant of
    the reference, whose name begins with the reference's name, is not another library."""
    first = view.reference or "none"
    others = best_kernel(r for r in view.measured if is_reference(r.kernel) and not r.kernel.startswith(first))
    chosen = (view.reference, others.kernel if others else None)
    return [kernel for kernel in view.kernels if kernel in chosen]


def curve_sizes(sizes: Iterable[int]) -> set[int]:
    """Return the sizes that a curve goes through: of sizes that share one place on the axis, the size that is divisible
    by the largest power of two.

    For example, the sizes 4095, 4096 and 4097 are measured to show how much an edge costs. A line through all three
    sizes is a vertical spike that hides the difference. Three marks, with a line through only the mark of 4096, show
    the difference.

    >>> sorted(curve_sizes([1000, 1024, 2048, 4095, 4096, 4097, 8192]))
    [1024, 2048, 4096, 8192]
    >>> sorted(curve_sizes([4095, 4096, 4097]))
    [4095, 4096, 4097]
    """
    ordered = sorted(sizes)
    if not ordered:
        return set()
    least = (ordered[-1] / ordered[0]) ** ONE_PLACE
    places = [[ordered[0]]]
    for before, size in itertools.pairwise(ordered):
        if size > before * least:
            places.append([])
        places[-1].append(size)
    return {max(place, key=lambda size: size & -size) for place in places}


def chart_rows(view: View) -> list[dict[str, Any]]:
    """Return the rows that charts draw: one for each measured cell, with its numbers and the texts of its tooltip.

    ``strong`` says whether the row's kernel is emphasised; emphasised rows come last, so that they are drawn on top.
    ``joined`` says whether the kernel's curve goes through the cell.
    """
    strong = set(emphasised(view))
    joined = curves(view.measured)
    rows = [
        _cell(r) | {"strong": r.kernel in strong, "joined": r.m == r.n == r.k and (r.kernel, r.n) in joined}
        for r in view.measured
    ]
    return sorted(rows, key=lambda row: row["strong"])


def curves(records: Iterable[BenchRecord]) -> set[tuple[str, int]]:
    """Return the kernel and the size of each square product that a curve goes through."""
    sizes: dict[str, set[int]] = {}
    for r in records:
        if r.m == r.n == r.k:
            sizes.setdefault(r.kernel, set()).add(r.n)
    return {(kernel, n) for kernel, found in sizes.items() for n in curve_sizes(found)}


def _cell(r: BenchRecord) -> dict[str, Any]:
    samples = [s for s in r.samples_s if finite(s)]
    median, gflops, ratio = finite(r.median_s) or 0.0, finite(r.gflops) or 0.0, None if busy(r) else finite(r.ratio)
    fraction = finite(r.peak_fraction)
    row: dict[str, Any] = {
        "kernel": r.kernel,
        "shape": r.shape.replace("x", " × "),
        "square": r.m == r.n == r.k,
        "n": r.n,
        "time": median,
        "gflops": round(gflops, 6),
        "ratio": None if ratio is None else round(ratio, 6),
        "Time": duration(median),
        "GFLOPS": digits(gflops) + (f" ({fraction:.0%} of peak)" if fraction else ""),
        "R": _ratio_words(r),
        "Spread": spread(samples),
        "Samples": ", ".join(filter(None, [str(len(samples)), threads_of(r)])),
    }
    return row


def _ratio_words(r: BenchRecord) -> str:
    if finite(r.ratio) is None:
        return "not compared"
    return f"?: {busy(r)}" if busy(r) else f"{digits(r.ratio or 0)} against {r.reference or 'the reference'}"
