"""What ``memory=`` promises, measured: ``python benchmarks/memory_limits.py OUT.jsonl [MACHINE/FORMAT …]`` (all of both).

Products of SHAPES are multiplied on the CPU from files to a file, in each of FORMATS and under each of LIMITS, as if this
processor's caches were those of each of MACHINES. The operands' files are in the format of the result, in chunks where it
has some. Each machine, format and shape is a process of its own, which measures all rates before each product, as with an
empty cache. Two memories are noted: that of the process just before the call, and the most until it returns, from the
kernel's own mark (VmHWM) for all resident pages, and sampled for the anonymous ones.

The memory of the code is no part of a limit: what Numba, LLVM, h5py and zarr take when they are first used in a process. So
a tiny product of the same dtype and format precedes; ``first`` has what it took, compiling included where the code was not
in the cache.

Appends a record for each machine and format to OUT. Ends with an AssertionError where a product took more than its limit
and ALLOWED, or was refused though its operands and its result fit the limit, or is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

MIB = 1 << 20
COMMAND = "python benchmarks/memory_limits.py OUT.jsonl"
#: Bytes that a product may take beside its limit: what Python and its threads take.
ALLOWED = 16 * MIB
#: Bytes of L2 and L3.
MACHINES: dict[str, tuple[int, int | None]] = {
    "large L3": (2 * MIB, 260 * MIB),
    "no L3": (2 * MIB, None),
    "small": (512 << 10, 8 * MIB),
}
LIMITS = tuple(mib * MIB for mib in (1, 4, 8, 12, 16, 24, 32, 48, 64, 128))
FORMATS = ("npy", "raw", "zarr", "h5")
SHAPES: tuple[tuple[int, int, int, str], ...] = (
    (30, 20, 40, "float32"),
    (256, 256, 256, "float64"),
    (1000, 1000, 1000, "float32"),
    (1000, 1000, 1000, "float64"),
    (2000, 2000, 2000, "float32"),
    (300, 300, 20000, "float32"),
    (20000, 64, 512, "float64"),
    (1500, 3000, 1000, "float64"),
)
CHUNK = 256


def description(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process that takes the caches of a machine for its own; with another name than those of MACHINES
    it keeps this machine's. The description states no rates, so that these are measured."""
    if name not in MACHINES:
        return {}
    from tilewright.host.machine import machine

    path, sizes = folder / "machine.json", dict(zip((2, 3), MACHINES[name], strict=True))
    caches = [{"level": 1, "type": "Data", "size": machine().l1d or 32 << 10}]
    caches += [{"level": level, "type": "Unified", "size": size} for level, size in sizes.items() if size]
    path.write_text(json.dumps({"caches": caches}))
    return {"TILEWRIGHT_MACHINE": str(path)}


def memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


