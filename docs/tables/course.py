"""The course from rung to rung: what each kernel says of itself, and what the records measured of it and of its parent."""

from __future__ import annotations

from tilewright.kernels.catalog import catalog, cuda_catalog
from tilewright.records.bench import BenchRecord

from .common import ROOT, command, linked, records_of
from .cpu import SIZE, threads

#: The records that the course quotes, and the size on a GPU: the largest at which all rungs are steady.
CPU, CUDA, CUDA_SIZE = "cpu-ladder-float32", "cuda-ladder-h200", 4096
#: The rungs whose operands are tensor maps, measured together with their first parent.
WGMMA = "wgmma-ladder-h200"


def rungs() -> list[str]:
    """The rungs of both ladders that the records have, in reading order."""
    measured = {record.kernel for name in (CPU, CUDA, WGMMA) for record in records_of(name)}
    kernels = (*catalog().values(), *cuda_catalog().values())
    return [kernel.name for kernel in kernels if kernel.name in measured and not kernel.is_reference]


def rung(name: str) -> str:
    """The idea of a rung, with a link to its file, and its measured gain over its parent."""
    kernel = {**catalog(), **cuda_catalog()}[name]
    source = kernel.path.relative_to(ROOT / "src").as_posix()
    measured = _on_cpu(name, kernel.parent) if name.startswith("cpu/") else _on_cuda(name, kernel.parent)
    return f"{kernel.idea} ([`{kernel.path.name}`](../src/{source}))\n\n**Measured.** {measured}"


def _on_cpu(name: str, parent: str | None) -> str:
    records = records_of(CPU)
    # A recursion ends above the size of the tables: there it is its leaf.
    size = max(r.n for r in records) if catalog()[name].over else SIZE
    of = {(r.kernel, r.threads): r for r in records if r.n == r.m == size and r.gflops}
    counts = sorted(count for kernel, count in of if kernel == name)
    said = [
        f"{_number(of[name, count])} GFLOPS on {threads(count)}{_gain_on_cpu(of, name, parent, count)}"
        for count in counts
    ]
    return f"At {size:,}: {', '.join(said)}."


def _gain_on_cpu(of: dict[tuple[str, int], BenchRecord], name: str, parent: str | None, count: int) -> str:
    """Against the parent on as many threads, or on one where it has no more."""
    if parent is None:
        return ""
    if (parent, count) in of:
        return f" ({_factor(of[name, count], of[parent, count])} `{parent}`)"
    if (parent, 1) in of:
        return f" ({_factor(of[name, count], of[parent, 1])} `{parent}` on 1 thread)"
    return ""


def _on_cuda(name: str, parent: str | None) -> str:
    record = WGMMA if cuda_catalog()[name].boxes else CUDA
    of = {r.kernel: r for r in records_of(record) if r.n == CUDA_SIZE and r.gflops and not r.kernel.startswith("ref/")}
    own, before = of[name], of.get(parent or "")
    rate = own.gflops / 1000
    said = f"{rate:.{0 if rate >= 100 else 1 if rate >= 10 else 2}f} TFLOPS at {CUDA_SIZE:,} in {own.dtype}"
    if before and before.dtype == own.dtype:
        said += f", {_factor(own, before)} `{parent}`"
    elif before:
        said += f"; its parent `{parent}` is for {before.dtype}"
    return f"{said}. cuBLAS takes {own.ratio:.2f} of its time."


def _number(record: BenchRecord) -> str:
    return f"{record.gflops:.{0 if record.gflops >= 100 else 1}f}"


def _factor(own: BenchRecord, before: BenchRecord) -> str:
    factor = own.gflops / before.gflops
    return f"{factor:.{2 if factor < 9.95 else 0}f} times"


def machine(name: str) -> str:
    """Where the course's figures are from."""
    first = records_of(name)[0]
    environment = first.environment
    what = environment.get("gpu") or f"{environment['processor']}, {environment['cores']} cores"
    kind = "TFLOPS of several dtypes" if environment.get("gpu") else f"GFLOPS in {first.dtype}"
    return f"All figures on this page: {kind}, {what}. Record: {linked(name)}, made by `{command(environment)}`."
