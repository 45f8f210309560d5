"""Tries damaged and hostile files on every reader: no traceback, no wait, no memory beyond what a file justifies.

    python benchmarks/fuzz_readers.py                                     # 20,000 inputs, about 20 minutes on two cores
    python benchmarks/fuzz_readers.py --count 500 --kinds npy,zarr        # some
    python benchmarks/fuzz_readers.py --kinds hdf5 --only 1234            # one input again, with its traceback
    python benchmarks/fuzz_readers.py --guided 0.25                       # a quarter of them coverage-guided, by atheris

Inputs are mutations of valid files, records and headers (``tests/support/hostile.py``), the same for the same number on
every machine; those of ``--guided`` are chosen by which lines they reach. They are tried in worker processes: one that takes
more than ``--limit`` seconds of the processor for an input, or waits five times as long, is killed and the input counted as
a hang; one that dies counts as a crash. No input may raise the most memory that a worker ever used by more than 256 MiB, nor
ask for more than ``--memory`` MiB of address space. (Blosc reserves, but does not touch, the up to 2 GiB that the header of
a chunk claims.)

Outcomes are counted by kind: ``read``, ``refused`` (by an error of Tilewright, in one line) and defects. A record of one
JSON object goes to ``--json``, by default benchmarks/fuzz-readers.json; ``-`` is standard output. The exit code is 1 if
there was a defect. It needs the extras ``lab`` and ``files``; atheris (pip install atheris) only for ``--guided``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import select
import shlex
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "src")]

#: Share of the inputs of each kind.
SHARES = {
    **{"npy": 3, "safetensors": 3, "hdf5": 3, "zarr": 2, "raw": 1},
    **{"records": 3, "explanations": 2, "timelines": 2, "headers": 1},
}
#: Bytes by which one input may raise the most memory that a worker ever used.
MOST_GROWTH = 256 << 20


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, metavar="NUMBER", help="inputs in all")
    parser.add_argument("--kinds", default=",".join(SHARES), metavar="LIST", help="default: all")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="number of the first input of each kind")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="try one input here and show what it raises")
    parser.add_argument("--guided", type=float, default=0.0, metavar="SHARE", help="share of inputs guided by coverage")
    parser.add_argument("--limit", type=float, default=2.0, metavar="SECONDS", help="for one input")
    parser.add_argument("--memory", type=int, default=4096, metavar="MIB", help="address space beyond the baseline")
    parser.add_argument("--json", default=str(HERE / "fuzz-readers.json"), metavar="FILE")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "FIRST:LAST"), help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- a worker --------------------------------------------------------------------------------------------------------


def work(kind: str, first: int, last: int, memory: int) -> None:
    """Say ``number`` before each input and ``number outcome`` after it."""
    from support import hostile

    reader = hostile.READERS[kind]
    for files in reader.seeds():  # compiles, imports, fills caches
        hostile.outcome(reader.attempt, files)
    limit_memory(memory)
    for number in range(first, last):
        files, before = hostile.mutated(kind, number), most_memory()
        print(number, flush=True)
        found = hostile.outcome(reader.attempt, files)
        if most_memory() - before > MOST_GROWTH:
            found = f"defect: memory: {(most_memory() - before) >> 20} MiB more, and then: {found}"
        print(number, found.replace("\n", " "), flush=True)


def limit_memory(mebibytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (mebibytes << 20),) * 2)


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# ---- the parent ------------------------------------------------------------------------------------------------------


def tried(kind: str, first: int, last: int, limit: float, memory: int) -> list[tuple[int, str]]:
    """The outcome of every input, whatever becomes of the workers."""
    found: list[tuple[int, str]] = []
    while first < last:
        command = [sys.executable, __file__, "--memory", str(memory), "--worker", kind, f"{first}:{last}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
            said, why = watched(worker, found, limit)
        if said is None and not why:
            break
        if said is None:
            raise SystemExit(f"{kind}: a worker ended before its first input: {why}")
        if found and found[-1][0] == said:  # it died between two inputs
            found.pop()
        found.append((said, why))
        first = said + 1
    return found


def watched(worker: subprocess.Popen[bytes], found: list[tuple[int, str]], limit: float) -> tuple[int | None, str]:
    """Collect outcomes until the worker ends; returns the input that stopped it and what it did."""
    assert worker.stdout is not None
    assert worker.stderr is not None
    out, err = worker.stdout.fileno(), worker.stderr.fileno()
    open_streams, unread, errors = {out, err}, b"", b""
    begun, since = None, Since(worker.pid)
    while open_streams:
        ready, _, _ = select.select(open_streams, [], [], 0.2)
        if begun is not None and not ready and since.too_long(limit):
            worker.kill()
            return begun, f"defect: hang: no answer for {limit:g} s"
        for stream in ready:
            chunk = os.read(stream, 1 << 16)
            if not chunk:
                open_streams.discard(stream)
            elif stream == err:
                errors = (errors + chunk)[-2000:]
            else:
                *lines, unread = (unread + chunk).split(b"\n")
                for line in lines:
                    number, _, outcome = line.decode(errors="replace").partition(" ")
                    begun, since = (None if outcome else int(number)), Since(worker.pid)
                    if outcome:
                        found.append((int(number), outcome))
    if code := worker.wait():
        return begun, f"defect: crash: exit code {code}: {errors[-300:].decode(errors='replace')!r}"
    return None, ""


class Since:
    """How long a process has had for an input: of the processor, for other work may slow all of this down; or of the clock,
    for it may wait and do nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.clock, self.processor = time.monotonic(), self._used()

    def too_long(self, limit: float) -> bool:
        return self._used() - self.processor > limit or time.monotonic() - self.clock > 5 * limit

    def _used(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def guided(kind: str, runs: int, limit: float, memory: int) -> collections.Counter[str]:
    """Outcomes of inputs that atheris chose, in a process of its own: see ``fuzz_guided.py``."""
    command = [sys.executable, str(HERE / "fuzz_guided.py"), kind, str(runs), str(limit), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    outcomes = collections.Counter(json.loads(lines[-1]) if lines else {})
    if done.returncode:
        outcomes[f"defect: guided: exit code {done.returncode}: {done.stderr[-400:]!r}"] += 1
    return outcomes


def main() -> int:
    given = asked()
    warnings.simplefilter("ignore")
    if given.worker:
        first, last = map(int, given.worker[1].split(":"))
        work(given.worker[0], first, last, given.memory)
        return 0
    kinds = {kind: SHARES[kind] for kind in given.kinds.split(",")}
    if given.only is not None:
        return again(next(iter(kinds)), given.only)
    started, outcomes, defects = time.monotonic(), {}, []
    chosen_by_coverage = 0
    for kind, share in kinds.items():
        count = round(given.count * share / sum(kinds.values()))
        by_coverage = round(count * given.guided)
        found = tried(kind, given.first, given.first + count - by_coverage, given.limit, given.memory)
        counted = collections.Counter(outcome.split(":")[0] for _, outcome in found)
        defects += [
            {"kind": kind, "input": number, "outcome": what[:500]} for number, what in found if what[:6] == "defect"
        ]
        if by_coverage:
            more = guided(kind, by_coverage, given.limit, given.memory)
            defects += [{"kind": kind, "outcome": what[:500]} for what in more if what.startswith("defect")]
            for what, number in more.items():
                counted[what.split(":")[0]] += number
            chosen_by_coverage += sum(more.values())
        outcomes[kind] = dict(counted)
        print(f"{kind}: {outcomes[kind]}", file=sys.stderr, flush=True)
    for defect in defects:
        print(json.dumps(defect), file=sys.stderr)
    write(given, outcomes, defects, chosen_by_coverage, time.monotonic() - started)
    return 1 if defects else 0


def again(kind: str, number: int) -> int:
    """One input in this process; what it raises is shown whole."""
    from support import hostile

    files = hostile.mutated(kind, number)
    print({name: data[:300] for name, data in files.items()})
    print(hostile.outcome(hostile.READERS[kind].attempt, files))
    with hostile.laid_out(files) as folder:
        try:
            hostile.READERS[kind].attempt(folder)
        except Exception:
            traceback.print_exc()
    return 0


def write(given: argparse.Namespace, outcomes: dict[str, Any], defects: list[Any], guided: int, seconds: float) -> None:
    from tilewright.lab.inputs.environment import environment

    facts = environment(operands="mutated files")
    facts["command"] = shlex.join(["python", "benchmarks/fuzz_readers.py", *sys.argv[1:]])
    record = {
        **{"kind": "fuzz readers", "schema": 1, "inputs": sum(sum(each.values()) for each in outcomes.values())},
        **{"guided": guided, "limit_s": given.limit, "memory_mib": given.memory, "seconds": round(seconds, 1)},
        **{"outcomes": outcomes, "defects": defects, "environment": facts | versions()},
    }
    text = json.dumps(record, indent=1) + "\n"
    if given.json == "-":
        sys.stdout.write(text)
    else:
        Path(given.json).write_text(text, encoding="utf-8")


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("numpy", "h5py", "zarr", "rich", "atheris"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
