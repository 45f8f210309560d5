"""Makes the course: the code of each rung, its difference from its parent, and what was measured and counted of it.

All figures of a page are from one record, at one size and, on the CPU, on one thread.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog, cuda_catalog
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.records.bench import BenchRecord

from .common import ROOT, command, lines_of, linked, records_of, table

#: The record of the CUDA ladder, and what ``benchmarks/record_course.py`` counted of every rung.
CUDA, COUNTED = "cuda-ladder-h200", "course-counts"
#: The compute capability in the header of a kernel with instructions that Hopper alone has.
HOPPER = "9.0a"


@dataclass(frozen=True)
class Page:
    """A page of the course: its record, the size n of its products, the library to which it compares, its device,
    and a function that says which rungs of the device belong to it."""

    record: str
    size: int
    library: str
    device: str
    has: Callable[[Any], bool]

    @functools.cached_property
    def rungs(self) -> list[str]:
        """The rungs of the page in reading order. A new rung is on a page as soon as it was counted."""
        kernels = catalog() if self.device == "cpu" else cuda_catalog()
        return [k.name for k in kernels.values() if is_rung(k) and k.name in counts() and self.has(k)]

    @functools.cached_property
    def measured(self) -> dict[str, BenchRecord]:
        """The record of each kernel at the page's size, and on the CPU on one thread."""
        return self.at(self.size)

    def at(self, size: int, threads: int = 1) -> dict[str, BenchRecord]:
        """Return the record of each kernel at a size. Each kernel of a page has one dtype."""
        records = records_of(self.record)
        return {r.kernel: r for r in records if r.m == r.n == r.k == size and r.threads == threads and r.gflops}


#: File of the page → what is on it. A recursion differs from its leaf only in products that are larger than the leaf.
PAGES = {
    "cpu": Page("cpu-ladder-float32", 1000, "OpenBLAS", "cpu", lambda kernel: not kernel.over),
    "strassen": Page("cpu-ladder-float32", 4096, "OpenBLAS", "cpu", lambda kernel: kernel.over),
    "cuda": Page(CUDA, 4096, "cuBLAS", "cuda", lambda kernel: kernel.capability != HOPPER),
    "hopper": Page(CUDA, 4096, "cuBLAS", "cuda", lambda kernel: kernel.capability == HOPPER),
}


def is_rung(kernel: Kernel | CudaKernel) -> bool:
    """Return whether a kernel of the catalogs is on the ladder. The catalog for the CPU also has the engine's
    kernels and references."""
    return kernel.device == "cuda" or kernel.is_rung


def kernel_of(name: str) -> Kernel | CudaKernel:
    return {**catalog(), **cuda_catalog()}[name]


def page_of(name: str) -> Page:
    return next(page for page in PAGES.values() if name in page.rungs)


def rungs() -> list[str]:
    """Return the rungs of both ladders that were counted, page after page."""
    return [name for page in PAGES.values() for name in page.rungs]


# ---- the code ----------------------------------------------------------------------------------------------------------

