"""Instructions that move and convert: values between all types, and addresses between memory spaces (PTX ISA 9.7.9).

``cvt`` rounds and saturates as the PTX ISA says (9.7.9.21). ``mapa`` and ``getctarank`` convert addresses in the shared
memory of other blocks of a cluster (9.7.9.23, 9.7.9.24).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..assembly.instructions import SIZES, Instruction, operand_tokens
from ..machine.lanes import Lanes
from ..machine.spaces import FIRST_RANK, RANK_BIT, WINDOW, address_in
from ..machine.values import DTYPES, Array, Ints
from ._table import (
    BITS,
    INTS,
    Compute,
    Step,
    UnknownInstruction,
    check_modifiers,
    destination,
    elementwise,
    size_of,
    step,
)
from .floating import halves, put_halves, saturate
from .rounding import (
    MODES,
    NAN32,
    bf16_to_f32,
    canonical,
    converted,
    decode,
    directed64,
    encode,
    flush,
    narrow32,
    odd_sum,
    two_sum,
)
from .tensor_core import scales

# ---- moves of values -------------------------------------------------------------------------------------------------


@step("mov", (*INTS, *BITS, "b128", "f32", "f64", "pred"))
def _mov(ins: Instruction, lanes: Lanes) -> Step:
    kind, (target, source) = ins.parts[-1], ins.operands
    if len(ins.parts) > 2:
        raise UnknownInstruction(ins)
    if kind == "b128":
        return _move_wide(ins, lanes)
    if target.startswith("{") or source.startswith("{"):
        return _pack_vector(ins, lanes)

    def copy(out: Array, a: Array) -> None:
        out[...] = a

    return elementwise(lanes, ins, target, kind, copy, [lanes.source(source, kind, ins)])


def _pack_vector(ins: Instruction, lanes: Lanes) -> Step:
    """``mov.b64 %rd1, {%r1, %r2}`` and back: the first element is the lowest."""
    kind, (target, given) = ins.parts[-1], ins.operands
    whole, vector = (given, target) if target.startswith("{") else (target, given)
    names = operand_tokens(vector[1:-1])
    part = size_of(kind) // max(1, len(names))
    if size_of(kind) > 8 or part * len(names) != size_of(kind):
        raise UnknownInstruction(ins, "packs sizes that are not supported")
    if whole is target:
        packed, _, wider = destination(lanes, ins, target, f"b{8 * size_of(kind)}")
        if wider:
            raise UnknownInstruction(ins, "packs into a wider register")
        slots = packed.view(f"u{part}")
        inputs = [lanes.source(n, f"b{8 * part}", ins) for n in names]

        def pack(sel: Ints | None) -> None:
            values = [x if sel is None or x.ndim == 0 else x[sel] for x in inputs]
            values = [np.array(x) for x in values]  # the target may be one of the sources
            for i, x in enumerate(values):
                slots[i :: len(names)][slice(None) if sel is None else sel] = x

        return pack
    source = lanes.source(whole, f"b{8 * size_of(kind)}", ins)
    outs = [destination(lanes, ins, n, f"b{8 * part}")[0] for n in names]
    shifts = [source.dtype.type(8 * part * i) for i in range(len(names))]

    def unpack(sel: Ints | None) -> None:
        value = np.array(source if sel is None or source.ndim == 0 else source[sel])
        for out, shift in zip(outs, shifts, strict=True):
            out[slice(None) if sel is None else sel] = (value >> shift).astype(f"u{part}")

    return unpack


def _move_wide(ins: Instruction, lanes: Lanes) -> Step:
    """``mov.b128``: a register of 128 bits, or its two halves of 64."""
    target, source = ins.operands
    if target.startswith("{"):
        outs, wide = (
            [destination(lanes, ins, n, "b64")[0] for n in operand_tokens(target[1:-1])],
            lanes.wide_register(source, ins),
        )

        def unpack(sel: Ints | None) -> None:
            some = slice(None) if sel is None else sel
            for i, out in enumerate(outs):
                out[some] = wide[some, i]

        return unpack
    whole = lanes.wide_register(target, ins)
    if not source.startswith("{"):
        other = lanes.wide_register(source, ins)
        return lambda sel: np.copyto(whole, other) if sel is None else whole.__setitem__(sel, other[sel])
    halves_of = [lanes.source(n, "b64", ins) for n in operand_tokens(source[1:-1])]

    def pack(sel: Ints | None) -> None:
        some = slice(None) if sel is None else sel
        for i, x in enumerate(halves_of):
            whole[some, i] = x if x.ndim == 0 else x[some]

    return pack


# ---- conversions -----------------------------------------------------------------------------------------------------

_INTEGERS = tuple(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))
_REALS = ("f16", "bf16", "f32", "f64")
_FP8_PAIRS = ("e4m3x2", "e5m2x2")
#: Pairs of narrower floats, and of scales, from compute capability 10.0 on: the type that holds a pair, and bits of one.
_NARROW_PAIRS = {"e2m3x2": ("b16", 8), "e3m2x2": ("b16", 8), "e2m1x2": ("b8", 4), "ue8m0x2": ("b16", 8)}
_ROUND_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _limits(kind: str) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    bits = 8 * SIZES[kind]
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _int_to_int(to_kind: str, from_kind: str, *, clamp: bool) -> Callable[[Array], Array]:
    low, high = _limits(to_kind)
    source_low, source_high = _limits(from_kind)
    bounds = (max(low, source_low), min(high, source_high))

    def convert(a: Array) -> Array:
        if clamp:
            a = np.clip(a, a.dtype.type(bounds[0]), a.dtype.type(bounds[1]))
        return a.astype(DTYPES[to_kind])

    return convert


def _float_to_int(to_kind: str, from_kind: str, rounding: str) -> Callable[[Array], Array]:
    """Round and clamp to the range. NaN becomes 0, or, if either type has 64 bits, the integer with only its highest bit
    set."""
    low, high = _limits(to_kind)
    wide = from_kind == "f64" or to_kind[1:] == "64"
    of_nan = np.array((low or high // 2 + 1) if wide else 0, DTYPES[to_kind])

    def convert(a: Array) -> Array:
        x = _ROUND_TO_INTEGER[rounding](halves(a, from_kind) if from_kind in ("f16", "bf16") else a.astype(np.float64))
        inside = np.where((x >= float(low)) & (x < float(high + 1)), x, 0.0).astype(DTYPES[to_kind])
        inside = np.where(x >= float(high + 1), DTYPES[to_kind].type(high), inside)
        inside = np.where(x < float(low), DTYPES[to_kind].type(low), inside)
        return np.where(np.isnan(x), of_nan, inside)

    return convert


def _to_float(to_kind: str, mode: str, out: Array, x: Array) -> None:
    """Write ``x`` to a float type, rounded once. ``x`` is float64 (exact, or rounded to odd so that rounding again is
    correct), a type whose values float64 holds exactly, or 64-bit integers.

    Of a 64-bit integer float64 holds both halves exactly: to float64 their sum is rounded in the mode, to a narrower type
    first to odd, and then in the mode."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        upper = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
        lower = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
        if to_kind == "f64":
            total, missing = two_sum(upper, lower)
            out[...] = total if mode == "rn" else directed64(total, np.sign(missing), mode)
            return
        x = odd_sum(upper, lower)
    if to_kind == "f64":
        out[...] = x
    elif to_kind == "f32":
        out[...] = x if mode == "rn" else narrow32(x.astype(np.float64), mode)
    else:
        put_halves(out, x.astype(np.float64), to_kind, mode)


