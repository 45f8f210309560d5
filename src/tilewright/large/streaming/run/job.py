"""Carries out one product from its options to the finished result: opens the operands, measures rates and makes the
plan, and then computes the product tile by tile.

If Ctrl-C, a full disk or a power failure stops the product, the unfinished file contains the finished tiles and a
journal lists them. With ``resume``, the next job for the same result computes only the other tiles.

A job is made from the arguments of ``multiply``: the operands are opened, checked, placed and planned. This module also
makes the measured or predicted timeline of a job, which can be written to files and HTML pages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ....cpu.runtime.stop import stoppable
from ....errors import (
    DTypeError,
    FileError,
    MemoryLimitError,
    ResumeError,
    ShapeError,
    TilewrightError,
    UsageError,
    did_you_mean,
)
from ....gpu.runtime.driver import restored_context
from ....host.cached_property import cached_property
from ....host.disk import CacheFile, fingerprint
from ....host.limits import get_threads
from ....product.contraction import tensordot_axes
from ....product.operands import DTYPES, dtype_of, is_known, promoted
from ....product.precision import dtype_of_blocks
from ....product.problem import Problem
from ....records.timeline import Piece, Timeline
from ...files import (
    Sink,
    Source,
    WorkDirectory,
    as_matrix,
    create_matrix,
    locate,
    open_array,
    open_matrix,
    output_of,
    shown,
)
from ...files.array import ArraySource, array_behind
from ...files.axes import MATRIX, Axes, joined, last_axis_as_columns
from ...files.checks import ArrayShape
from ...files.work import JOURNAL
from ..options import Options
from ..places.place import Events
from ..places.places import place_product
from ..plan.cost import Rates, cost
from ..plan.grid import ORDERS, Tile
from ..plan.partition import PARTITIONS, stated_regions
from ..plan.schedule import Schedule
from ..plan.stream import StreamPlan, plan_again, plan_nothing, plan_stream
from .computation import Callbacks, Computation, Placed, Product, SharedCounter, compute_here
from .journal import BegunProduct, Journal, read_journal

# ---- the job ---------------------------------------------------------------------------------------------------------

#: Called with the operations that are done, and those of the whole product.
Progress = Callable[[int, int], None]


@dataclass
class RunTotals:
    """The time and the bytes of a run. The product has ``tiles`` tiles, of which ``before`` were finished when the run
    began."""

    tiles: int
    before: int
    finished: int = 0
    operations: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    #: Bytes of operands that each worker of a cluster read; in one process all are under "".
    read_by: dict[str, int] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        """The number of bytes of the operands that were read."""
        return sum(self.read_by.values())

    @property
    def gflops(self) -> float:
        """The operations of this run's tiles divided by the time from opening the result to giving
        it its name, in GFLOPS.
        """
        return self.operations / self.seconds / 1e9 if self.seconds else 0.0


@dataclass
class Job:
    """A planned product. ``plan`` says what ``run`` will do, and ``measured`` says what ``run`` has done so far.

    ``complete`` means that an earlier run has finished the result, so that nothing is left to do.
    """

    product: Product
    placement: Placed
    compute: Computation
    rates: Rates
    target: Any
    work: WorkDirectory | None
    journal: Journal | None
    facts: Mapping[str, str]
    begun: BegunProduct | None
    plan: StreamPlan
    complete: bool = False
    measured: RunTotals = field(init=False)
    #: Whether the journal names an unfinished file, so that another run can go on with its tiles.
    resumable: bool = field(init=False)

    def __post_init__(self) -> None:
        tiles = len(self.plan.every_tile)
        self.measured = RunTotals(tiles, before=tiles - len(self.plan.tiles))
        self.resumable = self.begun is not None

    @cached_property
    def discarded(self) -> int:
        """The number of finished tiles of an interrupted run that are lost when this job runs, because this job does not
        resume the interrupted run. Ask before ``run``, which clears the journal of the interrupted run.
        """
        if self.work is not None and self.begun is None and not self.complete:
            with contextlib.suppress(ResumeError):
                begun = read_journal(self.work.path / JOURNAL)
                return len(begun.finished) if begun is not None and begun.inode == self.work.unfinished else 0
        return 0

    def run(self, progress: Progress | None = None, events: Events | None = None) -> None:
        """Compute the missing tiles. After ``run`` the result is complete.

        The product is computed on a thread that receives no interrupts. Ctrl-C stops the work; KeyboardInterrupt is
        raised when all threads have stopped.
        """
        stoppable(functools.partial(self._timed, progress, events))

    def _timed(self, progress: Progress | None, events: Events | None) -> None:
        progress, events = progress or (lambda done, total: None), events or Events()
        events.start_s = started = time.perf_counter()  # one clock for the events and the total
        try:
            if self.complete:
                progress(self._operations, self._operations)
            else:
                self._run(progress, events)
        except BaseException:
            unfinished = not self.resumable and not self.complete
            if unfinished and self.journal is not None and self.work is not None:
                with contextlib.suppress(FileError):  # without a journal no later run can use its tiles
                    self.work.discard()
                    self.journal.clear()
            raise
        finally:
            self.measured.seconds = time.perf_counter() - started
        if self.journal is not None and self.work is not None:
            remember(self.target, self.work.target, self.product.extents, self.product.dtype, self.facts)
            self.journal.remove()

    def disown(self) -> None:
        """Mark the result as wrong, so that a later ``resume`` does not accept it."""
        if self.work is not None:
            forget(self.work.target, self.facts)

    @property
    def finished_tiles(self) -> int:
        """The number of finished tiles, which a later run need not compute again."""
        return 0 if self.journal is None else self.journal.tiles

    def as_dict(self) -> dict[str, Any]:
        """Return the product, its plan and its measurements as plain JSON values."""
        grid, cost, placement = self.plan.grid, self.plan.cost, self.placement
        (m, n, k), (a, b) = self.product.shape, self.product.sources
        return {
            **{"m": m, "n": n, "k": k, "dtype": self.product.dtype.name, "stored": [a.dtype.str, b.dtype.str]},
            **{"compute": self.plan.compute, "error_bound": _as_json(self.plan.error_bound)},
            "already_complete": self.complete,
            **{"device": placement.names, "gpus": [gpu.name for gpu in placement.gpus]},
            **{"kernel": self.plan.kernel.name, "params": dict(self.plan.params), "threads": placement.threads},
            "plan": {
                **{"grid": asdict(grid), "order": self.plan.order, "slots": self.plan.slots},
                **{"room": asdict(replace(self.plan.room, workspace=None)), "host_slots": self.plan.host_slots},
                **{"place_bytes": self.plan.place_bytes, "host_bytes": self.plan.host_bytes},
                **{"places": len(self.plan.regions), "alone_s": self.plan.alone_s},
                **{"in_bytes": sum(self.plan.moved_bytes) - self.plan.out_bytes, "read_bytes": self.plan.read_bytes},
                **{"out_bytes": self.plan.out_bytes},
                **{"least_bytes": self.plan.least_bytes, "least_read_bytes": self.plan.least_read_bytes},
                **{"rates": _rates_as_dict(self.rates), "bound": self.plan.bound, "total_s": cost.total_s},
                **{"compute_s": cost.compute_s, "exposed_s": cost.exposed_s},
                **{"first_s": cost.first_s, "last_s": cost.last_s},
            },
            "measured": asdict(self.measured)
            | {"read_bytes": self.measured.read_bytes, "gflops": self.measured.gflops},
        }

    @property
    def _operations(self) -> int:
        grid = self.plan.grid
        return 2 * grid.k * sum(math.prod(grid.size(tile)) for tile in self.plan.every_tile)

    def _run(self, progress: Progress, events: Events) -> None:
        (m, n, _), dtype, resume = self.product.shape, self.product.dtype, self.begun is not None
        if self.journal is not None:
            self.journal.clear() if self.begun is None else self.journal.take_up(self.begun)
        with contextlib.closing(create_matrix(self.target, (m, n), dtype, resume=resume, work=self.work)) as sink:
            if self.journal is not None and not resume:
                overwrite = self.work is not None and self.work.output.overwrite
                inode, triangle = _inode(sink.partial) or 0, self.plan.triangle
                self.journal.begin(self.plan.grid, self.facts, inode, overwrite=overwrite, triangle=triangle)
                self.resumable = True
            self._compute(sink, progress, events)
            self._refuse_changed()
            sink.finish()

    def _refuse_changed(self) -> None:
        """Raise ResumeError if an operand's file has changed. Arrays are not checked: that would take too long."""
        for name, source in zip("ab", self.product.sources, strict=True):
            if self.journal and array_behind(source) is None and source.fingerprint() != self.facts[name]:
                self.journal.clear()
                self.resumable = False
                raise ResumeError(f"{name} was changed while it was multiplied: multiply again")

    def _compute(self, sink: Sink, progress: Progress, events: Events) -> None:
        """Compute all tiles of the plan, and write them to ``sink``."""
        grid, itemsize = self.plan.grid, self.product.dtype.itemsize
        sink.forgets = grid.m * grid.n * itemsize > self.placement.memory
        computed, reading, read_by = SharedCounter(), threading.Lock(), self.measured.read_by
        total = self._operations
        computed.add(total - 2 * grid.k * sum(math.prod(grid.size(tile)) for tile in self.plan.tiles))

        def multiplied(operations: int) -> None:
            computed.add(operations, lambda done: progress(done, total))

        def finished(tile: Tile) -> None:
            if self.journal is not None:
                self.journal.add(tile)
            size = math.prod(grid.size(tile))
            self.measured.finished += 1
            self.measured.operations += 2 * grid.k * size
            self.measured.written_bytes += size * itemsize * (1 + (self.plan.triangle and tile.i != tile.j))

        def read(nbytes: int, place: str) -> None:
            with reading:
                read_by[place] = read_by.get(place, 0) + nbytes

        progress(computed.count, total)
        if grid.k == 0:
            _store_zeros(self.plan, sink, finished)
            return
        callbacks = Callbacks(multiplied, finished, read, durable=self.journal is not None)
        self.compute(self.product, self.plan, sink, callbacks, events)


