"""float64 and complex128 from residues on cards other than Hopper: the kernel of mma.sync, executed by the microscope."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.layouts import laid
from support.residue_products import RESIDUES, RESIDUES_MMA, by_kernel, residues_alone, small_gpu
from support.selection import in_turns
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.matmul import plan_of_views
from tilewright.gpu.runtime.device import add_described
from tilewright.gpu.runtime.layout import Matrix
from tilewright.gpu.runtime.nvrtc import compile_with
from tilewright.gpu.runtime.residue_product import ResidueOperand, ResidueProduct, residue_steps, residues_of_rows
from tilewright.gpu.runtime.steps import KernelLaunch, load
from tilewright.kernels.cuda_kernel import CudaKernel
from tilewright.prebuilt.gpu import _Described
from tilewright.product.residues import CLASSICAL, MODULI
from tilewright.simulator import RunOptions
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.program import link
from tilewright.simulator.microscope import KernelSource, observe

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

U = 2.0**-53
#: Cards that this kernel is for: compute capability, architecture, name, multiprocessors, clock and bits of the memory.
CARDS = {
    "A100": ("8.0", "sm_80", "NVIDIA A100-SXM4-80GB", 108, 1_593_000, 5120),
    "RTX 4090": ("8.9", "sm_89", "NVIDIA GeForce RTX 4090", 128, 10_501_000, 384),
}
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"]
#: The bytes of shared memory that a block of 8.6, 8.9 and 12.0 may have at most.
MOST_SHARED = 99 << 10


def uniform(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def complexes(*shape: int, seed: int = 1) -> np.ndarray:
    return uniform(*shape, seed=seed) + 1j * uniform(*shape, seed=seed + 100)


def worst(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error of an element in units of 2⁻⁵³·|A||B|."""
    wide = np.clongdouble if np.iscomplexobj(c) else np.longdouble
    x, y = a.astype(wide), b.astype(wide)
    error, size = abs(c - x @ y), abs(x) @ abs(y)
    assert (error[size == 0] == 0).all()
    return float(np.divide(error, size, where=size > 0, out=np.zeros_like(size)).max(initial=0) / U)


# ---- the kernel alone: residues of C from residues of A and B


