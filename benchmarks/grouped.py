"""Products of the groups of a mixture of experts on a GPU, beside PyTorch's.

    python benchmarks/grouped.py OUT.jsonl [--short]

Each case is a layer of a model: tokens that are sorted by expert, and how many tokens each expert gets: as random
routing gives them, skewed (a few experts get most), or rounded to multiples of 16. Three products are timed: forward,
the gradient of the tokens, and that of the weights. Beside ``tilewright.grouped_matmul`` there are PyTorch's grouped
product, where it takes the case, and ``torch.matmul`` once for each expert, whose sizes must be on the host. The calls
take turns, and a time is that of the GPU between two events. Every result is compared with float64 at sampled rows, in
memory that held NaN before. R is the time of PyTorch over ours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tilewright as tw
from tilewright.lab.inputs.environment import environment

#: Models: experts, k and n of a layer's product (rows of tokens are k wide).
LAYERS = {
    "Mixtral 8x7B up": (8, 4096, 14336),
    "Mixtral 8x7B down": (8, 14336, 4096),
    "DeepSeek-V3 up, 32 of 256 experts": (32, 7168, 2048),
    "DeepSeek-V3 down, 32 of 256 experts": (32, 2048, 7168),
    "Qwen3-30B-A3B up": (128, 2048, 768),
    "Qwen3-30B-A3B down": (128, 768, 2048),
}
ROWS, SIZES = (4096, 16384, 65536), ("random", "skewed", "random, multiples of 16")
#: Of each element's error over |A||B|.
ALLOWED = 2.0**-7
#: The most bytes of all operands and results of a case.
MOST_BYTES = 60e9


class Case(NamedTuple):
    """One layer with so many tokens, whose groups have these sizes."""

    layer: str
    experts: int
    k: int
    n: int
    rows: int
    sizes: str

    def ends(self, rng: np.random.Generator) -> np.ndarray:
        """The ends of the groups."""
        shares = np.ones(self.experts)
        if self.sizes == "skewed":
            shares = 1 / np.arange(1, self.experts + 1)
            rng.shuffle(shares)
        counts = rng.multinomial(self.rows, shares / shares.sum())
        if "16" in self.sizes:
            counts = counts // 16 * 16
            counts[counts.argmax()] += self.rows - counts.sum()
        return np.cumsum(counts).astype(np.int32)


class Operands(NamedTuple):
    """Tokens, weights as they are stored (experts, n, k), the gradient of the result, and the ends of groups."""

    tokens: torch.Tensor
    weights: torch.Tensor
    gradient: torch.Tensor
    offsets: torch.Tensor
    ends: list[int]

    @property
    def groups(self) -> list[slice]:
        """The rows of each expert."""
        return [slice(begin, end) for begin, end in itertools.pairwise([0, *self.ends])]


def uniform(*shape: int) -> torch.Tensor:
    """Random numbers from -1 to 1."""
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)


def operands(case: Case, seed: int) -> Operands:
    """New ones on the GPU."""
    ends = case.ends(np.random.default_rng(seed))
    tokens, gradient = uniform(case.rows, case.k), uniform(case.rows, case.n)
    weights = uniform(case.experts, case.n, case.k)
    return Operands(tokens, weights, gradient, torch.from_numpy(ends).cuda(), ends.tolist())


# ---- the products -------------------------------------------------------------------------------------------------------


def factors(x: Operands, product: str) -> tuple[torch.Tensor, torch.Tensor]:
    """a and b of a product: C = X·Wᵀ, and the gradients C·W of the tokens and Xᵀ·C of the weights."""
    return {
        "forward": (x.tokens, x.weights.mT),
        "gradient of tokens": (x.gradient, x.weights),
        "gradient of weights": (x.tokens.mT, x.gradient),
    }[product]


def by_tilewright(x: Operands, product: str) -> torch.Tensor:
    """Ours."""
    return tw.grouped_matmul(*factors(x, product), x.offsets)


def by_torch(x: Operands, product: str) -> torch.Tensor:
    """PyTorch's grouped product; raises what it raises."""
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return grouped(*factors(x, product), offs=x.offsets)


def one_by_one(x: Operands, product: str) -> torch.Tensor:
    """A call of PyTorch's matmul for each expert, into one result."""
    a, b = factors(x, product)
    if product == "gradient of weights":
        c = a.new_empty(len(x.ends), a.shape[0], b.shape[1])
        for g, some in enumerate(x.groups):
            torch.matmul(a[:, some], b[some], out=c[g])
        return c
    c = a.new_empty(a.shape[0], b.shape[-1])
    for g, some in enumerate(x.groups):
        torch.matmul(a[some], b[g], out=c[some])
    return c


WAYS: dict[str, Callable[[Operands, str], torch.Tensor]] = {
    "tilewright": by_tilewright,
    "torch grouped_mm": by_torch,
    "torch one by one": one_by_one,
}


# ---- the checks ---------------------------------------------------------------------------------------------------------


def largest_error(x: Operands, product: str, c: torch.Tensor, rng: np.random.Generator) -> float:
    """The largest error over |A||B| at sampled rows of the result, of some groups; NaN counts as infinite."""
    a, b = factors(x, product)
    filled = [g for g, some in enumerate(x.groups) if some.stop > some.start]
    worst = 0.0
    for g in {*rng.choice(filled, min(4, len(filled))).tolist(), filled[-1]}:
        some = x.groups[g]
        if product == "gradient of weights":
            rows = torch.from_numpy(rng.integers(0, a.shape[0], 16)).cuda()
            s, t, found = a[rows, some].double(), b[some].double(), c[g, rows].double()
        else:
            rows = torch.from_numpy(
                np.unique([some.start, some.stop - 1, *rng.integers(some.start, some.stop, 14)])
            ).cuda()
            s, t, found = a[rows].double(), b[g].double(), c[rows].double()
        bound = s.abs() @ t.abs()
        error = ((found - s @ t).abs() / bound.clamp(min=1e-30)).max()
        worst = max(worst, float(error) if bool(torch.isfinite(found).all()) else float("inf"))
    if product == "gradient of weights":
        empty = [g for g in range(len(x.ends)) if g not in filled]
        worst = float("inf") if empty and bool(c[empty].count_nonzero()) else worst
    return worst


