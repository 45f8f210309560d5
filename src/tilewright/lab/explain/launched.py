"""Launches of one binary, kept in a file, to be made by another process: the one that a profiler watches.

``python -m tilewright.lab.explain.launched SPEC.npz [--results OUT.npz]`` makes each launch once, in order, with
fresh copies of its arrays. It exits with 0 only if the GPU took and finished all of them; else the error is on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LaunchError, OperandError, TilewrightError, UsageError
from ...runtime.gpu.device import open_device
from ...runtime.gpu.launch import Extent, extent
from ...runtime.gpu.memory import Memory
from ...runtime.gpu.nvrtc import Compiled


@dataclass(frozen=True)
class StoredLaunch:
    """One launch: kernel, blocks, threads a block, arguments (NumPy arrays and numbers), dynamic shared memory in bytes."""

    entry: str
    grid: Extent
    block: Extent
    args: tuple[Any, ...]
    shared_bytes: int = 0


def save(path: Path, compiled: Compiled, launches: Sequence[StoredLaunch]) -> None:
    """Write launches of one binary to ``path`` (.npz). Raises OperandError for an argument that is no array and no number.

    >>> import tempfile
    >>> binary = Compiled("k.cu", "sm_90", "", b"cubin", "")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Path(folder, "k.npz"), binary, [StoredLaunch("k", 2, 64, (np.zeros(3), 7, np.float32(0.5)))])
    ...     compiled, (launch,) = load(Path(folder, "k.npz"))
    >>> compiled.cubin, launch.grid, launch.args
    (b'cubin', (2, 1, 1), (array([0., 0., 0.]), 7, np.float32(0.5)))
    """
    listed = []
    arrays: dict[str, Any] = {"cubin": np.frombuffer(compiled.cubin, np.uint8)}
    for number, launch in enumerate(launches):
        listed.append({
            "entry": launch.entry, "grid": extent("grid", launch.grid), "block": extent("block", launch.block),
            "args": len(launch.args), "shared_bytes": launch.shared_bytes,
        })  # fmt: skip
        for i, value in enumerate(launch.args):
            array = np.asarray(value)
            if array.dtype.kind not in "biufc":
                raise OperandError(
                    f"{launch.entry}: argument {i} is a {type(value).__name__}: give an array or a number"
                )
            arrays[f"{number}.{i}"] = array
    about = {"name": compiled.name, "arch": compiled.arch, "launches": listed}
    np.savez_compressed(path, about=np.array(json.dumps(about)), **arrays)


def load(path: Path) -> tuple[Compiled, list[StoredLaunch]]:
    """What ``save`` wrote; the PTX and the resources are not kept. Raises UsageError where it cannot be read."""
    try:
        with np.load(path) as kept:
            about = json.loads(str(kept["about"]))
            compiled = Compiled(about["name"], about["arch"], "", kept["cubin"].tobytes(), "")
            launches = []
            for number, one in enumerate(about["launches"]):
                args = tuple(_value(kept[f"{number}.{i}"]) for i in range(one["args"]))
                grid, block = tuple(one["grid"]), tuple(one["block"])
                launches.append(StoredLaunch(one["entry"], grid, block, args, one["shared_bytes"]))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: is no file of launches: {error}") from None
    return compiled, launches


def _value(array: np.ndarray) -> Any:
    """An array, or what was a number: Python's own have NumPy's widest types, and take the parameter's at launch."""
    if array.ndim:
        return array
    return array.item() if array.dtype in (np.int64, np.float64, np.bool_) else array[()]


def run(compiled: Compiled, launches: Sequence[StoredLaunch], ordinal: int = 0) -> list[tuple[np.ndarray | None, ...]]:
    """Make each launch once: its arrays as the kernel left them, None for arguments that are numbers.

    Raises UnavailableError without a GPU, LaunchError where it refuses or stops a kernel.
    """
    gpu = open_device(ordinal)
    results = []
    for launch in launches:
        given = [gpu.put(a) if isinstance(a, np.ndarray) else a for a in launch.args]
        gpu.launch(compiled, launch.entry, launch.grid, launch.block, given, launch.shared_bytes)
        results.append(tuple(
            gpu.get(g, a.dtype, a.shape) if isinstance(g, Memory) else None
            for a, g in zip(launch.args, given, strict=True)
        ))  # fmt: skip
        for memory in given:
            if isinstance(memory, Memory):
                memory.close()
    return results


def results(path: Path) -> list[dict[int, np.ndarray]]:
    """What ``--results`` wrote: of each launch its arrays as the kernel left them, by position of the argument.

    Raises LaunchError where nothing was written.
    """
    found: dict[int, dict[int, np.ndarray]] = {}
    try:
        with np.load(path) as kept:
            for name in kept.files:
                launch, argument = map(int, name.split("."))
                found.setdefault(launch, {})[argument] = kept[name]
    except OSError as error:
        raise LaunchError(f"{path}: the launches left no results: {error}") from None
    return [found.get(launch, {}) for launch in range(1 + max(found, default=-1))]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the launches that a file describes; the process that ncu watches runs this."""
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.lab.explain.launched", description="Make launches from a file."
    )
    parser.add_argument("spec", type=Path, help="a file that tilewright.lab.explain.launched.save wrote")
    parser.add_argument("--results", type=Path, help="where to write the arrays that the kernels leave behind (.npz)")
    given = parser.parse_args(argv)
    try:
        left = run(*load(given.spec))
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if given.results:
        named: dict[str, Any] = {
            f"{i}.{j}": array for i, row in enumerate(left) for j, array in enumerate(row) if array is not None
        }
        np.savez_compressed(given.results, **named)
    return 0


if __name__ == "__main__":
    sys.exit(main())
