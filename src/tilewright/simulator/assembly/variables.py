"""Declarations of PTX: types with their sizes, and variables with their initial values."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError

#: Bytes of each PTX type; predicates are stored as bytes.
SIZES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}
SIZES |= {f"{kind}{bits}": bits // 8 for kind in "us" for bits in (8, 16, 32, 64)} | {"f32": 4, "f64": 8, "tf32": 4}

#: The most bytes of a variable of each space; a launch limits shared memory further.
MOST_BYTES = {"shared": 1 << 20, "global": 1 << 36, "const": 1 << 16, "local": 1 << 19, "param": 1 << 15}

NAME = r"[A-Za-z_$%][\w$]*"


@dataclass(frozen=True)
class Variable:
    """A declared piece of memory: ``.shared .align 16 .b8 As[4096]``; ``size`` 0 is extern (dynamic) shared."""

    name: str
    space: str
    type: str
    align: int
    size: int
    data: bytes | None = None
    symbols: tuple[tuple[int, str], ...] = ()


def syntax_error(message: str, line: int) -> UsageError:
    """The error for text that is not PTX, with its line."""
    return UsageError(f"PTX line {line}: {message}")


def parse_variable(text: str, line: int) -> list[Variable]:
    """``.shared .align 4 .b8 x[16] = {1, 2}`` → a Variable; several names give several."""
    head, _, value = text.partition("=")
    space = next((s for s in ("shared", "global", "const", "local", "param") if re.search(rf"\.{s}\b", head)), "")
    if not space:
        raise syntax_error(f"unknown declaration {text[:60]!r}", line)
    kinds = [w for w in re.findall(r"\.(\w+)", head) if w in SIZES]
    if not kinds:
        raise syntax_error(f"no type of known size in {text[:60]!r}", line)
    kind, vector = kinds[0], re.search(r"\.v([24])\b", head)
    size = SIZES[kind] * (int(vector[1]) if vector else 1)
    align = int(m[1]) if (m := re.search(r"\.align\s+(\d+)", head)) else size
    out = []
    names = re.sub(r"\.align\s+\d+|\.ptr\b|\.\w+", " ", head)
    for name, dims in re.findall(rf"({NAME})((?:\s*\[[^\]]*\])*)", names):
        count = 1
        for dim in re.findall(r"\[\s*(\w*)\s*\]", dims):
            count *= int(dim, 0) if dim else 0
        data, symbols = _initial(value, kind) if value else (None, ())
        total = count * size or len(data or b"")
        if not 0 <= total <= MOST_BYTES[space] or not 0 < align <= 1 << 16:
            raise syntax_error(f"{name} has {total:,} bytes: .{space} memory has {MOST_BYTES[space]:,} at most", line)
        out.append(Variable(name, space, kind, align, total, data, symbols))
    return out


def _initial(value: str, kind: str) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """The bytes of an initialiser, and the symbols whose addresses go into it."""
    size, data, symbols = SIZES[kind], b"", []
    for word in re.findall(r"[^\s,{}]+", value):
        if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", word):
            number = int(word[2:], 16)
        elif kind.startswith("f") and re.fullmatch(r"-?[\d.]+(?:[eE][-+]?\d+)?", word):
            data += (np.float32 if kind == "f32" else np.float64)(word).tobytes()
            continue
        elif re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", word):
            number = int(word.rstrip("U"), 0)
        else:
            symbols.append((len(data), word))
            number = 0
        data += (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return data, tuple(symbols)


def ptx_integer(text: str) -> int | None:
    """A whole number as PTX writes it; None for anything else.

    >>> ptx_integer("0x1F"), ptx_integer("-017"), ptx_integer("4U"), ptx_integer("x")
    (31, -15, 4, None)
    """
    if len(text) > 99 or not re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", text):
        return None
    digits = text.rstrip("U")
    return int(digits, 8) if re.fullmatch(r"-?0[0-7]+", digits) else int(digits, 0)


def immediate(text: str, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """A number as PTX writes it, as a 0-d array of an instruction's type; None for a name.

    >>> immediate("0f3F800000", np.dtype("f4")), immediate("0x1F", np.dtype("u2"))
    (array(1., dtype=float32), array(31, dtype=uint16))
    """
    size, real = dtype.itemsize, dtype.kind == "f" and dtype.itemsize > 2
    if m := re.fullmatch(r"0([fF])([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", text):
        number = int(m[2] or m[3], 16)
        if real:
            bits = (
                np.array(number, np.uint32).view(np.float32) if m[1] else np.array(number, np.uint64).view(np.float64)
            )
            return bits.astype(dtype)
    elif re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", text):
        if dtype.kind == "f":
            return np.array(float(text), dtype)
        wide = size == 8
        number = struct.unpack("<Q" if wide else "<I", struct.pack("<d" if wide else "<f", float(text)))[0]
    elif (whole := ptx_integer(text)) is not None:
        number = whole
        if real:
            return np.array(number, dtype)
    elif text == "WARP_SZ":
        number = 32
    else:
        return None
    if dtype.kind == "b":
        return np.array(bool(number))
    return np.array(number & ((1 << 8 * size) - 1), f"u{size}").view(dtype)
