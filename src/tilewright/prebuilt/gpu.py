"""Builds the archive of an architecture: the engine's kernels for its GPUs, compiled before a product needs them.

The planner determines which kernels the archive holds. This module plans products of all dtypes, layouts and alignments
with random sizes. The module notes each kernel that such a product would launch, instead of loading it. Of each kernel
that multiplies, the module compiles every set of parameters that a plan chose, for every layout and alignment that
occurred.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import sqlite3
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from ..cpu.runtime.library import BUILT
from ..errors import DTypeError, OperandError, did_you_mean
from ..gpu.arrays.gpu_array import GpuArray, contiguous_strides
from ..gpu.arrays.groups import DTYPES as GROUPED
from ..gpu.arrays.groups import plan_of_groups
from ..gpu.arrays.matmul import plan_of_views
from ..gpu.arrays.plan import prepare
from ..gpu.runtime.compilations import TABLES, Request, archive_key, archive_name, dictionary, difference, requests
from ..gpu.runtime.device import add_described
from ..gpu.runtime.nvrtc import compile_alone, compiler
from ..host.machine import machine
from ..kernels.catalog import cuda_engine
from ..kernels.cuda_kernel import Card
from .tools import BuildError, put

Say = Callable[[str], object]
Case = tuple[str, str, str | None]
#: A row of the table ``kernels`` of an archive.
_Row = tuple[str, str, int, str | None, bytes]
#: The dictionary by which the kernels of a source file are compressed: the binaries of so many, at most so many bytes.
#: Twice as many kernels make an archive 5 % smaller, half as many 30 % larger.
_SAMPLES, _MOST_BYTES = 8, 1 << 19
#: Of Zstandard: the most it has.
_LEVEL = 22

#: The GPUs of an architecture for which products are planned: compute capability, name, multiprocessors, and the clock (kHz)
#: and the width (bits) of the memory.
GPUS = {
    "sm_80": ("8.0", [("NVIDIA A100-SXM4-80GB", 108, 1_593_000, 5120)]),
    "sm_86": ("8.6", [("NVIDIA A10", 72, 6_251_000, 384), ("NVIDIA GeForce RTX 3090", 82, 9_751_000, 384)]),
    "sm_89": ("8.9", [("NVIDIA L40S", 142, 9_001_000, 384), ("NVIDIA L4", 58, 6_251_000, 192)]),
    "sm_90a": ("9.0", [("NVIDIA H200", 132, 3_201_000, 6144), ("NVIDIA H100 PCIe", 114, 1_593_000, 5120)]),
    "sm_100a": ("10.0", [("NVIDIA B200", 148, 3_996_000, 8192)]),
    "sm_120a": ("12.0", [("NVIDIA GeForce RTX 5090", 170, 14_001_000, 512)]),
}
#: The number of products that are planned for each dtype, GPU and pair of layouts.
COUNT = 2000
#: The dtype and the precision of the operands, and the dtype of the result, for which products are planned.
CASES: tuple[Case, ...] = (
    ("bfloat16", "standard", None),
    ("float16", "standard", None),
    ("float32", "standard", None),
    ("float64", "standard", None),
    ("complex64", "standard", None),
    ("complex128", "standard", None),
    ("int8", "standard", None),
    ("float8_e4m3fn", "standard", "bfloat16"),
    ("bfloat16", "invariant", None),
    ("float16", "invariant", None),
    ("float32", "invariant", None),
    ("float64", "invariant", None),
)
#: One of so many products is one of groups, and one that of a matrix and its transpose.
_GROUPS = 20
#: Multiples that sizes are drawn as: any, what aligns a row of two or four bytes to words, to granules, and whole tiles.
_MULTIPLES = (1, 2, 8, 64)


class _Described:
    """A GPU that this machine need not have: the facts on which plans depend, and launches that do nothing."""

    def __init__(self, arch: str, capability: str, name: str, sms: int, clock: int, bits: int) -> None:
        self.arch, self.capability, self.name, self.sms = arch, capability, name, sms
        self.card = Card.of(name, sms, clock, bits, capability)

    def __enter__(self) -> _Described:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def launcher(self, *_: Any) -> Callable[..., None]:
        return _nothing

    boxed_launcher = launcher


def _nothing(*_: Any) -> None:
    pass


def build_archive(
    arch: str,
    cases: Sequence[Case] = CASES,
    count: int = COUNT,
    folder: Path = BUILT,
    jobs: int | None = None,
    say: Say = print,
) -> Path:
    """Build the archive of compiled kernels for an architecture; returns its path. Raises BuildError for an unknown
    architecture."""
    if arch not in GPUS:
        raise BuildError(f"no GPU is known for {arch!r}; {did_you_mean(arch, GPUS)}")
    say(f"planning products for {arch} …")
    return write_archive(arch, every_set(needed(arch, cases, count)), folder, jobs, say)


def write_archive(
    arch: str, wanted: Sequence[Request], folder: Path = BUILT, jobs: int | None = None, say: Say = print
) -> Path:
    """Compile the wanted kernels, and write the archive to a folder; returns its path."""
    begun, jobs = time.perf_counter(), jobs or machine().usable_cores
    say(f"building {archive_name(arch)}: {len(wanted)} kernels, in {jobs} processes …")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / archive_name(arch)
        rows = sqlite3.connect(file)
        rows.executescript(TABLES)
        rows.execute("INSERT INTO about VALUES (?, ?)", (archive_key(), compiler()))
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            binaries = _dictionaries(pool, wanted)
            packed = [(name, zstandard.compress(content, _LEVEL)) for name, content in binaries.items()]
            rows.executemany("INSERT INTO dictionaries VALUES (?, ?)", packed)
            packs = {name: _Packs(content) for name, content in binaries.items()}
            for name, alike in pool.map(_rows, _twins(wanted), chunksize=8):
                rows.executemany("INSERT INTO kernels VALUES (?, ?, ?, ?, ?)", map(packs[name].once, alike))
        rows.commit()
        rows.close()
        path = put(file, folder)
    say(f"built {path.name}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - begun:.0f} s")
    return path


def needed(arch: str, cases: Iterable[Case], count: int, seed: int = 17) -> list[Request]:
    """Return the kernels that random products need, in the order of the cases."""
    capability, gpus = GPUS[arch]
    with requests() as asked:
        for (name, *facts), (dtype, precision, out_dtype) in itertools.product(gpus, cases):
            gpu: Any = _Described(arch, capability, name, *facts)
            ordinal = add_described(gpu)
            rng = np.random.default_rng(seed)
            for i in range(count):
                for laid in itertools.product((False, True), (False, True)):
                    x, y = _operands(rng, dtype, laid, ordinal)
                    with contextlib.suppress(DTypeError):  # which not every architecture multiplies
                        plan = plan_of_views(x, y, views=i % 5 > 0, precision=precision, out_dtype=out_dtype)
                        prepare(plan)
                        if i % _GROUPS == 0 and precision == "standard":  # a matrix and its transpose
                            prepare(plan_of_views(x, x.transposed, out_dtype=out_dtype))
                if i % _GROUPS == 0 and dtype in GROUPED and precision == "standard":
                    _plan_groups(rng, dtype, ordinal)
    return list(asked)


def _plan_groups(rng: np.random.Generator, dtype: str, ordinal: int) -> None:
    for a, b, groups in _grouped(rng, dtype, ordinal):
        with contextlib.suppress(DTypeError, OperandError):  # of float8 only some layouts are multiplied
            plan_of_groups(a, b, groups)


def _grouped(rng: np.random.Generator, dtype: str, ordinal: int) -> Iterator[tuple[GpuArray, GpuArray, int]]:
    """Tokens by the weights of experts, and both gradients: operands, and the number of groups."""
    groups, multiple = int(2 ** rng.uniform(1, 8)), int(rng.choice(_MULTIPLES))
    n, k = (-(-int(2 ** rng.uniform(6, 14)) // multiple) * multiple for _ in range(2))
    m = int(2 ** rng.uniform(8, 17))

    def array(at: int, *shape: int) -> GpuArray:
        return GpuArray(1 << at, shape, contiguous_strides(shape), dtype, ordinal)

    tokens, weights, gradient = array(30, m, k), array(40, groups, n, k), array(41, m, n)
    yield tokens, weights.transposed, groups
    yield gradient, weights, groups
    yield tokens.transposed, gradient, groups


def _operands(rng: np.random.Generator, dtype: str, down: tuple[bool, bool], ordinal: int) -> tuple[GpuArray, GpuArray]:
    """Two matrices of a dtype on a GPU, each ``down`` its columns in memory or not; some are of a batch."""
    multiple = int(rng.choice(_MULTIPLES))
    m, k, n = (int(rng.integers(1, 6000)) if rng.random() < 0.5 else int(2 ** rng.uniform(0, 14)) for _ in range(3))
    k, n = (-(-size // multiple) * multiple for size in (k, n))
    batch = () if rng.random() < 0.9 else (int(rng.integers(2, 64)),)
    return tuple(  # type: ignore[return-value]
        GpuArray(at, (*batch, *shape), (*[shape[0] * shape[1]] * len(batch), *_strides(shape, d)), dtype, ordinal)
        for at, shape, d in zip((1 << 30, 1 << 40), ((m, k), (k, n)), down, strict=True)
    )


def _strides(shape: tuple[int, int], down: bool) -> tuple[int, int]:
    return (1, shape[0]) if down else (shape[1], 1)


def every_set(wanted: Iterable[Request]) -> list[Request]:
    """Return the wanted kernels and the same kernels with further sets of parameters. For each kernel and its types,
    every set of parameters that occurred is combined with every set of other macros that occurred, because the fastest
    parameters depend on the size."""
    kernels = {kernel.path: kernel for kernel in cuda_engine().values()}
    groups: dict[Any, tuple[dict[Any, None], dict[Any, None]]] = defaultdict(lambda: ({}, {}))
    found = dict.fromkeys(wanted)
    for path, arch, macros in found:
        if path in kernels:
            own = frozenset(kernels[path].params)
            sets, others = groups[path, arch, tuple(macro for macro in macros if macro[0] in _TYPES)]
            sets[tuple(macro for macro in macros if macro[0] in own)] = None
            others[tuple(macro for macro in macros if macro[0] not in own)] = None
    more = (
        Request(path, arch, tuple(sorted(params + other)))
        for (path, arch, _), (sets, others) in groups.items()
        for params, other in itertools.product(sets, others)
    )
    return [*(found | dict.fromkeys(more))]


#: Macros by which the best sets of parameters differ much, or that have sets of their own.
_TYPES = {"TYPE", "TYPE_A", "TYPE_B", "OUT", "GROUPED", "TRIANGLE"}


def _twins(wanted: Iterable[Request]) -> list[list[Request]]:
    """The kernels, those together whose binaries are nearly equal: instructions of float16 and bfloat16 differ in a bit."""
    found = defaultdict[Any, list[Request]](list)
    for request in wanted:
        macros = ((name, "HALF" if value in ("FLOAT16", "BFLOAT16") else value) for name, value in request.macros)
        found[request.path, request.arch, tuple(macros)].append(request)
    return list(found.values())


def _dictionaries(pool: ProcessPoolExecutor, wanted: Sequence[Request]) -> dict[str, bytes]:
    """By the names of files: binaries of some of their kernels, one after the other."""
    of_file = defaultdict[str, list[Request]](list)
    for request in wanted:
        of_file[request.path.name].append(request)
    some = {name: requests[:: -(-len(requests) // _SAMPLES)] for name, requests in of_file.items()}
    cubins = pool.map(_cubin, itertools.chain(*some.values()))
    return {name: b"".join(itertools.islice(cubins, len(sample)))[:_MOST_BYTES] for name, sample in some.items()}


def _cubin(request: Request) -> bytes:
    return compile_alone(request.path, request.arch, dict(request.macros)).cubin


class _Packs:
    """Compresses the binaries of the kernels of one source file."""

    def __init__(self, binaries: bytes) -> None:
        self._compressor = zstandard.ZstdCompressor(_LEVEL, dictionary(binaries))
        self._known: dict[bytes, str] = {}

    def once(self, row: _Row) -> _Row:
        """The row, its binary compressed. If an earlier row has the same binary, the new row stores an empty difference
        from that row (its ``base``): two alignments often lead to the same code."""
        key, entries, waits, base, cubin = row
        if base is None and (first := self._known.setdefault(cubin, key)) != key:
            base, cubin = first, bytes(len(cubin))
        return key, entries, waits, base, self._compressor.compress(cubin)


def _rows(alike: Sequence[Request]) -> tuple[str, list[_Row]]:
    """The name of the file, and the rows of kernels: where that can be, as differences from the first of them."""
    rows, first = list[_Row](), b""
    for request in alike:
        compiled = compile_alone(request.path, request.arch, dict(request.macros))
        cubin, base = compiled.cubin, None
        if len(first) == len(cubin):
            cubin, base = difference(cubin, first), alike[0].key
        first = first or cubin
        rows.append((request.key, " ".join(compiled.entries), int(compiled.waits), base, cubin))
    return alike[0].path.name, rows
