"""The generator of inner kernels: right for any tile and vector width, and in registers on this machine."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numba as nb
import numpy as np
import pytest

from support.machine_code import assembly, x86_with_fma
from tilewright.cpu import codegen
from tilewright.cpu.runtime.peaks import BITS, CHAINS
from tilewright.host.machine import machine
from tilewright.kernels.catalog import catalog

DTYPES = ("float32", "float64")
#: Rows, vectors, bits: one vector, the tiles of 16 and of 32 registers, tall, wide, more than any machine holds.
TILES = [(1, 1, 128), (4, 3, 128), (3, 4, 256), (6, 2, 256), (6, 4, 512), (14, 2, 512), (1, 8, 512), (9, 4, 256)]
#: The tile that the ladder uses here.
#: Those of this machine; where vectors stand for tile registers, a tile is in memory.
HOST = [
    (k.params["mr"], k.params["nv"], k.params["vector_bits"])
    for k in catalog().values()
    if "mr" in k.params and not k.name.endswith("_tiles")
]

#: Elements between the rows of a panel of A, more than the longest that is tested.
A_STRIDE = 260


@functools.cache
def tile_product(mr: int, nv: int, bits: int, dtype: str) -> Callable[..., None]:
    """``f(kc, a, b, c, ldc, accumulate)`` around a micro-kernel, compiled."""
    micro = codegen.micro_kernel(mr, nv, bits, a_stride=A_STRIDE)
    element = nb.from_dtype(np.dtype(dtype))
    flat, matrix = nb.types.Array(element, 1, "C"), nb.types.Array(element, 2, "A")

    @nb.njit((nb.intp, flat, flat, matrix, nb.intp, nb.intp))
    def product(kc, a, b, c, ldc, accumulate):
        micro(kc, codegen.offset(a, 0), codegen.offset(b, 0), codegen.address(c, 0, 0), ldc, accumulate)

    return product


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [*TILES, *(tile for tile in HOST if tile not in TILES)], ids=str)
def test_micro_kernel(tile: tuple[int, int, int], dtype: str) -> None:
    mr, nv, bits = tile
    nr = nv * bits // 8 // np.dtype(dtype).itemsize
    run = tile_product(mr, nv, bits, dtype)
    rng = np.random.default_rng(0)
    for kc in (1, 2, 3, 64, 257):
        a, b, old = (rng.integers(-4, 5, size).astype(dtype) for size in ((mr, kc), (kc, nr), (mr, nr)))
        exact = a.astype(int) @ b.astype(int)
        for accumulate in (0, 1, 256):
            large = np.full((mr + 2, nr + 4), 7.5, dtype)  # rows that no vector is aligned to
            c = large[1:-1, 3:-1]
            c[...] = old if accumulate else np.nan  # overwriting must not read
            run(kc, _panel(a), _unaligned(b), c, c.strides[0] // c.itemsize, accumulate)
            assert np.array_equal(c, exact + old if accumulate else exact)
            c[...] = 7.5
            assert (large == 7.5).all(), "wrote beside the tile"


def _unaligned(x: np.ndarray) -> np.ndarray:
    flat = np.empty(x.size + 1, x.dtype)[1:]
    flat[:] = x.ravel()
    return flat


def _panel(a: np.ndarray) -> np.ndarray:
    """Rows A_STRIDE apart; what lies between them is poisoned."""
    panel = np.full((a.shape[0], A_STRIDE), np.nan, a.dtype)
    panel[:, : a.shape[1]] = a
    return _unaligned(panel)


def test_micro_kernel_on_rows_that_run_backwards() -> None:
    run = tile_product(3, 4, 256, "float32")
    a, b = np.ones((3, 2), np.float32), np.arange(64, dtype=np.float32).reshape(2, 32)
    c = np.zeros((3, 32), np.float32)[::-1]
    run(2, _panel(a), b.ravel(), c, c.strides[0] // c.itemsize, 0)
    assert np.array_equal(c, a @ b)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8"])
def test_aligned_empty_starts_on_a_cache_line(dtype: str) -> None:
    like = np.zeros(1, dtype)
    kept = [codegen.aligned_buffer(size, like) for size in (0, 1, 7, 64, 1000, 4097)]
    for size, x in zip((0, 1, 7, 64, 1000, 4097), kept, strict=True):
        assert x.shape == (size,)
        assert x.dtype == like.dtype
        assert x.ctypes.data % codegen.ALIGNMENT == 0
        x[:] = 1  # inside its allocation


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8"])
def test_copy_moves_elements_and_no_more(dtype: str) -> None:
    @nb.njit
    def copy(target, source, count):
        codegen.copy(codegen.offset(target, 1), codegen.offset(source, 2), count)

    source, target = np.arange(10).astype(dtype), np.zeros(10, dtype)
    for count in (0, 1, 7):
        target[:] = 0
        copy(target, source, count)
        assert target.tolist() == [0, *source[2 : 2 + count], *[0] * (9 - count)]


# ---- what became of it -----------------------------------------------------------------------------------------------


def inner_loop(assembly: str, instruction: str) -> list[str]:
    """The lines of the shortest loop that holds ``instruction``: from a label to the jump back to it."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"[.\w$]+:", line)}
    loops = []
    for at, line in enumerate(lines):
        jump = re.match(r"j\w+\s+([.\w$]+)$", line)
        if jump and labels.get(jump[1], at) < at:
            body = lines[labels[jump[1]] : at + 1]
            if any(instruction in inside for inside in body):
                loops.append(body)
    return min(loops, key=len)


