"""The ladder on a GPU."""

from __future__ import annotations

import json
from collections import Counter
from math import exp, log
from statistics import mean, median
from typing import Any

from tilewright.kernels.catalog import cuda_catalog
from tilewright.kernels.cuda_kernel import TABLES
from tilewright.lab.bench.device import residency
from tilewright.records.bench import VERDICTS, BenchRecord

from .common import RECORDS, at, command, lines_of, linked, records_of, table

#: The sizes that the table of all rungs quotes.
FEW_SIZES = (1024, 2048, 4096, 4097, 8192)
#: Kinds of random products that are not named as their dtype.
KINDS = {
    "tf32": 'float32 with `precision="tf32"`',
    "highest": 'floats with `precision="highest"`',
    "float8 fast": 'float8 with `precision="fast"`',
    "mixed": "operands of different dtypes",
}
#: How both libraries are measured.
CALLED = (
    "Tilewright and the other library are called from Python as users call them, with different operands in each call"
)
#: The sizes that the tables of GPUs quote.
GPU_SIZES = (256, 1000, 1024, 2048, 4000, 4095, 4096, 4097, 8192)


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


def rungs(name: str) -> str:
    """Float32 and float64 rungs at a few sizes, in one table."""
    records = [r for r in records_of(name) if r.precision == "standard" and r.dtype in ("float32", "float64")]
    rows = [["kernel", "", *(f"{n:,}" for n in FEW_SIZES)]]
    for dtype in ("float32", "float64"):
        of = [r for r in records if r.dtype == dtype]
        for kernel in sorted({r.kernel for r in of}, key=lambda k: (k.startswith("ref/"), order(of, k))):
            rows.append([f"`{kernel}`", dtype, *(tera(at(of, kernel, n, 1)) for n in FEW_SIZES)])
    return f"{table(rows)}\n\n{gpu_provenance(name, records)}"


def order(records: list[BenchRecord], kernel: str) -> int:
    return next(int(r.about.get("order", 0)) for r in records if r.kernel == kernel)


def tera(record: BenchRecord | None) -> str:
    if record is None or record.gflops is None:
        known = {None: "–", "unsupported": "refused"}
        verdict = record.verdict if record else None
        return known.get(verdict) or VERDICTS[str(verdict)]
    ratio = "" if record.ratio is None else f" ({record.ratio:.2f})"
    return f"{record.gflops / 1000:.{1 if record.gflops >= 9950 else 2}f}{ratio}"


def measured_with(known: dict[str, Any]) -> str:
    """The GPU, and the version of PyTorch."""
    return f"Measured on {known['gpu']} with PyTorch {known['torch']}."


def gpu_provenance(name: str, records: list[BenchRecord]) -> str:
    first = records[0].environment
    peaks = {r.dtype: r.peak_gflops for r in records if r.peak_gflops}
    measured = " and ".join(f"{peak / 1000:.1f} TFLOPS in {dtype}" for dtype, peak in peaks.items())
    refused = any(r.verdict == "unsupported" for r in records)
    return (
        f"The tables have TFLOPS, and R in brackets: the time of cuBLAS {first['blas'].get('cublas', '')} divided by the "
        f"time of the kernel, both measured in the same run. If R is above 1, the kernel is faster."
        f"{' **refused** means that the kernel cannot multiply matrices of this size.' * refused}\n\n"
        f"The GPU is an {first['gpu']} with driver {first['driver']}. The kernels were compiled by {first['nvrtc']}. "
        f"{f'The measured peaks are {measured}. ' * bool(measured)}"
        f"Record: {linked(name)}, made by `{command(first)}`."
    )


def fastest(name: str) -> str:
    """A sentence on the best kernel of each size, float32 and float64."""
    records = [r for r in records_of(name) if r.ratio is not None and r.precision == "standard"]
    parts = []
    for dtype in ("float32", "float64"):
        of = [r for r in records if r.dtype == dtype and r.n in GPU_SIZES]
        best = {n: max((r for r in of if r.n == n), key=lambda r: r.ratio or 0) for n in dict.fromkeys(r.n for r in of)}
        listed = ", ".join(f"{r.ratio:.2f} at n = {n:,}" for n, r in sorted(best.items()) if n >= 1000)
        parts.append(f"- {dtype}: R is {listed}")
    said = "For the fastest rung at each size, R is the time of cuBLAS divided by the time of the rung:"
    return "\n".join([said, "", *parts])