#: Kernel → the first and the last line of the excerpt that the course shows: where each begins, without its indentation.
LOOPS = {
    "cpu/naive": ("for i in range(m)", "c[i, j] = total"),
    "cpu/transposed": ("for i in range(m)", "c[i, j] = total"),
    "cpu/transposed_simd": ("for i in range(m)", "c[i, j] = total"),
    "cpu/ikj": ("for p in range(k)", "c[i, j] +="),
    "cpu/ikj_threads": ("for p in range(k)", "c[i, j] +="),
    "cpu/blocked": ("for p in range(0, k, BLOCK)", "multiply_block("),
    "cpu/aligned": ("a_block = aligned_buffer", "c_block = aligned_buffer"),
    "cpu/unrolled": ("for j in range(BLOCK)", "c[i, j], c[i + 1, j] ="),
    "cpu/register_tile": ("for j in range(0, nc, nr)", "micro(kc, a_sliver, b_sliver, codegen.address"),
    "cpu/strassen": ("m1 = product", "team.add(minus(m1, m2)"),
    "cpu/strassen_buffer": ("add(a11, a22, s)", "subtract(c11, c21, c22)"),
    "cpu/strassen_winograd": ("subtract(a11, a21, x)", "product(x, y, c12)"),
    "cuda/uncoalesced": ("for (int p = 0", "sum +="),
    "cuda/coalesced": ("for (int p = 0", "sum +="),
    "cuda/shared_tile": ("for (int i = 0; i < TILE", "sum +="),
    "cuda/register_rows": ("for (int i = 0; i < TILE", "sum[r] +="),
    "cuda/thread_columns": ("for (int i = 0; i < BK", "sum[j] +="),
    "cuda/thread_tile": ("for (int i = 0; i < BK", "for (int s = 0; s < TN; s++) sum"),
    "cuda/vectorised": ("for (int i = 0; i < BK", "for (int s = 0; s < TN; s++) sum"),
    "cuda/double_buffer": ("for (unsigned p = 0", "__syncthreads();"),
    "cuda/warp_tile": ("for (int i = 0; i < BK", "for (int s = 0; s < TN; s++) sum"),
    "cuda/async_copy": ("for (int tile = 0; tile < tiles", "for (int s = 0; s < TN; s++) sum"),
    "cuda/register_banks": ("load((i + 1) % BK", "sum[r][s] +="),
    "cuda/dgemm_normal": ("for (int i = 0; i < R", "for (int r = 0; r < ROWS; r++) sum"),
    "cuda/dgemm_column": ("for (int i = 0; i < R; i++)", "for (int r = 0; r < W; r++) sum"),
    "cuda/dgemm_tensor": ("load((i + 1) % STEPS", "multiply_f64("),
    "cuda/tf32": ("load(stages[now]", "for (int s = 0; s < MMAS_N; s++) multiply_tf32"),
    "cuda/bf16": ("load(stages[now]", "multiply_bf16("),
    "cuda/first_wgmma": ("for (int l = 0; l < 64", "__syncthreads();  // all four"),
    "cuda/copied_boxes": ("if (threadIdx.x == 0) {", "__syncthreads();  // all four"),
    "cuda/large_wgmma": ("wgmma_fence();", "__syncthreads();  // all four"),
    "cuda/producer": ("for (int step = 0; step < steps", "barrier_arrive(s.empty[stage])"),
    "cuda/two_consumers": ("for (int step = 0; step < steps", "if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive"),
    "cuda/persistent": ("for (int tile = blockIdx.x", "store_sums("),
    "cuda/multicast": ("Barrier& full", "to_b + i * SLAB"),
    "cuda/stored_boxes": ("for (int slab = 0", "store_commit();"),
}
#: Kernels whose loop begins at a later line that is like its first one.
FROM = {
    "cpu/register_tile": "def register_tile",
    "cuda/dgemm_column": "__syncthreads();  // the tile of A",
    "cuda/copied_boxes": "// ---- GLOBAL → SHARED",
    "cuda/producer": "// ---- MULTIPLY",
    "cuda/two_consumers": "// ---- MULTIPLY",
    "cuda/persistent": "take_registers",
}
#: Kernel → the part of its parent's code that its own excerpt is compared with, where that is not the parent's excerpt.
AGAINST = {"cuda/multicast": ("Barrier& full", "load_tile(s.b[ring.stage]")}
#: The most lines of a difference that a page shows; of a larger one it shows that of the excerpts.
MOST_LINES = 40


def excerpt(name: str) -> list[str]:
    """Return the inner loop of a kernel as its file has it, without its indentation."""
    return _part(name, *LOOPS[name], FROM.get(name))


def _part(name: str, first: str, last: str, later_than: str | None = None) -> list[str]:
    lines = code(name)
    after = _line_of(lines, later_than) if later_than else 0
    begin = _line_of(lines, first, after)
    end = _line_of(lines, last, begin) + 1
    open_braces = sum(line.count("{") - line.count("}") for line in lines[begin:end])
    while open_braces > 0 and lines[end].strip().startswith("}"):
        end, open_braces = end + 1, open_braces - 1
    lines = textwrap.dedent("\n".join(lines[begin:end])).splitlines()
    return [re.sub(r"-{5,}$", "----", line) for line in lines]  # rules across a file are too long for a page


