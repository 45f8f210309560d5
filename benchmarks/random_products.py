"""Multiplies random operands, and compares every result with NumPy's.

``python benchmarks/random_products.py [COUNT] [--seed N] [--first N] [--most WORK] [--processes N] [--seconds S]
[--record FILE]`` makes ``COUNT`` products, 100,000 by default, with at most ``WORK`` multiply-adds each: ``matmul`` with and
without ``out``, ``gemm``, and calls that must be refused; of every dtype, with sizes from 0, in batches that broadcast, of
vectors, of any strides, byte order and alignment, on 1 and 2 threads. ``out`` may be strided, of another dtype, and overlap
the operands. Values are uniform, small whole numbers, uniform with an infinity or a NaN, or of any signs and exponents down
to the smallest subnormal number, with zeros. Product ``N`` of a seed is always the same: ``1 --first N`` makes it alone.

A result is right if its type, dtype and shape are NumPy's, and its values too: integers, bool, long double, Python objects
exactly, and floats where all operands are small whole numbers; other floats within the classical bound γ_k·(|A|·|B|) of the
product in a wider dtype, with NaN and infinity where that has them. Nothing but ``out`` may change, and nothing may warn.

Prints one line, and each wrong product; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from random_operands import BFLOAT16, OBJECT, Memory, array, arrays, draw, dressed, dtypes, shapes, swapped, traits
from tilewright.lab.inputs.environment import environment

#: Multiply-adds of most products, of some, and of those of dtypes that NumPy multiplies slowly.
WORK, MUCH_WORK, SLOW_WORK, OBJECT_WORK = 300_000, 60_000_000, 2_000_000, 3000

Complaints = Iterator[str]


# ---- what is right ---------------------------------------------------------------------------------------------------


class Expected:
    """Values in a dtype, and how far from them a result may be: nothing at all where ``bound`` is None. ``overflows``
    says where a sum on the way to a value may overflow, though the value itself does not."""

    def __init__(self, values: Any, bound: Any, dtype: np.dtype, overflows: Any = False) -> None:
        self.values, self.bound, self.dtype, self.overflows = values, bound, dtype, overflows

    def cast(self, dtype: np.dtype) -> Expected:
        """After a cast to ``dtype``, which rounds once more."""
        if self.bound is None or dtype == self.dtype:
            values = self.values if self.bound is not None else casted(self.values, dtype)
            return Expected(values, self.bound, dtype, self.overflows)
        rounding = 0.0 if dtype == OBJECT else abs(self.values) * eps(dtype) + least(dtype)
        return Expected(self.values, self.bound + rounding, dtype, self.overflows)

    def complaints(self, got: np.ndarray) -> Complaints:
        if got.dtype != self.dtype or got.shape != np.shape(self.values):
            yield f"{got.dtype} {got.shape}, not {self.dtype} {np.shape(self.values)}"
            return
        if self.bound is None:
            right = (got == self.values) | ((got != got) & (self.values != self.values))
        else:
            right = self._within(got)
        if not np.all(right):
            at = np.unravel_index(int(np.argmin(right)), got.shape)
            wrong = np.size(right) - np.count_nonzero(right)
            yield f"{wrong} of {got.size} elements are wrong; at {tuple(map(int, at))}: {got[at]}"

    def _within(self, got: np.ndarray) -> Any:
        wide = got.astype(self.values.dtype)
        finite = np.isfinite(self.values)
        near = ~(abs(wide - self.values) > self.bound) & np.isfinite(wide)
        most = largest(self.dtype)
        overflows = finite & (self.overflows | (abs(self.values) + self.bound >= most)) & ~np.isfinite(wide)
        if self.values.dtype.kind == "c":  # which part is NaN and which infinite depends on the order of multiplication
            same = ~np.isfinite(wide)
        else:
            same = (wide == self.values) | (np.isnan(wide) & np.isnan(self.values))
        return np.where(finite, near | overflows, same)


def casted(values: Any, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


def eps(dtype: np.dtype) -> float:
    return float(np.finfo(dtype).eps if dtype.kind in "fc" and dtype != BFLOAT16 else ml_dtypes.finfo(dtype).eps)


def least(dtype: np.dtype) -> float:
    """The smallest number above 0: the rounding of a number below the smallest normal one is at most half of it."""
    if dtype.kind in "fc" and dtype != BFLOAT16:
        return float(np.finfo(dtype).smallest_subnormal)
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def gamma(k: int, dtype: np.dtype) -> float:
    """Higham's γ; a complex product is two real ones of twice the length; what is narrower than float32 is rounded once."""
    if dtype == np.float16 or dtype == BFLOAT16:
        return gamma(k, np.dtype("f4")) + eps(dtype)
    unit = eps(dtype) / 2
    terms = (2 * (k + 2) if dtype.kind == "c" else k) * unit
    return terms / (1 - terms)


