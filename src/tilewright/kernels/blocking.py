"""The sizes of the engine's tile and blocks. The sizes of tile and blocks are computed from this machine's registers
and caches, or found by a search on this machine.

The tile of the engine's kernels is four vectors wide and has as many rows as the registers allow. On a machine with 32
vector registers the tile has 6 rows. On a machine with 16 registers the tile is only three vectors wide and has 4 rows:
on Zen 3 this tile took 2 to 8 % less time than 3 rows of four vectors, because a step reads less of B, which streams
from L2. The sizes of the blocks follow from the machine's L1, L2 and L3. The sizes for elements of 8 bytes are as
follows (with 4 bytes, MC is twice as large):

    KC   A sliver of B (KC × 4 vectors, even if the tile is narrower) takes at most 1/8 of L2, and a sliver of A (MR × KC) at
         most half of L1. KC is as large as these allow, because C is read and written k/KC times.
    MC   A block of A (MC × KC) takes a third of L2. Slivers of B and tiles of C pass through the rest. With two thirds,
         products of 1,000 to 3,000 took 0.5 to 2 % longer on Zen 4; with a sixth they took as long as with a third.
    NC   A panel of B (KC × NC) takes a quarter of L3, because there are two panels at a time.

A kernel calls ``blocking()`` when its module is loaded, and is compiled for the result. ``tilewright tune`` loads the
kernels' modules again with other blockings, and measures these in alternation with the computed one. If another
blocking is faster, ``tilewright tune`` stores it for later processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from ..host import sources
from ..host.disk import CacheFile, fingerprint
from ..host.machine import BUILD_LEVEL, Machine, machine

#: The most columns of a panel of B, however large the last cache is.
MOST_COLUMNS = 4096
#: KC is a multiple of this number of steps, which are one cache line of 4-byte elements.
STEPS = 16


@dataclass(frozen=True)
class Blocking:
    """A tile of ``mr`` rows by ``nv`` vectors, the number of steps by which its loop is unrolled (``unroll``), and the
    sizes of its blocks.

    ``kc`` is the number of steps of k in a block, for elements of 4 bytes or less. ``kc_of_8_bytes``, which is at most
    ``kc``, is the number of steps of k for larger elements. A block of A may take ``block_bytes`` bytes and a panel of
    B ``panel_bytes`` bytes: MC and NC follow from ``block_bytes`` and ``panel_bytes``.
    """

    vector_bits: int
    mr: int
    nv: int
    unroll: int
    kc: int
    kc_of_8_bytes: int
    block_bytes: int
    panel_bytes: int

    def mc(self, kc: int) -> int:
        """Return the number of rows of a block of A that is ``kc`` steps long and has 8-byte elements, in whole
        tiles."""
        return max(4 * self.mr, self.block_bytes // (8 * kc) // self.mr * self.mr)

    def nc(self, kc: int, nr: int) -> int:
        """Return the number of columns of a panel of B that is ``kc`` steps long and has 8-byte elements, in whole
        tiles of ``nr`` columns."""
        return max(nr, min(MOST_COLUMNS, self.panel_bytes // (8 * kc)) // nr * nr)

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes of this blocking as a dictionary, under the names that are usual in the field; records and messages
        show them."""
        mc, nc = self.mc(self.kc), self.nc(self.kc, self.nv * self.vector_bits // 32)
        steps = {"kc": self.kc, "kc_of_8_bytes": self.kc_of_8_bytes}
        return {"mr": self.mr, "nv": self.nv, "unroll": self.unroll, **steps, "mc": mc, "nc": nc}

    def sound(self, here: Machine) -> bool:
        """Return True if code compiled for this blocking is correct, and its tile and blocks fit the registers and
        caches of a machine."""
        if not all(type(value) is int and value > 0 for value in astuple(self)):
            return False
        _, l2, l3 = caches(here)
        return (
            self.vector_bits == (here.vector_bits or 128)
            and self.mr >= 2
            and self.mr <= tallest(here, self.nv)
            and self.nv >= 2
            and self.unroll <= 16
            and self.kc_of_8_bytes <= self.kc <= l2 // 8
            and self.kc % STEPS == self.kc_of_8_bytes % STEPS == 0
            and self.block_bytes <= 2 * l2
            and self.panel_bytes <= 2 * max(l2, l3)
        )


def caches(here: Machine) -> tuple[int, int, int]:
    """Return the bytes of L1, L2 and L3; small sizes are assumed for caches of unknown size."""
    return here.l1d or 32 << 10, here.l2 or 256 << 10, here.l3 or 8 << 20


def _registers(here: Machine) -> int:
    return here.vector_registers or 16


def tallest(here: Machine, nv: int) -> int:
    """Return the number of rows of the tallest tile of ``nv`` vectors that fits the registers. The registers hold the
    tile, one vector for each row or each column of vectors, whichever are fewer, and one vector more.

    >>> tallest(machine(), 4) in (3, 6)
    True
    """
    fits = (mr for mr in range(3, _registers(here)) if mr * nv + min(mr, nv) < _registers(here))
    return max(fits, default=2)


def analytic(here: Machine, *, nv: int = 0) -> Blocking:
    """Return the blocking that the module's docstring describes, computed for a machine; ``nv`` sets another width of
    the tile."""
    nv = nv or (4 if _registers(here) > 16 else 3)
    bits, mr = here.vector_bits or 128, tallest(here, nv)
    l1, l2, l3 = caches(here)

    def steps(itemsize: int) -> int:
        return max(STEPS, min(l2 // 8 // (max(nv, 4) * bits // 8), l1 // 2 // (mr * itemsize)) // STEPS * STEPS)

    return Blocking(bits, mr, nv, 4, steps(4), steps(8), l2 // 3, l3 // 4)


# ---- which one is in force -------------------------------------------------------------------------------------------

_tried: ContextVar[Blocking | None] = ContextVar("tried", default=None)


def blocking() -> Blocking:
    """Return the blocking for which a kernel is compiled: the candidate of a search while one is tried, otherwise that
    of this process.

    >>> blocking().mr * blocking().nv < 32
    True
    """
    return _tried.get() or in_force()


@functools.cache
def in_force() -> Blocking:
    """Return the blocking of this process: the one that a search stored on this machine, otherwise the computed one.

    The blocking of a process does not change if a search stores another one while the process runs.
    """
    found = None if os.environ.get(BUILD_LEVEL) else stored_blocking()  # a library is for every machine of its level
    return found.blocking if found else analytic(machine())


def has_analytic_tile() -> bool:
    """Return whether this process uses the computed tile. Machine code that was built in advance has the tile that is
    computed for machines with these registers, so a process with another tile cannot use it."""
    tiles = [(x.vector_bits, x.mr, x.nv, x.unroll) for x in (in_force(), analytic(machine()))]
    return tiles[0] == tiles[1]


@contextlib.contextmanager
def use_candidate(candidate: Blocking) -> Iterator[None]:
    """Make ``blocking()`` return the candidate within the ``with`` block."""
    token = _tried.set(candidate)
    try:
        yield
    finally:
        _tried.reset(token)


# ---- kept on disk ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredBlocking:
    """A blocking that a search stored on this machine. ``found`` says what the search measured: kernel, dtype, shape,
    threads, and the speed with this blocking divided by the speed with the computed one (``ratio``)."""

    blocking: Blocking
    found: dict[str, Any]

    def __str__(self) -> str:
        return f"{_words(self.blocking)}; tuned here: {self.found['ratio']:.3f} times as fast as the analytic choice"


def store_blocking(chosen: Blocking, found: dict[str, Any]) -> Path | None:
    """Store a blocking for later processes on this machine; returns None if the file cannot be written."""
    return _kept_in().write_json({"made_for": _made_for(), "blocking": asdict(chosen), "found": found})


def stored_blocking() -> StoredBlocking | None:
    """Return the blocking that is stored on this machine for the sources of this package; None if there is none, or if
    the stored blocking is not sound here."""
    return _kept_in().read_as(_sound)


def _sound(known: dict[str, Any]) -> StoredBlocking | None:
    found = StoredBlocking(Blocking(**known["blocking"]), {**known["found"], "ratio": float(known["found"]["ratio"])})
    return found if known["made_for"] == _made_for() and found.blocking.sound(machine()) else None


def forget_blocking() -> bool:
    """Remove the stored blocking; returns whether one was stored."""
    return _kept_in().remove()


def describe() -> str:
    """Return a line of text that describes the blocking of this process.

    >>> describe().startswith(f"{blocking().mr} rows × {blocking().nv} vectors")
    True
    """
    found = stored_blocking()
    if found and found.blocking == in_force():
        return str(found)
    return f"{_words(in_force())}; computed from the caches, not tuned"


def _words(chosen: Blocking) -> str:
    numbers = chosen.numbers
    cuts = ", ".join(f"{name.upper()} {numbers[name]}" for name in ("kc", "mc", "nc"))
    return f"{chosen.mr} rows × {chosen.nv} vectors, {cuts}"


def _machine_facts() -> tuple[Any, ...]:
    here = machine()
    return here.processor, here.isa, here.vector_bits, here.vector_registers, *caches(here)


def _made_for() -> str:
    """A fingerprint of the machine, the compiler and the sources."""
    from importlib import metadata  # slow, and needed only where a blocking was stored

    files = sources.files(sources.MACHINE_CODE)  # a search depends on no other source
    return fingerprint(*_machine_facts(), *map(metadata.version, ("numba", "llvmlite")), *files)


def _kept_in() -> CacheFile:
    """One file for each machine: several may share the directory."""
    return CacheFile("tuned", f"blocking-{fingerprint(*_machine_facts())}.json")