def _line_of(lines: list[str], text: str, after: int = 0) -> int:
    found = next((i for i in range(after, len(lines)) if lines[i].strip().startswith(text)), None)
    if found is None:
        raise LookupError(
            f"no line begins with {text!r}: the excerpts in docs/tables/course.py name the lines of a source"
        )
    return found


@functools.cache
def _source(name: str) -> str:
    return kernel_of(name).path.read_text(encoding="utf-8")


def code(name: str) -> list[str]:
    """Return the lines of a kernel's code, without its header or docstring."""
    source = _source(name)
    if name.startswith("cpu/"):
        tree = ast.parse(source)
        first = next(node for node in tree.body if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom))
        begin = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
        return source.splitlines()[begin - 1 :]
    return source[source.index("*/") + 2 :].splitlines()


def _compared(name: str) -> list[str]:
    """The code that a difference is taken of: without comments and the lines that name the function and describe it."""
    lines = code(name)
    if name.startswith("cpu/"):
        said = re.compile(r"    (idea|row|parent|workspace|params|dtypes|error_bound)=|def |\s*#|\s*\"\"\"|\s*$")
        return [line for line in lines if not said.match(line)]
    lines = [re.sub(r"\s*//.*", "", line) for line in lines]
    function = re.compile(
        rf"(extern \"C\"|{re.escape(name.partition('/')[2])}\(|#include|typedef|    *int m, int n, int k\))"
    )
    return [line for line in lines if line.strip() and not function.match(line)]


def difference(name: str) -> list[str]:
    """Return the difference of a kernel's code from its parent's, as lines of a diff. It is empty for a rung without
    a parent."""
    parent = kernel_of(name).parent
    if parent is None:
        return []
    whole = _diff(_compared(parent), _compared(name))
    if len(whole) <= MOST_LINES:
        return whole
    before = _part(parent, *AGAINST[name]) if name in AGAINST else excerpt(parent)
    return _diff(_uncommented(before), _uncommented(excerpt(name)))


def _uncommented(lines: list[str]) -> list[str]:
    return [line for line in (re.sub(r"\s*//.*", "", line) for line in lines) if line.strip()]


def _diff(before: list[str], after: list[str]) -> list[str]:
    """The lines that differ, each with one line around it; what is indented alone is not different. Empty where the two have
    nothing in common: it would repeat both."""
    common = {line.strip() for line in before} & {line.strip() for line in after}
    if all(re.match(r"\W*$|#pragma", line) for line in common):
        return []
    matcher = difflib.SequenceMatcher(None, [x.strip() for x in before], [x.strip() for x in after], autojunk=False)
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(n=1):
        lines += ["…"] if lines else []
        for tag, i, i_end, j, j_end in group:
            lines += [f" {line}" for line in after[j:j_end]] if tag == "equal" else []
            lines += [f"-{line}" for line in before[i:i_end]] if tag in ("replace", "delete") else []
            lines += [f"+{line}" for line in after[j:j_end]] if tag in ("replace", "insert") else []
    return lines


