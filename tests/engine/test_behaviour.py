"""How products behave inside other people's programs: threads, forks, Ctrl-C, no memory, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # which makes bfloat16 known to NumPy
import numpy as np
import pytest

import tilewright as tw
from support.matrices import operands
from support.plans import make_plan
from tilewright.cpu.runtime import runner as cpu
from tilewright.cpu.runtime import stop, threads
from tilewright.cpu.runtime.runner import runner
from tilewright.cpu.runtime.threads import Team
from tilewright.errors import UsageError
from tilewright.host import limits
from tilewright.host.machine import machine, read_machine
from tilewright.kernels import FLOATS, Kernel
from tilewright.kernels.catalog import catalog, load_file
from tilewright.product.problem import Problem

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
TEAMS = [kernel for kernel in catalog().values() if kernel.shared == "team"]
FOR_LONG_PRODUCTS = [kernel for kernel in TEAMS if kernel.suits is None or kernel.suits(8000, 8000, 8000)]

Shape = tuple[int, int, int]  # m, n, k


def child(script: str, *args: str, **environ: str) -> str:
    """What a process of its own prints; it must end well."""
    clean = {name: value for name, value in os.environ.items() if name not in limits.VARIABLES}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *args]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean | environ, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


# ---- how many threads ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_set() -> Iterator[None]:
    tw.set_threads(None)
    yield
    tw.set_threads(None)


def test_what_counts_is_the_block_then_the_process_then_the_default() -> None:
    default = tw.get_threads()
    assert 1 <= default <= machine().usable_cores
    tw.set_threads(5)
    assert (tw.get_threads(), limits.why_threads()) == (5, "set_threads")
    with tw.use_threads(3):
        assert (tw.get_threads(), limits.why_threads()) == (3, "use_threads")
        with tw.use_threads(2):
            assert tw.get_threads() == 2
        tw.set_threads(7)
        assert tw.get_threads() == 3
    assert tw.get_threads() == 7
    tw.set_threads(None)
    assert tw.get_threads() == default


def test_a_block_that_raises_restores() -> None:
    before = tw.get_threads()
    with pytest.raises(ZeroDivisionError), tw.use_threads(9):
        1 / 0  # noqa: B018
    assert tw.get_threads() == before


def test_a_block_is_of_its_thread_and_its_task() -> None:
    tw.set_threads(5)
    with tw.use_threads(2), ThreadPoolExecutor(1) as pool:
        assert pool.submit(tw.get_threads).result() == 5

    async def task(count: int) -> bool:
        with tw.use_threads(count):
            for _ in range(3):
                await asyncio.sleep(0)
                if tw.get_threads() != count or await asyncio.to_thread(tw.get_threads) != count:
                    return False
        return tw.get_threads() == 5

    async def both() -> list[bool]:
        return await asyncio.gather(task(3), task(4))

    assert asyncio.run(both()) == [True, True]


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, "2", True, 10**6, [2]])
def test_what_is_no_number_of_threads(count: object) -> None:
    with pytest.raises(UsageError, match=r"^threads must be a whole number from 1 to 4096, got "):
        tw.set_threads(count)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^threads must be"), tw.use_threads(count):  # type: ignore[arg-type]
        pass
    tw.set_threads(np.int64(2))  # type: ignore[arg-type]
    assert tw.get_threads() == 2


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None)),
        ({"OMP_NUM_THREADS": "3"}, ("OMP_NUM_THREADS", 3)),
        ({"OMP_NUM_THREADS": " 4,2 "}, ("OMP_NUM_THREADS", 4)),
        ({"OMP_NUM_THREADS": "3", "TILEWRIGHT_NUM_THREADS": "2"}, ("TILEWRIGHT_NUM_THREADS", 2)),
        ({"OMP_NUM_THREADS": "0"}, (None, None)),
        ({"OMP_NUM_THREADS": "many"}, (None, None)),
        ({"OMP_NUM_THREADS": "-2"}, (None, None)),
        ({"TILEWRIGHT_NUM_THREADS": ""}, (None, None)),
        ({"OMP_NUM_THREADS": "99999999999999"}, ("OMP_NUM_THREADS", limits.MOST)),
    ],
)
def test_environment(environ: dict[str, str], expected: tuple[str | None, int | None]) -> None:
    assert limits.environment_threads(environ) == expected


@pytest.mark.parametrize("text", ["0", "two", "1.5", "-1", "2x"])
def test_our_own_variable_must_be_right(text: str) -> None:
    with pytest.raises(UsageError, match=rf"^\$TILEWRIGHT_NUM_THREADS must be a positive number, got '{text}'"):
        limits.environment_threads({"TILEWRIGHT_NUM_THREADS": text})


ASK = "import tilewright as tw; print(tw.get_threads(), tw.plan((4096, 4096), (4096, 4096)).threads)"


@pytest.mark.slow
def test_the_environment_lowers_and_never_raises() -> None:
    cores = machine().usable_cores
    assert child(ASK) == f"{cores} {cores}"
    assert child(ASK, OMP_NUM_THREADS="1") == "1 1"
    assert child(ASK, OMP_NUM_THREADS="1", TILEWRIGHT_NUM_THREADS="64") == f"{cores} {cores}"
    assert child(f"import tilewright as tw; tw.set_threads(64); {ASK}", OMP_NUM_THREADS="1") == "64 64"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_an_affinity_mask_set_after_import_counts() -> None:
    pin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    assert child(f"{ASK}; {pin}; {ASK}").splitlines()[1] == "1 1"


@pytest.mark.usefixtures("given_peaks")
def test_a_quota_of_one_core_is_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a container of eight CPUs that may use one; with none of them to spare, a product starts no worker."""
    for name, text in {
        "proc/self/cgroup": "0::/",
        "proc/self/status": "Cpus_allowed_list:\t0-7",
        "proc/cpuinfo": "\n\n".join(f"processor\t: {i}" for i in range(8)),
        "sys/fs/cgroup/cpu.max": "100000 100000",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    container = read_machine(tmp_path)
    assert (container.usable_cores, container.quota_cores) == (1, 1.0)
    monkeypatch.setattr(limits, "machine", lambda: container)
    monkeypatch.setattr(limits, "most_by_default", limits.most_by_default.__wrapped__)
    monkeypatch.setattr(limits, "environment_threads", lambda: (None, None))
    assert tw.get_threads() == 1
    assert "quota of 1" in str(make_plan(Problem(4096, 4096, 4096)))
    assert make_plan(Problem(4096, 4096, 4096)).threads == 1
    monkeypatch.setattr(limits, "environment_threads", lambda: (limits.VARIABLES[0], 8))
    assert tw.get_threads() == 1, "the environment does not raise it"

    def refuse(self: object, task: object, count: int) -> list[object]:
        raise AssertionError(f"{count} workers were asked for")

    monkeypatch.setattr(type(threads.crew), "claim", refuse)
    monkeypatch.setattr(
        threads.crew, "mailboxes", np.zeros(0, np.int64)
    )  # those of other tests take calls without a claim
    a = np.ones((600, 600), np.float32)
    assert (tw.matmul(a, a) == 600).all()
    with tw.use_threads(2), pytest.raises(AssertionError, match="1 workers"):
        tw.matmul(a, a)


def test_inside_a_products_thread_there_is_one() -> None:
    seen: list[int] = []
    with tw.use_threads(4):
        Team(2).run([lambda: None, lambda: seen.append(tw.get_threads())])
        assert tw.get_threads() == 4
    assert seen == [1]


# ---- bits ------------------------------------------------------------------------------------------------------------


THREADS = [1, 2, 3, 16]
#: m, n, k of every way that a product of float32 or float64 is shared out; the first two are all ways of other dtypes.
SHARED = [(330, 300, 1100), (150, 90, 160), (1500, 1, 1500), (1, 1500, 1500), (700, 500, 5), (40, 40, 20_000)]
OTHER_DTYPES = ("complex64", "int32", "int8", "float16", "bfloat16")
#: Kernels that are planned on some processors only, with a dtype: here they multiply all the same.
BY_PROCESSOR = {
    "cpu/narrow_integers": "int8",
    "cpu/integer_dots": "int8",
    "cpu/bfloat16_dots": "bfloat16",
    "cpu/integer_tiles": "int8",
    "cpu/bfloat16_tiles": "bfloat16",
}


def shared_products() -> list[tuple[Kernel, str, Shape]]:
    """Each with the kernel that is planned for it; Strassen's recurses once into so small a leaf (``product_of``)."""
    sizes = [*itertools.product(FLOATS, SHARED), *itertools.product(OTHER_DTYPES, SHARED[:2])]
    planned = [(make_plan(Problem(*size, dtype)).kernel, dtype, size) for dtype, size in sizes]
    normwise = [kernel for kernel in TEAMS if kernel.error_bound is not None]
    known = {kernel.name for kernel, *_ in planned}
    others = [kernel for kernel in TEAMS if kernel.name in BY_PROCESSOR and kernel.name not in known]
    return [
        *planned,
        *((kernel, BY_PROCESSOR[kernel.name], SHARED[0]) for kernel in others),
        *((kernel, dtype, SHARED[0]) for kernel in normwise for dtype in kernel.dtypes),
    ]


def product_of(kernel: Kernel, dtype: str, size: Shape) -> Callable[[int], bytes]:
    """The bits of one product, as a function of how many threads share it."""
    m, n, k = size
    rng, kind = np.random.default_rng(0), np.ones(0, dtype).dtype
    a, b = rng.uniform(-100, 100, (m, k)).astype(kind), rng.uniform(-100, 100, (k, n)).astype(kind)
    params = {"leaf": 150} if "leaf" in kernel.tunable else {}

    def product(threads: int) -> bytes:
        c = np.full((m, n), 77, kind)
        runner(kernel, kind, threads=threads, params=params)(a, b, c)
        return c.tobytes()

    return product


def all_come(team: Team, job: Callable[[], None], *_: object, **_named: object) -> None:
    """In place of ``run_stoppable``: workers that come late do not stay away."""
    team.run([job] * team.threads)


def test_every_kernel_of_a_team_is_among_the_shared_products() -> None:
    assert {kernel for kernel, *_ in shared_products()} == set(TEAMS)


@pytest.mark.slow_cases("(330, 300, 1100)", "cpu/vector", "cpu/deep", "cpu/outer")
@pytest.mark.each_value
@pytest.mark.parametrize(("kernel", "dtype", "size"), shared_products(), ids=lambda x: getattr(x, "name", str(x)))
def test_bits_do_not_depend_on_threads_or_callers(
    kernel: Kernel, dtype: str, size: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 1, 2, 3 and 16 threads, 25 times each, from 8 callers at once; and where none of the threads is spared."""
    product = product_of(kernel, dtype, size)
    first = product(1)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(product, THREADS * 25)) == {first}
    monkeypatch.setattr(cpu, "run_stoppable", all_come)
    assert {product(threads) for threads in THREADS * 3} == {first}


#: Wrong: as many pieces of k as threads were asked.
PIECES = """
from tilewright.cpu import codegen as simd
from tilewright.kernels import kernel

@kernel(idea="Wrong.", row="", shared="team", strided=True, counters=lambda m, n, k: 2)
def pieces(a, b, c, space, counters):
    (m, k), n, count = a.shape, b.shape[1], counters[-1]
    while True:
        piece = simd.fetch_add(counters, 0, 1)
        if piece >= count:
            return
        part = slice(k * piece // count, k * (piece + 1) // count)
        simd.wait_for(counters, 1, piece)
        for i in range(m):
            for j in range(n):
                total = c.dtype.type(0)
                for p in range(part.start, part.stop):
                    total += a[i, p] * b[p, j]
                c[i, j] = total if piece == 0 else c[i, j] + total
        simd.fetch_add(counters, 1, 1)
"""


def test_bits_that_depend_on_threads_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "pieces.py"
    path.write_text(PIECES)
    product = product_of(load_file(path), "float32", (20, 20, 500))
    assert len({product(threads) for threads in THREADS}) > 1


# ---- fork ------------------------------------------------------------------------------------------------------------

RIGHT = """
import os, numpy as np, tilewright as tw
a = np.random.default_rng(0).integers(-4, 5, (450, 450)) * 1.0
exact = a @ a
def right(_=0):
    with tw.use_threads(2):
        return np.array_equal(tw.matmul(a, a), exact)
assert right()
"""


@pytest.mark.slow
@forks
def test_a_pool_of_forked_processes() -> None:
    script = """
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(right, range(6)) == [True] * 6 and right())
    """
    assert child(RIGHT + textwrap.dedent(script)) == "True"


@pytest.mark.slow
@forks
def test_a_fork_while_other_threads_multiply() -> None:
    """Whatever they hold at that moment, the child has it not; ten times, for moments differ."""
    script = """
    import threading
    stop = threading.Event()
    def work():
        while not stop.is_set():
            assert right()
    workers = [threading.Thread(target=work) for _ in range(3)]
    [worker.start() for worker in workers]
    codes = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if right() else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    [worker.join() for worker in workers]
    print(codes == [0] * 10)
    """
    assert child(RIGHT + textwrap.dedent(script)) == "True"


@forks
def test_a_fork_while_another_thread_imports_the_engine() -> None:
    """The child has the lock of a module that no thread of it releases; it waited for ever at its first product."""
    script = """
    import faulthandler, os, threading
    import numpy as np, tilewright as tw
    def right():
        return (tw.matmul(np.ones((64, 64)), np.ones((64, 64))) == 64).all()
    workers = [threading.Thread(target=right) for _ in range(3)]
    [worker.start() for worker in workers]
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        os._exit(0 if right() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    [worker.join() for worker in workers]
    """
    assert child(script) == "0"


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------

#: Hands out jobs by a counter, waits for all of them, and takes minutes for 2000 of them.
SLOW = """
from tilewright.cpu import codegen as simd
from tilewright.kernels import kernel

@kernel(idea="Slow.", row="", shared="team", strided=True, workspace=lambda m, n, k: 1, counters=lambda m, n, k: 2)
def slow(a, b, c, space, counters):
    m, k = a.shape
    while True:
        i = simd.fetch_add(counters, 0, 1)
        if i >= m:
            break
        for j in range(c.shape[1]):
            total = 0.0
            for p in range(k):
                total = total * 0.999 + a[i, p] * b[p, j]
            c[i, j] = total
        simd.fetch_add(counters, 1, 1)
    simd.wait_for(counters, 1, m)
"""

INTERRUPT = """
import faulthandler, os, signal, sys, threading, time, ml_dtypes, numpy as np, tilewright as tw
from tilewright.kernels.catalog import find
from tilewright.cpu.runtime import stop
from tilewright.cpu.runtime.runner import runner
faulthandler.dump_traceback_later(100, exit=True)
[kernel], n, threads = find(sys.argv[1:2]), int(sys.argv[2]), int(sys.argv[3])
a = np.ones((n, n), kernel.dtypes[0])
c = np.zeros_like(a)
run = runner(kernel, a.dtype, threads=threads)
run(a[:40, :40], a[:40, :40], c[:40, :40])
small = c[:40, :40].copy()
stop.LONG = 2 * n**3
pressed = []
def press():
    pressed.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, press).start()
try:
    if sys.argv[4:] == ["apart"]:
        stop.stoppable(lambda: run(a, a, c))
    else:
        run(a, a, c)
    print("finished")
except KeyboardInterrupt:
    late = time.perf_counter() - pressed[0]
    bits = c.view(np.int64)
    still = bits.copy()
    time.sleep(0.2)
    assert np.array_equal(bits, still), "a thread still writes"
    run(a[:40, :40], a[:40, :40], c[:40, :40])
    assert np.array_equal(c[:40, :40], small)
    d = tw.matmul(a[:100, :100], a[:100, :100])
    assert (d == 100).all()
    print("stopped" if late < 2 else f"late by {late} s")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["1", "2", "3", "1 apart", "2 apart"])
def test_ctrl_c_ends_a_long_product_soon(how: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    assert child(INTERRUPT, str(slow), "4000", *how.split()) == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", FOR_LONG_PRODUCTS, ids=lambda kernel: kernel.name)
def test_ctrl_c_ends_every_kernel_of_a_team(kernel: Kernel) -> None:
    n = 8000 if np.ones(0, kernel.dtypes[0]).itemsize >= 4 else 12000  # it must take longer than until the interrupt
    assert child(INTERRUPT, kernel.name, str(n), "2") == "stopped"


@pytest.mark.slow_cases(
    "cpu/deep",
    "cpu/outer",
    "cpu/vector",
    "cpu/complex",
    "cpu/integer_dots",
    "cpu/bfloat16_dots",
    "cpu/integer_tiles",
    "cpu/strassen_fused",
    "cpu/bfloat16_tiles",
    "cpu/narrow_integers",
)
@pytest.mark.parametrize("kernel", TEAMS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_kernel_that_is_told_to_stop_returns_and_stays_inside_c(
    kernel: Kernel, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = kernel.dtypes[0]
    run = runner(kernel, dtype, threads=threads)
    a, b = np.ones((30, 100), dtype), np.ones((100, 70), dtype)
    around = np.full((50, 90), 7, dtype)
    inside = around[10:40, 10:80]
    run(a, b, inside)
    assert (inside == 100).all()
    counters = (kernel.counters(30, 70, 100) if kernel.counters else 1) + 2
    zeros = np.zeros

    def stopped(shape: int, dtype: np.dtype) -> np.ndarray:
        return np.full(shape, stop.STOP, dtype) if shape == counters else zeros(shape, dtype)

    monkeypatch.setattr(np, "zeros", stopped)
    inside[...] = 7
    run(a, b, inside)
    assert not (inside == 100).all()
    inside[...] = 7
    assert (around == 7).all()


def test_other_threads_than_the_first_are_never_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So no thread need wait beside them: the product runs on exactly its threads."""
    teams: list[int] = []
    monkeypatch.setattr(Team, "run", lambda self, jobs, stop: teams.append(len(jobs)))
    monkeypatch.setattr(Team, "rally", lambda self, *_: teams.append(self.threads))
    counters = np.zeros(1, np.int64)
    thread = threading.Thread(target=stop.run_stoppable, args=(Team(2), lambda: None, counters, stop.LONG))
    thread.start()
    thread.join()
    stop.run_stoppable(Team(2), lambda: None, counters, stop.LONG)
    stop.run_stoppable(Team(2), lambda: None, counters, stop.LONG - 1)
    assert teams == [2, 3, 2]


# ---- the bits that the guide promises ----------------------------------------------------------------------------------


def padded(x: np.ndarray) -> np.ndarray:
    """The same numbers with rows further apart."""
    large = np.zeros((x.shape[0] + 1, x.shape[1] + 5), x.dtype)
    large[1:, 5:] = x
    return large[1:, 5:]


def unaligned(x: np.ndarray) -> np.ndarray:
    y = np.empty(x.nbytes + x.itemsize, np.uint8)[x.itemsize :].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def stepped(x: np.ndarray) -> np.ndarray:
    large = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    large[::2, ::3] = x
    return large[::2, ::3]


ROWS_ELSEWHERE: tuple[Any, ...] = (padded, lambda x: x[::-1].copy()[::-1])
ANY_LAYOUT: tuple[Any, ...] = (
    *ROWS_ELSEWHERE,
    np.asfortranarray,
    stepped,
    lambda x: x[:, ::-1].copy()[:, ::-1],
    lambda x: np.asfortranarray(x[::-1])[::-1],
)


def agree(c: np.ndarray, expected: np.ndarray) -> bool:
    return np.ascontiguousarray(c).tobytes() == expected.tobytes()


def check_promised_bits(a: np.ndarray, b: np.ndarray, multiply: Callable[..., Any] = tw.matmul) -> None:
    """Raises AssertionError where bits depend on what the guide says that they do not depend on."""
    (m, k), n, is_real = a.shape, b.shape[1], a.dtype.kind != "c"
    expected = multiply(a, b)
    for count in (1, 2, 3, 5):
        with tw.use_threads(count):
            assert agree(multiply(a, b), expected), f"{count} threads"
    any_layout = is_real and m > 24 and n > 12 and (k < 2048 or max(m, n) > 96)
    for lay in (unaligned, *(ANY_LAYOUT if any_layout else ROWS_ELSEWHERE)):
        assert agree(multiply(lay(a), b), expected), "of A"
        if n > 1 or lay is unaligned:
            assert agree(multiply(a, lay(b)), expected), "of B"
        if any_layout:
            assert agree(multiply(lay(a), np.asfortranarray(b)), expected), "of both"
    for lay in (unaligned, *(ANY_LAYOUT if is_real else ())):
        assert agree(multiply(a, b, lay(np.ones((m, n), a.dtype))), expected), "of out"


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [
    (1, 300, 400), (300, 1, 400), (300, 1, 9), (7, 900, 300), (900, 5, 300), (2, 31, 4000), (64, 64, 3000), (25, 13, 2047),
    (97, 40, 2500), (30, 20, 100), (130, 150, 700), (400, 390, 50),
], ids=str)  # fmt: skip
def test_the_bits_are_as_the_guide_promises(shape: tuple[int, int, int], dtype: str) -> None:
    check_promised_bits(*operands(shape, dtype))


def test_bits_that_depend_on_the_layout_are_seen() -> None:
    """A column-major matrix times a vector is added up column by column."""
    a, b = operands((300, 1, 400), "float32")
    assert not agree(tw.matmul(np.asfortranarray(a), b), tw.matmul(a, b)), "then the guide should promise it"

    def by_layout(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        c = tw.matmul(a, b, out)
        return c if a.flags.c_contiguous else np.nextafter(c, np.inf, dtype=c.dtype)

    with pytest.raises(AssertionError, match="of A"):
        check_promised_bits(a, b, by_layout)


# ---- memory ----------------------------------------------------------------------------------------------------------

NO_MEMORY = """
import resource, sys, numpy as np, tilewright as tw
from tilewright.cpu.runtime import runner
a = np.ones((600, 600), np.float32)
c = np.empty_like(a)
tw.matmul(a, a, out=c)
tw.matmul(a[:, :1], a[:1], out=c)  # compiles the kernel of the product that is refused
def mapped():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped() + (64 << 20), resource.RLIM_INFINITY))
for ask in (lambda: tw.matmul(np.broadcast_to(a[:1, :1], (9000, 1)), np.broadcast_to(a[:1, :1], (1, 9000))),
            lambda: runner.take_workspace(1 << 30).__enter__()):
    try:
        ask()
        print("there was enough")
    except MemoryError as error:
        print(error)
with runner.take_workspace(1 << 20):
    pass
tw.matmul(a, a, out=c)
print((c == 600).all(), sum(map(len, runner._cached.values())) < 64 << 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_too_little_memory_is_said_and_the_next_product_is_right() -> None:
    result, space, after = child(NO_MEMORY).splitlines()
    assert "309. MiB" in result or "Unable to allocate" in result
    assert space == "this product needs a workspace of 1 GiB, which could not be allocated"
    assert after == "True True"


def test_what_is_kept_makes_room_for_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that waits for the next product is no reason to refuse this one."""
    cpu.release_workspace()
    with cpu.take_workspace(1000):
        pass
    refusals: list[int] = []

    def scarce(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        if cpu._cached:
            refusals.append(shape[0])
            raise MemoryError
        return np.empty(shape, np.uint8)

    monkeypatch.setattr(cpu, "aligned_empty", scarce)
    with cpu.take_workspace(500) as memory:
        assert memory.size == 1000
        cpu.put_back_buffer(np.empty(100, np.uint8))
        cpu.put_back_buffer(np.empty(200, np.uint8))
        with cpu.take_workspace(5000) as larger:
            assert larger.size == 5000
    assert refusals == [5000], "one was given up before, the other when that was not enough"


def test_workspace_that_is_kept_is_bounded() -> None:
    cpu.release_workspace()
    with cpu.take_workspace(cpu.MOST_CACHED_BYTES + 1):
        pass
    assert not cpu._cached
    for _ in range(3):
        blocks = [cpu.take_workspace(cpu.MOST_CACHED_BYTES // 2 - 100 * i) for i in range(12)]
        for block in blocks:
            block.__enter__()
        for block in blocks:
            block.__exit__(None, None, None)
        assert len(cpu._cached) <= machine().usable_cores + 1
        assert sum(map(len, cpu._cached.values())) <= cpu.MOST_CACHED_BYTES
    cpu.release_workspace()


LEAK = """
import gc, os, resource, sys, numpy as np, tilewright as tw
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
m, n, k, calls = map(int, sys.argv[1:])
a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
for _ in range(min(calls // 10, 1000)):
    c = tw.matmul(a, b)
before, blocks = resident(), sys.getallocatedblocks()
for _ in range(calls):
    c = tw.matmul(a, b)
assert (c == k).all()
print(resident() - before, sys.getallocatedblocks() - blocks)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("size", "calls"), [(("4", "4", "4"), "100000"), (("400", "400", "400"), "1000")])
def test_calls_leave_nothing_behind(size: tuple[str, str, str], calls: str) -> None:
    grown, objects = map(int, child(LEAK, *size, calls).split())
    assert grown < 4 << 20, "less than five bytes for each of a million calls"
    assert objects < 400, "far less than one object a call"
