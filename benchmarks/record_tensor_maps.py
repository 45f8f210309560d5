"""Run the cases of ``tests/support/tensor_map_cases.py`` on a Hopper GPU, and record the bits that the copy engine makes.

``python benchmarks/record_tensor_maps.py OUTDIR`` compares each with the microscope and prints those that differ. Of what it
writes, ``tensor-maps-h200.npz`` goes to ``tests/data``: for each case the box as it lay in shared memory, the array after a
store or a reduction, or the driver's error. Exits with 1 if anything differs.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.driver import call, driver
from tilewright.simulator.machine.tensor_map import TensorMap

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.tensor_map_cases import MapCase, cases, stopped_cases

Array = np.ndarray[Any, Any]
#: The driver's names of the types.
NAMES = {"u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "s32": "INT32", "u64": "UINT64", "s64": "INT64", "f16": "FLOAT16",
         "f32": "FLOAT32", "f64": "FLOAT64", "bf16": "BFLOAT16", "f32_ftz": "FLOAT32_FTZ", "tf32": "TFLOAT32",
         "tf32_ftz": "TFLOAT32_FTZ"}  # fmt: skip
#: Seconds after which no more processes are begun: a launch that the GPU stops ends all GPU work of its process.
MOST_SECONDS = 45


def encoded(given: TensorMap, pointer: int) -> Array:
    """The 128 bytes that the driver makes of a map."""
    cuda, t = driver(), given.tensor
    fill = "NONE" if t.fill == "zero" else "NAN_REQUEST_ZERO_FMA"
    (made,) = call(
        "a tensor map", "cuTensorMapEncodeTiled",
        getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{NAMES[t.type]}"), len(t.sizes), pointer + given.offset,
        # A map of one dimension has no strides, but the driver refuses an empty list.
        [cuda.cuuint64_t(n) for n in t.sizes], [cuda.cuuint64_t(n) for n in t.strides[1:] or (16,)],
        [cuda.cuuint32_t(n) for n in t.box], [cuda.cuuint32_t(n) for n in t.element_strides],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{t.swizzle}B' if t.swizzle else 'NONE'}"),
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        getattr(cuda.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
    )  # fmt: skip
    return np.frombuffer(ctypes.string_at(int(made.getPtr()), 128), np.uint8)


def made_on_gpu(case: MapCase) -> list[Array]:
    """The box as it lay in shared memory, and the second array after the kernel."""
    gpu, args = open_device(), case.arguments
    (module,) = call(case.name, "cuModuleLoadData", case.compiled().cubin)
    (function,) = call(case.name, "cuModuleGetFunction", module, b"k")
    arrays = {id(a): a for a in (case.source.array, args[2], args[3])}
    memory = {key: gpu.put(array) for key, array in arrays.items()}
    values: list[Array] = [encoded(arg, memory[id(arg.array)].pointer) for arg in args[:2]]
    values += [np.array([memory[id(arg)].pointer], np.uint64) for arg in args[2:4]]
    values += [np.array([arg]) for arg in args[4:]]
    addresses = np.array([value.ctypes.data for value in values], np.uint64)
    call(case.name, "cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, gpu.stream, addresses.ctypes.data, 0)
    gpu.wait(case.name)
    results = [gpu.get(memory[id(arg)], arg.dtype, arg.shape) for arg in args[2:4]]
    for each in memory.values():
        each.close()
    call(case.name, "cuModuleUnload", module)
    return results


def every_case() -> list[MapCase]:
    return [*cases(), *stopped_cases()]


def record(out: Path, start: int) -> None:
    """Run the cases from ``start`` to one that the GPU stops, and write what they made, and the number of the next case."""
    recorded: dict[str, Array] = {}
    every = every_case()
    reached = len(every)
    for number, case in enumerate(every[start:], start):
        predicted, findings = case.simulated()
        try:
            made = made_on_gpu(case)
        except LaunchError as error:
            found = re.search(r"CUDA_ERROR_\w+", str(error))
            recorded[f"{case.name}|stopped"] = np.array(found[0] if found else str(error))
            if not case.name.startswith("stopped ") or not found or "ILLEGAL_INSTRUCTION" not in found[0]:
                print(f"{case.name} differs: stopped: {error}", flush=True)
            reached = number + 1
            break
        recorded |= {f"{case.name}|{part}": array for part, array in zip(case.parts, made, strict=False)}
        if case.name.startswith("stopped "):
            print(f"{case.name} differs: the GPU ran it; here {[f.kind for f in findings]}", flush=True)
        for part, array, expected in zip(("box", "memory"), made, predicted, strict=True):
            if array.tobytes() != expected.tobytes():
                print(f"{case.name} differs: {part}: {difference(array, expected, case)}", flush=True)
    np.savez_compressed(out, next=reached, **recorded)  # type: ignore[arg-type]


def main() -> int:
    out = Path(sys.argv[1])
    if len(sys.argv) > 2:
        record(out, int(sys.argv[2]))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    start, total, text, whole = 0, len(every_case()), "", dict[str, Array]()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        while start < total and time.perf_counter() - begun < MOST_SECONDS:
            part = Path(folder, f"{start}.npz")
            command = [sys.executable, __file__, str(part), str(start)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            text += made.stdout
            if made.returncode:
                text += made.stderr[-2000:]
                break
            whole |= np.load(part)
            start = int(whole.pop("next"))
    np.savez_compressed(out / "tensor-maps-h200.npz", **whole)  # type: ignore[arg-type]
    seen = {name.rpartition("|")[0] for name in whole}
    print(text[-8000:] + f"{len(seen)} of {total} cases recorded, {text.count(' differs: ')} differences")
    return 0 if len(seen) == total and " differs: " not in text else 1


def difference(made: Array, expected: Array, case: MapCase) -> str:
    """The first words that differ."""
    size = case.source.tensor.itemsize
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).view(f"u{size}") for x in (made, expected))
    at = np.flatnonzero(a != b)
    before = np.ascontiguousarray(case.arguments[3]).reshape(-1).view(np.uint8).view(f"u{size}")
    words = [
        f"[{i}] GPU {a[i]:#x}, here {b[i]:#x}" + (f", was {before[i]:#x}" if before.size == a.size else "")
        for i in at[:4]
    ]
    return f"{at.size} of {a.size} words: {'; '.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
