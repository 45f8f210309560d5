"""Explains a CUDA kernel at a size on a GPU, without that GPU: formulas beside counts, occupancy, bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from ..explanation import Access, Bound, Defect, Explanation, Formula
from ..kernels.cuda_kernel import CudaKernel, Launch
from ..machine import machine
from ..run.cuda import Compiled, architectures, compile_kernel, compiler
from . import formulas
from .environment import environment
from .formats import FORMATS, format_of
from .gpus import Gpu, find_gpu
from .microscope import Observation, observe
from .occupancy import Occupancy, occupancy
from .simt.ptx import parse
from .simt.simulate import MAX_BYTES
from .verify import Check, Oracle

#: Products up to this m·n·k have every block run; larger ones a sample. 512³ takes some seconds.
WHOLE = 512**3
#: A wavefront of global memory moves this many sectors: 128 bytes.
SECTORS_A_WAVEFRONT = 4

_SPACES = {"load": ("ld", "cp.async"), "store": ("st",)}


def explain(
    kernel: CudaKernel,
    m: int,
    n: int,
    k: int,
    *,
    gpu: str = "H200",
    params: Mapping[str, int] | None = None,
    whole: bool | None = None,
    seed: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Explanation:
    """What ``kernel`` does for C[m×n] = A[m×k]·B[k×n] on ``gpu``, counted by the microscope on random operands.

    ``params`` are those that differ from the defaults. ``whole`` runs every block; None does up to m·n·k = 512³ and takes a
    sample beyond. Raises UsageError for a GPU, parameters or sizes that cannot be, and what the compiler and the microscope
    raise.
    """
    chosen = kernel.checked(params or {})
    card = find_gpu(gpu)
    arch, notes = arch_for(kernel, card)
    compiled = compile_kernel(kernel, arch=arch, **chosen)
    launch = kernel.launch(m, n, k, **chosen)
    if not launch.blocks:
        raise UsageError(f"{kernel.name} at {m}x{n}x{k}: C has no elements, so nothing is launched")
    a, b, c = operands(kernel, m, n, k, seed)
    sampled = m * n * k > WHOLE if whole is None else not whole
    entry = compiled.entry(kernel.entry)
    seen = observe(
        parse(compiled.ptx),
        entry,
        launch.grid,
        launch.block,
        [a, b, c, m, n, k],
        text=kernel.source,
        name=str(kernel.path),
        compiled=compiled,
        sampled=sampled,
        outputs=[2],
        shared_bytes=launch.shared_bytes,
        max_bytes=(machine().memory_total or 2 * MAX_BYTES) // 2,
        progress=progress,
    )
    work = Work(formulas.gemm_flops(m, n, k), sum(array.nbytes for array in (a, b, c)))
    resident = occupancy_of(compiled, entry, launch, card)
    return Explanation(
        kernel=kernel.name,
        file=kernel.path.name,
        source=kernel.source,
        m=m,
        n=n,
        k=k,
        dtype=kernel.dtypes[0],
        params=chosen,
        about=kernel.about,
        gpu=_card(card, kernel.dtypes[0], compiled),
        launch=dataclasses.asdict(launch) | {"blocks": launch.blocks, "threads": launch.threads},
        resources=dataclasses.asdict(compiled.resources[entry]),
        occupancy=_occupancy(card, resident),
        accesses=seen.accesses,
        counters=seen.counters,
        formulas=[*_formulas(kernel, m, n, k, chosen, seen.accesses), *_s3_1(kernel, m, n, k, chosen, seen.accesses)],
        bounds=bounds(card, _peak(card, kernel.dtypes[0], compiled), work, launch.blocks, seen.accesses),
        defects=[Defect(f.kind, f.line, f.block, f.thread, f.text) for f in seen.findings],
        verified=_verified(kernel, a, b, seen),
        run=_run(seen),
        notes=[*notes, *kernel.notes, *seen.notes],
        environment=environment(operands=f"uniform [-1, 1), seed {seed}") | {"compiler": compiler(), "arch": arch},
    )


def arch_for(kernel: CudaKernel, card: Gpu) -> tuple[str, list[str]]:
    """What to compile for: the card's own architecture, or for one too old for this compiler the oldest it knows."""
    known = architectures()
    if kernel.capability[-1] in "af" and card.arch == f"sm_{kernel.capability[:-1].replace('.', '')}":
        return f"{card.arch}{kernel.capability[-1]}", []
    if card.arch in known:
        return card.arch, []
    oldest = known[0]
    return oldest, [f"registers are those of {oldest}: {compiler()} does not compile for the {card.name} ({card.arch})"]


