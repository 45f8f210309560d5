"""The bits of 400 products, written down, so that a change which must not alter any can be held to it.

    python benchmarks/bits.py before.json              # before the change
    python benchmarks/bits.py --compare before.json    # after it, on the same machine: exits with 1 where one differs
    python benchmarks/bits.py --dtypes float32,float64 before.json    # of these dtypes alone: less to compile

Every dtype is multiplied in every way that it can be (shapes of each kernel, strides, batches, ``gemm``, ``precision``,
``algorithm``), on one thread, and on 2, 4 and 8 threads. Bits depend on the machine's blocks, which the file names.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

#: (m, k, n): small, long and short vectors, a thin C, a small C of a huge k, odd edges, more than one block.
SHAPES = [
    (5, 7, 9),
    (16, 16, 16),
    (1, 300, 400),
    (400, 300, 1),
    (64, 20000, 48),
    (513, 24, 700),
    (130, 257, 191),
    (300, 601, 517),
]
DTYPES = ["float32", "float64", "complex64", "complex128", "float16", "bfloat16", "bool", "longdouble"]
DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
#: Ways of the floating-point dtypes beyond the plain one.
WAYS = ["strided", "batch", "gemm", "highest", "strassen"]


def operands(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Every element random; complex numbers in both parts, integers over all of their range."""
    if dtype == "bfloat16":
        import ml_dtypes

        return rng.uniform(-1, 1, shape).astype(ml_dtypes.bfloat16)
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype == "bool":
        return rng.random(shape) < 0.1
    values = rng.uniform(-1, 1, shape)
    return (values + 1j * rng.uniform(-1, 1, shape) if "complex" in dtype else values).astype(dtype)


def product(dtype: str, way: str, size: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    m, k, n = size
    if way == "batch":
        return tw.matmul(
            operands(dtype, (7, m // 4 + 1, k // 4 + 1), rng), operands(dtype, (k // 4 + 1, n // 4 + 1), rng)
        )
    a, b = operands(dtype, (m, k), rng), operands(dtype, (k, n), rng)
    if way == "strided":
        return tw.matmul(np.asfortranarray(a), operands(dtype, (n, k), rng)[:, ::-1].T)
    if way == "gemm":
        return tw.gemm(1.0, a, b, 1.0, operands(dtype, (m, n), rng))
    if way == "plain":
        return tw.matmul(a, b)
    return tw.matmul(a, b, **{"precision" if way == "highest" else "algorithm": way})


def cases() -> Iterator[tuple[str, str, tuple[int, int, int], int]]:
    for dtype, size in itertools.product(DTYPES, SHAPES):
        yield dtype, "plain", size, 1
    for dtype, way, size in itertools.product(("float32", "float64", "complex64"), WAYS, (SHAPES[0], *SHAPES[5:])):
        if way != "strassen" or dtype != "complex64":
            yield dtype, way, size, 1
            if size != SHAPES[0]:
                yield dtype, way, size, 2
    threaded = ("float32", "float64", "complex64", "complex128", "int8", "uint16", "int32", "float16")
    for threads in (2, 4, 8):
        for dtype, size in itertools.product(threaded, SHAPES[2:]):
            yield dtype, "plain", size, threads
        for dtype in ("float32", "float64"):
            yield dtype, "strassen", (900, 1000, 1100), threads
            for size in ((1000, 1000, 1000), (2048, 300, 1100), (1, 3000, 3000), (3000, 3000, 1), (17, 2000, 2000)):
                yield dtype, "plain", size, threads


def digests(dtypes: list[str]) -> dict[str, str]:
    found = {}
    for dtype, way, size, threads in cases():
        if dtype not in dtypes:
            continue
        name = f"{dtype} {way} {'x'.join(map(str, size))} {threads}"
        rng = np.random.default_rng(list(hashlib.sha256(f"{dtype}{way}{size}".encode()).digest()))
        with tw.use_threads(threads), np.errstate(all="ignore"):
            result = product(dtype, way, size, rng)
        # The last six bytes of a long double are padding.
        shown = result.astype(np.float64) if dtype == "longdouble" else result
        found[name] = hashlib.sha256(np.ascontiguousarray(shown).tobytes()).hexdigest()[:24]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="where the digests are written, or with --compare read")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--dtypes", metavar="LIST", default=",".join(DTYPES), help="joined by commas; default: all")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    if unknown := sorted(set(dtypes) - set(DTYPES)):
        parser.error(f"--dtypes {', '.join(unknown)}: must be of {', '.join(DTYPES)}")
    found = digests(dtypes)
    if not options.compare:
        about = {"machine": str(tw.info()), "products": len(found), "digests": found}
        options.file.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} products")
        return 0
    known = json.loads(options.file.read_text(encoding="utf-8"))["digests"]
    known = {name: digest for name, digest in known.items() if name.split()[0] in dtypes}
    changed = [name for name in known.keys() | found.keys() if known.get(name) != found.get(name)]
    print(f"{len(known)} products, {len(changed)} with other bits", *sorted(changed), sep="\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