def plan_job(
    product: Product,
    placement: Placed,
    compute: Computation,
    target: Any,
    options: Options,
    stack: contextlib.ExitStack,
    *,
    only_planned: bool,
) -> Job:
    """Return a job that is ready to run. No other process can run a job for the same result before ``stack`` is closed.

    If ``only_planned`` is set, the job cannot be run, and nothing is written. Raises MemoryLimitError if the product
    does not fit in the memory limit, ResumeError if the product cannot be resumed, and FileError.
    """
    work = journal = begun = None
    complete = False
    facts: Mapping[str, str] = {}
    if isinstance(target, (str, os.PathLike)):
        # With resume, an existing file may be the finished result, or what the interrupted run was to overwrite.
        lenient = options.overwrite or options.resume
        (m, n, _), extents = product.shape, product.extents
        output = output_of(target, (m, n), product.dtype, overwrite=lenient, extents=extents)
        refuse_inside(output.target, product.sources)
        output.check()
        work = stack.enter_context(contextlib.closing(WorkDirectory(output, only_look=only_planned)))
        if not only_planned:
            journal = stack.enter_context(contextlib.closing(Journal(work.path / JOURNAL, work.fd)))
        if options.resume or not only_planned:
            facts = product.facts(placement, target)
        if options.resume:
            begun, complete = _taken_up(product, placement, target, work, facts, options.overwrite)
            overwrite = options.overwrite or (begun is not None and begun.overwrite)
            work.output = dataclasses.replace(output, overwrite=overwrite)
            if not complete:
                work.output.check()
    if complete:
        plan = plan_nothing(Problem(*product.shape, product.dtype.name), placement.room)
        plan = _on_places(plan, product, placement)
        return Job(product, placement, compute, plan.rates, target, work, journal, facts, None, plan, complete)
    rates = placement.rates(product.a, product.b, target, dtype_of_blocks(placement.choice.compute))
    plan = _on_places(_planned(product, placement, rates, begun, options.partition), product, placement)
    return Job(product, placement, compute, rates, target, work, journal, facts, begun, plan)


