"""Chooses the devices that compute a product in blocks, and determines for each device how many bytes of memory it may
use and how fast it reads, copies and multiplies blocks. This module also defines the place of the CPU.

On the CPU, blocks are read into the host's memory and multiplied there by kernels for CPUs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....cpu.choice import choose_adding_cpu
from ....cpu.plan import mirror_lower
from ....cpu.runtime.machine_code import need_machine_code
from ....cpu.runtime.runner import Product, runner, team_needs
from ....errors import DTypeError, MemoryLimitError, UnavailableError, UsageError
from ....gpu.runtime.device import Device, open_device
from ....gpu.runtime.split_product import SOURCES
from ....gpu.runtime.wake import wake_named
from ....host.disk import fingerprint
from ....host.machine import available_memory, bytes_text
from ....kernels import Kernel
from ....kernels.catalog import cuda_catalog
from ....product.operands import is_real, mapped_empty
from ....product.plan import Choice
from ....product.precision import PLANES, dtype_of_blocks
from ....product.problem import Problem, Symmetry
from ...files import Sink, Source
from ...files.array import ArraySource, array_behind
from ...files.positional import BUFFER
from ..options import Options
from ..plan.cost import Rates
from ..plan.cuts import can_be_cut, own_bytes
from ..plan.host_cache import HostCache
from ..plan.kernel import choose_streamed, choose_within, dtype_in_blocks
from ..plan.schedule import Load, Multiply, Store
from ..plan.stream import Room, StreamPlan, typical_step
from .gpu import GpuPlace, gpu_rates
from .peers import Peers
from .place import Events, Place
from .rates import copy_workers, host_rates, kc_of, read_rate, write_rate
from .staging import CachedSources, Chunks

# ---- the host --------------------------------------------------------------------------------------------------------


class HostPlace:
    """The place that multiplies blocks on the CPU, in slots of this process's memory. ``a`` and ``b`` are the operands,
    and ``sink`` receives C.

    If an operand is stored column by column, its blocks are stored column by column too. If only one triangle of a
    symmetric C is computed (``plan.triangle``), only a triangle of each tile on the diagonal is computed, and the other
    tiles are written to both sides of the diagonal. If a block of B is the transpose of a block of A that is in a slot,
    the block of B is copied from this slot.
    """

    def __init__(
        self,
        plan: StreamPlan,
        a: Source,
        b: Source,
        sink: Sink,
        *,
        kernel: Kernel,
        threads: int,
        events: Events | None = None,
    ) -> None:
        grid, dtype = plan.grid, np.dtype(plan.dtype)
        self._grid, self._sources, self._sink, self._events = grid, {"a": a, "b": b}, sink, events or Events()
        run = functools.partial(runner, kernel, dtype, threads=threads)
        self._first, self._more = run(), run(add=True)
        self._triangle, self._products = plan.triangle, {}
        if plan.triangle:
            self._products = triangle_products(run, "gram")
        self._by_columns = {name: getattr(source, "by_columns", False) for name, source in self._sources.items()}
        #: The slot of A in which each of its blocks is, which only the thread of the loads knows and changes.
        self._of_a: dict[tuple[int, int], int] = {}
        of_a, of_b, of_c = plan.slots
        self._slots = {
            "a": [mapped_empty(grid.bm * grid.bk, dtype) for _ in range(of_a)],
            "b": [mapped_empty(grid.bk * grid.bn, dtype) for _ in range(of_b)],
            "c": [mapped_empty(grid.bm * grid.bn, dtype) for _ in range(of_c)],
        }
        self._views: dict[tuple[str, int], np.ndarray[Any, Any]] = {}

    def load(self, load: Load, after: None) -> None:  # noqa: ARG002  # work is done when it returns: nothing to wait for
        rows, columns = self._grid.where(load.block)
        view = self._view(load.block.operand, load.slot, rows.stop - rows.start, columns.stop - columns.start)
        with self._events.span("copy in", f"{load.block.operand.upper()}[{load.block.row}, {load.block.column}]"):
            slot = self._of_a.get((load.block.column, load.block.row)) if load.block.operand == "b" else None
            if slot is None:
                self._sources[load.block.operand].read(rows, columns, view)
            else:
                np.copyto(view, self._views["a", slot].T)
        self._views[load.block.operand, load.slot] = view
        if self._triangle and load.block.operand == "a":
            self._of_a = {block: slot for block, slot in self._of_a.items() if slot != load.slot}
            self._of_a[load.block.row, load.block.column] = load.slot

    def multiply(self, step: Multiply, needs: tuple[None, None], after: None) -> None:  # noqa: ARG002
        a, b = self._views["a", step.a], self._views["b", step.b]
        c = self._view("c", step.c, *self._grid.size(step.tile))
        with self._events.span("compute", f"C[{step.tile.i}, {step.tile.j}] step {step.p}"):
            if self._triangle and step.tile.i == step.tile.j:
                self._products[step.first, step.p + 1 == self._grid.steps](a, b, c)
            else:
                (self._first if step.first else self._more)(a, b, c)

    def store(self, store: Store, after: None) -> None:  # noqa: ARG002
        c = self._view("c", store.c, *self._grid.size(store.tile))
        with self._events.span("copy out", f"C[{store.tile.i}, {store.tile.j}]"):
            rows, columns = self._grid.rows(store.tile.i), self._grid.columns(store.tile.j)
            if self._triangle:
                write_both_sides(self._sink, rows, columns, c, hermitian=False)
            else:
                self._sink.write(rows, columns, c)

    def close(self) -> None:
        self._slots.clear()
        self._views.clear()

    def _view(self, operand: str, slot: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
        flat = self._slots[operand][slot][: rows * columns]
        return flat.reshape(columns, rows).T if self._by_columns.get(operand) else flat.reshape(rows, columns)


def triangle_products(run: Callable[..., Product], symmetry: Symmetry) -> dict[tuple[bool, bool], Product]:
    """Return the functions that multiply the blocks of a tile on the diagonal of a symmetric or Hermitian C.

    The keys of the dictionary are pairs of bools: whether a block is the first block of its tile, and whether it is the
    last. The computed triangle is copied to the other side of the diagonal only after the last block. ``run`` is the
    function ``runner`` with given kernel, dtype and threads.
    """
    both = False, True
    return {
        (first, last): run(add=not first, symmetry=symmetry, mirrored=last)
        for first, last in itertools.product(both, both)
    }


def write_both_sides(sink: Sink, rows: slice, columns: slice, c: np.ndarray[Any, Any], *, hermitian: bool) -> None:
    """Write a finished tile of a symmetric C, or of a Hermitian C if ``hermitian`` is set, to both sides of the
    diagonal.

    A tile on the diagonal is first made exactly symmetric or Hermitian.
    """
    if rows == columns:
        if c.dtype.kind == "c":
            mirror_lower(c, hermitian, near=True)
        sink.write(rows, columns, c)
        return
    sink.write(rows, columns, c)
    for top in range(0, len(c), STRIP):
        strip = c[top : top + STRIP].T
        beside = slice(rows.start + top, min(rows.stop, rows.start + top + STRIP))
        sink.write(columns, beside, strip.conj() if hermitian else strip)


# ---- all places ------------------------------------------------------------------------------------------------------

#: Rows of a finished tile that are copied to the other side of the diagonal at once.
STRIP = 512
#: The dtypes of blocks that GPUs multiply.
GPU_DTYPES = ("float32", "float64")
#: Share of the free memory that blocks take where no limit is stated.
SHARE = 0.8
#: Of a GPU's free memory: kernels and their code take the rest.
GPU_SHARE = 0.95
#: Blocks are cut at the edges of chunks with sides up to this.
LARGEST_CHUNK = 4096
#: A smaller limit of the host's memory counts as this one: about so much the smallest blocks take with their workspace.
LEAST_LIMIT = 8 << 20
#: The kernel's workspace for blocks of SMALL×SMALL may take this share of a limit; otherwise fewer threads multiply.
SMALL, WORKSPACE_SHARE = 128, 1 / 4
#: Chunks of files that are read together may take this share of a limit, unless a single one takes more.
READ_SHARE = 1 / 8


@dataclass(frozen=True)
class Placement:
    """The devices and the kernel that compute a product: the CPU with ``threads`` threads, or each of ``gpus``.

    ``room`` is the memory in which blocks must fit. ``memory`` is the number of bytes of host memory that the product
    may use.
    """

    choice: Choice[Any]
    room: Room
    threads: int
    memory: int
    gpus: tuple[Device, ...] = ()
    chunks: Chunks | None = None

    @property
    def names(self) -> list[str]:
        """The names of the devices, such as "cuda:0"; only "cpu" if the placement has no GPUs."""
        return [f"cuda:{gpu.ordinal}" for gpu in self.gpus] or ["cpu"]

    @property
    def summary(self) -> str:
        """An empty text. The ``summary`` of a placement on a cluster describes the workers, but this placement has no
        workers.
        """
        return ""

    @property
    def triangle(self) -> bool:
        """Whether only one triangle of a symmetric C is computed and then copied. False for GPUs, which always compute
        all of C.
        """
        return not self.gpus and self.choice.kernel.triangle

    @property
    def kernel_fact(self) -> str:
        """A text with everything about the kernel that can change the bits of a product: its name, code and parameters."""
        kernel, blocking = self.choice.kernel, getattr(self.choice.kernel, "blocking", None)
        also = SOURCES if self.choice.compute in PLANES else ()
        return f"{kernel.name} {fingerprint(kernel.source_hash, dict(self.choice.params), blocking, *also)}"

    def rates(self, a: Source, b: Source, out: Any, dtype: str) -> Rates:
        """Return the rates of one device for blocks of ``dtype``. The rates of reading the operands and of writing the
        result are measured in this call, which takes half a second.
        """
        if not self.gpus:
            return host_rates((a, b), out, self.choice.kernel, dtype, self.threads, max(0, self.room.place))
        room = self.memory // 2
        gpu = gpu_rates(self.gpus[0], self.choice, dtype, room)
        probed = [read_rate(source, dtype, copy_workers(), room) for source in (a, b) if not _is_plain(source)]
        in_memory = isinstance(out, np.ndarray)
        return Rates(
            flops=gpu.flops,
            in_bytes=gpu.in_bytes,
            out_bytes=gpu.out_bytes,
            read_bytes=min([gpu.stage_bytes, *probed]),
            stage_bytes=gpu.stage_bytes,
            latency_s=1e-4,
            wave=gpu.wave,
            wave_s=gpu.wave_s,
            copy_s=gpu.split_s,
            write_bytes=gpu.most_stage_bytes if in_memory else write_rate(out, (a, b), dtype, room),
            most_read_bytes=min([gpu.most_stage_bytes, *probed]),
            peers=len(self.gpus) > 1 and all(x.can_reach(y) for x, y in itertools.permutations(self.gpus, 2)),
        )

    def places(self, plan: StreamPlan, a: Source, b: Source, sink: Sink, events: Events) -> Iterator[Place]:
        """Create a place for each region of the plan, and allocate the memory of each place."""
        if not self.gpus:
            yield HostPlace(plan, a, b, sink, kernel=self.choice.kernel, threads=self.threads, events=events.at("cpu"))
            return
        count = len(plan.regions)
        # Several places take tiles as they go: the order of their loads, from which a cache is planned, is not known yet.
        cached = plan.host_cache(plan.schedule()) if count == 1 else HostCache({}, {})
        peers = Peers() if plan.rates.peers else None
        for gpu, other in itertools.permutations(self.gpus[:count] if peers else (), 2):
            gpu.reach(other)
        for gpu, name in zip(self.gpus[:count], self.names[:count], strict=True):
            yield GpuPlace(
                plan,
                CachedSources(plan, cached, {"a": a, "b": b}),
                sink,
                gpu=gpu,
                choice=self.choice,
                workers=copy_workers(count),
                chunks=self.chunks,
                events=events.at(name),
                peers=peers,
            )


def place_product(sources: Sequence[Source], dtype: np.dtype[Any], options: Options, threads: int) -> Placement:
    """Choose the devices for a product. ``options.device`` is "cpu", "cuda", "cuda:0,1", or None to use GPUs if there are
    any.

    Raises UsageError for any other device; UnavailableError if there is no GPU, or no machine code for the CPU; and
    MemoryLimitError if the memory limit leaves no memory for blocks.
    """
    limit = None if options.memory is None else parse_bytes("memory", options.memory)
    gpus = _gpus(_device_for(dtype, options.device))
    (m, k), n = sources[0].shape, sources[1].shape[1]
    stored = [source.dtype.name for source in sources]
    in_memory = all(array_behind(source) is not None for source in sources)
    free = limit if limit is not None else int(SHARE * (available_memory() or 1 << 30))
    if not gpus:
        if options.device_memory is not None:
            raise UsageError("device_memory is for products on a GPU: this one is on the CPU, see memory")
        need_machine_code("what multiplies and moves blocks")
        choice = choose_on_cpu(options.precision, stored, dtype.name, k)
        free = max(free, LEAST_LIMIT)
        buffers = read_bytes(sources, free) + 2 * BUFFER  # one read and one write at a time
        kc, chunk = kc_of(choice.kernel, choice.compute), _chunk(sources)
        size = np.dtype(dtype_of_blocks(choice.compute)).itemsize
        while True:  # fewer threads take less
            of_step = functools.partial(step_bytes, choice.kernel, choice.compute, threads)
            room = Room.within(free, buffers, grain=64, kc=kc, chunk=chunk, files=not in_memory, workspace=of_step)
            fits = of_step(SMALL, SMALL, kc) <= WORKSPACE_SHARE * free and can_be_cut(m, n, k, room, size)
            if fits or threads == 1:
                return Placement(choice, room, threads, free)
            threads -= 1
    chunks = Chunks.within(limit)
    host = 0 if in_memory else _left(free, own_bytes(free) + chunks.nbytes)
    stated = None if options.device_memory is None else parse_bytes("device_memory", options.device_memory)
    free_there = min(gpu.memory_bytes()[0] for gpu in gpus)
    place = int(GPU_SHARE * free_there) if stated is None else min(free_there, stated)
    gpu = gpus[0]

    def chosen(word: str) -> tuple[Choice[Any], int]:
        named: Any = {"capability": gpu.capability, "sms": gpu.sms, "gpu": gpu.name, "precision": word}
        choice = choose_streamed(dtype.name, m, n, k, **named)
        return choice, _step_on_gpu(choice, (m, n, k), stated)

    best = choose_within(options.precision, stored, dtype.name, k, chosen)
    step, planes = _step_on_gpu(best, (m, n, k), stated), PLANES.get(best.compute, 0)
    room = Room(place, host, _grain(best), step=step, chunk=_chunk(sources), planes=planes)
    return Placement(best, room, threads, free, gpus, chunks)


def _chunk(sources: Sequence[Source]) -> int:
    """The side of the largest chunk of the operands, if they have chunks that a block can hold."""
    return max([side for source in sources for side in source.grain if max(source.grain) <= LARGEST_CHUNK], default=1)


def _is_plain(source: Source) -> bool:
    """Whether it is an array in memory, row by row: ``gpu_rates`` has timed copies of such a one."""
    return isinstance(source, ArraySource) and source.by_rows


def _left(limit: int, reserved: int) -> int:
    if limit <= reserved:
        raise MemoryLimitError(
            f"memory is {bytes_text(limit)}: threads and buffers take {bytes_text(reserved)}, and blocks need more than that"
        )
    return limit - reserved


@functools.lru_cache(maxsize=4096)  # a search for cuts asks again
def step_bytes(kernel: Kernel, dtype: str, threads: int, m: int, n: int, k: int) -> int:
    """Return the number of bytes that a kernel needs in addition to the blocks for a step of this size: workspace and
    counters.

    The elements of the workspace may be wider than ``dtype``.
    """
    nbytes, counters = team_needs(kernel, (m, n, k), np.dtype(dtype), threads)
    return nbytes + 8 * counters


def read_bytes(sources: Sequence[Source], limit: int) -> int:
    """Return the largest number of bytes that one read of an operand allocates. If the memory limit is small, reads are
    made smaller.
    """
    for source in sources:
        if hasattr(source, "read_within"):
            source.read_within(int(READ_SHARE * limit))
    return max(source.workspace for source in sources)


# ---- kernels ---------------------------------------------------------------------------------------------------------


def choose_on_cpu(precision: str | float, stored: Sequence[str], result: str, k: int) -> Choice[Kernel]:
    """Return the choice of the CPU kernel for the blocks of a product with this k; see ``choose_within``. Raises DTypeError
    and UsageError.
    """

    def chosen(word: str) -> tuple[Choice[Kernel], int]:
        dtype = dtype_in_blocks(result, word)
        choice = choose_adding_cpu(dtype)
        if choice is None:
            raise DTypeError(f"dtype {dtype}: no kernel on the CPU adds products of it to C")
        return choice, kc_of(choice.kernel, dtype)

    return choose_within(precision, stored, result, k, chosen)


def _grain(choice: Choice[Any]) -> int:
    """A kernel may treat the last rows and columns otherwise than whole tiles: they must be the same ones in every grid."""
    return max(128, *(side(**choice.params) for side in choice.kernel.tile))


def _step_on_gpu(choice: Choice[Any], shape: tuple[int, int, int], limit: int | None) -> int:
    """The step of k with which a GPU computes a product of ``shape`` (m, n, k) under a ``limit`` of its memory."""
    problem, planes = Problem(*shape, dtype_of_blocks(choice.compute)), PLANES.get(choice.compute, 0)
    return typical_step(problem, grain=_grain(choice), limit=limit, planes=planes)


# ---- options ---------------------------------------------------------------------------------------------------------


def parse_bytes(name: str, value: float | str) -> int:
    """Convert a number, or a text such as "4GiB", "500 MB" or "1.5G", to a number of bytes.

    >>> parse_bytes("memory", "4GiB"), parse_bytes("memory", "1.5k"), parse_bytes("memory", 1e9)
    (4294967296, 1536, 1000000000)
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?(?:e\+?\d\d?)?)\s*([kmgt]?)(i?b?)\s*", value, re.IGNORECASE)
        if match is None:
            raise UsageError(f"{name} {value!r:.80}: must be a number of bytes such as 4GiB or 500MB")
        base = 1000 if match[3].lower() == "b" and match[2] else 1024
        value = int(float(match[1]) * base ** (" kmgt".index(match[2].lower()) if match[2] else 0))
    if isinstance(value, (bool, np.bool_)) or not is_real(value) or not float(value).is_integer() or value < 1:
        raise UsageError(
            f"{name} must be a whole number of bytes above 0, or text such as '4GiB' or '500MB', got {value!r:.80}"
        )
    return int(value)


