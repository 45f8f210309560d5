"""Control: branches, tables of branches, calls, leaving early, barriers of blocks, special registers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, case, module, words

SHARED = ".shared .align 16 .b8 room[4096];"


def cases() -> Iterator[Case]:
    yield from _branches()
    yield from _calls()
    yield from _barriers()
    yield from _specials()


def _branches() -> Iterator[Case]:
    body = """ld.global.u32 %r1, [%e0]; mov.u32 %r2, 0;
LOOP: and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 1; @%p1 bra ODD;
shr.u32 %r1, %r1, 1; bra.uni NEXT;
ODD: mad.lo.u32 %r1, %r1, 3, 1;
NEXT: add.u32 %r2, %r2, 1; setp.gt.u32 %p2, %r1, 1; setp.lt.and.u32 %p2, %r2, 200, %p2; @%p2 bra LOOP;
st.global.v2.u32 [%e1], {%r1, %r2};"""
    yield case("bra", body, [words("collatz", 64) % np.uint32(1000), np.zeros((64, 2), np.uint32)], block=64)
    body = """ld.global.u32 %r1, [%e0]; and.b32 %r2, %r1, 3; mov.u32 %r3, 5;
WAYS: .branchtargets ZERO, ONE, TWO, THREE;
brx.idx %r2, WAYS;
ZERO: add.u32 %r3, %r1, 7; bra DONE;
ONE: mul.lo.u32 %r3, %r1, 7;
TWO: xor.b32 %r3, %r3, 77; bra DONE;
THREE: not.b32 %r3, %r1;
DONE: st.global.u32 [%e1], %r3;"""
    yield case("brx.idx", body, [words("brx", 64), np.zeros(64, np.uint32)], block=64)
    body = """ld.global.u32 %r1, [%e0]; st.global.u32 [%e1], %r1; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r2, 1; @%p1 exit; st.global.u32 [%e1+4], %r1; @%p2 ret; st.global.u32 [%e1+8], %r1; exit;"""
    yield case("exit", body, [words("exit", 64), np.zeros((64, 3), np.uint32)], block=64)


def _calls() -> Iterator[Case]:
    extra = """.func (.param .b32 out) twice(.param .b32 x) {
.reg .b32 %r<3>; ld.param.u32 %r1, [x]; shl.b32 %r2, %r1, 1; st.param.u32 [out], %r2; ret; }
.func (.param .align 8 .b8 both[16]) pair(.param .b64 a, .param .align 4 .b8 b[8]) {
.reg .b64 %rd<4>; .reg .b32 %r<6>; .reg .pred %p<2>; ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [b]; ld.param.u32 %r2, [b+4];
setp.gt.u32 %p1, %r1, %r2; @%p1 bra BIG;
{ .param .b32 arg; .param .b32 got; st.param.b32 [arg], %r1; call.uni (got), twice, (arg); ld.param.b32 %r1, [got]; }
BIG: cvt.u64.u32 %rd2, %r1; add.s64 %rd3, %rd1, %rd2; st.param.u64 [both], %rd3; st.param.u32 [both+8], %r2;
st.param.u32 [both+12], %r1; ret; }
.func nothing(.param .b64 where) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [where]; st.global.u32 [%rd1+16], 99; ret; }"""
    body = """ld.global.u64 %rd1, [%e0]; ld.global.v2.u32 {%r1, %r2}, [%e0+8]; setp.lt.s32 %p1, %r1, 0;
{ .param .b64 one; .param .align 4 .b8 two[8]; .param .align 8 .b8 got[16];
st.param.b64 [one], %rd1; st.param.b32 [two], %r1; st.param.b32 [two+4], %r2;
call.uni (got), pair, (one, two); ld.param.b64 %rd2, [got]; ld.param.v2.b32 {%r3, %r4}, [got+8]; }
st.global.u64 [%e1], %rd2; st.global.v2.u32 [%e1+8], {%r3, %r4};
{ .param .b64 there; st.param.b64 [there], %e1; @%p1 call nothing, (there); }"""
    arrays = [words("call", (64, 4)), np.zeros((64, 6), np.uint32)]
    yield case("call", body, arrays, block=64, extra=extra)


def _barriers() -> Iterator[Case]:
    start = "mov.u32 %r1, room; shl.b32 %r2, %t, 2; add.u32 %r3, %r2, %r1; ld.global.u32 %r4, [%e0];\n"
    forms = ["bar.sync 0", "bar.cta.sync 1", "barrier.sync 2", "barrier.cta.sync.aligned 3", "bar.sync 4, 128",
             "barrier.sync.aligned 15, 128"]  # fmt: skip
    lines = [start]
    for i, form in enumerate(forms):
        lines.append(f"st.shared.u32 [%r3], %r4; {form}; xor.b32 %r5, %r2, {4 * (17 + 8 * i)}; add.u32 %r5, %r5, %r1;")
        lines.append(f"ld.shared.u32 %r6, [%r5]; add.u32 %r4, %r4, %r6; {form};")
    lines.append("st.global.u32 [%e1], %r4;")
    arrays = [words("bar", 128), np.zeros(128, np.uint32)]
    yield case("bar.sync", "\n".join(lines), arrays, block=128, extra=SHARED, rows=forms)
    body = f"""{start} and.b32 %r7, %t, 0; add.u32 %r7, %r7, 3; st.shared.u32 [%r3], %r4; bar.sync %r7;
