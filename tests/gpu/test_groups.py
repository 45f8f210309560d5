"""Products of groups whose ends only the GPU knows, on a simulated GPU, and the same on the host."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.changed_kernels import changed
from support.multiplied import by_columns, by_rows
from tilewright.errors import DTypeError, OperandError, ShapeError, UsageError
from tilewright.gpu.arrays import groups as by_offsets
from tilewright.gpu.runtime.engine_product import EngineProduct, Groups, prepare_grouped_boxes
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import CudaKernel

BF16 = np.dtype(ml_dtypes.bfloat16)
HOPPER = cuda_engine()["cuda/hopper"]

#: Sizes of groups: empty ones at each place, one larger than a band, and more groups than a warp looks at once.
SIZES = [[3, 140, 0, 128, 5], [0, 0, 7], [64, 0], [1] * 34 + [0] * 5 + [65]]
#: Tiles: pairs of blocks that share B, blocks of 64 rows, groups in turns, three groups, and pairs that share A.
TILES = [
    {"CLUSTER": 2, "GROUP": 8},
    {"BM": 64, "BN": 64, "STAGES": 8},
    {"BN": 128, "STAGES": 6, "PINGPONG": 1, "GROUP": 32},
    {"BM": 192, "BN": 192, "STAGES": 4},
    {"BN": 64, "STAGES": 6, "CLUSTER": 2, "BESIDE": 2, "GROUP": 8},
]
#: Each tile with some sizes, and all sizes with some tile.
CASES = [*((tiles, SIZES[i % 3]) for i, tiles in enumerate(TILES)), (TILES[1], SIZES[3])]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    found = fake.installed(monkeypatch, 1 << 21, sms=4)
    found.in_one_piece = True
    return found


def whole(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def right(a: np.ndarray, b: np.ndarray, ends: Any) -> np.ndarray:
    """What NumPy makes of each group, in float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    groups = [slice(*pair) for pair in itertools.pairwise([0, *ends])]
    if x.ndim == y.ndim == 2:
        return np.array([x[:, some] @ y[some] for some in groups]).reshape(-1, len(x), y.shape[1])
    c = np.zeros((x.shape[-2], y.shape[-1]))
    for g, some in enumerate(groups):
        if y.ndim == 3:
            c[some] = x[some] @ y[g]
        else:
            c[:, some] = x[g] @ y[:, some]
    return c


# ---- the kernel of Hopper GPUs -------------------------------------------------------------------------------------------


def of_rows(
    gpu: Any, sizes: list[int], params: Any, kernel: CudaKernel = HOPPER, down: bool = False
) -> tuple[Any, Any]:
    """What the kernel stores for groups of rows and seven further ones, and what is right."""
    n, k, ends = 72, 80, np.cumsum(sizes, dtype=np.int32)
    a, b = whole(int(ends[-1]) + 7, k), whole(len(sizes), k, n)
    a[ends[-1] :] = np.nan
    of_b = (by_columns if down else by_rows)(k, n, "bfloat16")._replace(next=n * k)
    stored = [gpu.put(x) for x in (a, b.swapaxes(1, 2) if down else b, ends)]
    c = gpu.allocate(len(a) * n * 2)
    gpu.fill(c, 0xFF)
    what = EngineProduct("bfloat16", by_rows(len(a), k, "bfloat16"), of_b, by_rows(len(a), n, "bfloat16"))
    run = prepare_grouped_boxes(gpu, kernel, what, Groups(len(sizes), False), tuple(sorted(params.items())))
    run(stored[0].pointer, stored[1].pointer, c.pointer, stored[2].pointer, 0)
    return gpu.get(c, BF16, (len(a), n)), right(a, b, ends).astype(BF16)


