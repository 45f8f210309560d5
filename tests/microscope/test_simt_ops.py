"""Every opcode of the microscope against exact arithmetic: PTX of a few lines, one thread an example."""

# ruff: noqa: E501 - PTX in one line

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.simulator import RunOptions, UnknownInstruction, simulate
from tilewright.simulator.ops import TABLE, opcodes

SIZE = {"pred": 1, **{f"{k}{b}": b // 8 for k in "bus" for b in (8, 16, 32, 64)}}
SIZE |= {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4}
DTYPE = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4"}
DTYPE |= {f"{k}{b}": f"{'i' if k == 's' else 'u'}{b // 8}" for k in "bus" for b in (8, 16, 32, 64)}


def ptx(body: str, params: int, registers: str = "", extra: str = "") -> str:
    """A kernel of ``params`` pointers; %rd10 + i is where the thread's element of array i begins, by its size."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(params))
    return (
        f".version 8.5\n.target sm_90\n.address_size 64\n{extra}\n.visible .entry k({listed})\n{{\n"
        ".reg .pred %p<9>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %rd<40>; .reg .f32 %f<20>; .reg .f64 %d<20>;\n"
        f"{registers}\n{body}\nret;\n}}\n"
    )


def apply(instruction: str, out: str, kinds: Sequence[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Run ``instruction`` with {d}, {a}, {b}, {c} for each element of the arrays."""
    n = len(arrays[0])
    names = "abc"[: len(kinds)]
    lines = ["mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r0, %r1, %r2;"]
    declared = []
    for i, (name, kind) in enumerate(zip((*names, "d"), (*kinds, out), strict=True)):
        size = SIZE[kind]
        declared.append(f".reg .b{max(size, 2) * 8} %{name};" if kind != "pred" else f".reg .pred %{name};")
        lines.append(f"ld.param.u64 %rd{i}, [p{i}]; mul.wide.u32 %rd{20 + i}, %r3, {size};")
        lines.append(f"add.s64 %rd{10 + i}, %rd{i}, %rd{20 + i};")
        if name != "d":
            lines.append(f"ld.global.b{size * 8} %{name}, [%rd{10 + i}];")
    last = len(kinds)
    lines.append(instruction.format(**{x: f"%{x}" for x in "abcd"}) + ";")
    if out == "pred":
        lines.append(f"selp.u32 %r9, 1, 0, %d; st.global.u8 [%rd{10 + last}], %r9;")
        result = np.zeros(n, np.uint8)
    else:
        lines.append(f"st.global.b{SIZE[out] * 8} [%rd{10 + last}], %d;")
        result = np.zeros(n, DTYPE[out])
    given = [np.ascontiguousarray(np.asarray(a, DTYPE[k])) for a, k in zip(arrays, kinds, strict=True)]
    text = ptx("\n".join(lines), last + 1, " ".join(declared))
    run = simulate(
        text, "k", 1 if n <= 1024 else n // 32, n if n <= 1024 else 32, [*given, result], RunOptions(outputs=[last])
    )
    assert not run.findings
    made = run.arrays[last]
    assert made is not None
    return made


RNG = np.random.default_rng(3)


def ints(kind: str, n: int = 256) -> np.ndarray:
    """Random bits with the corners of the type among them."""
    info = np.iinfo(DTYPE[kind])
    corners = np.array([0, 1, 2, 3, 31, 32, info.max, info.max - 1, info.min, info.min + 1], DTYPE[kind])
    values = RNG.integers(info.min, info.max, n, dtype=DTYPE[kind], endpoint=True)
    values >>= RNG.integers(0, 8 * values.itemsize, n).astype(values.dtype)
    values[RNG.permutation(n)[: 8 * len(corners)]] = np.tile(corners, 8)
    return values


def wrap(value: int, kind: str) -> int:
    bits = 8 * SIZE[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def c_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bits_of(a: int, kind: str) -> int:
    return a & ((1 << 8 * SIZE[kind]) - 1)


INT_OPS: list[tuple[str, str, Sequence[str], str, Callable[..., int]]] = []
for k in ("u16", "s16", "u32", "s32", "u64", "s64"):
    w, bits = SIZE[k] * 8, f"b{SIZE[k] * 8}"
    INT_OPS += [
        (f"add.{k}", "ab", (k, k), k, lambda a, b: a + b),
        (f"sub.{k}", "ab", (k, k), k, lambda a, b: a - b),
        (f"mul.lo.{k}", "ab", (k, k), k, lambda a, b: a * b),
        (f"mul.hi.{k}", "ab", (k, k), k, lambda a, b, w=w: (a * b) >> w),
        (f"mad.lo.{k}", "abc", (k, k, k), k, lambda a, b, c: a * b + c),
        (f"mad.hi.{k}", "abc", (k, k, k), k, lambda a, b, c, w=w: ((a * b) >> w) + c),
        (f"min.{k}", "ab", (k, k), k, min),
        (f"max.{k}", "ab", (k, k), k, max),
        (f"sad.{k}", "abc", (k, k, k), k, lambda a, b, c: c + abs(a - b)),
        (f"div.{k}", "ab", (k, k), k, lambda a, b: c_div(a, b) if b else -1),
        (f"rem.{k}", "ab", (k, k), k, lambda a, b: a - c_div(a, b) * b if b else -1),
        (f"shr.{k}", "ab", (k, "u32"), k, lambda a, b, w=w: a >> min(b, w)),
        (f"shl.{bits}", "ab", (bits, "u32"), bits, lambda a, b, w=w: a << b if b < w else 0),
    ]
    if w < 64:
        wide = f"{k[0]}{2 * w}"
        INT_OPS.append((f"mul.wide.{k}", "ab", (k, k), wide, lambda a, b: a * b))
        INT_OPS.append((f"mad.wide.{k}", "abc", (k, k, wide), wide, lambda a, b, c: a * b + c))
    if k[0] == "s":
        INT_OPS.append((f"abs.{k}", "a", (k,), k, abs))
        INT_OPS.append((f"neg.{k}", "a", (k,), k, lambda a: -a))
for k in ("b16", "b32", "b64"):
    INT_OPS += [
        (f"and.{k}", "ab", (k, k), k, lambda a, b: a & b),
        (f"or.{k}", "ab", (k, k), k, lambda a, b: a | b),
        (f"xor.{k}", "ab", (k, k), k, lambda a, b: a ^ b),
        (f"not.{k}", "a", (k,), k, lambda a: ~a),
        (f"cnot.{k}", "a", (k,), k, lambda a: int(a == 0)),
    ]


def field(a: int, pos: int, n: int, kind: str) -> int:
    """bfe as PTX's manual writes it, bit by bit; words of 64 bits, which have no such instruction, read more of c."""
    msb = 8 * SIZE[kind] - 1
    pos, n = (x & 255 if msb == 31 else min(x, 64) for x in (pos, n))
    sign = 0 if kind[0] == "u" or n == 0 else bits_of(a, kind) >> min(pos + n - 1, msb) & 1
    return sum((bits_of(a, kind) >> (pos + i) & 1 if i < n and pos + i <= msb else sign) << i for i in range(msb + 1))


def insert(a: int, b: int, pos: int, n: int, kind: str) -> int:
    pos, n = (x & 255 if kind == "b32" else min(x, 64) for x in (pos, n))
    for i in range(n):
        at = pos + i
        if at < 8 * SIZE[kind]:
            b = b & ~(1 << at) | (a >> i & 1) << at
    return b


for k in ("b32", "b64"):
    w = SIZE[k] * 8
    INT_OPS += [
        (f"popc.{k}", "a", (k,), "u32", lambda a: a.bit_count()),
        (f"clz.{k}", "a", (k,), "u32", lambda a, w=w: w - a.bit_length()),
        (f"brev.{k}", "a", (k,), k, lambda a, w=w: int(f"{a:0{w}b}"[::-1], 2)),
        (f"bfi.{k} {{d}}, {{a}}, {{b}}, {{c}}, 7", "", (k, k, "u32"), k, lambda a, b, c, k=k: insert(a, b, c, 7, k)),
        (f"bfi.{k} {{d}}, {{a}}, {{b}}, 3, {{c}}", "", (k, k, "u32"), k, lambda a, b, c, k=k: insert(a, b, 3, c, k)),
    ]
for k in ("u32", "s32", "u64", "s64"):
    INT_OPS.append((f"bfe.{k}", "abc", (k, "u32", "u32"), k, lambda a, b, c, k=k: field(a, b, c, k)))
    INT_OPS.append((f"bfind.{k}", "a", (k,), "u32", lambda a: (~a if a < 0 else a).bit_length() - 1))


def shf(a: int, b: int, c: int, left: bool, wrapped: bool) -> int:
    n, both = c & 31 if wrapped else min(c, 32), b << 32 | a
    return both << n >> 32 if left else both >> n


def prmt(a: int, b: int, c: int) -> int:
    both, out = b << 32 | a, 0
    for i in range(4):
        s = c >> 4 * i & 15
        byte = both >> 8 * (s & 7) & 255
        out |= ((255 if byte & 128 else 0) if s & 8 else byte) << 8 * i
    return out


def lop3(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


def dp4a(a: int, b: int, c: int) -> int:
    return c + sum(
        x * y
        for x, y in zip(struct.pack("<i", wrap(a, "s32")), struct.unpack("<4b", struct.pack("<I", b)), strict=True)
    )


INT_OPS += [
    ("add.sat.s32", "ab", ("s32", "s32"), "s32", lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("sub.sat.s32", "ab", ("s32", "s32"), "s32", lambda a, b: max(-(2**31), min(2**31 - 1, a - b))),
    ("shf.l.wrap.b32", "abc", ("b32",) * 3, "b32", lambda a, b, c: shf(a, b, c, True, True)),
    ("shf.r.wrap.b32", "abc", ("b32",) * 3, "b32", lambda a, b, c: shf(a, b, c, False, True)),
    ("shf.l.clamp.b32", "abc", ("b32",) * 3, "b32", lambda a, b, c: shf(a, b, c, True, False)),
    ("shf.r.clamp.b32", "abc", ("b32",) * 3, "b32", lambda a, b, c: shf(a, b, c, False, False)),
    ("prmt.b32", "abc", ("b32",) * 3, "b32", prmt),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0x96", "", ("b32",) * 3, "b32", lambda a, b, c: a ^ b ^ c),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0x2d", "", ("b32",) * 3, "b32", lambda a, b, c: lop3(a, b, c, 0x2D)),
    ("dp4a.u32.s32", "abc", ("b32", "b32", "s32"), "s32", dp4a),
    ("mul24.lo.s32", "ab", ("s32", "s32"), "s32", lambda a, b: wrap(a << 8, "s32") * wrap(b << 8, "s32") >> 16),
]


@pytest.mark.parametrize(("op", "args", "kinds", "out", "exact"), INT_OPS, ids=[o[0] for o in INT_OPS])
def test_integer(op: str, args: str, kinds: Sequence[str], out: str, exact: Callable[..., int]) -> None:
    arrays = [ints(k) for k in kinds]
    text = f"{op} {{d}}, " + ", ".join(f"{{{a}}}" for a in args) if args else op
    made = apply(text, out, kinds, arrays)
    for i, x in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        assert int(made[i]) == wrap(exact(*x), out), (op, x)


@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 3), min_size=32, max_size=32), st.integers(0, 255))
def test_any_lop3(rows: list[tuple[int, int, int]], table: int) -> None:
    arrays = [np.array(x, np.uint32) for x in zip(*rows, strict=True)]
    made = apply(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table}", "b32", ("b32",) * 3, arrays)
    assert made.tolist() == [lop3(*row, table) for row in rows]


@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=32, max_size=32))
def test_any_64_bit_product(rows: list[tuple[int, int]]) -> None:
    a, b = (np.array(x, np.int64) for x in zip(*rows, strict=True))
    assert apply("mul.hi.s64 {d}, {a}, {b}", "s64", ("s64", "s64"), [a, b]).tolist() == [x * y >> 64 for x, y in rows]


