"""Which kernel a GPU gets and with which parameters; what a header says of it; and products prepared for a shape."""

from __future__ import annotations

import doctest
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import simulated_libraries as fake
from support.simulated_gpu import parsed
from tilewright.errors import CompileError, DTypeError, HeaderError, UsageError
from tilewright.gpu.arrays import choose as chooser
from tilewright.gpu.arrays import gpu_array as arrays
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.order import Operands
from tilewright.gpu.planning import choice
from tilewright.gpu.planning.choice import choose_gpu as choose
from tilewright.gpu.planning.choice import engine_on_gpu
from tilewright.gpu.planning.ways import EngineShape, ways
from tilewright.gpu.runtime import compilations
from tilewright.gpu.runtime import product as gpu_product
from tilewright.gpu.runtime.compilations import Compilations, engine_kernel
from tilewright.gpu.runtime.nvrtc import compile_kernel
from tilewright.gpu.runtime.product import MOST, prepare_gpu_product
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import Card
from tilewright.simulator import RunOptions, simulate

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

BANKS, TENSOR = cuda_catalog()["cuda/register_banks"], cuda_catalog()["cuda/dgemm_tensor"]
PRESETS = [(kernel, i) for kernel in cuda_catalog().values() for i in range(len(kernel.presets))]

HEADER = """/*
idea = "x"
block = [32]
grid = ["cdiv(m, TILE) * cdiv(n, TILE)"]
{}
[params]
TILE = {{ default = 32, values = [8, 16, 32] }}
*/
extern "C" __global__ void mine(const float* a, const float* b, float* c, int m, int n, int k) {{}}
"""