def of_k(gpu: Any, sizes: list[int], params: Any, kernel: CudaKernel = HOPPER) -> tuple[Any, Any]:
    """The same for groups of k, which are followed by what is no number."""
    m, n, ends = 136, 72, np.cumsum(sizes, dtype=np.int32)
    a, b = whole(int(ends[-1]) + 70, m), whole(int(ends[-1]) + 70, n)
    a[ends[-1] :] = b[ends[-1] :] = np.nan
    stored = [gpu.put(x) for x in (a, b, ends)]
    c = gpu.allocate(len(sizes) * m * n * 2)
    gpu.fill(c, 0xFF)
    of_a, of_b = by_columns(m, len(a), "bfloat16"), by_rows(len(a), n, "bfloat16")
    what = EngineProduct("bfloat16", of_a, of_b, by_rows(m, n, "bfloat16", following=m * n))
    run = prepare_grouped_boxes(gpu, kernel, what, Groups(len(sizes), True), tuple(sorted(params.items())))
    run(stored[0].pointer, stored[1].pointer, c.pointer, stored[2].pointer, 0)
    return gpu.get(c, BF16, (len(sizes), m, n)), right(a.T, b, ends).astype(BF16)


@pytest.mark.slow_cases("sizes0", "sizes2", "sizes3", "sizes4", "sizes5")
@pytest.mark.parametrize(("params", "sizes"), CASES)
def test_groups_of_rows(gpu: Any, params: dict[str, int], sizes: list[int]) -> None:
    """Each row is that of its group, and those that follow the last group are zeros, though A has no numbers there."""
    np.testing.assert_array_equal(*of_rows(gpu, sizes, params, down=len(sizes) > 3))


@pytest.mark.slow_cases("sizes0", "sizes1", "sizes3", "sizes4", "sizes5")
@pytest.mark.parametrize(("params", "sizes"), CASES)
def test_groups_of_k(gpu: Any, params: dict[str, int], sizes: list[int]) -> None:
    """What belongs to the next group, or to none, is in no sum, also if it is no number."""
    np.testing.assert_array_equal(*of_k(gpu, sizes, params))


def test_no_number_of_one_group_is_in_another(gpu: Any) -> None:
    a, b, ends = whole(150, 136), whole(150, 72), np.array([50, 90, 150], np.int32)
    a[50:90] = np.inf
    x, y, offsets = (fake.Tensor.of(gpu, each) for each in (a, b, ends))
    with np.errstate(invalid="ignore"):
        c, exact = tw.grouped_matmul(x.transpose(0, 1), y, offsets), right(a.T, b, ends)
    np.testing.assert_array_equal(c.view.astype(float), exact.astype(BF16).astype(float))
    assert np.isfinite(exact[[0, 2]]).all()
    assert not np.isfinite(exact[1]).any()
    assert gpu.launches == [("hopper", 100)]


#: Its name, file, pattern and text in place of it, what is computed, and the number of the case that finds it.
DEFECTS = [
    ("not cleared", "hopper.cu", r"if \(step \+ 1 == steps && in_last_step < LINE\) clear_stage.*", "", of_k, 0),
    ("one step too few cleared", "hopper_shared.cuh", r"kept \* 128;", "(kept + 1) * 128;", of_k, 0),
    ("cleared without a barrier", "hopper_shared.cuh", r"else group_sync\(CLEARED, WORKERS\);", "", of_k, 0),
    (
        "rows of the next group",
        "hopper_tiles.cuh",
        r"group, 0, steps, in_group.end",
        "group, 0, steps, call.m",
        of_rows,
        0,
    ),
    ("the next group's B", "hopper_tiles.cuh", r"group, 0, steps, in", "group + 1, 0, steps, in", of_rows, 0),
    ("boxes over several groups", "hopper_store.cuh", r"top \+ 64 <= bottom", "true", of_rows, 0),
    ("slabs that still leave", "hopper_store.cuh", r"if \(OWN_SLABS\) slabs_leave\(half\);", "", of_rows, 2),
    ("bands of the first 32 groups", "groups.cuh", r"before \+= all;", "", of_rows, -1),
]


@pytest.mark.slow_cases(
    "not cleared",
    "the next group's B",
    "rows of the next group",
    "slabs that still leave",
    "one step too few cleared",
    "cleared without a barrier",
    "bands of the first 32 groups",
)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect[0])
def test_a_defect_is_found(gpu: Any, tmp_path: Path, defect: Any) -> None:
    _, file, pattern, instead, product, case = defect
    kernel, (params, sizes) = changed(HOPPER, tmp_path, file, (pattern, instead)), CASES[case]
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(*product(gpu, sizes, params, kernel))


