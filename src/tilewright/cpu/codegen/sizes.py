"""Constants that kernels and the code generator share. The constants are in a separate module so that reading them
needs no compiler."""

from __future__ import annotations

#: Bytes to which every buffer is aligned: a cache line, and the widest vector of any supported machine (S1.1).
ALIGNMENT = 64
#: Rows of a tile register, and 32-bit words in each row.
TILE = 16
#: Rows of a low tile of small products: one of at most half as many prefetches nothing.
LOW = 8
