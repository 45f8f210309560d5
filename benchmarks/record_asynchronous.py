"""Run the asynchronous kernels of ``tests/microscope/asynchronous`` on a Hopper GPU, and record results, times and counters.

``python benchmarks/record_asynchronous.py OUTDIR [NAME ...]`` compiles each kernel, runs it at each size, and compares it
with NumPy. It records digests of the results with operands of all bits (whole results of the small size), the time of a
launch, and counters of ncu, in total and by instruction. Exits with 1 where anything was wrong. Of what it writes,
``asynchronous-h200.jsonl`` goes to ``benchmarks`` and ``asynchronous-h200.npz`` to ``tests/data``.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.driver import call, driver
from tilewright.gpu.runtime.nvrtc import Compiled, compile_file, compiler
from tilewright.lab.explain import measure
from tilewright.lab.explain.measure import tools
from tilewright.simulator.assembly.disassembly import disassemble, parse_sass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.asynchronous_kernels import (
    ARCH,
    KERNELS,
    LARGE,
    MEDIUM,
    RANDOM,
    SMALL,
    WHOLE,
    AsynchronousKernel,
    Launch,
    TileMap,
    differences,
)  # fmt: skip

Array = np.ndarray[Any, Any]

#: Counters that are read if this ncu knows them for this GPU.
_WANTED = [
    *(f"sm__inst_executed_pipe_tensor{kind}.sum" for kind in
      ("", "_op_gmma", "_op_hmma", "_op_imma", "_op_hgmma", "_op_qgmma", "_op_igmma")),
    *(f"sm__pipe_tensor{kind}_cycles_active.sum" for kind in ("", "_op_gmma", "_op_hmma", "_op_imma")),
    *(f"lts__t_{what}.sum" for what in (
        "sectors", "requests", "sectors_op_read", "sectors_op_write", "sectors_op_red", "sectors_srcunit_tex",
        "sectors_srcunit_tex_op_read", "sectors_srcunit_tex_op_write", "sectors_lookup_miss")),
    *(f"l1tex__data_{what}.sum" for what in (
        "pipe_lsu_wavefronts", "pipe_lsu_wavefronts_mem_shared", "bank_reads", "bank_writes",
        "bank_conflicts_pipe_lsu_mem_shared", "pipe_lsu_wavefronts_mem_shared_op_ld",
        "pipe_lsu_wavefronts_mem_shared_op_st")),
    *(f"l1tex__{name}.sum" for name in (
        "data_pipe_lsu_wavefronts_mem_shared_op_gmma", "data_bank_conflicts_pipe_lsu_mem_shared_op_gmma",
        "data_pipe_lsu_wavefronts_mem_shared_op_misc", "lsuin_requests_op_gmma", "tmain_requests",
        "m_xbar2l1tex_read_sectors_mem_global_op_tma_ld", "m_xbar2l1tex_read_sectors_mem_global_op_tma_ld_dest_multicast",
        "m_xbar2l1tex_read_sectors_mem_global_op_tma_ld_dest_self", "m_l1tex2xbar_write_sectors_mem_global_op_tma_st",
        "m_l1tex2xbar_write_sectors_mem_global_op_tma_red", "m_l1tex2xbar_write_sectors_mem_dshared_op_tma_st",
        "m_l1tex2xbar_write_sectors_pipe_tma", "m_xbar2l1tex_read_sectors_pipe_tma")),
    "smsp__inst_executed_op_tma_ld.sum", "smsp__inst_executed_op_tma_st.sum", "sm__pipe_tma_cycles_active.sum",
    "l1tex__m_xbar2l1tex_read_sectors.sum", "l1tex__m_l1tex2xbar_write_sectors.sum",
    "l1tex__m_xbar2l1tex_read_sectors_mem_dshared.sum", "smsp__inst_executed.sum", "smsp__inst_executed_op_shared.sum",
    "smsp__inst_executed_pipe_uniform.sum", "sm__inst_executed_pipe_tma.sum", "sm__cycles_elapsed.max",
    "sm__cycles_active.sum",
]  # fmt: skip
#: Names of ncu's that may be of interest; listed in ``metrics.txt``.
_LISTED = re.compile(
    r"^\S*(?:gmma|tensor|tma|ublk|mbar|dshared|lts__t_(?:sectors|requests)|data_bank|data_pipe)\S*", re.MULTILINE
)
#: Instructions whose counts are recorded by line.
_OPCODES = re.compile(
    r"[HQI]GMMA|WARPGROUP|UTMA|UBLK|SYNCS|STSM|LDSM|FENCE|ELECT|UCGABAR|USETMAXREG|LDS|STS|LDG|STG|BAR|MAPA|MEMBAR"
)


# ---- launches ---------------------------------------------------------------------------------------------------------


class Prepared:
    """A launch on the GPU: memory of its matrices, tensor maps over them, and the addresses of all arguments."""

    def __init__(self, kernel: AsynchronousKernel, launch: Launch) -> None:
        self.gpu, self.kernel, self.launch = open_device(), kernel, launch
        self.function = loaded(kernel)
        self.memory = {i: self.gpu.put(matrix) for i, matrix in self.matrices()}
        self.values = [self._bytes(i, arg) for i, arg in enumerate(launch.args)]
        self.addresses = np.array([value.ctypes.data for value in self.values], np.uint64)
        self.grid = [*launch.grid, 1, 1][:3]

    def matrices(self) -> Iterator[tuple[int, Array]]:
        for i, arg in enumerate(self.launch.args):
            matrix = arg.array if isinstance(arg, TileMap) else arg
            if isinstance(matrix, np.ndarray):
                yield i, matrix

    def _bytes(self, index: int, arg: Any) -> Array:
        if isinstance(arg, TileMap):
            return np.frombuffer(encoded(arg, self.memory[index].pointer), np.uint8)
        return np.array([self.memory[index].pointer], np.uint64) if index in self.memory else np.array([arg], np.int32)

    def submit(self) -> None:
        block = self.kernel.block, 1, 1
        more = self.kernel.shared_bytes, self.gpu.stream, self.addresses.ctypes.data, 0
        call(self.kernel.name, "cuLaunchKernel", self.function, *self.grid, *block, *more)

    def results(self) -> dict[int, Array]:
        self.gpu.wait(self.kernel.name)
        return {i: self.gpu.get(self.memory[i], m.dtype, m.shape) for i, m in self.matrices() if i in self.launch.right}

    def seconds(self) -> list[float]:
        """Seconds of a launch, in batches of a millisecond or more; operands that fit stay in the second-level cache."""
        timer = self.gpu.timer()

        def batch(count: int) -> float:
            timer.start()
            for _ in range(count):
                self.submit()
            return timer.stop() / count

        once = min(batch(1) for _ in range(3))
        return [batch(max(1, round(1e-3 / once))) for _ in range(9)]

    def close(self) -> None:
        for memory in self.memory.values():
            memory.close()


_compiled: dict[str, Compiled] = {}
_functions: dict[str, Any] = {}


def compiled(kernel: AsynchronousKernel) -> Compiled:
    if kernel.name not in _compiled:
        _compiled[kernel.name] = compile_file(kernel.path, arch=ARCH, defines=kernel.defines)
    return _compiled[kernel.name]


def loaded(kernel: AsynchronousKernel) -> Any:
    if kernel.name not in _functions:
        (module,) = call(kernel.name, "cuModuleLoadData", compiled(kernel).cubin)
        (function,) = call(kernel.name, "cuModuleGetFunction", module, kernel.entry.encode())
        attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(kernel.name, "cuFuncSetAttribute", function, attribute, kernel.shared_bytes)
        _functions[kernel.name] = function
    return _functions[kernel.name]


def encoded(tile: TileMap, pointer: int) -> bytes:
    """The 128 bytes of a tensor map."""
    cuda, given = driver(), tile.in_driver_order()
    swizzle = "NONE" if tile.swizzle == 0 else f"{tile.swizzle}B"
    (made,) = call(
        "a tensor map", "cuTensorMapEncodeTiled",
        getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{given['type']}"), 2, pointer,
        [cuda.cuuint64_t(extent) for extent in given["extents"]], [cuda.cuuint64_t(s) for s in given["strides"]],
        [cuda.cuuint32_t(extent) for extent in given["box"]], [cuda.cuuint32_t(1)] * 2,
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    return ctypes.string_at(int(made.getPtr()), 128)


# ---- what is recorded -------------------------------------------------------------------------------------------------


def checked(kernel: AsynchronousKernel, size: str, kind: str, failed: list[str]) -> tuple[Prepared, dict[int, Array]]:
    """One launch, compared with NumPy; what is wrong is added to ``failed``."""
    prepared = Prepared(kernel, kernel.launch(size, kind))
    prepared.submit()
    results = prepared.results()
    failed += [f"{size}, {kind}: {what}" for what in differences(kernel, prepared.launch, results)]
    return prepared, results


def row_of(kernel: AsynchronousKernel, size: str, whole: dict[str, Array], failed: list[str]) -> dict[str, Any]:
    """Check one size, and time it; results of the small size are kept in ``whole``."""
    if size != LARGE:  # the right answer of the large one is rounded
        checked(kernel, size, WHOLE, failed)[0].close()
    prepared, results = checked(kernel, size, RANDOM, failed)
    if size == SMALL:
        whole.update({f"{kernel.name}.{argument}": array for argument, array in results.items()})
    samples = prepared.seconds()
    prepared.close()
    needs = compiled(kernel).resources[kernel.entry]
    return {
        "kernel": kernel.name, "source": kernel.source, "size": size, "extents": kernel.sizes[size],
        "grid": prepared.grid, "block": kernel.block, "cluster": kernel.cluster, "shared_bytes": kernel.shared_bytes,
        "registers": needs.registers, "local_bytes": needs.local_bytes, "log": compiled(kernel).log,
        "digests": {argument: hashlib.sha256(array.tobytes()).hexdigest() for argument, array in results.items()},
        "seconds": statistics.median(samples), "samples": samples,
    }  # fmt: skip


def available() -> tuple[list[str], list[str]]:
    """The wanted counters that ncu has for this GPU, and its names that may be wanted next."""
    command = [str(measure.find_ncu()), "--query-metrics", "--chips", "gh100"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = {line.split()[0] for line in names.splitlines() if "__" in line}
    return [name for name in _WANTED if name.rpartition(".")[0] in known], sorted(set(_LISTED.findall(names)))


def counted(rows: list[dict[str, Any]], names: Sequence[str], metrics: Sequence[str]) -> None:
    """Add counters to the rows of the small and the medium size: all launches again, under ncu."""
    command = [sys.executable, __file__, "--launch", "-", *names]
    profiles = measure.profile(command, metrics=metrics, timeout=400)
    chosen = [row for row in rows if row["size"] != LARGE]
    if len(chosen) != len(profiles):
        raise TilewrightError(f"{len(chosen)} launches were made, but ncu counted {len(profiles)}")
    for row, profile in zip(chosen, profiles, strict=True):
        kernel = KERNELS[row["kernel"]]
        row["counters"] = {name: value for name, value in profile.counters.items() if value}
        code = {i.offset: i for i in parse_sass(disassemble(compiled(kernel).cubin))[kernel.entry]}
        row["instructions"] = [
            instruction_row(code[each.offset], each)
            for each in profile.instructions
            if each.offset in code and _OPCODES.match(code[each.offset].opcode)
        ]


def instruction_row(code: Any, found: measure.CountedInstruction) -> dict[str, Any]:
    return {"file": Path(code.file).name, "line": code.line, "opcode": code.opcode, **found.counts}


def launch_all(names: Sequence[str]) -> None:
    """Under ncu: every kernel once at the small and once at the medium size."""
    for name in names:
        for size in (SMALL, MEDIUM):
            prepared = Prepared(KERNELS[name], KERNELS[name].launch(size, RANDOM))
            prepared.submit()
            prepared.results()
            prepared.close()


def record(out: Path, names: Sequence[str]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    whole: dict[str, Array] = {}
    for name in names:
        for size in KERNELS[name].sizes:
            begin = time.perf_counter()
            rows.append(row_of(KERNELS[name], size, whole, failed))
            took = time.perf_counter() - begin
            print(f"{name:18} {size:7} {rows[-1]['seconds'] * 1e6:10.1f} µs   ({took:.1f} s)", flush=True)
    np.savez_compressed(out / "asynchronous-h200.npz", **whole)
    try:
        metrics, listed = available()
        (out / "metrics.txt").write_text("\n".join(listed) + "\n")
        counted(rows, names, metrics)
    except (TilewrightError, subprocess.SubprocessError) as error:
        failed.append(f"ncu: {error}")
    environment = {
        **tools(),
        "compiler": compiler(),
        "arch": ARCH,
        "command": "python benchmarks/record_asynchronous.py OUTDIR",
    }
    environment["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    lines = [{"kind": "asynchronous kernels", "schema": 1, "environment": environment}, *rows]
    (out / "asynchronous-h200.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print("\n".join(failed) or f"{len(rows)} launches: all as expected")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the asynchronous kernels on a GPU.")
    parser.add_argument("--launch", action="store_true", help="only launch them, for ncu")
    parser.add_argument("out", type=Path, metavar="OUTDIR")
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels; all of them if none is named")
    given = parser.parse_args()
    names = given.names or list(KERNELS)
    if given.launch:
        launch_all(names)
        return 0
    return record(given.out, names)


if __name__ == "__main__":
    sys.exit(main())