def _fenced(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def rung(name: str) -> str:
    """Return the idea of a rung with a link to its file, its inner loop, and the difference from its parent."""
    kernel = kernel_of(name)
    source = kernel.path.relative_to(ROOT / "src").as_posix()
    parts = [
        f"{kernel.idea} ([`{kernel.path.name}`](../src/{source}))",
        _fenced("python" if name.startswith("cpu/") else "cpp", excerpt(name)),
    ]
    changed = difference(name)
    if changed:
        parts.append(
            f'<details markdown="1"><summary>What changed from <code>{kernel.parent}</code></summary>\n\n'
            f"{_fenced('diff', changed)}\n\n</details>"
        )
    return "\n\n".join(parts)


# ---- figures -------------------------------------------------------------------------------------------------------------


def gain(name: str) -> str:
    """Return the measured rate of a rung, compared with the library and with its parent, and what was counted of it."""
    page = page_of(name)
    own, parent = page.measured.get(name), kernel_of(name).parent
    if own is None:
        return f"**Measured.** No record has this rung yet. {_counted(name)}".rstrip()
    said = f"**Measured.** `{name}` reaches {rate(own)} {_unit(page)}, which is {share(own)} of the speed of {page.library}"
    before = page.measured.get(parent or "")
    if before and before.dtype == own.dtype and before.precision == own.precision:
        said += f" and {factor(own, before)} times the speed of `{parent}`"
    elif before and before.dtype == own.dtype:
        said += " with the same rounding of operands"
        said += f"; its parent `{parent}` does not round them, so the two rungs are not compared"
    elif before:
        said += f" in {own.dtype}; its parent `{parent}` is for {before.dtype}, so the two rungs are not compared"
    return f"{said}. {_counted(name)}".rstrip()


def on_threads(name: str) -> str:
    """Return a sentence that compares the rate on all threads of the record with the rate on one thread."""
    page = page_of(name)
    most = max(r.threads for r in records_of(page.record))
    several, one = page.at(page.size, most)[name], page.measured[name]
    return f"On {most} threads `{name}` reaches {rate(several)} GFLOPS, {factor(several, one)} times its rate on one thread."


def glance(file: str) -> str:
    """Return a table of every rung of a page, with what was measured and what was counted."""
    page = PAGES[file]
    on_cpu = page.device == "cpu"
    head = ["rung", _unit(page), f"of {page.library}", "× parent"]
    counts = ["loads per multiply-add"] if on_cpu else ["sectors", "wavefronts", "registers", "warps"]
    names = page.rungs
    above = kernel_of(names[0]).parent
    if file == "strassen" and above:
        names = [above, *names]
    if file == "strassen":
        counts = []
    rows = [[*head, *counts]]
    for name in names:
        own, parent = page.measured.get(name), kernel_of(name).parent
        before = page.measured.get(parent or "") if name in page.rungs else None
        same = own and before and (before.dtype, before.precision) == (own.dtype, own.precision)
        figures = [rate(own), share(own), factor(own, before) if same else "–"] if own else ["–"] * 3
        rows.append([f"`{name}`", *figures, *_cells(name)[: len(counts)]])
    return f"{table(rows)}\n\n{_legend(file)}"


def _legend(file: str) -> str:
    page = PAGES[file]
    first = records_of(page.record)[0]
    where = first.environment.get("gpu") or first.environment["processor"]
    record = f"[record](../benchmarks/{page.record}.jsonl), made by `{command(first.environment)}`"
    of = f"products of {page.size:,} × {page.size:,} matrices"
    parent = (
        f"**× parent** is the speed of a rung divided by that of its parent, and **of {page.library}** is the speed of the "
        f"rung as a percentage of that of {page.library}."
    )
    if page.device == "cpu":
        said = f"The speeds are those of {of} in {first.dtype} on one thread of an {where} ({record}). {parent}"
        loads = f"**Loads per multiply-add** counts instructions in the machine code of the inner loop ({_counts_record()})."
        return said if file == "strassen" else f"{said} {loads}"
    depth = max(counts()[name]["k"] for name in page.rungs)
    return (
        f"The speeds are those of {of} on an {where} ({record}). {parent}\n\n"
        f"**Sectors** of 32 bytes are read from global memory. **Wavefronts** are the steps in which shared memory serves "
        f"reads, with one word of each bank in a step. Sectors and wavefronts are given for 1,000 multiply-adds. "
        f"**Registers** are those of one thread, and **warps** are resident on a multiprocessor, which can hold 64. The "
        f"numbers of sectors, wavefronts, registers and warps do not depend on k, and were counted with k = {depth} "
        f"({_counts_record()})."
    )


def _counts_record() -> str:
    environment, _ = lines_of(COUNTED)
    return f"{linked(COUNTED)}, made by `{command(environment)}`"


def _unit(page: Page) -> str:
    return "GFLOPS" if page.device == "cpu" else "TFLOPS"


def rate(record: BenchRecord) -> str:
    """Return GFLOPS on the CPU, or TFLOPS on a GPU, with three digits."""
    value = record.gflops / (1 if record.device == "cpu" else 1000)
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def share(record: BenchRecord) -> str:
    """Return the speed as a percentage of the library's. It follows from R, for which both were measured
    alternately."""
    percent = 100 * (record.ratio or 0)
    return f"{percent:.{0 if percent >= 9.95 else 1}f} %"


def factor(own: BenchRecord, before: BenchRecord) -> str:
    value = own.gflops / before.gflops
    return f"{value:.{2 if value < 9.95 else 0}f}"


def conflicts(file: str, beside: tuple[int, ...], *names: str) -> str:
    """Return a table of some rungs at the page's size and at sizes near it, for which caches behave differently."""
    page = PAGES[file]
    sizes = sorted((page.size, *beside))
    of = {size: page.at(size) for size in sizes}
    rows = [["rung", *(f"n = {size:,}" for size in sizes)]]
    rows += [[f"`{name}`", *(f"{rate(of[size][name])} {_unit(page)}" for size in sizes)] for name in names]
    return table(rows)


@functools.cache
def counts() -> Mapping[str, dict[str, Any]]:
    """Return what was counted of each kernel."""
    _, lines = lines_of(COUNTED)
    return {line["kernel"]: line for line in lines}


#: Sectors of reads of global memory, and wavefronts of reads of shared memory, among the names of a GPU's counters.
SECTORS = re.compile(r"l1tex__t_sectors_pipe_lsu_mem_global_op_ld\.|read_sectors_mem_global_op_tma_ld\.")
#: Those of ``ldmatrix`` have a counter of their own besides, and are in that of loads too.
WAVEFRONTS = re.compile(r"wavefronts_mem_shared_op_(ld|gmma)\.")
#: Bank conflicts of loads from shared memory, and of all accesses to it.
OF_LOADS, OF_ALL = (re.compile(rf"data_bank_conflicts_pipe_lsu_mem_shared{kind}\.") for kind in ("_op_ld", ""))


def _per_thousand(line: dict[str, Any], pattern: re.Pattern[str]) -> str:
    """Counts for 1,000 multiply-adds; empty where the kernel has none. "≈" marks what the microscope estimates."""
    found = [name for name in line["counters"] if pattern.search(name)]
    value = 1000 * sum(line["counters"][name] for name in found) / (line["m"] * line["n"] * line["k"])
    return ("≈ " if set(found) & set(line["approximate"]) else "") + _short(value) if value else ""


def _cells(name: str) -> list[str]:
    line = counts().get(name, {})
    if "loop" in line:
        loop = line["loop"]
        return [f"{loop['loads'] / loop['multiplies']:.2f}" if loop else "–"]
    if not line:
        return ["–"] * 4
    counted = (_per_thousand(line, pattern) or "–" for pattern in (SECTORS, WAVEFRONTS))
    return [*counted, str(line["registers"]), str(line["warps"])]


def _short(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _counted(name: str) -> str:
    line = counts().get(name, {})
    if loop := line.get("loop"):
        loads, multiplies = loop["loads"], loop["multiplies"]
        return (
            f"**Counted.** The inner loop of `{name}` has {loads} load instructions for {multiplies} multiply-add "
            f"instructions."
        )
    if not line or "loop" in line:
        return ""
    sectors, wavefronts, registers, warps = _cells(name)
    said = f"**Counted.** For 1,000 multiply-adds `{name}` reads {sectors} sectors from global memory"
    if wavefronts != "–":
        said += f", and takes {wavefronts} wavefronts to read shared memory"
    if of_loads := _per_thousand(line, OF_LOADS):
        said += f", {of_loads} of them because of bank conflicts"
    elif of_writes := _per_thousand(line, OF_ALL):
        said += f". For 1,000 multiply-adds, bank conflicts of writes to shared memory take {of_writes} wavefronts"
    return (
        f"{said}. A thread of `{name}` has {registers} registers, and {warps} warps are resident on a multiprocessor."
    )


def stale_counts() -> list[str]:
    """Return the rungs whose source differs from the source that was counted."""
    return [name for name in rungs() if counts().get(name, {}).get("source") != kernel_of(name).source_hash]
