"""Where the first GPU product of a process spends its time: ``first_gpu_product.py OUT.json [--n 49152] [--device cuda:0]``.

Every part runs in a process of its own. ``steps`` times one thing after the other: imports, the driver, the context,
page-locking, GPU memory, compilation; ``memory`` times the first touch of host memory. ``forms`` compares the code that the
laboratory compiles with that of products: seconds to compile, milliseconds of a product. ``plain`` times whole calls of
``multiply`` and ``matmul``, imports included, with nothing else in the process. ``product`` times
``tilewright.multiply`` of NumPy arrays several times, and within each call the functions named in ``TIMED``, by the union
of their spans over all threads; a thread samples where all threads are. The product runs with an empty cache (cold), then
twice with what the process before left in it (warm), then once more with an empty cache: by then the machine's memory has
grown, so the difference between the two cold processes is the growth. Every result is checked with a random vector.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STARTED_S = time.perf_counter()

#: Functions that are timed within a call. One that a module no longer has is listed under "missing".
TIMED = (
    "tilewright.cpu.runtime.stop:run_on_thread",
    "tilewright.large.streaming.run.job:opened_product",
    "tilewright.large.streaming.run.job:array_for",
    "tilewright.large.streaming.places.places:place_product",
    "tilewright.large.streaming.places.places:choose_streamed",
    "tilewright.large.streaming.places.places:typical_step",
    "tilewright.large.streaming.places.gpu:gpu_rates",
    "tilewright.large.streaming.places.gpu:_product_s",
    "tilewright.large.streaming.places.gpu:_link_rates",
    "tilewright.large.streaming.places.rates:read_rate",
    "tilewright.large.streaming.places.rates:write_rate",
    "tilewright.large.streaming.plan.stream:plan_stream",
    "tilewright.large.streaming.run.job:plan_job",
    "tilewright.large.streaming.run.job:Job.run",
    "tilewright.large.streaming.run.job:create_matrix",
    "tilewright.large.streaming.run.executor:execute",
    "tilewright.large.streaming.places.gpu:GpuPlace.__init__",
    "tilewright.large.streaming.places.gpu:GpuPlace.close",
    "tilewright.gpu.runtime.device:open_device",
    "tilewright.gpu.runtime.wake:_create_context",
    "tilewright.gpu.runtime.driver:driver",
    "tilewright.gpu.runtime.device:Device.__init__",
    "tilewright.gpu.runtime.device:Device.reserve",
    "tilewright.gpu.runtime.launch:Kernels._load",
    "tilewright.gpu.runtime.product:prepare_gpu_product",
    "tilewright.gpu.runtime.steps:load",
    "tilewright.gpu.runtime.nvrtc:compile_source",
    "tilewright.gpu.runtime.nvrtc:_compile",
    "tilewright.gpu.runtime.nvrtc:compiler",
    "tilewright.gpu.runtime.memory:HostPages.take",
    "tilewright.gpu.runtime.memory:HostPages.lock",
    "tilewright.gpu.runtime.memory:HostPages.give_back",
    "tilewright.large.files.array:ArraySource.read",
    "tilewright.large.files.array:ArraySink.write",
)

GIB = 1 << 30


# ---- spans -----------------------------------------------------------------------------------------------------------


class Spans:
    """Spans of named functions on all threads, of the call under way."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, float, float]] = []
        self.missing: list[str] = []

    def wrap(self, where: str) -> None:
        """Time a function wherever a module of the package refers to it."""
        module_name, _, path = where.partition(":")
        *owners, name = path.split(".")
        try:
            owner: Any = functools.reduce(getattr, owners, importlib.import_module(module_name))
            function = owner.__dict__[name] if owners else getattr(owner, name)
        except (ImportError, AttributeError, KeyError):
            self.missing.append(where)
            return

        @functools.wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                self.spans.append((path, threading.current_thread().name, begun, time.perf_counter()))

        if owners:
            setattr(owner, name, timed)
            return
        for loaded, module in list(sys.modules.items()):
            if loaded.startswith("tilewright") and getattr(module, name, None) is function:
                setattr(module, name, timed)

    def summary(self, start_s: float) -> dict[str, dict[str, float]]:
        """By function: calls, seconds of all threads together, seconds in which any thread was there, first and last."""
        found: dict[str, list[tuple[float, float]]] = {}
        for name, _, begun, ended in self.spans:
            found.setdefault(name, []).append((begun, ended))
        return {
            name: {
                "calls": len(spans),
                "threads_s": round(sum(ended - begun for begun, ended in spans), 4),
                "union_s": round(union(spans), 4),
                "first_s": round(min(spans)[0] - start_s, 4),
                "last_s": round(max(ended for _, ended in spans) - start_s, 4),
            }
            for name, spans in sorted(found.items(), key=lambda item: min(item[1]))
        }