def refuse_inside(target: Path, sources: Sequence[Source]) -> None:
    """Raise UsageError if the result would be inside the directory of an operand. A result inside this directory would
    become part of the operand while the operand is read.
    """
    for name, source in zip("ab", sources, strict=False):
        store = getattr(source, "path", None)
        if isinstance(store, Path) and store.is_dir() and target != store and target.is_relative_to(store):
            raise UsageError(f"out: {target} is inside {store}, the store of {name}: give a path outside of it")


def _taken_up(
    product: Product, placement: Placed, target: Any, work: WorkDirectory, facts: Mapping[str, str], overwrite: bool
) -> tuple[BegunProduct | None, bool]:
    """What an earlier run left unfinished, if it did; and whether the result is complete, so that nothing is left to do.

    Raises ResumeError for a journal of another product, and for another result, unless it may be overwritten.
    """
    path = work.path / JOURNAL
    begun = read_journal(path)
    if begun is not None:
        begun.check(facts, product.shape, placement.room, path, triangle=_is_triangle(product, placement))
        if begun.inode == work.unfinished:
            return begun, False
    sure = begun is not None and begun.complete and begun.inode == _inode(work.target)
    try:
        return None, is_finished(target, work.target, product.extents, product.dtype, facts, sure=sure)
    except ResumeError:
        if overwrite:
            return None, False
        raise


