"""The predicted time of the asynchronous kernels beside the measured."""

from __future__ import annotations

from tilewright.lab.explain.cuda import PipelineWork, predicted_time
from tilewright.records.explanation import TimePart
from tilewright.simulator.gpus import find_gpu

from .common import lines_of, linked, table

#: The records of what was counted, and of what was measured.
WORK, MEASURED = "pipeline-work", "pipeline-rates-h200"


def pipelines() -> str:
    """A row for each launch: its parts, what limits its steady state, and both times, in µs."""
    seconds = {(row["kernel"], row["size"]): row["seconds"] for row in lines_of(MEASURED)[1] if row["kind"] == "kernel"}
    extents = {(row["kernel"], row["size"]): row["extents"] for row in lines_of("asynchronous-h200")[1]}
    rows = [["kernel", "launch and fill", "steady state", "epilogue", "predicted", "measured", "off", "bound by"]]
    off = []
    for row in lines_of(WORK)[1]:
        launch = row.pop("kernel"), row.pop("size")
        parts = predicted_time(PipelineWork(**row), find_gpu("H200"))
        predicted, measured = sum(part.seconds for part in parts), seconds[launch]
        off.append(predicted / measured - 1)
        begin, steady, end = parts[0].seconds + parts[1].seconds, parts[2].seconds, parts[3].seconds
        times = [f"{1e6 * each:.1f}" for each in (begin, steady, end, predicted, measured)]
        size = " × ".join(f"{extent:,}" for extent in extents[launch])
        rows.append([f"{launch[0]}, {size}", *times, f"{off[-1]:+.0%}", limit_of(parts[2])])
    text = table(rows).replace("---: |\n", "--- |\n")  # the last column has words
    within = sum(abs(each) <= 0.2 for each in off)
    return (
        f"{text}\n\nThe times are in µs, and the numbers after the name of a kernel are the sizes of its inputs. The column "
        f"*off* has the error of the prediction: {within} of {len(off)} predictions are within 20 % of the measured time, "
        f"and {sum(abs(each) <= 0.1 for each in off)} are within 10 %. Records: the counts are in {linked(WORK)}, and the "
        f"times that were measured on an H200 are in {linked(MEASURED)}."
    )


def limit_of(steady: TimePart) -> str:
    """What limits the steady state."""
    return steady.because.removeprefix("bound by ").partition(":")[0]