@step("cvt", (*_INTEGERS, *_REALS, *_FP8_PAIRS, *_NARROW_PAIRS, "f16x2", "bf16x2", "b32"))
def _cvt(ins: Instruction, lanes: Lanes) -> Step:
    """``cvt``: chooses among packing, pairs of 8-bit floats, pairs of halves or tf32, and one number to one number."""
    if "pack" in ins.parts:
        return _pack(ins, lanes)
    to_kind, from_kind = ins.parts[-2:]
    flags = set(ins.parts[1:-2])
    if flags - {*MODES, *_ROUND_TO_INTEGER, "ftz", "sat", "satfinite", "rna", "relu"}:
        raise UnknownInstruction(ins)
    if to_kind in _NARROW_PAIRS or from_kind in _NARROW_PAIRS:
        return _convert_narrow_pairs(ins, lanes, to_kind, from_kind, flags)
    if to_kind in _FP8_PAIRS or from_kind in _FP8_PAIRS:
        return _convert_fp8_pairs(ins, lanes, to_kind, from_kind, flags)
    if to_kind in ("f16x2", "bf16x2") or to_kind == "tf32":
        return _convert_pairs_or_tf32(ins, lanes, to_kind, flags)
    relu = to_kind in ("f16", "bf16") and from_kind == "f32"
    if not {to_kind, from_kind} <= {*_INTEGERS, *_REALS} or flags & {"rna", "satfinite", *(() if relu else ("relu",))}:
        raise UnknownInstruction(ins)
    if len(ins.operands) != 2:
        raise UnknownInstruction(ins)
    source = lanes.source(ins.operands[1], from_kind, ins)
    if to_kind in _INTEGERS:
        convert = _to_integer(ins, to_kind, from_kind, flags)

        def compute(out: Array, a: Array) -> None:
            out[...] = convert(a)

    else:
        compute = _to_real(to_kind, from_kind, flags)
    return elementwise(lanes, ins, ins.operands[0], to_kind, compute, [source])


