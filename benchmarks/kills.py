"""Kill products until something is lost: ``python benchmarks/kills.py OUT.jsonl [RANDOM] [SEED]`` (200 and 1).

First ``tilewright multiply --resume --overwrite`` is killed (SIGKILL) at RANDOM random moments, with a result in each format
by turns, and started again. Then processes are killed as the thread of the product enters a system call, one process at each
system call from the last tile to the end: ``strace`` does that (apt-get install strace). After every death the old or the
new result must stand there whole; in the end the resumed product must have the bits of one that was never interrupted, and
nothing else may be left. The operands are small integers, so no bit depends on the order of addition. Appends a record to
OUT; ends with an AssertionError where something was lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.cpu.choice import choose_adding_cpu
from tilewright.lab.inputs.environment import environment
from tilewright.large import multiply as large
from tilewright.large.files import plain
from tilewright.large.files import zarr as zarr_files
from tilewright.large.streaming.places import places
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.stream import Room
from tilewright.large.streaming.run import job as job_module

NAMES = ("c.npy", "c.raw", "c.safetensors", "c.h5", "c.zarr")
#: Sides of the products: one that the command computes for a while, and one of few tiles.
LONG, SHORT = 3072, 600
COMMAND = [sys.executable, "-W", "ignore", "-m", "tilewright", "multiply", "a.npy", "b.npy", "--device", "cpu"]

Files = dict[str, bytes]


def look(name: str) -> Files:
    """The files of a result and their bytes; empty where nothing is."""
    path = Path(name)
    if path.is_dir():
        return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
    return {name: path.read_bytes()} if path.exists() else {}


def put(name: str, files: Files) -> None:
    shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)
    for where, content in files.items():
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        Path(where).write_bytes(content)


def make_operands(n: int) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(f"{name}.npy", rng.integers(-3, 4, (n, n)).astype(np.float32))


def check_done(name: str, new: Files) -> None:
    assert look(name) == new, f"{name}: other bits than those of an uninterrupted product"
    assert not Path(f"{name}.tilewright").exists(), f"{name}: something is left"


# ---- at random moments -----------------------------------------------------------------------------------------------


def start(name: str, *more: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "-o", name, "--memory", "40MiB", "--resume", "--overwrite", *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(name: str) -> None:
    process = start(name)
    _, said = process.communicate()
    assert process.returncode == 0, f"{name}: {said.decode()}"


def kill_at_random(kills: int, rng: random.Random) -> dict[str, Any]:
    """Of each format as many kills; how many of them found a result begun, and how many products were completed."""
    make_operands(LONG)
    told: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        finish(name)
        new = look(name)
        old = old_result(new)
        seconds = measured(lambda name=name: finish(name))
        put(name, old)
        count = {"kills": 0, "begun": 0, "completed": 0}
        while count["kills"] < (kills - number - 1) // len(NAMES) + 1:
            process = start(name)
            time.sleep(rng.uniform(0, seconds))
            process.kill()
            _, said = process.communicate()
            assert process.returncode in (0, -signal.SIGKILL), f"{name}: {said.decode()}"
            assert look(name) in (old, new), f"{name}: neither the old nor the new result"
            if process.returncode:
                count["kills"] += 1
                count["begun"] += Path(f"{name}.tilewright").exists()
            else:
                check_done(name, new)
                count["completed"] += 1
                put(name, old)
        finish(name)
        check_done(name, new)
        count["completed"] += 1
        put(name, {})
        told[name] = count
        print("random", name, count, flush=True)
    return told


def old_result(new: Files) -> Files:
    """Another matrix of the same format: the last byte of each file that has elements is changed."""
    changed = {where: content[:-1] + bytes([content[-1] ^ 1]) for where, content in new.items()}
    return {where: new[where] if where.endswith("zarr.json") else content for where, content in changed.items()}


def measured(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


# ---- at every system call of the swap --------------------------------------------------------------------------------


def work() -> None:
    large.multiply("a.npy", "b.npy", work_name, resume=True, overwrite=True)


def child(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def waited(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def paused(ready: int, go: int) -> Callable[[], None]:
    """The product, which waits before the swap until it may go on."""

    def product() -> None:
        for sink in (plain.PlainSink, zarr_files.ZarrSink):
            sink.finish = waiting(sink.finish)  # type: ignore[method-assign]
        work()

    def waiting(finish: Callable[[Any], None]) -> Callable[[Any], None]:
        def finished(self: Any) -> None:
            os.write(ready, b"%08d" % threading.get_native_id())
            os.read(go, 1)
            finish(self)

        return finished

    return product


def traced(*how: str) -> int:
    """How a product ends whose thread is traced from the last tile on; ``calls.txt`` has its system calls."""
    ready, go = os.pipe(), os.pipe()
    pid = child(paused(ready[1], go[0]))
    thread = int(os.read(ready[0], 8))
    command = ["strace", "-o", "calls.txt", "-p", str(thread), *how]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    assert "attached" in said, said
    os.write(go[1], b".")
    ended = waited(pid)
    tracer.communicate()
    for file in (*ready, *go):
        os.close(file)
    return ended


def kill_everywhere(can_exchange: bool) -> dict[str, dict[str, int]]:
    """Of each format the system calls, at each of which a process was killed; also where two names cannot be exchanged."""
    global work_name
    unless = () if can_exchange else ("--inject=renameat2:error=EINVAL",)
    told = {}
    for work_name in NAMES:
        work()
        new, seen = look(work_name), Counter[str]()
        old = old_result(new)
        may_be = (old, new) if can_exchange or work_name != "c.zarr" else (old, new, {})  # which the next run puts back
        put(work_name, old)
        assert traced(*unless) == 0
        calls = [line.partition("(")[0] for line in Path("calls.txt").read_text().splitlines() if "(" in line]
        told[work_name] = {"calls": len(calls), "kills": 0}
        for call in calls:
            seen[call] += 1
            put(work_name, old)
            ended = traced(*unless, f"--inject={call}:signal=KILL:when={seen[call]}")
            assert ended in (0, -signal.SIGKILL), (work_name, call, ended)
            told[work_name]["kills"] += ended != 0
            assert look(work_name) in may_be, (work_name, call, "neither the old nor the new result")
            assert waited(child(work)) == 0, (work_name, call)
            check_done(work_name, new)
        put(work_name, {})
        print(
            "at system calls",
            "of an exchange" if can_exchange else "of renames",
            work_name,
            told[work_name],
            flush=True,
        )
    return told


def prepare() -> None:
    """A product that is cut into few tiles, and begins at once in every child: all is compiled here."""
    make_operands(SHORT)
    choice = choose_adding_cpu("float32")
    places.host_rates = lambda *_: Rates(1e11, 1e10, 1e9)  # type: ignore[assignment]
    job_module.place_product = lambda *_: places.Placement(choice, Room(1_600_000), 1, 1 << 30)  # type: ignore[assignment]


def main(out: str, kills: str = "200", seed: str = "1") -> None:
    path = Path(out).absolute()
    record: dict[str, Any] = {"kind": "kills", "schema": 1, "seed": int(seed)}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if int(kills):
            record["random"] = kill_at_random(int(kills), random.Random(int(seed)))
        if shutil.which("strace"):
            prepare()
            record["at_system_calls"] = {how: kill_everywhere(how == "exchange") for how in ("exchange", "renames")}
        else:
            print("strace is not installed: no process is killed at every system call", file=sys.stderr)
        os.chdir(path.parent)
    record |= {"lost": 0, "other_bits": 0}  # else an assertion had failed
    command = f"python benchmarks/kills.py {' '.join(sys.argv[1:])}"
    record["environment"] = environment(operands=f"integers from -3 to 3, {LONG}³ and {SHORT}³", command=command)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


work_name = ""

if __name__ == "__main__":
    main(*sys.argv[1:])
