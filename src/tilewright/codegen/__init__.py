"""Explicit vectors for kernels written in Python: LLVM vector IR behind Numba intrinsics.

Numba has no vector type, so code that needs exact control of registers is generated here as LLVM IR and called from a
kernel like any function. The generator does not depend on the machine: it takes the tile (``mr`` rows × ``nv`` vectors)
and the vector width, and serves AVX2, AVX-512 and NEON alike.
"""

from . import jit as jit  # first: it says for what processor is compiled
from .atomics import fetch_add, take_below, wait_for
from .complex_rows import real_parts, row_times_i
from .convert import converting_packer, row_converter
from .direct import LOW, direct_tile
from .dots import dot_kernel, least_magnitude, less_dot
from .in_place import ahead, stack_buffer, tile_in_place
from .memory import (
    ALIGNMENT,
    address,
    aligned_buffer,
    as_row,
    copy,
    has_rows,
    itemsize,
    moved,
    offset,
    prefetch_for_write,
)
from .pack import packer
from .peak import fma_chains
from .streams import deinterleave, row_dots, row_updates, settle
from .tile import edge_kernel, micro_kernel
from .tiles import TILE, Tiles, VectorTiles, tile_kernel, tile_state
from .together import copy_together
from .words import pointer_as, word_packers

__all__ = [
    "ALIGNMENT",
    "LOW",
    "TILE",
    "Tiles",
    "VectorTiles",
    "address",
    "ahead",
    "aligned_buffer",
    "as_row",
    "converting_packer",
    "copy",
    "copy_together",
    "deinterleave",
    "direct_tile",
    "dot_kernel",
    "edge_kernel",
    "fetch_add",
    "fma_chains",
    "has_rows",
    "itemsize",
    "least_magnitude",
    "less_dot",
    "micro_kernel",
    "moved",
    "offset",
    "packer",
    "pointer_as",
    "prefetch_for_write",
    "real_parts",
    "row_converter",
    "row_dots",
    "row_times_i",
    "row_updates",
    "settle",
    "stack_buffer",
    "take_below",
    "tile_in_place",
    "tile_kernel",
    "tile_state",
    "wait_for",
    "word_packers",
]