def _to_integer(ins: Instruction, to_kind: str, from_kind: str, flags: set[str]) -> Callable[[Array], Array]:
    if from_kind in _INTEGERS:
        return _int_to_int(to_kind, from_kind, clamp="sat" in flags)
    rounding = next((f for f in flags if f in _ROUND_TO_INTEGER), "")
    if not rounding:
        raise UnknownInstruction(ins, "needs a rounding mode to an integer, such as .rzi")
    convert = _float_to_int(to_kind, from_kind, rounding)
    return (lambda a: convert(flush(a))) if from_kind == "f32" and "ftz" in flags else convert


def _to_real(to_kind: str, from_kind: str, flags: set[str]) -> Compute:
    """A number to a float type. The order of the steps is that of the hardware: flush subnormal f32 inputs (.ftz), round
    to an integer (.rni …), clamp to [0, 1] (.sat), set negatives to 0 (.relu), convert, flush the result (.ftz), set the
    bits of a NaN: converted if f64 takes part, else the canonical NaN of f32."""
    if not flags and (to_kind, from_kind) in _COPIED_BITS:
        return _copy_bits
    rounding = next((f for f in flags if f in _ROUND_TO_INTEGER and from_kind in _REALS), "")
    mode = next((f for f in MODES if f in flags), "rn")
    keeps_nans = "f64" in (to_kind, from_kind) and from_kind in _REALS

    def compute(out: Array, a: Array) -> None:
        if from_kind == "f32" and "ftz" in flags:
            a = np.array(flush(a))
            canonical(a)
        x = halves(a, from_kind) if from_kind in ("f16", "bf16") else a
        if rounding:
            x = _ROUND_TO_INTEGER[rounding](x)
        if "sat" in flags:
            x = saturate(x)
        if "relu" in flags:
            x = np.where(x <= 0, x.dtype.type(0), x)
        nan = np.isnan(x) if keeps_nans else np.array(False)
        bits = converted(np.asarray(a).view(f"u{SIZES[from_kind]}"), from_kind, to_kind) if nan.any() else None
        _to_float(to_kind, mode, out, x)
        if to_kind == "f32" and "ftz" in flags:
            out[...] = flush(out)
        if bits is not None:
            np.copyto(out.view(bits.dtype), bits, where=nan)
        elif to_kind == "f32":
            canonical(out)

    return compute


