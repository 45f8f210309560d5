"""The ladder on the CPU."""

from __future__ import annotations

from tilewright.kernels import catalog, cuda_catalog
from tilewright.records import VERDICTS, BenchRecord

from .common import ROOT, at, linked, records_of, table

#: The size that the tables quote: no power of two, beyond the caches near the core.
SIZE = 1000


def rate(record: BenchRecord | None) -> str:
    """GFLOPS and R, or why there is none."""
    if record is None or record.gflops is None:
        return "–" if record is None else VERDICTS[record.verdict]
    digits = 0 if record.gflops >= 100 else 1
    return f"{record.gflops:.{digits}f}" + (f" ({record.ratio:.2f})" if record.ratio is not None else "")


def ladder_table(name: str) -> str:
    """Kernels down; GFLOPS with R in brackets on one thread and on all."""
    records = records_of(name)
    counts = sorted({r.threads for r in records})
    rows = [["kernel", *(threads(count) for count in counts)]]
    for kernel in dict.fromkeys(r.kernel for r in records):
        rows.append([f"`{kernel}`", *(rate(at(records, kernel, SIZE, count)) for count in counts)])
    return table(rows) + "\n\n" + provenance(name, records)


def threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def provenance(name: str, records: list[BenchRecord]) -> str:
    """What was measured where, and by which command."""
    first = records[0]
    environment = first.environment
    known = {r.threads: r.peak_gflops for r in records if r.peak_gflops}
    peaks = ", ".join(f"{peak:.0f} GFLOPS on {threads(count)}" for count, peak in sorted(known.items()))
    kernels = environment["blas_kernels"].get("openblas", "unknown")
    return (
        f"{first.dtype}, n = {SIZE}: GFLOPS, and in brackets R, the time of numpy's OpenBLAS on as many threads over ours. "
        f"{environment['processor']} ({environment['llvm_cpu']} to LLVM; {kernels} kernels in OpenBLAS), "
        f"{environment['cores']} cores; measured FMA peak {peaks}. Record: "
        f"{linked(name)}, made by `{environment['command']}`."
    )


def forced_openblas() -> str:
    """How far OpenBLAS's choice of kernels is the reason, in a sentence."""
    records = records_of("cpu-openblas-avx512")
    parts = []
    for dtype in dict.fromkeys(r.dtype for r in records):
        ours = [r for r in records if r.dtype == dtype and r.kernel == "cpu/register_tile" and r.ratio is not None]
        parts.append(f"{dtype} " + ", ".join(f"{r.ratio:.2f} at {r.n} on {threads(r.threads)}" for r in ours))
    chosen = records_of("cpu-ladder-float32")[0].environment["blas_kernels"]["openblas"]
    forced = records[0].environment["blas_kernels"]["openblas"]
    return (
        f"OpenBLAS takes its {chosen} kernels on this processor, which it does not know. Told to take those for AVX-512 "
        f"(`OPENBLAS_CORETYPE={forced}`), it is faster, and R of the register tile is: {'; '.join(parts)} "
        f"([record](../benchmarks/cpu-openblas-avx512.jsonl))."
    )


def ideas() -> str:
    """Every rung with its idea and its parent, from the kernels themselves."""
    lines = []
    for kernel in (*catalog().values(), *cuda_catalog().values()):
        if not kernel.is_reference:
            source = kernel.path.relative_to(ROOT / "src").as_posix()
            lines.append(f"- [`{kernel.name}`](../src/{source}) {kernel.idea}")
    return "\n".join(lines)