def union(spans: list[tuple[float, float]]) -> float:
    """Seconds that are within any of the spans."""
    total, end = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total


class Sampler(threading.Thread):
    """Every 10 ms: where each thread is, by its name: the innermost function, and the package's lines that called it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.places: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.01):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for thread, frame in sys._current_frames().items():
                if thread == self.ident:
                    continue
                name = names.get(thread, "?")
                self.places[f"{name.rstrip('0123456789_-')}: {' < '.join(chain(frame))}"] += 1


def chain(frame: Any) -> Iterator[str]:
    """The innermost function, and the three innermost lines of the package."""
    yield f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
    found = 0
    while frame is not None and found < 3:
        if "tilewright" in frame.f_code.co_filename:
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            found += 1
        frame = frame.f_back


# ---- the product -----------------------------------------------------------------------------------------------------


def product(options: argparse.Namespace) -> dict[str, Any]:
    """``tilewright.multiply`` so many times in this process."""
    out: dict[str, Any] = {"n": options.n, "interpreter_s": time.perf_counter() - STARTED_S}
    with taking(out, "import_numpy_s"):
        import numpy as np
    with taking(out, "operands_s"):
        a, b = uniform(options.n, 1), uniform(options.n, 2)
    with taking(out, "import_tilewright_s"):
        import tilewright as tw
    with taking(out, "import_multiply_s"):
        importlib.import_module("tilewright.large.multiply")
        importlib.import_module("tilewright.large.streaming.run.job")
    spans = Spans()
    for where in TIMED:
        spans.wrap(where)
    out["missing"] = spans.missing
    out["calls"] = []
    x = np.random.default_rng(3).random((options.n, 1), np.float32)
    expected = a.astype(np.float32) @ (b @ x)
    for number in range(options.calls):
        from tilewright.large.streaming.places.place import Events

        spans.spans.clear()
        events, before = Events(), usage()
        sampler = Sampler()
        sampler.start()
        begun = time.perf_counter()
        c = tw.multiply(a, b, device=options.device, events=events)
        took = time.perf_counter() - begun
        sampler.over.set()
        sampler.join()
        after = usage()
        error = float(np.abs(c @ x - expected).max() / np.abs(expected).max())
        assert error < 1e-3, f"wrong by {error}"
        out["calls"].append(
            {
                "call": number + 1,
                "seconds": round(took, 4),
                "spans": spans.summary(begun),
                "lanes": lanes(events),
                "usage": {name: after[name] - before[name] for name in after},
                "samples": dict(sampler.places.most_common(25)),
                "relative_error": error,
            }
        )
        print(f"  {options.name}: call {number + 1}: {took:.3f} s", flush=True)
        begun = time.perf_counter()
        del c
        out["calls"][-1]["free_result_s"] = round(time.perf_counter() - begun, 4)
    return out


def lanes(events: Any) -> dict[str, Any]:
    """Of each lane: first, last, and busy seconds, from the beginning of the run (which is after planning)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events.events:
        found.setdefault(event.track, []).append((event.start_s, event.end_s))
    return {
        lane: {
            "pieces": len(spans),
            "first_s": round(min(spans)[0], 4),
            "last_s": round(max(end for _, end in spans), 4),
            "union_s": round(union(spans), 4),
            "threads_s": round(sum(end - start for start, end in spans), 4),
        }
        for lane, spans in found.items()
    }