def _asked(dtype: str) -> str:
    """The dtype of a record, and the precision that its call asks for."""
    dtype, _, precision = dtype.partition("_")
    if precision == "rows":
        return f"{dtype}, row-major `b`"
    if precision[:1].isdigit():
        return f"{dtype}, `precision={precision}`"
    return f'{dtype}, `precision="{precision}"`' if precision in ("fast", "ieee") else dtype


def gpu_arrays_of(name: str) -> list[dict[str, Any]]:
    """The lines of a record of products of arrays on a GPU: single products of squares."""
    _, lines = lines_of(name)
    return [line for line in lines if line["batch"] == 1 and line["m"] == line["n"] == line["k"]]


def gpu_shapes(*names: str) -> str:
    """The same for products of many shapes: a row for each."""
    known: dict[str, Any] = {}
    by_shape: dict[str, dict[str, Any]] = {}
    records, dtypes = [], []
    for name in names:
        known, lines = lines_of(name)
        records.append(f"{linked(name)}, made by `{command(known)}`")
        dtypes += list(dict.fromkeys(line["dtype"] for line in lines))
        for line in lines:
            m, n, k = (f"{line[side]:,}" for side in "mnk")
            shape = f"{m}³" if m == n == k else f"{m} × {n} × {k}"
            shape = f"{line['batch']:,} of {shape}" if line["batch"] > 1 else shape
            by_shape.setdefault(shape, {})[line["dtype"]] = f"{line['gflops'] / 1000:.1f} ({line['ratio']:.2f})"
    rows = [
        ["m × n × k", *map(_asked, dtypes)],
        *([shape, *(of.get(d, "") for d in dtypes)] for shape, of in by_shape.items()),
    ]
    return (
        f"{table(rows)}\n\nEach cell has the TFLOPS of `tw.matmul(a, b)`, and in brackets R: the time of "
        f"`torch.matmul(a, b)` divided by Tilewright's time in the same run. {CALLED}, and TF32 is off in "
        f"PyTorch.\n\n{measured_with(known)} Records: {'; '.join(records)}."
    )