#: Conversions that are moves if they have no modifier: they do not change a NaN.
_COPIED_BITS = {("f32", "f32"), ("f64", "f64"), ("f32", "bf16")}


def _copy_bits(out: Array, a: Array) -> None:
    out[...] = a if a.dtype == out.dtype else bf16_to_f32(a)


def _convert_pairs_or_tf32(ins: Instruction, lanes: Lanes, to_kind: str, flags: set[str]) -> Step:
    """Pairs of halves from two floats, the first to the upper half; tf32, which keeps 10 bits of a float's mantissa."""
    sources = [lanes.source(o, "f32", ins) for o in ins.operands[1:]]
    if to_kind == "tf32":
        if flags - {"rna", "rn", "rz", "relu"} or len(sources) != 1:
            raise UnknownInstruction(ins)

        def to_tf32(out: Array, a: Array) -> None:
            if "relu" in flags:
                a = np.where(a <= 0, np.float32(0), a)
            bits = np.asarray(a).view(np.uint32)
            half: Array = np.array(0 if "rz" in flags else 0x1000, np.uint32)
            if "rn" in flags:
                half = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
            # rna truncates the payload of a NaN, which may leave infinity; the other modes truncate the canonical NaN.
            if "rna" not in flags:
                bits = np.where(np.isnan(a), NAN32, bits)
            out[...] = np.where(np.isfinite(a), bits + half, bits) & np.uint32(0xFFFFE000)

        return elementwise(lanes, ins, ins.operands[0], "b32", to_tf32, sources)
    if ins.parts[-1] != "f32" or len(sources) != 2 or flags - {"rn", "rz", "relu"}:
        raise UnknownInstruction(ins)
    mode = "rz" if "rz" in flags else "rn"

    def pair(out: Array, high: Array, low: Array) -> None:
        put_halves(out, _positive(_pairs((high, low), "f32", out.size), flags).reshape(-1), to_kind, mode)

    return elementwise(lanes, ins, ins.operands[0], to_kind, pair, sources)


def _convert_fp8_pairs(ins: Instruction, lanes: Lanes, to_kind: str, from_kind: str, flags: set[str]) -> Step:
    """Pairs of 8-bit floats from two floats (the first goes to the upper byte) or a pair of halves, and back."""
    pairs = to_kind if to_kind in _FP8_PAIRS else from_kind
    kind = pairs[:4]

    if from_kind in _FP8_PAIRS:
        if to_kind != "f16x2" or flags - {"rn", "relu"}:
            raise UnknownInstruction(ins)

        def widen(out: Array, a: Array) -> None:
            x = _positive(decode(np.array(a, np.uint16, ndmin=1).view(np.uint8), kind), flags)
            put_halves(out, x, "f16x2")

        return elementwise(lanes, ins, ins.operands[0], "f16x2", widen, [lanes.source(ins.operands[1], "b16", ins)])
    count = {"f32": 2, "f16x2": 1}.get(from_kind)
    if len(ins.operands) - 1 != count or flags - {"rn", "satfinite", "relu"} or "satfinite" not in flags:
        raise UnknownInstruction(ins)

    def narrow(out: Array, *inputs: Array) -> None:
        both = _pairs(inputs, from_kind, out.size)
        out[...] = encode(_positive(both, flags), kind).reshape(-1).view(np.uint16)

    sources = [lanes.source(o, from_kind, ins) for o in ins.operands[1:]]
    return elementwise(lanes, ins, ins.operands[0], "b16", narrow, sources)