def _planned(
    product: Product, placement: Placed, rates: Rates, begun: BegunProduct | None, partition: str
) -> StreamPlan:
    dtype, room, count = dtype_of_blocks(placement.choice.compute), placement.room, len(placement.names)
    triangle = _is_triangle(product, placement)
    if begun is None:
        problem = Problem(*product.shape, dtype, symmetry="gram" if triangle else "")
        return plan_stream(problem, room, rates, count, partition)
    order = ORDERS["rows"](*begun.grid.tiles)
    left = tuple(tile for tile in order if tile not in begun.finished and not (triangle and tile.i < tile.j))
    return plan_again(begun.grid, dtype, room, rates, left, most=count, partition=partition, triangle=triangle)


def _is_triangle(product: Product, placement: Placed) -> bool:
    return placement.triangle and product.is_gram


def _on_places(plan: StreamPlan, product: Product, placement: Placed) -> StreamPlan:
    facts: dict[str, Any] = {"stored": [source.dtype.name for source in product.sources], "gram": product.is_gram}
    return plan.on(placement.choice, placement.names, placement.summary, result=product.dtype.name, **facts)


def _store_zeros(plan: StreamPlan, sink: Sink, stored: Callable[[Tile], None]) -> None:
    """Write the tiles of a product with k = 0: its elements are empty sums, and its schedule has no steps."""
    for tile in plan.tiles:
        sink.write(plan.grid.rows(tile.i), plan.grid.columns(tile.j), np.zeros(plan.grid.size(tile), plan.dtype))
    sink.flush()
    for tile in plan.tiles:
        stored(tile)


def _rates_as_dict(rates: Rates) -> dict[str, Any]:
    """As JSON: an infinite rate is null."""
    return {name: _as_json(value) for name, value in asdict(rates).items()}


def _as_json(value: Any) -> Any:
    """JSON has no infinity."""
    return None if value == math.inf else value


def _inode(path: Path | None) -> int | None:
    with contextlib.suppress(OSError):
        return None if path is None else path.stat().st_ino
    return None


