"""Run every case of ``cluster_cases`` on a Hopper GPU: ``python benchmarks/record_clusters.py DIR``.

``DIR/clusters-h200.npz`` is for ``tests/data``: what each case wrote, and metadata as ``record_opcodes.py`` writes it. Each
result is compared with the microscope's; exits with 1 if one fails or differs. Needs NumPy, CuPy, cuda.core and the package.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import record_opcodes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.cluster_cases import CASES
from tilewright.simulator import simulate


def compared(name: str, recorded: bytes) -> str:
    """How the microscope's result differs; empty if it does not."""
    case = CASES[name]
    run = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments))
    if run.findings:
        return str(run.findings[0])
    mine = np.concatenate([np.asarray(run.arrays[o]).reshape(-1) for o in case.outputs])
    theirs = np.frombuffer(recorded, np.uint32)
    wrong = np.flatnonzero(mine != theirs)
    if not wrong.size:
        return ""
    at = int(wrong[0])
    return f"{wrong.size} of {mine.size} differ, the first at {at}: {mine[at]:#010x}, recorded {theirs[at]:#010x}"


def main() -> int:
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        metadata, failed = record_opcodes.watch(Path(scratch), list(CASES), __file__)
        outputs = {name: (Path(scratch) / name).read_bytes() for name in CASES if name not in failed}
    wrong = {name: why for name, data in outputs.items() if (why := compared(name, data))}
    for name, why in {**failed, **wrong}.items():
        print(f"{name}: {why}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {**metadata, "recorded": now, "failed": failed, "cases": {name: CASES[name].digest() for name in outputs}}
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in outputs.items()}
    np.savez_compressed(folder / "clusters-h200.npz", metadata=np.array(json.dumps(about, indent=1)), **arrays)
    print(f"{len(outputs)} of {len(CASES)} cases recorded on {metadata.get('gpu')}, {len(wrong)} differ")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        record_opcodes.work(Path(sys.argv[2]), sys.argv[3:], CASES)
    else:
        raise SystemExit(main())
