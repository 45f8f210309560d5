"""Records of accuracy made by hand: three paths, of which one adds quarters of the operands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilewright.records.accuracy import AccuracyGrade, AccuracyRecord, MeasuredAccuracy

HEADER: dict[str, Any] = {"kind": "accuracy header", "schema": 1, "environment": {"processor": "AMD EPYC", "cores": 2}}
GRADE: dict[str, Any] = {
    **{"kind": "accuracy grade", "schema": 1, "path": "tilewright", "dtype": "float32", "sizes": [64, 128]},
    **{"grade": "A", "algorithm": "classical", "slope": 0.5, "over": {"A": 0.1, "B": 0.05, "C": None}},
}
PRODUCT: dict[str, Any] = {
    **{"kind": "accuracy", "schema": 1, "path": "tilewright", "dtype": "float32", "distribution": "uniform"},
    **{"m": 64, "n": 64, "k": 64, "componentwise": 1.5, "by_lines": 1.0, "normwise": 0.1, "rms": 2.0, "as_ieee": True},
    **{"over_promise": 0.02, "kernel": "cpu/packed"},
}


def measured(path: str, distribution: str, n: int, error: float | None, **changed: Any) -> MeasuredAccuracy:
    """A product of n³, with this largest error in units of u."""
    fields = {"path": path, "dtype": "float32", "distribution": distribution, "m": n, "n": n, "k": n, "as_ieee": True}
    errors = dict.fromkeys(("componentwise", "by_lines", "normwise", "rms"), error)
    return MeasuredAccuracy(**fields | errors | changed)


def record(dtype: str = "float32") -> AccuracyRecord:
    """Products of a right path, of one that promises less, and of one that keeps no bound on graded operands."""
    products = []
    for path, factor in (("tilewright", 1.0), ('tilewright, "fast"', 20.0), ("cpu/strassen", 3.0)):
        made = [measured(path, "uniform", n, factor * n**0.5 / 8, dtype=dtype) for n in (64, 256, 1024)]
        for span in (0, 20, 60):
            lost = 1e3 * 2.0**span if path == "cpu/strassen" and span else 5.0
            made.append(measured(path, f"graded:{span}", 256, factor * lost, dtype=dtype))
        made.append(measured(path, "graded", 256, 1e9 if path == "cpu/strassen" else 4.0, dtype=dtype))
        ieee = path != "cpu/strassen"
        made.append(measured(path, "infinity", 256, 2.0 if ieee else None, as_ieee=ieee, dtype=dtype))
        products += made
    grades = [
        AccuracyGrade("tilewright", dtype, (64, 128), "A", "classical", 0.5, {"A": 0.1, "B": 0.05, "C": 0.001}),
        AccuracyGrade('tilewright, "fast"', dtype, (64, 128), "–", "classical", 0.5, {"A": 20.0, "B": 9.0, "C": 2.0}),
        AccuracyGrade("cpu/strassen", dtype, (64, 128), "C", "Strassen-like", None, {"A": None, "B": 1e9, "C": 0.1}),
    ]
    return AccuracyRecord(tuple(products), tuple(grades), HEADER["environment"])


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    """A file of these lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