# ---- finished --------------------------------------------------------------------------------------------------------
# What a finished result was made from: a record in the user's cache, from which a later ``resume`` knows whether operands
# have changed.
#
# There is no file beside the result, and nothing else depends on the record: if it is lost, ``resume`` says that it is not
# known what the result was made from.


#: The sizes of the axes of a result that are its rows, and of those that are its columns.
Extents = tuple[ArrayShape, ArrayShape]

#: Results that are remembered; the oldest records are removed.
MOST = 256

#: The facts that are compared. The kernel is not one: a newer kernel computes the same product.
COMPARED = ("a", "b", "the dtype", "the precision", "the result's name")


@dataclass(frozen=True)
class Finished:
    """The record of a finished result. ``identity`` is the fingerprint of the result's file, and ``facts`` describe the
    operands and options from which it was computed.
    """

    identity: str
    facts: Mapping[str, str]


def remember(target: Any, path: Path, extents: Extents, dtype: Any, facts: Mapping[str, str]) -> None:
    """Record from which operands and options the result at ``path`` was computed. If the record cannot be written, no
    error is raised.
    """
    with contextlib.suppress(OSError, TilewrightError):
        record = {"result": _identity(target, extents, dtype), "facts": {name: facts[name] for name in COMPARED}}
        record_path = _record_file(path, facts).write_json(record)
        if record_path is None:
            return
        for old in sorted(record_path.parent.glob("*.json"), key=_changed_s, reverse=True)[MOST:]:
            old.unlink(missing_ok=True)


def forget(path: Path, facts: Mapping[str, str]) -> None:
    """Remove the record of the result at ``path``, so that a later ``resume`` does not accept the result."""
    record_path = _record_file(path, facts).path
    if record_path is not None:
        with contextlib.suppress(OSError):
            record_path.unlink(missing_ok=True)


def is_finished(target: Any, path: Path, extents: Extents, dtype: Any, facts: Mapping[str, str], *, sure: bool) -> bool:
    """Whether the result at ``path`` is complete and was computed from the operands in ``facts``. False if there is no
    result.

    ``sure`` means that a journal says that the result was computed from the operands in ``facts``. ``resume`` neither
    replaces nor accepts a matrix with another shape or dtype, a matrix that was computed from other operands, or a
    matrix whose operands are not known. ResumeError is raised for a matrix that ``resume`` neither replaces nor
    accepts.
    """
    if not path.exists():
        return False
    replace = "give overwrite=True (--overwrite) to replace it"
    try:
        identity = _identity(target, extents, dtype)
    except UsageError:  # a file without a matrix of this name
        return False
    except (FileError, ShapeError, DTypeError):
        raise ResumeError(
            f"{path} is there, but is not {joined(extents)} {dtype}, as this product is: {replace}"
        ) from None
    if sure:
        return True
    record = _recall(path, facts)
    if record is None or record.identity != identity:
        raise ResumeError(f"{path} is there and complete, but what it was made from is not known: {replace}")
    changed = [name for name in COMPARED if record.facts.get(name) != facts[name]]
    if changed:
        raise ResumeError(f"{path} is complete, but {' and '.join(changed)} changed since it was made: {replace}")
    return True


def _identity(target: Any, extents: Extents, dtype: Any) -> str:
    with contextlib.closing(open_result(target, extents, dtype)) as source:
        return source.fingerprint()


def open_result(target: Any, extents: Extents, dtype: Any) -> Source:
    """Open the file of a result as a matrix. ``extents`` are the sizes of the axes that form the rows, and of the axes
    that form the columns.
    """
    places = range(len(joined(extents)))
    axes = places[: len(extents[0])], places[len(extents[0]) :]
    return open_matrix(target, shape=joined(extents), dtype=dtype, axes=axes)


def _recall(path: Path, facts: Mapping[str, str]) -> Finished | None:
    """The record of a result; None where there is none, or none that ``remember`` wrote."""
    before = {"the precision": "standard"}  # of records from before there was this fact

    def read(record: Any) -> Finished:
        return Finished(str(record["result"]), before | dict(record["facts"]))

    return _record_file(path, facts).read_as(read)