def gpu_gram(name: str) -> str:
    """The same for A·Aᵀ, beside the general product too."""
    known, lines = lines_of(name)
    by_shape: dict[str, dict[str, str]] = {}
    for line in lines:
        ours, general = (median(line[samples]) for samples in ("samples_s", "general_samples_s"))
        shape = f"{line['m']:,} × {line['k']:,}"
        shape = f"{line['batch']} of {shape}" if line["batch"] > 1 else shape
        text = f"{line['ratio']:.2f} ({general / ours:.2f})"
        by_shape.setdefault(shape, {})[line["dtype"]] = text
    dtypes = list(dict.fromkeys(line["dtype"] for line in lines))
    rows = [["A", *dtypes], *([shape, *(of.get(d, "") for d in dtypes)] for shape, of in by_shape.items())]
    return (
        f"{table(rows)}\n\nThe first number in a cell is the time of `torch.matmul(a, a.T)` divided by that of "
        f"`tw.matmul(a, a.T)`. The number in brackets is the time of the general product `tw.matmul(a, b.T)` of the "
        f"same shape, divided by that of `tw.matmul(a, a.T)`. The three calls were measured in "
        f"turns.\n\n{measured_with(known)} Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_narrow(name: str) -> str:
    """The same for float8, int8, TF32 and float32 of about 10 bits, of square matrices."""
    known, lines = lines_of(name)
    sizes = sorted({line["n"] for line in lines})
    rows = [["", "compared with", *(f"{n:,}" for n in sizes)]]
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        of = {line["n"]: line for line in lines if line["dtype"] == dtype}
        cells = (f"{of[n]['gflops'] / 1000:.0f} ({of[n]['ratio']:.2f})" for n in sizes)
        rows.append([_asked(dtype), f"`{of[sizes[0]]['reference']}`", *cells])
    return (
        f"{table(rows)}\n\nEach cell has the speed of `tw.matmul(a, b)` for square matrices in 10¹² operations a "
        f"second, and in brackets R: the time of the call in the second column divided by Tilewright's time in the "
        f"same run. {CALLED}.\n\n{measured_with(known)} Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_near(name: str) -> str:
    """Rates of loads that blocks share, by how many blocks are certain to be near each other."""
    known, lines = lines_of(name)
    shapes = list(dict.fromkeys((line["m"], line["k"], line["n"], *line["tile"]) for line in lines))
    sizes = sorted({line["near"] for line in lines})
    rows = [["m × n × k, tile", "read by", *("no cluster" if near == 1 else f"{near} together" for near in sizes)]]
    for m, k, n, tile_m, tile_n in shapes:
        of = {
            line["near"]: line
            for line in lines
            if (line["m"], line["k"], line["n"], *line["tile"]) == (m, k, n, tile_m, tile_n)
        }
        readers = of[1]["read_bytes"] / of[1]["distinct_bytes"]
        cells = (f"{of[near]['distinct_bytes'] / of[near]['seconds'] / 1e12:.2f}" for near in sizes)
        rows.append([f"{m:,} × {n:,} × {k:,}, {tile_m}×{tile_n}", f"{readers:.1f}", *cells])
    return (
        f"{table(rows)}\n\nThe rates are in TB/s: the bytes of both operands, each byte counted once, divided by the "
        f"time. The column *read by* has the mean number of blocks that read the same byte.\n\nMeasured on "
        f"{known['gpu']}, driver {known['driver']}. Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_layers(name: str, asked: str = "") -> str:
    """The same for layers of language models: a row for each weight, a column for each number of rows that it multiplies.
    ``asked``: more arguments of the call."""
    known, lines = lines_of(name)
    counts = sorted({line["m"] for line in lines})
    rows = [["weight", *(f"{m:,}" for m in counts)]]
    for n, k in dict.fromkeys((line["n"], line["k"]) for line in lines):
        of = {line["m"]: line for line in lines if (line["n"], line["k"]) == (n, k)}
        rows.append([f"{n} × {k}", *(f"{of[m]['gflops'] / 1000:.0f} ({of[m]['ratio']:.2f})" for m in counts)])
    mean = exp(sum(log(line["ratio"]) for line in lines) / len(lines))
    return (
        f"{table(rows)}\n\nEach cell has the TFLOPS of `tw.matmul(x, weight.T{asked})` in bfloat16, and the heading of "
        f"its column is the number of rows of `x`. In brackets is R, the time of `torch.matmul(x, weight.T)` divided "
        f"by Tilewright's time in the same run. {CALLED}. The geometric mean of R in the table is "
        f"{mean:.2f}.\n\n{measured_with(known)} Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_invariant(name: str, rows: str) -> str:
    """The same for invariant products, and how many of their rows were compared with those of other products."""
    found = list(map(json.loads, (RECORDS / f"{rows}.jsonl").read_text(encoding="utf-8").splitlines()))
    totals: dict[str, Counter[str]] = {}
    for line in found:
        total = totals.setdefault(line.get("gpu", "the host"), Counter())
        for counts in line.values():
            total.update(counts if isinstance(counts, dict) and "invariant_rows" in counts else {})
    texts = [
        f"on {place}, for {total['invariant_differ']:,} of {total['invariant_rows']:,} rows with `invariant=True` and "
        f"for {total['standard_differ']:,} of {total['standard_rows']:,} rows without"
        for place, total in totals.items()
    ]
    return (
        f"{gpu_layers(name, ', invariant=True')}\n\nRandom rows were multiplied twice, the second time as part of a "
        f"larger product, in a batch, at another position or with other strides. The bits of the two results differed, "
        f"{'; '.join(texts)}. Record: {linked(rows)}, made by `{found[0]['environment']['command']}`."
    )


def gpu_grouped(name: str) -> str:
    """Products of the experts of layers: a row for each layer, a column for each product, with random sizes."""
    line = json.loads((RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    peer, tokens, cases = "torch grouped_mm", 16384, line["cases"]
    products = list(dict.fromkeys(case["product"] for case in cases))
    rows = [["layer", *products]]
    for layer in dict.fromkeys(case["layer"] for case in cases):
        of = {
            case["product"]: case
            for case in cases
            if (case["layer"], case["rows"], case["sizes"]) == (layer, tokens, "random")
        }
        cells = (f"{of[name]['tflops']['tilewright']:.0f} ({of[name]['ratio'][peer]:.2f})" for name in products)
        rows.append([layer, *cells])
    ratios = sorted(case["ratio"][peer] for case in cases if peer in case["ratio"])
    return (
        f"{table(rows)}\n\nEach cell has the TFLOPS of `tw.grouped_matmul` for {tokens:,} tokens in bfloat16, in "
        f"groups of random sizes, and in brackets R: the time of `torch._grouped_mm` divided by Tilewright's time in "
        f"the same run. The record has {len(ratios)} products of 4,096 to 65,536 tokens, in groups of random sizes, of "
        f"skewed sizes, and of multiples of 16. Over all these products the geometric mean of R is "
        f"{exp(mean(map(log, ratios))):.2f}, and R is between {ratios[0]:.2f} and "
        f"{ratios[-1]:.2f}.\n\n{measured_with(line)} Record: {linked(name)}, made by "
        f"`{line['environment']['command']}`."
    )


def gpu_new_shapes(name: str) -> str:
    """How long the first calls of shapes take that a process has not seen, and its first product."""
    line = json.loads((RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    rows = [["first calls of 40 shapes", "median", "9 of 10 take at most", "all 40", "all 40 with PyTorch"]]
    for case, what in zip(line["cases"], ("all sizes random", "new m", "new m", "new m"), strict=True):
        first = sorted(1e3 * seconds for seconds in case["first_s"])
        theirs = 1e3 * sum(case["torch_first_s"])
        rows.append(
            [
                f"{case['dtype']}, {what}",
                f"{median(first):.1f} ms",
                f"{first[int(0.9 * len(first))]:.1f} ms",
                f"{sum(first):.0f} ms",
                f"{theirs:.0f} ms",
            ]
        )
    more = [ours - theirs for ours, theirs in line["process_s"].values()]
    return (
        f"{table(rows)}\n\n*New m* means that among the sizes of a product only m is new. In this run "
        f"{line['compiled']} kernels were compiled. The first product of a process takes {min(more):.2f} to "
        f"{max(more):.2f} s longer than with PyTorch; the median of {len(more)} dtypes is {median(more):.2f} "
        f"s.\n\nMeasured on {line['gpu']}. Record: {linked(name)}, made by `{line['environment']['command']}`."
    )


def gpu_random(name: str) -> str:
    """How many random products were compared with those in float64."""
    known, lines = lines_of(name)
    wrong = [line for line in lines if line["kind"] == "gpu product wrong"]
    done: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "gpu products":
            done |= line["by_dtype"] if "by_dtype" in line else {line["dtype"]: line["products"]}
    no_memory = [line for line in wrong if "OutOfMemory" in line.get("raised", "")]
    lost = len(no_memory) + sum(line.get("no_memory", 0) for line in lines)
    counts = ", ".join(f"{count:,} of {KINDS.get(kind, kind)}" for kind, count in done.items() if count)
    right = f"{sum(done.values()) - len(wrong):,} of them" if wrong else "all of them"
    memory = f"; {lost} found no memory on a GPU that several processes shared" if lost else ""
    return (
        f"{sum(done.values()):,} random products were computed twice, with all layouts, also in batches, with and "
        f"without `out`. In {right} every element was within the "
        f"error bound of its dtype, and both computations gave the same bits{memory}.\n\nThe random products are "
        f"{counts}.\n\nMeasured on {known['gpu']}. Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_predicted(*names: str) -> str:
    """How near predicted times are to measured ones, where the GPU and not the call is what takes the time."""
    near: list[float] = []
    for name in names:
        _, lines = lines_of(name)
        for line in lines:
            measured = median(line["samples_s"])
            if line["predicted_s"] and measured > 1.5 * line["host_s"]:
                near.append(abs(line["predicted_s"] / measured - 1))
    within = {share: sum(x <= share for x in near) for share in (0.1, 0.15, 0.25)}
    return (
        f"{len(near)} of the measured products take clearly longer on the GPU than a call takes in Python, so that "
        f"their measured time is that of the GPU. {predictions(within)}."
    )


def predictions(within: dict[float, int]) -> str:
    """How many predicted times are as near as that to the measured ones, as a sentence."""
    texts = [f"by at most {share:.0%} for {count} products" for share, count in within.items()]
    return (
        f"For these products, the predicted time differs from the measured time {', '.join(texts[:-1])}, "
        f"and {texts[-1]}"
    )


def gpu_held_out(name: str) -> str:
    """How near predictions are for random shapes that no model was fitted to."""
    known, lines = lines_of(name)
    limited = [line for line in lines if median(line["samples_s"]) <= 1.5 * line["host_s"]]
    errors = [abs(line["predicted_s"] / median(line["samples_s"]) - 1) for line in lines if line not in limited]
    within = {share: sum(x <= share for x in errors) for share in (0.1, 0.15, 0.25)}
    ratios = [line["ratio"] for line in lines if line["ratio"]]
    mean = exp(sum(map(log, ratios)) / len(ratios))
    return (
        f"{len(lines)} products of random shapes and all dtypes were measured. {len(errors)} of these products take "
        f"clearly longer on the GPU than a call takes in Python, so that their measured time is that of the GPU. "
        f"{predictions(within)}. `torch.matmul` supports "
        f"{len(ratios)} of the random products: the geometric mean of R is {mean:.2f}, and R is between "
        f"{min(ratios):.2f} and {max(ratios):.2f}.\n\nMeasured on {known['gpu']}. Record: {linked(name)}, made by "
        f"`{command(known)}`."
    )


def gpu_costs(name: str) -> str:
    """Of each kernel of the engine the fitted costs, and errors and regrets for products that they were not fitted to."""
    fit = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
    columns = ("costs", "ways", "median error", "90% within", "within 15%", "regret, mean", "regret ≤ 3%")
    rows = [["kernel", *columns]]
    costs = {kernel: len(fit["kernels"][kernel]) for kernel in fit["after"] if kernel != "all"}
    costs["all"] = sum(costs.values())
    for kernel, found in fit["after"].items():
        shares = (f"{found[key]:.1%}" for key in ("median_error", "error_of_90_percent", "within_15_percent"))
        regret = f"{found['mean_regret']:.2%}", f"{found['within_3_percent']:.0%}"
        title = f"`{kernel}`" if "/" in kernel else kernel
        rows.append([title, str(costs[kernel]), f"{found['ways']:,}", *shares, *regret])
    names = [record.partition(".")[0] for record in fit["records"]]
    known, before, after = [lines_of(name)[0] for name in names], fit["before"]["all"], fit["after"]["all"]
    records = ", ".join(f"{linked(name)}, made by `{command(each)}`" for name, each in zip(names, known, strict=True))
    texts = (
        f"{many} costs, {found['within_15_percent']:.1%} of the predictions were within 15% of the measured times, and "
        f"the mean regret was {found['mean_regret']:.2%}"
        for many, found in ((before["costs"], before), (costs["all"], after))
    )
    return (
        f"{table(rows)}\n\n*90% within* is the error that 90% of the predictions do not exceed. *Within 15%* is the "
        f"share of the ways whose error is at most 15%, and *regret ≤ 3%* is the share of the products whose regret is "
        f"at most 3%.\n\nBefore the fit there were {next(texts)}. After the fit there were {next(texts)}. The errors "
        f"and regrets are those of {after['products']} products that the fit did not use.\n\nMeasured on "
        f"{known[0]['gpu']}. Records: {records}."
    )


def transformer(name: str) -> str:
    """A model trained with two linear layers: the time of a step, and how far the curves of the loss differ."""
    record = json.loads((RECORDS / f"{name}.jsonl").read_text(encoding="utf-8"))
    known, model = record["environment"], record["model"]
    names = {
        "torch": "`torch.nn.Linear`, compiled",
        "tilewright": "`tilewright.torch.Linear`, compiled",
        "apart": "PyTorch's `matmul`, then the bias added, not compiled",
    }
    rows = [["linear layer", "ms a step", "loss at the end", "largest difference from the first row's loss"]]
    for kind, words in names.items():
        step = f"{median(record['step_s'][kind]) * 1e3:.2f}" if kind in record["step_s"] else ""
        far = f"{record['difference'][kind]:.4f}" if kind in record["difference"] else ""
        rows.append([words, step, f"{mean(record['losses'][kind][-10:]):.4f}", far])
    return (
        f"{table(rows)}\n\nThe transformer has {model['layers']} layers of width {model['width']}. The transformer was "
        f"trained for {record['steps']} steps with {model['batch']} sequences of {model['length']} words each, in "
        f"bfloat16 by autocast. The compiled training steps with the two linear layers were measured in turns, a few "
        f"steps at a time. R, the time of a step with `torch.nn.Linear` divided by the time with "
        f"`tilewright.torch.Linear`, is {record['ratio']:.3f}. Each loss is the mean of ten steps. The last row of the "
        f"table differs from its first row only in rounding, so it shows how much rounding alone changes the "
        f"loss.\n\n{measured_with(known)} Record: {linked(name)}, made by `{command(known)}`."
    )


def gpu_arrays(name: str, double: str) -> str:
    """What a call on arrays of a GPU has beside the library whose arrays they are, by size; ``double`` has float64 alone."""
    known, lines = lines_of(name)[0], gpu_arrays_of(name)
    by_dtype: dict[str, dict[int, Any]] = {}
    for line in [*lines, *(line for line in gpu_arrays_of(double) if line["dtype"] == "float64_ieee")]:
        by_dtype.setdefault(line["dtype"], {})[line["n"]] = line
    sizes = [n for n in sorted({line["n"] for line in lines}) if n.bit_count() == 1 or n == 4097]
    rows = [["", *(f"{n:,}" for n in sizes)]]
    for dtype, of in by_dtype.items():
        cells = [f"{of[n]['gflops'] / 1000:.1f} ({of[n]['ratio']:.2f})" if n in of else "–" for n in sizes]
        rows.append([_asked(dtype), *cells])
    return (
        f"{table(rows)}\n\nThe first number of a cell is the TFLOPS of `tw.matmul(a, b)`. The number in brackets is R, the "
        f"time of `torch.matmul(a, b)` divided by the time of `tw.matmul(a, b)` in the same run. No two calls in a row "
        f"multiply the same operands, as in a user's program, and TF32 is off. GPU: {known['gpu']}, with PyTorch "
        f"{known['torch']}. Records: "
        f'{linked(name)}, made by `{command(known)}`, and for float64 with `precision="ieee"` {linked(double)}.'
    )


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
    return (
        f"{table(rows)}\n\nThe columns for each n have GFLOPS of `{first.kernel}` on an {first.environment['gpu']}, with "
        f"the highest value of each column in bold. Registers are those of one thread, and warps are resident on a "
        f"multiprocessor ({made})."
    )


def sweep_rate(record: BenchRecord | None, best: float) -> str:
    if record is None or record.gflops is None:
        return "–"
    return f"**{record.gflops:,.0f}**" if record.gflops == best else f"{record.gflops:,.0f}"


def command_of(name: str) -> str:
    return command(records_of(name)[0].environment)


def resident(record: BenchRecord) -> str:
    """Resident warps of a multiprocessor, from the registers that were measured and the launch as it is now."""
    threads, about = cuda_catalog()[record.kernel].launch(1, 1, 1, **record.params).threads, record.about
    return str(residency(about["arch"], threads, about["registers"], about["shared_bytes"]).get("resident_warps", "–"))


#: Wavefronts that shared loads and stores take.
WAVEFRONTS = {kind: f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum" for kind in ("ld", "st")}


def counted(name: str) -> str:
    """Where a GPU counted other wavefronts of shared memory than predicted: by how many more, in each launch."""
    _, launches = lines_of(name)
    rows = [["kernel", "n", "blocks", "loads", "more", "stores", "more"]]
    most = dict.fromkeys(WAVEFRONTS, 0.0)
    for launch in launches:
        cells = []
        for kind, counter in WAVEFRONTS.items():
            predicted = launch["predicted"].get(counter, 0)
            more = [one.get(counter, 0) - predicted for one in launch["counted"]]
            most[kind] = max(most[kind], *(n / (predicted or 1) for n in more))
            cells += [f"{predicted:,}", ", ".join(f"{n:,}" for n in more) if any(more) else "0"]
        if cells[1::2] != ["0", "0"]:
            rows.append([f"`{launch['kernel']}`", f"{launch['m']:,}", f"{launch['blocks']:,}", *cells])
    first = launches[0]["environment"]
    return (
        f"{table(rows)}\n\nThe columns **loads** and **stores** have the predicted wavefronts of loads and stores in shared "
        f"memory. The columns **more** have the additional wavefronts that the hardware counted in each of three launches: "
        f"at most {most['ld']:.1%} more for loads, and {most['st']:.0%} more for stores. The table leaves out "
        f"{len(launches) - len(rows) + 1} of {len(launches)} cases, in which the hardware counted what was predicted. "
        f"Measured on an {first['gpu']} with ncu {first['ncu'].split()[1]} and {first['compiler']}: "
        f"[record](../benchmarks/{name}.jsonl), made by `python benchmarks/record_rungs.py`."
    )
