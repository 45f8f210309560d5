"""A GPU that multiplies blocks. Blocks are copied through page-locked memory on separate streams, while other blocks
are multiplied.

The operands may be in any memory or in files. Threads of the host copy parts of a block to page-locked chunks of
memory, and the GPU copies the chunks without a thread of the host. One stream of the GPU waits for another without any
thread of the host; a thread waits only for a chunk to which or from which the GPU is still copying.

    threads     A to chunks │ B to chunks │ A to chunks │ …
    copy in        chunks to slot │ chunks to slot │ chunks to slot │ …
    compute                         C = A·B           │ C += A·B      │ …
    copy out                                                           C to chunks │
    threads                                                              chunks to result

Copies to the GPU take turns on several streams. Thanks to several streams, a block that waits for its slot (memory for
one block) does not delay the rest of the previous block. One thread assigns chunks to loads in the order of the loads.
Because of this order, a load that waits for its slot never holds a chunk that an earlier load needs; otherwise the two
loads could wait for each other. A block that another GPU has loaded is copied directly from that GPU (``peers``).

A step multiplies either the blocks themselves or their float16 parts. Each block is split into parts once, by the first
step that reads the block, and the parts are stored next to it. A GPU that copies a block from another GPU splits its
own copy. All kernels that multiply run on one stream, one after another. A slot gets a new block only after the last
step that reads the old block, so the parts of the old block remain valid until this step is done.

The rates of a GPU and of its link to the host are measured once for each GPU, kernel and dtype, and cached on disk.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ....gpu.runtime.device import Device
from ....gpu.runtime.memory import Event, Pages, Stream
from ....gpu.runtime.product import compile_ahead, prepare_gpu_product
from ....gpu.runtime.split_product import parts_steps, split_of_rows, split_step
from ....gpu.runtime.steps import A, B, BufferPlace, GpuStep, SubmitSteps, compile_steps, load
from ....host.disk import CacheFile, fingerprint
from ....host.machine import machine
from ....kernels.cuda_kernel import CudaKernel
from ....product.plan import Choice
from ....product.precision import PLANES
from ...files import Sink
from ...files.array import ArraySource
from ..plan.cuts import slot_elements
from ..plan.grid import Grid, Tile
from ..plan.schedule import Load, Multiply, Store
from ..plan.stream import StreamPlan
from .peers import LentBlock, Peers
from .place import Events
from .rates import copy_workers, read_rate
from .staging import CachedSources, Chunks, Ring, chunk_parts, shaped

# ---- the steps of a product ------------------------------------------------------------------------------------------


class Addresses(NamedTuple):
    """The addresses of the blocks of a step in the GPU's memory. If a block has float16 parts, the parts are stored
    behind the block.
    """

    a: int
    b: int
    c: int


class Steps(Protocol):
    """A callable that multiplies the blocks of a step and adds the result to a tile of C."""

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """Start to compile the code for steps of these shapes (m, n, k), on other threads."""

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """Submit a step of ``shape`` (m, n, k) to the stream of that handle. The GPU must be the thread's current one."""


def steps_on(gpu: Device, choice: Choice[CudaKernel], dtype: str) -> Steps:
    """Return the callable that multiplies blocks with the chosen kernel."""
    return SplitSteps(gpu, choice) if choice.compute in PLANES else PlainSteps(gpu, choice, dtype)


class PlainSteps:
    """Multiplies blocks with a kernel that reads the blocks themselves."""

    def __init__(self, gpu: Device, choice: Choice[CudaKernel], dtype: str) -> None:
        self._gpu, self._choice, self._dtype = gpu, choice, dtype

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """See ``Steps``."""
        compile_ahead(self._gpu, self._choice.kernel, self._choice.params, shapes)

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """See ``Steps``."""
        kernel, params = self._choice.kernel, self._choice.params
        product = prepare_gpu_product(self._gpu, kernel, self._dtype, *shape, add=not step.first, params=params)
        product(*at, stream)