def is_refused(way: str, x: Operands, product: str) -> str:
    """Why PyTorch does not take a case; empty if it does."""
    try:
        WAYS[way](x, product)
        torch.cuda.synchronize()
    except Exception as error:  # whatever this version of PyTorch raises
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


def poison(nbytes: int) -> None:
    """Fill memory with NaN that the next results are likely to get from the allocator."""
    torch.full((nbytes // 4,), float("nan"), device="cuda")


# ---- the times ----------------------------------------------------------------------------------------------------------


def times(ways: list[str], sets: list[Operands], product: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each call, which take turns for so long, at least five times."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    begun, turn = time.perf_counter(), 0
    while turn < 5 or (time.perf_counter() - begun < seconds and turn < 200):
        for way in ways:
            x = sets[turn % len(sets)]
            torch.cuda._sleep(100_000)  # so that what the host does is not in the time
            events[0].record()
            WAYS[way](x, product)
            events[1].record()
            events[1].synchronize()
            found[way].append(events[0].elapsed_time(events[1]) / 1e3)
        turn += 1
    return found


def measured(case: Case, product: str, sets: list[Operands], seconds: float) -> dict[str, Any]:
    """The record of one product of a case."""
    rng, refused, errors, ways = np.random.default_rng(1), {}, {}, []
    size = case.experts * case.n * case.k if product == "gradient of weights" else case.rows * max(case.n, case.k)
    for way, compute in WAYS.items():
        if way != "tilewright" and (reason := is_refused(way, sets[0], product)):
            refused[way] = reason
            continue
        poison(2 * size)
        errors[way] = max(largest_error(x, product, compute(x, product), rng) for x in sets)
        if way == "tilewright" and not errors[way] <= ALLOWED:
            raise SystemExit(f"{case} {product}: wrong, error {errors[way]:.2g} of |A||B|")
        ways.append(way)
    samples = times(ways, sets, product, seconds)
    medians = {way: statistics.median(each) for way, each in samples.items()}
    flops = 2 * case.rows * case.k * case.n
    return case._asdict() | {
        "product": product,
        "ends": sets[0].ends,
        "samples_s": samples,
        "median_s": medians,
        "tflops": {way: flops / each / 1e12 for way, each in medians.items()},
        "ratio": {way: each / medians["tilewright"] for way, each in medians.items() if way != "tilewright"},
        "error_over_bound": errors,
        "refused": refused,
    }


def cases(short: bool) -> Iterator[Case]:
    """All cases, or a few."""
    for kind, rows in itertools.product(SIZES, ROWS):
        for number, (layer, sizes) in enumerate(LAYERS.items()):
            if not short or (rows == ROWS[1] and kind == SIZES[number % 3]):
                yield Case(layer, *sizes, rows, kind)


def main() -> None:
    """Measure, print and append the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--short", action="store_true", help="one number of tokens and one kind of sizes for each layer"
    )
    parser.add_argument("--limit", type=float, default=85.0, help="seconds after which no case is begun (default 85)")
    given = parser.parse_args()
    begun, found, left_out = time.perf_counter(), [], 0
    chosen = list(cases(given.short))
    for case in chosen:
        if time.perf_counter() - begun > given.limit:
            left_out += 1
            continue
        nbytes = 2 * (case.rows * (case.k + case.n) + case.experts * case.k * case.n)
        copies = 2 if nbytes < 2e8 and 2 * nbytes < MOST_BYTES else 1  # larger ones do not stay in a cache
        sets = [operands(case, seed) for seed in range(copies)]
        for product in ("forward", "gradient of tokens", "gradient of weights"):
            found.append(measured(case, product, sets, 0.05 if given.short else 0.1))
            print(line(found[-1]), flush=True)
        del sets
    for product in ("forward", "gradient of tokens", "gradient of weights"):
        ratios = [
            r for each in found if each["product"] == product for r in [each["ratio"].get("torch grouped_mm")] if r
        ]
        if ratios:
            print(f"{product}: R of torch grouped_mm {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    command = "python benchmarks/grouped.py OUT.jsonl" + " --short" * given.short
    facts = {"kind": "grouped", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "left_out": left_out}
    record = facts | {"environment": environment(operands="uniform [-1, 1)", command=command), "cases": found}
    with given.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{len(found)} products in {time.perf_counter() - begun:.0f} s; cases left out for lack of time: {left_out}")


def line(found: dict[str, Any]) -> str:
    """What is printed of a product."""
    ours, ratios = found["tflops"]["tilewright"], found["ratio"]
    others = ", ".join(f"R {ratio:.2f} ({way})" for way, ratio in ratios.items())
    refused = "".join(f"; {way} refuses: {why}" for way, why in found["refused"].items())
    where = f"{found['layer']}, {found['rows']} tokens, {found['sizes']}, {found['product']}"
    return f"{where}: {1e6 * found['median_s']['tilewright']:.1f} µs, {ours:.0f} TFLOPS; {others}{refused}"


if __name__ == "__main__":
    sys.exit(main())