def _convert_narrow_pairs(ins: Instruction, lanes: Lanes, to_kind: str, from_kind: str, flags: set[str]) -> Step:
    """Pairs of floats of 6 or 4 bits, or of scales, from two floats or a pair of bfloat16, the first to the upper part; and
    back to pairs of half precision, or of bfloat16."""
    pairs = to_kind if to_kind in _NARROW_PAIRS else from_kind
    (container, bits), kind = _NARROW_PAIRS[pairs], pairs[:-2]
    mask = np.uint8((1 << bits) - 1)

    if from_kind in _NARROW_PAIRS:
        if to_kind != ("bf16x2" if kind == "ue8m0" else "f16x2") or flags - {"rn", "relu"}:
            raise UnknownInstruction(ins)

        def widen(out: Array, a: Array) -> None:
            words = np.broadcast_to(np.asarray(a), out.shape).astype(np.uint16)
            codes = np.stack([words, words >> np.uint16(bits)], axis=-1).astype(np.uint8) & mask
            numbers = scales(codes, kind) if kind == "ue8m0" else decode(codes, kind)
            put_halves(out, _positive(numbers, flags).reshape(-1), to_kind)

        return elementwise(lanes, ins, ins.operands[0], to_kind, widen, [lanes.source(ins.operands[1], container, ins)])
    modes = {"rz", "rp"} if kind == "ue8m0" else {"rn"}
    count = {"f32": 2, "bf16x2": 1}.get(from_kind) if kind == "ue8m0" or from_kind == "f32" else None
    if len(ins.operands) - 1 != count or flags - {*modes, "satfinite", "relu"} or "satfinite" not in flags:
        raise UnknownInstruction(ins)

    def narrow(out: Array, *inputs: Array) -> None:
        both = _pairs(inputs, from_kind, out.size)
        codes = _powers_of_two(both, "rp" in flags) if kind == "ue8m0" else encode(_positive(both, flags), kind)
        out[...] = (codes[:, 1].astype(np.uint16) << np.uint16(bits) | codes[:, 0]).astype(out.dtype)

    sources = [lanes.source(o, from_kind, ins) for o in ins.operands[1:]]
    return elementwise(lanes, ins, ins.operands[0], container, narrow, sources)


def _pairs(inputs: Sequence[Array], kind: str, count: int) -> Array:
    """Pairs of numbers (count, 2), the lower part first: of two floats, the first of which is the upper part, or of a
    register with two halves."""
    both = np.empty((count, 2))
    if kind == "f32":
        both[:, 1], both[:, 0] = inputs
    else:
        both[...] = halves(inputs[0], kind).reshape(-1, 2)
    return both


def _positive(x: Array, flags: set[str]) -> Array:
    """With ``.relu`` negative numbers are 0."""
    return np.where(x <= 0, 0.0, x) if "relu" in flags else x


def _powers_of_two(x: Array, up: bool) -> Array:
    """The exponents of magnitudes as ``ue8m0``, rounded down or up to a power of two; NaN gives 255."""
    fraction, exponent = np.frexp(np.abs(x))
    exponent = exponent - 1 + (up & (fraction > 0.5))
    codes = np.clip(np.where(x == 0, 0, exponent + 127), 0, 254).astype(np.uint8)
    return np.where(np.isnan(x), np.uint8(255), np.where(np.isinf(x), np.uint8(254), codes))


def _pack(ins: Instruction, lanes: Lanes) -> Step:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: b, a (both saturated) and the low bits of c, from the lowest bits upwards."""
    parts = ins.parts
    kind = parts[3] if len(parts) > 4 else ""
    more = kind in ("u8", "s8")
    if parts[1:3] != ("pack", "sat") or kind not in ("u8", "s8", "u16", "s16") or parts[4:] != ("s32", *["b32"] * more):
        raise UnknownInstruction(ins)
    bits, (low, high) = 8 * SIZES[kind], _limits(kind)
    if len(ins.operands) != 3 + more:
        raise UnknownInstruction(ins)
    sources = [lanes.source(o, t, ins) for o, t in zip(ins.operands[1:], ("s32", "s32", "b32"), strict=False)]

    def pack(out: Array, a: Array, b: Array, c: Array | None = None) -> None:
        x, y = (np.clip(v, low, high).astype(np.int64) & ((1 << bits) - 1) for v in (a, b))
        out[...] = x << bits | y if c is None else (c.astype(np.int64) << 2 * bits | x << bits | y) & 0xFFFFFFFF

    return elementwise(lanes, ins, ins.operands[0], "b32", pack, sources)


# ---- addresses -------------------------------------------------------------------------------------------------------


@step("cvta", ("u64",))
def _cvta(ins: Instruction, lanes: Lanes) -> Step:
    """Turn an address of a space into a generic one, or back: add or subtract the base of the space's window."""
    to = "to" in ins.parts
    space = ins.parts[2] if to else ins.parts[1]
    if space not in ("global", *WINDOW):
        raise UnknownInstruction(ins)
    offset = np.int64(WINDOW.get(space, 0))
    source = lanes.source(ins.operands[1], "s64", ins)

    def compute(out: Array, a: Array) -> None:
        np.add(a, -offset if to else offset, out=out)

    return elementwise(lanes, ins, ins.operands[0], "s64", compute, [source])