@pytest.mark.parametrize("module", [arrays, choice])
def test_doctests(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# ---- the choice


@pytest.mark.parametrize(
    ("dtype", "capability", "name"),
    [
        ("float32", "9.0", "cuda/register_banks"), ("float32", "8.6", "cuda/register_banks"),
        ("float32", "12.0", "cuda/register_banks"), ("float32", "7.5", "cuda/warp_tile"),
        ("float64", "9.0", "cuda/dgemm_tensor"), ("float64", "8.0", "cuda/dgemm_tensor"),
        ("float64", "7.5", "cuda/dgemm_column"),
    ],
)  # fmt: skip
def test_the_highest_rung_that_fits(dtype: str, capability: str, name: str) -> None:
    choice = choose(dtype, 4096, 4096, 4096, capability=capability)
    assert choice.kernel.name == name
    assert choice.kernel.precision == "standard"
    assert choice.params == choice.kernel.params
    assert capability in choice.why


def test_a_dtype_that_no_kernel_has() -> None:
    with pytest.raises(
        DTypeError, match=r"no kernel multiplies int32 on compute capability 9\.0: .*float16, float32, float64, .*have"
    ):
        choose("int32", 8, 8, 8, capability="9.0")


@pytest.mark.parametrize(("needed", "has", "fits"), [
    ("8.0", "8.0", True), ("8.0", "12.0", True), ("8.0", "7.5", False), ("9.0a", "9.0", True), ("9.0a", "10.0", False),
])  # fmt: skip
def test_capabilities(tmp_path: Path, needed: str, has: str, fits: bool) -> None:
    assert load(tmp_path, f'capability = "{needed}"').fits(has) is fits


def test_sizes_get_tiles_that_keep_a_gpu_busy() -> None:
    """As measured on an H200: the parameters that were best, or within 3 % of that, at these sizes."""
    tiles = {n: choose("float32", n, n, n, capability="9.0").params for n in (256, 1024, 2048, 3072, 4096, 8192)}
    assert {n: (p["BM"], p["BN"]) for n, p in tiles.items()} == {
        256: (32, 64), 1024: (64, 128), 2048: (128, 256), 3072: (64, 128), 4096: (128, 256), 8192: (128, 256),
    }  # fmt: skip
    assert choose("float32", 8, 4096, 4096, capability="9.0").params["STRIPS"] == 0
    assert choose("float32", 4096, 8, 4096, capability="9.0").params["STRIPS"] == 1
    assert choose("float64", 1024, 1024, 1024, capability="9.0").params["WN"] == 32


def test_a_smaller_gpu_gets_larger_tiles_sooner() -> None:
    choice = choose("float32", 1024, 1024, 1024, capability="9.0", sms=8)
    assert choice.params == BANKS.params
    assert choice.why_params == "the kernel's defaults"


def test_what_was_tuned_goes_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    params = BANKS.params | {"GROUP": 4}
    choice.tuned_file(BANKS.source_hash, "Card", "float32", (256, 256, 256)).write_json({"params": params})
    assert choose("float32", 256, 256, 256, capability="9.0", gpu="Card").params == params
    assert "tilewright tune" in choose("float32", 256, 256, 256, capability="9.0", gpu="Card").why_params
    for other in ({"gpu": "Other"}, {"gpu": ""}):
        assert "preset" in choose("float32", 256, 256, 256, capability="9.0", **other).why_params


# ---- the header


def load(tmp_path: Path, lines: str) -> Any:
    path = tmp_path / "mine.cu"
    path.write_text(HEADER.format(lines))
    return load_cuda_file(path)


PRESET = '[[presets]]\nrate = {}\nwhen = "m < 100"\nparams = {{ TILE = {} }}\n'
TILE = 'tile = ["TILE", "TILE"]\n'


def test_a_list_stands_for_several_presets(tmp_path: Path) -> None:
    """Whose conditions know the parameters."""
    lines = TILE + PRESET.format(90, "[8, 16]").replace("m < 100", "m < 8 * TILE")
    kernel = load(tmp_path, lines)
    assert [preset.params for preset in kernel.presets] == [{"TILE": 8}, {"TILE": 16}]
    taken = kernel.preset(100, 100, 100, sms=1)
    assert taken is not None
    assert taken.params == {"TILE": 16}
    tables = load(tmp_path, lines.replace("{ TILE = [8, 16] }", "[{ TILE = 8 }, { TILE = 16 }]"))
    assert [preset.params for preset in tables.presets] == [{"TILE": 8}, {"TILE": 16}]


def test_presets_are_compared_by_their_busiest_multiprocessor(tmp_path: Path) -> None:
    kernel = load(tmp_path, TILE + PRESET.format(90, 16) + PRESET.format(50, 8))
    found = {sms: kernel.preset(64, 64, 1, sms) for sms in (1, 4, 16, 64)}
    assert {sms: preset and preset.params["TILE"] for sms, preset in found.items()} == {1: None, 4: None, 16: 16, 64: 8}
    assert kernel.preset(100, 64, 1, 64) is None, "when"


def test_what_a_kernel_suits(tmp_path: Path) -> None:
    assert load(tmp_path, "").suits is None
    suits = load(tmp_path, 'suits = "n >= 8"').suits
    assert (suits(m=1, n=7, k=1), suits(m=1, n=8, k=1)) == (False, True)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('suits = "TILE > 8"', "suits: .*TILE is not known"),
        (PRESET.format(90, 16), "tile is missing, by which presets are compared"),
        (TILE + "presets = 3", "presets must be tables"),
        (TILE + PRESET.format(0, 16), r"presets\[0\] must have rate, from 1, and params"),
        (TILE + "[[presets]]\nrate = 90", r"presets\[0\] must have rate, from 1, and params"),
        (
            TILE + PRESET.format(90, 16) + PRESET.format(90, 17),
            r"presets\[1\] is refused: .*TILE must be one of 8, 16, 32",
        ),
        (TILE + PRESET.format(90, 16).replace("m < 100", "SIZE < 100"), r"presets\[0\].when: .*SIZE is not known"),
        (TILE + PRESET.format(90, 16).replace("when", "where"), r"presets\[0\] must have rate"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(HeaderError, match=words):
        load(tmp_path, lines)


# ---- the kernels as presets have them


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(8, 70, 33), (71, 67, 20), (3, 130, 0)], ids=str)
@pytest.mark.parametrize(("kernel", "i"), PRESETS, ids=lambda x: getattr(x, "name", str(x)))
def test_every_preset_is_right(kernel: Any, i: int, shape: tuple[int, int, int]) -> None:
    (m, n, k), params, rng = shape, kernel.presets[i].params, np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, size).astype(kernel.dtypes[0]) for size in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, kernel.dtypes[0])
    compiled, launch = compile_kernel(kernel, **params), kernel.launch(m, n, k, **params)
    assert compiled.resources[kernel.entry].local_bytes == 0
    done = simulate(
        parsed(compiled.ptx),
        kernel.entry,
        launch.grid,
        launch.block,
        [a, b, c, m, n, k],
        RunOptions(shared_bytes=launch.shared_bytes, outputs=[2]),
    )
    assert done.findings == []
    np.testing.assert_array_equal(done.arrays[2].reshape(m, n), a @ b)


