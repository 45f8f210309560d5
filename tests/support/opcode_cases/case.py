"""What a case is, how its PTX is put together and where its inputs come from."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Dim = int | tuple[int, ...]

#: Bytes of each type; a predicate is written as a byte.
SIZE = {"pred": 1, **{f"{k}{b}": b // 8 for k in "bus" for b in (8, 16, 32, 64)}}
SIZE |= {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "tf32": 4, "e4m3x2": 2, "e5m2x2": 2}

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
_SCRATCH = (
    ".reg .pred %p<9>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %rd<60>; .reg .f32 %f<20>; .reg .f64 %fd<20>;"
)


@dataclass(frozen=True)
class Within:
    """How far a result may lie from the recorded one, seen as ``kind``, and why: the sum of the three bounds."""

    kind: str
    why: str
    ulp: float = 0
    absolute: float = 0
    relative: float = 0


@dataclass(frozen=True)
class Case:
    """A kernel ``k`` of a PTX module, its launch and its arguments; ``outputs`` are those whose bits are compared."""

    name: str
    ptx: str
    grid: Dim
    block: Dim
    arguments: tuple[Any, ...]
    outputs: tuple[int, ...]
    shared: int = 0
    within: Within | None = None
    rows: tuple[str, ...] = ()  # the instruction of each row of the output

    def digest(self) -> str:
        """A hash of all that the result depends on."""
        made = hashlib.sha256(self.ptx.encode())
        made.update(repr((self.grid, self.block, self.shared, self.outputs)).encode())
        for argument in self.arguments:
            given = np.asarray(argument)
            made.update(f"{given.dtype.str}{given.shape}".encode() + given.tobytes())
        return made.hexdigest()[:16]


def module(body: str, params: Sequence[str], *, extra: str = "", registers: str = "", directive: str = "") -> str:
    """A module with one kernel ``k`` of these parameters (PTX types)."""
    listed = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(params))
    return f"{HEAD}{extra}\n.visible .entry k({listed}) {directive}\n{{\n{_SCRATCH} {registers}\n{body}\nret;\n}}\n"


def case(
    name: str, body: str, arguments: Sequence[Array], *, outputs: Sequence[int] = (-1,), block: int = 32, grid: int = 1,
    shared: int = 0, extra: str = "", registers: str = "", directive: str = "", within: Within | None = None,
    rows: Sequence[str] = (),
) -> Case:  # fmt: skip
    """A kernel of arrays. %t is the thread within the grid, %a0, %a1 … are the addresses of the arrays, %e0, %e1 …
    those of the thread's own part, which is the array divided by the number of threads."""
    lines = ["mov.u32 %u, %ctaid.x; mov.u32 %v, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %t, %u, %v, %t;"]
    count = len(arguments)
    for i, array in enumerate(arguments):
        stride = array.nbytes // (block * grid)
        lines.append(f"ld.param.u64 %a{i}, [p{i}]; mul.wide.u32 %e{i}, %t, {stride}; add.s64 %e{i}, %e{i}, %a{i};")
    own = f".reg .b32 %t, %u, %v; .reg .b64 %a<{count}>, %e<{count}>; {registers}"
    text = module("\n".join([*lines, body]), ["u64"] * count, extra=extra, registers=own, directive=directive)
    places = tuple(o % count for o in outputs)
    return Case(name, text, grid, block, tuple(arguments), places, shared, within, tuple(rows))


def elementwise(
    name: str, rows: Sequence[str], out: str, kinds: Sequence[str], arrays: Sequence[Array], within: Within | None = None,
) -> Case:  # fmt: skip
    """Each of ``rows``, instructions with {d}, {a}, {b} and {c}, for each element of the arrays: a row of results."""
    n, names = len(arrays[0]), "abcd"[: len(kinds)]
    lines, declared = [], []
    for i, (name_, kind) in enumerate(zip((*names, "z"), (*kinds, out), strict=True)):
        bits = 8 * SIZE[kind]
        declared.append(f".reg .pred %{name_};" if kind == "pred" else f".reg .b{max(bits, 16)} %{name_};")
        if name_ != "z" and kind == "pred":
            lines.append(f"ld.global.u8 %r9, [%e{i}]; setp.ne.u32 %{name_}, %r9, 0;")
        elif name_ != "z":
            lines.append(f"ld.global.b{bits} %{name_}, [%e{i}];")
    size, last = SIZE[out], len(kinds)
    lines.append(f"mul.wide.u32 %rd9, %t, {size}; add.s64 %rd9, %rd9, %a{last};")
    for j, row in enumerate(rows):
        lines.append(row.format(d="%z", **{x: f"%{x}" for x in names}) + ";")
        if out == "pred":
            lines.append(f"selp.u32 %r9, 1, 0, %z; st.global.u8 [%rd9+{j * n}], %r9;")
        else:
            lines.append(f"st.global.b{8 * size} [%rd9+{j * n * size}], %z;")
    result = np.zeros((len(rows), n), f"u{size}")
    return case(
        name, "\n".join(lines), [*arrays, result], block=n, registers=" ".join(declared), within=within, rows=rows
    )  # fmt: skip


