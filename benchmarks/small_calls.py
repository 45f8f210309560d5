"""Makes random calls of the C front's small products, and compares every result with NumPy's.

``python benchmarks/small_calls.py [COUNT] [--seed N] [--seconds S]`` makes ``COUNT`` calls, 10,000,000 by default, of the
function that ``matmul`` asks first, in rounds of 500. A round has a pool of arrays of one dtype in one memory, where they
may overlap: vectors, matrices and batches of any strides, some read-only, of a subclass, of another byte order, not aligned,
or with a stride of 0; and a second pool for ``out``. Numbers are small and whole, so every right result is exact. In some
rounds the matrices are large, and products of their shapes were computed before; in every second one two threads share
them.

A call is right if it returns None, which leaves it to the long way, or NumPy's result in type, dtype, shape and values;
if it computes what is plain and small, or known, and nothing else; and if nothing but ``out`` has changed. After each
round the reference counts of all arrays are as before, and at the end the process holds as much memory as after the first
rounds.

Prints one line, and each wrong call; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from random_operands import arrays, draw, dressed
from tilewright.cpu.plan import WORK_SHARED
from tilewright.cpu.runtime import facts, small_products
from tilewright.cpu.short import product_by_short_way
from tilewright.host.limits import use_threads

CALLS_OF_A_ROUND, ARRAYS_OF_A_POOL = 500, 24
SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 33]
#: Of products that two threads share.
LARGE = [97, 104, 130]
DTYPES = [np.dtype(name) for name in facts.KERNEL.dtypes]

Shape = tuple[int, ...]


class Pool:
    """Arrays of any layout in one memory; ``by_shape`` and ``by_rows`` find those that fit."""

    def __init__(self, rng: np.random.Generator, shapes: list[Shape], dtype: np.dtype, *, dress: bool) -> None:
        made, self.memory = arrays(rng, shapes, dtype, "whole")
        self.arrays = [_dressed(rng, x, dress) for x in made]
        self.by_shape: dict[Shape, list[np.ndarray]] = defaultdict(list)
        self.by_rows: dict[int, list[np.ndarray]] = defaultdict(list)
        for x in self.arrays:
            self.by_shape[x.shape].append(x)
            self.by_rows[x.shape[-2 if x.ndim > 1 else -1]].append(x)

    def restore(self) -> None:
        self.memory.cells[...] = self.memory.before


def _dressed(rng: np.random.Generator, x: np.ndarray, dress: bool) -> np.ndarray:
    """Mostly itself, or another kind of array; a read-only ``out``, at least."""
    if dress:
        found = dressed(rng, x)
        return x if isinstance(found, list) else found
    if rng.random() < 0.05:
        x.flags.writeable = False
    return x.view(np.recarray) if rng.random() < 0.05 else x


def pools(rng: np.random.Generator) -> tuple[Pool, Pool]:
    """Operands, and arrays for results."""
    if rng.random() < 0.03:
        return _large_pools(rng, draw(rng, [dtype for dtype in DTYPES if dtype.itemsize >= 4]))
    dtype = draw(rng, DTYPES)
    if dtype.itemsize > 1 and rng.random() < 0.03:
        dtype = dtype.newbyteorder()
    sizes, batch = [draw(rng, SIZES) for _ in range(3)], [draw(rng, [1, 2, 3, 5]) for _ in range(2)]

    def shape(axes: int) -> Shape:
        outer = [draw(rng, [length, length, 1]) for length in batch][: max(0, axes - 2)]
        return (*outer, *(draw(rng, sizes) for _ in range(min(axes, 2))))

    shapes = [shape(draw(rng, [1, 2, 2, 2, 3, 4])) for _ in range(ARRAYS_OF_A_POOL)]
    return Pool(rng, shapes, dtype, dress=True), Pool(rng, shapes, dtype, dress=False)


def _large_pools(rng: np.random.Generator, dtype: np.dtype) -> tuple[Pool, Pool]:
    """The same of large matrices."""
    shapes = [(draw(rng, LARGE), draw(rng, LARGE)) for _ in range(ARRAYS_OF_A_POOL)]
    return Pool(rng, shapes, dtype, dress=True), Pool(rng, shapes, dtype, dress=False)


def learned() -> small_products.Short:
    """The function, once it knows all dtypes, and the products of large matrices on one thread and on two."""
    for dtype in DTYPES:
        short = small_products.learn_dtype(dtype, WORK_SHARED)
        for threads, m, n, k in itertools.product((1, 2), LARGE, LARGE, LARGE):
            with use_threads(threads):
                product_by_short_way(np.zeros((m, k), dtype), np.zeros((k, n), dtype), None)
    return short


# ---- what is right ---------------------------------------------------------------------------------------------------


def product(a: np.ndarray, b: np.ndarray) -> Any:
    """NumPy's result; None where it has none."""
    try:
        return np.matmul(np.asarray(a), np.asarray(b))
    except ValueError:
        return None