@step("isspacep")
def _isspacep(ins: Instruction, lanes: Lanes) -> Step:
    space = ins.parts[1] if len(ins.parts) > 1 else ""
    if space not in ("global", *WINDOW):
        raise UnknownInstruction(ins)
    number = WINDOW.get(space, 0) >> 56
    source = lanes.source(ins.operands[1], "s64", ins)
    if space == "shared" and "cluster" not in ins.parts:
        # Of shared memory only the own block's, by its own address or by that in the cluster.
        own = (WINDOW["shared"] >> RANK_BIT) + lanes.cluster.rank + FIRST_RANK

        def compute(out: Array, a: Array, mine: Array) -> None:
            block = a >> np.int64(RANK_BIT)
            out[...] = (block == WINDOW["shared"] >> RANK_BIT) | (block == mine)

        return elementwise(lanes, ins, ins.operands[0], "pred", compute, [source, own])

    def anywhere(out: Array, a: Array) -> None:
        out[...] = (a >> np.int64(56)) == number

    return elementwise(lanes, ins, ins.operands[0], "pred", anywhere, [source])


_ADDRESSES = ("u32", "u64")


@step("mapa", _ADDRESSES)
def _mapa(ins: Instruction, lanes: Lanes) -> Step:
    """The address of the same variable in the shared memory of another block, as a shared or a generic address."""
    generic, kind = "shared" not in check_modifiers(ins, ("shared", "cluster")), ins.parts[-1]
    out = destination(lanes, ins, ins.operands[0], kind)[0]
    address, rank = lanes.source(ins.operands[1], kind, ins), lanes.source(ins.operands[2], "u32", ins)
    window = out.dtype.type(WINDOW["shared"] if generic else 0)

    def map_address(sel: Ints | None) -> None:
        size = lanes.size if sel is None else sel.size
        a, r = (np.broadcast_to(x if sel is None or x.ndim == 0 else x[sel], size) for x in (address, rank))
        bad = r >= lanes.cluster.size
        if bad.any():
            text = f"a cluster has {lanes.cluster.size} blocks, and none of rank {int(r[np.argmax(bad)])}: {ins.text}"
            lanes.reports.report("out of bounds", ins, sel, bad, None, text)
        out[slice(None) if sel is None else sel] = address_in(a, np.minimum(r, FIRST_RANK - 1)) | window

    return map_address


@step("getctarank", _ADDRESSES)
def _getctarank(ins: Instruction, lanes: Lanes) -> Step:
    """The rank of the block in whose shared memory an address lies."""
    check_modifiers(ins, ("shared", "cluster"))
    out = destination(lanes, ins, ins.operands[0], "u32")[0]
    address = lanes.source(ins.operands[1], ins.parts[-1], ins)

    def rank(sel: Ints | None) -> None:
        a = address if sel is None or address.ndim == 0 else address[sel]
        own = lanes.cluster.rank if sel is None else lanes.cluster.rank[sel]
        there = (a.astype(np.int64) >> RANK_BIT) & 0xFF
        out[slice(None) if sel is None else sel] = np.where(there == 0, own, there - FIRST_RANK)

    return rank