# ---- inputs: bits, so that no library decides what they are


def raw(seed: str, n: int) -> Array:
    """n random 64-bit words; PCG64's raw stream is the same in every version of NumPy."""
    return np.random.PCG64(zlib.crc32(seed.encode())).random_raw(n)


def words(seed: str, shape: Sequence[int] | int, bits: int = 32) -> Array:
    """Random bits."""
    count = int(np.prod(shape))
    return (raw(seed, count) >> np.uint64(64 - bits)).astype(f"u{bits // 8}").reshape(shape)


def _corners(x: Array, corners: Sequence[int], operand: int, count: int, seed: str) -> Array:
    """Put every pair of corners in front (three operands: a random third), and random corners here and there."""
    given = np.array(corners, np.uint64).astype(x.dtype)
    pairs = min(len(x) // 2 if count > 1 else len(given), len(given) ** min(count, 2))
    order = np.arange(pairs) if operand < 2 else (raw(seed + "third", pairs) >> np.uint64(20)).astype(np.int64)
    # A stride without a common factor spreads the pairs that there is no room for.
    step = 1 if len(given) ** 2 <= pairs or count == 1 else 7
    where = order * step % len(given) ** min(count, 2) if operand < 2 else order
    x[:pairs] = given[where // len(given) ** (operand % 2) % len(given)]
    some = raw(seed + "some", len(x)) >> np.uint64(40)
    chosen = (some % np.uint64(8) == 0) & (np.arange(len(x)) >= pairs)
    x[chosen] = given[(some // np.uint64(8) % np.uint64(len(given)))[chosen].astype(np.int64)]
    return x


def ints(kind: str, operand: int = 0, count: int = 1, n: int = 128, seed: str = "") -> Array:
    """Integers of every magnitude, as bits, the corners of the type in front."""
    bits = 8 * SIZE[kind]
    seed = f"{kind}{operand}{seed}"
    both = raw(seed, 2 * n)
    shift = (both[n:] % np.uint64(bits)).astype(np.int64)
    x = ((both[:n] >> np.uint64(64 - bits)).astype(f"u{bits // 8}")).view(f"i{bits // 8}") >> shift.astype(
        f"i{bits // 8}"
    )
    top = 1 << (bits - 1)
    corners = [0, 1, 2, 31 % bits, 2 * top - 1, top, top - 1, top + 1]
    return _corners(x.view(f"u{bits // 8}").copy(), corners, operand, count, seed)


#: Bits of exponent and mantissa.
FORMAT = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 23)}


def float_corners(kind: str) -> list[int]:
    """±0, ±1, 1.5, ±infinity, two NaNs, the least and greatest subnormal, the least and greatest normal numbers."""
    e, m = FORMAT[kind]
    sign, one, top = 1 << (e + m), ((1 << (e - 1)) - 1) << m, ((1 << e) - 1) << m
    quiet, signalling = top | 1 << (m - 1), sign | top | 5
    return [0, sign, one, sign | one, one | 1 << (m - 1), top, sign | top, quiet, signalling, 1,
            sign | ((1 << m) - 1), 1 << m, top - 1]  # fmt: skip


def floats(kind: str, operand: int = 0, count: int = 1, n: int = 256, seed: str = "", near: int = 0) -> Array:
    """Floats as bits: half of them near 1 with trailing zeros (so that results tie), others of any size, corners.

    With ``near`` all exponents are within that distance of 1's, and there are no corners.
    """
    e, m = FORMAT[kind.removesuffix("x2")]
    pair = kind.endswith("x2")
    n = 2 * n if pair else n
    seed = f"{kind}{operand}{seed}"
    r = raw(seed, 3 * n).reshape(3, n)
    bias, top = (1 << (e - 1)) - 1, (1 << e) - 2
    reach = np.uint64(2 * (near or 4) + 1)
    exponents = np.uint64(bias - (near or 4)) + r[0] % reach
    if not near:
        which = (r[0] >> np.uint64(8)) % np.uint64(8)
        other = (r[0] >> np.uint64(16)).astype(np.uint64)
        exponents = np.where(which < 2, other % np.uint64(top + 1), exponents)
        exponents = np.where(which == 2, other % np.uint64(3), exponents)
        exponents = np.where(which == 3, np.uint64(top) - other % np.uint64(3), exponents)
    zeros = (r[1] >> np.uint64(56)) % np.uint64(m)
    mantissa = (r[1] & np.uint64((1 << m) - 1)) >> zeros << zeros
    bits = (r[2] >> np.uint64(63)) << np.uint64(e + m) | exponents << np.uint64(m) | mantissa
    x = bits.astype(f"u{(1 + e + m) // 8}")
    if not near:
        x = _corners(x, float_corners(kind.removesuffix("x2")), operand, count, seed)
    return x.view(np.uint32) if pair else x


def operands(kinds: Sequence[str], n: int = 256, seed: str = "") -> list[Array]:
    """One array for each operand of an instruction."""
    count = len(kinds)
    return [
        ints(k, i, count, n, seed) if k[0] in "bus" and k[:2] != "bf" else floats(k, i, count, n, seed)
        for i, k in enumerate(kinds)
    ]