# ---- floating point: every result from exact rationals, rounded once


def to_float(x: Fraction, kind: str, mode: str = "rn") -> float:
    """A rational rounded once to f32, f64, f16 or bf16 in the given direction."""
    digits, low, top = {"f32": (24, -149, 128), "f64": (53, -1074, 1024), "f16": (11, -24, 16), "bf16": (8, -133, 128)}[
        kind
    ]
    if x == 0:
        return 0.0
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    exponent += 1 if abs(x) >= Fraction(2) ** exponent else 0
    unit = Fraction(2) ** max(exponent - digits, low)
    scaled = x / unit
    n = {
        "rn": lambda: round(scaled),
        "rz": lambda: math.trunc(scaled),
        "rm": lambda: math.floor(scaled),
        "rp": lambda: math.ceil(scaled),
    }[mode]()
    value = n * unit
    limit = Fraction(2) ** top
    if abs(value) >= limit:
        away = mode == "rn" or (mode == "rp" and x > 0) or (mode == "rm" and x < 0)
        return (1 if x > 0 else -1) * (math.inf if away else float(limit - Fraction(2) ** (top - digits)))
    return float(value) if value else (0.0 if x > 0 else -0.0)


def floats(kind: str, n: int = 512) -> np.ndarray:
    """Floats near each other, far from each other, subnormal, with few and with many bits; finite."""
    if kind in ("f16", "bf16"):
        bits = RNG.integers(0, 2**16, n, dtype=np.uint16)
        finite = np.isfinite(as_float(bits if kind == "bf16" else bits.view(np.float16), kind))
        bits[~finite] = 0
        return bits if kind == "bf16" else bits.view(np.float16)
    dtype = np.dtype(DTYPE[kind])
    big = 149 if kind == "f32" else 1070
    x = (RNG.random(n) - 0.5) * 2.0 ** RNG.integers(-3, 4, n)
    x[: n // 4] = np.ldexp(RNG.integers(-8, 8, n // 4).astype(float), RNG.integers(-30, 30, n // 4))
    x[n // 4 : n // 2] *= np.exp2(RNG.integers(-big // 2, big // 2, n // 4).astype(float))
    with np.errstate(all="ignore"):
        x[-n // 8 :] = np.ldexp(x[-n // 8 :], -big + 20)
    x[:4] = 0.0, -0.0, 1.0, -1.0
    return RNG.permutation(x.astype(dtype))


def as_float(a: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (a.view(ml_dtypes.bfloat16) if kind == "bf16" else a).astype(np.float64)


FLOAT_OPS: list[tuple[str, str, str, int, Callable[..., Fraction]]] = []
for kind in ("f32", "f64", "f16", "bf16"):
    for mode in ("rn", "rz", "rm", "rp") if kind in ("f32", "f64") else ("rn",):
        FLOAT_OPS += [
            (f"add.{mode}.{kind}", kind, mode, 2, lambda a, b: a + b),
            (f"sub.{mode}.{kind}", kind, mode, 2, lambda a, b: a - b),
            (f"mul.{mode}.{kind}", kind, mode, 2, lambda a, b: a * b),
            (f"fma.{mode}.{kind}", kind, mode, 3, lambda a, b, c: a * b + c),
        ]
        if kind in ("f32", "f64"):
            FLOAT_OPS.append((f"div.{mode}.{kind}", kind, mode, 2, lambda a, b: a / b))
            FLOAT_OPS.append((f"rcp.{mode}.{kind}", kind, mode, 1, lambda a: 1 / a))


@pytest.mark.parametrize(("op", "kind", "mode", "count", "exact"), FLOAT_OPS, ids=[o[0] for o in FLOAT_OPS])
def test_float(op: str, kind: str, mode: str, count: int, exact: Callable[..., Fraction]) -> None:
    arrays = [floats(kind) for _ in range(count)]
    if op.startswith("div") or op.startswith("rcp"):
        arrays[-1][arrays[-1] == 0] = 3
    text = f"{op} {{d}}, " + ", ".join(f"{{{a}}}" for a in "abc"[:count])
    made = as_float(apply(text, kind, [kind] * count, arrays), kind)
    for i, x in enumerate(zip(*(as_float(a, kind).tolist() for a in arrays), strict=True)):
        want = to_float(exact(*(Fraction(v) for v in x)), kind, mode)
        assert made[i] == want, (op, x, made[i], want)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3), min_size=32, max_size=32))
def test_any_single_fma(rows: list[tuple[float, float, float]]) -> None:
    arrays = [np.array(x, np.float32) for x in zip(*rows, strict=True)]
    made = apply("fma.rn.f32 {d}, {a}, {b}, {c}", "f32", ("f32",) * 3, arrays)
    for x, y in zip(rows, made.tolist(), strict=True):
        a, b, c = map(Fraction, x)
        assert y == to_float(a * b + c, "f32"), x


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=32, max_size=32))
def test_any_double_fma(rows: list[tuple[float, float, float]]) -> None:
    arrays = [np.array(x, np.float64) for x in zip(*rows, strict=True)]
    made = apply("fma.rn.f64 {d}, {a}, {b}, {c}", "f64", ("f64",) * 3, arrays)
    for x, y in zip(rows, made.tolist(), strict=True):
        a, b, c = map(Fraction, x)
        assert y == to_float(a * b + c, "f64"), x


