"""PTX that uses tensor memory directly: loads and stores of every shape, and one product of operands that are laid out."""

# ruff: noqa: E501 - PTX keeps its own lines

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.simulator import Run, simulate

Array = np.ndarray[Any, Any]
#: Registers, lanes and columns of each shape; times x1, x2, …
SHAPES = {
    "32x32b": (1, 32, 1),
    "16x64b": (1, 16, 2),
    "16x128b": (2, 16, 4),
    "16x256b": (4, 16, 8),
    "16x32bx2": (1, 16, 1),
}

_HEAD = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(PARAMS)
REQUIRED{
    .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b32 %v<256>; .reg .b64 %rd<16>;
    .shared .align 1024 .b8 tiles[SHARED]; .shared .align 8 .b64 done; .shared .align 4 .b32 place;
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra ALLOCATED;
    tcgen05.alloc.cta_group::PAIR.sync.aligned.shared::cta.b32 [place], 256;
ALLOCATED:
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [done], 1;
READY:
    bar.sync 0;
    ld.shared.b32 %r1, [place];
    shr.u32 %r2, %r0, 5;
    and.b32 %r2, %r2, 3;
    shl.b32 %r2, %r2, 21;
    add.u32 %r2, %r2, %r1;
"""
_TAIL = """
    bar.sync 0;
    @%p0 bra GIVEN_BACK;
    tcgen05.dealloc.cta_group::PAIR.sync.aligned.b32 %r1, 256;
GIVEN_BACK:
    ret;
}
"""


def _registers(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%v{first + i}" for i in range(count)) + "}"


def _stores(count: int, first: int = 0) -> str:
    return "".join(f"    st.global.b32 [%rd1+{4 * i}], %v{first + i};\n" for i in range(count))


def text(body: str, params: str, *, shared: int = 16, pair: int = 1) -> str:
    """A kernel: ``%r1`` is the address of 256 columns, ``%r2`` that of the warp's lanes, ``%p1`` false in thread 0."""
    required = ".reqnctapercluster 2, 1, 1\n" if pair == 2 else ""
    for old, new in {"PARAMS": params, "REQUIRED": required, "SHARED": str(shared), "PAIR": str(pair)}.items():
        body = body.replace(old, new)
    head, tail = _HEAD, _TAIL
    for old, new in {"PARAMS": params, "REQUIRED": required, "SHARED": str(shared), "PAIR": str(pair)}.items():
        head, tail = head.replace(old, new), tail.replace(old, new)
    return head + body + tail


def moved(shape: str, times: int, *, lane: int = 0, packed: bool = False, stores: bool = False) -> str:
    """A kernel that writes 1,000·thread + register by one access, and reads it by another: of ``shape``, and of whole lanes.

    It loads by ``shape`` what whole lanes have stored, or with ``stores`` the other way.
    """
    registers = times * SHAPES[shape][0]
    wide = SHAPES[shape][2] * times * (1 + packed) * (2 if shape == "16x32bx2" else 1)
    half = f", {times * (1 + packed)}" if shape == "16x32bx2" else ""
    of_lanes, of_shape = f"32x32b.x{wide}", f"{shape}.x{times}"
    pack = ".unpack::16b" if packed and stores else ".pack::16b" if packed else ""
    written, read = (registers, wide) if stores else (wide, registers)
    place = f"[%r2+{lane << 16}]"
    body = "    mul.lo.u32 %r3, %r0, 1000;\n"
    body += "".join(f"    add.u32 %v{i}, %r3, {i};\n" for i in range(written))
    clear = f"    tcgen05.st.sync.aligned.{of_lanes}.b32 [%r2], {_registers(wide, 128)};\n    tcgen05.wait::st.sync.aligned;\n"
    if stores:
        body += clear
        body += f"    tcgen05.st.sync.aligned.{of_shape}{pack}.b32 {place}{half}, {_registers(registers)};\n"
    else:
        body += f"    tcgen05.st.sync.aligned.{of_lanes}.b32 [%r2], {_registers(wide)};\n"
    body += "    tcgen05.wait::st.sync.aligned;\n"
    if stores:
        body += f"    tcgen05.ld.sync.aligned.{of_lanes}.b32 {_registers(wide)}, [%r2];\n"
    else:
        body += f"    tcgen05.ld.sync.aligned.{of_shape}{pack}.b32 {_registers(registers)}, {place}{half};\n"
    body += "    tcgen05.wait::ld.sync.aligned;\n    ld.param.u64 %rd1, [y];\n"
    body += f"    mul.wide.u32 %rd2, %r0, {4 * read};\n    add.u64 %rd1, %rd1, %rd2;\n{_stores(read)}"
    return text(body, ".param .u64 y")


