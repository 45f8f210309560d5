"""A CUDA kernel as its file declares it, how it is launched for a size, and the fitted numbers in its predicted times.

A header names its ``costs``, and ``gpu/kernels/costs/CARD.json`` has their values, one table for each card that was
measured, which ``benchmarks/fit_costs.py`` fits to measured launches. A table in the user's cache, fitted to the card at
hand, precedes that of the package. A card without a table takes that of an H200. Rates of memory are those with the
datasheet rate of an H200: where they count, expressions scale them by ``memory_ratio``.
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
#: The table of cards that have none.
BASE = "h200"


class HasCosts(Protocol):
    """A kernel: its name, and the names of its costs."""

    @property
    def name(self) -> str:
        """As tables have it."""
        ...

    @property
    def costs(self) -> tuple[str, ...]:
        """In the order of its header."""
        ...


class CostTable(NamedTuple):
    """The costs of kernels by their names."""

    kernels: Mapping[str, Mapping[str, float]]

    def costs_of(self, kernel: HasCosts) -> dict[str, float]:
        """The value of each cost that the kernel's header names. Raises KeyError for one that the table lacks."""
        known = self.kernels[kernel.name] if kernel.costs else {}
        return {name: known[name] for name in kernel.costs}


def table_of(card: str) -> str:
    """The table for a card of this name.

    >>> table_of("NVIDIA H200"), table_of("NVIDIA GeForce RTX 5090")
    ('h200', 'h200')
    """
    own = own_table(card)
    return own if own and (_in_package(own).is_file() or not cached_table(own).is_absent) else BASE