def _device_for(dtype: np.dtype[Any], device: str | None) -> str | None:
    """``device``; the CPU where none is named and blocks of such products are not multiplied on GPUs. Raises DTypeError
    where GPUs are named for those."""
    if device == "cpu" or dtype_in_blocks(dtype.name, "standard") in GPU_DTYPES:
        return device
    if device is None:
        return "cpu"
    wider = ", or dtype='float64' to multiply in that" if dtype.kind in "biu" else ""
    raise DTypeError(f"device {device!r}: GPUs multiply no blocks of {dtype}; give device='cpu'{wider}")


def _gpus(device: str | None) -> tuple[Device, ...]:
    """The GPUs that ``device`` names; none for the CPU."""
    if device == "cpu":
        return ()
    match = re.fullmatch(r"cuda(?::(\d+(?:,\d+)*))?", "cuda" if device is None else str(device))
    if match is None:
        raise UsageError(f"device {device!r}: must be cpu, cuda, cuda:N or cuda:N,M,…")
    if wake_named(device):
        cuda_catalog()  # read in 20 ms, meanwhile
    try:
        if match[1]:
            return tuple(open_device(int(number)) for number in dict.fromkeys(match[1].split(",")))
        return tuple(open_device(number) for number in range(open_device(0).count()))
    except UnavailableError:
        if device is None:
            return ()
        raise