def largest(dtype: np.dtype) -> float:
    """The largest finite number of a dtype; infinity for what no double holds."""
    return np.inf if dtype.itemsize > 16 or dtype.kind == "O" else float(ml_dtypes.finfo(dtype).max)


def exactly(dtype: np.dtype) -> bool:
    """Whether results of this dtype must be NumPy's to the bit."""
    return dtype.kind in "biuO" or dtype.type in (np.longdouble, np.clongdouble)


def product(a: np.ndarray, b: np.ndarray, values: str) -> tuple[Any, Expected]:
    """NumPy's own, and what ours must be."""
    with np.errstate(all="ignore"):
        numpys = np.matmul(a, b)
        dtype = np.result_type(a, b)
        if exactly(dtype):
            return numpys, Expected(np.asarray(numpys), None, dtype)
        double = dtype.itemsize == (16 if dtype.kind == "c" else 8)
        wide = np.dtype("G" if double else "D") if dtype.kind == "c" else np.dtype("g" if double else "d")
        if values == "whole":  # no sum is rounded in double precision
            wide = np.dtype("D" if dtype.kind == "c" else "d")
        x, y = a.astype(dtype).astype(wide), b.astype(dtype).astype(wide)
        exact = np.asarray(np.matmul(x, y))
        if values == "whole":
            return numpys, Expected(casted(exact, dtype), None, dtype)
        size = np.asarray(np.matmul(abs(x).astype("d"), abs(y).astype("d")))
    terms = 4 * a.shape[-1] + 4  # a complex product has four for each element of k
    bound = gamma(a.shape[-1], dtype) * size + terms * least(dtype)
    return numpys, Expected(exact, bound, dtype, size + bound >= largest(dtype))


def combined(ours: Expected, k: int, alpha: float, beta: float, c: np.ndarray) -> Expected:
    """alpha times a product over ``k``, plus beta times C; what a factor of 0 multiplies is not read."""
    dtype, nothing = ours.dtype, np.zeros_like(ours.values)
    if dtype.kind in "biuO":
        number = bool if dtype.kind == "b" else int
        first = ours.values * number(alpha) if alpha else nothing
        return Expected(first + c.astype(dtype) * number(beta) if beta else first, None, c.dtype)
    wide = np.clongdouble if dtype.kind == "c" else np.longdouble
    first = ours.values.astype(wide) * alpha if alpha else nothing
    second = c.astype(wide) * beta if beta else nothing
    bound = ours.bound * abs(alpha) if alpha and ours.bound is not None else 0.0
    bound = bound + (gamma(k + 2, dtype) + 8 * eps(dtype)) * (abs(first) + abs(second) + bound) + 8 * least(dtype)
    return Expected(first + second, bound, c.dtype, ours.overflows)


# ---- the calls -------------------------------------------------------------------------------------------------------