# ---- prepared products


def forget_products() -> None:
    gpu_product._prepared.cache_clear()
    gpu_product._loaded.cache_clear()


@pytest.mark.slow
def test_addresses_decide_which_form_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = fake.Gpu(1 << 16)
    device.executes = True
    monkeypatch.setattr(compilations, "_compilations", Compilations())
    forget_products()
    rng = np.random.default_rng(3)
    a, b = rng.integers(-8, 9, (10, 3)).astype("f4"), rng.integers(-8, 9, (3, 12)).astype("f4")
    first, second, result = device.put(a), device.put(np.zeros(40, "f4")), device.put(np.zeros(120, "f4"))
    product = prepare_gpu_product(device, BANKS, "float32", 10, 12, 3, params=BANKS.presets[0].params)
    for shift, forms in ((0, [["C_ALIGNED", "NO_STRIPS"]]), (4, [["C_ALIGNED", "NO_STRIPS"], []])):
        device.seen(second.pointer + shift, "f4", (3, 12), (12, 1))[...] = b
        product(first.pointer, second.pointer + shift, result.pointer, 77)
        np.testing.assert_array_equal(device.get(result, "f4", (10, 12)), a @ b)
        device.fill(result, 0xFF)
        assert [[name for name, _ in code.macros] for code, _ in compilations._compilations._jobs] == forms
    forget_products()


@pytest.mark.slow
def test_a_product_is_prepared_once() -> None:
    device: Any = fake.Gpu(1 << 16)
    a = device.put(np.arange(6, dtype="f4"))
    c = device.put(np.zeros(4, "f4"))
    product = prepare_gpu_product(device, BANKS, "float32", 2, 2, 3, params=BANKS.presets[0].params)
    assert prepare_gpu_product(device, BANKS, "float32", 2, 2, 3, params=dict(BANKS.presets[0].params)) is product
    assert prepare_gpu_product(device, BANKS, "float32", 2, 2, 3) is not product
    product(a.pointer, a.pointer, c.pointer, 77)
    product(a.pointer, a.pointer, c.pointer, type("Stream", (), {"handle": 78})())
    assert device.launches == [("register_banks", 77), ("register_banks", 78)]
    values = np.arange(6, dtype="f4")
    np.testing.assert_array_equal(device.get(c, "f4", (2, 2)), values.reshape(2, 3) @ values.reshape(3, 2))


@pytest.mark.slow
def test_a_kernel_is_compiled_ahead_on_threads_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = fake.Gpu(1 << 16)
    monkeypatch.setattr(compilations, "_compilations", Compilations())
    forget_products()
    compiling, may_end = threading.Barrier(3), threading.Event()
    begun: list[bool] = []

    def slow(kernel: Any, values: Any, arch: str, macros: Any) -> Any:
        begun.append("ACCUMULATE" in macros)
        compiling.wait(30)
        assert may_end.wait(30)
        if len(begun) == 2:
            raise CompileError("only this once")
        return engine_kernel(kernel, values, arch, macros)

    monkeypatch.setattr(compilations, "engine_kernel", slow)
    for _ in range(2):
        gpu_product.compile_ahead(device, BANKS, {}, [(2, 2, 3), (5, 2, 4)])  # of the same form
    compiling.wait(30)  # both are under way at once, and nobody waits for them
    assert sorted(begun) == [False, True]
    may_end.set()
    with pytest.raises(CompileError, match="only this once"):
        prepare_gpu_product(device, BANKS, "float32", 2, 2, 3)
    compiling = threading.Barrier(1)
    assert prepare_gpu_product(device, BANKS, "float32", 2, 2, 3) is prepare_gpu_product(
        device, BANKS, "float32", 2, 2, 3
    )
    assert len(begun) == 3
    forget_products()


