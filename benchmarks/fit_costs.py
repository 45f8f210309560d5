"""Measures launches of the engine's kernels on a GPU, to which the costs in their tables ``time`` are fitted.

    python benchmarks/fit_costs.py measure OUT.jsonl [--seconds 240] [--seed 1] [--others 6] [--compile]
    python benchmarks/fit_costs.py fit OUT.jsonl [MORE.jsonl …] [-o src/tilewright/gpu/kernels/costs/CARD.json]

``measure`` draws products at random: cubes, three sides of their own, thin, deep and flat ones, batches, half of them of
whole lines, and layers of models, of both layouts of each operand, in every dtype. Of each it times the ways that are
predicted to take at most 1.3 times as long as the best, and a few others. A time is that of the GPU, from one event to
another with launches back to back between them, each of other operands than those that a cache may hold; the ways of a
product are sampled in turns. Each result is compared once with a product in float64. Only kernels that an archive has are
measured, unless ``--compile`` is given. A line of the record has a product with its ways (see ``lab.tune.costs``): the
samples of the launch that multiplies, which a table ``time`` predicts, or where there are other launches, such as those that
add parts of k, the samples of all.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilewright.cpu.native import front
from tilewright.errors import LaunchError
from tilewright.gpu.arrays.choose import _PARTED, _Candidate, _copies_s, _plan, _shape_of, _tried
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.order import Operands
from tilewright.gpu.arrays.plan import GpuPlan
from tilewright.gpu.arrays.repeated import _gains_early
from tilewright.gpu.arrays.split import can_split, split_seconds
from tilewright.gpu.planning.choice import computed_on_gpu, engine_on_gpu
from tilewright.gpu.planning.ways import Way, timed_ways, totals
from tilewright.gpu.runtime.compilations import archived_only, describe_archives
from tilewright.gpu.runtime.steps import load
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import cached_table, cost_table, own_table, table_of
from tilewright.lab.tune import costs
from tilewright.product.plan import Choice
from tilewright.product.precision import RESIDUES, is_error_goal, takes_fastest
from tilewright.product.problem import itemsize_of
from tilewright.product.residues import RESIDUES_IN

#: The operands' dtype, the precision, the result's dtype, and how often it is drawn.
CASES: tuple[tuple[str, str, str | None, float], ...] = (
    ("bfloat16", "standard", None, 16), ("float16", "standard", None, 6), ("bfloat16", "standard", "float32", 3),
    ("float32", "ieee", None, 12), ("float32", "standard", None, 10), ("float32", "tf32", None, 10),
    ("float32", "fast", None, 3), ("float64", "ieee", None, 14), ("float64", "standard", None, 6),
    ("complex64", "standard", None, 6), ("complex128", "standard", None, 6), ("int8", "standard", "int32", 8),
    ("float8_e4m3fn", "standard", "bfloat16", 6), ("float8_e4m3fn", "fast", "bfloat16", 3),
)  # fmt: skip
#: The share of layers of models.
LAYERS = 0.35
#: Ways that are measured: those whose prediction is within this factor of the best, so many at most, and so many others.
NEAR, MOST_NEAR, OTHERS = 1.3, 12, 6
#: The longest product in seconds as predicted, of operands that are split (which only large ones are), and the most bytes of
#: an array.
MOST_S, MOST_SPLIT_S, MOST_BYTES = 3e-3, 10e-3, 400 << 20
#: A sample lasts about so long; the fewest and the most launches of one, and how many samples there are.
SAMPLE_S, LAUNCHES, SAMPLES = 3e-4, (3, 24), 3
#: Rows and columns of a result that are compared.
ROWS, COLUMNS = 8, 64


class Drawn(NamedTuple):
    """A product: the number of its case, its sizes, and whether columns of A and of B follow each other in memory."""

    case: int
    batch: int
    m: int
    n: int
    k: int
    a_down: bool
    b_down: bool


class Candidate(NamedTuple):
    """A kernel with an order of the operands, its way, and the predicted seconds of all launches."""

    ordered: _Candidate
    way: Way
    total: float


# ---- products and ways -----------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator) -> Iterator[Drawn]:
    """Products without end."""
    weights = np.array([weight for *_, weight in CASES])
    while True:
        case = int(rng.choice(len(CASES), p=weights / weights.sum()))
        is_layer = rng.random() < LAYERS
        (dtype, precision, *_), (batch, m, n, k) = CASES[case], _layer(rng) if is_layer else _sizes(rng)
        downs = bool(rng.random() < 0.3 * (1 - is_layer)), bool(rng.random() < 0.4 + 0.4 * is_layer)
        if dtype.startswith("float8"):  # whose kernels take B along k alone, in whole granules
            k, downs = -(-k // 16) * 16, (False, True)
        if (dtype, precision) == ("float64", "standard"):  # residues are for large products
            batch, m, n, k = 1, *(int(size) for size in 2 ** rng.uniform(10, 12.6, 3))
        if itemsize_of(dtype) * batch * max(m * k, k * n) <= MOST_BYTES and 8 * batch * m * n <= MOST_BYTES:
            yield Drawn(case, batch, m, n, k, *downs)


def _layer(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """The same of a layer of a model: few rows, or many, and weights of whole lines."""
    n, k = (-(-int(2 ** rng.uniform(9, 14)) // 128) * 128 for _ in range(2))
    return 1, int(2 ** rng.uniform(0, 11)), n, k


def _sizes(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A batch, m, n and k."""
    is_whole = rng.random() < 0.5

    def one(low: float, high: float) -> int:
        size = int(2 ** rng.uniform(np.log2(low), np.log2(high)))
        return -(-size // 64) * 64 if is_whole else size

    thin, form = int(2 ** rng.uniform(0, 7)), rng.integers(9)
    if form < 2:
        side = one(128, 8192)
        return 1, side, side, side
    if form < 4:
        return 1, one(128, 12288), one(128, 12288), one(128, 12288)
    if form == 4:
        return 1, *((thin, one(1024, 28672)) if rng.random() < 0.7 else (one(1024, 28672), thin)), one(1024, 16384)
    if form == 5:
        return 1, one(32, 1024), one(32, 1024), one(8192, 2**18)
    if form == 6:
        return 1, one(1024, 12288), one(1024, 12288), thin
    if form == 7:
        return int(2 ** rng.uniform(2, 10)), one(16, 1024), one(16, 1024), one(16, 1024)
    m, n, k = (int(2 ** rng.uniform(1, 6)) for _ in range(3))
    return int(2 ** rng.uniform(8, 17)), m, n, k


def candidates(product: Drawn, gpu: Any) -> list[Candidate]:
    """Every way of the engine's kernels to compute it without a copy of an operand, the one predicted to be the fastest
    first. The operands are as those of ``arrays``."""
    dtype, precision, out_dtype, _ = CASES[product.case]
    x, y = (
        GpuArray(at, shape, strides, dtype, gpu.ordinal)
        for at, (shape, strides) in zip((1 << 30, 1 << 40), laid(product), strict=True)
    )
    given = Operands(x, y, None, disjoint=True, views=True, out_dtype=out_dtype)
    computes = computed_on_gpu(given.operands, precision, given.dtype, product.k, gpu.capability)
    splits, found = precision == "standard" or is_error_goal(precision), list[Candidate]()
    for compute in computes:
        for ordered in _ordered(given, compute, gpu, splits=splits):
            ways = timed_ways(ordered.kernel, ordered.shape, gpu.card)
            times = totals(ways, ordered.shape, gpu.card, ordered.copied)
            found += [Candidate(ordered, ways.way(i), float(total)) for i, total in enumerate(times)]
        if found and not takes_fastest(precision):
            break
    return sorted(found, key=lambda each: each.total)


def _ordered(given: Operands, compute: str, gpu: Any, *, splits: bool) -> Iterator[_Candidate]:
    """As ``gpu.arrays.choose`` tries them, without those that copy."""
    parted = _PARTED.get(compute, "") if splits else ""
    splitting = engine_on_gpu(RESIDUES if parted in RESIDUES_IN else parted, gpu.capability) if parted else ()
    plain = () if compute == parted else engine_on_gpu(compute, gpu.capability)
    made = given.dtype if compute == parted else compute
    for kernel, once, order in _tried((*plain, *splitting), given, made, None, straight=False):
        copied, shape = _copies_s(order, None, once, gpu), _shape_of(order, None, once, invariant=False)
        if order.copies or (kernel in splitting and not can_split(order, parted)):
            continue
        if kernel in splitting:
            copied, shape = (
                copied + split_seconds(order, parted, gpu.card, gram=False, triangle=False),
                shape._replace(dtype=parted),
            )
        yield _Candidate(kernel, once, order, shape, copied)


def picked(found: list[Candidate], rng: np.random.Generator) -> Iterator[tuple[Candidate, bool]]:
    """The ways to measure, each with whether it is one of those that are predicted to be near the best; of these the best of
    each kernel come first. Others follow in random order, more than are wanted, as not all can be measured."""
    near = [i for i, each in enumerate(found) if each.total <= NEAR * found[0].total]
    first = {found[i].way.kernel.name: i for i in reversed(near)}
    chosen = list(dict.fromkeys([*first.values(), *near]))[: 2 * MOST_NEAR]
    others = rng.permutation([i for i in range(len(found)) if i not in chosen])[: 4 * OTHERS]
    yield from ((found[i], True) for i in chosen)
    yield from ((found[i], False) for i in others)


def laid(product: Drawn) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shape and strides of both operands."""
    batch, found = (product.batch,) if product.batch > 1 else (), []
    for rows, columns, down in ((product.m, product.k, product.a_down), (product.k, product.n, product.b_down)):
        strides = (1, rows) if down else (columns, 1)
        found.append(((*batch, rows, columns), (*(rows * columns for _ in batch), *strides)))
    return found


# ---- on a GPU --------------------------------------------------------------------------------------------------------


class Stand:
    """Memory for operands and results, and the clock of a GPU. Operands are numbers of a normal distribution."""

    #: Bytes for A, for B, for results, and for workspaces.
    BYTES = (512 << 20, 512 << 20, 1 << 30, 3 << 30)

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self.torch, self.on, self._pools = torch, device, dict[str, Any]()
        self._c, self._workspace = (torch.empty(size, dtype=torch.uint8, device=device) for size in self.BYTES[2:])
        self._stream = torch.cuda.Stream()
        self._hertz, self._turn = 1.8e9, 0
        #: Ways that are repeated as ``matmul`` repeats them, and others.
        self.repeated = Counter[bool]()

    def pool(self, dtype: str) -> Any:
        """Random numbers of a dtype: the operands of all products lie in it."""
        if dtype not in self._pools:
            torch, kind = self.torch, getattr(self.torch, dtype)
            count = (self.BYTES[0] + self.BYTES[1]) // kind.itemsize
            pool, step = torch.empty(count, dtype=kind, device=self.on), 1 << 24
            for at in range(0, count, step):
                size = min(step, count - at)
                if dtype == "int8":
                    pool[at : at + size] = torch.randint(-128, 128, (size,), device=self.on, dtype=kind)
                else:
                    wide = kind if kind.itemsize > 4 else torch.float32
                    pool[at : at + size] = torch.randn(size, device=self.on, dtype=wide).to(kind)
            pool.view(torch.uint8)[:1].cpu()  # waits until it is filled, as other streams read it
            self._pools[dtype] = pool
        return self._pools[dtype]

    def prepared(self, product: Drawn, candidate: Candidate, gpu: Any) -> Prepared:
        """A way, ready to run. Raises what ``load`` raises."""
        ordered, way, total = candidate
        choice = Choice(way.kernel, ordered.shape.dtype, way.params, "measured")
        return Prepared(self, product, candidate, _plan(ordered.order, choice, gpu, way.parts, total), gpu)

    def sample(self, call: Callable[[], None], launches: int, host_s: float) -> Any:
        """Two events, with so many launches between them, which wait for the host to have submitted them all."""
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(self._stream):
            cuda._sleep(int((1.3 * launches * host_s + 2e-5) * self._hertz))
            start.record()
            for _ in range(launches):
                call()
            end.record()
        return start, end

    def places(self, sizes: tuple[int, int, int], workspace: int) -> tuple[int, int, int, int, Callable[[], int]]:
        """The address of the first set of operands, result and workspace, and what says the number of the next set: all
        memory is used before any again."""
        steps = [-(-size // 4096) * 4096 for size in sizes]
        count = min(size // step for size, step in zip(self.BYTES, steps, strict=False))
        if count < 1 or workspace > self.BYTES[3]:
            raise MemoryError("too large for the memory that operands have")

        def following() -> int:
            self._turn += 1
            return self._turn % count

        return *steps, count, following

    @property
    def addresses(self) -> tuple[int, int]:
        """Of results and workspaces."""
        return self._c.data_ptr(), self._workspace.data_ptr()

    @property
    def stream(self) -> int:
        """Its handle."""
        return int(self._stream.cuda_stream)

    def poison(self, nbytes: int) -> None:
        """Set each byte of the first result so that it is no number."""
        with self.torch.cuda.stream(self._stream):
            self._c[:nbytes].fill_(255)

    def taken(self, matrix: Any, at: int, rows: Any, columns: Any, source: Any) -> Any:
        """Some rows and columns of a matrix that begins ``at`` an element of ``source``, in float64."""
        torch, kind = self.torch, getattr(self.torch, matrix.dtype)
        is_narrow = matrix.dtype.startswith("float8")  # of which not all functions of PyTorch know
        flat = source.view(torch.uint8 if is_narrow else kind)
        view = torch.as_strided(flat, (matrix.rows, matrix.columns), (matrix.row, matrix.column), at)
        found = view[rows][:, columns] if len(rows) < len(columns) else view[:, columns][rows]
        found = found.contiguous().view(kind) if is_narrow else found
        return found.to(torch.complex128 if found.is_complex() else torch.float64)


class Prepared:
    """A way of a product on a GPU."""

    def __init__(self, stand: Stand, product: Drawn, candidate: Candidate, plan: GpuPlan, gpu: Any) -> None:
        self.stand, self.candidate, self.plan = stand, candidate, plan
        dtype, order = CASES[product.case][0], candidate.ordered.order
        size, batch = itemsize_of(dtype), product.batch
        self._c_bytes = batch * product.m * product.n * itemsize_of(order.c.used.dtype)
        sizes = size * batch * product.m * product.k, size * batch * product.k * product.n, self._c_bytes
        *self._steps, self._count, self._following = stand.places(sizes, plan.workspace_bytes)
        self._pool = stand.pool(dtype)
        self._a, self._b = self._pool.data_ptr(), self._pool.data_ptr() + stand.BYTES[0]
        self.has_others = plan.split is not None or plan.parts > 1
        self.host_s, self.times = 1e-5, {"launch_s": [], "total_s": []}
        expected = candidate.total if plan.split is not None else candidate.way.seconds
        self.count = int(min(max(SAMPLE_S / expected, LAUNCHES[0]), LAUNCHES[1]))
        early, alike = _gains_early(plan, gpu), self._addresses(0)
        with gpu:
            submit = load(gpu, plan.steps)
        self._replay = gpu.replay(submit, alike, stand.stream, early)  # kept, as its graph ends with it
        # As ``matmul`` repeats launches: where kernels begin before the launch before them has ended, they are faster.
        self._run = submit if self._replay is None else self._replay.run
        stand.repeated[self._replay is not None] += 1

    def run(self, turn: int | None = None) -> None:
        """All launches, of the next set or of this one."""
        addresses = self._addresses(self._following() if turn is None else turn)
        if status := self._run(*addresses, self.stand.stream):
            raise LaunchError(f"a repeated launch returned {status}")

    def _addresses(self, turn: int) -> tuple[int, int, int, int]:
        """Of the operands, the result and the workspace of a set."""
        of_a, of_b, of_c = (step * turn for step in self._steps)
        c, workspace = self.stand.addresses
        return self._a + of_a, self._b + of_b, c + of_c, workspace

    def sample(self) -> Iterator[tuple[str, int, Any]]:
        """A sample: its name, the number of launches, and the two events."""
        yield (
            "total_s" if self.has_others else "launch_s",
            self.count,
            self.stand.sample(self.run, self.count, self.host_s),
        )

    def warm(self) -> None:
        """Run it a few times, and find what the host needs for a call."""
        begun = time.perf_counter()
        for _ in range(3):
            self.run()
        self.host_s = min(4e-4, (time.perf_counter() - begun) / 3)

    def check(self, known: dict[Any, Any]) -> None:
        """Compare a part of the first result. Raises SystemExit for a wrong one. ``known``: products by their order."""
        torch, order = self.stand.torch, self.candidate.ordered.order
        self.stand.poison(self._c_bytes)
        self.run(0)
        self.stand._stream.synchronize()
        m, n, k = order.mnk
        p, q, c = order.p.used, order.q.used, order.c.used
        rows, columns = (
            torch.linspace(0, size - 1, most, device=self.stand.on).long() for size, most in ((m, ROWS), (n, COLUMNS))
        )
        every = torch.arange(k, device=self.stand.on)
        last = max(1, self.candidate.ordered.shape.batch) - 1
        for i in dict.fromkeys((0, last)):
            key = order.swapped, i
            if key not in known:
                size, half = itemsize_of(p.dtype), self.stand.BYTES[0]
                begin = {False: 0, True: half // size}
                at_p = begin[order.swapped] + i * _step(order.p.used_steps)
                at_q = begin[not order.swapped] + i * _step(order.q.used_steps)
                x = self.stand.taken(p, at_p, rows, every, self._pool)
                y = self.stand.taken(q, at_q, every, columns, self._pool)
                known[key] = x @ y, x.abs() @ y.abs()
            exact, magnitude = known[key]
            result = self.stand.taken(c, i * _step(order.c.used_steps), rows, columns, self.stand._c[: self._c_bytes])
            once, each = _errors(self.candidate.ordered.shape.dtype, c.dtype)
            bound = (once + k * each) * magnitude
            worst = float(((result - exact).abs() / bound.clamp_min(1e-300)).max()) if each or once else 0.0
            is_exact = bool((result == exact).all()) if not (each or once) else True
            if not worst <= 1 or not is_exact:
                way = self.candidate.way
                raise SystemExit(
                    f"wrong: {way.kernel.name} {dict(way.params)} in {way.parts} parts, {worst:.3g} of the bound"
                )


def _step(steps: tuple[int, ...]) -> int:
    return steps[-1] if steps else 0


def _errors(compute: str, stored: str) -> tuple[float, float]:
    """Factors of |A||B| that bound the error of a right result, once and for each element of k; generous, as a wrong result
    is far off."""
    once = {"bfloat16": 2.0**-8, "float16": 2.0**-10}.get(stored, 0.0)
    if compute in ("tf32", "float16x1", "float8"):
        once += 2.0**-9
    if compute == "float8_fast":
        return once, 2.0**-16
    if stored == "int32":
        return 0.0, 0.0
    return once, 2.0**-51 if compute in ("float64", "complex128") or compute in RESIDUES_IN else 2.0**-22


def measure(out: Path, seconds: float, seed: int, others: int, *, compile_too: bool) -> None:
    """Write the lines."""
    import torch

    from tilewright.gpu.runtime.device import open_device
    from tilewright.lab.bench.device import Gauge
    from tilewright.lab.inputs.environment import environment

    begun, gpu, skipped = time.perf_counter(), open_device(0), Counter[str]()
    print(f"archives: {describe_archives()}", flush=True)
    stand, gauge, rng = Stand(torch), Gauge(gpu.pci_bus_id), np.random.default_rng(seed)
    command = f"python benchmarks/fit_costs.py measure OUT.jsonl --seconds {seconds:g} --seed {seed} --others {others}"
    known = environment(operands="randn, int8 uniform", command=command + " --compile" * compile_too)
    known |= {
        "gpu": gpu.name,
        "sms": gpu.sms,
        "memory_ratio": gpu.card.memory_ratio,
        "capability": gpu.capability,
        "torch": torch.__version__,
    }
    known |= {"repeated": front() is not None, "cuda": torch.version.cuda, "l2_bytes": gpu.l2_bytes, **gauge.facts()}
    ways = shapes = 0
    with out.open("w", encoding="utf-8") as file, nullcontext() if compile_too else archived_only():
        kernels = {name: list(kernel.params) for name, kernel in cuda_engine().items()}
        header = {"kind": "launches header", "schema": 1, "environment": known, "kernels": kernels}
        file.write(json.dumps(header) + "\n")
        for number, product in enumerate(drawn(rng)):
            if time.perf_counter() - begun > seconds:
                break
            try:
                lines = _measured(stand, product, gpu, rng, others, skipped)
            except (MemoryError, torch.cuda.OutOfMemoryError) as error:
                skipped[str(error).splitlines()[0][:60]] += 1
                continue
            clock = gauge.read() if number % 16 == 0 else {}
            if lines:
                file.write(json.dumps({**lines_of(lines, list(kernels)), **clock}) + "\n")
                file.flush()
            ways, shapes = ways + len(lines), shapes + bool(lines)
            if number == 60 and not ways:
                raise SystemExit(f"nothing could be measured: {skipped.most_common(5)}")
            if number % 100 == 0:
                print(f"{time.perf_counter() - begun:.0f} s: {shapes} products, {ways} ways", flush=True)
    print(f"repeated as matmul does: {stand.repeated[True]}, launched one by one: {stand.repeated[False]}")
    print(f"{shapes} products, {ways} ways in {time.perf_counter() - begun:.0f} s; skipped: {skipped.most_common(12)}")


def _measured(
    stand: Stand, product: Drawn, gpu: Any, rng: np.random.Generator, others: int, skipped: Counter[str]
) -> list[dict[str, Any]]:
    """The lines of a product."""
    found = candidates(product, gpu)
    if not found or found[0].total > _longest(product):
        return []
    ready, wanted, known = list[tuple[Prepared, bool]](), {True: MOST_NEAR, False: others}, dict[Any, Any]()
    for candidate, is_near in picked(found, rng):
        if not wanted[is_near] or candidate.total > min(12 * found[0].total, 2 * _longest(product)):
            continue
        try:
            prepared = stand.prepared(product, candidate, gpu)
            prepared.check(known)
            prepared.warm()
        except MemoryError:
            raise
        except Exception as error:
            skipped[f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"] += 1
            continue
        ready.append((prepared, is_near))
        wanted[is_near] -= 1
    for _ in range(SAMPLES):
        events = [(prepared, *each) for prepared, _ in ready for each in prepared.sample()]
        for prepared, name, count, (start, end) in events:
            end.synchronize()  # which also raises what stopped a kernel
            prepared.times[name].append(start.elapsed_time(end) / 1e3 / count)
    return [_line(product, prepared, is_near) for prepared, is_near in ready]


def _longest(product: Drawn) -> float:
    """The longest product that is measured of its case."""
    dtype, precision, *_ = CASES[product.case]
    return MOST_SPLIT_S if dtype in ("float32", "float64") and precision in ("standard", "fast") else MOST_S


def lines_of(found: list[dict[str, Any]], kernels: list[str]) -> dict[str, Any]:
    """A product as a line of the record. ``lab.tune.costs`` reads it."""
    shapes = list(dict.fromkeys(tuple(each["kernel_shape"]) for each in found))
    first = found[0]
    known = ("dtype", "precision", "out_dtype", "batch", "m", "n", "k", "a_down", "b_down")
    ways = [
        [
            kernels.index(each["kernel"]), shapes.index(tuple(each["kernel_shape"])), list(each["params"].values()),
            each["parts"], int(each["near"]), round((each["predicted_total_s"] - each["predicted_s"]) * 1e9),
            *([round(sample * 1e9) for sample in each.get(name, [])] for name in ("launch_s", "total_s")),
        ]
        for each in found
    ]  # fmt: skip
    return {**{name: first[name] for name in known}, "shapes": shapes, "ways": ways}


def _line(product: Drawn, prepared: Prepared, is_near: bool) -> dict[str, Any]:
    ordered, way, total = prepared.candidate
    dtype, precision, out_dtype, _ = CASES[product.case]
    return {
        "dtype": dtype, "precision": precision, "out_dtype": out_dtype, **product._asdict(), "near": is_near,
        "kernel": way.kernel.name, "kernel_shape": list(ordered.shape), "params": dict(way.params), "parts": way.parts,
        "swapped": ordered.order.swapped, "predicted_s": way.seconds, "predicted_total_s": total,
        **{name: [round(each, 10) for each in times] for name, times in prepared.times.items() if times},
    }  # fmt: skip


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit(records: list[Path], table: Path | None, *, slim: bool) -> None:
    """Fit to records of a card, print what became of errors and regrets, and write the table."""
    read, kernels = costs.read_together(records), list(cuda_engine().values())
    known = cost_table(table_of(read.card.name))
    present = {kernel.name: known.costs_of(kernel) for kernel in kernels}
    fit = costs.Fit(read, kernels, present)
    before = fit.report(fit.costs)
    for _ in range(2):  # the regrets of a kernel depend on the others
        fit.improve()
    versions = [dict(fit.costs), present]
    if slim:
        for name in fit.models:
            fit.costs[name] = fit.without_needless_costs(name)
        versions.insert(0, dict(fit.costs))
    fit.choose_versions(versions)
    after = fit.report(fit.costs)
    for title, found in (("before", before), ("after", after)):
        print(title)
        for name, line in found.items():
            print(f"  {name:22}", *(f"{key} {value:.4g}" for key, value in line.items()))
    rounded = {
        name: {key: float(f"{cost:.4g}") for key, cost in each.items()}
        for name, each in {**present, **fit.costs}.items()
    }
    content = {
        "card": read.card.name,
        "records": [record.name for record in records],
        "before": before,
        "after": after,
        "kernels": rounded,
    }
    if table is None:
        print(f"written: {cached_table(own_table(read.card.name)).write_json(content)}")
    else:
        table.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure launches on the GPU of this machine")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--seconds", type=float, default=240)
    measuring.add_argument("--seed", type=int, default=1)
    measuring.add_argument("--others", type=int, default=OTHERS, help="ways of a product that are not near the best")
    measuring.add_argument("--compile", action="store_true", help="compile what no archive has")
    fitting = commands.add_parser("fit", help="fit the costs to a record")
    fitting.add_argument("records", type=Path, nargs="+")
    fitting.add_argument(
        "-o", "--table", type=Path, help="default: in the user's cache, for products on such a card here"
    )
    fitting.add_argument("--slim", action="store_true", help="drop costs that do not earn their place")
    given = parser.parse_args()
    if given.command == "fit":
        fit(given.records, given.table, slim=given.slim)
        return
    measure(given.out, given.seconds, given.seed, given.others, compile_too=given.compile)


if __name__ == "__main__":
    main()