class Case:
    """Two operands, the memories that they lie in, and what the call may write."""

    def __init__(self, rng: np.random.Generator, way: str, most: float = np.inf) -> None:
        self.rng, self.way, limit = rng, way, most
        kinds = dtypes(rng)
        slow = any(kind.kind not in "fc" or kind.itemsize > 16 for kind in kinds) or np.result_type(*kinds).char in "gG"
        large = OBJECT not in kinds and rng.random() < 0.05 and limit > WORK
        most = (SLOW_WORK if slow else MUCH_WORK) if large else OBJECT_WORK if OBJECT in kinds else WORK
        self.values = "whole" if large else draw(rng, ["any", "any", "spread", "spread", "whole", "special"])
        if OBJECT in kinds and kinds[0] != kinds[1]:  # fractions do not multiply long doubles
            self.values = "whole"
        matrices, large = way == "gemm", large and not slow
        self.shapes = shapes(rng, min(most, limit), large=large, matrices=matrices, elements=2 * limit)
        self.one_memory = way != "refused" and kinds[0] == kinds[1] and rng.random() < 0.3
        self.memories: list[Memory] = []
        self.out: Any = None
        if self.one_memory:
            with np.errstate(all="ignore"):
                shape = np.matmul(*(np.empty(shape, bool) for shape in self.shapes)).shape
            (*operands, self.out), memory = arrays(rng, [*self.shapes, shape], kinds[0], self.values)
            self.memories.append(memory)
        else:
            operands = [self.made(*what) for what in zip(self.shapes, kinds, strict=True)]
        self.a, self.b = (dressed(rng, operand) for operand in operands)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.x, self.y = (np.array(operand, subok=False) for operand in (self.a, self.b))

    def made(self, shape: tuple[int, ...], dtype: np.dtype, values: str = "") -> np.ndarray:
        made, memory = array(self.rng, shape, dtype, values or self.values)
        self.memories.append(memory)
        return made

    def receiver(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array for the result, which may overlap the operands if their dtype is its own."""
        if self.out is None or self.out.dtype != dtype:
            self.out = self.made(shape, dtype, "special")
        return self.out

    def traits(self) -> Iterator[str]:
        yield self.way
        for name, operand in (("a", self.a), ("b", self.b), ("out", self.out)):
            if operand is not None:
                yield from (f"{name}: {words}" for words in [*traits(operand), str(np.asarray(operand).dtype.name)])
        operands = [operand for operand in (self.a, self.b) if isinstance(operand, np.ndarray)]
        if self.out is not None and any(np.may_share_memory(self.out, operand) for operand in operands):
            yield "out overlaps an operand"

    def run(self) -> Complaints:
        with tw.use_threads(int(self.rng.integers(1, 3))):
            yield from {"gemm": self._gemm, "refused": self._refused}.get(self.way, self._matmul)()
        if any(memory.changed(self.out) for memory in self.memories):
            yield "wrote to memory that is not the result's"

    def _matmul(self) -> Complaints:
        numpys, expected = product(self.x, self.y, self.values)
        if self.way == "matmul":
            self.out = None
            got = quietly(tw.matmul, self.a, self.b)
            if type(got) is not type(numpys) and expected.dtype != BFLOAT16:
                yield f"a {type(got).__name__}, not a {type(numpys).__name__}"
            yield from expected.complaints(np.asarray(got, OBJECT if expected.dtype == OBJECT else None))
            return
        out = self.receiver(np.shape(numpys), self._out_dtype(expected.dtype))
        by_position = self.rng.random() < 0.5
        got = quietly(
            tw.matmul, self.a, self.b, *([out] if by_position else []), **({} if by_position else {"out": out})
        )
        if got is not out:
            yield "another array than out"
        yield from expected.cast(out.dtype).complaints(out)

    def _out_dtype(self, dtype: np.dtype) -> np.dtype:
        """The product's own, or one that it casts to."""
        if self.one_memory and self.out.dtype == dtype:
            return self.out.dtype
        able = [kind for kind in map(np.dtype, "fdFDilqe?O") if np.can_cast(dtype, kind, "same_kind")]
        return swapped(self.rng, draw(self.rng, able) if able and self.rng.random() < 0.3 else dtype)

    def _gemm(self) -> Complaints:
        _, expected = product(self.x, self.y, "any")  # what C holds need not be whole, and is added to parts of the sum
        dtype = expected.dtype
        c = self.receiver(np.shape(expected.values), dtype if self.one_memory else swapped(self.rng, dtype))
        factors = {"b": [0, 1], "i": [0, 1, 1, 2, -3], "u": [0, 1, 1, 2, 3], "O": [0, 1, 1, 2, -3]}.get(
            dtype.kind, [0, 1, 1, -1, 2, 0.5, np.nan]
        )
        alpha, beta = draw(self.rng, factors), draw(self.rng, factors)
        before = np.array(c)
        got = quietly(tw.gemm, alpha, self.a, self.b, beta, c)
        if got is not c:
            yield "another array than c"
        k = self.x.shape[-1]
        yield from combined(expected, k, alpha if k else 0, beta, before).complaints(c)

    def _refused(self) -> Complaints:
        """By an error of the same built-in class as NumPy's, with nothing written."""
        arguments = refusals(self.rng, self)
        if isinstance(arguments[0], np.ma.MaskedArray):
            theirs: type[Exception] | None = TypeError
        else:
            theirs = error_of(np.matmul, *arguments)
        ours = error_of(quietly, tw.matmul, *arguments)
        if theirs is None:
            return
        built_in = next((kind for kind in (TypeError, ValueError) if issubclass(theirs, kind)), None)
        if ours is None or built_in is None or not issubclass(ours, built_in):
            yield f"raised {ours and ours.__name__}, NumPy {theirs.__name__}"
        self.out = None


def refusals(rng: np.random.Generator, case: Case) -> tuple[Any, ...]:
    """Arguments that no product has."""
    x, y = case.x, case.y
    with np.errstate(all="ignore"):
        shape, dtype = np.shape(np.matmul(x, y)), np.result_type(x, y)
    read_only = np.zeros(shape, dtype)
    read_only.flags.writeable = False
    narrower = np.dtype("?") if dtype.kind != "b" else np.dtype("M8[s]")
    return draw(
        rng,
        [
            (np.ma.masked_array(x, np.zeros(x.shape, bool)), y),
            (x, np.ones((x.shape[-1] + 1, 3), y.dtype)),
            (np.ones((2, *x.shape[-2:]), x.dtype), np.ones((3, x.shape[-1], 1), y.dtype)),
            (np.array(1).astype(x.dtype) if x.dtype != OBJECT else np.float64(1), y),
            (np.full(x.shape, "a"), y.astype("d") if y.dtype == OBJECT else y),
            (x, y, read_only),
            (x, y, np.zeros((*shape[:-1], shape[-1] + 2 if shape else 2), dtype)),
            (x, y, np.zeros(shape, narrower)),
            (x, y, np.zeros(shape, dtype).tolist()),
        ],
    )


def quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What ``call`` returns; a warning is an error."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        return call(*arguments, **named)


def error_of(call: Callable[..., Any], *arguments: Any) -> type[Exception] | None:
    try:
        call(*arguments)
    except Exception as error:
        return type(error)
    return None


# ---- many ------------------------------------------------------------------------------------------------------------


def one(seed: int, number: int, most: float = np.inf) -> tuple[list[str], list[str]]:
    """What product ``number`` of a seed is, and what is wrong with it."""
    rng = np.random.default_rng([seed, number])
    case = Case(rng, str(rng.choice(["matmul", "out", "gemm", "refused"], p=[0.4, 0.35, 0.2, 0.05])), most)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wrong = list(case.run())
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
    return list(case.traits()), wrong


def many(
    count: int,
    seed: int = 0,
    first: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    *,
    most: float = np.inf,
    processes: int = 1,
    seconds: float = np.inf,
) -> dict[str, Any]:
    """``count`` products, or those of so many ``seconds``: how many of each kind, and what is wrong with which."""
    counts: Counter[str] = Counter()
    wrong, done, until = {}, 0, time.perf_counter() + seconds
    make, numbers = functools.partial(one, seed, most=most), range(first, first + count)
    with multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else contextlib.nullcontext() as pool:
        made = map(make, numbers) if pool is None else pool.imap(make, numbers, chunksize=500)
        for number, (found, complaints) in zip(numbers, made, strict=True):
            counts.update(found)
            done += 1
            if complaints:
                wrong[number] = complaints
                tell(f"product {number}: {'; '.join(complaints)} ({', '.join(found)})")
            if time.perf_counter() > until:
                break
    return {"count": done, "seed": seed, "first": first, "wrong": wrong, "of_each_kind": dict(sorted(counts.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first product")
    parser.add_argument(
        "--most", type=float, default=np.inf, help="multiply-adds of a product, and half of its elements, at most"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=np.inf, help="the time after which no more are made")
    parser.add_argument("--record", type=Path, help="a file for what was done, as JSON")
    asked = parser.parse_args()
    begun = time.perf_counter()
    done = many(
        asked.count, asked.seed, asked.first, print, most=asked.most, processes=asked.processes, seconds=asked.seconds
    )
    seconds = time.perf_counter() - begun
    print(f"{done['count']} products of seed {asked.seed} in {seconds:.0f} s: {len(done['wrong'])} wrong")
    if asked.record:
        facts = environment(operands="random", command=shlex.join(["python", *sys.argv]))
        record = {"kind": "random products", "seconds": round(seconds, 1), **done, "environment": facts}
        asked.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(bool(done["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