def is_plain(x: np.ndarray) -> bool:
    return type(x) is np.ndarray and x.flags.aligned and x.dtype.isnative and _owner_is_plain(x)


def _owner_is_plain(x: Any) -> bool:
    while x.base is not None:
        x = x.base
        if type(x) is not np.ndarray:
            return False
    return True


def expects_computed(a: np.ndarray, b: np.ndarray, out: np.ndarray | None, expected: Any, admitted: bool) -> bool:
    """Whether the call has to compute the product: all is plain, and ``out`` fits and is disjoint."""
    if expected is None or not expected.size or not a.size:
        return False
    operands = (a, b) if out is None else (a, b, out)
    if not all(is_plain(x) or (admitted and _is_plain_but_for_its_owner(x)) for x in operands) or a.dtype != b.dtype:
        return False
    if out is None:
        return True
    if out.shape != expected.shape or out.dtype != expected.dtype or not out.flags.writeable:
        return False
    return not np.may_share_memory(out, a) and not np.may_share_memory(out, b)


def _is_plain_but_for_its_owner(x: np.ndarray) -> bool:
    return type(x) is np.ndarray and x.flags.aligned and x.dtype.isnative


def complaints(result: Any, out: np.ndarray | None, expected: Any, has_to: bool) -> Iterator[str]:
    """What is wrong with the result of a call."""
    if (result is not None) != has_to:
        yield "left to the long way" if has_to else "computed"
    if result is None:
        return
    if out is not None and result is not out:
        yield "not out"
    if out is None and (type(result) is not type(expected) or result.dtype != expected.dtype):
        yield f"{type(result)} of {result.dtype}"
    if np.shape(result) != np.shape(expected) or not np.array_equal(result, expected):
        yield "other values"


# ---- calls -----------------------------------------------------------------------------------------------------------


def one_round(rng: np.random.Generator, short: Any, done: Counter[str]) -> Iterator[str]:
    """Make the calls of a round; the complaints."""
    operands, results = pools(rng)
    everything = [*operands.arrays, *results.arrays]
    expected_of: dict[tuple[int, int], Any] = {}
    before = [sys.getrefcount(x) for x in everything]
    for _ in range(CALLS_OF_A_ROUND):
        a = draw(rng, operands.arrays)
        fitting = operands.by_rows.get(a.shape[-1]) if rng.random() < 0.95 else None
        b = draw(rng, fitting or operands.arrays)
        if (key := (id(a), id(b))) not in expected_of:
            expected_of[key] = product(a, b)
        expected, out, written = expected_of[key], None, None
        if rng.random() < 0.5:
            written = operands if rng.random() < 0.3 else results
            fits = written.by_shape.get(np.shape(expected)) if rng.random() < 0.9 else None
            out = draw(rng, fits or written.arrays)
        more = draw(rng, [(), (), (True,), (False, True)])
        try:
            result = short(a, b, out, *more)
        except Exception as error:  # whatever it is, it is a finding
            yield _described(f"raised {error!r}", a, b, out, more)
            continue
        has_to = expects_computed(a, b, out, expected, more == (True,))
        done["computed" if result is not None else "left"] += 1
        for words in complaints(result, out, expected, has_to):
            yield _described(words, a, b, out, more)
        if written is not None:
            if written.memory.changed(out if result is not None else None):
                yield _described("changed memory beside out", a, b, out, more)
            written.restore()
        del result
    if operands.memory.changed() or results.memory.changed():
        yield "changed an operand"
    del a, b, out, fitting
    fits = None
    if [sys.getrefcount(x) for x in everything] != before:
        yield "reference counts differ"


def _described(words: str, a: np.ndarray, b: np.ndarray, out: np.ndarray | None, more: tuple[bool, ...]) -> str:
    arrays = ", ".join("None" if x is None else f"{x.shape} by {x.strides} of {x.dtype}" for x in (a, b, out))
    return f"{words}: {arrays}, {more}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="the time after which no more are made")
    asked = parser.parse_args()
    short = learned()
    if short is small_products.take_long_way:
        print("there is no C front here: python -m tilewright.prebuilt", file=sys.stderr)
        return 1
    begun, done, wrong, blocks = time.perf_counter(), Counter[str](), 0, 0
    for number in itertools.count():
        calls = done.total()
        if calls >= asked.count or time.perf_counter() - begun > asked.seconds:
            break
        with use_threads(1 + number % 2):
            found = list(one_round(np.random.default_rng([asked.seed, number]), short, done))
        for words in found:
            wrong += 1
            print(f"round {number}: {words}")
        if number == 50:
            blocks = sys.getallocatedblocks()
    held = sys.getallocatedblocks() - blocks if blocks else 0
    seconds = time.perf_counter() - begun
    print(
        f"{calls:,} calls of seed {asked.seed} in {seconds:.0f} s, {done['computed']:,} computed: {wrong} wrong; "
        f"{held:,} more blocks of memory are held than after 50 rounds"
    )
    return int(wrong > 0 or held > 1000)


if __name__ == "__main__":
    sys.exit(main())
