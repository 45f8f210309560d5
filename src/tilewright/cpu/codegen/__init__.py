"""Generates LLVM code with explicit vectors, which kernels that are written in Python call as Numba intrinsics.

Numba has no vector type. Code that needs exact control of registers is generated here as LLVM IR, and a kernel calls it
like any function. The generator does not depend on the machine: it takes the tile (``mr`` rows × ``nv`` vectors) and
the vector width, and works for AVX2, AVX-512 and NEON.

This package defines the functions of the generator that kernels use. They are ``deferred``: the generator's modules and
Numba are imported only when a kernel is compiled.
"""

from .deferred import generated, generator, njit, overload, register_jitable
from .settings import Setting, setting
from .sizes import ALIGNMENT, LOW, TILE

# Functions that compiled code calls.
fetch_add = generated("atomics", "fetch_add")
take_below = generated("atomics", "take_below")
wait_for = generated("atomics", "wait_for")
real_parts = generated("direct", "real_parts")
ahead = generated("in_place", "ahead")
address = generated("memory", "address")
aligned_buffer = generated("memory", "aligned_buffer")
as_row = generated("memory", "as_row")
copy = generated("memory", "copy")
has_rows = generated("memory", "has_rows")
itemsize = generated("memory", "itemsize")
moved = generated("memory", "moved")
offset = generated("memory", "offset")
prefetch_for_write = generated("memory", "prefetch_for_write")
settle = generated("in_place", "settle")
copy_together = generated("atomics", "copy_together")
pointer_as = generated("words", "pointer_as")

# Functions that make such functions.
row_times_i = generator("direct", "row_times_i")
converting_packer = generator("convert", "converting_packer")
row_converter = generator("convert", "row_converter")
direct_tile = generator("direct", "direct_tile")
dot_kernel = generator("dots", "dot_kernel")
least_magnitude = generator("dots", "least_magnitude")
less_dot = generator("dots", "less_dot")
stack_buffer = generator("in_place", "stack_buffer")
tile_in_place = generator("in_place", "tile_in_place")
packer = generator("pack", "packer")
fma_chains = generator("peak", "fma_chains")
deinterleave = generator("in_place", "deinterleave")
row_dots = generator("in_place", "row_dots")
row_updates = generator("in_place", "row_updates")
combiner = generator("strassen_tile", "combiner")
row_adder = generator("strassen_tile", "row_adder")
spreading_kernel = generator("strassen_tile", "spreading_kernel")
tile_adder = generator("strassen_tile", "tile_adder")
tile_prefetch = generator("strassen_tile", "tile_prefetch")
edge_kernel = generator("tile", "edge_kernel")
micro_kernel = generator("tile", "micro_kernel")
tile_kernel = generator("tiles", "tile_kernel")
tile_state = generator("tiles", "tile_state", results=2)
word_packers = generator("words", "word_packers", results=2)

# Kinds of tile registers, which such functions take.
Tiles = generated("tiles", "Tiles")
VectorTiles = generated("tiles", "VectorTiles")

__all__ = [
    "ALIGNMENT",
    "LOW",
    "TILE",
    "Setting",
    "Tiles",
    "VectorTiles",
    "address",
    "ahead",
    "aligned_buffer",
    "as_row",
    "combiner",
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
    "njit",
    "offset",
    "overload",
    "packer",
    "pointer_as",
    "prefetch_for_write",
    "real_parts",
    "register_jitable",
    "row_adder",
    "row_converter",
    "row_dots",
    "row_times_i",
    "row_updates",
    "setting",
    "settle",
    "spreading_kernel",
    "stack_buffer",
    "take_below",
    "tile_adder",
    "tile_in_place",
    "tile_kernel",
    "tile_prefetch",
    "tile_state",
    "wait_for",
    "word_packers",
]
