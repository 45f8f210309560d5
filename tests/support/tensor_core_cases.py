"""Small kernels in PTX for every form of ``mma`` and ``wgmma``, on operands of every kind: near 1, of any size, that cancel,
that are too small or too large for the result, infinite or no number.

The operands of ``wgmma`` are a random image of shared memory: whatever a descriptor points at is multiplied, so a result
shows the addresses of all elements, in every layout. ``record_tensor_cores.py`` records the results on a GPU, and
``test_tensor_cores.py`` replays them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilewright.simulator import simulate
from tilewright.simulator.findings import DESCRIPTOR

from .opcode_cases.case import Array, Case, case
from .operand_bits import BITS, HOWS, numbers
from .wmma_cases import wmma_cases

ROOM = 40 << 10  # bytes of shared memory: A in the first 8 KiB, B behind it


# ---- mma


def mma_cases() -> Iterator[Case]:
    """mma.sync of four warps, each form with every kind of operands."""
    shapes = {
        "tf32": [(16, 4), (16, 8)],
        "f16": [(16, 8), (16, 16)],
        "bf16": [(16, 8), (16, 16)],
        "e4m3": [(16, 16), (16, 32)],
        "e5m2": [(16, 16), (16, 32)],
    }
    for a, found in shapes.items():
        for m, k in found:
            for b in ("e4m3", "e5m2") if a[0] == "e" else (a,):
                for d in ("f32", "f16") if a[0] == "e" or a == "f16" else ("f32",):
                    for how in HOWS:
                        yield _mma(f"m{m}n8k{k}.row.col.{d}.{a}.{b}.{d}", how)
    for k in (4, 8, 16):
        for how in ("wide", "special"):
            yield _mma(f"m16n8k{k}.row.col.f64.f64.f64.f64", how)
    for signs, given in (("su", [(8, 16), (16, 16), (16, 32)]), ("su4", [(8, 32), (16, 32), (16, 64)])):
        size = signs[2:] or "8"
        for m, k in given:
            for a in signs[:2]:
                for b in signs[:2]:
                    for flag in ("", ".satfinite"):
                        yield _mma(f"m{m}n8k{k}.row.col{flag}.s32.{a}{size}.{b}{size}.s32", "any")
    for m, k in ((8, 128), (16, 128), (16, 256)):
        for how in ("and", "xor"):
            yield _mma(f"m{m}n8k{k}.row.col.s32.b1.b1.s32.{how}.popc", "any")


def _mma(form: str, how: str) -> Case:
    parts = form.removesuffix(".popc").removesuffix(".and").removesuffix(".xor").split(".")
    d, a, b = parts[-4:-1]
    m, k = (int(x) for x in parts[0].removeprefix("m").split("n8k"))
    word = 8 if d == "f64" else 4
    counts = [
        m * k * BITS[a] // 8 // word // 32,
        8 * k * BITS[b] // 8 // word // 32,
        m * 8 * BITS[d] // 8 // word // 32,
    ]
    arrays = []
    for (kind, of), count in zip(((a, ""), (b, ""), (d, a)), counts, strict=True):
        bits = numbers(kind, 128 * count * word * 8 // BITS[kind], how, f"{form}{len(arrays)}", of)
        arrays.append(np.ascontiguousarray(bits).view(f"u{word}").reshape(128, count))
    if "s32" in form:
        _near_the_limits(arrays[2])
    t = "%rd" if word == 8 else "%r"
    lines, lists, at = [], [], 10
    for i, count in enumerate(counts):
        names = [f"{t}{at + j}" for j in range(count)]
        lines += [f"ld.global.b{8 * word} {name}, [%e{i}+{word * j}];" for j, name in enumerate(names)]
        lists.append("{" + ", ".join(names) + "}")
        at += count
    made = [f"{t}{at + j}" for j in range(counts[2])]
    lines.append(f"mma.sync.aligned.{form} {{{', '.join(made)}}}, {', '.join(lists)};")
    lines += [f"st.global.b{8 * word} [%e3+{word * j}], {name};" for j, name in enumerate(made)]
    out = np.zeros_like(arrays[2])
    found = case(f"mma.{form}.{how}", "\n".join(lines), [*arrays, out], block=128)
    return replace(found, ptx=found.ptx.replace(".version 8.4", ".version 8.8"))


def _near_the_limits(sums: Array) -> None:
    """Some sums near the limits of 32 bits, so that products pass them; others small."""
    quarter = len(sums) // 4
    sums[quarter : 2 * quarter] = 0x7FFFFFFF - sums[quarter : 2 * quarter] % np.uint32(1000)
    sums[2 * quarter : 3 * quarter] = 0x80000000 + sums[2 * quarter : 3 * quarter] % np.uint32(1000)
    sums[3 * quarter :] %= np.uint32(100000)


# ---- wgmma


@dataclass(frozen=True)
class Tile:
    """How a descriptor describes an operand: swizzle mode, leading and stride offset in bytes, whether it is MN-major, the
    address in the room, and the base offset."""

    mode: int
    leading: int
    stride: int
    turned: bool = False
    start: int = 0
    base: int = 0

    def bits(self) -> int:
        """The descriptor without its address."""
        return self.mode << 62 | self.base << 49 | (self.stride >> 4) << 32 | (self.leading >> 4) << 16


#: The usual layout: rows of 128 bytes of K, swizzled.
USUAL = Tile(1, 16, 1024)
#: All canonical layouts of K-major tiles, and of MN-major tiles of 16-bit elements for an operand of up to 64 rows.
K_MAJOR = (
    Tile(0, 128, 256),
    Tile(0, 2048, 128),
    USUAL,
    Tile(1, 16, 1024, start=64),
    Tile(2, 16, 512),
    Tile(3, 16, 256),
)
MN_MAJOR = (Tile(0, 1024, 128, True), Tile(0, 128, 256, True), Tile(1, 4096, 1024, True), Tile(2, 1024, 512, True),
            Tile(3, 512, 256, True), Tile(3, 256, 2048, True))  # fmt: skip
#: Layouts that no library makes: odd offsets, addresses within a pattern, the base offset.
ODD = (Tile(1, 48, 1040), Tile(1, 16, 1024, start=128), Tile(1, 16, 1024, start=256, base=2), Tile(2, 16, 528, start=16),
       Tile(0, 144, 272, start=48), Tile(1, 0, 1024), Tile(1, 16, 0))  # fmt: skip


def wgmma_cases() -> Iterator[Case]:
    """wgmma.mma_async of one warpgroup."""
    floats = [("tf32", "tf32", "f32"), ("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("f16", "f16", "f16")]
    narrow = ("e4m3", "e5m2")
    floats += [(a, b, d) for a in narrow for b in narrow for d in ("f32", "f16")]
    for kinds in floats:
        for how in HOWS:
            yield wgmma(*kinds, 8, how)
            yield wgmma(*kinds, 8, how, registers=True)
        for n, how in ((64, "wide"), (128, "near"), (256, "special")):
            yield wgmma(*kinds, n, how)
        for signs in ((1, -1), (-1, 1), (-1, -1)):
            yield wgmma(*kinds, 8, "near", signs=signs)
        yield wgmma(*kinds, 16, "special", adds=False)
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            for n in (8, 64, 128, 256):
                for flag in ("", ".satfinite"):
                    yield wgmma(a, b, f"s32{flag}", n, "any", registers=n == 64)
    for n in (24, 32, 40, 72, 120, 200, 248):
        yield wgmma("bf16", "bf16", "f32", n, "near")
    for kind, d in (("f16", "f32"), ("tf32", "f32"), ("s8", "s32"), ("e4m3", "f32")):
        for tile in (*K_MAJOR, *ODD):
            yield wgmma(kind, kind, d, 64, "near", a_tile=tile)
            yield wgmma(kind, kind, d, 64, "near", b_tile=tile)
    for tile in MN_MAJOR:
        for other in (USUAL, MN_MAJOR[2]):
            yield wgmma("f16", "f16", "f32", 64, "near", a_tile=tile, b_tile=other)
            yield wgmma("bf16", "bf16", "f32", 64, "near", a_tile=other, b_tile=tile)
        yield wgmma("f16", "f16", "f16", 64, "near", b_tile=tile, registers=True)
    yield wgmma("f16", "f16", "f32", 256, "near", b_tile=Tile(1, 4096, 1024, True))


def wgmma(
    a: str, b: str, d: str, n: int, how: str, *, registers: bool = False, signs: tuple[int, int] = (1, 1),
    adds: bool = True, a_tile: Tile = USUAL, b_tile: Tile = USUAL,
) -> Case:  # fmt: skip
    """One product; A from registers if ``registers``, D = A·B if not ``adds``."""
    d, _, flag = d.partition(".")
    kinds, k = f"{d}.{a}.{b}", 256 // BITS[a]
    half = BITS[a] == 16
    name = f"wgmma.m64n{n}k{k}.{'satfinite.' * bool(flag)}{kinds}.{how}" + ".registers" * registers
    name += "" if signs == (1, 1) else f".signs{signs[0]}{signs[1]}"
    name += "" if adds else ".fresh"
    for letter, tile in (("a", a_tile), ("b", b_tile)):
        if tile != USUAL:
            name += f".{letter}-{tile.mode}-{tile.leading}-{tile.stride}-{tile.turned:d}-{tile.start}-{tile.base}"
    count = n * BITS[d] // 64
    image = np.concatenate([_words(a, 8 << 10, how, "A" + name), _words(b, ROOM - (8 << 10), how, "B" + name)])
    sums = np.ascontiguousarray(numbers(d, 64 * n, how, name, a)).view(np.uint32).reshape(128, count)
    if d == "s32":
        _near_the_limits(sums)
    given = _words(a, 2048, how, "R" + name).reshape(128, 4)
    lines = ["mov.u32 %r1, room; mov.u32 %r2, %tid.x; mad.lo.u32 %r2, %r2, 16, %r1;"]
    lines.append("mov.u32 %r3, %tid.x; mul.wide.u32 %rd1, %r3, 16; add.s64 %rd1, %rd1, %a0;")
    for at in range(0, ROOM, 2048):
        lines.append(f"ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd1+{at}];")
        lines.append(f"st.shared.v4.u32 [%r2+{at}], {{%r10, %r11, %r12, %r13}};")
    lines += [f"ld.global.u32 %d{i}, [%e1+{4 * i}];" for i in range(count)]
    lines += [f"ld.global.u32 %g{i}, [%e2+{4 * i}];" for i in range(4)]
    for register, place, tile in (("%rd2", 0, a_tile), ("%rd3", 8 << 10, b_tile)):
        lines.append(f"add.u32 %r4, %r1, {place + tile.start}; shr.u32 %r4, %r4, 4; and.b32 %r4, %r4, 16383;")
        lines.append(f"cvt.u64.u32 {register}, %r4; or.b64 {register}, {register}, {tile.bits():#x};")
    lines.append(f"mov.u32 %r5, {int(adds)}; setp.ne.b32 %p1, %r5, 0; fence.proxy.async; bar.sync 0;")
    tail = [] if d == "s32" else [str(s) for s in signs]
    tail += [str(int(tile.turned)) for tile in (() if not half else (b_tile,) if registers else (a_tile, b_tile))]
    made = "{" + ", ".join(f"%d{i}" for i in range(count)) + "}"
    left = "{%g0, %g1, %g2, %g3}" if registers else "%rd2"
    order = f"m64n{n}k{k}.{kinds}{'.satfinite' * bool(flag)}"
    lines.append("wgmma.fence.sync.aligned;")
    lines.append(f"wgmma.mma_async.sync.aligned.{order} {', '.join([made, left, '%rd3', '%p1', *tail])};")
    lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;")
    lines += [f"st.global.u32 [%e3+{4 * i}], %d{i};" for i in range(count)]
    extra = f".shared .align 1024 .b8 room[{ROOM}];"
    own = f".reg .b32 %d<{count}>, %g<4>;"
    return case(
        name, "\n".join(lines), [image, sums, given, np.zeros_like(sums)], block=128, extra=extra, registers=own
    )


def _words(kind: str, nbytes: int, how: str, seed: str) -> Array:
    return np.ascontiguousarray(numbers(kind, nbytes * 8 // BITS[kind], how, seed)).view(np.uint32)


#: Every case by name.
CASES: dict[str, Case] = {one.name: one for one in (*mma_cases(), *wmma_cases(), *wgmma_cases())}


#: Results of at most so many bytes are kept whole, of others a hash.
WHOLE = 2048


def kept(result: bytes) -> bytes:
    """What a recording keeps of a result."""
    return result if len(result) <= WHOLE else hashlib.sha256(result).digest()


def replay(name: str) -> bytes:
    """What a case writes in the microscope, which must find nothing wrong with it, unless its descriptor is an odd one."""
    case = CASES[name]
    run = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments))
    wrong = [finding for finding in run.findings if finding.kind != DESCRIPTOR]
    if wrong:
        raise AssertionError(str(wrong[0]))
    return b"".join(np.asarray(run.arrays[o]).tobytes() for o in case.outputs)