def product(
    instruction: str,
    *,
    shape: int,
    adds: str = "0",
    a: str = "%rd5",
    more: str = "",
    before: str = "",
    shared: int,
    columns: int,
    lane: int = 0,
    pair: int = 1,
) -> str:
    """A kernel that copies x to shared memory, multiplies by an instruction, and stores all lanes of D.

    Descriptors come as arguments; ``before`` is run by all threads, with ``%r2``, before the product.
    """
    body = f"""
    ld.param.u64 %rd3, [x];
    mov.u32 %r4, %cluster_ctarank;
    mad.wide.u32 %rd3, %r4, {shared}, %rd3;
    mov.u32 %r5, %r0;
COPY:
    mul.wide.u32 %rd4, %r5, 4;
    add.u64 %rd4, %rd3, %rd4;
    ld.global.b32 %r6, [%rd4];
    mov.u32 %r7, tiles;
    mad.lo.u32 %r7, %r5, 4, %r7;
    st.shared.b32 [%r7], %r6;
    add.u32 %r5, %r5, 128;
    setp.lt.u32 %p2, %r5, {shared // 4};
    @%p2 bra COPY;
    fence.proxy.async.shared::cta;
{before}    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    SYNC
    setp.ne.or.u32 %p3, %r4, 0, %p1;
    @%p3 bra MULTIPLIED;
    tcgen05.fence::after_thread_sync;
    mov.u32 %r7, tiles;
    and.b32 %r7, %r7, 0x3FFFF;
    shr.u32 %r7, %r7, 4;
    cvt.u64.u32 %rd7, %r7;
    ld.param.u64 %rd5, [of_a];
    ld.param.u64 %rd6, [of_b];
    add.u64 %rd5, %rd5, %rd7;
    add.u64 %rd6, %rd6, %rd7;
    mov.u32 %r8, {shape};
    setp.ne.u32 %p2, {adds}, 0;
    add.u32 %r9, %r1, {lane << 16};
    add.u32 %r10, %r1, 128;
    tcgen05.{instruction} [%r9], {a}, %rd6, %r8, {more}%p2;
    COMMIT
MULTIPLIED:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [done], 0;
    @!%p2 bra MULTIPLIED;
    tcgen05.fence::after_thread_sync;
    ld.param.u64 %rd1, [y];
    mad.lo.u32 %r11, %r4, 128, %r0;
    mul.wide.u32 %rd2, %r11, {4 * columns};
    add.u64 %rd1, %rd1, %rd2;
"""
    for first in range(0, columns, 8):
        body += f"    tcgen05.ld.sync.aligned.32x32b.x8.b32 {_registers(8)}, [%r2+{first}];\n"
        body += "    tcgen05.wait::ld.sync.aligned;\n" + _stores(8) + "    add.u64 %rd1, %rd1, 32;\n"
    body += "    tcgen05.fence::before_thread_sync;\n    SYNC\n"
    commit = f"tcgen05.commit.cta_group::{pair}.mbarrier::arrive::one.shared::cluster"
    commit += ".multicast::cluster.b64 [%r12], %rs1;" if pair == 2 else ".b64 [done];"
    if pair == 2:
        commit = f".reg .b16 %rs<2>; mov.b16 %rs1, 3; mov.u32 %r12, done; {commit}"
    sync = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" if pair == 2 else ""
    params = ".param .u64 x, .param .u64 of_a, .param .u64 of_b, .param .u64 y"
    return text(body.replace("COMMIT", commit).replace("SYNC", sync), params, shared=shared, pair=pair)


def multiplied(ptx: str, tiles: Array, descriptors: Sequence[int], columns: int, blocks: int = 1) -> tuple[Run, Array]:
    """The run of a product, and the words of tensor memory (128 · blocks, columns)."""
    y = np.zeros((128 * blocks, columns), np.uint32)
    run = simulate(ptx, "k", blocks, 128, [tiles.view(np.uint32), *descriptors, y])
    return run, np.asarray(run.arrays[3])


def descriptor(at: int, leading: int, stride: int, swizzle: int = 0) -> int:
    """A descriptor of a tile ``at`` bytes after the beginning of the shared memory."""
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | swizzle << 61
