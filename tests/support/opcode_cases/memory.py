"""Loads and stores of every width in every space, hints, addresses, fences, and copies from global to shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import SIZE, Case, case, module, words

TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
SHARED = ".shared .align 16 .b8 room[4096];"


def _register(kind: str) -> tuple[str, str]:
    """A register for a type and the type that shows all its bits."""
    return {1: ("%h", "u16"), 2: ("%h", "u16"), 4: ("%r", "u32"), 8: ("%rd", "u64")}[SIZE[kind]]


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def cases() -> Iterator[Case]:
    for kind in TYPES:
        yield _everywhere(kind)
    for kind in ("u8", "s8", "u16", "s16", "u32", "s32"):
        yield _widened(kind)
    yield from _hints()
    yield from _addresses()
    yield _parameters()
    yield from _copies()
    yield from _order()


def _everywhere(kind: str) -> Case:
    """One, two and four elements: global → shared → global → local → generic global."""
    size, (register, shown) = SIZE[kind], _register(kind)
    wide = SIZE[shown]
    lines = ["mov.u64 %rd30, mine; cvta.local.u64 %rd31, %rd30; mov.u32 %r40, room; mov.u64 %rd32, room;"]
    lines.append("cvta.shared.u64 %rd33, %rd32;")
    at = 0
    for vector in (1, 2, 4):
        if vector * size > 16:
            continue
        v = f".v{vector}" if vector > 1 else ""
        names = _list([f"{register}{i + 1}" for i in range(vector)])
        lines.append(f"mad.lo.u32 %r41, %t, {vector * size}, %r40; mul.wide.u32 %rd34, %t, {vector * size};")
        lines.append("add.s64 %rd35, %rd33, %rd34;")
        moves = [("global", "[%e0]", "shared", "[%r41]"), ("shared", "[%r41]", "local", "[mine]"),
                 ("local", "[%rd30]", "", "[%rd35]"), ("", "[%rd35]", "", "[%rd31+16]"),
                 ("", "[%rd31+16]", "shared", "[%r41+512]"), ("shared", "[%r41+512]", "global", f"[%e1+{at}]")]  # fmt: skip
        for source, where, target, into in moves:
            source, target = (f".{s}" if s else "" for s in (source, target))
            lines.append(f"ld{source}{v}.{kind} {names}, {where}; st{target}{v}.{kind} {into}, {names};")
        at += max(16, vector * size)
        for i in range(vector):
            lines.append(f"st.global.{shown} [%e1+{at}], {register}{i + 1};")
            at += wide
        at = -(-at // 16) * 16
        lines.append("bar.sync 0;")
    total = -(-at // 16) * 16
    return case(
        f"ld.st.{kind}", "\n".join(lines), [words(f"ld{kind}", (32, 4)), np.zeros((32, total), np.uint8)],
        extra=SHARED, registers=".local .align 16 .b8 mine[64];",
    )  # fmt: skip


def _widened(kind: str) -> Case:
    """Loads into wider registers, which extend the sign or zeros, and stores of the low bits of a wider register."""
    size = SIZE[kind]
    lines = [f"mov.u64 %rd20, -1; ld.global.{kind} %rd20, [%e0]; ld.global.v2.{kind} {{%rd21, %rd22}}, [%e0+8];"]
    lines.append("st.global.u64 [%e1], %rd20; st.global.u64 [%e1+8], %rd21; st.global.u64 [%e1+16], %rd22;")
    if size < 4:
        lines.append(f"ld.global.{kind} %r1, [%e0+4]; st.global.u32 [%e1+24], %r1;")
    lines.append(f"ld.global.u64 %rd23, [%e0+8]; st.global.{kind} [%e1+28], %rd23;")
    return case(f"ld.st.wide.{kind}", "\n".join(lines), [words(f"wide{kind}", (32, 4)), np.zeros((32, 8), np.uint32)])


def _hints() -> Iterator[Case]:
    loads = ["ld.global.nc", "ld.global.ca", "ld.global.cg", "ld.global.cs", "ld.global.lu", "ld.global.cv",
             "ld.global.nc.L1::no_allocate", "ld.global.L1::evict_last", "ld.global.L1::evict_first.L2::128B",
             "ld.global.nc.L2::256B", "ld.volatile.global", "ld.relaxed.gpu.global", "ld.acquire.sys.global",
             "ld.weak.global", "ld.relaxed.cta", "ldu.global", "ld.global.L2::64B"]  # fmt: skip
    stores = ["st.global.wb", "st.global.cg", "st.global.cs", "st.global.wt", "st.volatile.global",
              "st.relaxed.gpu.global", "st.release.gpu.global", "st.global.L1::evict_unchanged",
              "st.weak.global"]  # fmt: skip
    lines = []
    for i, load in enumerate(loads):
        lines.append(f"{load}.u32 %r1, [%e0+{4 * i}]; {stores[i % len(stores)]}.u32 [%e1+{4 * i}], %r1;")
    given = words("hints", (32, 24))
    yield case("ld.st.hints", "\n".join(lines), [given, np.zeros((32, len(loads)), np.uint32)], rows=loads)
    for kind in TYPES:
        register, _ = _register(kind)
        body = f"ldu.global.{kind} {register}1, [%e0]; st.global.{kind} [%e1], {register}1;"
        yield case(f"ldu.{kind}", body, [words("ldu", (32, 2)), np.zeros(32, f"u{SIZE[kind]}")])
    body = """createpolicy.fractional.L2::evict_first.b64 %rd20, 1.0;
createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd21, 0.5;
createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %rd22, [%a0], 128, 512;
prefetch.global.L1 [%e0]; prefetch.global.L2 [%e0+4]; prefetch.L2 [%e0]; prefetchu.L1 [%e0];
prefetch.global.L2::evict_last [%e0];
applypriority.global.L2::evict_normal [%a0], 128; discard.global.L2 [%a2], 128;
ld.global.L2::cache_hint.u32 %r1, [%e0], %rd20; st.global.L2::cache_hint.u32 [%e1], %r1, %rd21;
ld.global.nc.L2::cache_hint.v2.u32 {%r2, %r3}, [%e0+8], %rd22;
ld.global.L2::cache_hint.L2::128B.u32 %r4, [%e0+4], %rd20;
st.global.v2.u32 [%e1+8], {%r2, %r3}; nanosleep.u32 20; mov.u32 %r5, 10; nanosleep.u32 %r5;
red.global.add.L2::cache_hint.u32 [%e1+16], %r4, %rd20;
atom.global.add.L2::cache_hint.u32 %r6, [%e1+20], %r4, %rd20; st.global.u32 [%e1+24], %r6;
griddepcontrol.launch_dependents; griddepcontrol.wait;"""
    arrays = [words("policy", (32, 4)), words("policy out", (32, 8)), np.zeros((32, 4), np.uint32)]
    yield case("hints.policy", body, arrays, outputs=[1])
    body = """setmaxnreg.dec.sync.aligned.u32 40; ld.global.u32 %r1, [%e0]; add.u32 %r1, %r1, 1;
setmaxnreg.inc.sync.aligned.u32 64; st.global.u32 [%e1], %r1;"""
    arrays = [words("setmaxnreg", 128), np.zeros(128, np.uint32)]
    yield case("setmaxnreg", body, arrays, block=128, directive=".maxntid 128 .maxnreg 64")


def _addresses() -> Iterator[Case]:
    """Generic addresses into a space and back, which space an address lies in, symbols with offsets, constants."""
    extra = f"""{SHARED}
.const .align 4 .b32 table[8] = {{1, 0x10, 0xffffffff, 4, 5, 6, 7, 8}};
.const .align 8 .f64 real = 0d4010000000000000;
.const .align 2 .b16 shorts[4] = {{1, 65535, 3, 4}};
.global .align 4 .b32 counts[32] = {{7, 6, 5}};"""
    body = """mov.u32 %r1, room; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2; ld.global.u32 %r3, [%e0];
