"""Logic, shifts, bit fields, byte permutation, and what counts or finds bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, elementwise, ints, operands, words


def cases() -> Iterator[Case]:
    for k in ("b16", "b32", "b64"):
        rows = [f"{op}.{k} {{d}}, {{a}}, {{b}}" for op in ("and", "or", "xor")]
        yield elementwise(f"logic.{k}", rows, k, (k, k), operands((k, k), 128))
        yield elementwise(f"not.{k}", [f"{op}.{k} {{d}}, {{a}}" for op in ("not", "cnot")], k, (k,), [ints(k)])
        by = [ints(k), words(k, 128) % np.uint32(80)]
        by[1][:4] = 0, 1 << 31, 0xFFFFFFFF, 256
        kinds = [f"{x}{k[1:]}" for x in "bus"]
        rows = [f"shl.{k} {{d}}, {{a}}, {{b}}", *(f"shr.{x} {{d}}, {{a}}, {{b}}" for x in kinds)]
        yield elementwise(f"shift.{k}", rows, k, (k, "u32"), by)
    truth = [words(f"pred{i}", 128, 8) & np.uint8(1) for i in range(2)]
    rows = [f"{op}.pred {{d}}, {{a}}, {{b}}" for op in ("and", "or", "xor")] + ["not.pred {d}, {a}"]
    yield elementwise("logic.pred", rows, "pred", ("pred", "pred"), truth)
    yield from words_of_32()
    for k in ("b32", "b64"):
        yield elementwise(f"count.{k}", [f"{op}.{k} {{d}}, {{a}}" for op in ("popc", "clz")], "u32", (k,), [ints(k)])
        yield elementwise(f"brev.{k}", [f"brev.{k} {{d}}, {{a}}"], k, (k,), [ints(k)])
        place = words(f"place{k}", (2, 128)) % np.uint32(70)
        place[:, :8] = [[0, 0, 31, 255, 63, 256, 3, 300], [0, 32, 1, 255, 64, 4, 256, 261]]
        rows = [f"bfi.{k} {{d}}, {{a}}, {{b}}, {{c}}, 7", f"bfi.{k} {{d}}, {{a}}, {{b}}, 3, {{c}}"]
        yield elementwise(f"bfi.{k}", rows, k, (k, k, "u32"), [*operands((k, k), 128), place[0]])
        for kind in (f"u{k[1:]}", f"s{k[1:]}"):
            given = [ints(kind), place[0], place[1]]
            yield elementwise(
                f"bfe.{kind}", [f"bfe.{kind} {{d}}, {{a}}, {{b}}, {{c}}"], kind, (kind, "u32", "u32"), given
            )
            rows = [f"bfind.{kind} {{d}}, {{a}}", f"bfind.shiftamt.{kind} {{d}}, {{a}}"]
            yield elementwise(f"bfind.{kind}", rows, "u32", (kind,), [ints(kind)])


def words_of_32() -> Iterator[Case]:
    """Instructions of 32-bit words alone."""
    b32, a, b = "b32", ints("b32", 0, 2), ints("b32", 1, 2)
    by = words("by", 128) % np.uint32(70)
    by[:4] = 0, 32, 0xFFFFFFFF, 1 << 31
    rows = [f"shf.{side}.{how}.b32 {{d}}, {{a}}, {{b}}, {{c}}" for side in "lr" for how in ("wrap", "clamp")]
    yield elementwise("shf.b32", rows, b32, (b32,) * 3, [a, b, by])
    tables = (0x00, 0x96, 0xE8, 0xCA, 0x2D, 0x80, 0xFE, 0x1B, 0xFF)
    rows = [f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {t:#x}" for t in tables]
    yield elementwise("lop3.b32", rows, b32, (b32,) * 3, [a, b, ints("b32", 2)])
    modes = ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    rows = [f"prmt.b32{mode} {{d}}, {{a}}, {{b}}, {{c}}" for mode in modes]
    yield elementwise("prmt.b32", rows, b32, (b32,) * 3, [words("x", 128), words("y", 128), words("selector", 128)])
    base, offset = words("base", 128) % np.uint32(32), (words("offset", 128) % np.uint32(41)).astype(np.int64) - 20
    masks = [ints("b32"), base, offset.astype(np.int32).view(np.uint32)]
    yield elementwise("fns.b32", ["fns.b32 {d}, {a}, {b}, {c}"], b32, (b32, "u32", "s32"), masks)
    rows = [f"bmsk.{how}.b32 {{d}}, {{a}}, {{b}}" for how in ("clamp", "wrap")]
    yield elementwise("bmsk.b32", rows, b32, ("u32", "u32"), [by, words("width", 128) % np.uint32(40)])
    for k in ("u32", "s32"):
        rows = [f"szext.{how}.{k} {{d}}, {{a}}, {{b}}" for how in ("clamp", "wrap")]
        yield elementwise(f"szext.{k}", rows, k, (k, "u32"), [words("szext", 128), by])