@x86_with_fma
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", HOST, ids=str)
def test_the_tile_stays_in_registers(tile: tuple[int, int, int], dtype: str) -> None:
    """One spilled accumulator would cost a load and a store at every step of k."""
    mr, nv, _ = tile
    loop = inner_loop(assembly(tile_product(*tile, dtype)), "vfmadd")
    fused = [line for line in loop if line.startswith("vfmadd")]
    assert len(fused) >= mr * nv
    assert len(fused) % (mr * nv) == 0, "a whole number of steps of k"
    assert not [line for line in loop if "(%rsp" in line or "(%rbp" in line]


@x86_with_fma
def test_the_spill_check_can_fail() -> None:
    """A tile of twice the registers must spill, or the test above looks at the wrong loop."""
    assert machine().vector_registers
    loop = inner_loop(assembly(tile_product(machine().vector_registers or 0, 2, BITS, "float32")), "vfmadd")
    assert [line for line in loop if "(%rsp" in line or "(%rbp" in line]


@pytest.fixture(scope="module", params=DTYPES)
def chains(request: pytest.FixtureRequest) -> Callable[..., None]:
    run = codegen.fma_chains(CHAINS, BITS)
    flat = nb.types.Array(nb.from_dtype(np.dtype(request.param)), 1, "C")

    @nb.njit((nb.intp, flat))
    def step(steps, x):
        run(steps, codegen.offset(x, 0))

    return step


def test_fma_chains_compute(chains: Callable[..., None]) -> None:
    """x ← x/2 + 1 runs to 2 from anywhere, and there are ``CHAINS`` of them."""
    (argument,) = (signature[1] for signature in chains.signatures)  # type: ignore[attr-defined]
    x = np.array([0.5, 1.0], dtype=argument.dtype.name)
    chains(200, x)
    assert x.tolist() == [2.0 * CHAINS, 1.0]


@x86_with_fma
def test_fma_chains_are_nothing_but_fused_multiply_adds(chains: Callable[..., None]) -> None:
    loop = inner_loop(assembly(chains), "vfmadd")
    fused = [line for line in loop if line.startswith("vfmadd")]
    assert len(fused) >= CHAINS
    assert len(fused) % CHAINS == 0
    assert not [line for line in loop if "(%" in line], "no memory is touched"