def test_double_rounding_of_fma_is_seen() -> None:
    """a·b + c that float64 rounds onto the middle between two floats: rounding twice goes the wrong way."""
    a = np.array([1 + 2.0**-23, 2.0**-70], np.float32)
    b = np.array([1 + 2.0**-23, 1.0], np.float32)
    c = np.array([2.0**-46 * 0 + 2.0**-24, 1 + 2.0**-23], np.float32)
    made = apply("fma.rn.f32 {d}, {a}, {b}, {c}", "f32", ("f32",) * 3, [a, b, c])
    for i in range(2):
        assert made[i] == to_float(Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])), "f32")


def test_square_roots() -> None:
    x = np.abs(floats("f32"))
    for mode in ("rn", "rz", "rm", "rp"):
        made = apply(f"sqrt.{mode}.f32 {{d}}, {{a}}", "f32", ["f32"], [x]).astype(np.float64)
        for v, r in zip(x.astype(np.float64).tolist(), made.tolist(), strict=True):
            exact, got = Fraction(v), Fraction(r)
            step = Fraction(float(np.spacing(np.float32(r))))
            if mode in ("rz", "rm"):
                assert exact == 0 or got**2 <= exact < (got + step) ** 2
            elif mode == "rp":
                assert exact <= got**2
                assert got == 0 or (got - step) ** 2 < exact
            else:
                assert (got - step / 2) ** 2 <= exact <= (got + step / 2) ** 2 or exact == 0


