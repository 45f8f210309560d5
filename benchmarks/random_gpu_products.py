"""Multiplies random matrices on a GPU by ``tilewright.matmul``, and compares each with the product in float64.

    python benchmarks/random_gpu_products.py OUT.jsonl [--products 20000] [--seconds 150] [--processes 16] [--seed 1]
    python benchmarks/random_gpu_products.py OUT.jsonl --only bfloat16 17 [--seed 1]

Shapes are drawn on a logarithmic scale, with sizes next to tile sizes, and now and then empty; layouts are rows, columns,
views with gaps and at odd addresses, transposed, conjugated and broadcast batches; there are vectors, lists of matrices,
``out_dtype``, an ``out`` with marks around it, scales, alpha, beta, bias and activations.

An answer is right if every element is within the bound of its dtype, if the same product gives the same bits again, also of
copies of the operands, and if nothing around ``out`` has changed. The record has a line for each dtype: products, the
largest error over its bound, kernels. Each wrong product is a line of its own, with the number by which ``--only`` repeats
it. A process from which the GPU takes no more work is replaced, and the product that it was at is recorded.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from random_gpu_operands import KINDS, Maker, Product, worst

#: Products whose checks are read from the GPU together, and those that a process takes at once.
TOGETHER, TAKEN = 16, 32
#: The share of the GPU's memory that PyTorch may take in all processes.
MEMORY = 0.8
#: Seconds that a process may take to end after the time is over.
GRACE_S = 15.0


class Worker:
    """One process: it multiplies products of one kind, then of those of which most are left."""

    def __init__(self, seed: int, share: float, out: Path) -> None:
        import torch

        self.torch, self.seed, self.out = torch, seed, out
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.set_per_process_memory_fraction(share)
        self.waiting: list[tuple[dict[str, Any], Any]] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.kernels: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.most: dict[str, float] = {}
        self.wrong: list[dict[str, Any]] = []
        self.compiled = [0, 0.0]
        self._time_compiler()

    def _time_compiler(self) -> None:
        from tilewright.gpu.runtime import nvrtc

        compile_one = nvrtc._compile

        def timed(*given: Any, **by_name: Any) -> Any:
            start = time.perf_counter()
            try:
                return compile_one(*given, **by_name)
            finally:
                self.compiled = [self.compiled[0] + 1, self.compiled[1] + time.perf_counter() - start]

        nvrtc._compile = timed

    def multiply(self, name: str, number: int) -> None:
        """Submit one product and its checks."""
        index = list(KINDS).index(name)
        rng = np.random.default_rng([self.seed, index, number])
        what: dict[str, Any] = {"dtype": name, "number": number}
        self._at(what)
        try:
            made = Maker(self.torch, rng, int(rng.integers(2**31))).product(KINDS[name])
            what |= described(made)
            self.waiting.append((what, self._checks(made, name)))
        except self.torch.cuda.OutOfMemoryError:
            self.torch.cuda.empty_cache()
            self.done[f"{name}: no memory"] += 1
            return
        except Exception as raised:
            self.wrong.append(what | {"raised": f"{type(raised).__name__}: {raised}"[:300]})
            if "cuda" in str(raised).lower():  # the GPU may take no more work from this process
                self._write()
                raise
        self.done[name] += 1

    def _checks(self, made: Product, name: str) -> Any:
        """Error over bound, whether the bits are the same again, and whether nothing around ``out`` has changed."""
        import tilewright as tw

        torch, given = self.torch, made.keywords | ({} if made.out is None else {"out": made.out})
        true = torch.ones((), dtype=torch.float64, device="cuda")
        if isinstance(made.a, list):
            first, second = (tw.matmul(made.a, made.b, **given) for _ in range(2))
            errors = [worst(torch, made, *each) for each in zip(made.a, made.b, first, strict=True)]
            same = [(x == y).all() for x, y in zip(first, second, strict=True)]
            self.kernels[name]["lists"] += 1
            return torch.stack([torch.stack(errors).amax(), torch.stack(same).all().double(), true])
        first = tw.matmul(made.a, made.b, **given).clone()
        error = worst(torch, made, made.a, made.b, first)
        made.again()
        same = (tw.matmul(made.a, made.b, **given) == first).all()
        whole = all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in (made.a, made.b))  # as copies are
        if made.out is None and whole:
            same = same & (tw.matmul(made.a.clone(), made.b.clone(), **given) == first).all()
        plan = tw.plan(made.a, made.b, **given)
        self.kernels[name][f"{plan.kernel.name}{' in parts' * (plan.parts > 1)}"] += 1
        return torch.stack([error, same.double(), true if made.out is None else made.intact().double()])

    def read(self) -> None:
        """Wait for the checks of the products that were submitted, and write what is known."""
        waiting, self.waiting = self.waiting, []
        try:
            found = self.torch.stack([checks for _, checks in waiting]).cpu().tolist() if waiting else []
        except Exception as raised:
            numbers = [what["number"] for what, _ in waiting]
            self.wrong.append(waiting[0][0] | {"one_of": numbers, "raised": f"{type(raised).__name__}: {raised}"[:300]})
            self._write()
            raise
        for (what, _), (error, same, intact) in zip(waiting, found, strict=True):
            name, error = what["dtype"], error if error < 1e300 else 1e300  # NaN, too
            self.most[name] = max(self.most.get(name, 0.0), error)
            if not (error <= 1 and same and intact):
                self.wrong.append(what | {"error": error, "same": bool(same), "intact": bool(intact)})
        self._write()

    def _write(self) -> None:
        known = {name: getattr(self, name) for name in ("done", "kernels", "most", "wrong", "compiled")}
        written = self.out.with_suffix(".new")
        written.write_text(json.dumps(known), encoding="utf-8")
        written.replace(self.out)

    def _at(self, what: dict[str, Any]) -> None:
        self.out.with_suffix(".at").write_text(json.dumps(what), encoding="utf-8")


def keyword(value: Any) -> Any:
    """A keyword's value as a record has it: of a tensor the shape."""
    return value if isinstance(value, str | float) else list(value.shape)