def _record_file(path: Path, facts: Mapping[str, str]) -> CacheFile:
    name = fingerprint(str(path), facts["the result's name"])
    return CacheFile("finished", f"{name}.json")


def _changed_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


# ---- what callers give -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_job(a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False) -> Iterator[Job]:
    """Plan a ``multiply``, and return its job, which is ready to run. ``open_job`` raises every error that can be found
    before the product begins.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(restored_context())
        product = opened_product(stack, a, b, options.dtype, options.axes)
        refuse_overlap(out, a=product.a, b=product.b)
        check_partition(options.partition)
        target = array_for(product) if out is None else _matrix_of(out, product)
        placement = place_product(product.sources, product.dtype, options, get_threads())
        check_regions(options.partition, placement.names)
        compute = functools.partial(compute_here, placement)
        yield plan_job(product, placement, compute, target, options, stack, only_planned=only_planned)


def check_partition(partition: str) -> None:
    """Raise UsageError for a partition that is neither a known name nor two numbers of regions such as "2x3"."""
    if partition not in PARTITIONS and (not isinstance(partition, str) or stated_regions(partition) is None):
        hint = did_you_mean(str(partition), [*PARTITIONS, "regions down and across, such as 2x3"])
        raise UsageError(f"partition {partition!r}: {hint}")


def check_regions(partition: str, places: Sequence[str]) -> None:
    """Raise UsageError if a partition states numbers of regions whose product is not the number of places."""
    regions = stated_regions(partition)
    if regions is not None and math.prod(regions) != len(places):
        raise UsageError(f"partition {partition} has {math.prod(regions)} regions, and there are {len(places)} places")


def opened_source(stack: contextlib.ExitStack, operand: Any, name: str) -> Source:
    """Return the operand ``name`` as an open matrix. The matrix is closed with ``stack``, unless the caller of
    ``multiply`` opened it.

    Raises ShapeError for an array that is no matrix.
    """
    return as_matrix(_opened_array(stack, operand, name), _where(operand, name))


def _opened_array(stack: contextlib.ExitStack, operand: Any, name: str) -> Any:
    """Likewise, of any number of axes."""
    if hasattr(operand, "read") and hasattr(operand, "fingerprint"):
        return operand
    if isinstance(operand, (str, os.PathLike, np.memmap)):
        opened = open_array(operand)
        stack.callback(opened.close)
        return opened
    return ArraySource(operand, name)


def _where(operand: Any, name: str) -> object:
    """What messages call an operand."""
    return shown(operand) if isinstance(operand, (str, os.PathLike)) else name


def opened_product(stack: contextlib.ExitStack, a: Any, b: Any, dtype: Any, axes: Any = None) -> Product:
    """Return the open operands, which are closed with ``stack``, and the dtype of their product. ``axes`` says which axes
    are summed.

    Raises ShapeError, DTypeError and UsageError.
    """
    x, y = _opened_array(stack, a, "a"), _opened_array(stack, b, "b")
    if axes is not None:
        of_x, of_y = summed_axes(axes, x.shape, y.shape)
    else:
        for array, where, most in ((x, _where(a, "a"), 64), (y, _where(b, "b"), 2)):
            if not 2 <= len(array.shape) <= most:
                hint = "" if len(array.shape) < 2 else "; give the axes of a and b that are summed (axes, --axes)"
                raise ShapeError(
                    f"{where} has {len(array.shape)} dimensions, shape {tuple(array.shape)}: a matrix has 2{hint}"
                )
        of_x, of_y = last_axis_as_columns(len(x.shape)), MATRIX
        if x.shape[-1] != y.shape[0]:
            rule = "a's columns must be as many as b's rows"
            raise ShapeError(f"k mismatch: a is {tuple(x.shape)}, b is {tuple(y.shape)}: {rule}")
    dtype = product_dtype(x.dtype, y.dtype, dtype)
    return Product(as_matrix(x, _where(a, "a"), of_x), as_matrix(y, _where(b, "b"), of_y), dtype)


def summed_axes(axes: Any, a: ArrayShape, b: ArrayShape) -> tuple[Axes, Axes]:
    """Return, for both operands, which axes become the rows and which become the columns of a matrix if the product
    sums over ``axes``.

    The summed axes, which are merged to k, are in the order in which ``a`` has them.

    >>> summed_axes(([2, 0], [0, 1]), (2, 3, 4), (4, 2, 5))
    (Axes(rows=(1,), columns=(0, 2)), Axes(rows=(1, 0), columns=(2,)))
    """
    pairs = sorted(zip(*tensordot_axes(axes, tuple(a), tuple(b)), strict=True))
    of_a, of_b = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    rest_of_a, rest_of_b = (
        tuple(axis for axis in range(len(shape)) if axis not in chosen) for shape, chosen in ((a, of_a), (b, of_b))
    )
    return Axes(rest_of_a, of_a), Axes(of_b, rest_of_b)


def product_dtype(a: np.dtype, b: np.dtype, wanted: Any = None) -> np.dtype[Any]:
    """Return the dtype of C: ``wanted``, or the dtype to which ``matmul`` promotes operands of these dtypes if
    ``wanted`` is None.

    Raises DTypeError if no dtype can represent both operands, or if an operand cannot be cast to ``wanted`` by NumPy's
    ``same_kind`` rule.

    >>> int8, float16 = np.dtype(np.int8), np.dtype(np.float16)
    >>> product_dtype(int8, int8), product_dtype(int8, float16), product_dtype(int8, int8, "float32")
    (dtype('int8'), dtype('float16'), dtype('float32'))
    """
    if wanted is None:
        return promoted(a, b).newbyteorder("=")
    chosen = dtype_of(wanted, "dtype")
    if not is_known(chosen):
        raise DTypeError(f"dtype {chosen}: must be {', '.join(DTYPES)} or bfloat16")
    for name, dtype in (("a", a), ("b", b)):
        if not (
            np.can_cast(dtype, chosen, casting="same_kind") or (chosen.name == "bfloat16" and dtype.kind in "biuf")
        ):
            raise DTypeError(
                f"dtype {chosen.name}: {name} has dtype {dtype}, which does not cast to it by the same_kind rule; leave "
                "dtype out, or give a wider one"
            )
    return chosen.newbyteorder("=")


def array_for(product: Product) -> np.ndarray[Any, Any]:
    """Return a new array for the result, as a matrix. Raises MemoryLimitError if the result is too large for any
    array.
    """
    m, n, _ = product.shape
    try:
        return np.empty(product.result_shape, product.dtype).reshape(m, n)
    except ValueError:
        raise MemoryLimitError(f"C would be {m}×{n} {product.dtype}, more than an address can reach") from None


def _matrix_of(out: Any, product: Product) -> Any:
    """The caller's array for a result of other axes than two as the matrix that is written; anything else as it is. Raises
    ShapeError, and UsageError for an array of which no matrix can be made without a copy."""
    shape = product.result_shape
    if not isinstance(out, np.ndarray) or shape == product.shape[:2]:
        return out
    if out.shape != shape:
        raise ShapeError(f"out is {out.shape}, the product is {shape}: out must have exactly this shape")
    if not out.flags.c_contiguous:
        raise UsageError(
            f"out is {out.shape}, and its axes do not follow one another in memory: give np.empty({shape})"
        )
    return out.reshape(product.shape[:2])


def refuse_overlap(out: Any, **operands: Any) -> None:
    """Raise UsageError if the result shares memory with an operand, because tiles are written while blocks are still read.

    The path of an operand's file is accepted if it may be overwritten, because the file is replaced only when the product
    is complete.
    """
    if not isinstance(out, np.ndarray):
        return
    for name, operand in operands.items():
        behind = array_behind(operand)
        array = operand if behind is None else behind
        if (isinstance(array, np.ndarray) and _share_memory(out, array)) or is_in(operand, out):
            raise UsageError(f"out shares memory with {name}, which is read until the end: give another array")


def _share_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]  # any number, says its documentation
    except np.exceptions.TooHardError:
        return True


def is_in(operand: Any, out: Any) -> bool:
    """Whether an operand is in the file or directory of ``out``. The operand and ``out`` are each a path, a source, or
    an array that is mapped from a file.
    """
    inner, outer = _file_of(operand), _file_of(out)
    if inner is None or outer is None or not (inner.exists() and outer.exists()):
        return False
    return outer.samefile(inner) or inner.resolve().is_relative_to(outer.resolve())


def _file_of(matrix: Any) -> Path | None:
    """The file or directory here in which a matrix lies; None for one in memory or at a URL."""
    if isinstance(matrix, (str, os.PathLike)):
        found: Any = locate(os.fspath(matrix))[1]
    else:
        behind = array_behind(matrix)
        array = matrix if behind is None else behind
        while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
            array = array.base
        found = array.filename if isinstance(array, np.memmap) else getattr(matrix, "path", None)
    return Path(found) if isinstance(found, (str, os.PathLike)) else None


# ---- its timeline ----------------------------------------------------------------------------------------------------


def timeline(job: Job, events: Events, environment: Mapping[str, Any]) -> Timeline:
    """Return the timeline of a run of ``job``: what the run did and when, until it ended or was stopped."""
    ordered = sorted(events.events, key=lambda event: event.start_s)
    pieces = [
        Piece(event.place, event.track, event.name, max(0.0, event.start_s), max(0.0, event.start_s, event.end_s))
        for event in ordered
    ]
    return _timeline_of(job, pieces, environment, seconds=job.measured.seconds)


def predicted_timeline(job: Job, environment: Mapping[str, Any]) -> Timeline:
    """Return the timeline that the plan of ``job`` predicts: what a run would do and when."""
    return _timeline_of(job, predicted_pieces(job.plan, job.placement.names), environment, predicted=True)


def predicted_pieces(plan: StreamPlan, places: Sequence[str]) -> list[Piece]:
    """Return all loads, multiplications and stores of a plan with their predicted times, in order of time and with the
    names that a run gives them.

    The prediction assumes that each place computes only its own region.
    """
    pieces: list[Piece] = []
    for place, region in zip(places, plan.regions, strict=False):  # the plan may not use every place
        schedule = Schedule.of(plan.grid, plan.slots, region)
        cached = plan.host_cache(schedule) if plan.host_slots else None
        spent = cost(schedule, plan.rates, plan.itemsize, cached, plan.sharers)
        loads = [f"{x.block.operand.upper()}[{x.block.row}, {x.block.column}]" for x in schedule.loads]
        steps = [f"C[{x.tile.i}, {x.tile.j}] step {x.p}" for x in schedule.multiplies]
        stores = [f"C[{x.tile.i}, {x.tile.j}]" for x in schedule.stores]
        for track, names, spans in (
            ("copy in", loads, spent.loads),
            ("compute", steps, spent.multiplies),
            ("copy out", stores, spent.stores),
        ):
            pieces += [Piece(place, track, name, *span) for name, span in zip(names, spans, strict=True)]
    return sorted(pieces, key=lambda piece: piece.start_s)


def _timeline_of(job: Job, pieces: list[Piece], environment: Mapping[str, Any], **more: Any) -> Timeline:
    grid, plan, measured = job.plan.grid, job.plan, job.measured
    names = "total_s", "compute_s", "first_s", "exposed_s", "last_s"
    return Timeline(
        *(grid.m, grid.n, grid.k, plan.dtype, plan.itemsize, (grid.bm, grid.bn, grid.bk), pieces),
        *(measured.tiles, measured.before, measured.finished),
        plan=str(plan),
        expected={name: getattr(plan.cost, name) for name in names},
        environment=dict(environment),
        **more,
    )
