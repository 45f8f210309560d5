"""The ladder on the CPU."""

from __future__ import annotations

from tilewright.kernels.catalog import catalog, cuda_catalog
from tilewright.records.bench import VERDICTS, BenchRecord
from tilewright.records.compare import is_unclear

from .common import ROOT, at, command, lines_of, linked, made_by, records_of, table

#: The size that the tables quote: no power of two, beyond the caches near the core.
SIZE = 1000
#: Libraries that the bench may measure beside OpenBLAS.
LIBRARIES = {"ref/mkl": "MKL", "ref/blis": "BLIS", "ref/torch": "PyTorch with MKL"}
#: What ``doubt`` means, for a reader.
DOUBT = "A `?` after R means that the samples do not show whether R is above or below 1."


def rate(record: BenchRecord | None) -> str:
    """GFLOPS and R, or why there is none."""
    if record is None or record.gflops is None:
        return "–" if record is None else VERDICTS[record.verdict]
    digits = 0 if record.gflops >= 100 else 1
    ratio = "" if record.ratio is None else f" ({record.ratio:.2f}{doubt(record)})"
    return f"{record.gflops:.{digits}f}{ratio}"


def doubt(record: BenchRecord) -> str:
    """A mark of interrogation where samples are too few or too scattered to say which is faster."""
    return "?" if is_unclear(record) else ""


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
    peaks = " and ".join(f"{peak:.0f} GFLOPS on {threads(count)}" for count, peak in sorted(known.items()))
    kernels = environment["blas_kernels"].get("openblas", "unknown")
    return (
        f"The table has GFLOPS for {first.dtype} and n = {SIZE}, and R in brackets: the time of {reference_of(first)}, "
        f"on the same number of threads, divided by the time of the kernel. If R is above 1, the kernel is faster. "
        f"{DOUBT}\n\nThe machine is an {environment['processor']} with {environment['cores']} cores. LLVM, the compiler, "
        f"calls this processor {environment['llvm_cpu']}, and OpenBLAS chooses its {kernels} kernels for it. The measured "
        f"peak of fused multiply-adds is {peaks}. Record: {linked(name)}, made by `{command(environment)}`."
    )


def reference_of(record: BenchRecord) -> str:
    """What R in a record refers to: it took OpenBLAS as it was installed before the bench knew its variants."""
    return "NumPy's OpenBLAS " + ("with its fastest kernels" if record.environment.get("variants") else "as installed")


def references_of(records: list[BenchRecord]) -> str:
    """The libraries that R refers to, in words."""
    measured = {r.kernel for r in records}
    others = [name for kernel, name in LIBRARIES.items() if kernel in measured]
    return f"{', '.join(others)} and {reference_of(records[0])}"


def forced_openblas() -> str:
    """How far OpenBLAS's choice of kernels is the reason, an item for each dtype."""
    records = records_of("cpu-openblas-avx512")
    parts = []
    for dtype in dict.fromkeys(r.dtype for r in records):
        ours = [r for r in records if r.dtype == dtype and r.kernel == "cpu/register_tile" and r.ratio is not None]
        parts.append(
            f"- {dtype}: R is " + ", ".join(f"{r.ratio:.2f} at n = {r.n} on {threads(r.threads)}" for r in ours)
        )
    chosen = records_of("cpu-ladder-float32")[0].environment["blas_kernels"]["openblas"]
    forced = records[0].environment["blas_kernels"]["openblas"]
    said = (
        f"OpenBLAS does not know the AMD processor and chooses its {chosen} kernels for it. OpenBLAS is faster with its "
        f"kernels for AVX-512 (`OPENBLAS_CORETYPE={forced}`). Compared with the kernels for AVX-512, `cpu/register_tile` "
        f"has the following R ([record](../benchmarks/cpu-openblas-avx512.jsonl)):"
    )
    return "\n".join([said, "", *parts])


def ideas(*names: str) -> str:
    """The rungs of records with their ideas, from the kernels themselves; a rung without a record makes nothing stale."""
    measured, lines = {r.kernel for name in names for r in records_of(name)}, []
    for kernel in (*catalog().values(), *cuda_catalog().values()):
        if kernel.name in measured and not kernel.is_reference:
            source = kernel.path.relative_to(ROOT / "src").as_posix()
            lines.append(f"- [`{kernel.name}`](../src/{source}) {kernel.idea}")
    return "\n".join(lines)


