"""Products by the kernels of residues, executed by the microscope."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from support import simulated_libraries as fake
from tilewright.gpu.runtime import compilations, residue_product
from tilewright.gpu.runtime.compilations import Compilations
from tilewright.gpu.runtime.residue_product import residue_steps, residues_of_rows
from tilewright.gpu.runtime.steps import load
from tilewright.host.sources import PACKAGE
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

ENGINE = PACKAGE / "gpu" / "kernels"
RESIDUES = cuda_engine()["cuda/residues_hopper"]
#: That of other cards.
RESIDUES_MMA = cuda_engine()["cuda/residues_mma"]
#: ``Norm`` and ``Line`` in the sources.
NORM = np.dtype([("exponent", np.int32), ("squares", np.float32)])
LINE = np.dtype([("sum", np.uint64), ("shift", np.int16), ("bits", np.int16), ("kind", np.int32)])
#: Parameters of tiles that the microscope multiplies sooner.
NARROW = {"BN": 64, "CLUSTER": 1}
#: Of operands: shapes, and how they lie; of tiles: parameters.
LAID = [
    (((130, 129), (129, 70)), ("rows", "rows")), (((33, 131), (131, 5)), ("columns", "columns")),
    (((1, 150), (150, 29)), ("wider", "columns")), (((40, 131), (131, 33)), ("strided", "reversed")),
    (((65, 129), (129, 1)), ("neither", "wider")),
]  # fmt: skip
TILES = [{"BN": 128, "CLUSTER": 2, "GROUP": 1}, {"STAGES": 2}, {"BN": 256}]
LAUNCHES = ["find_norms", "write_residues", *["residues_hopper"] * 2, "reconstruct", "multiply_flagged_f64"]


def residues_alone(
    monkeypatch: Any, kernel: CudaKernel = RESIDUES, capability: str = "9.0", arch: str = "sm_90a"
) -> Any:
    """A simulated GPU on which all products are computed from residues, whatever their size."""
    gpu = fake.Gpu(1 << 28)
    gpu.sms, gpu.capability, gpu.arch = 2, capability, arch
    fake.install(monkeypatch, [gpu])
    monkeypatch.setattr("tilewright.gpu.arrays.split._LEAST", {})
    narrow = [replace(p, default=NARROW.get(p.name, p.default)) for p in kernel.parameters]
    fake.engine_alone(monkeypatch, replace(kernel, suits=None, presets=(), parameters=tuple(narrow)))
    return gpu


def small_gpu() -> Any:
    gpu = fake.Gpu(1 << 23)
    gpu.sms = 2
    return gpu


def by_kernel(
    gpu: Any,
    kernel: CudaKernel,
    a: np.ndarray,
    b: np.ndarray,
    moduli: int | None = None,
    launches: int | None = None,
    **params: int,
) -> np.ndarray:
    """The product of matrices that lie row by row; ``gpu.flags`` are then those of the parts of C, ``gpu.norms`` those of
    the parts of lines of A and B, and ``gpu.lines`` what is known of these lines. ``launches``: only so many are done."""
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype.name
    made = residues_of_rows(m, n, k, moduli, dtype)
    at = [gpu.put(a).pointer, gpu.put(b).pointer, (c := gpu.put(np.full((m, n), np.nan, dtype))).pointer]
    workspace = gpu.allocate(made.workspace_bytes)
    narrow = {name: value for name, value in NARROW.items() if name in kernel.params}
    steps = residue_steps(gpu.sms, kernel, narrow | params, made)
    load(gpu, steps[:launches])(*at, workspace.pointer, 1)
    first = made.a.workspace_bytes + made.b.workspace_bytes + made.residues_bytes(params.get("BN", NARROW["BN"]))
    everything = gpu.get(workspace, np.uint8, (made.workspace_bytes,))
    gpu.flags = everything[first : first + 4 * made.parts].view(np.int32)
    gpu.norms, gpu.lines = [], []
    for operand, at_operand in ((made.a, 0), (made.b, made.a.workspace_bytes)):
        norms, lines = (everything[at_operand + at :] for at in (operand.norms_offset, operand.lines_offset))
        found = norms[: 8 * operand.parts * operand.padded].view(NORM).reshape(operand.parts, operand.padded)
        gpu.norms.append(found[:, : operand.lines])
        gpu.lines.append(lines[: LINE.itemsize * operand.lines].view(LINE))
    return gpu.get(c, dtype, (m, n))


def changed(folder: Path, monkeypatch: Any, file: str, before: str, after: str) -> CudaKernel:
    """The kernel that multiplies, compiled as all others from a copy of the engine in which a file is changed."""
    engine = folder / "gpu" / "kernels"
    shutil.copytree(ENGINE, engine)
    shutil.copytree(PACKAGE / "kernels" / "cuda", folder / "kernels" / "cuda")
    source = (engine / file).read_text()
    assert source.count(before) == 1
    (engine / file).write_text(source.replace(before, after))
    monkeypatch.setattr(residue_product, "_ENGINE", engine)
    monkeypatch.setattr(compilations, "_compilations", Compilations())
    path = engine / RESIDUES.path.name
    return replace(RESIDUES, path=path, source=path.read_text())