def own_table(card: str) -> str:
    """The name that a card's own table has.

    >>> own_table("NVIDIA H100 80GB HBM3")
    'h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", card.lower().removeprefix("nvidia")).strip("-")


@functools.lru_cache(maxsize=8)
def cost_table(name: str) -> CostTable:
    """The table of this name: of the user's cache, else of the package. A kernel that a cached one lacks has the costs of
    the package. It is read once in a process; a table that is fitted later is for the next one."""
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
    """The file of a table that was fitted here."""
    return CacheFile("costs", f"{name}.json")


def _in_package(name: str) -> Any:
    return TABLES / f"{name}.json"


def _table(known: Mapping[str, Any]) -> CostTable:
    return CostTable(known["kernels"])


# ---- kernels ---------------------------------------------------------------------------------------------------------

#: What every GPU since compute capability 3.0 can launch: threads a block; threads along x, y, z; blocks along x, y, z.
MOST_THREADS = 1024
MOST_BLOCK = (1024, 1024, 64)
MOST_GRID = (2**31 - 1, 65535, 65535)

#: In boxes, steps and times of a kernel, the elements of 128 bytes.
LINE = "LINE"
#: The names that a time may use, besides the parameters and LINE; ``header`` explains them.
TIMED = (
    *("m", "n", "k", "batch", "parts", "part", "size", "out_size", "sms", "memory_ratio", "int8_rate", "blocks"),
    *("lines", "a_start", "b_start", "a_down", "b_across", "c_down", "a_vector", "b_vector", "finished", "scaled"),
    "triangle",
)

Dim3 = tuple[int, int, int]


class UnitRates(NamedTuple):
    """What a multiprocessor does in a clock: ``float64`` operations of its units, and multiply-adds of its tensor cores by
    mma.sync, of float64 (those of the units, where it has no such tensor cores) and of int8."""

    float64: int
    float64_tensor: int
    int8_tensor: int


#: By compute capability. Units: NVIDIA's CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions". Tensor
#: cores: the dense rates in NVIDIA's whitepapers of A100, H100, GA102, Ada and RTX Blackwell, over multiprocessors and boost
#: clock. Of int8 by mma.sync from 9.0 on, where these are rates of other instructions, those of 8.0 are assumed.
UNIT_RATES = {"8.0": UnitRates(32, 64, 2048), "9.0": UnitRates(64, 128, 2048), "10.0": UnitRates(64, 64, 2048)}
#: Those of all others that the engine has kernels for: 8.6, 8.9 and 12.0, and GPUs on chips with other processors.
_OTHER_UNIT_RATES = UnitRates(2, 2, 1024)


class Card(NamedTuple):
    """A GPU, as far as predicted times depend on it; by default an H200.

    ``sms``: multiprocessors. ``memory_ratio``: the bandwidth of an H200's memory over that of this GPU's. ``table``: the
    name of its table of costs (see ``costs``). ``capability``: its compute capability.
    """

    name: str = ""
    sms: int = 132
    memory_ratio: float = 1.0
    table: str = BASE
    capability: str = "9.0"

    @property
    def rates(self) -> UnitRates:
        """What a multiprocessor does in a clock.

        >>> Card().rates.float64_tensor, Card(capability="8.9").rates.float64_tensor
        (128, 2)
        """
        return UNIT_RATES.get(self.capability, _OTHER_UNIT_RATES)

    @property
    def facts(self) -> tuple[int, float, int]:
        """What times may use of it: ``sms``, ``memory_ratio`` and ``int8_rate`` (see TIMED)."""
        return self.sms, self.memory_ratio, self.rates.int8_tensor

    @classmethod
    def of(cls, name: str, sms: int, memory_clock_khz: int, bus_bits: int, capability: str = "9.0") -> Card:
        """The card whose memory has this clock and bus, as its driver says; if that is 0, like that of an H200.

        >>> round(Card.of("NVIDIA H100 80GB HBM3", 132, 2_619_000, 5120).memory_ratio, 3)
        1.467
        """
        clock_and_bus = memory_clock_khz * bus_bits
        ratio = 3_201_000 * 6144 / clock_and_bus if clock_and_bus else 1.0
        return cls(name, sms, ratio, table_of(name), capability)


@dataclass(frozen=True)
class Launch:
    """The size of a launch: blocks, and threads of a block, along x, y, z; bytes of dynamic shared memory of a block."""

    grid: Dim3
    block: Dim3
    shared_bytes: int

    @property
    def blocks(self) -> int:
        """Blocks in all: 0 if C has no elements, and nothing is to be launched."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Preset:
    """Parameters that suit some sizes better than the defaults. ``rate`` is their speed in percent of the defaults', if all
    multiprocessors have work to the end; ``when`` is a condition on m, n, k and parameters, and in the engine on the
    ``size`` of elements and whether only a ``triangle`` of C is computed, under which they may be taken."""

    rate: int
    when: Expression
    params: dict[str, int]


