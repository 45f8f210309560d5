"""Lists the facts of the records' environments (machine, versions, commands) for the pages, the most important
first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bench import VOLATILE, BenchRecord
from .views import RUN_KEYS, machine_key, machine_names
from .words import digits

#: What a reader asks for first; keys not named here follow in their own order.
FIRST = (
    *(
        "processor",
        "cpu",
        "gpu",
        "machine",
        "vendor",
        "usable_cores",
        "cores",
        "physical_cores",
        "logical_cores",
    ),
    *("threads", "caches", "cache", "isa", "instruction_sets", "vector_bits", "vector_registers", "llvm_cpu"),
    *(
        "memory",
        "memory_total",
        "memory_limit",
        "peak",
        "peak_gflops",
        "bandwidth",
        "driver",
        "system",
        "os",
        "python",
    ),
    *("versions", "libraries", "thread_pools", "threadpools"),
)

_BYTES = (
    "size",
    "memory",
    "memory_total",
    "memory_limit",
    "memory_available",
    "memory_bytes",
    "gpu_memory",
    "gpu_l2",
    "bytes",
    "l1d",
    "l2",
    "l3",
)


@dataclass(frozen=True)
class Item:
    """A fact of an environment: a label with either a text or further facts below it."""

    name: str
    text: str = ""
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class MachineFacts:
    """One machine with its libraries, and the runs that were made on this machine."""

    name: str
    facts: tuple[Item, ...]
    runs: tuple[tuple[Item, ...], ...] = field(default=())


def machines(records: Iterable[BenchRecord]) -> list[MachineFacts]:
    """Return the machines of all records, in the order in which they first appear."""
    groups: dict[str, list[BenchRecord]] = {}
    for record in records:
        groups.setdefault(machine_key(record), []).append(record)
    names = machine_names(record for group in groups.values() for record in group)
    result = []
    for key, group in groups.items():
        facts = {k: v for k, v in group[0].environment.items() if k not in RUN_KEYS and k not in VOLATILE}
        result.append(MachineFacts(names[key], items(facts), _runs(group)))
    return result


def items(facts: dict[str, Any]) -> tuple[Item, ...]:
    """Return a dictionary as facts, the important facts first. Values that are None were not known, and are left out.

    >>> [i.name for i in items({"zeta": 1, "processor": "Xeon", "gone": None})]
    ['processor', 'zeta']
    """
    order = {key: i for i, key in enumerate(FIRST)}
    known = [(str(k), v) for k, v in facts.items() if v is not None and v != "" and v != {} and v != []]
    return tuple(_item(k, v) for k, v in sorted(known, key=lambda kv: order.get(kv[0], len(order))))


def _item(key: str, value: Any) -> Item:
    name = key.replace("_", " ")
    if isinstance(value, dict):
        return Item(name, items=items(value))
    if isinstance(value, list | tuple) and any(isinstance(v, dict) for v in value):
        return Item(name, items=tuple(Item("", _line(v)) for v in value))
    return Item(name, value_text(key, value))


def _line(value: Any) -> str:
    """A dictionary inside a list, such as one cache, as one line of text."""
    if not isinstance(value, dict):
        return value_text("", value)
    known = [(k, v) for k, v in value.items() if v is not None]
    return ", ".join(f"{str(k).replace('_', ' ')} {value_text(str(k), v)}" for k, v in known)


def value_text(key: str, value: Any) -> str:
    """Return a value as text, with numbers of bytes in a suitable unit.

    >>> value_text("memory_total", 16 << 30), value_text("isa", ["avx2", "fma"]), value_text("fma", True)
    ('16 GiB', 'avx2, fma', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key in _BYTES and value >= 1024:
        return _bytes(value)
    if isinstance(value, float):
        return f"{value:g}" if value == int(value) else digits(value)
    if isinstance(value, list | tuple):
        return ", ".join(value_text(key, v) for v in value)
    return str(value)


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def _runs(group: Sequence[BenchRecord]) -> tuple[tuple[Item, ...], ...]:
    """The facts in which the runs on one machine differ: the command first, then revision, times and clocks."""
    runs: dict[str, list[BenchRecord]] = {}
    for record in group:
        run = {key: value for key, value in record.environment.items() if key in RUN_KEYS}
        runs.setdefault(str(sorted(run.items(), key=str)), []).append(record)
    return tuple(_run(cells) for cells in runs.values())


def _run(cells: Sequence[BenchRecord]) -> tuple[Item, ...]:
    first = cells[0].environment
    facts = [_item(key, first[key]) for key in RUN_KEYS if first.get(key) not in (None, "", {}, [])]
    for key in VOLATILE:
        if key in ("kernel_source", "variants"):
            continue
        values = [c.environment[key] for c in cells if c.environment.get(key) is not None]
        if values:
            low, high = min(values, key=_sortable), max(values, key=_sortable)
            span = value_text(key, low) if low == high else f"{value_text(key, low)} … {value_text(key, high)}"
            facts.append(Item(key.replace("_", " "), span))
    used: dict[str, set[str]] = {}
    for variants in (c.environment.get("variants") for c in cells):
        for library, variant in variants.items() if isinstance(variants, dict) else ():
            used.setdefault(str(library), set()).add(str(variant))
    if used:
        facts.append(Item("variants", items=tuple(Item(k, ", ".join(sorted(v))) for k, v in used.items())))
    seeds = sorted({c.seed for c in cells if c.seed is not None})
    if seeds:
        facts.append(Item("seed", ", ".join(map(str, seeds))))
    sources = {c.kernel: str(c.environment["kernel_source"]) for c in cells if c.environment.get("kernel_source")}
    if sources:
        facts.append(Item("kernel sources", items=tuple(Item(k, v) for k, v in sources.items())))
    return tuple(facts)


def _sortable(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, int | float)
    return (number, value if number else str(value))
