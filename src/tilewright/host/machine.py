"""The description of a machine: cores, caches, memory, instruction sets. A fact that cannot be known is None, never a
guess.

The facts of a machine come from the operating system: ``/proc`` and ``/sys`` on Linux, ``sysctl`` on macOS. Nothing is
measured here. Each function that reads facts takes the ``root`` of the file system, so a test can describe a machine
by a few text files.

The description of a machine can also be stored in a file. ``tilewright info --json FILE`` writes the description of
this machine. With ``$TILEWRIGHT_MACHINE=FILE`` a process plans, cuts products and compiles as on the machine that the
file describes. The file can remove instruction sets but cannot add any, because the code runs on the real machine. For
the same reason no more threads run than the real machine has cores.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import mmap
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError, did_you_mean
from .levels import InstructionLevel, level_named
from .system import (
    ROOT,
    affinity,
    cpu_list,
    cpu_quota,
    cpuinfo,
    instruction_sets,
    integer_in,
    meminfo,
    memory_cgroups,
    process_room,
    run_sysctl,
    text_or_empty,
)

#: Names a file with the description of a machine that takes the place of this one.
VARIABLE = "TILEWRIGHT_MACHINE"
#: Names the level for which this process builds machine code; see ``prebuilt``.
BUILD_LEVEL = "TILEWRIGHT_BUILD_LEVEL"
#: LLVM's names of the features that decide how fast a matrix product can be, older to newer.
ISA = (
    *("sse2", "sse4.2", "avx", "fma", "f16c", "avx2", "avxvnni", "avx512f", "avx512vl", "avx512dq"),
    *("avx512bw", "avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16", "amx-fp16"),
    *("neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2", "sme"),
)


@dataclass(frozen=True)
class Cache:
    """One kind of cache of the usable CPUs. ``shared_by`` is the number of logical CPUs that share one cache of this
    kind."""

    level: int
    type: str  # "Data", "Instruction" or "Unified"
    size: int | None  # bytes
    ways: int | None = None  # None also where the cache is fully associative
    line: int | None = None  # bytes
    shared_by: int | None = None

    def __str__(self) -> str:
        shared = "one a CPU" if self.shared_by == 1 else self.shared_by and f"shared by {self.shared_by} CPUs"
        size = bytes_text(self.size) or _unknown("size")
        return _join(size, self.ways and f"{self.ways}-way", self.line and f"{self.line}-byte lines", shared)


class Rate(NamedTuple):
    """A measured rate in the description of a machine. ``what`` is "fma", the rate of fused multiply-adds in GFLOPS; or
    "triad" or "cached triad", the bandwidth in GB/s of out = x + 3·y over arrays in memory or in the last-level
    cache."""

    what: str
    dtype: str
    threads: int
    value: float


@dataclass(frozen=True)
class Machine:
    """The facts of a machine. A fact is None if the operating system does not report it.

    Attributes
    ----------
    processor, vendor : str or None
        The names of the processor and its maker.
    family, model : int or None
        The family and model numbers of the processor.
    usable_cores : int
        The number of threads worth starting: the smallest of the CPUs in the affinity mask, the cgroup CPU quota
        rounded up, and the logical CPUs.
    usable_why : str
        Which of these three determines ``usable_cores``.
    quota_cores : float or None
        The cgroup CPU quota, in CPUs.
    logical_cores, physical_cores : int or None
        The numbers of logical and of physical cores of the machine.
    caches : tuple of Cache
        The caches of the usable CPUs.
    memory_total, memory_limit : int or None
        The bytes of memory of the machine, and the bytes of the smallest cgroup memory limit.
    isa : tuple of str
        Instruction sets, by LLVM's names. AMX is listed only if Linux lets this process use it.
    vector_bits : int or None
        Bits of the widest floating-point vector of fixed width.
    vector_registers : int or None
        The number of vector registers.
    fma : bool or None
        Whether the processor has fused multiply-add instructions.
    sve_bits : int or None
        Bits of a vector of Arm's SVE.
    system : str
        The operating system and the architecture.
    nodes : int or None
        The number of NUMA nodes.
    page_bytes, huge_page_bytes : int or None
        Bytes of a page and of a huge page.
    memory_available : int or None
        The most bytes of memory that count as available. Only a description in a file sets this limit.
    rates : tuple of Rate
        Rates that need not be measured. Only a description in a file sets rates.
    without : tuple of str
        The instruction sets of this processor that a description in a file removes.

    See Also
    --------
    info : Returns the facts of this machine.
    """

    processor: str | None
    vendor: str | None
    family: int | None
    model: int | None
    usable_cores: int
    usable_why: str
    quota_cores: float | None
    logical_cores: int | None
    physical_cores: int | None
    caches: tuple[Cache, ...]
    memory_total: int | None
    memory_limit: int | None  # the tightest cgroup limit
    isa: tuple[str, ...]
    vector_bits: int | None
    vector_registers: int | None
    fma: bool | None
    sve_bits: int | None
    system: str
    nodes: int | None = None
    page_bytes: int | None = None
    huge_page_bytes: int | None = None
    memory_available: int | None = None
    rates: tuple[Rate, ...] = ()
    without: tuple[str, ...] = ()
    root: Path = field(default=ROOT, repr=False, compare=False)

    def data_cache(self, level: int) -> int | None:
        """Return the bytes of the data cache of a level. If cores have caches of different sizes, the result is the
        smallest size, because a block must fit into the cache of any core."""
        sizes = [c.size for c in self.caches if c.level == level and c.type != "Instruction" and c.size]
        return min(sizes, default=None)

    l1d = property(lambda self: self.data_cache(1), doc="Bytes of the first-level data cache, or None.")
    l2 = property(lambda self: self.data_cache(2), doc="Bytes of the second-level cache, or None.")
    l3 = property(lambda self: self.data_cache(3), doc="Bytes of the third-level cache, or None.")

    def rate(self, what: str, dtype: str, threads: int) -> float | None:
        """Return a rate from the description for a number of threads, interpolated between the numbers of threads for
        which the description has this rate; None if it has the rate for no number of threads."""
        import numpy as np  # not needed to read a machine

        known = {rate.threads: rate.value for rate in self.rates if (rate.what, rate.dtype) == (what, dtype)}
        counts = sorted(known)
        return float(np.interp(threads, counts, [known[count] for count in counts])) if known else None

    def as_dict(self) -> dict[str, Any]:
        """Return all facts as values that JSON can hold, and also the memory that is available now and the current
        clock rate."""
        now = {"memory_available": available_memory(self.root), "clock_mhz": current_clock_mhz(self.root)}
        return {**{name: value for name, value in asdict(self).items() if name in FACTS}, **now}

    def describe(self) -> list[tuple[str, str]]:
        """Return the facts as printable pairs of a label and a text.

        >>> machine().describe()[1][1].startswith(f"{machine().usable_cores} usable of ")
        True
        """
        ids = (self.vendor, self.family and f"family {self.family}", self.model and f"model {self.model}")
        logical, physical = self.logical_cores or "unknown", self.physical_cores or "unknown"
        cores = f"{self.usable_cores} usable of {logical} logical, {physical} physical"
        letter = {"Data": "d", "Instruction": "i"}
        caches = [(f"L{c.level}{letter.get(c.type, '')} cache", str(c)) for c in self.caches]
        free, clock = bytes_text(available_memory(self.root)), current_clock_mhz(self.root)
        return [
            ("processor", _join(self.processor or _unknown("model name"), *ids)),
            ("cores", f"{cores} ({self.usable_why})"),
            *([("memory nodes", str(self.nodes))] if self.nodes and self.nodes > 1 else []),
            ("CPU quota", f"{self.quota_cores:g} CPUs" if self.quota_cores else "none"),
            *(caches or [("caches", _unknown("cache description"))]),
            ("memory", bytes_text(self.memory_total) or _unknown("memory size")),
            ("memory limit", bytes_text(self.memory_limit) or "none"),
            ("memory available", free or _unknown("figure of available memory")),
            ("vectors", self._vectors_text()),
            ("instruction sets", _join(*self.isa) or _unknown("list of instruction sets")),
            ("clock now", f"{clock:.0f} MHz" if clock else _unknown("clock in /proc/cpuinfo")),
            ("system", self.system),
        ]

    def _vectors_text(self) -> str:
        if self.vector_bits is None:
            return _unknown("list of instruction sets")
        sve = f"SVE of {self.sve_bits or 'unknown'} bits" if "sve" in self.isa else None
        fma = "FMA" if self.fma else "no FMA"
        return _join(f"{self.vector_bits} bits", f"{self.vector_registers} registers", fma, sve)


#: The facts that a description in a file may state, and what ``tilewright info --json`` prints beside them.
FACTS = frozenset(fact.name for fact in fields(Machine)) - {"root", "rates", "without"}
_NO_FACTS = {
    "clock_mhz",
    "roofs",
    "roofs_missing",
    "threads",
    "first_call",
    "blocking",
    "gpu_kernels",
    "narrow_products",
    "machine_code",
}
_NO_FACTS |= {"llvm_cpu"}  # which older descriptions have


@functools.cache
def machine() -> Machine:
    """Return the facts of this machine, or of the machine that the file ``$TILEWRIGHT_MACHINE`` describes. The facts
    are read once per process.

    Returns
    -------
    Machine
        Processor, caches, memory and instruction sets. ``describe()`` returns them as text. Nothing is measured.

    Raises
    ------
    UsageError
        The file ``$TILEWRIGHT_MACHINE`` is not a description of a machine.

    See Also
    --------
    tilewright.host.machine.Machine : The class of the result.
    get_threads : The number of threads that a product may use.

    Examples
    --------
    >>> import tilewright as tw
    >>> tw.info().usable_cores >= 1
    True
    """
    here = read_machine(sysctl=run_sysctl() if sys.platform == "darwin" else None)
    if path := os.environ.get(VARIABLE):
        here = described_machine(Path(path), here)
    level = os.environ.get(BUILD_LEVEL)
    return _machine_of_level(level_named(level), here) if level else here


def target_arch() -> str:
    """Return the architecture for which code is generated: that of this machine, or that of the instruction level that
    is being built."""
    level = os.environ.get(BUILD_LEVEL)
    return level_named(level).arch if level else platform.machine()


def _machine_of_level(level: InstructionLevel, here: Machine) -> Machine:
    """A machine with the instruction sets of a level and no more, for which machine code is built."""
    facts = vector_facts(set(level.isa), level.arch)
    return replace(here, isa=level.isa, system=f"{platform.system()} {level.arch}", **facts)


def described_machine(path: Path, here: Machine) -> Machine:
    """Return the machine that a JSON file describes, but only with instruction sets that this machine, ``here``, also
    has.

    A fact that the file lacks is taken from ``here``; null in the file means "not known". The function raises
    UsageError if the file is not a description of a machine.
    """
    try:
        facts = json.loads(path.read_bytes())
        unknown = facts.keys() - FACTS - _NO_FACTS
        if unknown:
            name = min(unknown)
            raise ValueError(f"{name!r} is not a fact of a machine; {did_you_mean(name, FACTS)}")
        caches = tuple(Cache(**kind) for kind in facts.get("caches", [asdict(kind) for kind in here.caches]))
        rates = tuple(Rate(x["name"], x["dtype"], x["threads"], float(x["value"])) for x in facts.get("roofs", ()))
        stated = {name: value for name, value in facts.items() if name in FACTS} | {"caches": caches, "rates": rates}
        found = replace(here, **stated)
        _check(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"${VARIABLE}={path}: {error}; see tilewright info --json") from None
    return replace(found, **_instructions_here(found, here))


def _check(found: Machine) -> None:
    """Raise ValueError for facts of wrong types."""
    sizes = {f"size of L{kind.level}": kind.size for kind in found.caches}
    sizes |= {name: getattr(found, name) for name in _NUMBERS}
    for name, value in sizes.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} must be a positive whole number or null, got {value!r}")
    if found.usable_cores is None:
        raise ValueError("usable_cores must be a number")
    if not all(isinstance(name, str) for name in found.isa):
        raise ValueError(f"isa must be a list of names, got {found.isa!r}")


#: Facts that are whole numbers.
_NUMBERS = (
    *("usable_cores", "logical_cores", "physical_cores", "memory_total", "memory_limit", "memory_available"),
    *("vector_bits", "vector_registers", "nodes", "page_bytes", "huge_page_bytes"),
)


def _instructions_here(found: Machine, here: Machine) -> dict[str, Any]:
    """What of a description's instruction sets this processor has, and the vectors that follow.

    A description of another architecture contributes no instruction sets: plans use its number of registers, and products
    are computed with vectors of its width.
    """
    arch, own = (x.system.rpartition(" ")[2] for x in (found, here))
    if arch != own:
        return {"isa": (), "vector_bits": min(found.vector_bits or 128, here.vector_bits or 128)}
    isa = tuple(name for name in here.isa if name in found.isa or name == "sse2")  # x86-64 is never without SSE2
    vectors = vector_facts(set(isa), arch)
    bits = min((bits for bits in (vectors["vector_bits"], found.vector_bits) if bits), default=None)
    return vectors | {"isa": isa, "vector_bits": bits, "without": tuple(name for name in here.isa if name not in isa)}


def read_machine(root: Path = ROOT, sysctl: Mapping[str, str] | None = None) -> Machine:
    """Return the facts of the machine whose system files are under ``root``. On macOS the parameter ``sysctl`` is the
    output of the command ``sysctl``; elsewhere it is None."""
    facts = _linux(root) if sysctl is None else _macos(sysctl)
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Machine(**facts, **_instruction_set(root, sysctl), system=system, root=root)


def available_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that can be allocated now without swapping: the smallest number that the system, each cgroup
    and the limits of this process (``ulimit -v`` and ``-d``) still allow.

    The number that a limit still allows is the limit minus the bytes in use. The file cache that the operating system
    can reclaim does not count as in use. Each call of ``available_memory`` reads the numbers anew. The result is None
    if the system reports none of these numbers.
    """
    room: list[int | None] = [*process_room(root), *(max(0, limit - used) for limit, used in memory_cgroups(root))]
    room += [meminfo(root, "MemAvailable"), machine().memory_available if root == ROOT else None]
    return min((free for free in room if free is not None), default=None)