# ---- the call ------------------------------------------------------------------------------------------------------------

#: Shapes of a and b, for five groups of 155 together, of which the rest belongs to none.
SHAPES = [((160, 72), (5, 72, 40)), ((5, 24, 40), (40, 160)), ((72, 160), (160, 40)), ((157, 33), (5, 33, 21))]
ENDS = [3, 3, 140, 140, 155]


def put(gpu: Any, x: np.ndarray, down: bool) -> Any:
    """The array on the GPU, where ``down`` column after column."""
    found = fake.Tensor.of(gpu, np.ascontiguousarray(x.swapaxes(-1, -2)) if down else x)
    return found.transpose(-1, -2) if down else found


LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]
#: Each shape in every layout, in one layout with the dtypes that have kernels of their own, and in two on an older GPU.
PRODUCTS = [
    *itertools.product(["9.0"], [BF16], SHAPES, LAYOUTS),
    *itertools.product(["9.0"], [np.dtype("f4"), np.dtype("f8")], SHAPES, LAYOUTS[1:2]),
    *itertools.product(["8.0"], [BF16], SHAPES, LAYOUTS[::3]),
]


@pytest.mark.slow_cases("down16", "down17", "down18", "down20", "down22")
@pytest.mark.parametrize(("capability", "dtype", "shapes", "down"), PRODUCTS)
def test_every_layout(gpu: Any, capability: str, dtype: Any, shapes: Any, down: tuple[bool, bool]) -> None:
    gpu.capability, gpu.arch = capability, {"9.0": "sm_90a", "8.0": "sm_80"}[capability]
    a, b = (whole(*shape, dtype=dtype) for shape in shapes)
    offsets = fake.Tensor.of(gpu, np.array(ENDS, np.int32))
    c = tw.grouped_matmul(put(gpu, a, down[0]), put(gpu, b, down[1]), offsets)
    np.testing.assert_array_equal(c.view, right(a, b, ENDS).astype(dtype))
    assert len(gpu.launches) == 1


@pytest.mark.thorough
def test_which_kernel_multiplies(gpu: Any) -> None:
    """Of rows of whole granules the fastest; of others one that takes any."""
    offsets = fake.Tensor.of(gpu, np.array(ENDS, np.int32))
    for (a, b), down, entry in (
        (SHAPES[0], (False, True), "hopper"),
        (SHAPES[1], (False, True), "hopper"),
        (SHAPES[2], (True, False), "hopper"),
        (SHAPES[2], (False, False), "mma"),
        (SHAPES[3], (False, False), "mma"),
    ):
        tw.grouped_matmul(put(gpu, whole(*a), down[0]), put(gpu, whole(*b), down[1]), offsets)
        assert gpu.launches.pop()[0] == entry


@pytest.mark.slow_cases(
    "8.0-[-5, 300, 20, 1073741824, 9]", "8.0-[-2147483648, -2147483648, -2147483648, -2147483648, -2147483648]"
)
@pytest.mark.parametrize("ends", [[-5, 300, 20, 1 << 30, 9], [160, 0, 160, 0, 0], [-(1 << 31)] * 5], ids=str)
@pytest.mark.parametrize("capability", ["9.0", "8.0"])
def test_offsets_that_are_none_harm_nothing(gpu: Any, capability: str, ends: list[int]) -> None:
    """Nothing outside of the result is written, and nothing outside of the operands read. Two groups may write one place."""
    gpu.capability, gpu.arch = capability, {"9.0": "sm_90a", "8.0": "sm_80"}[capability]
    offsets = fake.Tensor.of(gpu, np.array(ends, np.int32))
    for a, b in SHAPES[:3]:
        x, y = fake.Tensor.of(gpu, np.zeros(a, BF16)), fake.Tensor.of(gpu, np.zeros(b, BF16))
        out = fake.Tensor.of(gpu, np.zeros(right(x.view, y.view, ENDS).shape, BF16))
        before = gpu.heap.copy()
        try:
            tw.grouped_matmul(x, y, offsets, out=out)
        except AssertionError as error:
            assert "which the copy at line" in str(error)  # noqa: PT017 - what was written is looked at, too
        changes = np.flatnonzero(gpu.heap != before) - (out.data_ptr() - fake.BASE)
        assert not changes.size or (changes[0] >= 0 and changes[-1] < out.view.nbytes)


