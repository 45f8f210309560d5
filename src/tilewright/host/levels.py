"""The instruction levels for which the engine is built, and which of them a processor has.

A level is a set of instructions for which kernels are compiled. The machine code of a level does not contain sizes of
caches and numbers of cores, because it reads these numbers when it runs (``cpu.codegen.setting``). So one library
serves every processor of its level.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_V3 = ("sse2", "sse4.2", "avx", "fma", "f16c", "avx2")
_V4 = (*_V3, "avx512f", "avx512vl", "avx512dq", "avx512bw")
#: What the processors that levels are tuned for have beside, and LLVM might use.
_MORE = ("sse4a", "aes", "vaes", "pclmul", "vpclmulqdq", "sha", "gfni")
_MORE_V4 = (
    *_MORE,
    "avx512ifma",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512bitalg",
    "avx512vpopcntdq",
    "avx512fp16",
    "avxvnni",
)


@dataclass(frozen=True)
class InstructionLevel:
    """An instruction level of an architecture, with LLVM's names of the instruction sets that the level includes.

    ``tuned_for`` is the processor, by LLVM's name, for which LLVM chooses and orders instructions. LLVM does not use
    the instruction sets ``without``, although this processor has them.
    """

    name: str
    arch: str
    isa: tuple[str, ...]
    tuned_for: str
    without: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The file name of the level's library."""
        return f"{self.name}.so"

    @property
    def triple(self) -> str:
        """LLVM's name (the target triple) of the system for which the library is built."""
        return f"{self.arch}-unknown-linux-gnu"

    @property
    def llvm_features(self) -> str:
        """The instruction sets of the level in LLVM's notation. If the level has vectors of 512 bits, loops may use
        these vectors; by default LLVM prefers shorter vectors for the first processors that had 512 bits."""
        wide = ["-prefer-256-bit"] if "avx512f" in self.isa else []
        left_out = [f"-{name}" for name in self.without if name not in self.isa]
        return ",".join([*(f"+{name}" for name in self.isa), *left_out, *wide])


#: Each one after those that it includes. Tuning matters: int16 of 500³ took a third longer on Zen 4 in code that was tuned
#: for no processor.
LEVELS = (
    InstructionLevel("x86-64-v3", "x86_64", _V3, "znver3", _MORE),
    InstructionLevel("x86-64-v3-vnni", "x86_64", (*_V3, "avxvnni"), "alderlake", (*_MORE, "avx512f")),
    InstructionLevel("x86-64-v4", "x86_64", _V4, "skylake-avx512", _MORE_V4),
    InstructionLevel("x86-64-v4-vnni", "x86_64", (*_V4, "avx512vnni"), "icelake-server", _MORE_V4),
    InstructionLevel("x86-64-v4-bf16", "x86_64", (*_V4, "avx512vnni", "avx512bf16"), "znver4", _MORE_V4),
    InstructionLevel(
        *("x86-64-v4-amx", "x86_64", (*_V4, "avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16")),
        *("sapphirerapids", _MORE_V4),
    ),
    InstructionLevel("aarch64", "aarch64", ("neon",), "neoverse-n1"),
)


def instruction_levels(arch: str, isa: Collection[str]) -> list[InstructionLevel]:
    """Return the instruction levels that a processor supports, the highest level first.

    >>> [level.name for level in instruction_levels("x86_64", {"sse2", "sse4.2", "avx", "fma", "f16c", "avx2", "avxvnni"})]
    ['x86-64-v3-vnni', 'x86-64-v3']
    """
    return [level for level in reversed(LEVELS) if level.arch == arch and set(level.isa) <= set(isa)]


def level_named(name: str) -> InstructionLevel:
    """The level with this name. Raises KeyError."""
    return {level.name: level for level in LEVELS}[name]
