"""Comparisons, selections and moves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Array, Case, case, elementwise, floats, operands, words

_SIGNED, _UNSIGNED = ("eq", "ne", "lt", "le", "gt", "ge"), ("eq", "ne", "lo", "ls", "hi", "hs")
_FLOAT = (*_SIGNED, *(f"{x}u" for x in _SIGNED), "num", "nan")
INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def _pairs(kind: str) -> list[Array]:
    a, b = operands((kind, kind), 192 if kind in FLOATS else 128)
    b[-24:] = a[-24:]  # some that are equal
    return [a, b]


def _how(kind: str) -> list[str]:
    if kind in FLOATS:
        return [*_FLOAT, *(f"{x}.ftz" for x in _FLOAT if kind in ("f16", "f32"))]
    return list(("eq", "ne") if kind[0] == "b" else _UNSIGNED + _SIGNED[2:] if kind[0] == "u" else _SIGNED)


def cases() -> Iterator[Case]:
    for kind in (*INTS, "b16", "b32", "b64", *FLOATS):
        rows = [f"setp.{how}.{kind} {{d}}, {{a}}, {{b}}" for how in _how(kind)]
        yield elementwise(f"setp.{kind}", rows, "pred", (kind, kind), _pairs(kind))
        yield from _set(kind)
    yield _combined()
    for kind in ("u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64", "f32", "f64"):
        given = [*operands((kind, kind), 128), words("p", 128, 8) & np.uint8(1)]
        yield elementwise(
            f"selp.{kind}", [f"selp.{kind} {{d}}, {{a}}, {{b}}, {{c}}"], kind, (kind, kind, "pred"), given
        )
        for by in ("s32", "f32"):
            flags = ["", ".ftz"] if by == "f32" else [""]
            rows = [f"slct{f}.{kind}.{by} {{d}}, {{a}}, {{b}}, {{c}}" for f in flags]
            given = [*operands((kind, kind), 128), operands((by,), 128, "slct")[0]]
            yield elementwise(f"slct.{kind}.{by}", rows, kind, (kind, kind, by), given)
        yield elementwise(f"mov.{kind}", [f"mov.{kind} {{d}}, {{a}}"], kind, (kind,), operands((kind,), 64))
    yield elementwise("mov.pred", ["mov.pred {d}, {a}"], "pred", ("pred",), [words("p", 64, 8) & np.uint8(1)])
    yield from _packs()


def _set(kind: str) -> Iterator[Case]:
    results = ("u32", "s32", "f32") if kind not in ("f16", "bf16") else ("u32", "s32", "u16", "s16", kind)
    for made in results:
        rows = [f"set.{how}.{made}.{kind} {{d}}, {{a}}, {{b}}" for how in _how(kind)]
        yield elementwise(f"set.{made}.{kind}", rows, made, (kind, kind), _pairs(kind))


def _combined() -> Case:
    """A comparison combined with a predicate, into p and q, the predicate as it is and negated."""
    a, b = floats("f32", 0, 2), floats("f32", 1, 2)
    rows, lines = [], ["ld.global.b32 %f1, [%e0]; ld.global.b32 %f2, [%e1]; ld.global.u8 %r1, [%e2];"]
    lines.append("setp.ne.u32 %p1, %r1, 0;")
    for how in ("lt", "geu", "nan"):
        for combine in ("and", "or", "xor"):
            for negate in ("", "!"):
                row = f"setp.{how}.{combine}.f32 %p2|%p3, %f1, %f2, {negate}%p1"
                lines.append(f"{row}; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p3; or.b32 %r2, %r2, %r3;")
                lines.append(f"st.global.u8 [%e3+{len(rows)}], %r2;")
                rows.append(row)
        row = f"setp.{how}.f32 %p2|%p3, %f1, %f2"
        lines.append(f"{row}; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p3; or.b32 %r2, %r2, %r3;")
        lines.append(f"st.global.u8 [%e3+{len(rows)}], %r2;")
        rows.append(row)
        row = f"set.{how}.xor.f32.f32 %f3, %f1, %f2, !%p1"
        lines.append(f"{row}; cvt.rzi.u32.f32 %r2, %f3; st.global.u8 [%e3+{len(rows)}], %r2;")
        rows.append(row)
    out = np.zeros((256, len(rows)), np.uint8)
    truth = words("truth", 256, 8) & np.uint8(1)
    return case("setp.combined", "\n".join(lines), [a, b, truth, out], block=256, rows=rows)


def _packs() -> Iterator[Case]:
    body = """ld.global.u64 %rd1, [%e0];
mov.b64 {%r1, %r2}, %rd1; mov.b32 {%h1, %h2}, %r1; mov.b64 {%h3, %h4, %h5, %h6}, %rd1;
mov.b64 %rd2, {%r2, %r1}; mov.b32 %r3, {%h2, %h1}; mov.b64 %rd3, {%h6, %h3, %h5, %h4};
mov.b64 %fd1, {%r2, %r2}; mov.b64 {_, %r4}, %fd1;
st.global.u64 [%e1], %rd2; st.global.u32 [%e1+8], %r3; st.global.u32 [%e1+12], %r4; st.global.u64 [%e1+16], %rd3;"""
    yield case("mov.pack", body, [words("pack", 32, 64), np.zeros((32, 6), np.uint32)])
    body = """ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%e0]; cvt.u8.u16 %b1, %h1; cvt.u8.u16 %b2, %h2;
cvt.u8.u16 %b3, %h3; cvt.u8.u16 %b4, %h4;
mov.b32 %r1, {%b4, %b3, %b2, %b1}; mov.b32 {%b1, %b2, %b3, %b4}, %r1; mov.b16 %h5, {%b2, %b3};
st.global.u32 [%e1], %r1; st.global.u16 [%e1+4], %h5;"""
    yield case("mov.pack.bytes", body, [words("bytes", 32), np.zeros((32, 2), np.uint32)], registers=".reg .b8 %b<5>;")