@pytest.mark.thorough
def test_results_of_another_dtype_and_place(gpu: Any) -> None:
    a, b, offsets = whole(160, 72), whole(5, 72, 40), fake.Tensor.of(gpu, np.array(ENDS, np.int32))
    x, y = fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b)
    c = tw.grouped_matmul(x, y, offsets, out_dtype="float32")
    np.testing.assert_array_equal(c.view, right(a, b, ENDS).astype(np.float32))
    out = fake.Tensor.of(gpu, np.full((160, 48), np.nan, BF16))
    some = out.like(out.view[:, :40])
    assert tw.grouped_matmul(x, y, offsets, out=some) is some
    np.testing.assert_array_equal(some.view, right(a, b, ENDS).astype(BF16))
    assert np.isnan(out.view[:, 40:].astype(float)).all()
    columns = fake.Tensor.of(gpu, np.full((24, 160), np.nan, BF16))
    a = whole(5, 24, 40)
    tw.grouped_matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, whole(40, 160)), offsets, out=columns)
    np.testing.assert_array_equal(columns.view, right(a, whole(40, 160), ENDS).astype(BF16))


@pytest.mark.slow_cases("CupyArray")
@pytest.mark.parametrize("kind", [fake.CupyArray, fake.Unknown], ids=lambda kind: kind.__name__)
def test_other_libraries(gpu: Any, kind: Any) -> None:
    for shapes in SHAPES[:3]:
        a, b = (whole(*shape, dtype=np.float16) for shape in shapes)
        c = tw.grouped_matmul(*(kind.of(gpu, each) for each in (a, b, np.array(ENDS, np.int32))))
        exact = right(a, b, ENDS).astype(np.float16)
        found = c.view if kind is fake.CupyArray else gpu.heap[c.pointer - fake.BASE :][: exact.nbytes].view(np.float16)
        np.testing.assert_array_equal(found.reshape(exact.shape), exact)


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [((5, 8), (0, 8, 16), 0), ((0, 8), (3, 8, 16), 3), ((5, 0), (3, 0, 16), 3), ((5, 8), (3, 8, 0), 3), ((5, 0), (0, 8), 3),
     ((5, 9), (9, 8), 0), ((3, 5, 0), (0, 4), 3)],
    ids=str,
)  # fmt: skip
def test_sizes_of_zero(gpu: Any, a: Any, b: Any, count: int) -> None:
    x, y, ends = whole(*a), whole(*b), np.zeros(count, np.int32)
    exact = right(x, y, ends)
    c = tw.grouped_matmul(*(fake.Tensor.of(gpu, each) for each in (x, y, ends)))
    np.testing.assert_array_equal(c.view, exact.astype(BF16))
    np.testing.assert_array_equal(tw.grouped_matmul(x.astype(np.float32), y.astype(np.float32), ends), exact)


def test_two_batches_are_multiplied_by_matmul(gpu: Any) -> None:
    a, b = whole(3, 8, 16), whole(3, 16, 24)
    np.testing.assert_array_equal(
        tw.grouped_matmul(a.astype(float), b.astype(float)), a.astype(float) @ b.astype(float)
    )
    c = tw.grouped_matmul(fake.Tensor.of(gpu, a), fake.Tensor.of(gpu, b))
    np.testing.assert_array_equal(c.view, (a.astype(float) @ b.astype(float)).astype(BF16))


def test_the_plan_depends_on_no_size_of_a_group(gpu: Any) -> None:
    x, y = fake.Tensor.of(gpu, whole(160, 72)), fake.Tensor.of(gpu, whole(5, 72, 40))
    for ends in (ENDS, [0, 0, 0, 0, 160], [32, 64, 96, 128, 160]):
        tw.grouped_matmul(x, y, fake.Tensor.of(gpu, np.array(ends, np.int32)))
    assert by_offsets._plan.cache_info().misses == 1