def uniform(n: int, seed: int) -> Any:
    """n×n float32 of [−1, 1), by all processors."""
    import numpy as np

    array = np.empty((n, n), np.float32)

    def fill(row: int) -> None:
        band = array[row : row + 1024]
        np.random.Generator(np.random.SFC64([seed, row])).random(out=band.reshape(-1), dtype=np.float32)
        band *= 2
        band -= 1

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, n, 1024)))
    return array


def usage() -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    memory = meminfo()
    return {
        "minor_faults": own.ru_minflt,
        "major_faults": own.ru_majflt,
        "user_s": own.ru_utime,
        "system_s": own.ru_stime,
        "free_kib": memory.get("MemFree", 0),
        "huge_kib": memory.get("AnonHugePages", 0),
    }


def meminfo() -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {}


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """The product as a user's program has it, with nothing timed within: imports are part of the first call."""
    import numpy as np

    function, a, out = options.name.partition(",")[0], np.ones((options.n, options.n), np.float32), {}
    begun = time.perf_counter()
    import tilewright as tw

    for number in range(options.calls):
        c = getattr(tw, function)(a, a, device=options.device)
        out[f"call {number + 1}"] = round(time.perf_counter() - begun, 4)
        assert (c == options.n).all(), "wrong"
        begun = time.perf_counter()
    return {"plain": out}


# ---- one thing after the other ---------------------------------------------------------------------------------------


def steps(options: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {"interpreter_s": time.perf_counter() - STARTED_S, "errors": {}}
    for part in (imports_and_context, locking_steps, gpu_memory_steps, compile_steps):
        try:
            out[part.__name__] = part(options)
        except Exception as error:  # the other parts still say something
            out["errors"][part.__name__] = f"{type(error).__name__}: {error}"
    return out


def imports_and_context(options: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for module in ("numpy", "tilewright", "tilewright.api.matmul", "tilewright.large.multiply", "cuda.bindings.driver",
                   "cuda.bindings.nvrtc", "cuda.core"):  # fmt: skip
        with taking(out, f"import {module}"):
            importlib.import_module(module)
    driver, core = importlib.import_module("cuda.bindings.driver"), importlib.import_module("cuda.core")
    with taking(out, "cuInit"):
        driver.cuInit(0)
    with taking(out, "Device"):
        device = core.Device(int(options.device.partition(":")[2].split(",")[0] or 0))
    with taking(out, "set_current (context)"):
        device.set_current()
    with taking(out, "create_stream"):
        device.create_stream()
    with taking(out, "opened"):
        importlib.import_module("tilewright.gpu.runtime.device").open_device()
    with taking(out, "nvrtcVersion"):
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    return out


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """First touch of GiBs of host memory: in the first turn nothing is freed, so that all of it is new to the machine,
    unless processes before had used it; the second turn gets what the first one has freed."""
    import numpy as np

    nbytes, workers = GIB, os.cpu_count() or 1
    block = np.ones(16 << 20, np.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

    def empty(advice: int | None, flags: int = private) -> Any:
        pages = mmap.mmap(-1, nbytes, flags=flags)
        if advice is not None:
            pages.madvise(advice)
        return np.frombuffer(pages, np.uint8)

    def write(array: Any, threads: int) -> Any:
        starts = range(0, array.nbytes, block.nbytes)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda at: np.copyto(array[at : at + block.nbytes], block), starts))
        return array

    def populate(array: Any, threads: int) -> Any:
        step = -(-array.nbytes // threads // (2 << 20)) * (2 << 20)
        libc = ctypes.CDLL(None, use_errno=True)
        failed: list[int] = []

        def fill(at: int) -> None:
            size = min(step, array.nbytes - at)
            if libc.madvise(ctypes.c_void_p(array.ctypes.data + at), ctypes.c_size_t(size), 23):  # MADV_POPULATE_WRITE
                failed.append(ctypes.get_errno())

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, range(0, array.nbytes, step)))
        if failed:
            raise OSError(failed[0], "MADV_POPULATE_WRITE")
        return array

    huge, small = mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE
    shared = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
    ways: dict[str, Callable[[], Any]] = {
        "write, small pages, 1 thread": lambda: write(empty(small), 1),
        f"write, small pages, {workers} threads": lambda: write(empty(small), workers),
        "write, huge pages, 1 thread": lambda: write(empty(huge), 1),
        f"write, huge pages, {workers} threads": lambda: write(empty(huge), workers),
        f"populate, huge pages, {workers} threads": lambda: populate(empty(huge), workers),
        f"write, shared huge pages, {workers} threads": lambda: write(empty(huge, shared), workers),
        f"numpy.empty, write, {workers} threads": lambda: write(np.empty(nbytes, np.uint8), workers),
    }
    out: dict[str, Any] = {"bytes": nbytes, "threads": workers}
    for turn in ("first", "second"):
        kept: list[Any] = []
        for name, way in ways.items():
            key = f"{turn}: {name}"
            before = usage()
            try:
                with taking(out, key):
                    array = way()
                kept.append(array)
                with taking(out, f"{key}: again"):
                    write(array, workers)
            except (OSError, AttributeError) as error:
                out[key] = str(error)
            out[f"{key}: faults"] = usage()["minor_faults"] - before["minor_faults"]
        del array
        with taking(out, f"{turn}: free {len(ways)} arrays"):
            kept.clear()
    return {"memory_steps": out}