def described(made: Product) -> dict[str, Any]:
    """A product as a record has it."""
    pairs = list(zip(made.a, made.b, strict=True))[:8] if isinstance(made.a, list) else [(made.a, made.b)]
    keywords = {name: keyword(value) for name, value in made.keywords.items()}
    arrays = [[[str(x.dtype), list(x.shape), list(x.stride()), x.data_ptr() % 128] for x in pair] for pair in pairs]
    return {"operands": arrays, "keywords": keywords, "out": None if made.out is None else list(made.out.stride())}


def work(seed: int, first: int, left: Any, share: float, until: float, out: Path) -> None:
    """Multiply products of a kind, by its number, until none are left, or the time is over."""
    worker, names = Worker(seed, share, out), list(KINDS)
    while time.time() < until:
        with left.get_lock():
            kind = first if left[first] > 0 else int(np.argmax(left[:]))
            last = left[kind]
            if last <= 0:
                break
            left[kind] = max(0, last - TAKEN)
        for i in range(last, max(0, last - TAKEN), -1):
            worker.multiply(names[kind], i)
            if len(worker.waiting) >= TOGETHER or time.time() > until:
                worker.read()
            if time.time() > until:
                break
    worker.read()


def shares(total: int) -> list[int]:
    """Products of each kind."""
    whole = sum(kind.weight for kind in KINDS.values())
    return [-(-total * kind.weight // whole) for kind in KINDS.values()]


def run(products: int, seconds: float, processes: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """What each process found; one that dies is replaced."""
    context, until = multiprocessing.get_context("spawn"), time.time() + seconds
    counts = shares(products)
    left = context.Array("q", counts)
    # As many processes for each kind as it has products: each compiles what its kind needs.
    kinds = np.searchsorted(np.cumsum(counts) / sum(counts), (np.arange(processes) + 0.5) / processes)
    lost: list[dict[str, Any]] = []
    running: list[tuple[Any, int, Path]] = []

    def start(kind: int) -> None:
        out = folder / f"{len(list(folder.glob('*.begun')))}.json"
        out.with_suffix(".begun").touch()
        given = (seed, kind, left, MEMORY / processes, until, out)
        running.append((context.Process(target=work, args=given), kind, out))
        running[-1][0].start()

    for kind in kinds:
        start(int(kind))
    while running and time.time() < until + GRACE_S:
        time.sleep(0.2)
        for each in [each for each in running if not each[0].is_alive()]:
            running.remove(each)
            process, kind, out = each
            if process.exitcode:
                lost.append(at(out) | {"raised": f"the process ended with {process.exitcode}"})
                if time.time() < until and len(lost) < 50:
                    start(kind)
    for process, _, out in running:
        process.kill()
        lost.append(at(out) | {"raised": "it had not ended in time"})
    parts = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]
    return [*parts, {"wrong": lost}]


def at(out: Path) -> dict[str, Any]:
    """The product that a process was at."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(out.with_suffix(".at").read_text("utf-8"))
    return {"dtype": "none", "number": -1}


def lines_of(parts: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The lines of a record: one for each kind, and one for each wrong product."""

    def added(counts: Iterable[dict[str, int]]) -> collections.Counter[str]:
        return sum(map(collections.Counter, counts), collections.Counter())

    done = added(part.get("done", {}) for part in parts)
    wrong = [each for part in parts for each in part["wrong"]]
    lines: list[dict[str, Any]] = []
    for name in KINDS:
        kernels = added(part.get("kernels", {}).get(name, {}) for part in parts)
        most = max((part.get("most", {}).get(name, 0.0) for part in parts), default=0.0)
        lines.append({
            "kind": "gpu products", "schema": 2, "dtype": name, "seed": seed, "products": done[name],
            "no_memory": done[f"{name}: no memory"], "error_over_bound": most,
            "wrong": sum(each["dtype"] == name for each in wrong), "by_kernel": kernels,
        })  # fmt: skip
    return lines + [{"kind": "gpu product wrong", "schema": 2, "seed": seed, **each} for each in wrong[:200]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--products", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs=2, metavar=("DTYPE", "NUMBER"))
    given = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        if given.only:
            worker = Worker(given.seed, 0.5, Path(folder, "0.json"))
            worker.multiply(given.only[0], int(given.only[1]))
            worker.read()
            parts = [json.loads(Path(folder, "0.json").read_text("utf-8"))]
        else:
            parts = run(given.products, given.seconds, given.processes, given.seed, Path(folder))
    import torch

    from tilewright.lab.inputs.environment import environment

    said = f" --products {given.products} --seconds {given.seconds:g} --processes {given.processes} --seed {given.seed}"
    command = f"python benchmarks/random_gpu_products.py OUT.jsonl{said}"
    known = environment(operands="uniform[-1,1)", command=command) | {"gpu": torch.cuda.get_device_name()}
    compiled = [part["compiled"] for part in parts if "compiled" in part]
    known |= {"seconds": time.time() - began, "compiled": sum(n for n, _ in compiled)}
    known |= {"compile_seconds": sum(seconds for _, seconds in compiled)}
    lines = [{"kind": "gpu products header", "schema": 2, "environment": known}, *lines_of(parts, given.seed)]
    given.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    counts = [line for line in lines if line["kind"] == "gpu products"]
    wrong = [line for line in lines if line["kind"] == "gpu product wrong"]
    print(f"{sum(line['products'] for line in counts)} products in {known['seconds']:.0f} s, {len(wrong)} wrong; "
          f"{known['compiled']} compilations, {known['compile_seconds']:.0f} s")  # fmt: skip
    for line in counts:
        print(f"{line['dtype']:12} {line['products']:6} error {line['error_over_bound']:.4g} of its bound, "
              f"wrong {line['wrong']}, no memory {line['no_memory']}")  # fmt: skip
    for line in wrong[:12]:
        print(json.dumps(line)[:700])


if __name__ == "__main__":
    main()
