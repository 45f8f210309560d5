"""Small kernels in PTX for ``wmma`` in every shape, type and layout, and for ``movmatrix``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .opcode_cases.case import Array, Case, case, words
from .operand_bits import BITS, HOWS, numbers

#: Shapes (m, n, k) of each type of A and B, and the types of C and D.
WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
SHAPES: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[tuple[str, str], ...]]] = {
    "f16": (WIDE, (("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16"))),
    "bf16": (WIDE, (("f32", "f32"),)),
    "tf32": (((16, 16, 8),), (("f32", "f32"),)),
    "f64": (((8, 8, 4),), (("f64", "f64"),)),
    "s8": (WIDE, (("s32", "s32"),)),
    "u8": (WIDE, (("s32", "s32"),)),
}


def wmma_cases() -> Iterator[Case]:
    """Every form with every kind of operands, and every layout of A, B and C."""
    for kind, (shapes, sums) in SHAPES.items():
        for shape in shapes:
            for d, c in sums:
                for how in HOWS if d[0] == "f" else ("any",):
                    yield wmma(kind, d, c, shape, how)
                for layouts in ("row.row.col", "col.col.row", "col.row.col"):
                    yield wmma(kind, d, c, shape, "near", layouts)
        if kind[1:] == "8":
            yield wmma(kind, "s32", "s32", WIDE[0], "any", flag=".satfinite")
    yield movmatrix()


def wmma(
    kind: str, d: str, c: str, shape: tuple[int, int, int], how: str, layouts: str = "row.col.row", flag: str = ""
) -> Case:
    """One product, from global memory and back."""
    m, n, k = shape
    name = f"wmma.m{m}n{n}k{k}.{d}.{kind}.{c}{flag}.{layouts}.{how}"
    by = dict(zip("abc", layouts.split("."), strict=True))
    sides = {"a": (m, k), "b": (k, n), "c": (m, n)}
    lead = {x: sides[x][1] if by[x] == "row" else sides[x][0] for x in "abc"}
    given: list[Array] = [
        numbers(kind, m * k, how, name + "a"),
        numbers(kind, k * n, how, name + "b"),
        numbers(c, m * n, how, name + "c", kind),
    ]
    word = "b64" if kind == "f64" else "b32"
    count = {"a": m * k, "b": k * n, "c": m * n, "d": m * n}
    size = {"a": BITS[kind], "b": BITS[kind], "c": BITS[c], "d": BITS[d]}
    registers = {x: count[x] * size[x] // 32 // int(word[1:]) for x in "abcd"}
    if kind == "f16":
        registers |= {"a": 8, "b": 8}
    lists = {x: "{" + ", ".join(f"%w{x}{i}" for i in range(registers[x])) + "}" for x in "abcd"}
    form = f"m{m}n{n}k{k}"
    lines = [
        f"wmma.load.{x}.sync.aligned.{by[x]}.{form}.global.{t} {lists[x]}, [%a{i}], {lead[x]};"
        for i, (x, t) in enumerate((("a", kind), ("b", kind), ("c", c)))
    ]
    kinds = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    lines.append(
        f"wmma.mma.sync.aligned.{by['a']}.{by['b']}.{form}.{kinds}{flag} {', '.join(lists[x] for x in 'dabc')};"
    )
    lines.append(f"wmma.store.d.sync.aligned.{by['c']}.{form}.global.{d} [%a3], {lists['d']}, {lead['c']};")
    own = " ".join(f".reg .{word} %w{x}<{registers[x]}>;" for x in "abcd")
    out = np.zeros(m * n, f"u{BITS[d] // 8}")
    return case(name, "\n".join(lines), [*given, out], registers=own)


def movmatrix() -> Case:
    """The transposed 8 × 8 matrix of 16-bit elements of a warp."""
    body = "ld.global.u32 %r10, [%e0]; movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10; st.global.u32 [%e1], %r11;"
    return case("movmatrix", body, [words("movmatrix", 64), np.zeros(64, np.uint32)], block=64)
