"""Which launches hold the microscope to a GPU's counters, and how a prediction is compared with a record of theirs.

``benchmarks/record_rungs.py`` makes the record.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from tilewright.errors import UsageError
from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.simulator.counters.hardware_names import ALL_CONFLICTS, names

SIZES = (256, 1000)


#: Depth of the one block, and how often its counters and the others' are read.
DEPTH, LAUNCHES = 256, 3


#: How the kernels call the depth of their tiles, and how many of them are under way: of equal tiles the smaller are taken.
DEPTHS = ("BK", "R", "STAGES")


GLOBAL = tuple(dict.fromkeys(
    name for kind in ("ld", "st", "cp.async") for field in names("global", kind).values() for name in field
))  # fmt: skip


SHARED = (*(name for kind in ("ld", "st") for field in names("shared", kind).values() for name in field[:1]),
          names("shared", "cp.async")["conflicts"][0], ALL_CONFLICTS)  # fmt: skip


#: Shared loads' and stores'; asynchronous copies have no counter of their wavefronts.
WAVEFRONTS = tuple(name for name in SHARED if "wavefronts" in name)


def rungs() -> list[CudaKernel]:
    """The kernels that use no tensor core: none of the functions that multiply with one."""
    tensor = re.compile(r"\bmultiply_(bf16|tf32|f64|stage)\b")
    pointers = [kernel for kernel in cuda_catalog().values() if not kernel.boxes]
    return [kernel for kernel in pointers if not tensor.search(kernel.path.read_text(encoding="utf-8"))]


def smallest(kernel: CudaKernel) -> dict[str, int]:
    """Parameters with the fewest elements of C a block; of those the shallowest tile, then the nearest to the defaults."""
    tile = {name for name in kernel.params if any(name in size.names for size in kernel.grid)}
    depths = [name for name in DEPTHS if name in kernel.params]

    def away(name: str, value: int) -> float:
        return abs(math.log2((value or 0.5) / (kernel.params[name] or 0.5)))  # 0 is off: as far from 1 as a half is

    def rank(chosen: dict[str, int]) -> tuple[Any, ...]:
        blocks = math.prod(size(m=1024, n=1024, k=1, **{name: chosen[name] for name in tile}) for size in kernel.grid)
        return -blocks, [chosen[name] for name in depths]

    def allowed(values: tuple[int, ...]) -> bool:
        try:
            kernel.checked(dict(zip(kernel.params, values, strict=True)))
        except UsageError:
            return False
        return True

    # What ranks first is sorted alone; of each such choice the rest follows, nearest to the defaults first.
    first = [p for p in kernel.parameters if p.name in {*tile, *depths}]
    rest = [p for p in kernel.parameters if p not in first]
    chosen = [
        dict(zip([p.name for p in first], values, strict=True))
        for values in itertools.product(*(p.values for p in first))
    ]
    for _, group in itertools.groupby(sorted(chosen, key=rank), key=rank):
        ranked = sorted(
            (sum(itertools.starmap(away, whole.items())), tuple(whole[name] for name in kernel.params))
            for one in group
            for values in itertools.product(*(p.values for p in rest))
            for whole in [one | dict(zip([p.name for p in rest], values, strict=True))]
        )
        for _, values in ranked:
            if allowed(values):
                return dict(zip(kernel.params, values, strict=True))
    raise UsageError(f"{kernel.name}: no choice of its parameters is allowed")


def shapes(kernel: CudaKernel, params: dict[str, int]) -> list[tuple[int, int, int]]:
    """The sizes, and what one block computes."""
    width, height = (side(m=1, n=1, k=1, **params) for side in kernel.tile or kernel.block)
    if not kernel.tile and kernel.launch(width, height, 1, **params).blocks > 1:
        width, height = height, width  # without a tile, threads along x are columns of C or rows of it
    return [*((n, n, n) for n in SIZES), (height, width, DEPTH)]


def compared(row: dict[str, Any], counters: tuple[str, ...]) -> Iterator[tuple[str, int, list[int]]]:
    """Counter, predicted, and counted in each launch; those that are 0 everywhere are left out."""
    for name in counters:
        ours, theirs = row["predicted"].get(name, 0), [one.get(name, 0) for one in row["counted"]]
        if ours or any(theirs):
            yield name, ours, theirs


def differences(row: dict[str, Any], counters: tuple[str, ...]) -> dict[str, list[int]]:
    """Counter → by how much each launch counted more than was predicted, of those where any did."""
    return {name: [n - ours for n in theirs] for name, ours, theirs in compared(row, counters) if set(theirs) != {ours}}


def lines_apart(row: dict[str, Any], unit: str) -> dict[str, tuple[int, int]]:
    """Source line → predicted and counted ``unit``, where they differ.

    Asynchronous copies stand at a line of the prelude in the binary, which is not counted by line: theirs are 0.
    """
    ours, theirs = row["predicted_lines"], row["counted_lines"]
    pairs = {line: tuple(by.get(line, {}).get(unit, 0) for by in (ours, theirs)) for line in {*ours, *theirs}}
    return {line: (a, b) for line, (a, b) in sorted(pairs.items()) if a != b}