def operands(kernel: CudaKernel, m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A and B, and a C of NaN, so that an element nobody writes is seen; as they are stored (see ``formats``)."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    rng = np.random.default_rng(seed)
    made = [rng.random(shape, form.working) for shape in ((m, k), (k, n))]
    for array in made:
        array *= 2
        array -= 1
    a, b = (form.stored(array) for array in made)
    return a, b, form.stored(np.full((m, n), np.nan, form.working))


def verified(kernel: CudaKernel, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, sampled: bool = False) -> Check:
    """Is ``c`` the product, within what the kernel's format promises? ``sampled``: of the elements that were written."""
    form = format_of(kernel.dtypes[0], kernel.precision)
    oracle = Oracle(form.values(a), form.values(b))
    own = None if form == FORMATS.get(form.name) and form.rounding == 0 else form
    return (oracle.check_written if sampled else oracle.check)(form.values(c), form=own)


def occupancy_of(compiled: Compiled, entry: str, launch: Launch, card: Gpu) -> Occupancy:
    """How many blocks of a compiled kernel a multiprocessor of the card holds."""
    needs = compiled.resources[entry]
    return occupancy(card, launch.threads, needs.registers, needs.shared_bytes + launch.shared_bytes)


# ---- counts by formula -----------------------------------------------------------------------------------------------


def counted(accesses: Sequence[Access], name: str) -> int:
    """What the microscope counted of a formula's name: ``global_load_sectors``.

    >>> counted([Access(7, "global", "ld", 4, requests=2, bytes=256, sectors=8)], "global_load_sectors")
    8
    """
    space, kind, what = name.split("_")
    return sum(getattr(a, what) for a in accesses if a.space == space and a.kind in _SPACES[kind])


def _formulas(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    found = []
    for name, formula in kernel.formulas.items():
        space, kind, what = name.split("_")
        value = formula(m=m, n=n, k=k, **params)
        found.append(Formula(kernel.row, f"{space} {kind}s, {what}", formula.text, value, counted(accesses, name)))
    return found


def _s3_1(
    kernel: CudaKernel, m: int, n: int, k: int, params: Mapping[str, int], accesses: Sequence[Access]
) -> list[Formula]:
    """S3.1: operations for each element that crosses from or to global memory, by the tile and as counted."""
    moved = sum(a.sectors for a in accesses if a.space == "global") * formulas.SECTOR
    elements = moved / format_of(kernel.dtypes[0]).itemsize
    if not kernel.tile or not elements:
        return []
    w, h = (side(m=m, n=n, k=k, **params) for side in kernel.tile)
    what = f"operations for an element moved, tile {w}×{h}"
    value = formulas.operations_per_access(w, h, k) if k else None
    return [Formula("S3.1", what, "2whk / (wh + wk + kh)", value, 2 * m * n * k / elements)]


# ---- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What any kernel must do for a product: operations, and the bytes of its operands, each moved once."""

    operations: int
    bytes: int


def bounds(card: Gpu, peak: float | None, work: Work, blocks: int, accesses: Sequence[Access]) -> list[Bound]:
    """The least time that arithmetic, device memory and the memory pipe of the multiprocessors allow.

    Device memory must move each operand once. The pipe of a multiprocessor (L1 and shared memory) takes a wavefront a
    cycle: four sectors of global memory, or one turn of the banks. Fewer blocks than multiprocessors leave some idle. None
    of these knows latency, so all are optimistic.
    """
    found = []
    busy = min(blocks, card.sms)
    if peak:
        found.append(Bound("arithmetic", work.operations, "operations", peak * 1e9 * busy / card.sms))
    if card.bandwidth_gbs:
        found.append(Bound("device memory", work.bytes, "bytes", card.bandwidth_gbs * 1e9))
    if card.clock_mhz:
        wavefronts = sum(
            a.wavefronts if a.space == "shared" else max(a.requests, -(-a.sectors // SECTORS_A_WAVEFRONT))
            for a in accesses
        )
        found.append(Bound("L1 and shared memory", wavefronts, "wavefronts", busy * card.clock_mhz * 1e6))
    return found


def _peak(card: Gpu, dtype: str, compiled: Compiled) -> float | None:
    """GFLOPS of the unit that the kernel computes with, None where the table does not have it."""
    matrix = "mma." in compiled.ptx
    if dtype == "float64":
        return card.fp64_tensor_gflops if matrix else card.fp64_gflops
    return card.fp32_gflops if dtype == "float32" and not matrix else None


def _card(card: Gpu, dtype: str, compiled: Compiled) -> dict[str, Any]:
    major, minor = card.compute_capability
    return {
        "name": card.name,
        "compute_capability": f"{major}.{minor}",
        "sms": card.sms,
        "clock_mhz": card.clock_mhz,
        "peak_gflops": _peak(card, dtype, compiled),
        "bandwidth_gbs": card.bandwidth_gbs,
        "source": card.source,
    }


# ---- the rest --------------------------------------------------------------------------------------------------------


def _occupancy(card: Gpu, resident: Occupancy) -> dict[str, Any]:
    limits = card.limits
    by_registers = [
        (count, occupancy(card, resident.threads, count, resident.shared).warps)
        for count in range(16, limits.registers_per_thread + 1)
    ]
    by_shared = [
        (size, occupancy(card, resident.threads, resident.registers, size).warps)
        for size in range(0, limits.shared_per_block_optin + 1, 1024)
    ]
    return {
        **{name: getattr(resident, name) for name in ("blocks", "warps", "max_warps", "fraction", "limits")},
        **{name: getattr(resident, name) for name in ("threads", "registers", "shared")},
        "limiting": list(resident.limiting),
        "by_registers": by_registers,
        "by_shared": by_shared,
    }


def _verified(kernel: CudaKernel, a: np.ndarray, b: np.ndarray, seen: Observation) -> dict[str, Any]:
    sampled = seen.run.sampled
    check = verified(kernel, a, b, seen.arrays[2], sampled=sampled)
    of = "the elements that the sampled blocks wrote" if sampled else "every element"
    worst = check.error_over_bound if math.isfinite(check.error_over_bound) else None  # JSON has no infinity
    return {"ok": check.ok, "reason": check.reason, "error_over_bound": worst, "of": of}


def _run(seen: Observation) -> dict[str, Any]:
    run = seen.run
    return {
        "blocks_run": run.blocks_run,
        "blocks_total": run.blocks_total,
        "steps": run.steps,
        "exact": seen.exact,
        "words": seen.words,
        "seconds": seen.seconds,
    }
