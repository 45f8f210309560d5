"""Instructions of clusters as cases, to be recorded on a GPU: addresses, stores, atomics and barriers of other blocks.

Each runs two clusters of four blocks of 32 threads. A thread stores rows of words; the random bits of its input are in %r0.
"""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import numpy as np

from support.opcode_cases.case import Case, case, words

GRID, BLOCK, CLUSTER = 8, 32, 4
_SHARED = ".reg .b32 %own, %far, %next, %mine, %bar, %there; .reg .b64 %wide;"
#: Registers: %own is the rank, %next that of the next block, %mine the thread's place in ``room``, %far the same in the next block.
_START = """
mov.u32 %own, %cluster_ctarank; add.u32 %next, %own, 1; and.b32 %next, %next, 3; ld.global.u32 %r0, [%e0];
mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %mine, room; add.u32 %mine, %mine, %r2;
mapa.shared::cluster.u32 %far, %mine, %next; mov.u32 %r3, 0x0f0f0f0f;
st.shared.v4.u32 [%mine], {%r3, %r3, %r3, %r3}; mov.u32 %bar, full;
setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%bar], 1;
mapa.shared::cluster.u32 %there, %bar, %next;
"""
_MEET = "barrier.cluster.arrive; barrier.cluster.wait;\n"
_WAIT = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra WAIT;\n"
_OUT = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%mine]; st.global.v4.u32 [%e1], {%r4, %r5, %r6, %r7};\n"


def _of_cluster(name: str, body: str, count: int = 4) -> Case:
    given, made = words(name, GRID * BLOCK), np.zeros((GRID * BLOCK, count), np.uint32)
    extra = f".shared .align 16 .b8 room[{16 * BLOCK}]; .shared .align 8 .b64 full;"
    directive = f".explicitcluster .reqnctapercluster {CLUSTER}, 1, 1"
    return case(
        name, _START + body, [given, made], block=BLOCK, grid=GRID, extra=extra, registers=_SHARED, directive=directive
    )


def _arriving(nbytes: int) -> str:
    """The own barrier expects the bytes of a warp; then all blocks are ready."""
    return f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {32 * nbytes};\n{_MEET}"


def _addresses() -> Case:
    rows = [
        "getctarank.shared::cluster.u32 %r4, %far;", "getctarank.shared::cluster.u32 %r4, %mine;",
        "cvta.shared::cluster.u64 %wide, %rd1; getctarank.u64 %r4, %wide;",
        "cvta.shared.u64 %wide, %rd2; mapa.u64 %wide, %wide, %next; getctarank.u64 %r4, %wide;",
        "mapa.shared::cluster.u64 %wide, %rd2, %next; cvt.u32.u64 %r4, %wide; sub.u32 %r4, %r4, %far;",
        "getctarank.shared::cluster.u64 %r4, %rd1;",
        "cvta.shared::cluster.u64 %wide, %rd1; isspacep.shared::cta %p3, %wide; selp.u32 %r4, 1, 0, %p3;",
        "cvta.shared::cluster.u64 %wide, %rd1; isspacep.shared::cluster %p3, %wide; selp.u32 %r4, 1, 0, %p3;",
        "cvta.shared::cluster.u64 %wide, %rd1; isspacep.global %p3, %wide; selp.u32 %r4, 1, 0, %p3;",
        "mapa.shared::cluster.u32 %r5, %mine, %own; getctarank.shared::cluster.u32 %r4, %r5;",
        "mov.u32 %r4, %clusterid.x;", "mov.u32 %r4, %nclusterid.x;", "mov.u32 %r4, %cluster_ctaid.x;", "mov.u32 %r4, %cluster_nctaid.x;",
        "mov.u32 %r4, %cluster_nctarank;", "mov.pred %p3, %is_explicit_cluster; selp.u32 %r4, 1, 0, %p3;",
    ]  # fmt: skip
    stores = "\n".join(f"{row} st.global.u32 [%e1+{4 * i}], %r4;" for i, row in enumerate(rows))
    return _of_cluster("addresses", f"cvt.u64.u32 %rd1, %far; cvt.u64.u32 %rd2, %mine;\n{stores}\n{_MEET}", len(rows))