def engine(*names: str) -> str:
    """Shapes down, dtypes and threads across: what the library call does, and R against the best of the references. What
    several records have is that of the last."""
    cell_of: dict[tuple[str, str, int], list[BenchRecord]] = {}
    for name in names:
        found: dict[tuple[str, str, int], list[BenchRecord]] = {}
        for record in records_of(name):
            found.setdefault((record.shape, record.dtype, record.threads), []).append(record)
        cell_of |= found
    records = [r for cell in cell_of.values() for r in cell]
    columns = sorted({(r.dtype, r.threads) for r in records})
    rows = [["M×N×K", *(f"{dtype}, {threads(count)}" for dtype, count in columns)]]
    for shape in dict.fromkeys(r.shape for r in records):
        cells = [cell_of.get((shape, *column), []) for column in columns]
        rows.append([shape.replace("x", "×"), *map(beside_the_fastest, cells)])
    environment = records[0].environment
    cores = "one core" if environment["cores"] == 1 else f"{environment['cores']} cores"
    made = "; ".join(f"{linked(name)}, made by `{command(records_of(name)[0].environment)}`" for name in names)
    return (
        f"{table(rows)}\n\nEach cell has the GFLOPS of `tw.matmul(a, b, out=c)`, and in brackets R: the time of the "
        f"fastest other library on the same number of threads, divided by Tilewright's time. The libraries that "
        f"Tilewright is compared with are {references_of(records)}. {DOUBT}\n\nMeasured on {environment['processor']} "
        f"(LLVM's name: {environment['llvm_cpu']}), {cores}. Record: {made}."
    )


def ladder_of_sizes(name: str, dtype: str = "float32") -> str:
    """Kernels down, sizes across."""
    records = [r for r in records_of(name) if r.dtype == dtype]
    sizes = list(dict.fromkeys(r.n for r in records))
    rows = [["kernel", *(f"{n:,}" for n in sizes)]]
    for kernel in dict.fromkeys(r.kernel for r in records):
        rows.append([f"`{kernel}`", *(rate(at(records, kernel, n, records[0].threads)) for n in sizes)])
    return (
        f"{table(rows)}\n\nEach cell has the GFLOPS of a program, and in brackets R: the time of the library in the "
        f"row `ref/…` divided by Tilewright's time. {DOUBT}\n\nMeasured on {made_by(name)}"
    )


def beside_the_fastest(cell: list[BenchRecord]) -> str:
    """GFLOPS of the library call, and R against the fastest of the references that were measured with it."""
    ours = next((r for r in cell if r.kernel == "tilewright/matmul"), None)
    if ours is None or ours.gflops is None or ours.ratio is None:
        return "–"
    # Each reference was measured in turns with the first one: its own ratio says how far it leads that.
    lead = max([1.0, *(r.ratio for r in cell if r.kernel.startswith("ref/") and r.ratio is not None)])
    digits = 0 if ours.gflops >= 100 else 1
    return f"{ours.gflops:.{digits}f} ({ours.ratio / lead:.2f}{doubt(ours)})"


def strassen(name: str) -> str:
    """What Strassen gains over the classical engine, by size."""
    of = {(r.kernel, r.n, r.dtype): r for r in records_of(name)}
    rows = [["n", "float32", "float64"]]
    for n in dict.fromkeys(n for _, n, _ in of):
        cells = []
        for dtype in ("float32", "float64"):
            fused, packed = (of.get((f"cpu/{kernel}", n, dtype)) for kernel in ("strassen_fused", "packed"))
            known = fused is not None and packed is not None and fused.gflops and packed.gflops
            cells.append(
                f"{fused.gflops:.0f} : {packed.gflops:.0f} = {fused.gflops / packed.gflops:.2f}" if known else "–"
            )
        rows.append([f"{n:,}", *cells])
    first = records_of(name)[0].environment
    return (
        f"{table(rows)}\n\nEach cell has the GFLOPS of Strassen's algorithm and of the classical algorithm, and their "
        f"ratio, on 1 thread. For both algorithms, GFLOPS are 2mnk divided by the time. Record: {linked(name)}, made by "
        f"`{command(first)}`."
    )


