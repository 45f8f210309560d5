"""Run every case of ``opcode_cases`` on the GPU and keep what it wrote: ``python benchmarks/record_opcodes.py OUT.npz``.

The file holds one array of raw bytes a case (its outputs, one behind the other) and, as JSON in ``metadata``, the GPU,
the driver, the versions and the hash of each case. Needs NumPy, CuPy and cuda.core. The cases run in a process of their
own, which a launch that fails takes with it: that case is reported, and the next process goes on behind it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.opcode_cases import CASES, Case

#: Seconds without a word from the process after which its case counts as hanging.
PATIENCE = 60


# ---- in the process that holds the GPU


def work(folder: Path, names: list[str], cases: Mapping[str, Case] = CASES) -> None:
    """Run these cases; a line for each: begin, done or failed."""
    import cupy
    from cuda.core import Device

    device = Device()
    device.set_current()
    stream = device.create_stream()
    say("metadata", json.dumps(versions(device)))
    for name in names:
        say("begin", name)
        case = cases[name]
        try:
            kernel = assemble(case)
        except Exception as error:  # nothing was launched: the next case can run
            say("failed", f"{name}\tdoes not assemble: {first_line(error)}")
            continue
        try:
            arrays = launch_case(cupy, stream, kernel, case)
        except Exception as error:  # the context may be lost
            say("failed", f"{name}\tdoes not run: {first_line(error)}")
            raise SystemExit(3) from error
        (folder / name).write_bytes(b"".join(a.tobytes() for a in arrays))
        say("done", name)


def assemble(case: Case) -> Any:
    """The kernel of a case: by the linker's assembler, else by the driver's."""
    from cuda.core import ObjectCode, Program, ProgramOptions

    try:
        code = Program(case.ptx, "ptx", ProgramOptions(name=case.name, arch="sm_90a")).compile("cubin")
        return code.get_kernel("k")
    except Exception as linker:
        try:
            return ObjectCode.from_ptx(case.ptx.encode(), name=case.name).get_kernel("k")
        except Exception as driver:
            raise RuntimeError(f"linker: {first_line(linker)}; driver: {first_line(driver)}") from driver


def launch_case(cupy: Any, stream: Any, kernel: Any, case: Case) -> list[np.ndarray]:
    from cuda.core import LaunchConfig, launch

    on_gpu = {i: cupy.asarray(a) for i, a in enumerate(case.arguments) if isinstance(a, np.ndarray)}
    cupy.cuda.Device().synchronize()
    arguments = [int(on_gpu[i].data.ptr) if i in on_gpu else a for i, a in enumerate(case.arguments)]
    config = LaunchConfig(grid=case.grid, block=case.block, shmem_size=case.shared)
    launch(stream, config, kernel, *arguments)
    stream.sync()
    return [cupy.asnumpy(on_gpu[o]) for o in case.outputs]


def versions(device: Any) -> dict[str, str]:
    import cuda.core
    import cupy

    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    smi = subprocess.run(asked, capture_output=True, text=True, check=False) if shutil.which(asked[0]) else None
    return {
        "gpu": device.name,
        "compute_capability": ".".join(map(str, device.compute_capability)),
        "driver": smi.stdout.strip().split("\n")[0] if smi and smi.returncode == 0 else "unknown",
        "cuda_driver_api": str(cupy.cuda.runtime.driverGetVersion()),
        "cuda_runtime": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cuda_core": cuda.core.__version__,
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def say(word: str, text: str) -> None:
    print(f"{word}\t{text}", flush=True)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\t", " ").split("\n")[0][:300]


# ---- in the process that watches


def watch(folder: Path, names: list[str], script: str = __file__) -> tuple[dict[str, str], dict[str, str]]:
    """Run the cases in one process of ``script`` after the other; metadata, and the reason for each case that failed."""
    metadata: dict[str, str] = {}
    failed: dict[str, str] = {}
    left = list(names)
    while left:
        at, done = "", 0
        for word, text in listen([sys.executable, script, "--worker", str(folder), *left]):
            if word == "metadata":
                metadata = json.loads(text)
            elif word == "begin":
                at = text
            elif word == "failed":
                name, why = text.split("\t", 1)
                failed[name], done = why, done + 1
            elif word == "done":
                done += 1
            elif word == "end" and done < len(left) and at == left[done]:
                failed[at], done = f"the process ended or hung: {text}", done + 1
        if not at:
            raise SystemExit("the process that holds the GPU did not start: see its message above")
        left = left[done:]
    return metadata, failed


def listen(command: list[str]) -> Any:
    """The lines of a process as (word, text); at its end, or when it is silent for too long, ("end", why)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PATIENCE)
        except queue.Empty:
            process.kill()
            yield "end", f"silent for {PATIENCE} s"
            return
        if line is None:
            yield "end", f"exit code {process.wait()}"
            return
        word, _, text = line.rstrip("\n").partition("\t")
        yield word, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write: OUT.npz")
    parser.add_argument("--only", default="", help="record the cases whose name contains this")
    given = parser.parse_args()
    names = [n for n in CASES if given.only in n]
    with tempfile.TemporaryDirectory() as folder:
        metadata, failed = watch(Path(folder), names)
        outputs = {n: np.fromfile(Path(folder) / n, np.uint8) for n in names if (Path(folder) / n).exists()}
    for name, why in failed.items():
        outputs.pop(name, None)
        print(f"failed: {name}: {why}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = {**metadata, "recorded": now, "failed": failed, "cases": {n: CASES[n].digest() for n in outputs}}
    np.savez_compressed(given.out, metadata=np.array(json.dumps(record, indent=1)), **outputs)
    print(f"{len(outputs)} of {len(names)} cases recorded in {given.out}, {given.out.stat().st_size} bytes")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