xor.b32 %r5, %r3, 256; ld.shared.u32 %r6, [%r5]; st.global.u32 [%e1], %r6;"""
    yield case("bar.sync.register", body, arrays, block=128, extra=SHARED.replace("16", "512"))
    body = f"""{start} setp.lt.u32 %p1, %t, 64; @%p1 bra MAKE;
bar.sync 1, 128; sub.u32 %r5, %r3, 256; ld.shared.u32 %r6, [%r5]; xor.b32 %r4, %r4, %r6; barrier.arrive 2, 128; bra DONE;
MAKE: st.shared.u32 [%r3], %r4; bar.arrive 1, 128; bar.sync 2, 128; st.shared.u32 [%r3], %r2;
DONE: bar.sync 0; st.global.u32 [%e1], %r4;"""
    yield case("bar.arrive", body, arrays, block=128, extra=SHARED)
    body = """ld.global.u32 %r1, [%e0]; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; setp.ge.u32 %p2, %r1, 0;
setp.lt.u32 %p3, %r1, 0;
bar.red.popc.u32 %r3, 0, %p1; bar.red.popc.u32 %r4, 1, 96, !%p1; barrier.red.popc.u32 %r5, 0, %p2;
bar.red.and.pred %p4, 0, %p1; bar.red.or.pred %p5, 0, %p1; bar.cta.red.and.pred %p6, 1, %p2;
barrier.red.or.pred %p7, 1, %p3; bar.red.and.pred %p8, 2, 96, !%p3;
selp.u32 %r6, 1, 0, %p4; selp.u32 %r7, 2, 0, %p5; selp.u32 %r8, 4, 0, %p6; selp.u32 %r9, 8, 0, %p7;
selp.u32 %r10, 16, 0, %p8; or.b32 %r6, %r6, %r7; or.b32 %r6, %r6, %r8; or.b32 %r6, %r6, %r9; or.b32 %r6, %r6, %r10;
st.global.u32 [%e1], %r3; st.global.u32 [%e1+4], %r4; st.global.u32 [%e1+8], %r5; st.global.u32 [%e1+12], %r6;"""
    yield case("bar.red", body, [words("red", 96), np.zeros((96, 4), np.uint32)], block=96)
    body = """mov.u32 %r1, room; shl.b32 %r2, %t, 2; add.u32 %r3, %r2, %r1; ld.global.u32 %r4, [%e0];
