"""A CUDA kernel as its file declares it, the kernel's launch for a given size, and the fitted constants (costs) of its
predicted times.

The header of a CUDA kernel names the kernel's ``costs``. The file ``gpu/kernels/costs/CARD.json`` has the values of the
costs for a GPU that was measured; ``benchmarks/fit_costs.py`` fits them to measured launches. A table of costs in the
user's cache, fitted to the user's GPU, takes precedence over the package's table. A GPU without a table of costs uses
the table of an H200. Memory rates in a table assume the bandwidth of an H200; expressions for times scale such rates by
``memory_ratio`` where memory matters.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import UsageError, did_you_mean
from ..host.cached_property import cached_property
from ..host.disk import CacheFile, fingerprint
from ..host.sources import PACKAGE
from .expression import Expression, Expressions, Parameter

# ---- fitted costs ----------------------------------------------------------------------------------------------------

TABLES = PACKAGE / "gpu" / "kernels" / "costs"
#: The table of costs for GPUs that have none of their own.
BASE = "h200"


class HasCosts(Protocol):
    """A kernel's name and the names of its costs."""

    @property
    def name(self) -> str:
        """The kernel's name, as in the tables of costs."""
        ...

    @property
    def costs(self) -> tuple[str, ...]:
        """The names of the kernel's costs, in the order of the header."""
        ...


class CostTable(NamedTuple):
    """The costs of kernels, by the kernels' names."""

    kernels: Mapping[str, Mapping[str, float]]

    def costs_of(self, kernel: HasCosts) -> dict[str, float]:
        """Return the value of each cost that the kernel's header names. Raises KeyError if the table lacks one of these
        costs."""
        known = self.kernels[kernel.name] if kernel.costs else {}
        return {name: known[name] for name in kernel.costs}


def table_of(card: str) -> str:
    """Return the name of the table of costs for a GPU of this name: the GPU's own table, otherwise that of an H200.

    >>> table_of("NVIDIA H200"), table_of("NVIDIA GeForce RTX 5090")
    ('h200', 'h200')
    """
    own = own_table(card)
    return own if own and (_in_package(own).is_file() or not cached_table(own).is_absent) else BASE