st.shared.u32 [%r1], %r3; cvt.u64.u32 %rd20, %r1;
cvta.shared.u64 %rd21, %rd20; ld.u32 %r4, [%rd21]; st.global.u32 [%e1], %r4;
cvta.to.shared.u64 %rd22, %rd21; ld.shared.u32 %r5, [%rd22]; st.global.u32 [%e1+4], %r5;
st.local.u32 [mine+4], %r3; mov.u64 %rd23, mine; cvta.local.u64 %rd24, %rd23; ld.u32 %r6, [%rd24+4];
cvta.to.local.u64 %rd25, %rd24; ld.local.u32 %r7, [%rd25+4]; add.u32 %r6, %r6, %r7; st.global.u32 [%e1+8], %r6;
cvta.to.global.u64 %rd26, %a0; cvta.global.u64 %rd27, %rd26; ld.u32 %r8, [%rd27+4]; st.global.u32 [%e1+12], %r8;
and.b32 %r9, %t, 7; mul.wide.u32 %rd28, %r9, 4; mov.u64 %rd29, table; add.s64 %rd30, %rd29, %rd28;
ld.const.u32 %r10, [%rd30]; cvta.const.u64 %rd31, %rd30; ld.u32 %r11, [%rd31]; add.u32 %r10, %r10, %r11;
ld.const.u32 %r12, [table+8]; add.u32 %r10, %r10, %r12; st.global.u32 [%e1+16], %r10;
cvta.to.const.u64 %rd42, %rd31; ld.const.u32 %r15, [%rd42]; st.global.u32 [%e1+20], %r15;
ld.const.f64 %fd1, [real]; st.global.f64 [%e1+24], %fd1; ld.const.s16 %r13, [shorts+2]; st.global.u32 [%e1+32], %r13;
mul.wide.u32 %rd32, %t, 4; mov.u64 %rd33, counts; add.s64 %rd33, %rd33, %rd32; ld.global.u32 %r14, [%rd33];
st.global.u32 [%e1+36], %r14;
isspacep.global %p1, %rd27; isspacep.shared %p2, %rd21; isspacep.local %p3, %rd24; isspacep.const %p4, %rd31;
isspacep.shared %p5, %rd27; isspacep.local %p6, %rd21; isspacep.global %p7, %rd24; isspacep.const %p8, %rd27;
selp.u32 %r20, 1, 0, %p1; selp.u32 %r21, 2, 0, %p2; selp.u32 %r22, 4, 0, %p3; selp.u32 %r23, 8, 0, %p4;
selp.u32 %r24, 16, 0, %p5; selp.u32 %r25, 32, 0, %p6; selp.u32 %r26, 64, 0, %p7; selp.u32 %r27, 128, 0, %p8;
or.b32 %r20, %r20, %r21; or.b32 %r20, %r20, %r22; or.b32 %r20, %r20, %r23; or.b32 %r20, %r20, %r24;
or.b32 %r20, %r20, %r25; or.b32 %r20, %r20, %r26; or.b32 %r20, %r20, %r27; st.global.u32 [%e1+44], %r20;"""
    yield case("addresses", body, [words("address", 32), np.zeros((32, 12), np.uint32)], extra=extra,
               registers=".local .align 16 .b8 mine[64];")  # fmt: skip
    extra = ".global .align 4 .b32 counts[32] = {7, 6, 5};\n.global .align 8 .u64 where[2] = {0, counts+4};"
    body = "ld.global.u64 %rd1, [where+8]; cvta.to.global.u64 %rd1, %rd1; ld.global.u32 %r1, [%rd1];"
    body += "st.global.u32 [%e0], %r1;"
    yield case("global.pointer", body, [np.zeros(32, np.uint32)], extra=extra)
    body = """shl.b32 %r1, %t, 2; mov.u32 %r2, loose; add.u32 %r2, %r2, %r1; ld.global.u32 %r3, [%e0];