def current_clock_mhz(root: Path = ROOT) -> float | None:
    """Return the mean of the current clock rates of the usable CPUs in MHz, from ``/proc/cpuinfo``; None if this file
    has no clock rates."""
    usable = affinity(root)
    cpus = [cpu for cpu in cpuinfo(root) if usable is None or integer_in(cpu["processor"]) in usable]
    clocks = [float(cpu["cpu MHz"]) for cpu in cpus if "cpu MHz" in cpu]
    return sum(clocks) / len(clocks) if clocks else None


def bytes_text(size: int | None) -> str | None:
    """Return a number of bytes as text; None for None.

    >>> bytes_text(49152), bytes_text(1 << 20), bytes_text(25_276_510_208)
    ('48 KiB', '1 MiB', '23.5 GiB')
    """
    if size is None or size < 1024:
        return None if size is None else f"{size} B"
    power = min((size.bit_length() - 1) // 10, 5)
    return f"{size / (1 << 10 * power):.1f}".removesuffix(".0") + f" {'KMGTP'[power - 1]}iB"


def seconds_text(seconds: float) -> str:
    """A time as text.

    >>> seconds_text(0.0123), seconds_text(4.2e-6), seconds_text(75)
    ('12.3 ms', '4.2 µs', '75 s')
    >>> seconds_text(0.1 + 0.2 - 0.3)  # what rounding leaves of nothing
    '0 ns'
    """
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{round(seconds / 1e-9, 3):.3g} ns"


def _join(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _unknown(what: str) -> str:
    return f"not known on this system (no {what})"


def _linux(root: Path) -> dict[str, Any]:
    cpu = next(iter(cpuinfo(root)), {})
    return {
        # On Arm there is no model name, but there are numbers for the maker of the core and for its design.
        "processor": cpu.get("model name"),
        "vendor": cpu.get("vendor_id", cpu.get("CPU implementer")),
        "family": integer_in(cpu.get("cpu family", cpu.get("CPU architecture"))),
        "model": integer_in(cpu.get("model", cpu.get("CPU part"))),
        **_cores(root),
        "caches": _caches(root),
        "memory_total": meminfo(root, "MemTotal"),
        "memory_limit": min((limit for limit, _ in memory_cgroups(root)), default=None),
        "nodes": len(cpu_list(text_or_empty(root / "sys/devices/system/node/online"))) or None,
        "page_bytes": mmap.PAGESIZE if root == ROOT else None,
        "huge_page_bytes": integer_in(text_or_empty(root / "sys/kernel/mm/transparent_hugepage/hpage_pmd_size")),
    }


def _cores(root: Path) -> dict[str, Any]:
    cpus, mask, quota = root / "sys/devices/system/cpu", affinity(root), cpu_quota(root)
    online = cpu_list(text_or_empty(cpus / "online"))
    logical = len(online) or len(cpuinfo(root)) or (os.cpu_count() if root == ROOT else None)
    siblings = [text_or_empty(cpus / f"cpu{cpu}/topology/thread_siblings_list") for cpu in online]
    bounds = [
        (logical, "every logical CPU"),  # of two equal bounds, the first gives the reason
        (len(mask or ()), "what the affinity mask allows"),
        (math.ceil(quota or 0), f"cgroup CPU quota of {quota or 0:g}, rounded up"),
        (None if logical or mask or quota else 1, "the system does not say; this runs on one"),
    ]
    usable, why = min(((count, why) for count, why in bounds if count), key=lambda bound: bound[0])
    physical = len(set(siblings)) if all(siblings) else 0
    cores = {"usable_cores": usable, "usable_why": why, "quota_cores": quota}
    return {**cores, "logical_cores": logical, "physical_cores": physical or None}


def _caches(root: Path) -> tuple[Cache, ...]:
    """The distinct kinds of cache of the usable CPUs by level: two of a level where cores differ."""
    cpus = root / "sys/devices/system/cpu"
    usable = affinity(root) or cpu_list(text_or_empty(cpus / "online"))
    caches = {_cache(index) for cpu in usable for index in (cpus / f"cpu{cpu}/cache").glob("index*")}
    return tuple(sorted((c for c in caches if c.level), key=lambda c: (c.level, c.type, -(c.size or 0))))


def _cache(index: Path) -> Cache:
    def number(name: str) -> int | None:
        return integer_in(text_or_empty(index / name).removesuffix("K")) or None  # sysfs writes 0 for "not known"

    size, shared = number("size"), len(cpu_list(text_or_empty(index / "shared_cpu_list"))) or None
    ways, line = number("ways_of_associativity"), number("coherency_line_size")
    # The kernel always counts the size in KiB.
    return Cache(number("level") or 0, text_or_empty(index / "type"), size and size * 1024, ways, line, shared)


def _macos(sysctl: Mapping[str, str]) -> dict[str, Any]:
    def number(name: str) -> int | None:
        return integer_in(sysctl.get(name)) or None

    # Apple's own processors have a kind of core per "perflevel", with caches of its own.
    prefixes = [f"hw.perflevel{i}." for i in range(number("hw.nperflevels") or 0)] or ["hw."]
    kinds = {"l1d": "Data", "l1i": "Instruction", "l2": "Unified", "l3": "Unified"}
    line, logical = number("hw.cachelinesize"), number("hw.logicalcpu")
    caches = [
        Cache(int(name[1]), kind, size, line=line, shared_by=number(f"{prefix}cpusper{name}"))
        for name, kind in kinds.items()
        for prefix in prefixes
        if (size := number(f"{prefix}{name}cachesize"))
    ]
    return {
        "processor": sysctl.get("machdep.cpu.brand_string"),
        "vendor": sysctl.get("machdep.cpu.vendor"),
        "family": number("machdep.cpu.family"),
        "model": number("machdep.cpu.model"),
        "usable_cores": logical or 1,
        "usable_why": "every logical CPU" if logical else "the system does not say; this runs on one",
        "quota_cores": None,
        "logical_cores": logical,
        "physical_cores": number("hw.physicalcpu"),
        "caches": tuple(caches),
        "memory_total": number("hw.memsize"),
        "memory_limit": None,
    }


def _instruction_set(root: Path, sysctl: Mapping[str, str] | None) -> dict[str, Any]:
    features = instruction_sets(root, sysctl)
    if "amx-tile" in features and not may_use_tiles():
        features = {name for name in features if not name.startswith("amx")}
    sve = integer_in(text_or_empty(root / "proc/sys/abi/sve_default_vector_length")) if "sve" in features else None
    return {
        **vector_facts(features, platform.machine()),
        "isa": tuple(name for name in ISA if name in features),
        "sve_bits": sve and sve * 8,  # the file counts bytes
    }


def vector_facts(features: set[str], arch: str) -> dict[str, Any]:
    """Return the width of a vector in bits, the number of vector registers, and whether the processor has FMA
    instructions, from LLVM's feature names and the architecture.

    >>> vector_facts({"sse2", "avx", "avx2", "fma"}, "x86_64")
    {'vector_bits': 256, 'vector_registers': 16, 'fma': True}
    """
    bits, registers, fma = None, None, None
    if arch in ("aarch64", "arm64"):  # NEON with FMA is part of the architecture
        bits, registers, fma = 128, 32, True
    elif arch in ("x86_64", "AMD64") and "sse2" in features:
        # AVX without AVX2 already has 256-bit floating-point arithmetic; it only lacks that of integers.
        bits = 512 if "avx512f" in features else 256 if "avx" in features else 128
        registers, fma = 32 if bits == 512 else 16, "fma" in features
    return {"vector_bits": bits, "vector_registers": registers, "fma": fma}


# ---- tile registers --------------------------------------------------------------------------------------------------
# Linux's permission to use the tile registers of Intel AMX.


#: arch_prctl on x86-64, its request for a part of the processor's state, and the number of the tiles' data.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@functools.cache
def may_use_tiles() -> bool:
    """Return whether this process may use the tile registers of AMX. Linux allows tile registers only on request,
    because they add 8 KiB of state to each thread.

    The request is made once. The permission to use tile registers holds for all threads of the process and for its
    forked child processes. The request for tile registers fails before Linux 5.16, if a filter of system calls forbids
    it, or if the signal stack of a thread is too small.
    """
    return sys.platform == "linux" and sys.maxsize > 2**32 and granted(ctypes.CDLL(None, use_errno=True).syscall)


def granted(syscall: Callable[..., int]) -> bool:
    """Return whether Linux grants the request for tile registers. ``syscall`` is C's function of this name.

    >>> granted(lambda *numbers: -1)
    False
    """
    return syscall(*map(ctypes.c_long, (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))) == 0
