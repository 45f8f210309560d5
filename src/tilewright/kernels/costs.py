"""The fitted numbers in the predicted times of the engine's kernels: tables of data, one for each card that was measured.

A header names its ``costs``, and ``gpu/kernels/costs/CARD.json`` has their values, which ``benchmarks/fit_costs.py`` fits to
measured launches. A table in the user's cache, fitted to the card at hand, precedes that of the package. A card without a
table takes that of an H200. Rates of memory are those with the datasheet rate of an H200: where they count, expressions
scale them by ``memory_ratio``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ..host.disk import CacheFile
from ..host.sources import PACKAGE

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
    the package."""
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