def locking_steps(options: argparse.Namespace) -> dict[str, Any]:
    """Page-locking 32 chunks of 16 MiB, which is what a product takes."""
    import numpy as np
    from cuda.bindings import driver

    out: dict[str, Any] = {}
    size, count = 16 << 20, 32

    def made(touched: bool, advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)) -> list[Any]:
        found = []
        for _ in range(count):
            pages = mmap.mmap(-1, size)
            if advice is not None:
                pages.madvise(advice)
            found.append(np.frombuffer(pages, np.uint8))
            if touched:
                found[-1].fill(0)
        return found

    def current() -> None:
        driver.cuCtxSetCurrent(context)

    def lock(pages: Any) -> None:
        (status,) = driver.cuMemHostRegister(pages.ctypes.data, pages.nbytes, 1)
        assert status == driver.CUresult.CUDA_SUCCESS, status

    context = driver.cuCtxGetCurrent()[1]
    for name, touched, threads in (
        ("untouched, 1 thread", False, 1),
        ("touched, 1 thread", True, 1),
        ("untouched, 16 threads", False, 16),
        ("touched, 16 threads", True, 16),
    ):
        with taking(out, f"make chunks, {name}"):
            chunks = made(touched)
        with concurrent.futures.ThreadPoolExecutor(threads, initializer=current) as pool:
            list(pool.map(abs, range(threads)))
            with taking(out, f"lock chunks, {name}"):
                list(pool.map(lock, chunks))
        with taking(out, f"unlock chunks, {name}"):
            for chunk in chunks:
                driver.cuMemHostUnregister(chunk.ctypes.data)
    for name, nbytes, times in (("32 × 16 MiB", size, count), ("1 × 512 MiB", size * count, 1)):
        with taking(out, f"cuMemHostAlloc, {name}"):
            pointers = [driver.cuMemHostAlloc(nbytes, 1)[1] for _ in range(times)]
        with taking(out, f"cuMemFreeHost, {name}"):
            for pointer in pointers:
                driver.cuMemFreeHost(pointer)
    return out


def gpu_memory_steps(options: argparse.Namespace) -> dict[str, Any]:
    from cuda.bindings import driver

    out: dict[str, Any] = {}
    for nbytes in (GIB, 30 * GIB, 60 * GIB):
        for turn in ("first", "second"):
            with taking(out, f"cuMemAlloc {nbytes // GIB} GiB, {turn}"):
                status, pointer = driver.cuMemAlloc(nbytes)
            out[f"status {nbytes // GIB} GiB, {turn}"] = status.name
            if status == driver.CUresult.CUDA_SUCCESS:
                with taking(out, f"cuMemFree {nbytes // GIB} GiB, {turn}"):
                    driver.cuMemFree(pointer)
    return out