class SplitSteps:
    """Multiplies blocks with a kernel that reads the float16 parts of the blocks."""

    def __init__(self, gpu: Device, choice: Choice[CudaKernel]) -> None:
        self._gpu, self._choice, self._planes = gpu, choice, PLANES[choice.compute]
        #: The load whose block the parts behind a slot are of.
        self._loads: dict[int, int] = {}
        self._submit = functools.cache(self._loaded)  # steps have few shapes, and kernels stay loaded

    def compile_ahead(self, shapes: Iterable[tuple[int, int, int]]) -> None:
        """See ``Steps``."""
        for shape in shapes:
            for add in (False, True):
                compile_steps(self._gpu.arch, itertools.chain(*self._steps(shape, add)))

    def __call__(self, step: Multiply, shape: tuple[int, int, int], at: Addresses, stream: Any) -> None:
        """See ``Steps``."""
        *splits, multiply = self._submit(shape, not step.first)
        for split, slot, load_number in zip(splits, at, step.needs, strict=False):
            if self._loads.get(slot) != load_number:
                split(*at, 0, stream)
                self._loads[slot] = load_number
        multiply(*at, 0, stream)

    def _loaded(self, shape: tuple[int, int, int], add: bool) -> list[SubmitSteps]:
        return [load(self._gpu, steps) for steps in self._steps(shape, add)]

    def _steps(self, shape: tuple[int, int, int], add: bool) -> tuple[list[GpuStep], list[GpuStep], list[GpuStep]]:
        """The steps that split A, those that split B, and those that multiply, or add to C, if their parts are known."""
        product = split_of_rows(*shape, self._planes, add)
        a, b = ((x, BufferPlace(at), BufferPlace(at, x.own_bytes)) for x, at in ((product.a, A), (product.b, B)))
        parts = a[2], b[2]
        multiply = parts_steps(self._gpu.sms, self._choice.kernel, self._choice.params, product, parts)
        return [split_step(a)], [split_step(b)], multiply


# ---- the place -------------------------------------------------------------------------------------------------------

STREAMS_IN = 4
#: The fewest bytes of a part, where a block is divided among all threads: some 3,000 parts a second can be handed out.
LEAST_PART = 4 << 20
#: Slots begin at multiples of so many bytes, which kernels need for wide accesses.
SLOT_ALIGNMENT = 256