def layouts(name: str) -> str:
    """Layouts of operands and batches: R against numpy, and against our own time for C order."""
    known, lines = lines_of(name)
    rows = [["operands", "shape", "threads", "float32", "float64"]]
    for layout, shape, count in dict.fromkeys((r["layout"], tuple(r["shape"]), r["threads"]) for r in lines):
        found = {
            r["dtype"]: r for r in lines if (r["layout"], tuple(r["shape"]), r["threads"]) == (layout, shape, count)
        }
        cells = [f"{found[d]['against_numpy']:.2f} ({found[d]['against_c_order']:.2f})" for d in ("float32", "float64")]
        rows.append([layout, "×".join(f"{size:,}" for size in shape), str(count), *cells])
    kernels = known["blas_kernels"]["openblas"]
    return (
        f"{table(rows)}\n\nThe first number in a cell is R: the time of `np.matmul`, with OpenBLAS's {kernels} "
        f"kernels, divided by the time of `tw.matmul`. In brackets is the time of `tw.matmul` for the same matrices in "
        f"C order, divided by the time of `tw.matmul` for this layout.\n\nMeasured on {known['processor']} (LLVM's "
        f"name: {known['llvm_cpu']}). Record: {linked(name)}, made by `{command(known)}`."
    )


def narrow(name: str) -> str:
    """Narrow dtypes beside PyTorch: operations a second, and R."""
    known, lines = lines_of(name)
    columns = list(dict.fromkeys((r["dtype"], r["threads"]) for r in lines))
    rows = [["M×N×K", *(f"{dtype}, {threads(count)}" for dtype, count in columns)]]
    of = {(tuple(r["shape"]), r["dtype"], r["threads"]): r for r in lines if r["verified"]}
    for shape in dict.fromkeys(tuple(r["shape"]) for r in lines):
        found = [of.get((shape, *column)) for column in columns]
        size = f"{shape[0]:,}" if len(set(shape)) == 1 else "×".join(f"{x:,}" for x in shape)
        rows.append([size, *(f"{r['gops']:.0f} ({r['against_torch']:.2f})" if r else "–" for r in found)])
    return (
        f"{table(rows)}\n\nEach cell has the speed of `tw.matmul(a, b, c, out_dtype=…)` in 10⁹ operations a second, "
        f"and in brackets R: the time of PyTorch {known['torch']} on the same number of threads, divided by "
        f"Tilewright's time. PyTorch's function is `torch._int_mm` for int8, with sums of int32, and `torch.mm` for "
        f"bfloat16.\n\nMeasured on {known['processor']} (LLVM's name: {known['llvm_cpu']}), {known['cores']} cores. "
        f"Record: {linked(name)}, made by `{command(known)}`."
    )


def precision(name: str) -> str:
    """Times of float64 products with "standard" and "fast", their ratio, and the largest errors found."""
    known, lines = lines_of(name)
    rows = [["n", "standard", "fast", "standard / fast", "shortest / shortest", "error of fast", "bound of fast"]]
    for line in lines:
        median, samples = line["median_s"], line["samples_s"]
        ratio, of_least = median["standard"] / median["fast"], min(samples["standard"]) / min(samples["fast"])
        times = [f"{1e3 * median[word]:.3g} ms" for word in ("standard", "fast")]
        errors = [f"{line[what]['fast']:.2g}" for what in ("error", "bound")]
        rows.append([f"{line['n']:,}", *times, f"{ratio:.2f}", f"{of_least:.2f}", *errors])
    return (
        f"{table(rows)}\n\nTimes of float64 products are medians, and *standard / fast* is their ratio. *Shortest / "
        "shortest* is the ratio of the shortest times. The error is the largest one of an element that was found, relative "
        f"to |A||B|. Measured on {known['processor']} with {threads(lines[0]['threads'])}. Record: {linked(name)}, "
        f"made by `{command(known)}`."
    )