def compile_steps(options: argparse.Namespace) -> dict[str, Any]:
    """The kernel that multiply takes, both ways, one after the other and at once, with an empty cache each."""
    from tilewright.gpu.planning.choice import choose_gpu
    from tilewright.gpu.runtime import nvrtc
    from tilewright.gpu.runtime.device import open_device

    out: dict[str, Any] = {}
    gpu = open_device()
    with taking(out, "catalog"):
        n = options.n
        choice = choose_gpu("float32", n, n, n, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name, adds=True)
    kernel = choice.kernel
    out["kernel"], out["compiler"] = kernel.name, nvrtc.compiler()
    with taking(out, "compiler(), architectures()"):
        nvrtc.compiler(), nvrtc.architectures()

    def built(add: bool) -> Any:
        return nvrtc.compile_kernel(kernel, arch=gpu.arch, add=add, **choice.params)

    with fresh_cache():
        for add in (False, True):
            with taking(out, f"compile, add={add}"):
                built(add)
    with fresh_cache():
        with taking(out, "compile both, 2 threads"), concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(built, (False, True)))
        for add in (False, True):
            with taking(out, f"from disk, add={add}"):
                compiled = built(add)
            with taking(out, f"load, add={add}"):
                gpu.attributes(compiled, compiled.entry(kernel.entry))
    return out