class GpuPlace:
    """A GPU that multiplies blocks in slots of its memory. ``sources`` reads blocks of A and B, and ``sink`` writes
    tiles of C.

    ``workers`` threads copy to and from the page-locked chunks. ``peers`` are the GPUs, including this one, that copy
    blocks of the same product from each other.
    """

    def __init__(
        self,
        plan: StreamPlan,
        sources: CachedSources,
        sink: Sink,
        *,
        gpu: Device,
        choice: Choice[CudaKernel],
        workers: int = 8,
        chunks: Chunks | None = None,
        events: Events | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._grid, self._sources, self._gpu = plan.grid, sources, gpu
        self._sink = sink
        self._dtype = np.dtype(plan.dtype)
        self._steps = steps_on(gpu, choice, plan.dtype)
        self._steps.compile_ahead(_block_shapes(plan.grid))
        gpu.make_current()
        self._events = _GpuEvents(gpu, events or Events())
        chunks = chunks or Chunks()
        self._chunk, self._workers = chunks.size, workers
        with contextlib.ExitStack() as taken:  # releases what was taken if a later step fails
            memory = gpu.reserve(plan.place_bytes + sum(plan.slots) * SLOT_ALIGNMENT)
            taken.callback(memory.close)
            self._memory = memory.pointer
            self._slots = self._addresses(plan)
            self._compute, self._out, *self._in = [gpu.new_stream() for _ in range(2 + STREAMS_IN)]
            for stream in (self._compute, self._out, *self._in):
                taken.callback(stream.close)
            self._rings = []
            for count in (chunks.incoming, chunks.outgoing):
                self._rings.append(Ring(gpu.pages, count, chunks.size))
                taken.callback(self._rings[-1].close)
            self._taken = taken.pop_all()
        self._pool = ThreadPoolExecutor(workers, "copies", initializer=gpu.make_current)
        self._peer_pool = ThreadPoolExecutor(1, "copies over", initializer=gpu.make_current)
        self._peers = peers or Peers()
        self._peers.join(self._pool, self._peer_pool, self._idle)
        self._issued: list[Future[Event]] = []
        self._threads = threading.local()

    # ---- loads, multiplications, stores

    def load(self, load: Load, after: Event | None) -> Future[Event]:
        self._make_current()
        block, stream = load.block, self._in[load.number % STREAMS_IN]
        if load.number >= STREAMS_IN:  # waits until this stream's previous load is submitted
            self._issued[load.number - STREAMS_IN].result()
        address, nbytes = self._slots[block.operand, load.slot], self._grid.elements(block) * self._dtype.itemsize
        own, lender, readers = self._peers.take(block, self._gpu, address, nbytes)
        try:
            if after is not None:
                stream.after(after)
            for reader in readers:
                stream.after(reader.result())
            begun = stream.mark()
            if lender is None:
                self._stage(load, own, stream)
            else:
                self._peer_pool.submit(self._copy_over, lender, own, stream)
        except BaseException as error:  # raised again by the thread of the loads
            own.refuse(error)
            raise
        track = "copy in" if lender is None else "copy over"
        self._events.add(track, f"{block.operand.upper()}[{block.row}, {block.column}]", begun, own.done)
        self._issued.append(own.done)
        return own.done

    def multiply(self, step: Multiply, needs: tuple[Future[Event], Future[Event]], after: None) -> Event:  # noqa: ARG002
        self._make_current()
        for block in needs:
            self._compute.after(block.result())
        m, n = self._grid.size(step.tile)
        depth = self._grid.depth(step.p)
        begun = self._compute.mark()
        at = Addresses(self._slots["a", step.a], self._slots["b", step.b], self._slots["c", step.c])
        self._steps(step, (m, n, depth.stop - depth.start), at, self._compute.handle)
        done = self._compute.mark()
        self._events.add("compute", f"C[{step.tile.i}, {step.tile.j}] step {step.p}", begun, _done_future(done))
        return done

    def store(self, store: Store, after: Event) -> None:
        self._make_current()
        rows, columns = self._grid.rows(store.tile.i), self._grid.columns(store.tile.j)
        self._out.after(after)
        begun = self._out.mark()
        address, jobs = self._slots["c", store.c], []
        for part in chunk_parts(rows, columns, self._dtype.itemsize, self._chunk):
            staged = shaped(chunk := self._rings[1].take(), self._dtype, *part)
            self._gpu.pages.lock(chunk)
            self._out.copy_out(staged, address)
            fetched = self._out.mark()
            job = self._pool.submit(self._copy_out, *part, staged, fetched)
            self._rings[1].give(chunk, job)
            jobs.append(job)
            address += staged.nbytes
        self._events.add("copy out", f"C[{store.tile.i}, {store.tile.j}]", begun, _done_future(self._out.mark()))
        for job in jobs:
            job.result()

    def close(self) -> None:
        """Wait for all work in progress, including copies from this GPU to others, and release all memory and streams
        of this place.
        """
        try:
            self._peers.settle()
            self._gpu.make_current()
            self._events.report()
        finally:
            self._taken.close()

    # ---- by the threads that copy

    def _stage(self, load: Load, own: LentBlock, stream: Stream) -> None:
        """Submit a job for each part of the block, with a chunk, to the threads that copy."""
        self._sources.begin(load)
        size = min(self._chunk, max(LEAST_PART, own.nbytes // self._workers))
        parts = list(chunk_parts(*self._grid.where(load.block), self._dtype.itemsize, size))
        address, left, jobs = own.address, itertools.count(1 - len(parts)), []

        def copy_in(rows: slice, columns: slice, chunk: np.ndarray[Any, Any], address: int) -> Event:
            try:
                staged = shaped(chunk, self._dtype, rows, columns)
                with self._events.host.span("stage in", f"{load.block.operand.upper()} rows {rows.start}"):
                    self._sources.read(load, rows, columns, staged)
                self._gpu.pages.lock(chunk)
                stream.copy_in(address, staged)
                copied = stream.mark()
                if next(left) == 0:  # the last copy to be submitted: all others are before this mark
                    own.arrived(stream.mark())
            except BaseException as error:  # raised again where a GPU needs the block
                own.refuse(error)
                raise
            return copied

        for part in parts:
            chunk = self._rings[0].take()
            jobs.append(self._pool.submit(copy_in, *part, chunk, address))
            self._rings[0].give(chunk, jobs[-1])
            address += shaped(chunk, self._dtype, *part).nbytes
        self._sources.began(load, jobs)

    def _copy_over(self, lender: LentBlock, own: LentBlock, stream: Stream) -> None:
        try:
            stream.after(lender.done.result())
            stream.copy_over(own.address, lender.gpu.context, lender.address, own.nbytes)
            own.arrived(stream.mark())
        except BaseException as error:  # raised again where the block is needed
            own.refuse(error)

    def _copy_out(self, rows: slice, columns: slice, staged: np.ndarray[Any, Any], fetched: Event) -> None:
        fetched.wait()
        with self._events.host.span("stage out", f"C rows {rows.start}"):
            self._sink.write(rows, columns, staged)

    # ---- helpers

    def _idle(self) -> None:
        self._gpu.make_current()
        for stream in (*self._in, self._compute, self._out):
            stream.wait()

    def _addresses(self, plan: StreamPlan) -> dict[tuple[str, int], int]:
        at, addresses = self._memory, {}
        sizes = slot_elements(plan.grid, plan.room.planes)
        for operand, elements, count in zip("abc", sizes, plan.slots, strict=True):
            for slot in range(count):
                addresses[operand, slot] = at
                at += math.ceil(elements * plan.itemsize / SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return addresses

    def _make_current(self) -> None:
        if not getattr(self._threads, "current", False):
            self._gpu.make_current()
            self._threads.current = True


class _GpuEvents:
    """Time spans between events of the GPU's streams; when all work is done, they are added to the host's events in
    seconds of the host's clock."""

    def __init__(self, gpu: Device, host: Events) -> None:
        self.host = host
        self._gpu = gpu
        self._zero, self._zero_s = self._now()
        self._spans: list[tuple[str, str, Event, Future[Event]]] = []

    def add(self, track: str, name: str, begun: Event, end: Future[Event]) -> None:
        self._spans.append((track, name, begun, end))

    def report(self) -> None:
        """Add all time spans that have ended to the host's events. The GPU must be idle when ``report`` is called."""
        # A host that is busy learns late of an event: the earlier reading is nearer, and no span ends after this one.
        last, last_s = self._now()
        zero_s = min(self._zero_s, last_s - last.since(self._zero))
        for track, name, begun, end in self._spans:
            if end.done() and end.exception() is None:
                at = (zero_s + event.since(self._zero) for event in (begun, end.result()))
                self.host.add(track, name, *at)

    def _now(self) -> tuple[Event, float]:
        """An event of this moment, and the host's clock when it knows of the event."""
        stream = self._gpu.new_stream()
        event = stream.mark()
        event.wait()
        stream.close()
        return event, self.host.now()


def _block_shapes(grid: Grid) -> Iterator[tuple[int, int, int]]:
    """The shapes (m, n, k) of a plan's products: all but the last tiles and steps have the same."""
    down, across = grid.tiles
    sizes = {grid.size(Tile(i, j)) for i in {0, max(0, down - 1)} for j in {0, max(0, across - 1)}}
    return ((m, n, depth) for m, n in sizes for depth in grid.depths())


def _done_future(event: Event) -> Future[Event]:
    job: Future[Event] = Future()
    job.set_result(event)
    return job


# ---- measured rates --------------------------------------------------------------------------------------------------

#: The side m = n of the two products that are timed, and their depths k: twice as deep where operands are split, for
#: these are multiplied faster. Bytes that are copied over the link; the array that threads copy, and the bytes that
#: they copy at a time.
SIDE, DEPTHS, DEPTHS_OF_PARTS = 8192, (256, 2048), (512, 4096)
COPY_BYTES = 64 << 20
STAGED, STAGED_BYTES = (16384, 16384), 16 << 20
ROUNDS = 3
#: Bytes of the host's memory in which nothing of this need be smaller.
ROOM = 2 << 30
#: With so many processors, copies are timed while two compilations run: enough processors are left.
ROOMY = 8


@dataclass(frozen=True)
class GpuRates:
    """The measured rates of a GPU, of its link to the host and of the host's memory.

    ``flops`` is the number of operations a second of a kernel whose waves are full. ``wave`` and ``wave_s`` have the
    same meaning as in ``cost.Rates``. The rates of copies are in bytes a second. ``in_bytes`` and ``out_bytes`` are the
    rates over the link between page-locked memory and the GPU. ``stage_bytes`` is the rate between other host memory
    and page-locked memory with the threads of one GPU, and ``most_stage_bytes`` the rate with all threads. ``split_s``
    is the time for splitting one copied byte of float32, or 0 if operands are not split.
    """

    flops: float
    wave: tuple[int, int, int]
    wave_s: float
    in_bytes: float
    out_bytes: float
    stage_bytes: float
    most_stage_bytes: float
    split_s: float = 0.0


def gpu_rates(gpu: Device, choice: Choice[CudaKernel], dtype: str, room: int) -> GpuRates:
    """Return the rates of ``gpu``, either from the cache or from a measurement.

    A measurement takes half a second in addition to the time to compile the kernel, and at most ``room`` bytes of the
    host's memory. If ``room`` is smaller than ROOM, the measured rates are not cached.
    """
    of_kernel = choice.kernel.source_hash, sorted(choice.params.items())
    key = fingerprint(gpu.name, gpu.pci_bus_id, *of_kernel, dtype, Path(__file__))
    file = CacheFile("rates", f"{key}.json")
    cached = file.read_as(lambda fields: GpuRates(**{**fields, "wave": tuple(fields["wave"])}))
    if cached is not None:
        return cached
    planes = PLANES.get(choice.compute, 0)
    shallow, deep = DEPTHS_OF_PARTS if planes else DEPTHS
    steps_on(gpu, choice, dtype).compile_ahead([(SIDE, SIDE, deep)])
    staged = _stage_rates(room) if machine().usable_cores >= ROOMY else None  # while the kernel compiles
    gpu.make_current()
    into, back = _link_rates(gpu, room)
    wave = _wave(gpu, choice)
    rows, columns, at_once = wave
    waves = math.ceil(math.ceil(SIDE / rows) * math.ceil(SIDE / columns) / at_once)
    shallow_s, deep_s = (_product_s(gpu, choice, dtype, depth) / waves for depth in (shallow, deep))
    s_per_k = (deep_s - shallow_s) / (deep - shallow)
    staged = staged or _stage_rates(room)
    rates = GpuRates(
        flops=2 * rows * columns * at_once / s_per_k,
        wave=wave,
        wave_s=max(0.0, shallow_s - shallow * s_per_k),
        in_bytes=into,
        out_bytes=back,
        stage_bytes=staged[0],
        most_stage_bytes=max(staged),
        split_s=_split_s(gpu, shallow, planes, room) if planes else 0.0,
    )
    if room >= ROOM:
        file.write_json(asdict(rates))
    return rates


def _stage_rates(room: int) -> list[float]:
    """Bytes a second from the host's memory to page-locked memory, by the threads of one GPU and by all processors."""
    rows, columns = STAGED
    operand = ArraySource(np.ones((max(1, min(rows, room // 2 // (4 * columns))), columns), np.float32))
    threads = copy_workers(), machine().usable_cores
    return [read_rate(operand, "float32", each, room // 4, STAGED_BYTES) for each in threads]


def _wave(gpu: Device, choice: Choice[CudaKernel]) -> tuple[int, int, int]:
    """The tile of a block, and how many blocks the GPU runs at once."""
    width, height = (side(**choice.params) for side in choice.kernel.tile)
    return height, width, gpu.sms * choice.params.get("BLOCKS", 1)


def _product_s(gpu: Device, choice: Choice[CudaKernel], dtype: str, depth: int) -> float:
    """Seconds of C += A·B with k = ``depth``, after the operands were split if they are."""
    size = np.dtype(dtype)
    slots = slot_elements(Grid(SIDE, SIDE, depth, SIDE, SIDE, depth), PLANES.get(choice.compute, 0))
    of_a, of_b, of_c = (elements * size.itemsize for elements in slots)
    steps, step = steps_on(gpu, choice, dtype), Multiply(0, Tile(0, 0), 1, 0, 0, 0, (0, 1), -1)
    with _stream_and_memory(gpu, SIDE * 64 * size.itemsize, of_a + of_b + of_c) as (stream, page, at):
        slot = Addresses(at, at + of_a, at + of_a + of_b)
        for start, elements in zip(slot, (SIDE * depth, SIDE * depth, SIDE * SIDE), strict=True):
            _fill(stream, page, start, elements * size.itemsize, size)

        def run() -> None:
            steps(step, (SIDE, SIDE, depth), slot, stream.handle)

        run()  # splits the operands, too
        return _seconds_each(stream, run)[0]


def _split_s(gpu: Device, depth: int, planes: int, room: int) -> float:
    """Seconds of splitting a byte of A or B, on average of both."""
    product = split_of_rows(SIDE, SIDE, depth, planes)
    operands = product.a, product.b
    own, parts = (max(sizes) for sizes in zip(*((x.own_bytes, x.workspace_bytes) for x in operands), strict=True))
    with _stream_and_memory(gpu, min(COPY_BYTES, room // 4), own + parts) as (stream, page, at):
        _fill(stream, page, at, own, np.dtype(np.float32))
        splits = [load(gpu, [split_step((operand, BufferPlace(A), BufferPlace(A, own)))]) for operand in operands]
        works = [functools.partial(split, at, 0, 0, 0, stream.handle) for split in splits]
        for work in works:
            work()
        return sum(_seconds_each(stream, *works)) / (2 * own)


def _fill(stream: Stream, page: Pages, start: int, nbytes: int, dtype: np.dtype[Any]) -> None:
    """Copy random numbers to memory of the GPU: it multiplies zeros faster."""
    page.view(dtype)[:] = np.random.default_rng(0).random(page.nbytes // dtype.itemsize, np.float32)
    for at in range(start, start + nbytes, page.nbytes):
        stream.copy_in(at, page[: start + nbytes - at])


def _link_rates(gpu: Device, room: int) -> tuple[float, float]:
    """Bytes a second to the GPU, and back."""
    nbytes = min(COPY_BYTES, room // 4)
    with _stream_and_memory(gpu, nbytes, nbytes) as (stream, page, at):
        in_s, out_s = _seconds_each(stream, lambda: stream.copy_in(at, page), lambda: stream.copy_out(page, at))
    return nbytes / in_s, nbytes / out_s


def _seconds_each(stream: Stream, *works: Callable[[], None]) -> list[float]:
    """Median seconds of each of ``works``, which are submitted to the stream in turns, by the GPU's clock."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        events = [stream.mark()]
        for work in works:
            work()
            events.append(stream.mark())
        events[-1].wait()
        for seconds, (begun, done) in zip(times, itertools.pairwise(events), strict=True):
            seconds.append(done.since(begun))
    return [statistics.median(seconds) for seconds in times]


@contextlib.contextmanager
def _stream_and_memory(gpu: Device, host_bytes: int, gpu_bytes: int) -> Iterator[tuple[Stream, Pages, int]]:
    """A stream, page-locked memory of the host, and the address of memory on the GPU; released at the end of the block."""
    with contextlib.ExitStack() as taken:
        stream = gpu.new_stream()
        taken.callback(stream.close)
        page = gpu.pages.take_locked(host_bytes)
        taken.callback(gpu.pages.give_back, page, cache=False)
        memory = taken.enter_context(gpu.reserve(gpu_bytes))
        yield stream, page, memory.pointer
