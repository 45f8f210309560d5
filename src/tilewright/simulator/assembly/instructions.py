"""Represents the parts of a PTX text as data. A module has functions and variables; a function has instructions, each
with its source line.

Variables have types with their sizes, and initial values. The functions of this module tell how an instruction
interacts with other threads: whether it reads what they wrote, writes, fences, or is executed by a whole warp.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...gpu.runtime.nvrtc import is_library

# ---- types and variables ---------------------------------------------------------------------------------------------

#: Bytes of each PTX type; predicates are stored as bytes.
SIZES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}
SIZES |= {f"{kind}{bits}": bits // 8 for kind in "us" for bits in (8, 16, 32, 64)} | {"f32": 4, "f64": 8, "tf32": 4}

#: The most bytes of a variable of each space; a launch limits shared memory further.
MOST_BYTES = {"shared": 1 << 20, "global": 1 << 36, "const": 1 << 16, "local": 1 << 19, "param": 1 << 15}

NAME = r"[A-Za-z_$%][\w$]*"


@dataclass(frozen=True)
class Variable:
    """A declared variable in memory, such as ``.shared .align 16 .b8 As[4096]``. ``size`` 0 means extern (dynamic)
    shared memory."""

    name: str
    space: str
    type: str
    align: int
    size: int
    data: bytes | None = None
    symbols: tuple[tuple[int, str], ...] = ()


def syntax_error(message: str, line: int) -> UsageError:
    """Make the error for text that is not PTX; the error names the line."""
    return UsageError(f"PTX line {line}: {message}")


def parse_variable(text: str, line: int) -> list[Variable]:
    """Parse a declaration such as ``.shared .align 4 .b8 x[16] = {1, 2}`` into Variables; a declaration of several
    names gives several."""
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
    """Parse a whole number in PTX's notation; None for any other text.

    >>> ptx_integer("0x1F"), ptx_integer("-017"), ptx_integer("4U"), ptx_integer("x")
    (31, -15, 4, None)
    """
    if len(text) > 99 or not re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", text):
        return None
    digits = text.rstrip("U")
    return int(digits, 8) if re.fullmatch(r"-?0[0-7]+", digits) else int(digits, 0)


def immediate(text: str, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Parse a number in PTX's notation as a 0-d array of an instruction's type; None for a name.

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


# ---- instructions, functions and modules -----------------------------------------------------------------------------

_TOKEN = re.compile(r"\([^)]*\)|\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]()]+")
WORD = re.compile(rf"(?<![\w$%.]){NAME}")


@dataclass(frozen=True)
class Where:
    """A place in the user's source; ``line`` is 0 if the PTX has no line information."""

    file: str = ""
    line: int = 0
    column: int = 0

    @property
    def in_library(self) -> bool:
        """Whether the source line is in a header of CUDA or of this package, which the user did not write."""
        return is_library(self.file)


def place_of_user(where: Where, calls: tuple[Where, ...]) -> Where:
    """Return the place itself; or if the place is in a library's header, the place of the innermost call in the user's
    files."""
    return next((place for place in (where, *calls) if place.line and not place.in_library), where)


@dataclass(frozen=True)
class Instruction:
    """One instruction, with opcode, operands and guard; for example ``ld.global.v2.f32 {%f1,%f2}, [%rd1+8]``.

    ``index`` is the position of the instruction in the program that runs, in which calls are inlined. ``inlined_at`` is
    the source line of the call from which the instruction was inlined, if the compiler gives that line; of nested calls
    it is the outermost.
    """

    index: int
    opcode: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None  # predicate register, negated
    where: Where
    inlined_at: Where | None = None
    ptx_line: int = 0
    calls: tuple[Where, ...] = ()  # the calls that it was inlined from, the innermost first

    @property
    def users(self) -> Where:
        """The source line of the instruction in the user's files. For an instruction from a library's header, it is the
        line of the innermost call in the user's files."""
        return place_of_user(self.where, self.calls)

    @property
    def parts(self) -> tuple[str, ...]:
        """The words of the opcode, such as ``("ld", "global", "v2", "f32")``."""
        return _words(self.opcode)

    @property
    def line(self) -> int:
        """The number of the source line of the instruction; 0 if the PTX has no line information."""
        return self.where.line

    @property
    def file(self) -> str:
        """The source file of the instruction; "" if the PTX has no line information."""
        return self.where.file

    @property
    def text(self) -> str:
        """The instruction as PTX text; of a long list of registers, the text has only the first and the last."""
        guard = f"@{'!' if self.guard[1] else ''}{self.guard[0]} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(map(_shortened, self.operands))}".strip()

    def place(self, named: Instruction | None = None) -> str:
        """The source line as text for messages, or the line of the PTX if no source line is known. The text leaves out
        the file if it is also the file of ``named``."""
        if not self.line:
            return f"PTX line {self.ptx_line}"
        return f"line {self.line}" if named is not None and named.file == self.file else f"{self.file}:{self.line}"


@functools.lru_cache(maxsize=1 << 12)  # programs have few opcodes
def _words(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.replace("::", ".").split("."))


