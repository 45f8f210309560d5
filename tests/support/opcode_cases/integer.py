"""Integer arithmetic: sums with carry, products, quotients, dot products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Case, case, elementwise, ints, operands, words

INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def arithmetic(name: str, rows: Sequence[str], out: str, kinds: Sequence[str]) -> Case:
    return elementwise(name, rows, out, kinds, operands(kinds, 128))


def cases() -> Iterator[Case]:
    for k in INTS:
        two, three = (k, k), (k, k, k)
        both = [f"{op}.{k} {{d}}, {{a}}, {{b}}" for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max")]
        if k == "s32":
            both += [f"{op}.sat.s32 {{d}}, {{a}}, {{b}}" for op in ("add", "sub")]
        yield arithmetic(f"two.{k}", both, k, two)
        rows = [f"{op}.{k} {{d}}, {{a}}, {{b}}, {{c}}" for op in ("mad.lo", "mad.hi", "sad")]
        yield arithmetic(f"three.{k}", rows + ["mad.hi.sat.s32 {d}, {a}, {b}, {c}"] * (k == "s32"), k, three)
        if k in WIDER:
            yield arithmetic(f"mul.wide.{k}", [f"mul.wide.{k} {{d}}, {{a}}, {{b}}"], WIDER[k], two)
            yield arithmetic(f"mad.wide.{k}", [f"mad.wide.{k} {{d}}, {{a}}, {{b}}, {{c}}"], WIDER[k], (*two, WIDER[k]))
        if k[0] == "s":
            yield arithmetic(f"one.{k}", [f"{op}.{k} {{d}}, {{a}}" for op in ("abs", "neg")], k, (k,))
        yield from quotients(k)
    for k in ("u32", "s32"):
        rows = [f"mul24.{half}.{k} {{d}}, {{a}}, {{b}}" for half in ("lo", "hi")]
        yield arithmetic(f"mul24.{k}", rows, k, (k, k))
        rows = [f"mad24.{half}.{k} {{d}}, {{a}}, {{b}}, {{c}}" for half in ("lo", "hi")]
        yield arithmetic(f"mad24.{k}", rows + ["mad24.hi.sat.s32 {d}, {a}, {b}, {c}"] * (k == "s32"), k, (k, k, k))
        for other in ("u32", "s32"):
            rows = [f"{op}.{k}.{other} {{d}}, {{a}}, {{b}}, {{c}}" for op in ("dp4a", "dp2a.lo", "dp2a.hi")]
            yield arithmetic(f"dot.{k}.{other}", rows, "b32", ("b32", "b32", "b32"))
    for k in ("u32", "s32", "u64", "s64"):
        yield carries(k)


def quotients(k: str) -> Iterator[Case]:
    """Quotients where they are defined, and apart from those what a divisor of zero and an overflow give."""
    a, b = operands((k, k), 128)
    lowest = a.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    defined = np.where((b == 0) | ((k[0] == "s") & (a == lowest)), a.dtype.type(3), b).astype(a.dtype)
    rows = [f"{op}.{k} {{d}}, {{a}}, {{b}}" for op in ("div", "rem")]
    yield elementwise(f"quotient.{k}", rows, k, (k, k), [a, defined])
    yield elementwise(f"quotient.zero.{k}", rows, k, (k, k), [ints(k, n=32), np.zeros_like(a[:32])])
    if k[0] == "s":
        few = [np.full_like(a[:32], lowest), np.full_like(a[:32], ~a.dtype.type(0))]
        yield elementwise(f"quotient.overflow.{k}", rows, k, (k, k), few)


def carries(k: str) -> Case:
    """Sums, differences and products of three words: each word goes out, the last takes the carry of the one before."""
    size, register = (4, "%r") if k.endswith("32") else (8, "%rd")
    a = [f"{register}{20 + i}" for i in range(6)]
    o = [f"{register}{30 + i}" for i in range(3)]
    chains = [
        ("add.cc", "addc.cc", "addc", f"{a[0]}, {a[3]}", f"{a[1]}, {a[4]}", f"{a[2]}, {a[5]}"),
        ("sub.cc", "subc.cc", "subc", f"{a[0]}, {a[3]}", f"{a[1]}, {a[4]}", f"{a[2]}, {a[5]}"),
    ]
    products = [("mad.lo.cc", "madc.hi.cc", "madc.lo"), ("mad.hi.cc", "madc.lo.cc", "madc.hi")]
    chains += [(*p, *(", ".join(a[i : i + 3]) for i in range(3))) for p in products]
    lines = [f"ld.global.{k} {r}, [%e0+{size * i}];" for i, r in enumerate(a)]
    rows = []
    for j, chain in enumerate(chains):
        for i in range(3):
            rows.append(f"{chain[i]}.{k}")
            lines.append(f"{chain[i]}.{k} {o[i]}, {chain[3 + i]};")
        lines += [f"st.global.{k} [%e1+{size * (3 * j + i)}], {r};" for i, r in enumerate(o)]
    given = words(f"carry{k}", (128, 6), 8 * size)
    pick = words(f"pick{k}", (128, 6), 32) % np.uint32(4)
    given = np.where(pick == 0, given.dtype.type(0), np.where(pick == 1, ~given.dtype.type(0), given))
    return case(f"carry.{k}", "\n".join(lines), [given, np.zeros((128, 12), given.dtype)], block=128, rows=rows)
