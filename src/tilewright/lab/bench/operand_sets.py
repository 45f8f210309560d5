"""The operands of a benchmark: seeded random matrices, or the user's own. There are so many copies of the operands that
no cache still holds a copy when it is used again."""

from __future__ import annotations

import contextlib
import hashlib
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DTypeError, OperandError, TilewrightError, UsageError
from ...host.machine import machine
from ...large.files import open_matrix, whole_matrix
from ...product.operands import aligned_copy, aligned_empty
from ..inputs.options import LARGEST, Shape
from ..verify.verify import oracle

#: The bytes of all sets together, as a multiple of the last-level cache, so that a set is no longer cached when it is used
#: again.
ROTATION = 2
_MOST_SETS = 16_384


def set_bytes(shape: Shape, itemsize: int) -> int:
    """Return the bytes of one set of operands, which has A, B, and two matrices C (the kernel's and the
    reference's)."""
    m, n, k = shape
    return (m * k + k * n + 2 * m * n) * itemsize


def sets_needed(shape: Shape, itemsize: int) -> int:
    """Return the number of sets of operands that a cell uses in turn; 1 if a single set is at least ROTATION times the
    cache."""
    cache = machine().l3 or machine().l2 or 32 << 20
    return min(_MOST_SETS, max(1, math.ceil(ROTATION * cache / max(1, set_bytes(shape, itemsize)))))


def read_operands(paths: tuple[Path, Path]) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """Read the user's matrices; return them and the text that names them in the record: file names, and a digest of
    their contents.

    Raises UsageError if the matrices cannot be multiplied, DTypeError if they are neither float32 nor float64,
    OperandError if an element is not finite, and the error of ``open_matrix`` for a file that holds no matrix.
    """
    a, b = (_load(path) for path in paths)
    if a.shape[1] != b.shape[0]:
        raise UsageError(f"operands: A is {a.shape}, B is {b.shape}: A's columns must equal B's rows")
    if max(*a.shape, *b.shape) > LARGEST:  # a matrix without elements can have a side of 2^60
        raise UsageError(f"operands: A is {a.shape}, B is {b.shape}: a size is at most {LARGEST:,}")
    contents = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            contents.update(hashlib.file_digest(file, "sha256").digest())
    names = " ".join(path.name for path in paths)
    return (a, b), f"{names} (sha256 {contents.hexdigest()[:12]})"


def _load(path: Path) -> np.ndarray:
    try:
        with contextlib.closing(open_matrix(path)) as source:
            if source.dtype.name not in ("float32", "float64"):
                raise DTypeError(f"{path} has dtype {source.dtype}: it must be float32 or float64")
            matrix = whole_matrix(source)
        bad = np.argwhere(~np.isfinite(matrix))
        if bad.size:
            row, column = bad[0]
            raise OperandError(f"{path} holds {matrix[row, column]} at [{row}, {column}]: every element must be finite")
    except TilewrightError as error:
        raise type(error)(f"operands: {error}") from None
    return matrix


def check_range(a: np.ndarray, b: np.ndarray, dtype: str) -> None:
    """Raise UsageError if an element of the product could overflow, because every kernel's result would then look
    wrong.

    Integer operands are not checked, because their products wrap around by definition.
    """
    if np.dtype("float32" if dtype == "bfloat16" else dtype).kind in "iu":
        return
    largest = float(np.finfo("float32" if dtype == "bfloat16" else dtype).max)  # bfloat16's is about float32's
    in_a, in_b = (float(max(x.max(initial=0), -x.min(initial=0))) for x in (a, b))
    if not max(in_a, in_b, in_a * in_b * a.shape[1]) <= largest:
        rule = f"the largest of A times that of B times k must stay within {dtype}'s {largest:.3g}"
        raise UsageError(f"operands: {rule}, got {in_a:.3g}, {in_b:.3g} and {a.shape[1]}; scale them")


@dataclass
class OperandSets:
    """The sets of operands of one shape and dtype. ``c`` is the kernel's output and ``reference_c`` is the reference's
    output; both hold NaN until they are written."""

    a: list[np.ndarray]
    b: list[np.ndarray]
    c: list[np.ndarray]
    reference_c: list[np.ndarray]
    seed: int
    oracles: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._original = self._checksums()

    @classmethod
    def random(cls, shape: Shape, dtype: str, seed: int, count: int | None = None) -> OperandSets:
        """Make random operands: real and imaginary parts uniform in [−1, 1), integers uniform over their whole range.
        The operands depend only on the seed, the shape and the number ``count`` of sets (None: as many sets as are
        needed), so that every kernel and every run gets the same operands."""
        m, n, k = shape
        rng = np.random.default_rng([seed, m, n, k])
        count = sets_needed(shape, np.dtype(dtype).itemsize) if count is None else count
        a = [_uniform(rng, (m, k), dtype) for _ in range(count)]
        b = [_uniform(rng, (k, n), dtype) for _ in range(count)]
        return cls(a, b, *_outputs(shape, dtype, count), seed)

    @classmethod
    def from_arrays(cls, a: np.ndarray, b: np.ndarray, dtype: str, seed: int) -> OperandSets:
        """Make operands of the user's matrices, in several copies if one pair would stay in the cache."""
        shape = (a.shape[0], b.shape[1], a.shape[1])
        count = sets_needed(shape, np.dtype(dtype).itemsize)
        a_copies, b_copies = ([aligned_copy(x, dtype) for _ in range(count)] for x in (a, b))
        return cls(a_copies, b_copies, *_outputs(shape, dtype, count), seed)

    def __len__(self) -> int:
        return len(self.a)

    def oracle(self, index: int) -> Any:
        """The oracle of one set. The oracle's result is computed at the first call."""
        if index not in self.oracles:
            self.oracles[index] = oracle(self.a[index], self.b[index], seed=self.seed)
        return self.oracles[index]

    def changed(self) -> str:
        """Return the names of the operands that a kernel has changed; a checksum of the first set finds them."""
        pairs = zip("AB", self._original, self._checksums(), strict=True)
        return " and ".join(name for name, before, now in pairs if before != now)

    def _checksums(self) -> tuple[int, int]:
        return zlib.crc32(self.a[0].data), zlib.crc32(self.b[0].data)

    def poison(self) -> None:
        """Fill every output of the kernel with NaN."""
        for c in self.c:
            poison(c)


def poison(c: np.ndarray) -> None:
    """Fill an output with NaN, so that an element that the kernel does not write is found. An output of integers is
    filled with their largest number."""
    c.fill({"c": complex(np.nan, np.nan), "f": np.nan}[c.dtype.kind] if c.dtype.kind in "cf" else np.iinfo(c.dtype).max)


def _uniform(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    x = aligned_empty(shape, dtype)
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        x[...] = rng.integers(limits.min, limits.max, shape, x.dtype, endpoint=True)
        return x
    if x.dtype == np.float16:
        x[...] = rng.uniform(-1, 1, shape)
        return x
    real = x.view(x.real.dtype) if x.dtype.kind == "c" else x
    rng.random(dtype=real.dtype, out=real)
    real *= 2
    real -= 1
    return x


def _outputs(shape: Shape, dtype: str, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    m, n, _ = shape
    outputs = [aligned_empty((m, n), dtype) for _ in range(2 * count)]
    for x in outputs:
        poison(x)
    return outputs[:count], outputs[count:]