def _shortened(operand: str) -> str:
    names = operand_tokens(operand[1:-1]) if operand.startswith("{") else []
    return f"{{{names[0]}, …, {names[-1]}}}" if len(names) > 8 else operand


@dataclass
class Function:
    """A kernel (``entry``) or a device function. A function that is only declared is not ``defined`` and has no code.

    ``registers`` has the PTX type of each register. ``labels`` has the position in ``code`` that each label marks, and
    ``tables`` the labels of each branch table. ``limits`` has, for each directive that limits a launch, such as
    ``reqntid``, its numbers along x, y and z.
    """

    name: str
    entry: bool
    params: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    limits: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # by directive, such as reqntid
    defined: bool = False


@dataclass(eq=False)
class Module:
    """All functions and module-wide variables of a PTX text by name, and its source files by number."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)


def operand_tokens(text: str) -> list[str]:
    """Split the operands of an instruction; a vector, an address or a list of arguments counts as one operand.

    >>> operand_tokens("{%f1, %f2}, [%rd1+8]")
    ['{%f1, %f2}', '[%rd1+8]']
    """
    return _TOKEN.findall(text)


def elements_of(operand: str) -> list[str]:
    """Return the elements of a vector operand; any other operand is returned as a list of one element.

    >>> elements_of("{%r1, %r2}"), elements_of("%r1")
    (['%r1', '%r2'], ['%r1'])
    """
    return operand_tokens(operand[1:-1]) if operand.startswith("{") else [operand]


# ---- what an instruction has to do with other threads ----------------------------------------------------------------

_ORDERED = {"volatile", "acquire", "relaxed", "acq_rel", "mmio"}


def loads_anew(ins: Instruction) -> bool:
    """Whether an instruction reads what other threads may just have written: an ordered load, an atomic, or a wait."""
    name = ins.parts[0]
    return is_mbarrier_wait(ins) or name == "atom" or (name == "ld" and bool(_ORDERED & set(ins.parts)))


def is_mbarrier_wait(ins: Instruction) -> bool:
    """Whether an instruction waits for a phase of an mbarrier (``mbarrier.try_wait`` or ``mbarrier.test_wait``)."""
    return ins.parts[0] == "mbarrier" and bool({"try_wait", "test_wait"} & set(ins.parts))


def synchronises_grid(code: Iterable[Instruction]) -> bool:
    """Whether a kernel uses the workspace by which all blocks of a cooperative launch synchronise. ``%envreg1`` and
    ``%envreg2`` hold the address of that workspace."""
    return any(operand in ("%envreg1", "%envreg2") for ins in code for operand in ins.operands)


def uses_tensor_memory(code: Iterable[Instruction]) -> bool:
    """Whether a kernel uses tensor memory, which GPUs have since compute capability 10.0."""
    return any(ins.parts[0] == "tcgen05" for ins in code)


def is_ordered(ins: Instruction) -> bool:
    """Whether an instruction accesses memory in an order on which other threads may rely. Atomics, volatile and ordered
    accesses, and operations on barrier objects count as such instructions."""
    return ins.parts[0] in ("atom", "red", "mbarrier") or bool((_ORDERED | {"release", "complete_tx"}) & set(ins.parts))


def stores(ins: Instruction) -> bool:
    """Whether an instruction writes memory. Atomics (``atom``) do not count as stores here, because the value that an
    atomic returns shows whether memory changed."""
    name = ins.parts[0]
    if name == "mbarrier":
        return not loads_anew(ins)
    return name in ("st", "red", "cp", "stmatrix", "wgmma", "multimem", "tensormap") or name.startswith("tcgen")


def only_reads(ins: Instruction) -> bool:
    """Whether an instruction leaves global memory unchanged."""
    copies_in = ins.opcode.startswith("cp.async") and "global.shared" not in ins.opcode
    return copies_in or ins.opcode.startswith(("ld", "prefetch"))


def fences(ins: Instruction) -> bool:
    """Whether an instruction makes earlier writes visible to other threads: a fence, or an operation with release
    semantics."""
    if ins.parts[0] in ("mbarrier", "barrier") or ins.parts[:2] in (("fence", "proxy"), ("fence", "mbarrier_init")):
        return False
    return ins.parts[0] in ("fence", "membar") or bool({"release", "acq_rel"} & set(ins.parts[1:]))


def is_collective(ins: Instruction) -> bool:
    """Whether the lanes of a warp execute an instruction together (``.sync``). Barriers of a block do not count as such
    instructions."""
    return "sync" in ins.parts and (ins.parts[0] not in ("bar", "barrier") or "warp" in ins.parts)


def is_warp_barrier(ins: Instruction) -> bool:
    """Whether an instruction is ``bar.warp.sync``."""
    return ins.parts[0] in ("bar", "barrier") and "warp" in ins.parts


def is_warpgroup_wide(ins: Instruction) -> bool:
    """Whether the four warps of a warpgroup execute an instruction together."""
    return ins.parts[:2] == ("wgmma", "mma_async")
