"""``a @ b`` of NumPy with and without ``accelerate_numpy``."""

from __future__ import annotations

import json
from typing import Any

from .common import RECORDS, command, linked, table


def accelerated(*names: str) -> str:
    """A table for each number of threads of each record: the ratios by size and dtype."""
    return "\n\n".join(_ratios(name) for name in names)


def _ratios(name: str) -> str:
    records: list[dict[str, Any]] = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]
    known, parts = records[0]["environment"], []
    for record in records:
        cells = {(cell["dtype"], cell["n"]): cell["r"] for cell in record["cells"]}
        dtypes, sizes = list(dict.fromkeys(dtype for dtype, _ in cells)), sorted({n for _, n in cells})
        threads = record["threads"]
        rows = [[f"n, {threads} thread{'s' * (threads > 1)}", *dtypes]]
        for n in sizes:
            found = [cells.get((dtype, n)) for dtype in dtypes]
            rows.append([f"{n:,}", *("–" if r is None else f"{r:.2f}" if r < 10 else f"{r:.0f}" for r in found)])
        parts.append(table(rows))
    blas = f"OpenBLAS {known['blas'].get('openblas', '')} with its {records[0]['openblas_kernels']} kernels"
    processor = f"{known['processor']} (LLVM's name: {known['llvm_cpu']})"
    machine = f"{processor}, {known['cores']} cores, NumPy {known['numpy']}, {blas}"
    what = (
        "R is the time of `a @ b` for n×n matrices with NumPy alone, divided by its time after `tw.accelerate_numpy()`. Two "
        "processes, one with NumPy alone, measured these times in turns. Each R is the median of many ratios, and every "
        "product was verified."
    )
    return "\n\n".join(
        [*parts, f"{what}\n\nMeasured on {machine}. Record: {linked(name)}, made by `{command(known)}`."]
    )