@dataclass(frozen=True, eq=False, repr=False)
class CudaKernel:
    """What a ``.cu`` declares in its header, and its source. The fields are the keys of the header (see ``header``).

    ``source`` was read from the file once and is what runs. A ``capability`` is, for
    example, "7.5" or "9.0a". ``costs`` has the ``unfitted`` ones too.
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
        """Whether it is a kernel of the engine: ``matmul`` chooses it by its predicted time, and instead of m, n and k it
        takes a structure with layouts, batch and parts of k."""
        return bool(self.time)

    @property
    def params(self) -> dict[str, int]:
        """The parameters with their defaults."""
        return {p.name: p.default for p in self.parameters}

    @property
    def tunable(self) -> frozenset[str]:
        """The names of its parameters, all of which can be set."""
        return frozenset(self.params)

    @property
    def about(self) -> dict[str, Any]:
        """What a record repeats, so that a report does not need the kernel."""
        return {"idea": self.idea, "parent": self.parent, "row": self.row, "order": self.order}

    def checked(self, params: Mapping[str, int]) -> dict[str, int]:
        """All parameters: ``params``, else the defaults. Raises UsageError for an unknown name or a forbidden value."""
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
        """The preset for a size, on a GPU of ``sms`` multiprocessors; None where the defaults are best.

        It is the one whose busiest multiprocessor is done first: its time is its blocks times their tile over the rate.
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
        """Whether a GPU of that compute capability, such as "9.0", can run it."""
        least = self.capability.rstrip("af")
        same = least == capability
        return same if least != self.capability else _number(capability) >= _number(least)

    def box(self, operand: str, itemsize: int, params: Mapping[str, int], m: int = 1 << 30) -> tuple[int, int]:
        """The rows and columns of the box of an operand whose elements have ``itemsize`` bytes, in a product whose A has
        ``m`` rows; see ``boxes``."""
        rows, columns = self._box_sides[operand].of({**params, LINE: 128 // itemsize, "m": m})
        return rows, columns

    @cached_property
    def _box_sides(self) -> dict[str, Expressions]:
        return {operand: Expressions(sides) for operand, sides in self.boxes.items()}

    def step_of_k(self, itemsize: int, params: Mapping[str, int]) -> int:
        """Elements of k of which the parts of a long k consist; 0 where k is not cut."""
        return 0 if self.step is None else self.step(**params, **{LINE: 128 // itemsize})

    def triangle_blocks(self, params: Mapping[str, int], m: int, k: int) -> int:
        """The blocks of a launch that computes only the lower triangle of a symmetric C of ``m`` rows; 0 where it cannot."""
        return 0 if self.triangle is None else self.triangle(m=m, n=m, k=k, **params)

    def shared_to_finish(self, params: Mapping[str, int], vectors: int) -> int:
        """Bytes of shared memory that it needs besides ``shared`` for an epilogue with so many vectors that have a number
        for each column.
        """
        return 0 if self.finishes is None else vectors * self.finishes(**params)

    def holds(self, m: int, n: int, k: int, **params: int) -> frozenset[str]:
        """The macros of ``given`` whose conditions hold for a size, if the operands lie at multiples of 16 bytes."""
        values = {"m": m, "n": n, "k": k} | self.params | params
        return frozenset(name for name, condition in self.given.items() if condition(**values))

    @cached_property
    def _launch_sizes(self) -> Expressions:
        return Expressions((*self.grid, *self.block, self.shared))

    def launch(self, m: int, n: int, k: int, **params: int) -> Launch:
        """How to launch it for C[m×n] = A[m×k]·B[k×n]; ``params`` are those that differ from the defaults.

        Raises UsageError for parameters it cannot take, and where the header asks for what no GPU can launch.
        """
        return self.launch_with(self.checked(params), m, n, k)

    def launch_with(self, checked: Mapping[str, int], m: int, n: int, k: int) -> Launch:
        """The same with all parameters, which were ``checked``."""
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
        """``launch`` on a GPU of ``sms`` multiprocessors: of a persistent kernel there is a block for each of them at most,
        or PER_SM, in whole clusters."""
        launch = self.launch(m, n, k, **params)
        if not self.persistent:
            return launch
        return replace(launch, grid=(launched(launch.blocks, sms, self.checked(params)), 1, 1))


@functools.lru_cache(maxsize=4096)
def _checked(kernel: CudaKernel, params: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Cached, because plans ask for the same sets of parameters of a header many times. Both arguments are immutable."""
    return kernel._checked(dict(params))


def blocks_at_once(sms: int, params: Mapping[str, int]) -> int:
    """The most blocks of a persistent kernel: as many as run at once, PER_SM on a multiprocessor, in whole clusters. Of
    larger clusters than pairs some multiprocessors find no part, since a cluster lies in one group of them.

    >>> blocks_at_once(132, {"CLUSTER": 2}), blocks_at_once(132, {"SPLIT": 4}), blocks_at_once(2, {"SPLIT": 4})
    (132, 120, 4)
    """
    cluster = _cluster(params)
    room = sms - sms // 11 if cluster > 2 else sms
    return max(cluster, room * params.get("PER_SM", 1) // cluster * cluster)


def launched(blocks: int, sms: int, params: Mapping[str, int]) -> int:
    """The blocks of a launch of a persistent kernel that has so much work for: in whole clusters, at most as many as run at
    once.

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