@pytest.mark.slow
def test_products_that_are_nothing() -> None:
    device: Any = fake.Gpu(1 << 16)
    prepare_gpu_product(device, BANKS, "float32", 0, 5, 5)(1, 2, 3, 4)
    prepare_gpu_product(device, BANKS, "float32", 5, 5, 0, add=True)(1, 2, 3, 4)
    assert device.launches == []


@pytest.mark.parametrize(
    ("kernel", "dtype", "sizes", "add", "words"),
    [
        (BANKS, "float64", (4, 4, 4), False, "cuda/register_banks has no float64: it takes float32"),
        (BANKS, "float32", (MOST + 1, 4, 4), False, f"sizes from 0 to {MOST}"),
        (cuda_catalog()["cuda/coalesced"], "float32", (4, 4, 4), True, "cuda/coalesced cannot add to C"),
    ],
)
def test_products_that_are_refused(kernel: Any, dtype: str, sizes: Any, add: bool, words: str) -> None:
    device: Any = fake.Gpu(1 << 10)
    with pytest.raises(UsageError, match=words):
        prepare_gpu_product(device, kernel, dtype, *sizes, add=add)
    assert gpu_product.MOST < 2**31


@pytest.mark.parametrize("sms", [8, 14, 16, 132])
def test_a_part_of_a_gpu_has_ways_too(sms: int) -> None:
    """A slice of an H100 can have fewer multiprocessors than the largest cluster has blocks."""
    for kernel in engine_on_gpu("bfloat16", "9.0"):
        assert ways(kernel, EngineShape("bfloat16", "bfloat16", 500, 700, 4096), Card("", sms))[0].seconds < 1


@pytest.mark.thorough
def test_products_of_one_kind_are_tried_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried of a product whose kind was met before is what would be found for it alone."""
    draw, met = random.Random(3), 0
    for _ in range(3000):
        dtype = draw.choice(("bfloat16", "float32", "complex128"))
        m, n, k = (draw.choice((1, 24, 33, 1000, 8 * draw.randrange(9, 400))) for _ in range(3))
        batch = () if draw.random() < 0.8 else (3,)
        a, b, out = (_laid(draw, (*batch, *shape), dtype) for shape in ((m, k), (k, n), (m, n)))
        given: Any = {"disjoint": draw.random() < 0.9, "views": draw.random() < 0.8}
        operands = Operands(a, b, draw.choice((None, out)), **given)
        kernels = engine_on_gpu(dtype, "9.0")
        before = len(chooser._known)
        straight = draw.random() < 0.1
        found = list(chooser._tried(kernels, operands, dtype, None, straight=straight))
        met += len(chooser._known) == before
        with monkeypatch.context() as alone:
            alone.setattr(chooser, "_known", {})
            assert list(chooser._tried(kernels, operands, dtype, None, straight=straight)) == found
    assert met > 300


def _laid(draw: random.Random, shape: tuple[int, ...], dtype: str) -> GpuArray:
    """An array whose rows or columns follow each other, with a gap or without, at any address."""
    *batch, rows, columns = shape
    gap, apart = draw.choice((0, 0, 0, 8)), 1 if draw.random() < 0.95 else 2
    strides = (columns * apart + gap, apart) if draw.random() < 0.5 else (apart, rows * apart + gap)
    step = draw.choice((0, max(rows * strides[0], columns * strides[1])))
    return GpuArray(0 if draw.random() < 0.9 else 8, shape, (*[step] * len(batch), *strides), dtype, 0)
