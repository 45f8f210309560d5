"""Writes launches of a compiled kernel to a file, and makes the launches that such files describe, in a process that a
profiler watches.

``python -m tilewright.lab.explain.stored_launches SPEC.npz … [--results OUT.npz]`` makes each launch of each file once,
in order, with new copies of its arrays. The exit code is 0 only if the GPU finished all launches. If a launch fails,
the error is printed on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LaunchError, OperandError, TilewrightError, UsageError
from ...gpu.runtime.device import open_device
from ...gpu.runtime.launch import BoxedOperand, Extent, Mapped, extent
from ...gpu.runtime.memory import Memory
from ...gpu.runtime.nvrtc import Compiled


@dataclass(frozen=True)
class StoredLaunch:
    """A launch of a kernel: its name, blocks, threads of a block, arguments, and dynamic shared memory in bytes.

    The arguments are NumPy arrays, numbers, and the bytes of structures. ``maps`` has the layout of each array that the
    kernel takes as a tensor map, by the position of the argument. ``constants`` has the values of ``__constant__`` and
    ``__device__`` variables, by name."""

    entry: str
    grid: Extent
    block: Extent
    args: tuple[Any, ...]
    shared_bytes: int = 0
    maps: Mapping[int, BoxedOperand] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


def save_launches(path: Path, compiled: Compiled, launches: Sequence[StoredLaunch]) -> None:
    """Write launches of a binary to ``path`` (.npz). Raises OperandError for an argument that is neither an array, a number
    nor bytes.

    >>> import tempfile
    >>> binary = Compiled("k.cu", "sm_90", "", b"cubin", "")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_launches(Path(folder, "k.npz"), binary, [StoredLaunch("k", 2, 64, (np.zeros(3), 7, np.float32(0.5)))])
    ...     compiled, (launch,) = load_launches(Path(folder, "k.npz"))
    >>> compiled.cubin, launch.grid, launch.args
    (b'cubin', (2, 1, 1), (array([0., 0., 0.]), 7, np.float32(0.5)))
    """
    listed = []
    arrays: dict[str, Any] = {"cubin": np.frombuffer(compiled.cubin, np.uint8)}
    for number, launch in enumerate(launches):
        listed.append({
            "entry": launch.entry, "grid": extent("grid", launch.grid), "block": extent("block", launch.block),
            "args": len(launch.args), "shared_bytes": launch.shared_bytes, "maps": launch.maps,
            "constants": list(launch.constants),
        })  # fmt: skip
        arrays |= {f"{number}.{name}": array for name, array in launch.constants.items()}
        for i, value in enumerate(launch.args):
            array = np.asarray(np.void(value) if isinstance(value, bytes) else value)
            if array.dtype.kind not in "biufc" and not isinstance(value, bytes):
                raise OperandError(
                    f"{launch.entry}: argument {i} is a {type(value).__name__}: give an array or a number"
                )
            arrays[f"{number}.{i}"] = array
    about = {"name": compiled.name, "arch": compiled.arch, "launches": listed}
    np.savez_compressed(path, about=np.array(json.dumps(about)), **arrays)


def load_launches(path: Path) -> tuple[Compiled, list[StoredLaunch]]:
    """Read a file that ``save_launches`` wrote; such a file has neither PTX nor resources of the kernel. Raises
    UsageError if the file cannot be read."""
    try:
        with np.load(path) as stored:
            about = json.loads(str(stored["about"]))
            compiled = Compiled(about["name"], about["arch"], "", stored["cubin"].tobytes(), "")
            launches = []
            for number, launch in enumerate(about["launches"]):
                args = tuple(_value(stored[f"{number}.{i}"]) for i in range(launch["args"]))
                grid, block = tuple(launch["grid"]), tuple(launch["block"])
                maps = {int(i): BoxedOperand._make([*laid[:-1], tuple(laid[-1])]) for i, laid in launch["maps"].items()}
                constants = {name: stored[f"{number}.{name}"] for name in launch["constants"]}
                launches.append(
                    StoredLaunch(launch["entry"], grid, block, args, launch["shared_bytes"], maps, constants)
                )
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: is no file of launches: {error}") from None
    return compiled, launches


def _value(array: np.ndarray) -> Any:
    """An array, a number, or a structure. Python's own numbers were stored in NumPy's widest types; the launch converts them
    to the parameter's type."""
    if array.dtype.kind == "V":
        return array.tobytes()
    if array.ndim:
        return array
    return array.item() if array.dtype in (np.int64, np.float64, np.bool_) else array[()]


def make_launches(
    compiled: Compiled, launches: Sequence[StoredLaunch], ordinal: int = 0
) -> list[tuple[np.ndarray | None, ...]]:
    """Make each launch once. Returns the arrays after each launch, with None in place of an argument that is not an array.

    Raises UnavailableError if there is no GPU, and LaunchError if the GPU refuses or stops a kernel.
    """
    gpu = open_device(ordinal)
    results = []
    for launch in launches:
        for name, array in launch.constants.items():
            gpu.set_variable(compiled, launch.entry, name, array)
        device_args = [gpu.put(a) if isinstance(a, np.ndarray) else a for a in launch.args]
        given = [Mapped(d, launch.maps[i]) if i in launch.maps else d for i, d in enumerate(device_args)]
        gpu.launch(compiled, launch.entry, launch.grid, launch.block, given, launch.shared_bytes)
        results.append(tuple(
            gpu.get(d, a.dtype, a.shape) if isinstance(d, Memory) else None
            for a, d in zip(launch.args, device_args, strict=True)
        ))  # fmt: skip
        for memory in device_args:
            if isinstance(memory, Memory):
                memory.close()
    return results


def read_results(path: Path) -> list[dict[int, np.ndarray]]:
    """Read a file that ``--results`` wrote: the arrays after each launch, by the position of the argument.

    Raises LaunchError if the file has no results.
    """
    arrays: dict[int, dict[int, np.ndarray]] = {}
    try:
        with np.load(path) as stored:
            for name in stored.files:
                launch, argument = map(int, name.split("."))
                arrays.setdefault(launch, {})[argument] = stored[name]
    except OSError as error:
        raise LaunchError(f"{path}: the launches left no results: {error}") from None
    return [arrays.get(launch, {}) for launch in range(1 + max(arrays, default=-1))]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the launches in the files that ``argv`` names, and return the exit code. The process that ncu watches calls
    this function."""
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.lab.explain.stored_launches", description="Make launches from files."
    )
    parser.add_argument(
        "specs", type=Path, nargs="+", help="files that tilewright.lab.explain.stored_launches.save_launches wrote"
    )
    parser.add_argument("--results", type=Path, help="where to write the arrays that the kernels leave behind (.npz)")
    options = parser.parse_args(argv)
    try:
        made = [arrays for spec in options.specs for arrays in make_launches(*load_launches(spec))]
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.results:
        named: dict[str, Any] = {
            f"{i}.{j}": array for i, arrays in enumerate(made) for j, array in enumerate(arrays) if array is not None
        }
        np.savez_compressed(options.results, **named)
    return 0


if __name__ == "__main__":
    sys.exit(main())
