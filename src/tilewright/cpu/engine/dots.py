"""What the kernels for groups of narrow elements share: the choice of the instruction, the blocks and the tiles.

A packed element is a word of 32 bits, which holds a group of steps of k (``cpu/codegen/dots.py``). The tile is that of
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from ...host.machine import machine
from ...kernels.blocking import Blocking
from .. import codegen
from .cuts import PackedBlocks


class DotBlocks(PackedBlocks):
    """``PackedBlocks`` of words; a block of A has room for the first sum of each of its rows, and for one number more."""

    shortens = False

    def __init__(self, chosen: Blocking) -> None:
        super().__init__("dots", chosen, chosen.kc, itemsize=4)
        self.start_at = self.block  # of the first sums; rows of zeros have them, too
        self.block += 2 * self.mc + self.mr + 1


#: For each dtype the instructions from the best one on: the name, the feature that a processor needs, and the bits of the
#: vectors, if it takes only these. AVX512-FP16 has none for float16 whose sums are float32.
_INSTRUCTIONS: dict[str, tuple[tuple[str, str, int | None], ...]] = {
    "int8": (("vpdpbusd", "avx512vnni", 512), ("vpdpbusd", "avxvnni", 256), ("vpmaddwd", "sse2", None)),
    "int16": (("vpdpwssd", "avx512vnni", 512), ("vpdpwssd", "avxvnni", 256), ("vpmaddwd", "sse2", None)),
    "bfloat16": (("vdpbf16ps", "avx512bf16", 512),),
    "float16": (),
}


def chosen_instruction(dtype: str, isa: Collection[str], vector_bits: int) -> tuple[str, str]:
    """The instruction for a dtype, and the feature that it needs, on a processor with the features ``isa`` and vectors of
    that width; empty strings if it has none.

    >>> chosen_instruction("int8", {"sse2", "avx2", "fma"}, 256)
    ('vpmaddwd', 'sse2')
    """
    for name, feature, bits in _INSTRUCTIONS[dtype]:
        if feature in isa and bits in (None, vector_bits):
            return name, feature
    return "", ""


def here(dtype: str) -> str:
    """The instruction for a dtype on this machine.

    >>> here("int16") in ("vpdpwssd", "vpmaddwd", "")
    True
    """
    return chosen_instruction(dtype, machine().isa, machine().vector_bits or 128)[0]


#: For each dtype the instruction, and the feature that a processor needs.
_TILE_INSTRUCTIONS = {"int8": ("tdpbssd", "amx-int8"), "bfloat16": ("tdpbf16ps", "amx-bf16")}


def tile_instruction(dtype: str, isa: Collection[str]) -> tuple[str, str]:
    """The instruction for tiles of a dtype, and the feature that it needs, on a processor with the features ``isa``; empty
    strings if it has none.

    >>> tile_instruction("int8", {"amx-tile", "amx-int8"}), tile_instruction("int16", {"amx-tile", "amx-int8"})
    (('tdpbssd', 'amx-int8'), ('', ''))
    """
    name, feature = _TILE_INSTRUCTIONS.get(dtype, ("", ""))
    return (name, feature) if {"amx-tile", feature} <= set(isa) else ("", "")


def tiles_here(dtype: str) -> str:
    """The instruction for tiles of a dtype on this machine; empty if it has none, or Linux does not let this process use it.

    >>> tiles_here("int8") in ("tdpbssd", "")
    True
    """
    return tile_instruction(dtype, machine().isa)[0]


def instruction_names(isa: Collection[str], vector_bits: int) -> str:
    """The instructions for narrow elements on such a processor, and why these, in a line.

    >>> instruction_names({"sse2", "avx2", "avxvnni"}, 256)
    'int8 by vpdpbusd (avxvnni), int16 by vpdpwssd (avxvnni), bfloat16 converted (no avx512bf16), float16 converted'
    """
    parts = []
    for dtype, known in _INSTRUCTIONS.items():
        name, feature = tile_instruction(dtype, isa)
        if not name:
            name, feature = chosen_instruction(dtype, isa, vector_bits)
        lacking = f" (no {known[0][1]})" if known else ""
        parts.append(f"{dtype} by {name} ({feature})" if name else f"{dtype} converted{lacking}")
    return ", ".join(parts)


def compiled_dots(blocks: DotBlocks, instruction: str | Mapping[int, str]) -> Callable[..., None]:
    """``edges.compiled_tile`` for words, with one more argument: the first sums of every row."""
    chosen = blocks.chosen
    mr, nv, bits, unroll = chosen.mr, chosen.nv, chosen.vector_bits, chosen.unroll
    full = codegen.dot_kernel(mr, nv, bits, instruction, unroll=unroll)
    low = codegen.dot_kernel(mr - 1, nv, bits, instruction, unroll=unroll)
    narrow = codegen.dot_kernel(mr, nv - 1, bits, instruction, unroll=unroll)
    low_narrow = codegen.dot_kernel(mr - 1, nv - 1, bits, instruction, unroll=unroll)

    @codegen.njit(nogil=True)
    def tile(kc, a, a_stride, b, c, ldc, accumulate, rows, vectors, columns, start):
        if vectors == nv:
            if rows == mr:
                full(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
            else:
                low(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
        elif rows == mr:
            narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, start)
        else:
            low_narrow(kc, a, a_stride, b, c, ldc, accumulate, columns, start)

    return tile


# ---- denormal numbers, which instructions for bfloat16 take for zeros -----------------------------------------------

#: The least sum of the exponents of two elements whose products have no denormal sums: −112, each with its bias of 127.
LEAST_EXPONENTS = 254 - 112
#: The counter of packed pieces of B with an element that has less than half of these exponents.
SMALL = 1


@codegen.register_jitable
def least_exponent(least: int) -> int:
    """The exponent, with its bias, of a magnitude as ``cpu.codegen.least_magnitude`` returns it: 512 where all are zeros."""
    return (least + 1) >> 7


@codegen.register_jitable
def no_denormals(of_a: int, of_b: int, least_exponents: int) -> bool:
    """Whether no product of elements with at least these magnitudes can lead to a denormal operand or sum."""
    of_a, of_b = least_exponent(of_a), least_exponent(of_b)
    return min(of_a, of_b) > 0 and of_a + of_b >= least_exponents


def least_of_rows(vector_bits: int) -> Callable[..., int]:
    """A compiled function ``least(rows, count, target, at, ld)``: the least magnitude in rows of ``count`` words."""
    least = codegen.least_magnitude(vector_bits)

    @codegen.njit(nogil=True)
    def of_rows(rows, count, target, at, ld):
        if count == ld:
            rows, count = 1, rows * count
        smallest = 0xFFFF
        for r in range(rows):
            smallest = min(smallest, least(count, codegen.offset(target, at + r * ld)))
        return smallest

    return of_rows


# ---- what is known of dtypes when a kernel is compiled ---------------------------------------------------------------


def sums_of(c: np.ndarray, space: np.ndarray) -> np.ndarray:
    """For compiled code: ``c`` if its elements are those of ``space``; otherwise a matrix of that shape in ``space``."""
    raise NotImplementedError


@codegen.overload(sums_of)
def _sums_of(c, space):
    if c.dtype == space.dtype:
        return lambda c, space: c
    return lambda c, space: space.reshape(c.shape)