APPROXIMATE: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("ex2.approx.f32", np.exp2), ("lg2.approx.f32", lambda x: np.log2(np.abs(x) + 1)), ("sin.approx.f32", np.sin),
    ("cos.approx.f32", np.cos), ("tanh.approx.f32", np.tanh), ("rsqrt.approx.f32", lambda x: (np.abs(x) + 1) ** -0.5),
    ("sqrt.approx.f32", lambda x: np.sqrt(np.abs(x) + 1)), ("rcp.approx.f32", lambda x: 1 / (np.abs(x) + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "function"), APPROXIMATE, ids=[o[0] for o in APPROXIMATE])
def test_approximate(op: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    x = RNG.uniform(-4, 4, 256).astype(np.float32)
    if op.split(".")[0] in ("lg2", "rsqrt", "sqrt", "rcp"):
        x = np.abs(x)
        want = function(x.astype(np.float64))
        x = (x + np.float32(1)).astype(np.float32)
        want = {"lg2": np.log2, "rsqrt": lambda v: v**-0.5, "sqrt": np.sqrt, "rcp": lambda v: 1 / v}[op.split(".")[0]](
            x.astype(np.float64)
        )
    else:
        want = function(x.astype(np.float64))
    np.testing.assert_allclose(apply(f"{op} {{d}}, {{a}}", "f32", ["f32"], [x]), want, rtol=3e-7, atol=1e-7)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_extremes_and_signs(kind: str) -> None:
    a = np.array([1, -0.0, 0.0, NAN, NAN, -INF, 3], DTYPE[kind])
    b = np.array([2, 0.0, -0.0, 1, NAN, 5, -3], DTYPE[kind])
    low, high = (apply(f"{op}.{kind} {{d}}, {{a}}, {{b}}", kind, (kind, kind), [a, b]) for op in ("min", "max"))
    np.testing.assert_array_equal(low, [1, -0.0, -0.0, 1, NAN, -INF, -3])
    np.testing.assert_array_equal(np.signbit(low[1:3]), True)
    np.testing.assert_array_equal(high, [2, 0, 0, 1, NAN, 5, 3])
    np.testing.assert_array_equal(np.signbit(high[1:3]), False)
    np.testing.assert_array_equal(apply(f"abs.{kind} {{d}}, {{a}}", kind, [kind], [a]), np.abs(a))
    negative = np.signbit(apply(f"neg.{kind} {{d}}, {{a}}", kind, [kind], [a]))
    np.testing.assert_array_equal(negative, ~np.signbit(a) & ~np.isnan(a))  # it is arithmetic: a NaN keeps its sign
    np.testing.assert_array_equal(
        apply(f"copysign.{kind} {{d}}, {{a}}, {{b}}", kind, (kind, kind), [a, b]), np.copysign(b, a)
    )


def double(bits: int) -> np.ndarray:
    return np.full(4, bits, np.uint64)


QUIET, SIGNALLING, INFINITE = double(0x7FF8000000000001), double(0xFFF0000020000002), double(0x7FF0000000000000)

#: Instruction, types of result and operands, operands, and the bits of the NaN that comes out.
NANS: list[tuple[str, str, Sequence[str], Sequence[np.ndarray], int]] = [
    # f64: the last operand that is a NaN, made quiet; a new one is negative
    ("add.f64 {d}, {a}, {b}", "f64", ("f64", "f64"), [QUIET, SIGNALLING], 0xFFF8000020000002),
    ("mul.f64 {d}, {a}, {b}", "f64", ("f64", "f64"), [SIGNALLING, QUIET], 0x7FF8000000000001),
    ("sub.f64 {d}, {a}, {b}", "f64", ("f64", "f64"), [INFINITE, INFINITE], 0xFFF8000000000000),
    ("sub.f64 {d}, {a}, 0d7FF8000000000007", "f64", ("f64",), [QUIET], 0x7FF8000000000007),
    ("mov.b64 {d}, {b}; fma.rz.f64 {d}, {a}, {a}, {d}", "f64", ("f64", "f64"), [QUIET, SIGNALLING], 0xFFF8000020000002),
    ("max.f64 {d}, {a}, {b}", "f64", ("f64", "f64"), [QUIET, SIGNALLING], 0xFFF8000020000002),
    ("div.rn.f64 {d}, {a}, {b}", "f64", ("f64", "f64"), [SIGNALLING, QUIET], 0xFFF8000020000002),
    ("neg.f64 {d}, {a}", "f64", ("f64",), [SIGNALLING], 0xFFF8000020000002),
    # conversions from f64 and to it: sign and upper bits of the payload; moves: all
    ("cvt.rn.f32.f64 {d}, {a}", "f32", ("f64",), [SIGNALLING], 0xFFC00001),
    ("cvt.rn.f16.f64 {d}, 0dFFF0040000000000", "f16", ("f64",), [QUIET], 0xFE01),
    ("cvt.f64.f32 {d}, {a}", "f64", ("f32",), [np.full(4, 0xFF800001, np.uint32)], 0xFFF8000020000000),
    ("cvt.ftz.f64.f32 {d}, {a}", "f64", ("f32",), [np.full(4, 0xFF800001, np.uint32)], 0x7FFFFFFFE0000000),
    ("cvt.f32.bf16 {d}, {a}", "f32", ("bf16",), [np.full(4, 0xFF81, np.uint16)], 0xFF810000),
    # all else: the canonical NaN
    ("cvt.f32.f16 {d}, {a}", "f32", ("f16",), [np.full(4, 0xFC01, np.uint16)], 0x7FFFFFFF),
    ("abs.f32 {d}, {a}", "f32", ("f32",), [np.full(4, 0xFF800001, np.uint32)], 0x7FFFFFFF),
    ("neg.f16x2 {d}, {a}", "f16x2", ("f16x2",), [np.full(4, 0x3C00FC01, np.uint32)], 0xBC007FFF),
    ("rcp.approx.ftz.f64 {d}, {a}", "f64", ("f64",), [QUIET], 0x7FFFFFFF00000000),
]


@pytest.mark.parametrize(("text", "out", "kinds", "arrays", "want"), NANS, ids=[n[0] for n in NANS])
def test_nans(text: str, out: str, kinds: Sequence[str], arrays: Sequence[np.ndarray], want: int) -> None:
    given = [a.view(DTYPE[k]) for a, k in zip(arrays, kinds, strict=True)]
    made = apply(text, out, kinds, given)
    assert {hex(x) for x in made.view(f"u{made.itemsize}").tolist()} == {hex(want)}


@pytest.mark.parametrize("second", [-math.inf, math.nan])
def test_sums_in_memory_that_are_no_number(second: float) -> None:
    """Sums in memory have a short cut for plain numbers, which infinities and NaNs must not take."""
    body = """mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; ld.param.u64 %rd2, [p0]; add.s64 %rd2, %rd2, %rd1;
ld.global.f32 %f1, [%rd2]; ld.param.u64 %rd3, [p1]; red.global.add.f32 [%rd3], %f1;"""
    given = np.array([math.inf, 1, second, 1], np.float32)
    run = simulate(ptx(body, 2), "k", 1, 4, [given, np.zeros(1, np.uint32)], RunOptions(outputs=[1]))
    assert run.arrays[1] is not None
    assert run.arrays[1].tolist() == [0x7FFFFFFF]


def test_flush_and_saturate() -> None:
    a = np.array([2.0**-140, -(2.0**-140), 1.5, -2.0, NAN], np.float32)
    one = np.ones(5, np.float32)
    flushed = apply("mul.ftz.f32 {d}, {a}, {b}", "f32", ("f32", "f32"), [a, one])
    np.testing.assert_array_equal(flushed, [0, 0, 1.5, -2, NAN])
    assert np.signbit(flushed[1])
    sat = apply("mul.sat.f32 {d}, {a}, {b}", "f32", ("f32", "f32"), [a, one])
    np.testing.assert_array_equal(sat, [a[0], 0, 1, 0, 0])
    assert apply("add.f32 {d}, {a}, {b}", "f32", ("f32", "f32"), [a, a]).view(np.uint32)[4] == 0x7FFFFFFF


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_pairs(kind: str) -> None:
    half = ml_dtypes.bfloat16 if kind == "bf16x2" else np.float16
    a, b, c = (RNG.uniform(-4, 4, 64).astype(half) for _ in "abc")
    words = [x.view(np.uint32) for x in (a, b, c)]
    made = apply(f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}}", kind, (kind,) * 3, words).view(half)
    want = [
        to_float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), kind[:-2])
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert made.astype(np.float64).tolist() == want