st.shared.u32 [%r2], %r3; bar.sync 0; mov.u32 %r6, loose; xor.b32 %r4, %r1, 124;
add.u32 %r4, %r4, %r6; ld.shared.u32 %r5, [%r4]; st.global.u32 [%e1], %r5;
mov.u32 %r7, %dynamic_smem_size; st.global.u32 [%e1+4], %r7;"""
    yield case("shared.dynamic", body, [words("dynamic", 32), np.zeros((32, 2), np.uint32)], shared=256,
               extra=".extern .shared .align 16 .b8 loose[];", block=32)  # fmt: skip


def _parameters() -> Case:
    """Parameters of every width, with numbers for arguments, and one passed as bytes would be, by its address."""
    kinds = ["u64", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"]
    given = [np.uint8(200), np.int8(-3), np.uint16(60000), np.int16(-300), np.uint32(1 << 31), np.int32(-7),
             np.uint64(1 << 40), np.int64(-(1 << 40)), np.float32(1.5), np.float64(-0.1)]  # fmt: skip
    lines = ["ld.param.u64 %rd1, [p0];"]
    for i, kind in enumerate(kinds[1:], 1):
        register = {"f32": "%f1", "f64": "%fd1"}.get(kind, "%rd2")
        lines.append(f"ld.param.{kind} {register}, [p{i}];")
        shown = {"f32": "f32", "f64": "f64"}.get(kind, "u64")
        lines.append(f"st.global.{shown} [%rd1+{8 * i}], {register};")
    lines.append("mov.b64 %rd5, p7; ld.param.u32 %r1, [%rd5+4]; st.global.u32 [%rd1], %r1;")
    text = module("\n".join(lines), kinds)
    return Case("ld.param", text, 1, 1, (np.zeros(11, np.uint64), *given), (0,))


def _copies() -> Iterator[Case]:
    """cp.async of 4, 8 and 16 bytes, zero-filled from a source shorter than the copy, waited for in groups."""
    for size in (4, 8, 16):
        level = "cg" if size == 16 else "ca"
        lines = [f"mov.u32 %r1, room; mad.lo.u32 %r2, %t, {size}, %r1; rem.u32 %r3, %t, {size + 1};"]
        form = f"cp.async.{level}.shared.global"
        lines += [
            f"{form} [%r2], [%e0], {size}; cp.async.commit_group;",
            f"{form}.L2::128B [%r2+512], [%e0+{size}], {size}; cp.async.commit_group;",
            f"{form} [%r2+1024], [%e0+{2 * size}], {size}, %r3; cp.async.commit_group;",
            f"setp.lt.u32 %p1, %t, 16; @%p1 {form} [%r2+1536], [%e0+{3 * size}], {size}, 0;",
            f"@!%p1 cp.async.{level}.shared::cta.global.L2::256B [%r2+1536], [%e0+{3 * size}], {size};",
            "cp.async.commit_group; cp.async.wait_group 2;",
        ]
        lines += [f"ld.shared.u32 %r5, [%r2+{i}]; st.global.u32 [%e1+{i}], %r5;" for i in range(0, size, 4)]
        lines += [f"ld.shared.u32 %r5, [%r2+{512 + i}]; st.global.u32 [%e1+{16 + i}], %r5;" for i in range(0, size, 4)]
        lines.append("cp.async.wait_all; bar.sync 0; xor.b32 %r6, %t, 31;")
        lines.append(f"mad.lo.u32 %r6, %r6, {size}, %r1;")
        for j in (2, 3):
            lines += [f"ld.shared.u32 %r5, [%r6+{512 * j + i}]; st.global.u32 [%e1+{16 * j + i}], %r5;"
                      for i in range(0, size, 4)]  # fmt: skip
        given = words(f"copy{size}", (32, size))
        yield case(f"cp.async.{size}", "\n".join(lines), [given, np.zeros((32, 16), np.uint32)], extra=SHARED)


def _order() -> Iterator[Case]:
    """Fences, which change no result: threads hand on through shared memory what others stored."""
    fences = ["membar.cta", "membar.gl", "membar.sys", "fence.sc.gpu", "fence.acq_rel.cta", "fence.acq_rel.gpu",
              "fence.acq_rel.sys", "fence.sc.cta", "fence.acq_rel.cluster"]  # fmt: skip
    lines = ["mov.u32 %r1, room; shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %r1; ld.global.u32 %r3, [%e0];"]
    for fence in fences:
        lines.append(
            f"st.shared.u32 [%r2], %r3; {fence}; bar.warp.sync -1; xor.b32 %r4, %r2, 4; ld.shared.u32 %r3, [%r4];"
        )
        lines.append("bar.warp.sync -1;")
    lines.append("st.global.u32 [%e1], %r3;")
    yield case("fence", "\n".join(lines), [words("fence", 32), np.zeros(32, np.uint32)], extra=SHARED, rows=fences)