@pytest.mark.slow_cases("Tensor-((5, 24, 40), (40, 160))")
@pytest.mark.parametrize("shapes", SHAPES[:3], ids=str)
@pytest.mark.parametrize("kind", [fake.Tensor, fake.CupyArray], ids=lambda kind: kind.__name__)
def test_a_repetition_is_one_recorded_launch(gpu: Any, kind: Any, shapes: Any) -> None:
    """With other arrays and other sizes of groups; the third call is made by machine code."""
    kept = []
    for number, ends in enumerate((ENDS, [1, 2, 3, 4, 150], [0, 80, 80, 90, 160])):
        a, b = (whole(*shape, dtype=np.float16) + np.float16(number) for shape in shapes)
        kept.append([kind.of(gpu, x) for x in (a, b, np.array(ends, np.int32))])
        c = tw.grouped_matmul(*kept[-1])
        np.testing.assert_array_equal(c.view, right(a, b, ends).astype(np.float16))
        assert gpu.replays == max(0, number - 1)
    assert len(gpu.launches) == 3


def test_what_is_refused(gpu: Any) -> None:
    x, y, ends = whole(160, 72), whole(5, 72, 40), np.array(ENDS, np.int32)
    a, b, offsets = (fake.Tensor.of(gpu, each) for each in (x, y, ends))
    for error, text, arguments, options in (
        (ShapeError, "k mismatch: a is (160, 72)", (a, fake.Tensor.of(gpu, whole(5, 71, 40)), offsets), {}),
        (ShapeError, "they must have as many groups", (a, b, fake.Tensor.of(gpu, ends[:4])), {}),
        (ShapeError, "an operand of two axes needs offsets", (a, b), {}),
        (ShapeError, "two batches take no offsets", (b, b, offsets), {}),
        (ShapeError, "it must have one axis", (a, b, fake.Tensor.of(gpu, ends[None])), {}),
        (ShapeError, "each must have two axes, or three", (fake.Tensor.of(gpu, whole(72)), b, offsets), {}),
        (DTypeError, "offsets is a tensor of int64 on a GPU: the ends of groups must be int32",
         (a, b, fake.Tensor.of(gpu, ends.astype(np.int64))), {}),
        (OperandError, "offsets is a ndarray that is not on a GPU", (a, b, ends), {}),
        (OperandError, "a is a ndarray that is not on a GPU", (x, b, offsets), {}),
        (DTypeError, "a is bfloat16, b is float16", (a, fake.Tensor.of(gpu, y.astype(np.float16)), offsets), {}),
        (DTypeError, "a is int8: groups on a GPU",
         tuple(fake.Tensor.of(gpu, z.astype(np.int8)) for z in (x, y)) + (offsets,), {}),
        (ShapeError, "the result is (160, 40) of bfloat16", (a, b, offsets), {"out": fake.Tensor.of(gpu, x)}),
        (OperandError, "out shares memory with an operand", (a, b, offsets), {"out": a.like(a.view[:, :40])}),
        (UsageError, "one of them alone", (a, b, offsets), {"scale_a": a}),
        (UsageError, "for groups of rows of float8", (a, b, offsets), {"scale_a": a, "scale_b": b}),
        (OperandError, "rows or columns of each must follow", (a.like(a.view[:, ::2]), b.like(b.view[:, :36]), offsets), {}),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            tw.grouped_matmul(*arguments, **options)
        assert text in str(caught.value)
    assert not gpu.launches


# ---- float8 --------------------------------------------------------------------------------------------------------------


def scales_of(m: int, groups: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two for each row and 128 of k, and for each group and block of 128 × 128."""
    rng, steps = np.random.default_rng(7), -(-k // 128)
    of_a, of_b = rng.integers(-2, 3, (m, steps)), rng.integers(-2, 3, (groups, steps, -(-n // 128)))
    return (2.0**of_a).astype(np.float32), (2.0**of_b).astype(np.float32)


@pytest.mark.slow_cases("('float8_e4m3fn', 'float8_e4m3fn')")
@pytest.mark.parametrize("dtypes", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")], ids=str)
@pytest.mark.parametrize("has_scales", [False, True])
def test_float8(gpu: Any, has_scales: bool, dtypes: tuple[str, str]) -> None:
    """Rows that follow the last group have neither numbers nor scales, and are zeros."""
    ends, n, k = [3, 3, 140, 140, 155], 200, 272
    a, b = (
        whole(*shape, dtype=getattr(ml_dtypes, each)) for shape, each in zip(((162, k), (5, n, k)), dtypes, strict=True)
    )
    scale_a, scale_b = scales_of(162, 5, n, k)
    a[155:], scale_a[155:] = np.nan, np.nan
    wide = np.repeat(scale_a, 128, 1)[:, :k], np.repeat(np.repeat(scale_b, 128, 1), 128, 2)[:, :k, :n]
    factors = a.astype(float), b.swapaxes(1, 2).astype(float)
    exact = right(*((x * s for x, s in zip(factors, wide, strict=True)) if has_scales else factors), ends)
    x, y, offsets = (fake.Tensor.of(gpu, each) for each in (a, b, np.array(ends, np.int32)))
    given = {"scale_a": fake.Tensor.of(gpu, scale_a), "scale_b": fake.Tensor.of(gpu, scale_b)} if has_scales else {}
    c = tw.grouped_matmul(x, y.transpose(-1, -2), offsets, out_dtype="float32", **given)
    np.testing.assert_array_equal(c.view, exact.astype(np.float32))
    assert gpu.launches == [("hopper", 100)]
    if has_scales:
        with pytest.raises(ShapeError, match=r"scale_b is \(5, 3, 1\): of these operands it must be \(5, 3, 2\)"):
            tw.grouped_matmul(x, y.transpose(-1, -2), offsets, **given | {"scale_b": given["scale_b"][:, :, :1]})
    with pytest.raises(OperandError, match="float8 must follow each other along k"):
        tw.grouped_matmul(x, fake.Tensor.of(gpu, b.swapaxes(1, 2).copy()), offsets)


def test_scales_on_the_host() -> None:
    a, b, (scale_a, scale_b) = (
        whole(162, 272, dtype=np.float32),
        whole(5, 272, 200, dtype=np.float32),
        scales_of(162, 5, 200, 272),
    )
    wide = np.repeat(scale_a, 128, 1)[:, :272], np.repeat(np.repeat(scale_b, 128, 1), 128, 2)[:, :272, :200]
    c = tw.grouped_matmul(a, b, ENDS, scale_a=scale_a, scale_b=scale_b)
    np.testing.assert_array_equal(c, right(a * wide[0], b * wide[1], ENDS))
    with pytest.raises(UsageError, match="for groups of rows, here groups divide k"):
        tw.grouped_matmul(a, a.T, ENDS, scale_a=scale_a, scale_b=scale_b)


# ---- the host ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", SHAPES[:3], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex128])
def test_on_the_host(dtype: Any, shapes: Any) -> None:
    a, b = (whole(*shape, dtype=dtype) for shape in shapes)
    exact = right(a.real, b.real, ENDS)
    np.testing.assert_array_equal(tw.grouped_matmul(a, b, ENDS), exact)
    out = np.full(exact.shape, 77, dtype)
    assert tw.grouped_matmul(a, b, np.array(ENDS), out=out) is out
    np.testing.assert_array_equal(out, exact)


def test_what_the_host_refuses() -> None:
    a, b = np.ones((6, 2)), np.ones((2, 2, 3))
    for error, ends, text in (
        (ShapeError, [4, 3], r"offsets is \[4, 3\]: the ends of groups must not decrease, and be from 0 to 6"),
        (ShapeError, [4, 7], "from 0 to 6"),
        (ShapeError, [-1, 3], "from 0 to 6"),
        (OperandError, [1.0, 2.0], "offsets is an array of float64: the ends of groups must be whole numbers"),
    ):
        with pytest.raises(error, match=text):
            tw.grouped_matmul(a, b, ends)
    assert tw.grouped_matmul(a, b, [1, 3], out_dtype="float32").dtype == np.float32
