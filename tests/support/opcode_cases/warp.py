"""Instructions across the lanes of a warp, by whole warps and by parts of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, case, ints, words

#: A warp's lanes split by a predicate: %p1 holds in lanes whose bit of this mask is set.
PART = 0x9F5A33C6
SPLIT = f"mov.u32 %r30, {PART:#x}; mov.u32 %r31, %laneid; shr.b32 %r32, %r30, %r31; and.b32 %r32, %r32, 1;\n"
SPLIT += "setp.ne.u32 %p1, %r32, 0; not.b32 %r33, %r30;"


def cases() -> Iterator[Case]:
    yield from _shuffles()
    yield from _votes()
    yield from _matches()
    yield from _reductions()
    yield _active()
    yield _elected()


def _halves(body: str) -> str:
    """The same for the lanes of a part and for the rest, each with its own mask {m}."""
    one, two = body.replace("{m}", "%r30").replace("@L", "ONE"), body.replace("{m}", "%r33").replace("@L", "TWO")
    return f"{SPLIT}\n@%p1 bra HERE;\n{two}\nbra DONE;\nHERE:\n{one}\nDONE:\n"


def _shuffles() -> Iterator[Case]:
    clamps = {"up": 0x0000, "down": 0x001F, "bfly": 0x001F, "idx": 0x001F}
    for how, whole in clamps.items():
        lines, rows = ["ld.global.u32 %r1, [%e0]; ld.global.u32 %r2, [%e1];"], []
        for segment in (0x0000, 0x1800, 0x1C00, 0x1E00):
            for by in ("1", "3", "16", "%r2"):
                row = f"shfl.sync.{how}.b32 %r3|%p2, %r1, {by}, {segment | whole:#x}, -1"
                lines.append(f"{row}; selp.u32 %r4, 1, 0, %p2;")
                lines.append(f"st.global.v2.u32 [%e2+{8 * len(rows)}], {{%r3, %r4}};")
                rows.append(row)
        row = f"shfl.sync.{how}.b32 %r3, %r1, 2, {whole:#x}, 0xffffffff"
        lines.append(f"{row}; st.global.u32 [%e2+{8 * len(rows)}], %r3;")
        rows.append(row)
        by = words(f"by{how}", 64) % np.uint32(40)
        out = np.zeros((64, len(rows), 2), np.uint32)
        yield case(f"shfl.{how}", "\n".join(lines), [words("shfl", 64), by, out], block=64, rows=rows)
    # Of a part of the warp: each lane asks for the lowest or its own lane of its part.
    low, rest = (PART & -PART).bit_length() - 1, (~PART & -~PART).bit_length() - 1
    body = (
        "shfl.sync.idx.b32 %r3|%p2, %r1, %r5, 0x1f, {m}; selp.u32 %r4, 1, 0, %p2; st.global.v2.u32 [%e1], {%r3, %r4};"
    )
    start = f"ld.global.u32 %r1, [%e0]; mov.u32 %r6, %laneid; and.b32 %r7, %r6, 1; setp.eq.u32 %p3, %r7, 1;\n{SPLIT}"
    start += f"\nselp.u32 %r5, {low}, {rest}, %p1; selp.u32 %r5, %r5, %r6, %p3;\n"
    yield case("shfl.part", start + _halves(body), [words("part", 64), np.zeros((64, 2), np.uint32)], block=64)


def _votes() -> Iterator[Case]:
    """Eight warps with different predicates: all false, all true, one true, one false, random."""
    truth = (words("vote", 256, 8) & np.uint8(1)).reshape(8, 32)
    truth[0], truth[1], truth[2], truth[3] = 0, 1, 0, 1
    truth[2, 7], truth[3, 9] = 1, 0
    inside = np.array([PART >> i & 1 for i in range(32)], np.uint8)
    truth[4], truth[5] = inside, 1 - inside
    start = "ld.global.u8 %r1, [%e0]; setp.ne.u32 %p2, %r1, 0;"
    lines, at = [], 0
    for how in ("all", "any", "uni"):
        for negate in ("", "!"):
            lines.append(f"vote.sync.{how}.pred %p3, {negate}%p2, {{m}}; selp.u32 %r2, 1, 0, %p3;")
            lines.append(f"st.global.u32 [%e1+{at}], %r2;")
            at += 4
    for negate in ("", "!"):
        lines.append(f"vote.sync.ballot.b32 %r3, {negate}%p2, {{m}}; st.global.u32 [%e1+{at}], %r3;")
        at += 4
    body = "\n".join(lines)
    out = np.zeros((256, 8), np.uint32)
    yield case("vote", f"{start}\n{body.replace('{m}', '-1')}", [truth.reshape(-1), out], block=256)
    yield case("vote.part", f"{start}\n{_halves(body)}", [truth.reshape(-1), out], block=256)


def _matches() -> Iterator[Case]:
    for kind, register in (("b32", "%r1"), ("b64", "%rd1")):
        bits = int(kind[1:])
        given = words(f"match{kind}", (4, 32), bits)
        few = given[0, :3].copy()
        given[0], given[1] = few[(words("which", 32) % np.uint32(3)).astype(np.int64)], few[0]
        given[2] = [few[0] if PART >> i & 1 else few[1] for i in range(32)]
        lines = [f"match.any.sync.{kind} %r3, {register}, {{m}}; match.all.sync.{kind} %r4|%p3, {register}, {{m}};"]
        lines.append(f"match.all.sync.{kind} %r6, {register}, {{m}};")
        lines.append("selp.u32 %r5, 1, 0, %p3; st.global.v4.u32 [%e1], {%r3, %r4, %r5, %r6};")
        body, start = "\n".join(lines), f"ld.global.{kind} {register}, [%e0];"
        arrays = [given.reshape(-1), np.zeros((128, 4), np.uint32)]
        yield case(f"match.{kind}", f"{start}\n{body.replace('{m}', '-1')}", arrays, block=128)
        yield case(f"match.part.{kind}", f"{start}\n{_halves(body)}", arrays, block=128)


def _reductions() -> Iterator[Case]:
    for kind, listed in {"u32": "add min max", "s32": "add min max", "b32": "and or xor"}.items():
        lines, rows = [], []
        for op in listed.split():
            row = f"redux.sync.{op}.{kind} %r2, %r1, {{m}}"
            lines.append(f"{row}; st.global.u32 [%e1+{4 * len(rows)}], %r2;")
            rows.append(row)
        body, start = "\n".join(lines), "ld.global.u32 %r1, [%e0];"
        given = ints(kind, n=128)
        given[64:96] |= np.uint32(0xF0)
        arrays = [given, np.zeros((128, 3), np.uint32)]
        yield case(f"redux.{kind}", f"{start}\n{body.replace('{m}', '-1')}", arrays, block=128, rows=rows)
        yield case(f"redux.part.{kind}", f"{start}\n{_halves(body)}", arrays, block=128, rows=rows)


def _active() -> Case:
    """Which lanes are active, in a part of the warp and in a last warp that is not full."""
    body = f"""activemask.b32 %r1; st.global.u32 [%e0], %r1;
{_halves("activemask.b32 %r2; st.global.u32 [%e0+4], %r2;")}
mov.u32 %r3, %lanemask_eq; mov.u32 %r4, %lanemask_lt; mov.u32 %r5, %lanemask_le; mov.u32 %r6, %lanemask_gt;
mov.u32 %r7, %lanemask_ge; st.global.u32 [%e0+8], %r3; st.global.u32 [%e0+12], %r4; st.global.u32 [%e0+16], %r5;
st.global.u32 [%e0+20], %r6; st.global.u32 [%e0+24], %r7;"""
    return case("activemask", body, [np.zeros((50, 8), np.uint32)], block=50)


def _elected() -> Case:
    """One lane of the warp, or of a part of it, is the leader."""
    body = f"""elect.sync %r1|%p2, -1; selp.u32 %r2, 1, 0, %p2; st.global.v2.u32 [%e0], {{%r1, %r2}};
{
        _halves(
            "elect.sync %r3|%p3, {m}; selp.u32 %r4, 1, 0, %p3; elect.sync _|%p4, {m}; selp.u32 %r5, 2, 0, %p4;"
            "or.b32 %r4, %r4, %r5; st.global.v2.u32 [%e0+8], {%r3, %r4};"
        )
    }"""
    return case("elect", body, [np.zeros((64, 4), np.uint32)], block=64)
