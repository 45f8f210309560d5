"""The arithmetic of tensor cores: one fused sum of many products and an accumulator, with the hardware's result in
every bit.

A tensor core does not round after every product. For one sum, a tensor core aligns K products and the accumulator to
the largest exponent among these summands. The tensor core then truncates each summand towards zero after F fractional
bits, adds the truncated summands exactly, and rounds the sum once: towards zero for float32, to nearest for half
precision. The exponent of a product, for this alignment, is the sum of the exponents of its factors. If the mantissas'
product is between 2 and 4, it is not normalised before the alignment. A subnormal factor keeps its value, and has the
exponent of the smallest normal number. The number F of fractional bits depends on the generation of the GPU, and so
does the number of products in one sum.

Sources: X. Xie et al., MMA-Sim (arXiv 2511.10909); F. Khattak and M. Mikaitis, arXiv 2512.07004. For compute capability
9.0, the results of all forms of instructions were recorded on an H200, and this module reproduces every bit of them
(``tests/microscope/test_tensor_cores.py``). The rules for ``tcgen05`` are those of MMA-Sim, whose authors had a B200;
this project has not compared these rules with a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..machine.values import Array
from .floating import halves
from .rounding import NAN16, NAN32, VALUES, decode, fma64

#: The exponent of the smallest normal number of each type that can be a factor or an accumulator.
_LEAST = {
    "f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0,
}  # fmt: skip
#: The number of elements that a 32-bit register of a fragment holds (for f64, a 64-bit register).
PACKED = {"tf32": 1, "f64": 1, "f16": 2, "bf16": 2, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4, "s4": 8, "u4": 8, "b1": 32}
#: The types of 8-bit floats.
NARROW = ("e4m3", "e5m2")
#: NumPy's dtype for the results of each kind of sum.
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}
#: The NaN that a sum gives.
_CANONICAL: dict[str, Array] = {"f": np.array(NAN32).view(np.float32), "e": np.array(NAN16).view(np.float16)}
_NAMES = {np.dtype(kind).char: name for name, kind in RESULTS.items()}
#: The exponent of zero, below that of every product of other numbers.
_ZERO = -4096
#: Elements of a result that are summed together: all arrays of one step fit a core's cache.
_SLAB = 1 << 14


@dataclass(frozen=True)
class SumRule:
    """The rule by which an instruction sums: the number of fractional bits after alignment (``fraction``), the most
    products in one sum (``span``), and the number of mantissa bits in a float32 result (``kept``).

    ``as_halves`` says that the GPU has no instruction for 8-bit floats. GPUs without an instruction for 8-bit floats
    convert the floats to half precision, sum the products with k mod 4 = 0 and 1, then those with k mod 4 = 2 and 3,
    and add the accumulator afterwards, rounded to nearest.
    """

    fraction: int
    span: int
    kept: int = 23
    as_halves: bool = False


def sum_rule(instruction: str, kind: str, capability: int = 90) -> SumRule:
    """Return the rule for an instruction with factors of a type. The instruction is ``mma`` or ``wmma`` on GPUs of a
    compute capability (80, 90, …), ``wgmma`` on Hopper, or ``tcgen05`` on Blackwell.

    >>> sum_rule("wgmma", "e4m3"), sum_rule("mma", "f16", 80)
    (SumRule(fraction=13, span=32, kept=13, as_halves=False), SumRule(fraction=24, span=8, kept=23, as_halves=False))
    """
    if instruction == "tcgen05":
        return SumRule(25, 32)  # the whole of K
    if instruction == "wgmma":
        return SumRule(13, 32, 13) if kind in NARROW else SumRule(25, 8 if kind == "tf32" else 16)
    if capability >= 90:
        tf32 = 4 if instruction == "wmma" else 8  # a wmma of tf32 is compiled to two instructions
        return SumRule(25, tf32 if kind == "tf32" else 16, as_halves=kind in NARROW)
    if kind in NARROW:
        return SumRule(13, 16, 13)
    return SumRule(24, 4, 23) if kind == "tf32" else SumRule(23, 4) if capability < 75 else SumRule(24, 8)


@dataclass(frozen=True)
class TensorProduct:
    """A matrix product as an instruction computes it: the types of A and B, the type of C and D, and the modifiers
    ``satfinite``, ``and`` and ``xor``."""

    instruction: str
    kinds: tuple[str, str]
    result: str
    flags: frozenset[str] = frozenset()

    def sum(self, a: Array, b: Array, c: Array) -> Array:
        """Compute A·B + C from numbers (…, m, k) and (…, k, n). C and the result are (…, m, n) in the accumulator's
        type."""
        if self.result == "s32":
            return self._integers(a, b, c)
        if self.result == "f64":
            total = np.array(c)
            for i in range(a.shape[-1]):
                fma64(total, a[..., i, None], b[..., i, None, :], total.copy())
            return total
        rule = sum_rule(self.instruction, self.kinds[0])
        if rule.as_halves:
            return _sum_as_halves(a, b, c, rule)
        for first in range(0, a.shape[-1], rule.span):
            part = slice(first, first + rule.span)
            c = fused_sum(a[..., part], b[..., part, :], c, self.kinds, rule)
        return c

    def _integers(self, a: Array, b: Array, c: Array) -> Array:
        """Exact, then modulo 2^32 or limited to 32 bits; of bits the number of pairs that are both 1, or that differ."""
        total = (a @ b).astype(np.int64)  # below 2^24: float64 is exact
        if "xor" in self.flags:
            total = (a.sum(axis=-1)[..., None] + b.sum(axis=-2)[..., None, :]).astype(np.int64) - 2 * total
        total += c
        return (np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in self.flags else total).astype(np.int32)


def _sum_as_halves(a: Array, b: Array, c: Array, rule: SumRule) -> Array:
    """A·B + C of 8-bit floats where the GPU multiplies them as halves."""
    total, low = np.zeros_like(c), np.arange(a.shape[-1]) % 4 < 2
    for some in (low, ~low):
        total = fused_sum(a[..., some], b[..., some, :], total, ("f16", "f16"), rule)
    total = (total.astype(np.float64) + c).astype(c.dtype)  # one rounding: the sum of two floats fits float64
    total[np.isnan(total)] = _CANONICAL[c.dtype.char]
    return total


# ---- operands


def factors(bits: Array, kind: str) -> Array:
    """Convert elements of any shape, given as raw bits, to float64. The 13 low bits of tf32 are ignored.

    Elements of less than a byte are passed as 32-bit words (…, 1); the result has the shape (…, elements of a word).
    """
    if kind == "f64":
        return bits.view(np.float64)
    if kind == "tf32":
        return (bits.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind in VALUES:
        return decode(bits.view(np.uint8), kind)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    if kind in ("s4", "u4", "b1"):
        width = 32 // PACKED[kind]
        shifts = np.arange(0, 32, width, dtype=np.uint32)
        parts = (bits >> shifts & np.uint32((1 << width) - 1)).astype(np.float64)
        return parts - 16 * (parts >= 8) if kind == "s4" else parts
    return halves(bits.view(np.float16 if kind == "f16" else np.uint16), kind)


def exponents(x: Array, kind: str) -> Array:
    """Return the exponent of each number of a type, as int16. The exponent of zero is below all other exponents.

    >>> exponents(np.array([1.5, 2**-24, 0.0]), "f16").tolist()
    [0, -14, -4096]
    """
    found = ((x.view(np.int64) >> 52) & 0x7FF).astype(np.int16) - np.int16(1023)
    np.maximum(found, _LEAST[kind], out=found)
    found[x == 0] = _ZERO
    return found


def scales(codes: Array, kind: str) -> Array:
    """Return the scales of blocks as float64. The type of scales is ``ue8m0`` (powers of two; 255 means NaN) or
    ``ue4m3`` (whose sign is ignored).

    >>> scales(np.array([127, 130], np.uint8), "ue8m0").tolist(), scales(np.array([0x38], np.uint8), "ue4m3").tolist()
    ([1.0, 8.0], [1.0])
    """
    if kind == "ue4m3":
        return np.abs(decode(codes, "e4m3"))
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int64) - 127))


# ---- sums


def fused_sum(
    a: Array,
    b: Array,
    c: Array,
    kinds: tuple[str, str],
    rule: SumRule,
    shifts: tuple[Array, Array] | None = None,
) -> Array:
    """Compute one fused sum of the k products and the accumulator; arguments and result are as for
    ``TensorProduct.sum``. ``shifts`` are the exponents of scales that multiply rows of A (…, m) and columns of B (…,
    n).

    >>> a, b = np.ones((1, 2)), np.array([[1.0], [-2.0**-26]])
    >>> fused_sum(a, b, np.zeros((1, 1), np.float32), ("f16", "f16"), SumRule(25, 16)).item()
    1.0
    """
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, b = a.reshape(-1, m, k), b.reshape(-1, k, n)
    wide = c.reshape(-1, m, n).astype(np.float64)
    ea, eb, ec = exponents(a, kinds[0]), exponents(b, kinds[1]), exponents(wide, _NAMES[c.dtype.char])
    if shifts is not None:
        of_a, of_b = shifts[0].reshape(-1, m, 1), shifts[1].reshape(-1, 1, n)
        a, b = np.ldexp(a, of_a), np.ldexp(b, of_b)
        ea, eb = np.where(a == 0, ea, ea + of_a).astype(np.int16), np.where(b == 0, eb, eb + of_b).astype(np.int16)
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(wide).all())
    out = np.empty(wide.shape, c.dtype)
    rows, batch = max(1, _SLAB // n), max(1, _SLAB // (m * n))
    for first in range(0, len(a), batch):
        for top in range(0, m, rows):
            mine, other = (slice(first, first + batch), slice(top, top + rows)), slice(first, first + batch)
            total = _aligned(a[mine], b[other], wide[mine], ea[mine], eb[other], ec[mine], rule.fraction)
            if not finite:
                _replace_specials(total, a[mine], b[other], wide[mine])
            out[mine] = _rounded(total, rule, c.dtype == np.float16)
    return out.reshape(c.shape)


def block_scaled_sum(a: Array, b: Array, c: Array, kinds: tuple[str, str], of_a: Array, of_b: Array) -> Array:
    """Compute A·B + C for block-scaled types in float32, from numbers (…, m, k) and (…, k, n) and scales of A (…, m, s)
    and of B (…, n, s).

    With one scale for each row, the result is a fused sum in which the exponents of the scales are added to the
    exponents of the products. With several scales for each row, each group of 16 products is summed exactly and the sum
    is then scaled. The scaled sums of all groups, and C, are truncated 35 bits below the largest exponent among C and
    the products of scales, and then added (MMA-Sim).
    """
    if of_a.shape[-1] == 1:
        shifts = (np.frexp(of_a[..., 0])[1] - 1, np.frexp(of_b[..., 0])[1] - 1)
        total = fused_sum(a, b, c, kinds, SumRule(25, a.shape[-1]), shifts)
    else:
        terms, exponents_of = [c.astype(np.float64)], [exponents(c.astype(np.float64), "f32").astype(np.int64)]
        for i in range(a.shape[-1] // 16):
            part, at = slice(16 * i, 16 * i + 16), i * of_a.shape[-1] * 16 // a.shape[-1]
            x, y = of_a[..., at][..., :, None], of_b[..., at][..., None, :]
            terms.append((a[..., part] @ b[..., part, :]) * x * y)
            exponents_of.append(np.frexp(x)[1] + np.frexp(y)[1] - 2)
        largest = np.maximum(np.maximum.reduce(np.broadcast_arrays(*exponents_of)), -300)
        total64 = sum(np.trunc(np.ldexp(term, 35 - largest)) for term in terms)
        total = _rounded(np.ldexp(total64, largest - 35), SumRule(35, 64), half=False)
    nan_rows, nan_columns = (np.asarray(np.isnan(of).any(axis=-1)) for of in (of_a, of_b))
    nan = nan_rows[..., :, None] | nan_columns[..., None, :]
    return np.where(nan, _CANONICAL["f"], total).astype(np.float32)


def _aligned(a: Array, b: Array, c: Array, ea: Array, eb: Array, ec: Array, fraction: int) -> Array:
    """The sum of the aligned and cut terms, exact, as float64 (…, m, n)."""
    largest = ec.copy()
    some = np.empty_like(largest)
    for i in range(a.shape[-1]):
        np.add(ea[..., i, None], eb[..., i, None, :], out=some)
        np.maximum(largest, some, out=largest)
    np.maximum(largest, -300, out=largest)  # all terms are zero
    # Times 2^(fraction - largest), every term is cut to a whole number; all of them are exact in float64.
    scale = ((fraction + 1023 - largest.astype(np.int64)) << 52).view(np.float64)
    total, term = np.trunc(c * scale), np.empty(c.shape)
    for i in range(a.shape[-1]):
        np.multiply(a[..., i, None], b[..., i, None, :], out=term)
        term *= scale
        np.trunc(term, out=term)
        total += term
    total /= scale
    total += 0.0  # a sum of zero has no sign
    return total


def _replace_specials(total: Array, a: Array, b: Array, c: Array) -> None:
    """Where a term is infinite or no number: infinity or NaN, as IEEE 754 adds them."""
    plain = np.matmul(a, b) + c
    where = ~np.isfinite(plain)
    total[where] = plain[where]


def _rounded(total: Array, rule: SumRule, half: bool) -> Array:
    """The exact sum rounded to half precision, to nearest, or cut to float32."""
    if half:
        rounded = total.astype(np.float16)
        rounded[np.isnan(total)] = _CANONICAL["e"]
        return rounded
    size = np.abs(total)
    cut = total.astype(np.float32)
    bits = cut.view(np.uint32)
    # Rounding to nearest may have gone away from zero, also from below 2^128 to infinity: one step back.
    bits -= ((np.abs(cut) > size) & (size < 2.0**128)).astype(np.uint32)
    if rule.kept < 23:
        bits &= np.uint32(-(1 << (23 - rule.kept)) & 0xFFFFFFFF)
    cut += np.float32(0)
    bits[np.isnan(total)] = NAN32
    return cut
