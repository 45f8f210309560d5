"""Atomics and reductions. What threads read back depends on their order, so each has a place of its own, or the
operation commutes and only the memory is compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import SIZE, Array, Case, case, operands

#: Operations by type: of atom, and those that red has too.
_ALL = {
    "u32": "add min max inc dec", "s32": "add min max", "u64": "add min max", "s64": "min max",
    "b32": "and or xor exch cas", "b64": "and or xor exch cas", "b16": "cas",
    "f32": "add", "f64": "add", "f16": "add.noftz", "f16x2": "add.noftz", "bf16": "add.noftz", "bf16x2": "add.noftz",
}  # fmt: skip
_ONLY_ATOM = {"exch", "cas"}
_SCOPES = ("", ".relaxed.cta", ".acquire.gpu", ".release.sys", ".acq_rel.gpu")


def cases() -> Iterator[Case]:
    for kind, listed in _ALL.items():
        for space in ("global", "shared", "generic"):
            yield _own(kind, listed.split(), space)
    for kind in ("u32", "s32", "u64", "b32", "b64", "f32", "f64", "f16x2", "bf16x2", "f16", "bf16"):
        yield from _together(kind, _ALL.get(kind, "").split())


def _operand(kind: str) -> tuple[str, str]:
    size = SIZE[kind]
    return {2: "%h", 4: "%r", 8: "%rd"}[size], f"b{8 * size}"


def _given(kind: str) -> list[Array]:
    """Memory, operand and what cas puts; half of the memory equals the operand."""
    a, b = operands((kind, kind), 128, "atom")
    a[::2] = b[::2]
    c = operands((kind,), 128, "swap")[0]
    return [a, b, c]


def _own(kind: str, names: list[str], space: str) -> Case:
    """Every thread its own place: memory before and after."""
    register, bits = _operand(kind)
    size = SIZE[kind]
    m, b, c, old = (f"{register}{i}" for i in (1, 2, 3, 4))
    lines = [f"ld.global.{bits} {m}, [%e0]; ld.global.{bits} {b}, [%e1]; ld.global.{bits} {c}, [%e2];"]
    lines.append(f"mov.u32 %r40, room; mad.lo.u32 %r40, %t, {size}, %r40;")
    lines.append(f"mul.wide.u32 %rd40, %t, {size}; add.s64 %rd41, %rd40, %a4;")
    where, put = ("[%r40]", "shared") if space == "shared" else ("[%rd41]", "global")
    name = f".{space}" if space != "generic" else ""
    rows, at = [], 0
    for i, op in enumerate(names):
        forms = [(f"atom{_SCOPES[i % 5]}{name}.{op}.{kind}", True)]
        if op not in _ONLY_ATOM:
            forms.append((f"red{('', '.relaxed.gpu', '.release.cta')[i % 3]}{name}.{op}.{kind}", False))
        for form, gives in forms:
            swap = f", {c}" if op == "cas" else ""
            lines.append(f"st.{put}.{bits} {where}, {m};")
            lines.append(f"{form} {old + ', ' if gives else ''}{where}, {b}{swap};")
            lines.append(f"ld.{put}.{bits} {register}5, {where};")
            if gives:
                lines.append(f"st.global.{bits} [%e3+{at}], {old};")
            lines.append(f"st.global.{bits} [%e3+{at + size}], {register}5;")
            at += 2 * size
            rows.append(form)
    arrays = [*_given(kind), np.zeros((128, 2 * len(rows)), f"u{size}"), np.zeros(128, f"u{size}")]
    extra = f".shared .align 16 .b8 room[{128 * size}];"
    return case(f"atom.{space}.{kind}", "\n".join(lines), arrays, outputs=[3], block=128, extra=extra, rows=rows)


def _together(kind: str, names: list[str]) -> Iterator[Case]:
    """Many threads in few places, with operations whose result does not depend on the order."""
    names = [n for n in names if n not in ("exch", "cas", "inc", "dec")]
    register, bits = _operand(kind)
    size = SIZE[kind]
    b, old = f"{register}1", f"{register}2"
    for verb in ("atom", "red"):
        lines = [f"ld.global.{bits} {b}, [%e0]; and.b32 %r30, %t, 3; mul.lo.u32 %r30, %r30, {size};"]
        lines.append("cvt.u64.u32 %rd40, %r30; add.s64 %rd41, %rd40, %a1;")
        lines.append("mov.u32 %r31, room; add.u32 %r31, %r31, %r30;")
        lines.append("setp.lt.u32 %p1, %t, 4;")
        for i in range(len(names)):
            lines.append(f"ld.global.{bits} {old}, [%rd41+{4 * size * i}];")
            lines.append(f"@%p1 st.shared.{bits} [%r31+{4 * size * i}], {old};")
        lines.append("bar.sync 0;")
        for i, op in enumerate(names):
            taken = f"{register}3, " if verb == "atom" else ""
            lines.append(f"{verb}.global.{op}.{kind} {taken}[%rd41+{4 * size * i}], {b};")
            lines.append(f"{verb}.shared.{op}.{kind} {taken}[%r31+{4 * size * i}], {b};")
        lines.append("bar.sync 0;")
        for i in range(len(names)):
            lines.append(f"ld.shared.{bits} {b}, [%r31+{4 * size * i}];")
            lines.append(f"@%p1 st.global.{bits} [%rd41+{4 * size * (len(names) + i)}], {b};")
        memory = np.zeros((2 * len(names), 4), f"u{size}")
        for i, op in enumerate(names):
            if op in ("min", "and"):
                memory[i] = ~memory[i]
        extra = f".shared .align 16 .b8 room[{4 * size * len(names)}];"
        body = "\n".join(lines)
        yield case(f"{verb}.together.{kind}", body, [_whole(kind), memory], block=128, extra=extra, rows=names)


def _whole(kind: str) -> Array:
    """Operands whose sums are exact in any order: small whole numbers, if they are floats."""
    if kind[0] in "us" or kind in ("b32", "b64"):
        return operands((kind,), 128, "together")[0]
    small = [0, 1, 2, -1, -2, 0, 3, -3] * 16
    pairs = np.array(small + small[::-1] if kind.endswith("x2") else small, np.float64)
    if kind == "f64":
        return pairs.view(np.uint64)
    if kind.startswith("bf16"):
        halves = (pairs.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        halves = pairs.astype(np.float32).view(np.uint32) if kind == "f32" else pairs.astype(np.float16).view(np.uint16)
    return halves.view(np.uint32) if kind.endswith("x2") else halves
