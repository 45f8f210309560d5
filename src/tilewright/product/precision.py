"""The precision that callers can request, and the error bound of each way to compute a product: |C − Ĉ| ≤ bound ·
(|A||B|).

A *path* is a way to compute a product: the dtype of the operands, and the dtype in which they are multiplied. The
error bound of a path depends only on these two dtypes and on k, and holds if nothing overflows or underflows. This
module finds the path for a ``precision``. For a number, the cheapest path whose bound is not above the number is
chosen; for "fast", the cheapest path whose bound is not above ``fast_bound``. A new path needs one line in ``PATHS``.
If the sums of the path are not computed in IEEE arithmetic, the path also needs an error in ``_sums_error``.

The sources are Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 2.2, 3.1, 3.5 and 3.6 (complex
numbers), and for sums of tensor cores Khattak & Mikaitis, arXiv 2512.07004. ``docs/error-bounds.md`` derives the
bounds.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError, did_you_mean
from .operands import is_real
from .residues import CLASSICAL, MOST_K, REALS_PER_ELEMENT, RESIDUES_IN, residue_bound

# ---- the words of precision ---------------------------------------------------------------------------------------------

ALGORITHMS = ("classical", "strassen")
PRECISIONS = ("standard", "highest", "ieee", "tf32", "fast", "invariant")
#: The precision of invariant products. It has the error bound of "standard". In addition, the bits of a row of C depend
#: only on that row of A and on B, and not on m or the number of threads.
INVARIANT = "invariant"
#: The environment variable that makes every product of "standard" precision invariant, with any value but 0.
INVARIANT_VARIABLE = "TILEWRIGHT_INVARIANT"

#: The names of precisions that only GPUs have, with the dtype of the operands and the dtype in which they are multiplied.
GPU_PRECISIONS = {"tf32": ("float32", "tf32")}
#: The dtypes in which float32 products are computed from operands of float16: SPLIT represents each number by two float16,
#: and ROUNDED by one. PLANES has the number of float16 matrices for each operand.
SPLIT, ROUNDED = "float16x2", "float16x1"
PLANES = {SPLIT: 2, ROUNDED: 1}
#: The dtypes in which float64 and complex128 products are computed from residues, with the classical error bound. The
#: header of the kernel declares only RESIDUES.
RESIDUES, COMPLEX_RESIDUES = "int8x13", "complex_int8x14"

#: For each dtype without kernels of its own, the dtype in which it is computed, which represents its values exactly.
COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "bool": "float32"}
#: For each dtype, the dtype in which ``precision="highest"`` computes. The product of two inputs of fewer than 27 bits is
#: exact in it.
WIDEST = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}


def check_words(precision: str | float, algorithm: str) -> None:
    """Raise UsageError for an unknown precision or algorithm, for a number that cannot be an error bound, and for a
    precision that the algorithm does not have."""
    for name, word, known in (("algorithm", algorithm, ALGORITHMS), ("precision", precision, PRECISIONS)):
        if name == "precision" and not isinstance(word, str):
            check_precision(word)
        elif word not in known:
            number = " (or a number, which bounds the error)" if name == "precision" else ""
            raise UsageError(f"{name} {word!r} is not known: {did_you_mean(str(word), known)}{number}")
    if (is_error_goal(precision) or precision == INVARIANT) and algorithm != "classical":
        raise UsageError(
            f"algorithm {algorithm!r} has a normwise error bound: precision {precision!r} is for 'classical'"
        )


@functools.cache
def are_all_invariant() -> bool:
    """Return whether ``$TILEWRIGHT_INVARIANT`` makes all products invariant. ``$TILEWRIGHT_INVARIANT`` is read once
    per process."""
    return os.environ.get(INVARIANT_VARIABLE, "0") not in ("", "0")


def asked_precision(precision: str | float, *, invariant: bool = False) -> str | float:
    """Return the precision for which the product is planned. The result is "invariant" instead of "standard" if the
    call or the environment variable requests invariant products.

    The function raises UsageError if the call requests an invariant product of another precision than "standard".
    """
    if precision == "standard":
        return INVARIANT if invariant or are_all_invariant() else precision
    if invariant and precision != INVARIANT:
        raise UsageError(f"precision {precision!r}: only products of 'standard' precision can be invariant")
    return precision


def is_error_goal(precision: str | float) -> bool:
    """Return whether the precision is "fast" or a number. For "fast" or a number, the planner looks for the cheapest
    path whose error bound is small enough."""
    return precision == "fast" or not isinstance(precision, str)


def takes_fastest(precision: str | float) -> bool:
    """Return whether all dtypes of ``computed_on_gpu`` are accurate enough for this precision. If all of these dtypes
    are accurate enough, the planner chooses the fastest dtype instead of the first."""
    return is_error_goal(precision) or precision in GPU_PRECISIONS


# ---- the bounds of errors --------------------------------------------------------------------------------------------

#: The unit roundoff of each dtype: the largest relative error of one rounding to nearest.
UNIT = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float16x1": 2.0**-11,
    "tf32": 2.0**-11,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
}


def _fewer_residues(dtype: str) -> dict[str, str]:
    """Those from fewer residues than the classical bound needs."""
    fewer = {name: moduli for name, (of, moduli) in RESIDUES_IN.items() if of == dtype and moduli < CLASSICAL[dtype]}
    return {f"{moduli} residues": name for name, moduli in fewer.items()}


#: For operands of each dtype: the names of ``precision`` that have their own path, the cheapest first, and the dtype in
#: which that path multiplies. Callers cannot give "narrow", "rounded" and the names of residues.
PATHS = {
    "cpu": {
        "float16": {"standard": "float32", "highest": "float64"},
        "bfloat16": {"standard": "float32", "highest": "float64"},
        "float32": {"standard": "float32", "highest": "float64"},
        "complex64": {"standard": "complex64", "highest": "complex128"},
        "float64": {"narrow": "float32", "standard": "float64"},
        "complex128": {"narrow": "complex64", "standard": "complex128"},
    },
    "gpu": {
        "float16": {"standard": "float16", "highest": "float64"},
        "bfloat16": {"standard": "bfloat16", "highest": "float64"},
        "float32": {"rounded": "float16x1", "tf32": "tf32", "standard": "float32", "highest": "float64"},
        "complex64": {"standard": "complex64", "highest": "complex128"},
        "float64": _fewer_residues("float64") | {"standard": "float64"},
        "complex128": _fewer_residues("complex128") | {"standard": "complex128"},
    },
}

#: Tensor cores add so many products and the accumulator in one instruction, of which each errs by at most
#: (1 + products/4) · 2^-23 of the sum of magnitudes.
_AT_ONCE = {"tf32": 8, "float16": 16, "float16x1": 16, "bfloat16": 16}


@dataclass(frozen=True)
class Path:
    """A way to compute a product: its word for ``precision``, the dtype in which it multiplies, and its error bound."""

    word: str
    compute: str
    bound: float

    def __str__(self) -> str:
        return f"{self.bound:.2g}·|A||B| in {self.compute}"


def path_bound(dtype: str, compute: str, k: int) -> float:
    """Return the error bound of a product with operands and result of ``dtype`` that is computed in ``compute``;
    infinity if no bound is known. If ``compute`` is "float16" or "bfloat16" on a GPU, the sums are computed in
    float32.

    >>> f"{path_bound('float32', 'float32', 1000):.1e}", f"{path_bound('float64', 'float32', 1000):.1e}"
    ('6.0e-05', '6.0e-05')
    >>> f"{path_bound('float32', 'tf32', 1000):.1e}", f"{path_bound('float32', 'float64', 1000):.1e}"
    ('1.0e-03', '6.0e-08')
    """
    if dtype not in UNIT:
        return 0.0  # integers are exact modulo their size
    if compute in RESIDUES_IN:
        of, moduli = RESIDUES_IN[compute]
        return math.sqrt(REALS_PER_ELEMENT[of]) * residue_bound(k, moduli, of) if k <= MOST_K else math.inf
    given, used, result = UNIT[dtype], UNIT[compute], 0.0
    if compute in _AT_ONCE:
        result = given if given > UNIT["float32"] else 0.0
    elif given > used:
        result = given
    operands = used if used > given else 0.0
    bound = math.expm1(2 * math.log1p(operands) + math.log1p(_sums_error(compute, k)) + math.log1p(result))
    # Lines whose magnitudes float16 does not represent are multiplied in float32.
    return max(bound, _gamma(k, UNIT["float32"])) if compute == "float16x1" else bound


def blocks_bound(stored: Sequence[str], result: str, compute: str, k: int, part: int) -> float:
    """Return the error bound of a product that is computed block by block. The operands have the dtypes ``stored``, C
    has the dtype ``result``, and blocks are multiplied in the dtype ``compute``. The dimension k is cut into parts of
    at most ``part`` elements; the products of each part are summed, and the sums of the parts are added one by one.

    Products of integers and bool are exact; integers of n bits wrap around modulo 2ⁿ. Sums of complex numbers keep the
    classical bound however k is cut. For real numbers, a product of two elements is rounded in the sums of its own
    part, and at most once for each further part. With s parts a product of two elements is rounded part + s - 1 times;
    in a single running sum it would be rounded k times. Operands that ``compute`` cannot represent are rounded when
    they are read. C is rounded once if its dtype is narrower than ``compute``.

    >>> whole, cut = (blocks_bound(("float32",) * 2, "float32", "float32", 10**6, part) for part in (10**6, 1000))
    >>> f"{whole:.1e}", f"{cut:.1e}"
    ('6.3e-02', '1.2e-04')
    >>> f"{blocks_bound(('float32',) * 2, 'float32', 'float64', 10**6, 1000):.1e}"
    '6.0e-08'
    """
    if result not in UNIT:
        return 0.0
    dtype = dtype_of_blocks(compute)
    parts = max(1, -(-k // part))
    longest, unit = -(-k // parts), UNIT[dtype]
    if compute == "float16x1":
        sums = (1 + path_bound("float32", compute, longest)) * (1 + _gamma(parts - 1, unit)) - 1
    elif dtype.startswith("complex"):
        sums = _sums_error(dtype, k)
    else:
        sums = _gamma(longest + parts - 1, unit)
    read = sum(math.log1p(unit) for each in stored if _bits(each) > _bits(dtype))
    rounded = UNIT[result] if UNIT[result] > unit else 0.0
    return math.expm1(read + math.log1p(sums) + math.log1p(rounded))


def dtype_of_blocks(compute: str) -> str:
    """Return the dtype of blocks that are multiplied in ``compute``. The dtype is float32 if numbers are split into
    parts of float16."""
    return "float32" if compute.startswith("float16x") else compute


def _bits(dtype: str) -> int:
    """Bits of the largest whole number up to which a dtype has all whole numbers."""
    return round(-math.log2(UNIT[dtype])) if dtype in UNIT else int(dtype.lstrip("uint") or 1) if "int" in dtype else 1


def fast_bound(k: int) -> float:
    """Return the error bound of ``precision="fast"``: 1.01 · 2⁻¹⁰ + k · 2⁻²⁴. Products keep this bound if operands are
    rounded to 10 bits of mantissa.

    If the bound of "standard" is wider than this bound, "fast" guarantees only the bound of "standard".

    >>> f"{fast_bound(4096):.2e}"
    '1.23e-03'
    """
    return 1.01 * 2.0**-10 + k * 2.0**-24


def check_precision(precision: object) -> None:
    """Raise UsageError for a number that cannot be the bound of a relative error."""
    if isinstance(precision, bool) or not is_real(precision) or not float(precision) > 0:
        raise UsageError(
            f"precision {precision!r:.80}: must be a word, or a positive number, which bounds the error relative to |A||B|"
        )


@functools.lru_cache(maxsize=1024)  # constants of a dtype and k
def known_paths(place: str, dtype: str, k: int) -> tuple[Path, ...]:
    """Return the paths of a product on the "cpu" or on a "gpu", the cheapest path first.

    >>> [path.compute for path in known_paths("gpu", "float32", 4096)]
    ['float16x1', 'tf32', 'float32', 'float64']
    """
    found = PATHS[place].get(dtype, {"standard": dtype})
    return tuple(Path(word, compute, path_bound(dtype, compute, k)) for word, compute in found.items())


def paths_within(precision: str | float, place: str, dtype: str, k: int) -> tuple[Path, ...]:
    """Return the paths whose error bound is within ``precision``, which is "fast" or a number; the cheapest path comes
    first. Raises UsageError if there is no such path.

    >>> [path.compute for path in paths_within(1e-4, "gpu", "float32", 500)]
    ['float32', 'float64']
    """
    known = known_paths(place, dtype, k)
    if isinstance(precision, str):
        standard = next(path.bound for path in known if path.word == "standard")
        limit = max(fast_bound(k), standard)
    else:
        limit = precision
    kept = tuple(path for path in known if path.bound <= limit)
    if not kept:
        best = min(known, key=lambda path: path.bound)
        raise UsageError(
            f"precision {precision:g}: with k = {k:,} the best bound for {dtype} is {best.bound:.2g} "
            f"(precision {best.word!r}); ask for that or more"
        )
    return kept


def promised_bound(precision: str | float, place: str, dtype: str, result: str, k: int) -> float:
    """Return the guaranteed error bound of a product with operands of ``dtype`` that is stored as ``result``. Raises
    UsageError if no bound is guaranteed.

    >>> promised_bound("tf32", "gpu", "float32", "float32", 8) == path_bound("float32", "tf32", 8)
    True
    """
    known = known_paths(place, dtype, k)
    standard = next(path.bound for path in known if path.word == "standard")
    if dtype.startswith("float8"):
        raise UsageError(f"products of {dtype} have no such bound: they cannot be verified")
    if not isinstance(precision, str):
        check_precision(precision)
        promised = float(precision)
    elif precision == "fast":
        promised = max(fast_bound(k), standard)
    else:
        promised = next((path.bound for path in known if path.word == precision), standard)
    narrower = UNIT.get(result, 0.0) > UNIT.get(dtype, 0.0) > 0
    return promised + (1 + promised) * UNIT[result] if narrower else promised


def bound_rows(place: str, dtype: str, compute: str, k: int) -> list[tuple[str, str]]:
    """Return the rows of a printed plan about error bounds: the bound of the product, and the bounds of the paths that
    were not chosen.

    >>> bound_rows("cpu", "float32", "float32", 1000)
    [('error', 'at most 6e-05·|A||B| in float32; not chosen: 6e-08·|A||B| in float64')]
    """
    lost = [
        str(path)
        for path in known_paths(place, dtype, k)
        if path.compute != compute and path.compute not in RESIDUES_IN
    ]
    chosen = Path("", compute, path_bound(dtype, compute, k))
    return [("error", f"at most {chosen}" + (f"; not chosen: {', '.join(lost)}" if lost else ""))]


def _sums_error(compute: str, k: int) -> float:
    """The error of sums of k products, in any order, relative to the sum of magnitudes."""
    if compute in _AT_ONCE:
        at_once = _AT_ONCE[compute]
        return _gamma(-(-k // at_once), (1 + at_once / 4) * 2.0**-23)
    if compute.startswith("complex"):  # each part has 2k products of real numbers, and a complex error two parts
        return math.sqrt(2) * _gamma(2 * k, UNIT[compute])
    return _gamma(k, UNIT[compute])


def _gamma(n: int, unit: float) -> float:
    """n·u / (1 − n·u): n roundings, one after another."""
    return n * unit / (1 - n * unit) if n * unit < 1 else math.inf