st.shared.u32 [%r3], %r4; bar.warp.sync 0xffffffff;
xor.b32 %r5, %r2, 60; add.u32 %r5, %r5, %r1; ld.shared.u32 %r6, [%r5]; st.global.u32 [%e1], %r6;
and.b32 %r7, %t, 1; setp.eq.u32 %p1, %r7, 0; @%p1 bra EVEN; bar.warp.sync 0xaaaaaaaa; add.u32 %r6, %r6, 1; bra DONE;
EVEN: mov.u32 %r8, 0x55555555; bar.warp.sync %r8; add.u32 %r6, %r6, 2;
DONE: bar.warp.sync -1; st.global.u32 [%e1+4], %r6;"""
    yield case("bar.warp.sync", body, [words("warp", 64), np.zeros((64, 2), np.uint32)], block=64, extra=SHARED)


def _launch(name: str, names: list[str]) -> Case:
    """Special registers of all threads of a grid in three dimensions."""
    lines = ["ld.param.u64 %rd1, [p0]; mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ctaid.y; mov.u32 %r12, %ctaid.z;"]
    lines.append("mov.u32 %r13, %nctaid.x; mov.u32 %r14, %nctaid.y; mad.lo.u32 %r15, %r12, %r14, %r11;")
    lines.append("mad.lo.u32 %r15, %r15, %r13, %r10; mov.u32 %r16, %tid.x; mov.u32 %r17, %tid.y; mov.u32 %r18, %tid.z;")
    lines.append("mad.lo.u32 %r19, %r18, 2, %r17; mad.lo.u32 %r19, %r19, 3, %r16; mad.lo.u32 %r15, %r15, 12, %r19;")
    lines.append(f"mul.wide.u32 %rd2, %r15, {4 * len(names)}; add.s64 %rd1, %rd1, %rd2;")
    lines += [f"mov.u32 %r1, {register}; st.global.u32 [%rd1+{4 * i}], %r1;" for i, register in enumerate(names)]
    text = module("\n".join(lines), ["u64"])
    out = np.zeros((2 * 3 * 2 * 12, len(names)), np.uint32)
    return Case(name, text, (2, 3, 2), (3, 2, 2), (out,), (0,), 64, None, tuple(names))


def _specials() -> Iterator[Case]:
    """Registers whose values the launch decides, in three dimensions, and clocks, of which only the order counts."""
    names = [f"{r}.{x}" for r in ("%tid", "%ntid", "%ctaid", "%nctaid") for x in "xyz"]
    yield _launch("special", [*names, "%laneid", "%warpid", "%lanemask_lt", "%dynamic_smem_size"])
    clusters = [
        "%clusterid.x",
        "%nclusterid.x",
        "%cluster_ctaid.x",
        "%cluster_nctaid.x",
        "%cluster_ctarank",
        "%cluster_nctarank",
    ]
    yield _launch("special.cluster", clusters)
    body = """mov.u32 %r1, %clock; mov.u64 %rd1, %clock64; mov.u64 %rd2, %globaltimer; mov.u32 %r2, %clock_hi;
mov.u32 %r3, %smid; mov.u32 %r4, %nsmid; setp.lt.u32 %p1, %r3, %r4; mov.u64 %rd3, %clock64; setp.le.u64 %p2, %rd1, %rd3;
mov.u64 %rd4, %globaltimer; setp.le.u64 %p3, %rd2, %rd4; mov.u32 %r5, %nwarpid; mov.u32 %r6, %warpid;
setp.lt.u32 %p4, %r6, %r5; selp.u32 %r7, 1, 0, %p1; selp.u32 %r8, 2, 0, %p2; selp.u32 %r9, 4, 0, %p3;
selp.u32 %r10, 8, 0, %p4; or.b32 %r7, %r7, %r8; or.b32 %r7, %r7, %r9; or.b32 %r7, %r7, %r10; st.global.u32 [%e0], %r7;"""
    yield case("special.order", body, [np.zeros(64, np.uint32)], block=64)