# ---- conversions, comparisons, moves

_CVT = [
    (a, b)
    for a in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for b in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
]


@pytest.mark.parametrize(("made", "kind"), _CVT)
def test_integers_into_integers(made: str, kind: str) -> None:
    x = ints(kind)
    assert apply(f"cvt.{made}.{kind} {{d}}, {{a}}", made, [kind], [x]).tolist() == [wrap(v, made) for v in x.tolist()]
    info = np.iinfo(DTYPE[made])
    want = [max(info.min, min(info.max, v)) for v in x.tolist()]
    assert apply(f"cvt.sat.{made}.{kind} {{d}}, {{a}}", made, [kind], [x]).tolist() == want


@pytest.mark.parametrize("made", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_floats_into_integers(made: str, kind: str) -> None:
    x = floats(kind)
    if kind in ("f32", "f64"):
        x[:6] = INF, -INF, NAN, 2.5, -3.5, 2.0**40
        x[6:10] = 2.0**31, -(2.0**31), 2.0**63, 2.0**64
    info = np.iinfo(DTYPE[made])
    of_nan = wrap(1 << (info.bits - 1), made) if "64" in made + kind else 0
    for how, function in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():
        result = apply(f"cvt.{how}.{made}.{kind} {{d}}, {{a}}", made, [kind], [x])
        for v, r in zip(as_float(x, kind).tolist(), result.tolist(), strict=True):
            if math.isnan(v):
                want = of_nan
            else:
                want = (info.max if v > 0 else info.min) if math.isinf(v) else max(info.min, min(info.max, function(v)))
            assert r == want, (how, v)


@pytest.mark.parametrize("kind", ["u8", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("made", ["f16", "bf16", "f32", "f64"])
def test_integers_into_floats(made: str, kind: str) -> None:
    x = ints(kind)
    result = as_float(apply(f"cvt.rn.{made}.{kind} {{d}}, {{a}}", made, [kind], [x]), made)
    assert result.tolist() == [to_float(Fraction(v), made) for v in x.tolist()]
    if made != "bf16":  # .sat is for the other float types
        clamped = as_float(apply(f"cvt.rn.sat.{made}.{kind} {{d}}, {{a}}", made, [kind], [x]), made)
        assert clamped.tolist() == np.clip(x, 0, 1).tolist()


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("made", "kind"), [("f32", "f64"), ("f16", "f32"), ("bf16", "f32"), ("f16", "f64")])
def test_floats_into_narrower_ones(made: str, kind: str, mode: str) -> None:
    x = floats(kind)
    result = as_float(apply(f"cvt.{mode}.{made}.{kind} {{d}}, {{a}}", made, [kind], [x]), made)
    assert result.tolist() == [to_float(Fraction(v), made, mode) for v in as_float(x, kind).tolist()]


def test_other_conversions() -> None:
    x = floats("f16")
    assert apply("cvt.f32.f16 {d}, {a}", "f32", ["f16"], [x]).tolist() == x.astype(np.float32).tolist()
    y = RNG.uniform(-9, 9, 64).astype(np.float32)
    assert apply("cvt.rni.f32.f32 {d}, {a}", "f32", ["f32"], [y]).tolist() == np.rint(y).tolist()
    assert apply("cvt.sat.f32.f32 {d}, {a}", "f32", ["f32"], [y]).tolist() == np.clip(y, 0, 1).tolist()
    pair = apply("cvt.rn.bf16x2.f32 {d}, {a}, {b}", "bf16x2", ("f32", "f32"), [y, 2 * y])
    want = np.stack([2 * y, y], axis=1).astype(ml_dtypes.bfloat16).view(np.uint16).reshape(-1)
    assert pair.view(np.uint16).tolist() == want.tolist()
    tf32 = apply("cvt.rna.tf32.f32 {d}, {a}", "b32", ["f32"], [y]).view(np.float32).astype(np.float64)
    assert (np.abs(tf32 - y) <= np.abs(y) * 2.0**-11).all()
    assert not (tf32.astype(np.float32).view(np.uint32) & 0x1FFF).any()


COMPARE = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}


@pytest.mark.parametrize("kind", ["s16", "u32", "s32", "u64", "s64", "f32", "f64"])
def test_comparisons(kind: str) -> None:
    if kind[0] == "f":
        a, b = (np.tile(np.array([1, 2, -0.0, 0.0, NAN, INF, 7, NAN], DTYPE[kind]), 8) for _ in "ab")
        b = np.roll(b, 3)
    else:
        a, b = ints(kind), ints(kind)
        b[::4] = a[::4]
    for how, name in COMPARE.items():
        made = apply(f"setp.{how}.{kind} {{d}}, {{a}}, {{b}}", "pred", (kind, kind), [a, b])
        pairs = list(zip(a.tolist(), b.tolist(), strict=True))
        nan = [x != x or y != y for x, y in pairs]
        truth = [not u and getattr(x, name)(y) for (x, y), u in zip(pairs, nan, strict=True)]
        assert made.tolist() == [int(t) for t in truth], how
        if kind[0] == "f":
            made = apply(f"setp.{how}u.{kind} {{d}}, {{a}}, {{b}}", "pred", (kind, kind), [a, b])
            assert made.tolist() == [int(t or u) for t, u in zip(truth, nan, strict=True)], how
        made = apply(f"set.{how}.u32.{kind} {{d}}, {{a}}, {{b}}", "u32", (kind, kind), [a, b])
        assert made.tolist() == [0xFFFFFFFF * int(t) for t in truth]


def test_predicates_combine() -> None:
    a, b = ints("s32"), ints("s32")
    text = (
        "setp.gt.s32 %p1, {a}, 0; setp.lt.and.s32 %p2|%p3, {a}, {b}, !%p1; selp.u32 %r4, 1, 0, %p2;"
        "selp.u32 %r5, 2, 0, %p3; or.pred %p4, %p2, %p3; xor.pred %p5, %p4, %p1; selp.u32 %r6, 4, 0, %p5;"
        "add.s32 %r4, %r4, %r5; add.s32 {d}, %r4, %r6"
    )
    want = [
        int(not x > 0 and x < y) + 2 * int(not x > 0 and not x < y) + 4
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert apply(text, "u32", ("s32", "s32"), [a, b]).tolist() == want


def test_moves_pack_and_unpack() -> None:
    a, b = ints("b32"), ints("b32")
    text = "mov.b64 %rd30, {{{a}, {b}}}; mov.b64 {{%r5, %r6}}, %rd30; mov.b32 {{%h1, %h2}}, %r6; mov.b32 %r7, {{%h2, %h1}}; mov.b64 {d}, {{%r7, %r5}}"
    want = [(y >> 16 | y << 16 & 0xFFFFFFFF) | x << 32 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert apply(text, "b64", ("b32", "b32"), [a, b]).tolist() == want
    chosen = apply(
        "slct.s32.s32 {d}, {a}, {b}, {c}",
        "s32",
        ("s32",) * 3,
        [ints("s32") * 0 + 5, ints("s32") * 0 + 6, c := ints("s32")],
    )
    assert chosen.tolist() == np.where(c >= 0, 5, 6).tolist()


# ---- what it does not know


@pytest.mark.parametrize(
    "instruction",
    ["tex.2d.v4.f32.s32 {d}, {a}", "add.cc.u16 %h1, %h1, %h1", "tcgen05.shift.cta_group::1.down [%r1]", "tanh.approx.f64 %d1, %d2",
     "lg2.approx.f64 %d1, %d2", "cvt.rn.e4m3x2.f32 %h1, %f1, %f2", "ld.global.v2.b128 %rd1, [%rd2]", "frob.u32 {d}, {a}"],
)  # fmt: skip
def test_unknown_instructions_are_named(instruction: str) -> None:
    with pytest.raises(UnknownInstruction, match=instruction.split(" ")[0].replace(".", r"\.")):
        apply(instruction, "b32", ["b32"], [np.zeros(4)])


def test_unknown_instruction_names_its_source_line() -> None:
    text = ptx(".loc 1 42 7\nfrob.u32 %r1, %r2;", 0, extra='.file 1 "my.cu"')
    with pytest.raises(UnknownInstruction, match=r"my\.cu:42: instruction frob\.u32"):
        simulate(text, "k", 1, 1, [])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: simulate(t, "kk", 1, 1, []), "did you mean k"),
        (lambda t: simulate(t, "k", 1, 1, [1]), "takes 0 arguments, given 1"),
        (lambda t: simulate(t, "k", 0, 1, []), "grid must be"),
        (lambda t: simulate(t, "k", 1, 2048, []), "at most 1024"),
        (lambda t: simulate("nothing", "k", 1, 1, []), "PTX line 1"),
        (lambda t: simulate(t, "k", 1, 32, [], RunOptions(blocks=[4])), "indices from 0 to 0"),
    ],
)
def test_usage_errors(call: Callable[[str], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(ptx("", 0))


def test_the_table_is_what_the_documentation_counts() -> None:
    assert {"fma", "mma", "ldmatrix", "cp", "shfl", "atom", "bar"} <= set(opcodes())
    assert all(callable(builder) for builder in TABLE.values())