def own_table(card: str) -> str:
    """Return the name of the table of costs that belongs to this GPU alone.

    >>> own_table("NVIDIA H100 80GB HBM3")
    'h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", card.lower().removeprefix("nvidia")).strip("-")


@functools.lru_cache(maxsize=8)
def cost_table(name: str) -> CostTable:
    """Return the table of costs of this name: from the user's cache if it is there, otherwise from the package. If the
    cached table lacks a kernel, the package's costs of that kernel are used. A process reads a table once, so a table
    that is fitted later takes effect in the next process."""
    path = _in_package(name)
    packaged = _table(json.loads((path if path.is_file() else _in_package(BASE)).read_bytes()))
    cached = cached_table(name)
    own = None if cached.is_absent else cached.read_as(_table)
    if own is None:
        return packaged
    complete = {
        kernel: costs for kernel, costs in own.kernels.items() if {*packaged.kernels.get(kernel, ())} <= {*costs}
    }
    return CostTable({**packaged.kernels, **complete})


def cached_table(name: str) -> CacheFile:
    """Return the cache file of a table of costs that was fitted on this machine."""
    return CacheFile("costs", f"{name}.json")


def _in_package(name: str) -> Any:
    return TABLES / f"{name}.json"


def _table(known: Mapping[str, Any]) -> CostTable:
    return CostTable(known["kernels"])


# ---- kernels ---------------------------------------------------------------------------------------------------------

#: What every GPU since compute capability 3.0 can launch: the most threads of a block, the most threads along x, y and z,
#: and the most blocks along x, y and z.
MOST_THREADS = 1024
MOST_BLOCK = (1024, 1024, 64)
MOST_GRID = (2**31 - 1, 65535, 65535)

#: The name for the number of elements in 128 bytes, in expressions of a kernel's boxes, steps and times.
LINE = "LINE"
#: The names that an expression for a time may use, besides the parameters and LINE; ``header`` explains them.
TIMED = (
    *("m", "n", "k", "batch", "parts", "part", "size", "out_size", "sms", "memory_ratio", "int8_rate", "blocks"),
    *("lines", "a_start", "b_start", "a_down", "b_across", "c_down", "a_vector", "b_vector", "finished", "scaled"),
    "triangle",
)

Dim3 = tuple[int, int, int]


class UnitRates(NamedTuple):
    """The numbers of operations that one multiprocessor does in a clock cycle. ``float64``: the operations of the
    multiprocessor's float64 units. ``float64_tensor`` and ``int8_tensor``: the multiply-adds of its tensor cores by
    mma.sync; a GPU without float64 tensor cores has the rate of its float64 units."""

    float64: int
    float64_tensor: int
    int8_tensor: int


#: The rates by compute capability. Rates of the units are from NVIDIA's CUDA C++ Programming Guide, "Throughput of Native
#: Arithmetic Instructions". Rates of tensor cores are the dense rates in NVIDIA's whitepapers of A100, H100, GA102, Ada
#: and RTX Blackwell, divided by multiprocessors and boost clock. For int8 from 9.0 on, those papers give the rate of other
#: instructions than mma.sync, so the rate of 8.0 is assumed.
UNIT_RATES = {"8.0": UnitRates(32, 64, 2048), "9.0": UnitRates(64, 128, 2048), "10.0": UnitRates(64, 64, 2048)}
#: Those of all others that the engine has kernels for: 8.6, 8.9 and 12.0, and GPUs on chips with other processors.
_OTHER_UNIT_RATES = UnitRates(2, 2, 1024)


class Card(NamedTuple):
    """The facts about a GPU on which predicted times depend; the defaults describe an H200.

    ``sms``: the number of multiprocessors. ``memory_ratio``: the bandwidth of an H200's memory divided by that of this
    GPU's memory. ``table``: the name of the GPU's table of costs. ``capability``: its compute capability.
    """

    name: str = ""
    sms: int = 132
    memory_ratio: float = 1.0
    table: str = BASE
    capability: str = "9.0"

    @property
    def rates(self) -> UnitRates:
        """The numbers of operations that one multiprocessor of this GPU does in a clock cycle.

        >>> Card().rates.float64_tensor, Card(capability="8.9").rates.float64_tensor
        (128, 2)
        """
        return UNIT_RATES.get(self.capability, _OTHER_UNIT_RATES)

    @property
    def facts(self) -> tuple[int, float, int]:
        """The values of ``sms``, ``memory_ratio`` and ``int8_rate``, which expressions for times may use (see
        TIMED)."""
        return self.sms, self.memory_ratio, self.rates.int8_tensor

    @classmethod
    def of(cls, name: str, sms: int, memory_clock_khz: int, bus_bits: int, capability: str = "9.0") -> Card:
        """Make the card with this name, these multiprocessors, and this memory clock and bus width, as the driver
        reports them. If the memory clock or the bus width is 0, the memory is assumed to be as fast as an H200's.

        >>> round(Card.of("NVIDIA H100 80GB HBM3", 132, 2_619_000, 5120).memory_ratio, 3)
        1.467
        """
        clock_and_bus = memory_clock_khz * bus_bits
        ratio = 3_201_000 * 6144 / clock_and_bus if clock_and_bus else 1.0
        return cls(name, sms, ratio, table_of(name), capability)


@dataclass(frozen=True)
class Launch:
    """The size of a launch: the numbers of blocks (``grid``) and of threads in a block (``block``) along x, y and z,
    and a block's bytes of dynamic shared memory."""

    grid: Dim3
    block: Dim3
    shared_bytes: int

    @property
    def blocks(self) -> int:
        """The number of blocks of the launch. The number of blocks is 0 if C has no elements; then nothing is
        launched."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Preset:
    """Parameters that suit some sizes better than the defaults. ``rate`` is the speed with the preset's parameters in
    percent of the defaults' speed, at sizes that keep all multiprocessors busy to the end. ``when`` is the condition
    under which the preset may be used. The condition is an expression over m, n, k and the parameters; for the engine's
    kernels also over the ``size`` of elements and ``triangle``, which says whether only a triangle of C is computed."""

    rate: int
    when: Expression
    params: dict[str, int]


@dataclass(frozen=True, eq=False, repr=False)
class CudaKernel:
    """A CUDA kernel: what its ``.cu`` file declares in its header, and its source. The fields of the class are the keys
    of the header (see ``header``).

    ``source`` is the text that was read from the file once; this text is compiled, even if the file is edited later. A
    ``capability`` is a compute capability, for example "7.5" or "9.0a". ``costs`` includes the costs that the header
    lists as ``unfitted``.
    """

    name: str
    order: int
    path: Path
    source: str
    entry: str
    idea: str
    row: str
    parent: str | None
    dtypes: tuple[str, ...]
    capability: str
    block: tuple[Expression, ...]
    grid: tuple[Expression, ...]
    shared: Expression
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Expression, ...] = ()
    notes: tuple[str, ...] = ()
    tile: tuple[Expression, ...] = ()
    precision: str = "standard"
    spills: tuple[str, ...] = ()
    adds: bool = False
    suits: Expression | None = None
    presets: tuple[Preset, ...] = ()
    formulas: dict[str, Expression] = field(default_factory=dict)
    boxes: dict[str, tuple[Expression, Expression]] = field(default_factory=dict)
    strides: dict[str, str] = field(default_factory=dict)
    persistent: bool = False
    stores: tuple[str, ...] = ()
    step: Expression | None = None
    costs: tuple[str, ...] = ()
    unfitted: tuple[str, ...] = ()
    time: dict[str, Expression] = field(default_factory=dict)
    given: dict[str, Expression] = field(default_factory=dict)
    finishes: Expression | None = None
    invariant: Expression | None = None
    blocks: Expression | None = None
    triangle: Expression | None = None

    @cached_property
    def source_hash(self) -> str:
        """The hash of ``source``."""
        return fingerprint(self.source)

    def __repr__(self) -> str:
        return f"<CudaKernel {self.name}>"

    device = "cuda"
    is_reference = False

    @property
    def in_engine(self) -> bool:
        """Whether this is a kernel of the engine. ``matmul`` chooses among the engine's kernels by their predicted
        times. The function of an engine's kernel takes a structure with layouts, batch and parts of k instead of m, n
        and k."""
        return bool(self.time)

    @property
    def params(self) -> dict[str, int]:
        """The parameters with their defaults."""
        return {p.name: p.default for p in self.parameters}

    @property
    def tunable(self) -> frozenset[str]:
        """The names of the kernel's parameters, all of which tuning can set."""
        return frozenset(self.params)

    @property
    def about(self) -> dict[str, Any]:
        """The facts about the kernel that a record stores, so that a report can be made without the kernel."""
        return {"idea": self.idea, "parent": self.parent, "row": self.row, "order": self.order}

    def checked(self, params: Mapping[str, int]) -> dict[str, int]:
        """Return the complete parameters: the given ``params``, and the defaults for all others. Raises UsageError for
        an unknown parameter or a forbidden value."""
        if {*map(type, params.values())} <= {int}:
            return dict(_checked(self, tuple(params.items())))
        return self._checked(params)

    def _checked(self, params: Mapping[str, int]) -> dict[str, int]:
        known = {p.name: p for p in self.parameters}
        for name, value in params.items():
            if name not in known:
                hint = did_you_mean(name, known) if known else "it has none"
                raise UsageError(f"{self.name}: {name} is not one of its parameters: {hint}")
            if type(value) is not int or value not in known[name].values:
                raise UsageError(f"{self.name}: {name} must be {known[name].rule}, got {value!r}")
        chosen = self.params | dict(params)
        for rule in self.constraints:
            if not rule(**chosen):
                given = ", ".join(f"{name}={chosen[name]}" for name in chosen if name in rule.names)
                raise UsageError(f"{self.name}: {rule.text} must hold, got {given}")
        return chosen

    def preset(self, m: int, n: int, k: int, sms: int) -> Preset | None:
        """Return the preset to use for a size on a GPU of ``sms`` multiprocessors; None if the defaults are best.

        The choice is the preset with the shortest estimated time. The estimated time of a preset is the number of
        blocks on the busiest multiprocessor times the elements of their tile, divided by the preset's rate.
        """

        def time(preset: Preset) -> float:
            width, height = (side(m=m, n=n, k=k, **self.params | preset.params) for side in self.tile)
            blocks = self.launch(m, n, k, **preset.params).blocks
            return -(-blocks // sms) * width * height / preset.rate

        defaults = Preset(100, Expression.parse(1, ()), {})
        able = [preset for preset in self.presets if preset.when(m=m, n=n, k=k, **self.params | preset.params)]
        best = min([defaults, *able], key=time) if able else defaults
        return None if best is defaults else best

    def fits(self, capability: str) -> bool:
        """Return whether a GPU of this compute capability, such as "9.0", can run the kernel."""
        least = self.capability.rstrip("af")
        same = least == capability
        return same if least != self.capability else _number(capability) >= _number(least)

    def box(self, operand: str, itemsize: int, params: Mapping[str, int], m: int = 1 << 30) -> tuple[int, int]:
        """Return the rows and columns of an operand's box (see ``boxes`` in ``header``). The operand's elements have
        ``itemsize`` bytes, and A has ``m`` rows."""
        rows, columns = self._box_sides[operand].of({**params, LINE: 128 // itemsize, "m": m})
        return rows, columns

    @cached_property
    def _box_sides(self) -> dict[str, Expressions]:
        return {operand: Expressions(sides) for operand, sides in self.boxes.items()}

    def step_of_k(self, itemsize: int, params: Mapping[str, int]) -> int:
        """Return the number that divides the length of each part into which the kernel splits a long k; 0 if the kernel
        does not split k."""
        return 0 if self.step is None else self.step(**params, **{LINE: 128 // itemsize})

    def triangle_blocks(self, params: Mapping[str, int], m: int, k: int) -> int:
        """Return the number of blocks of a launch that computes only the lower triangle of a symmetric C of ``m`` rows;
        0 if the kernel cannot do that."""
        return 0 if self.triangle is None else self.triangle(m=m, n=m, k=k, **params)

    def shared_to_finish(self, params: Mapping[str, int], vectors: int) -> int:
        """Return the bytes of shared memory that the kernel needs in addition to ``shared``, for an epilogue that reads
        this number of vectors, each with one number for each column of C.
        """
        return 0 if self.finishes is None else vectors * self.finishes(**params)

    def holds(self, m: int, n: int, k: int, **params: int) -> frozenset[str]:
        """Return the macros of ``given`` whose conditions hold for a size. The function assumes that all operands begin
        at multiples of 16 bytes."""
        values = {"m": m, "n": n, "k": k} | self.params | params
        return frozenset(name for name, condition in self.given.items() if condition(**values))

    @cached_property
    def _launch_sizes(self) -> Expressions:
        return Expressions((*self.grid, *self.block, self.shared))

    def launch(self, m: int, n: int, k: int, **params: int) -> Launch:
        """Return the launch of the kernel for C[m×n] = A[m×k]·B[k×n]; ``params`` are the parameters that differ from
        the defaults.

        Raises UsageError for parameters that the kernel cannot take, and for a launch that no GPU can make.
        """
        return self.launch_with(self.checked(params), m, n, k)

    def launch_with(self, checked: Mapping[str, int], m: int, n: int, k: int) -> Launch:
        """Return the launch with complete parameters, which ``checked`` has returned."""
        values = {"m": m, "n": n, "k": k, **checked}
        *sizes, shared = self._launch_sizes.of(values)
        grid, block = _three(sizes[: len(self.grid)]), _three(sizes[len(self.grid) :])
        launch, where = Launch(grid, block, shared), f"{self.name} at m={m}, n={n}, k={k}"
        for axis, blocks, most in zip("xyz", grid, MOST_GRID, strict=True):
            if not 0 <= blocks <= most:
                raise UsageError(f"{where}: grid {axis} is {blocks}, must be from 0 to {most}")
        for axis, threads, most in zip("xyz", block, MOST_BLOCK, strict=True):
            if not 1 <= threads <= most:
                raise UsageError(f"{where}: block {axis} is {threads}, must be from 1 to {most}")
        if launch.threads > MOST_THREADS:
            raise UsageError(f"{where}: a block is {launch.threads} threads, must be at most {MOST_THREADS}")
        if launch.shared_bytes < 0:
            raise UsageError(f"{where}: shared is {launch.shared_bytes} bytes, must not be negative")
        return launch

    def launch_on(self, sms: int, m: int, n: int, k: int, **params: int) -> Launch:
        """Return the launch of the kernel on a GPU of ``sms`` multiprocessors. A persistent kernel gets at most one
        block for each multiprocessor, or PER_SM blocks if it has this parameter, in whole clusters."""
        launch = self.launch(m, n, k, **params)
        if not self.persistent:
            return launch
        return replace(launch, grid=(launched(launch.blocks, sms, self.checked(params)), 1, 1))


@functools.lru_cache(maxsize=4096)
def _checked(kernel: CudaKernel, params: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Cached, because plans ask for the same sets of parameters of a header many times. Both arguments are immutable."""
    return kernel._checked(dict(params))


def blocks_at_once(sms: int, params: Mapping[str, int]) -> int:
    """Return the largest number of blocks with which a persistent kernel is launched: as many as run at once, PER_SM on
    each multiprocessor, in whole clusters. If clusters are larger than two blocks, some multiprocessors stay without a
    block, because a cluster must lie in one group of multiprocessors (GPC).

    >>> blocks_at_once(132, {"CLUSTER": 2}), blocks_at_once(132, {"SPLIT": 4}), blocks_at_once(2, {"SPLIT": 4})
    (132, 120, 4)
    """
    cluster = _cluster(params)
    room = sms - sms // 11 if cluster > 2 else sms
    return max(cluster, room * params.get("PER_SM", 1) // cluster * cluster)


def launched(blocks: int, sms: int, params: Mapping[str, int]) -> int:
    """Return the number of blocks with which a persistent kernel is launched if it has work for ``blocks`` blocks: in
    whole clusters, at most as many as run at once.

    >>> launched(50, 132, {"NEAR": 16}), launched(500, 132, {})
    (64, 132)
    """
    cluster = _cluster(params)
    return min(-(-blocks // cluster) * cluster, blocks_at_once(sms, params))


def _cluster(params: Mapping[str, int]) -> int:
    """The blocks of a cluster."""
    return math.prod(params.get(name, 1) for name in ("CLUSTER", "BESIDE", "SPLIT", "NEAR"))


def _number(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _three(sizes: list[int]) -> Dim3:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