def _accesses() -> list[Case]:
    values = "xor.b32 %r8, %r0, 5; xor.b32 %r9, %r0, 9; not.b32 %r10, %r0;"
    made = [
        _of_cluster("ld and st", f"{_MEET}{values} st.shared::cluster.v4.u32 [%far], {{%r0, %r8, %r9, %r10}};\n{_MEET}"
                    "ld.shared::cluster.v2.u32 {%r20, %r21}, [%far]; ld.shared::cluster.u16 %r22, [%far+8]; ld.shared::cluster.s8 %r23, [%far+13];\n"
                    f"{_OUT} st.global.v2.u32 [%e1+16], {{%r20, %r21}}; st.global.v2.u32 [%e1+24], {{%r22, %r23}};\n{_MEET}", 8),
        _of_cluster("generic", f"{_MEET} cvt.u64.u32 %rd1, %far; cvta.shared::cluster.u64 %wide, %rd1; st.u32 [%wide], %r0; atom.add.u32 %r8, [%wide], 7;\n"
                    f"{_MEET}{_OUT}"),
    ]  # fmt: skip
    for operation, kind in [
        ("add", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("xor", "b32"),
        ("exch", "b32"),
        ("inc", "u32"),
        ("add", "f32"),
    ]:
        name = f"atom.{operation}.{kind}"
        made.append(
            _of_cluster(
                name,
                f"{_MEET} atom.acq_rel.cluster.shared::cluster.{operation}.{kind} %r8, [%far], %r0; st.shared.u32 [%mine+4], %r8;\n{_MEET}{_OUT}",
            )
        )
    return made


def _asynchronous() -> list[Case]:
    done, made = f"{_WAIT}{_OUT}{_MEET}", []
    for kind in ("b32", "u32", "s32", "f32"):
        store = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
        made.append(
            _of_cluster(
                f"st.async.{kind}",
                f"{_arriving(4)} mov.b32 %f1, %r0; {store}.{kind} [%far+4], {'%f1' if kind == 'f32' else '%r0'}, [%there];\n{done}",
            )
        )
    for kind in ("b64", "u64", "s64", "f64"):
        made.append(
            _of_cluster(
                f"st.async.{kind}",
                f"{_arriving(8)} mov.b64 %rd5, {{%r0, %r1}}; mov.b64 %fd1, %rd5; {store}.{kind} [%far+8], {'%fd1' if kind == 'f64' else '%rd5'}, [%there];\n{done}",
            )
        )
    made.append(
        _of_cluster("st.async.v2.b32", f"{_arriving(8)} {store}.v2.b32 [%far], {{%r0, %r1}}, [%there];\n{done}")
    )
    made.append(
        _of_cluster(
            "st.async.v4.b32", f"{_arriving(16)} {store}.v4.b32 [%far], {{%r0, %r1, %r2, %r0}}, [%there];\n{done}"
        )
    )
    reduce = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
    forms = [("add", "u32"), ("add", "s32"), ("min", "u32"), ("min", "s32"), ("max", "u32"), ("max", "s32"), ("inc", "u32"), ("dec", "u32"),
             ("and", "b32"), ("or", "b32"), ("xor", "b32")]  # fmt: skip
    for operation, kind in forms:
        made.append(
            _of_cluster(
                f"red.async.{operation}.{kind}",
                f"{_arriving(4)} {reduce}.{operation}.{kind} [%far+4], %r0, [%there];\n{done}",
            )
        )
    made.append(
        _of_cluster(
            "red.async.add.u64",
            f"{_arriving(8)} mov.b64 %rd5, {{%r0, %r1}}; {reduce}.add.u64 [%far+8], %rd5, [%there];\n{done}",
        )
    )
    return made


#: Every case by name.
CASES: dict[str, Case] = {each.name: each for each in [_addresses(), *_accesses(), *_asynchronous()]}