def multiplied(
    kernel: CudaKernel, shape: tuple[int, int, int], moduli: int = 3, dtype: str = "float64", **params: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random residues of A and B, of each plane, and what the kernel makes of them."""
    (m, k, n), gpu, rng = shape, small_gpu(), np.random.default_rng(sum(shape))
    made = residues_of_rows(m, n, k, moduli, dtype)
    step = residue_steps(gpu.sms, kernel, params, made)[3]
    planes = [rng.integers(-128, 128, (made.a.planes, lines, k), np.int8) for lines in (m, n)]
    workspace = gpu.allocate(made.workspace_bytes)
    everything = np.zeros(made.workspace_bytes, np.uint8)
    for at, x, operand in zip((0, made.a.workspace_bytes), planes, (made.a, made.b), strict=True):
        padded = np.zeros((*x.shape[:2], operand.pitch), np.int8)
        padded[..., :k] = x
        everything[at : at + padded.size] = padded.view(np.uint8).reshape(-1)
    gpu.copy_to(workspace, everything)
    load(gpu, [step])(0, 0, 0, workspace.pointer, 1)
    width = kernel.checked(params)["BN"]
    first = made.a.workspace_bytes + made.b.workspace_bytes
    found = gpu.get(workspace, np.uint8, (made.workspace_bytes,))[first : first + made.residues_bytes(width)]
    return planes[0], planes[1], found.reshape(made.a.planes, -(-m // 128), -(-n // width), 2, width // 32, 128, 16)


def residues(a: np.ndarray, b: np.ndarray, dtype: str, width: int) -> np.ndarray:
    """The residues of exact sums where ``residues.cuh`` says they lie. Small moduli of complex128 are doubled; a negative
    multiple of p has the residue p, as a byte."""
    each = 2 if dtype == "complex128" else 1
    divisors = [2 * p if each == 2 and p <= 128 else p for p in MODULI[dtype] for _ in range(each)]
    (planes, m, _), n = a.shape, b.shape[1]
    down, across = -(-m // 128), -(-n // width)
    sums = np.zeros((planes, down * 128, across * width), np.int64)
    sums[:, :m, :n] = a.astype(np.int64) @ b.astype(np.int64).transpose(0, 2, 1)
    p = np.array(divisors[:planes])[:, None, None]
    sums = np.where((sums < 0) & (sums % p == 0), p, sums % p)
    t, i = np.arange(128)[:, None], np.arange(16)
    row, column = t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2
    parts = sums.reshape(planes, down, 2, 64, across, width // 32, 32).transpose(0, 1, 4, 2, 5, 3, 6)
    return parts[..., row, column].astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "params"), in_turns([
    ((130, 200, 70), {"BN": 64}), ((64, 128, 64), {"BN": 64, "STAGES": 2}), ((5, 1, 3), {"BN": 64}),
    ((129, 700, 129), {"BN": 128, "STAGES": 3}), ((100, 130, 260), {}), ((256, 640, 256), {}),
    ((70, 500, 33), {"BN": 128, "BK": 128, "STAGES": 2}), ((140, 300, 300), {"BK": 128, "STAGES": 2, "GROUP": 1}),
], 1), ids=str)  # fmt: skip
def test_residues_are_those_of_exact_sums(shape: tuple[int, int, int], params: dict[str, int]) -> None:
    a, b, found = multiplied(RESIDUES_MMA, shape, **params)
    np.testing.assert_array_equal(found, residues(a, b, "float64", RESIDUES_MMA.checked(params)["BN"]))


@pytest.mark.thorough
@pytest.mark.slow_cases("(130, 129, 65)")
@pytest.mark.parametrize("shape", [(40, 260, 50), (130, 129, 65)], ids=str)
def test_residues_of_all_moduli_of_complex_numbers(shape: tuple[int, int, int]) -> None:
    a, b, found = multiplied(RESIDUES_MMA, shape, 15, "complex128", BN=64)
    np.testing.assert_array_equal(found, residues(a, b, "complex128", 64))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("float64", 64), ("float64", 128), ("complex128", 256)])
def test_they_are_those_of_hopper_beyond_c_too(dtype: str, width: int) -> None:
    shape, moduli = (140, 300, 90), 4 if width > 64 else CLASSICAL[dtype]
    found = [multiplied(kernel, shape, moduli, dtype, BN=width)[2] for kernel in (RESIDUES_MMA, RESIDUES)]
    np.testing.assert_array_equal(*found)


@pytest.mark.thorough
@pytest.mark.slow_cases("{}", "{'BK': 128, 'STAGES': 2}")
@pytest.mark.parametrize("params", [{"BN": 64}, {}, {"BK": 128, "STAGES": 2}], ids=str)
def test_shared_memory_is_read_without_conflicts(params: dict[str, int]) -> None:
    """16 bytes of each of 32 lines are four wavefronts."""
    compiled = compile_with(RESIDUES_MMA, params, "sm_80", {"MODULI": 5, "BOUND": 0})
    launch, call = RESIDUES_MMA.launch(128, 256, 128, **params), struct.pack("<4ifi", 128, 256, 128, 1, 1.0, 0)
    operands = [np.zeros(size, np.uint8) for size in (128 * 128, 256 * 128, 128 * 256, 4096, 4096)]
    seen = observe(
        KernelSource(RESIDUES_MMA.source, RESIDUES_MMA.path.name, compiled),
        link(parse_ptx(compiled.ptx), RESIDUES_MMA.entry),
        launch.grid,
        launch.block,
        [*operands, np.zeros(8, np.int32), call],
        RunOptions(shared_bytes=launch.shared_bytes),
    )
    assert not seen.findings
    reads = [each for each in seen.accesses if each.kind == "ldmatrix"]
    assert reads
    assert all(each.wavefronts == 4 * each.requests for each in reads)


# ---- defects


@pytest.mark.slow_cases(" 1\\\\)", ">> 7) * p", "line / (128 / BK) % (BK / 8))", "        __syncwarp();  // all parts")
@pytest.mark.parametrize(("file", "before", "after"), [
    ("residues_mma.cu", r"copy_async_wait<STAGES - 2>", "copy_async_wait<STAGES - 1>"),  # a stage is read too early
    ("residues_mma.cu", r"divisor_of_plane\(z\)", "divisor_of_plane(z == 1 ? 2 : z)"),
    ("residues_mma.cu", r"steps = pitch / BK", "steps = call.k / BK"),  # a remainder of k is dropped
    ("residues_mma.cu", r"\.s32\.s8\.s8\.s32", ".s32.u8.s8.s32"),
    ("residue_sums.cuh", r">> 6\) \* p", ">> 7) * p"),
    ("residues_mma.cu", r"        __syncthreads\(\);  // all parts", "        __syncwarp();  // all parts"),
    ("residues_mma.cu", r"line / \(128 / BK\) % \(BK / 16\)\)", "line / (128 / BK) % (BK / 8))"),
    ("residues_mma.cu", r"copy\(step \+ STAGES - 1\)", "copy(step + STAGES)"),
], ids=str)  # fmt: skip
def test_a_wrong_kernel_is_rejected(file: str, before: str, after: str, tmp_path: Path) -> None:
    """By wrong residues, or by what the microscope finds."""
    (tmp_path / "gpu" / "kernels").mkdir(parents=True)
    (tmp_path / "kernels" / "cuda").mkdir(parents=True)
    for path in (RESIDUES_MMA.path.parents[2] / "kernels" / "cuda").glob("*.cuh"):
        (tmp_path / "kernels" / "cuda" / path.name).write_bytes(path.read_bytes())
    wrong = changed(RESIDUES_MMA, tmp_path / "gpu" / "kernels", file, (before, after))
    message, wrongs = "", 0
    try:
        a, b, found = multiplied(wrong, (40, 420, 50), BN=64)
        wrongs = int((found != residues(a, b, "float64", 64)).sum())
    except AssertionError as error:
        message = str(error)
    assert wrongs or "shared memory" in message, message


# ---- whole products


@pytest.fixture(params=CARDS)
def gpu(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    capability, arch, *_ = CARDS[request.param]
    return residues_alone(monkeypatch, RESIDUES_MMA, capability, arch)


def product(gpu: Any, a: np.ndarray, b: np.ndarray, layouts: tuple[str, str] = ("rows", "rows"), **options: Any) -> Any:
    return tw.matmul(laid(fake.Tensor, gpu, a, layouts[0]), laid(fake.Tensor, gpu, b, layouts[1]), **options).view


@pytest.mark.slow
@pytest.mark.parametrize(
    "layouts", [*itertools.product(("rows", "columns"), repeat=2), ("wider", "neither")], ids="-".join
)
@pytest.mark.parametrize("make", [uniform, complexes])
def test_whole_products(gpu: Any, make: Any, layouts: tuple[str, str]) -> None:
    a, b = make(70, 140), make(140, 65, seed=2)
    assert worst(product(gpu, a, b, layouts), a, b) < 30
    assert [entry for entry, _ in gpu.launches][-4:-2] == ["residues_mma"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [uniform, complexes])
def test_hard_operands(gpu: Any, make: Any) -> None:
    """Rows and columns of a wide range, which are flagged; zero rows; k = 1."""
    a, b = make(140, 130), make(130, 70, seed=2)
    a[:8] *= np.exp(12 * np.random.default_rng(3).standard_normal((8, 130)))
    a[9], b[:, 5] = 0, 0
    c = product(gpu, a, b, ("columns", "rows"))
    assert worst(c, a, b) < 60
    assert not c[9].any()
    assert not c[:, 5].any()
    assert worst(product(gpu, a[:, :1], b[:1]), a[:, :1], b[:1]) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("make", [uniform, complexes])
def test_infinities_and_nan(gpu: Any, make: Any) -> None:
    a, b = make(140, 130), make(130, 70, seed=2)
    a[3, 5], a[7, 7], b[9, 30] = np.nan, np.inf, -np.inf
    a[20] = 0
    c = product(gpu, a, b)
    with np.errstate(all="ignore"):
        exact = a @ b
    fine = np.isfinite(exact)
    np.testing.assert_allclose(c[fine], exact[fine], rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(np.isfinite(c), fine)
    assert np.isnan(c[3]).all()
    assert np.isnan(c[20, 30])


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"BN": 128, "STAGES": 3}, {}, {"BK": 128, "STAGES": 2}], ids=str)
def test_flags_of_every_tile(params: dict[str, int]) -> None:
    a, b, gpu = uniform(140, 130), uniform(130, 300, seed=2), small_gpu()
    a[130, 5], b[7, 200] = np.nan, np.inf
    c = by_kernel(gpu, RESIDUES_MMA, a, b, 5, **{"BN": 256} | params)
    assert gpu.flags.tolist() == [0, 0, 0, 1, 0] + [1] * 5
    assert np.isnan(c[130]).all()
    assert np.isinf(c[:130, 200]).all()


# ---- what the cards have


@pytest.mark.further
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", CLASSICAL)
def test_all_launches_fit_the_cards(arch: str, dtype: str) -> None:
    """Registers of the kernel that multiplies, and shared memory of all, whichever way the operands lie."""
    for down in itertools.product((False, True), repeat=2):
        a, b = (Matrix(512, 512, *((1, 513) if x else (513, 1)), dtype) for x in down)
        made = ResidueProduct(
            *(ResidueOperand(x, CLASSICAL[dtype]) for x in (a, b.transposed)), Matrix(512, 512, 512, 1, dtype)
        )
        for params in ({}, *(preset.params for preset in RESIDUES_MMA.presets)):
            for step in residue_steps(108, RESIDUES_MMA, params, made):
                assert isinstance(step.launch, KernelLaunch)
                needed = step.launch.code.compiled(arch).resources[step.launch.entry]
                assert needed.shared_bytes + step.launch.size[2] <= MOST_SHARED
                assert needed.local_bytes == 0 or step.launch.entry != "residues_mma"


def described(*card: Any) -> Any:
    capability, arch, *facts = card
    gpu: Any = _Described(arch, capability, *facts)
    add_described(gpu)
    return gpu


def chosen(gpu: Any, size: int, dtype: str = "float64", **options: Any) -> Any:
    x = GpuArray(0, (size, size), (size, 1), dtype, gpu.ordinal)
    return plan_of_views(x, x, views=True, **options)


def test_large_products_are_computed_so_where_that_is_predicted_to_be_faster() -> None:
    a100, rtx = (described(*card) for card in CARDS.values())
    assert [chosen(rtx, size).kernel.name for size in (256, 2048, 8192)] == ["cuda/dmma"] + ["cuda/residues_mma"] * 2
    assert [chosen(a100, size).kernel.name for size in (1024, 16384)] == ["cuda/dmma", "cuda/residues_mma"]
    for gpu in (a100, rtx):
        assert chosen(gpu, 8192, "complex128").kernel.name == "cuda/residues_mma"
        assert chosen(gpu, 8192, precision="ieee").kernel.name == "cuda/dmma"
        assert chosen(gpu, 8192, precision="fast").compute == "int8x6"
        assert chosen(gpu, 8192, "float32").kernel.name.startswith("cuda/simt")
    hopper = described("9.0", "sm_90a", "NVIDIA H200", 132, 3_201_000, 6144)
    assert chosen(hopper, 8192).kernel.name == "cuda/residues_hopper"


def test_a_table_that_was_fitted_to_a_card_has_the_rates_of_its_units() -> None:
    gpu = described(*CARDS["RTX 4090"])
    gpu.card = gpu.card._replace(table="its own")
    assert chosen(gpu, 2048).kernel.name == "cuda/dmma"
