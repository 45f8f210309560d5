"""Computes the Gram matrices Aᴴ·A or A·Aᴴ of matrices that are in files or larger than memory.

A tile of C stays in memory while blocks of A are read; the next block is read while the current block is multiplied.
Only the tiles of one triangle of C are computed, and each tile is written to both sides of the diagonal. For a tile on
the diagonal, the columns of A are read once and only a triangle is computed. If C fits in memory, each element of A is
therefore read once, while a general product would read it twice.

If ``center`` is set, the means of the columns are subtracted with the method of Chan, Golub and LeVeque (1983). The
mean of each block's columns is subtracted from the block, and one additional row corrects for the difference from the
mean of the earlier blocks. The method of Chan, Golub and LeVeque needs only one pass over A, and it avoids the
difference XᵀX − m·μμᵀ, whose two terms can be large and nearly equal.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..cpu.runtime.machine_code import need_machine_code
from ..cpu.runtime.peaks import peak_gflops
from ..cpu.runtime.runner import runner
from ..cpu.runtime.stop import Stopped, current_stop, stoppable
from ..errors import DTypeError, FileError, MemoryLimitError, UsageError
from ..host.limits import get_threads
from ..host.machine import available_memory, bytes_text, seconds_text
from ..kernels import Kernel
from ..product.operands import mapped_empty
from ..product.plan import Choice, Plan, Rows
from ..product.problem import Problem, Symmetry
from .files import Output, Sink, Source, WorkDirectory, create_matrix, output_of
from .files.positional import BUFFER
from .streaming.places.places import (
    LEAST_LIMIT,
    SHARE,
    choose_on_cpu,
    parse_bytes,
    read_bytes,
    step_bytes,
    triangle_products,
    write_both_sides,
)
from .streaming.places.rates import copy_workers, read_rate
from .streaming.plan.cuts import least_limit, own_bytes
from .streaming.run.job import Progress, opened_source, product_dtype, refuse_inside, refuse_overlap

#: Elements of k in a block, at most and at least if memory allows: with more, a tile of C is read and written less often.
MOST_STEPS, FEWEST_STEPS = 4096, 256
#: Panels of C, at most: each reads all others.
MOST_PANELS = 1000
#: Blocks of A in memory: one is multiplied while another one is read.
BUFFERS = 2


@dataclass(frozen=True, repr=False)
class GramPlan(Plan):
    """The plan of a Gram matrix; ``str()`` shows all of it.

    C is n × n. The columns of C are cut into ``panels``. The tiles (i, j) with i ≥ j are computed, each by summing over
    all of k in blocks of ``steps`` elements. ``itemsize`` is the size of a stored element in bytes, and ``read_rate``
    the rate of reading A in bytes a second.
    """

    problem: Problem
    choice: Choice[Kernel]
    panels: tuple[slice, ...]
    steps: int
    threads: int
    itemsize: int
    result: np.dtype[Any]
    memory: int
    memory_bytes: int
    read_rate: float
    readers: int
    center: bool = False
    ddof: int | None = None

    @property
    def device(self) -> str:
        """ "cpu", because Gram matrices of files are not computed on GPUs."""
        return "cpu"

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """The tiles that are computed, each as its row and its column among all tiles of C."""
        return tuple((i, j) for i in range(len(self.panels)) for j in range(i + 1))

    def columns(self, tile: tuple[int, int]) -> int:
        """Return the number of columns of A that a tile reads."""
        return sum(_length(self.panels[p]) for p in set(tile))

    def operations(self, tile: tuple[int, int]) -> int:
        """Return the number of operations of a tile. For a tile on the diagonal only a triangle is computed."""
        rows, columns = (_length(self.panels[p]) for p in tile)
        return self.problem.k * (rows * (rows + 1) if tile[0] == tile[1] else 2 * rows * columns)

    @property
    def read_bytes(self) -> int:
        """The number of bytes of A that are read from the file."""
        return sum(self.columns(tile) for tile in self.tiles) * self.problem.k * self.itemsize

    @property
    def written_bytes(self) -> int:
        """The number of bytes of C that are written."""
        return self.problem.m**2 * self.result.itemsize

    @property
    def predicted_s(self) -> float | None:
        real = {"complex64": "float32", "complex128": "float64"}.get(self.compute, self.compute)
        if real not in ("float32", "float64"):
            return None
        operations = sum(map(self.operations, self.tiles)) * (4 if real != self.compute else 1)
        return max(operations / (peak_gflops(real, self.threads) * 1e9), self.read_bytes / self.read_rate)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        n, k, names = self.problem.m, self.problem.k, ("steps", "threads", "memory", "memory_bytes", "center", "ddof")
        return {
            **{"n": n, "k": k, "dtype": self.result.name, "kernel": self.kernel.name, "panels": len(self.panels)},
            **{name: getattr(self, name) for name in names},
            **{"read_bytes": self.read_bytes, "written_bytes": self.written_bytes, "predicted_s": self.predicted_s},
        }

    def rows(self) -> Rows:
        side, count = _length(self.panels[0]) if self.panels else 0, len(self.panels)
        tiles = f"{len(self.tiles)} of {count}×{count} tiles of {side}×{side}" if count > 1 else "C in one tile"
        blocks = math.ceil(self.problem.k / max(1, self.steps))
        centred = [("centred", "each block about its own mean; one more step corrects for the means before")]
        divided = [] if self.ddof is None else [("divided", f"by {self.problem.k - self.ddof:,}: k less {self.ddof}")]
        predicted = self.predicted_s
        return [
            ("tiles", f"{tiles}; those above the diagonal are copied"),
            ("steps", f"k in {blocks:,} blocks of {self.steps:,}; the next one is read meanwhile"),
            *(centred if self.center else []),
            *divided,
            ("threads", str(self.threads)),
            ("memory", f"{bytes_text(self.memory_bytes)} of {bytes_text(self.memory)}"),
            ("reads", f"{bytes_text(self.read_bytes)} of A; writes {bytes_text(self.written_bytes)}"),
            ("predicted", "nothing: its peak is not measured" if predicted is None else seconds_text(predicted)),
        ]


@dataclass
class GramJob:
    """A Gram matrix that is planned and ready to be computed. ``run`` measures ``seconds`` and ``read_bytes``."""

    source: Source
    plan: GramPlan
    target: Any
    by_rows: bool
    conjugate: bool
    output: Output | None
    seconds: float = field(default=0.0, init=False)
    read_bytes: int = field(default=0, init=False)

    def run(self, progress: Progress = lambda done, total: None) -> None:
        """Compute the Gram matrix and write it. After Ctrl-C nothing is left on the disk, and an existing file of the same
        name is unchanged.
        """
        stoppable(functools.partial(self._run, progress))

    def _run(self, progress: Progress) -> None:
        started, plan, n = time.perf_counter(), self.plan, self.plan.problem.m
        with contextlib.ExitStack() as stack:
            work = None
            if self.output is not None:
                work = stack.enter_context(contextlib.closing(WorkDirectory(self.output)))
            sink = create_matrix(self.target, (n, n), plan.result, work=work)
            try:
                with contextlib.closing(sink):
                    sink.forgets = n * n * plan.result.itemsize > plan.memory
                    self._compute(sink, progress)
                    sink.finish()
            except BaseException:
                with contextlib.suppress(FileError):  # tiles of it are of no use to another run
                    if work is not None:
                        work.discard()
                raise
        self.seconds = time.perf_counter() - started

    def _compute(self, sink: Sink, progress: Progress) -> None:
        done, total = 0, sum(map(self.plan.operations, self.plan.tiles))
        progress(done, total)
        for tile in self.plan.tiles:
            for operations in _Tile(self, tile).computed_into(sink):
                done += operations
                progress(min(done, total), total)


class _Tile:
    """One tile of C, and the blocks of A that it reads: the panel of the tile's rows, and the panel of its columns if
    the two differ."""

    def __init__(self, job: GramJob, tile: tuple[int, int]) -> None:
        plan = job.plan
        self._job, self._tile, self._panels = job, tile, [plan.panels[p] for p in dict.fromkeys(tile)]
        self._rows, self._columns = plan.panels[tile[0]], plan.panels[tile[1]]
        self._on_diagonal = tile[0] == tile[1]
        self._dtype, self._k = np.dtype(plan.compute), plan.problem.k
        self._conjugate = job.conjugate and self._dtype.kind == "c"
        symmetry: Symmetry = "" if not self._on_diagonal else "hermitian" if self._conjugate else "gram"
        run = functools.partial(runner, plan.kernel, self._dtype, threads=plan.threads)
        self._products = triangle_products(run, symmetry)
        steps, extra = min(plan.steps, max(1, self._k)), 1 if plan.center else 0
        self._buffers = [
            [mapped_empty((steps + extra) * _length(panel), self._dtype) for panel in self._panels]
            for _ in range(BUFFERS)
        ]
        self._conjugated = mapped_empty(max(x.size for x in self._buffers[0]) if self._conjugate else 0, self._dtype)
        self._c = mapped_empty(_length(self._rows) * _length(self._columns), self._dtype).reshape(
            _length(self._rows), _length(self._columns)
        )
        # The mean of all steps so far is that of the first block, rounded, and these: so a large mean costs no digits.
        self._first_means: list[Any] = [0] * len(self._panels)
        self._seen, self._means = 0, [np.zeros(_length(panel), _wide(self._dtype)) for panel in self._panels]

    def computed_into(self, sink: Sink) -> Iterator[int]:
        """Compute the tile and write it; after each block of A, yield the number of operations that the block took."""
        job = self._job
        cuts = list(range(0, self._k, job.plan.steps))
        if not cuts:
            self._c[...] = 0
        each = job.plan.operations(self._tile) // max(1, len(cuts))
        with ThreadPoolExecutor(job.plan.readers) as readers:
            coming = self._begin_reading(readers, 0, cuts[0]) if cuts else []
            for number, low in enumerate(cuts):
                for future in coming:
                    future.result()
                if current_stop().asked:
                    raise Stopped
                if number + 1 < len(cuts):
                    coming = self._begin_reading(readers, number + 1, cuts[number + 1])
                self._multiply(number, min(job.plan.steps, self._k - low), last=number + 1 == len(cuts))
                yield each
        self._write(sink)

    def _begin_reading(self, readers: ThreadPoolExecutor, number: int, low: int) -> list[Future[None]]:
        """Read block ``number``, from step ``low`` of k on, in as many parts as there are readers."""
        job = self._job
        high = min(self._k, low + job.plan.steps)
        parts, grain = job.plan.readers, max(1, job.source.grain[1 if job.by_rows else 0])
        edges = sorted(
            {low, high, *(min(high, low + (high - low) * p // parts // grain * grain) for p in range(parts))}
        )
        futures = []
        for p, panel in enumerate(self._panels):
            block = self._block(number, p, high - low)
            for begin, end in itertools.pairwise(edges):
                rows, columns = slice(begin, end), panel
                part = block[begin - low : end - low]
                if job.by_rows:
                    rows, columns, part = columns, rows, part.T
                futures.append(readers.submit(job.source.read, rows, columns, part))
            job.read_bytes += (high - low) * _length(panel) * job.plan.itemsize
        return futures

    def _block(self, number: int, panel: int, steps: int, more: int = 0) -> np.ndarray[Any, Any]:
        """Block ``number`` of a panel as a matrix (steps, columns), or with as many ``more`` steps. Where rows of A are
        panels, its columns are stored one after the other."""
        width, extra = _length(self._panels[panel]), 1 if self._job.plan.center else 0
        flat = self._buffers[number % BUFFERS][panel][: (steps + extra) * width]
        whole = flat.reshape(width, -1).T if self._job.by_rows else flat.reshape(-1, width)
        return whole[: steps + more]

    def _multiply(self, number: int, steps: int, *, last: bool) -> None:
        blocks = [self._block(number, p, steps) for p in range(len(self._panels))]
        if self._job.plan.center:
            blocks = self._centred(blocks, number, steps)
        left, right = blocks[0], blocks[-1]
        if self._conjugate:  # Aᴴ·A, or A·Aᴴ
            taken = right if self._job.by_rows else left
            taken = np.conjugate(taken, out=self._conjugated[: taken.size].reshape(taken.shape))
            left, right = (left, taken) if self._job.by_rows else (taken, right)
        self._products[number == 0, last](left.T, right, self._c)

    def _centred(self, blocks: list[np.ndarray], number: int, steps: int) -> list[np.ndarray]:
        """The blocks about their means, and one more step: √(s·t / (s + t)) times the distance between the means of the s
        steps before and of these t."""
        seen, centred = self._seen, []
        self._seen += steps
        weight = math.sqrt(seen * steps / self._seen)
        for p, block in enumerate(blocks):
            whole = self._block(number, p, steps, 1)
            with np.errstate(all="ignore"):  # of an infinity
                mean = block.mean(axis=0, dtype=_wide(self._dtype)).astype(self._dtype)
                whole[:steps] -= mean
                rest = whole[:steps].mean(axis=0, dtype=_wide(self._dtype))  # what the mean lost when it was rounded
                whole[:steps] -= rest.astype(self._dtype)
                if number == 0:
                    self._first_means[p] = mean.astype(_wide(self._dtype))
                distance = mean - self._first_means[p] + rest - self._means[p]
                whole[steps] = weight * distance
                self._means[p] += distance * (steps / self._seen)
            centred.append(whole)
        return centred

    def _write(self, sink: Sink) -> None:
        """Write the finished tile to both sides of the diagonal."""
        c, ddof = self._c, self._job.plan.ddof
        if ddof is not None:
            with np.errstate(all="ignore"):
                c /= max(0, self._k - ddof)
        write_both_sides(sink, self._rows, self._columns, c, hermitian=self._conjugate)


# ---- planning --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gram_job(
    a: Any,
    out: Any = None,
    *,
    rows: bool = False,
    conjugate: bool = True,
    center: bool = False,
    ddof: int | None = None,
    memory: float | str | None = None,
    dtype: Any = None,
    overwrite: bool = False,
) -> Iterator[GramJob]:
    """Plan the Gram matrix of a file or an array, and return its job, which is ready to run. Raises what
    ``tilewright.gram`` raises.
    """
    need_machine_code("what multiplies blocks")
    with contextlib.ExitStack() as stack:
        source = opened_source(stack, a, "a")
        refuse_overlap(out, a=source)
        result = product_dtype(source.dtype, source.dtype, dtype)
        if (center or ddof is not None) and result.kind in "biu":
            raise DTypeError(
                f"a has dtype {source.dtype}: means need floating point; give dtype='float64' or 'float32'"
            )
        n, k = source.shape if rows else source.shape[::-1]
        if ddof is not None and (type(ddof) is not int or not 0 <= ddof < max(1, k)):
            raise UsageError(f"ddof must be a whole number from 0 to below k, {k:,}, got {ddof!r:.80}")
        limit = None if memory is None else parse_bytes("memory", memory)
        output, target = None, out
        if isinstance(out, (str, os.PathLike)):
            output = output_of(out, (n, n), result, overwrite=overwrite)
            refuse_inside(output.target, [source])
            output.check()
        plan = _plan(source, result, n, k, rows, limit, center=center, ddof=ddof)
        if out is None:
            try:
                target = np.empty((n, n), result)
            except (MemoryError, ValueError):
                raise MemoryLimitError(f"C would be {n}×{n} {result}: give the path of a file as out") from None
        yield GramJob(source, plan, target, rows, conjugate, output)


def _plan(
    source: Source,
    result: np.dtype[Any],
    n: int,
    k: int,
    rows: bool,
    limit: int | None,
    *,
    center: bool,
    ddof: int | None,
) -> GramPlan:
    """The fewest tiles of which one fits in memory, with blocks as deep as fit."""
    choice, threads = choose_on_cpu("standard", [source.dtype.name] * 2, result.name, k), get_threads()
    size, copies = np.dtype(choice.compute).itemsize, BUFFERS + (1 if np.dtype(choice.compute).kind == "c" else 0)
    given = max(LEAST_LIMIT, int(SHARE * (available_memory() or 1 << 30)) if limit is None else limit)
    of_read = max(read_bytes([source], given), BUFFER)
    readers = copy_workers() if source.parallel else 1
    while readers > 1 and readers * of_read > given // 8:  # a small memory is better spent on blocks
        readers -= 1
    left = given - own_bytes(given) - readers * of_read
    grain = source.grain[1 if rows else 0]

    def bytes_of(side: int, panels: int, steps: int) -> int:
        width = side if panels == 1 else 2 * side
        blocks = (side * side + copies * (steps + 1) * width) * size
        return blocks + step_bytes(choice.kernel, choice.compute, threads, side, side, steps)

    least = min(k, FEWEST_STEPS) or 1
    panels = 1
    while bytes_of(side := math.ceil(n / panels), panels, least) > left:
        if panels > MOST_PANELS:
            needed = least_limit(given - left + bytes_of(side, panels, least))
            raise MemoryLimitError(
                f"({n}, {n}) of k = {k:,}: memory is {bytes_text(given)}, and blocks need {bytes_text(needed)}"
            )
        panels += max(1, panels // 8)
    steps = min(k, MOST_STEPS) or 1
    while steps > least and bytes_of(side, panels, steps) > left:
        steps = max(least, steps * 3 // 4)
    if steps > grain > 1:
        steps = steps // grain * grain  # so that no chunk is decoded twice
    edges = [min(n, side * p) for p in range(panels + 1)]
    cut = tuple(slice(*pair) for pair in itertools.pairwise(edges) if pair[0] < pair[1])
    problem = Problem(n, n, k, result.name, symmetry="hermitian" if result.kind == "c" else "gram")
    rate = (
        read_rate(source, choice.compute, readers, max(1 << 16, left // 4))
        if source.shape[0] * source.shape[1]
        else math.inf
    )
    return GramPlan(
        problem=problem,
        choice=choice,
        panels=cut,
        steps=steps,
        threads=threads,
        itemsize=source.dtype.itemsize,
        result=result,
        memory=given,
        memory_bytes=given - left + bytes_of(side, panels, steps),
        read_rate=rate * source.dtype.itemsize / size,
        readers=readers,
        center=center,
        ddof=ddof,
    )


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of means."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def gram_of_file(a: Any, out: Any = None, *, progress: Progress | None = None, **options: Any) -> Any:
    """Return the Gram matrix of a file, or of an array that is read block by block; see ``tilewright.gram``."""
    with gram_job(a, out, **options) as job:
        job.run(*([] if progress is None else [progress]))
        return job.target if out is None else out