def forms(options: argparse.Namespace) -> dict[str, Any]:
    """Each kernel as the laboratory compiles it and as products do (``given`` in its header): seconds to compile, seconds of
    a product, both in turns, and that the bits are the same."""
    import numpy as np

    from tilewright.gpu.planning.choice import choose_gpu
    from tilewright.gpu.runtime.device import open_device
    from tilewright.gpu.runtime.nvrtc import compile_kernel

    gpu, out = open_device(), {}
    for dtype, n in (("float32", 8192), ("float32", 4096), ("float64", 8192)):
        choice = choose_gpu(dtype, n, n, n, capability=gpu.capability, sms=gpu.sms, gpu=gpu.name, adds=True)
        kernel, params = choice.kernel, dict(choice.params)
        launch, given = kernel.launch(n, n, n, **params), kernel.holds(n, n, n, **params)
        rng = np.random.default_rng(n)
        a, b = (gpu.put(rng.random((n, n), np.float32).astype(dtype) - 0.5) for _ in range(2))
        for add in (False, True):
            ways: dict[str, Any] = {}
            subsets = (
                set(some) for count in range(len(given) + 1) for some in itertools.combinations(sorted(given), count)
            )
            for macros in subsets:
                name = " ".join(sorted(macros)) or "general"
                with fresh_cache(), taking(out, f"{dtype} {n} add={add}: compile {name}"):
                    compiled = compile_kernel(kernel, macros, arch=gpu.arch, add=add, **params)
                c = gpu.put(np.ones((n, n), dtype))
                args = (a, b, c, np.int32(n), np.int32(n), np.int32(n))
                run = gpu.prepare(
                    compiled, compiled.entry(kernel.entry), launch.grid, launch.block, args, launch.shared_bytes
                )
                run()
                gpu.wait()
                ways[name] = run, gpu.get(c, dtype, (n, n)), []
            assert len({result.tobytes() for _, result, _ in ways.values()}) == 1, "other bits"
            timer = gpu.timer()
            for turn in range(20):
                for run, _, times in list(ways.values())[:: 1 - turn % 2 * 2]:
                    timer.start()
                    run()
                    times.append(timer.stop())
            for name, (_, _, times) in ways.items():
                out[f"{dtype} {n} add={add}: product {name}"] = round(1e3 * sorted(times)[len(times) // 2], 4)
    return {"forms": out}


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    before = os.environ.get("TILEWRIGHT_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TILEWRIGHT_CACHE"]
            else:
                os.environ["TILEWRIGHT_CACHE"] = before


@contextlib.contextmanager
def taking(out: dict[str, Any], name: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    out[name] = round(time.perf_counter() - begun, 5)


# ---- processes -------------------------------------------------------------------------------------------------------

#: Name, what runs, with how many calls, and which cache.
PROCESSES = (
    ("memory", memory, 0, "third"),
    ("cold", product, 3, "first"),
    ("warm", product, 2, "first"),
    ("warm again", product, 1, "first"),
    ("cold on a warm machine", product, 2, "second"),
    ("steps", steps, 0, "third"),
    ("forms", forms, 0, "third"),
    ("multiply, cold", plain, 3, "fourth"),
    ("multiply, warm", plain, 3, "fourth"),
    ("multiply, warm again", plain, 3, "fourth"),
    ("matmul, cold", plain, 3, "fifth"),
    ("matmul, warm", plain, 3, "fifth"),
    ("matmul, warm again", plain, 3, "fifth"),
)


def machine_facts() -> dict[str, Any]:
    thp = Path("/sys/kernel/mm/transparent_hugepage")
    facts: dict[str, Any] = {"cores": os.cpu_count(), "kernel": os.uname().release, "meminfo": meminfo()}
    for name in ("enabled", "defrag"):
        with contextlib.suppress(OSError):
            facts[f"huge pages {name}"] = (thp / name).read_text().strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,persistence_mode", "--format=csv,noheader"]
        facts["gpus"] = subprocess.run(
            query, capture_output=True, text=True, timeout=30, check=True
        ).stdout.splitlines()
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=49152)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="+", help="names of processes")
    parser.add_argument("--run", dest="name", help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.name:
        run = {name: run for name, run, _, _ in PROCESSES}[options.name]
        options.out.write_text(json.dumps(run(options)), encoding="utf-8")
        return 0
    record: dict[str, Any] = {"kind": "first gpu product", "machine": machine_facts(), "processes": {}}
    failed = False
    with tempfile.TemporaryDirectory(prefix="tilewright-first-gpu-") as folder:
        for name, _, calls, cache in PROCESSES:
            if options.only and name not in options.only:
                continue
            answer = Path(folder) / "answer.json"
            command = [
                sys.executable,
                __file__,
                str(answer),
                "--run",
                name,
                "--calls",
                str(calls),
                "--n",
                str(options.n),
            ]
            begun = time.perf_counter()
            done = subprocess.run(
                [*command, "--device", options.device],
                env=os.environ
                | {"TILEWRIGHT_CACHE": f"{folder}/{cache}", "CUDA_CACHE_PATH": f"{folder}/{cache} of the driver"},
            )
            found = json.loads(answer.read_text()) if answer.exists() else {"failed": done.returncode}
            failed = failed or done.returncode != 0
            answer.unlink(missing_ok=True)
            record["processes"][name] = found | {"process_s": round(time.perf_counter() - begun, 3)}
            options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print_short(record)
    return 1 if failed else 0


def print_short(record: dict[str, Any]) -> None:
    for name, found in record["processes"].items():
        print(f"{name}: {found.get('process_s')} s")
        for call in found.get("calls", []):
            print(f"  call {call['call']}: {call['seconds']} s, {call['usage']}")
            for function, span in call["spans"].items():
                if span["union_s"] >= 0.005:
                    times = " ".join(f"{key}={value:.3f}" for key, value in span.items())
                    print(f"    {function:24} {times}")
            for lane, span in call["lanes"].items():
                print(f"    lane {lane:19} {span}")
        for part in (
            "plain",
            "forms",
            "imports_and_context",
            "memory_steps",
            "locking_steps",
            "gpu_memory_steps",
            "compile_steps",
            "errors",
        ):
            for step, seconds in found.get(part, {}).items():
                print(f"  {step:44} {seconds}")


if __name__ == "__main__":
    sys.exit(main())