class Most:
    """The most memory of this process while the block runs, above what it had before."""

    def __enter__(self) -> Most:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self._before = {"rss": memory("VmRSS"), "anonymous": memory("RssAnon")}
        self._most, self._over = self._before["anonymous"], threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        return self

    def _sample(self) -> None:
        while not self._over.wait(0.003):
            self._most = max(self._most, memory("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        most = {"rss": memory("VmHWM"), "anonymous": max(self._most, memory("RssAnon"))}
        self.taken = {name: most[name] - self._before[name] for name in most}


def write(path: Path, matrix: Any) -> None:
    """A matrix in the format of the path's suffix."""
    import numpy as np

    chunks = tuple(min(CHUNK, side) for side in matrix.shape)
    if path.suffix == ".npy":
        np.save(path, matrix)
    elif path.suffix == ".raw":
        matrix.tofile(path)
    elif path.suffix == ".zarr":
        import zarr

        zarr.create_array(path, shape=matrix.shape, dtype=matrix.dtype, chunks=chunks)[:] = matrix
    else:
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("matrix", data=matrix, chunks=chunks)


def make(folder: Path, suffix: str, m: int, n: int, k: int, dtype: str) -> None:
    """The operands' files; small integers, so that any order of addition gives the same C."""
    import numpy as np

    rng = np.random.default_rng(1)
    for name, shape in (("a", (m, k)), ("b", (k, n))):
        write(folder / f"{name}.{suffix}", rng.integers(-3, 4, shape).astype(dtype))


def give_back() -> None:
    """Return to the system what earlier products left in this process: workspace, and free memory of the C library."""
    import ctypes
    import gc

    from tilewright.cpu.runtime.runner import release_workspace

    release_workspace()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def multiplied(folder: Path, suffix: str, shape: tuple[int, int, int, str], limit: int) -> dict[str, Any]:
    """A product under a limit: what it took, or the least that the error names."""
    import tilewright as tw
    from tilewright.cpu.runtime import peaks
    from tilewright.errors import MemoryLimitError
    from tilewright.large.files import open_matrix

    m, n, k, dtype = shape
    paths = [folder / f"{name}.{suffix}" for name in "abc"]
    stored = {"shape": (m, k), "dtype": dtype}, {"shape": (k, n), "dtype": dtype}
    a, b = (open_matrix(x, **(how if suffix == "raw" else {})) for x, how in zip(paths[:2], stored, strict=True))
    peaks._figure = lambda known: 0.0  # as if the cache were empty
    give_back()
    try:
        with Most() as most:
            tw.multiply(a, b, paths[2], memory=limit, device="cpu", overwrite=True)
    except MemoryLimitError as error:
        return {"refused": str(error)}
    finally:
        a.close()
        b.close()
    return most.taken


def check(folder: Path, suffix: str, shape: tuple[int, int, int, str]) -> None:
    """The result is right; that takes memory, and so it is not done in the process that is measured."""
    import numpy as np

    from tilewright.large.files import open_matrix

    m, n, k, dtype = shape
    read = []
    for name, sides in (("a", (m, k)), ("b", (k, n)), ("c", (m, n))):
        how: dict[str, Any] = {"shape": sides, "dtype": dtype} if suffix == "raw" else {}
        source = open_matrix(folder / f"{name}.{suffix}", **how)
        read.append(np.empty(sides, dtype))
        source.read(slice(0, sides[0]), slice(0, sides[1]), read[-1])
        source.close()
    a, b, c = read
    assert np.array_equal(a @ b, c), f"{shape} in {suffix}: a wrong product"


def child(suffix: str, number: int, folder: Path, limits: tuple[int, ...] = LIMITS) -> None:
    """The products of one process, a line of JSON each; the first line is of the tiny product that precedes them."""
    tiny = folder / "tiny"
    tiny.mkdir()
    dtype = SHAPES[number][3]
    make(tiny, suffix, 8, 8, 8, dtype)
    print(json.dumps(multiplied(tiny, suffix, (8, 8, 8, dtype), LIMITS[-1])), flush=True)
    for limit in limits:
        print(json.dumps(multiplied(folder, suffix, SHAPES[number], limit)), flush=True)


def cases(
    machine: str, suffix: str, number: int, cache: Path | None, limits: tuple[int, ...] = LIMITS
) -> list[dict[str, Any]]:
    """What the products of a machine, a format and a shape took; raises AssertionError where the promise is broken."""
    shape = m, n, k, dtype = SHAPES[number]
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), suffix, *shape)
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import memory_limits as x; "
        call = f"x.child({suffix!r}, {number}, x.Path({folder!r}), {limits!r})"
        ran = subprocess.run(
            [sys.executable, "-c", code + call],
            env=os.environ | description(machine, Path(folder)) | ({"TILEWRIGHT_CACHE": str(cache)} if cache else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        first, *taken = map(json.loads, ran.stdout.splitlines())
        if any("rss" in each for each in taken):
            check(Path(folder), suffix, shape)
    whole = (m * k + k * n + m * n) * (8 if dtype == "float64" else 4)
    found = []
    for limit, each in zip(limits, taken, strict=True):
        what = f"{machine}, {suffix}, {m}×{k}·{k}×{n} {dtype}, {limit >> 20} MiB"
        if "refused" in each:
            assert whole > limit, f"{what}: refused, though operands and result fit: {each['refused']}"
        else:
            assert max(each.values()) <= limit + ALLOWED, f"{what}: {each}"
        found.append({"machine": machine, "format": suffix, "shape": shape, "limit": limit, "first": first, **each})
    return found


def main() -> None:
    """Measure everything, and append the records."""
    from tilewright.lab.inputs.environment import environment

    out, *asked = sys.argv[1:]
    with tempfile.TemporaryDirectory() as cache:
        for which in asked or [f"{machine}/{suffix}" for machine in MACHINES for suffix in FORMATS]:
            machine, suffix = which.split("/")
            found: list[dict[str, Any]] = []
            for number in range(len(SHAPES)):
                found += cases(machine, suffix, number, Path(cache))
                print(which, SHAPES[number], [_words(each) for each in found[-len(LIMITS) :]], flush=True)
            known = environment(operands="integers from -3 to 3", command=COMMAND)
            record = {"kind": "memory limits", "environment": known, "allowed": ALLOWED, "cases": found}
            with Path(out).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _words(case: dict[str, Any]) -> str:
    return "–" if "refused" in case else f"{(case['rss'] - case['limit']) / MIB:+.0f}"


if __name__ == "__main__":
    main()
