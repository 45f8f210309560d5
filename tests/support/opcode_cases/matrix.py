"""Matrix instructions: mma.sync in every shape and type, ldmatrix and stmatrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Array, Case, case, floats, words

WARPS = 4
#: Shapes (m, k) of each input type and the types of its sums.
SHAPES = {
    "tf32": ([(16, 4), (16, 8)], ("f32",)),
    "f16": ([(16, 8), (16, 16)], ("f32", "f16")),
    "bf16": ([(16, 8), (16, 16)], ("f32",)),
    "f64": ([(8, 4), (16, 4), (16, 8), (16, 16)], ("f64",)),
}
BITS = {"tf32": 32, "f16": 16, "bf16": 16, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


def cases() -> Iterator[Case]:
    for kind, (shapes, sums) in SHAPES.items():
        for m, k in shapes:
            for made in sums:
                yield _small(kind, made, m, k)
                yield _near(kind, made, m, k)
                yield _wide(kind, made, m, k)
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            for k in (16, 32):
                yield _integers(a, b, k)
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            yield _bytes(a, b)
    yield from _moves()


def _registers(kind: str, m: int, k: int, made: str) -> tuple[int, int, int]:
    """Registers of a fragment of A, of B, and of C and D."""
    size = 64 if kind == "f64" else 32
    sums = {"f16": 16, "f64": 64}.get(made, 32)
    return m * k * BITS[kind] // 32 // size, 8 * k * BITS[kind] // 32 // size, m * 8 * sums // 32 // max(32, sums)


def _mma(name: str, forms: str | Sequence[str], a: Array, b: Array, c: Array) -> Case:
    """One product a warp in each of the forms: fragments as (threads, registers)."""
    forms = [forms] if isinstance(forms, str) else list(forms)
    t, kind, size = ("%rd", "b64", 8) if a.dtype.itemsize == 8 else ("%r", "b32", 4)
    lines, lists, at = [], [], 10
    for i, x in enumerate((a, b, c)):
        names = [f"{t}{at + j}" for j in range(x.shape[1])]
        lines += [f"ld.global.{kind} {register}, [%e{i}+{size * j}];" for j, register in enumerate(names)]
        lists.append("{" + ", ".join(names) + "}")
        at += x.shape[1]
    made, rows, place = [f"{t}{at + j}" for j in range(c.shape[1])], [], 0
    for form in forms:
        rows.append(f"mma.sync.aligned.{form} {{{', '.join(made)}}}, {', '.join(lists)}")
        lines.append(f"{rows[-1]};")
        lines += [f"st.global.{kind} [%e3+{place + size * j}], {register};" for j, register in enumerate(made)]
        place += size * len(made)
    out = np.zeros((32 * WARPS, len(forms) * c.shape[1]), c.dtype)
    return case(name, "\n".join(lines), [a, b, c, out], block=32 * WARPS, rows=rows)


def _form(kind: str, made: str, m: int, k: int) -> str:
    return f"m{m}n8k{k}.row.col.{made}.{kind}.{kind}.{made}"


def _encode(x: Array, kind: str) -> Array:
    """Small whole numbers and simple fractions, exact in every type → bits of the type."""
    if kind == "f64":
        return x.astype(np.float64).view(np.uint64)
    if kind in ("f32", "tf32"):
        return x.astype(np.float32).view(np.uint32)
    if kind == "bf16":
        return (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return x.astype(np.float16).view(np.uint16)


def _fragments(bits: Array, count: int, wide: bool) -> Array:
    return np.ascontiguousarray(bits).view(np.uint64 if wide else np.uint32).reshape(32 * WARPS, count)


def _fill(kind: str, made: str, m: int, k: int, seed: str, how: str) -> list[Array]:
    """Fragments of A, B and C: "small" whole numbers, or floats "near" 1."""
    out = []
    for i, (count, type_) in enumerate(zip(_registers(kind, m, k, made), (kind, kind, made), strict=True)):
        bits = {"f32": 32, **BITS}[type_]
        n = 32 * WARPS * count * (64 if "f64" in (kind, made) else 32) // bits
        if how == "small":
            values = (words(f"{seed}{i}", n) % np.uint32(17)).astype(np.int64) - 8
            data = _encode(values, type_)
        else:
            data = floats("f32" if type_ == "tf32" else type_, n=n, near=2 if how == "near" else 6, seed=f"{seed}{i}")
        out.append(_fragments(data, count, "f64" in (kind, made)))
    return out


def _small(kind: str, made: str, m: int, k: int) -> Case:
    """Whole numbers from -8 to 8: every sum is exact, so the bits must agree."""
    form = _form(kind, made, m, k)
    return _mma(f"mma.{form}.exact", form, *_fill(kind, made, m, k, form, "small"))


def _near(kind: str, made: str, m: int, k: int) -> Case:
    """Floats from 2^-2 to 2^3, so that sums round."""
    form = _form(kind, made, m, k)
    return _mma(f"mma.{form}.near", form, *_fill(kind, made, m, k, form + "near", "near"))


def _wide(kind: str, made: str, m: int, k: int) -> Case:
    """Floats from 2^-6 to 2^7, so that small terms meet large ones."""
    form = _form(kind, made, m, k)
    return _mma(f"mma.{form}.wide", form, *_fill(kind, made, m, k, form + "wide", "wide"))


def _integers(a: str, b: str, k: int) -> Case:
    """All bits random and accumulators near the limits, with and without saturation: exact."""
    given = [words(f"{a}{b}{k}{i}", (32 * WARPS, count)) for i, count in enumerate((k // 8, k // 16, 4))]
    given[2][32:64] = 0x7FFFFFFF - given[2][32:64] % np.uint32(1000)
    given[2][64:96] = 0x80000000 + given[2][64:96] % np.uint32(1000)
    given[2][96:] %= np.uint32(100000)
    kinds = f"s32.{a}.{b}.s32"
    forms = [f"m16n8k{k}.row.col{flag}.{kinds}" for flag in ("", ".satfinite")]
    return _mma(f"mma.{forms[0]}", forms, *given)


def _bytes(a: str, b: str) -> Case:
    """8-bit floats: mma.m16n8k32 with sums in f32."""
    form = f"m16n8k32.row.col.f32.{a}.{b}.f32"
    given = [words(f"{form}{i}", (32 * WARPS, count)) for i, count in enumerate((4, 2))]
    # Clear the top bits of the exponents: numbers below 2, so that terms are below 4 and the sum is below 2^8.
    given = [x & np.uint32(0xBFBFBFBF) for x in given]
    c = floats("f32", n=32 * WARPS * 4, near=2, seed=form).reshape(32 * WARPS, 4)
    return _mma(f"mma.{form}", form, *given, c)


def _moves() -> Iterator[Case]:
    """ldmatrix and stmatrix of one, two and four matrices, as they are and transposed; rows in any order."""
    order = (
        np.argsort(words("rows", 32 * WARPS).reshape(WARPS, 32), axis=1, kind="stable").astype(np.uint32).reshape(-1)
    )
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
            start = "mov.u32 %r1, room; shr.u32 %r2, %t, 5; mad.lo.u32 %r1, %r2, 512, %r1; mov.u32 %r3, %laneid;\n"
            start += "mad.lo.u32 %r4, %r3, 16, %r1; ld.global.u32 %r5, [%e1]; mad.lo.u32 %r6, %r5, 16, %r1;\n"
            lines = [
                start,
                "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%e0]; st.shared.v4.u32 [%r4], {%r20, %r21, %r22, %r23};",
            ]
            lines.append(f"bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names}, [%r6];")
            lines += [f"st.global.u32 [%e2+{4 * i}], %r{10 + i};" for i in range(count)]
            given = words("matrix", (32 * WARPS, 4))
            out = np.zeros((32 * WARPS, count), np.uint32)
            extra = f".shared .align 128 .b8 room[{512 * WARPS}];"
            yield case(
                f"ldmatrix.x{count}{trans}", "\n".join(lines), [given, order, out], block=32 * WARPS, extra=extra
            )
            lines = [start, *(f"ld.global.u32 %r{10 + i}, [%e0+{4 * i}];" for i in range(count))]
            lines.append("mov.u32 %r20, 0; st.shared.v4.u32 [%r4], {%r20, %r20, %r20, %r20}; bar.warp.sync -1;")
            lines.append(f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r6], {names}; bar.warp.sync -1;")
            lines.append(
                "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r4]; st.global.v4.u32 [%e2], {%r20, %r21, %r22, %r23};"
            )
            out = np.zeros((32 * WARPS, 4), np.uint32)
            yield case(
                f"stmatrix.x{count}{trans}", "\n".join(lines), [given, order, out], block=32 * WARPS, extra=extra
            )
