"""Declarations of PTX: the types there are, and pieces of memory with their initial values."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ...errors import UsageError

#: Bytes of each PTX type; predicates are stored as bytes.
SIZES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}
SIZES |= {f"{kind}{bits}": bits // 8 for kind in "us" for bits in (8, 16, 32, 64)} | {"f32": 4, "f64": 8, "tf32": 4}

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
        if data is not None:
            data = data.ljust(total, b"\0")
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
