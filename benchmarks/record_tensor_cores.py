"""Run every case of ``tensor_core_cases`` on the GPU: ``python benchmarks/record_tensor_cores.py DIR``.

``DIR/tensor-cores-h200.npz`` is for ``tests/data``: results of up to ``WHOLE`` bytes as they are, of the others a hash, and
metadata as ``record_opcodes.py`` writes it. ``DIR/tensor-cores-whole.npz`` has all results, to analyse a difference. At the
end each result is compared with the microscope's. Needs NumPy, CuPy and cuda.core, and the package on the path.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import record_opcodes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.tensor_core_cases import CASES, kept, replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the two files")
    parser.add_argument("--only", default="", help="record the cases whose name contains this")
    given = parser.parse_args()
    names = [n for n in CASES if given.only in n]
    with tempfile.TemporaryDirectory() as folder:
        metadata, failed = record_opcodes.watch(Path(folder), names, __file__)
        made = [n for n in names if n not in failed]
        outputs = {n: (Path(folder) / n).read_bytes() for n in made}
    for name, why in failed.items():
        print(f"failed: {name}: {why}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = {**metadata, "recorded": now, "failed": failed, "cases": {n: CASES[n].digest() for n in outputs}}
    about = np.array(json.dumps(record, indent=1))
    whole = {n: np.frombuffer(data, np.uint8) for n, data in outputs.items()}
    given.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.folder / "tensor-cores-whole.npz", metadata=about, **whole)
    np.savez_compressed(
        given.folder / "tensor-cores-h200.npz",
        metadata=about,
        **{n: np.frombuffer(kept(data), np.uint8) for n, data in outputs.items()},
    )
    different = [n for n in outputs if compared(n, outputs[n])]
    print(f"{len(outputs)} of {len(names)} cases recorded on {metadata.get('gpu')}, {len(different)} differ")
    raise SystemExit(1 if failed else 0)


def compared(name: str, recorded: bytes) -> str:
    """How the microscope's result differs, printed; empty if it does not."""
    try:
        mine, theirs = (np.frombuffer(x, np.uint32) for x in (replay(name), recorded))
    except Exception as error:  # the table goes on
        text = f"{type(error).__name__}: {error}"[:200]
    else:
        wrong = np.flatnonzero(mine != theirs)
        if not wrong.size:
            return ""
        at = int(wrong[0])
        text = f"{wrong.size} of {mine.size} differ, the first at {at}: {mine[at]:#010x}, recorded {theirs[at]:#010x}"
    print(f"{name}: {text}")
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        record_opcodes.work(Path(sys.argv[2]), sys.argv[3:], CASES)
    else:
        main()
