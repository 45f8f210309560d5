"""Generates what README and docs say in figures, from the committed records: ``python docs/build.py``.

``--check`` changes nothing and fails when something is stale. Between the markers ``<!-- generated: NAME -->`` and
``<!-- end -->`` stands what this wrote; everything else is written by hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tilewright.kernels import catalog, cuda_catalog
from tilewright.lab.residency import residency
from tilewright.records import VERDICTS, BenchRecord, read
from tilewright.report import accuracy, save_figures
from tilewright.report.words import digits
from tilewright.run.cuda import compiler

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks"
FIGURES = ROOT / "docs" / "figures"
#: The size that the tables quote: no power of two, beyond the caches near the core.
SIZE = 1000


def records_of(name: str) -> list[BenchRecord]:
    return read(RECORDS / f"{name}.jsonl")


def at(records: list[BenchRecord], kernel: str, n: int, threads: int) -> BenchRecord | None:
    return next((r for r in records if (r.kernel, r.n, r.m, r.threads) == (kernel, n, n, threads)), None)


def table(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


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
        f"[{name}](benchmarks/{name}.jsonl), made by `{environment['command']}`."
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
        f"([record](benchmarks/cpu-openblas-avx512.jsonl))."
    )


def ideas() -> str:
    """Every rung with its idea and its parent, from the kernels themselves."""
    lines = []
    for kernel in (*catalog().values(), *cuda_catalog().values()):
        if not kernel.is_reference:
            source = kernel.path.relative_to(ROOT / "src").as_posix()
            lines.append(f"- [`{kernel.name}`](src/{source}) {kernel.idea}")
    return "\n".join(lines)


#: The sizes that the tables of GPUs quote.
GPU_SIZES = (256, 1000, 1024, 2048, 4095, 4096, 4097, 8192)


def cuda_table(name: str) -> str:
    """Kernels down, sizes across, a table a dtype and precision: TFLOPS with R in brackets."""
    records = records_of(name)
    parts = []
    for dtype, precision in dict.fromkeys((r.dtype, r.precision) for r in records):
        of = [r for r in records if (r.dtype, r.precision) == (dtype, precision)]
        sizes = [n for n in GPU_SIZES if any(r.n == n for r in of)]
        rows = [["kernel", *(f"{n:,}" for n in sizes)]]
        for kernel in sorted({r.kernel for r in of}, key=lambda k: (k.startswith("ref/"), order(of, k))):
            rows.append([f"`{kernel}`", *(tera(at(of, kernel, n, 1)) for n in sizes)])
        parts.append(f"{dtype}{'' if precision == 'standard' else f', {precision}'}:\n\n{table(rows)}")
    return "\n\n".join([*parts, gpu_provenance(name, records)])


def order(records: list[BenchRecord], kernel: str) -> int:
    return next(int(r.about.get("order", 0)) for r in records if r.kernel == kernel)


def tera(record: BenchRecord | None) -> str:
    if record is None or record.gflops is None:
        return "–" if record is None else VERDICTS[record.verdict]
    ratio = "" if record.ratio is None else f" ({record.ratio:.2f})"
    return f"{record.gflops / 1000:.{1 if record.gflops >= 9950 else 2}f}{ratio}"


def gpu_provenance(name: str, records: list[BenchRecord]) -> str:
    first = records[0].environment
    peaks = {r.dtype: r.peak_gflops for r in records if r.peak_gflops}
    measured = ", ".join(f"{dtype} {peak / 1000:.1f}" for dtype, peak in peaks.items())
    return (
        f"TFLOPS, and in brackets R, the time of cuBLAS {first['blas'].get('cublas', '')} over ours in the same run. "
        f"{first['gpu']}, driver {first['driver']}, kernels compiled by {first['nvrtc']}; "
        f"measured peaks in TFLOPS: {measured}. "
        f"Record: [{name}](../benchmarks/{name}.jsonl), made by `{first['command']}`."
    )


def fastest(name: str) -> str:
    """A sentence on the best kernel of each size, float32 and float64."""
    records = [r for r in records_of(name) if r.ratio is not None and r.precision == "standard"]
    parts = []
    for dtype in ("float32", "float64"):
        of = [r for r in records if r.dtype == dtype and r.n in GPU_SIZES]
        best = {n: max((r for r in of if r.n == n), key=lambda r: r.ratio or 0) for n in dict.fromkeys(r.n for r in of)}
        listed = ", ".join(f"{r.ratio:.2f} at {n:,}" for n, r in sorted(best.items()) if n >= 1000)
        parts.append(f"{dtype} {listed}")
    return f"The fastest rung against cuBLAS (R above 1 is faster): {'; '.join(parts)}."


def sweep(names: list[str], *params: str) -> str:
    """A table of records of one kernel with several parameters: what each set of them needs, and GFLOPS by size."""
    measured = [r for name in names for r in records_of(name) if r.gflops is not None]
    last = {(tuple(r.params[p] for p in params), r.n): r for r in measured}
    sizes = sorted({n for _, n in last})
    best = {n: max(r.gflops or 0 for (_, at_n), r in last.items() if at_n == n) for n in sizes}
    rows = [[*(f"`{p}`" for p in params), "registers", "resident warps", *(f"{n:,}" for n in sizes)]]
    for chosen in sorted({chosen for chosen, _ in last}):
        of = {n: last[chosen, n] for n in sizes if (chosen, n) in last}
        first = next(iter(of.values()))
        rates = [sweep_rate(of.get(n), best[n]) for n in sizes]
        rows.append([*map(str, chosen), str(first.about["registers"]), resident(first), *rates])
    first = measured[0]
    made = "; ".join(f"[record](../benchmarks/{name}.jsonl), made by `{command_of(name)}`" for name in names)
    return f"{table(rows)}\n\nGFLOPS of `{first.kernel}` by n, {first.environment['gpu']}; {made}."


def sweep_rate(record: BenchRecord | None, best: float) -> str:
    if record is None or record.gflops is None:
        return "–"
    return f"**{record.gflops:,.0f}**" if record.gflops == best else f"{record.gflops:,.0f}"


def command_of(name: str) -> str:
    return str(records_of(name)[0].environment["command"])


def resident(record: BenchRecord) -> str:
    """Resident warps of a multiprocessor, from the registers that were measured and the launch as it is now."""
    threads, about = cuda_catalog()[record.kernel].launch(1, 1, 1, **record.params).threads, record.about
    return str(residency(about["arch"], threads, about["registers"], about["shared_bytes"]).get("resident_warps", "–"))


# ---- docs/accuracy.md: typical errors in units of u


def error_table(name: str) -> str:
    """Kernels down, sizes across, a table a dtype and precision; kernels whose errors agree share a row."""
    records = [r for r in records_of(name) if accuracy.in_units(r)]
    parts = []
    for dtype, precision in dict.fromkeys((r.dtype, r.precision) for r in records):
        of = {(r.kernel, r.n): r for r in records if (r.dtype, r.precision) == (dtype, precision)}
        sizes = sorted({n for _, n in of})
        alike: dict[tuple[str, ...], list[str]] = {}
        for kernel in dict.fromkeys(kernel for kernel, _ in of):
            alike.setdefault(tuple(in_units(of.get((kernel, n))) for n in sizes), []).append(f"`{kernel}`")
        rows = [["kernel", *(f"{n:,}" for n in sizes)], *([", ".join(who), *errors] for errors, who in alike.items())]
        said = f"{dtype}{'' if precision == 'standard' else f', {precision}'}, u = 2^{accuracy.UNITS[dtype]}"
        parts.append(f"{said}:\n\n{table(rows)}")
    return "\n\n".join([*parts, made_by(name)])


def in_units(record: BenchRecord | None) -> str:
    error = None if record is None else accuracy.in_units(record)
    return "–" if error is None else digits(error)


def made_by(name: str) -> str:
    first = records_of(name)[0].environment
    where = first.get("gpu") or first.get("processor") or f"NumPy {first.get('numpy')}"
    return f"{where}; [record](../benchmarks/{name}.jsonl), made by `{first['command']}`."


def error_orders() -> str:
    """Orders of addition down, sizes across: the error that NumPy measured, and the expected one in brackets."""
    of = {(r.kernel, r.k): r for r in records_of("cpu-error-orders") if "leaf" not in r.params}
    sizes = sorted({k for _, k in of})
    rows = [["order of addition", *(f"{k:,}" for k in sizes)]]
    for order in dict.fromkeys(order for order, _ in of):
        params = "".join(f" {name}={value}" for name, value in of[order, sizes[0]].params.items())
        cells = [f"{in_units(of[order, k])} ({digits(of[order, k].about['expected'])})" for k in sizes]
        rows.append([f"`{order}{params}`", *cells])
    return f"{table(rows)}\n\n{made_by('cpu-error-orders')}"


def error_levels() -> str:
    """Levels of the recursions down: measured errors with the expected in brackets, beside sums that are cut alike."""
    classical = {r.params["leaf"]: r for r in records_of("cpu-error-orders") if "leaf" in r.params}
    of = {(r.kernel, r.params["leaf"]): r for r in records_of("cpu-error-strassen")}
    kernels = list(dict.fromkeys(kernel for kernel, _ in of))
    rows = [["levels (leaf)", *(f"`{kernel}`" for kernel in kernels), "classical, sums cut alike"]]
    for level, (leaf, alike) in enumerate(sorted(classical.items(), reverse=True)):
        known = [alike.about.get(kernel.replace("_buffer", "")) for kernel in kernels]
        cells = [f"{in_units(of[kernel, leaf])} ({digits(e)})" for kernel, e in zip(kernels, known, strict=True)]
        rows.append([f"{level} ({leaf:,})", *cells, f"{in_units(alike)} ({digits(alike.about['expected'])})"])
    return f"{table(rows)}\n\nn = 4,096, float32. {made_by('cpu-error-strassen')}"


def error_of_s1() -> str:
    """What the source found, in figures."""
    cuda = next(r for r in records_of("cuda-error-h200") if (r.kernel, r.n) == ("cuda/coalesced", 4096))
    leaves = {r.params["leaf"]: r for r in records_of("cpu-error-strassen") if r.kernel == "cpu/strassen_buffer"}
    said = [f"{in_units(r)} u, {(cuda.rms_error or 0) / (r.rms_error or 1):.1f} times less" for r in leaves.values()]
    whole, level = said[list(leaves).index(4096)], said[list(leaves).index(2048)]
    return (
        f"At 4,096 every CUDA rung has {in_units(cuda)} u. `cpu/strassen_buffer` has {whole}, while its leaf is the whole "
        f"product, and after one level {level}."
    )


#: Wavefronts that shared loads and stores take.
WAVEFRONTS = {kind: f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum" for kind in ("ld", "st")}


def counted(name: str) -> str:
    """Where a GPU counted other wavefronts of shared memory than predicted: by how many more, in each launch."""
    _, *launches = map(json.loads, (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    rows = [["kernel", "n", "blocks", "loads", "more", "stores", "more"]]
    most = dict.fromkeys(WAVEFRONTS, 0.0)
    for at in launches:
        cells = []
        for kind, counter in WAVEFRONTS.items():
            predicted = at["predicted"].get(counter, 0)
            more = [one.get(counter, 0) - predicted for one in at["counted"]]
            most[kind] = max(most[kind], *(n / (predicted or 1) for n in more))
            cells += [f"{predicted:,}", ", ".join(f"{n:,}" for n in more) if any(more) else "0"]
        if cells[1::2] != ["0", "0"]:
            rows.append([f"`{at['kernel']}`", f"{at['m']:,}", f"{at['blocks']:,}", *cells])
    first = launches[0]["environment"]
    return (
        f"{table(rows)}\n\nWavefronts of shared loads and stores, as predicted and how many more each of three launches "
        f"counted: at most {most['ld']:.1%} more for loads, {most['st']:.0%} for stores. In the other "
        f"{len(launches) - len(rows) + 1} of {len(launches)} cases all are as predicted. "
        f"{first['gpu']}, ncu {first['ncu'].split()[1]}, {first['compiler']}; "
        f"[record](../benchmarks/{name}.jsonl), made by `python tests/measure_rungs.py`."
    )


GENERATED: dict[str, Callable[[], str]] = {
    "ideas": ideas,
    "ladder float32": lambda: ladder_table("cpu-ladder-float32"),
    "ladder float64": lambda: ladder_table("cpu-ladder-float64"),
    "ladder xeon float32": lambda: ladder_table("cpu-ladder-xeon-float32"),
    "ladder xeon float64": lambda: ladder_table("cpu-ladder-xeon-float64"),
    "forced openblas": forced_openblas,
    "ladder h200": lambda: cuda_table("cuda-ladder-h200"),
    "rows h200": lambda: sweep(["cuda-register-rows-h200"], "TILE", "ROWS"),
    "blocks h200": lambda: sweep(["cuda-block-size-h200"], "BLOCK_X", "BLOCK_Y"),
    "fastest h200": lambda: fastest("cuda-ladder-h200"),
    "error cpu": lambda: error_table("cpu-error"),
    "error h200": lambda: error_table("cuda-error-h200"),
    "error orders": error_orders,
    "error levels": error_levels,
    "error s1": error_of_s1,
    "counted h200": lambda: counted("explain-measured-h200"),
    "compiler": lambda: f"The outputs on this page are of kernels compiled by {compiler()}.",
}


def output(command: str) -> str:
    """What a command prints on 80 columns, under the command itself."""
    _, *arguments = shlex.split(command)
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    run = [sys.executable, "-m", "tilewright", *arguments]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode > 1:  # 1 says that something is wrong with the kernel, and may be what is shown
        raise RuntimeError(f"{command}: {done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "\n".join(["", "```console", f"$ {command}", *lines]).rstrip() + "\n```\n"


def filled(text: str, *, outputs: bool = True) -> str:
    """The text with every generated part replaced by what it should be now; ``outputs`` are those of commands."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{GENERATED[match[2]]()}\n{match[3]}"

    text = re.sub(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", fill, text, flags=re.DOTALL)
    if not outputs:
        return text
    return re.sub(
        r"(<!-- output: (.+?) -->\n).*?(<!-- end -->)", lambda m: m[1] + output(m[2]) + m[3], text, flags=re.DOTALL
    )


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def stale(*, outputs: bool = False) -> list[Path]:
    """The documents that say something else than the records, and with ``outputs`` than the commands."""
    texts = {path: path.read_text(encoding="utf-8") for path in documents()}
    return [path for path, text in texts.items() if filled(text, outputs=outputs) != text]


def compiled_by() -> str:
    """The compiler behind the outputs in the documents: another may fuse and unroll otherwise."""
    found = re.search(r"compiled by (NVRTC [\d.]+\d)", (ROOT / "docs" / "microscope.md").read_text(encoding="utf-8"))
    return found[1] if found else ""


def main() -> int:
    if "--check" in sys.argv[1:]:
        found = stale(outputs=compiled_by() == compiler())
        for path in found:
            print(f"stale: {path.relative_to(ROOT)}; run python docs/build.py", file=sys.stderr)
        return 1 if found else 0
    for path in documents():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    said = "".join(path.read_text(encoding="utf-8") for path in documents())
    for path in save_figures(records_of("cpu-ladder-float32"), FIGURES, formats=("svg",), themes=("light", "dark")):
        if path.name not in said:
            path.unlink()  # the charts of further views, which no document shows
    return 0


if __name__ == "__main__":
    sys.exit(main())
