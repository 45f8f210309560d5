"""``matmul`` of float8, int8 and tf32 on a GPU, and results of other dtypes, executed by the microscope."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.multiplied import by_columns, by_rows, multiply
from tilewright.errors import DTypeError, UsageError
from tilewright.gpu.runtime.engine_product import EngineProduct
from tilewright.gpu.runtime.nvrtc import CompileError, compile_file
from tilewright.kernels.catalog import cuda_engine

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value

E4, E5, BF16 = (np.dtype(x) for x in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
F16, F32, F64, I8, I32 = map(np.dtype, ("float16", "float32", "float64", "int8", "int32"))
PROMOTED = cuda_engine()["cuda/hopper_promoted"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = fake.Gpu(1 << 23)
    found.sms, found.executes = 4, True
    fake.install(monkeypatch, [found])
    return found


def whole(*shape: int, dtype: Any, seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def exact(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    product = a.astype(np.float64) @ b.astype(np.float64)
    return (product.astype(np.int64) if np.dtype(dtype).kind == "i" else product).astype(dtype)


def tensor(gpu: Any, values: np.ndarray, down: bool = False) -> Any:
    if not down:
        return fake.Tensor.of(gpu, values)
    x = fake.Tensor.of(gpu, np.ascontiguousarray(values.swapaxes(-1, -2)))
    return x.like(x.view.swapaxes(-1, -2))


@pytest.mark.slow
@pytest.mark.parametrize(("dtypes", "says", "result"), [
    ((I8, I8), {}, I8), ((I8, I8), {"out_dtype": "int32"}, I32), ((I8, I8), {"out_dtype": F32}, F32),
    ((E4, E4), {}, BF16), ((E4, E5), {"out_dtype": "float32"}, F32), ((E5, E4), {"out_dtype": "torch.float16"}, F16),
    ((E5, E5), {"precision": "fast"}, BF16), ((E4, E4), {"precision": "fast", "out_dtype": F32}, F32),
    ((F32, F32), {"precision": "tf32"}, F32), ((F32, F32), {"precision": "tf32", "out_dtype": "bfloat16"}, BF16),
    ((BF16, BF16), {"out_dtype": F32}, F32), ((F16, F16), {"out_dtype": BF16}, BF16),
    ((BF16, BF16), {"out_dtype": F64}, F64), ((F32, F32), {"out_dtype": F16}, F16),
], ids=str)  # fmt: skip
def test_dtypes_and_results(gpu: Any, dtypes: Any, says: dict[str, Any], result: Any) -> None:
    for (m, k, n), down in (((40, 144, 48), (False, True)), ((33, 70, 51), (True, False))):
        a, b = whole(m, k, dtype=dtypes[0]), whole(k, n, dtype=dtypes[1], seed=2)
        c = tw.matmul(tensor(gpu, a, down[0]), tensor(gpu, b, down[1]), **says).view
        assert c.dtype == result
        np.testing.assert_array_equal(c, exact(a, b, result))


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["9.0", "8.0"])
@pytest.mark.parametrize("shape", [(3, 72, 24), (140, 48, 136)], ids=str)
def test_other_kernels_do_not_round_sums_either(gpu: Any, shape: tuple[int, int, int], capability: str) -> None:
    if capability == "8.0":
        gpu.capability, gpu.arch = "8.0", "sm_80"
    m, k, n = shape
    for dtype, result in ((BF16, F32), (F16, BF16), (F64, F32)):
        a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype, seed=2)
        a[0, :] = 5
        b[:, 0] = 3  # their sum has more bits than bfloat16
        c = tw.matmul(tensor(gpu, a), tensor(gpu, b), out_dtype=result).view
        assert c.dtype == result
        np.testing.assert_array_equal(c, exact(a, b, result))
    assert not any(entry in ("register_banks", "float32_to_float16") for entry, _ in gpu.launches)


@pytest.mark.slow
def test_what_lies_along_k_is_not_copied(gpu: Any) -> None:
    for dtype, says in ((I8, {"out_dtype": "int32"}), (E4, {}), (F32, {"precision": "tf32"})):
        gpu.launches.clear()
        a, b = whole(40, 64, dtype=dtype), whole(64, 48, dtype=dtype)
        tw.matmul(tensor(gpu, a), tensor(gpu, b, down=True), **says)
        assert [entry for entry, _ in gpu.launches] == ["hopper"]


@pytest.mark.slow_cases("33")
@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize(("dtype", "says", "result"), [
    (I8, {}, I8), (E4, {}, BF16), (E5, {"precision": "fast"}, BF16), (F32, {"precision": "tf32"}, F32),
], ids=str)  # fmt: skip
def test_a_k_of_one(gpu: Any, dtype: Any, says: dict[str, Any], result: Any, n: int) -> None:
    """A single row of B lies along k, and across it."""
    a, b = whole(31, 1, dtype=dtype), whole(1, n, dtype=dtype, seed=2)
    np.testing.assert_array_equal(tw.matmul(tensor(gpu, a), tensor(gpu, b), **says).view, exact(a, b, result))


@pytest.mark.slow
def test_batches_and_parts_of_a_long_k(gpu: Any) -> None:
    a, b = whole(3, 20, 128, dtype=I8), whole(3, 128, 33, dtype=I8)
    c = tw.matmul(tensor(gpu, a), tensor(gpu, b, down=True), out_dtype="int32").view
    np.testing.assert_array_equal(c, exact(a, b, I32))
    gpu.sms = 132
    for dtype, says, result in ((E4, {"out_dtype": F32}, F32), (I8, {}, I8)):
        a, b = whole(17, 5000, dtype=dtype), whole(5000, 24, dtype=dtype)
        x, y = tensor(gpu, a), tensor(gpu, b, down=True)
        assert tw.plan(x, y, **says).parts > 1
        np.testing.assert_array_equal(tw.matmul(x, y, **says).view, exact(a, b, result))


@pytest.mark.parametrize(("capability", "precision", "compute"), [
    ("9.0", "fast", "tf32"), ("9.0", 2e-3, "tf32"), ("9.0", 1e-4, "float32"), ("9.0", 1e-6, "float64"),
    ("8.0", "fast", "float32"), ("8.0", 1e-6, "float64"),
])  # fmt: skip
def test_the_fastest_kernel_that_keeps_the_bound(gpu: Any, capability: str, precision: Any, compute: str) -> None:
    gpu.capability, gpu.sms = capability, 132
    a, b = (fake.Tensor.of(gpu, np.random.default_rng(seed).uniform(-1, 1, (512, 512)).astype(F32)) for seed in (1, 2))
    plan = tw.plan(a, b, precision=precision)
    assert plan.compute == compute
    assert f"in {compute}; not chosen: " in str(plan)


def test_products_on_a_gpu_are_verified(gpu: Any) -> None:
    a, b = (np.random.default_rng(seed).uniform(-1, 1, (64, 64)).astype(F32) for seed in (1, 2))
    x, y = tensor(gpu, a), tensor(gpu, b, down=True)
    c = tw.matmul(x, y, precision="fast", verify=True)
    assert tw.verify(x, y, c, precision="tf32").error > 2.0**-20
    c.view[63, 5] += 0.5
    assert tw.verify(x, y, c, precision="fast").where == (63, 5)


@pytest.mark.thorough
@pytest.mark.slow_cases("fast")
@pytest.mark.parametrize("precision", ["standard", "fast"])
def test_sums_of_float8_keep_more_than_13_bits(gpu: Any, precision: str) -> None:
    """To 448² a tensor core adds nothing below 16; but the sums of other 128 of k are 2, and are not lost in float32."""
    a = np.full((2, 640), 0.125, E4)
    a[:, 0] = 448
    c = tw.matmul(tensor(gpu, a), tensor(gpu, a).transpose(0, 1), precision=precision, out_dtype="float32").view
    assert (c == 448**2 + (8 if precision == "standard" else 0)).all()


def test_operands_of_tf32_are_rounded_to_nearest(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.engine_alone(monkeypatch, cuda_engine()["cuda/hopper"])
    a, b = np.full((8, 16), 1 + 2.0**-11 + 2.0**-20, np.float32), np.ones((16, 8), np.float32)
    c = tw.matmul(tensor(gpu, a), tensor(gpu, b, down=True), precision="tf32").view
    assert (c == 16 * (1 + 2.0**-10)).all()


@pytest.mark.slow
@pytest.mark.further
@pytest.mark.parametrize(
    "params",
    [{}, *(preset.params for preset in PROMOTED.presets)],
    ids=lambda p: "-".join(map(str, p.values())) or "none",
)
def test_a_block_of_the_promoted_kernel_takes_many_tiles(gpu: Any, params: dict[str, int]) -> None:
    gpu.sms = 2
    for n, k, out in ((264, 300, BF16), (133, 260, F32)):
        m, step = 132, -(-k // 16) * 16
        a, b = whole(m, k, dtype=E4), whole(k, n, dtype=E5)
        memory = [gpu.put(np.pad(x.view(np.uint8), ((0, 0), (0, step - k)))) for x in (a, np.ascontiguousarray(b.T))]
        c = gpu.allocate(m * n * out.itemsize)
        factors = by_rows(m, k, "float8_e4m3fn", step), by_columns(k, n, "float8_e5m2", step)
        what = EngineProduct("float8", *factors, by_rows(m, n, out.name))
        multiply(gpu, PROMOTED, what, params, (memory[0].pointer, memory[1].pointer, c.pointer))
        np.testing.assert_array_equal(gpu.get(c, out, (m, n)), exact(a, b, out))
        for each in (c, *memory):
            each.close()


@pytest.mark.parametrize(("dtypes", "says", "kind", "words"), [
    ((I8, F32), {}, DTypeError, "a is int8, b is float32: .*convert"),
    ((E4, BF16), {}, DTypeError, "a is float8_e4m3fn, b is bfloat16"),
    ((I32, I32), {}, DTypeError, "a is a tensor of int32"),
    ((F32, F32), {"out_dtype": "int8"}, DTypeError, "out_dtype is int8: a product of float32"),
    ((E4, E4), {"out_dtype": "int8"}, DTypeError, "out_dtype is int8"),
    ((E4, E5), {"precision": 1e-3}, UsageError, "products of float8 have no such bound"),
    ((F32, F32), {"precision": 1e-12}, UsageError, "the best bound for float32 is "),
    ((F16, F16), {"precision": "tf32"}, UsageError, "'tf32' is for arrays of float32"),
], ids=str)  # fmt: skip
def test_what_is_refused(gpu: Any, dtypes: Any, says: dict[str, Any], kind: Any, words: str) -> None:
    a, b = (tensor(gpu, whole(4, 4, dtype=dtype)) for dtype in dtypes)
    for call in (tw.matmul, tw.plan):
        with pytest.raises(kind, match=words):
            call(a, b, **says)


def test_older_gpus_have_no_float8(gpu: Any) -> None:
    gpu.capability, gpu.arch = "8.0", "sm_80"
    with pytest.raises(DTypeError, match="no kernel multiplies float8 on compute capability"):
        tw.matmul(tensor(gpu, whole(4, 4, dtype=E4)), tensor(gpu, whole(4, 4, dtype=E4)))


def test_results_in_the_other_half_are_rounded_once(gpu: Any) -> None:
    # Not to bfloat16 and then to float16, which has three more bits: so no kernel that stores only one of them.
    x, y = (tensor(gpu, np.zeros(shape, BF16)) for shape in ((2000, 1, 32), (2000, 32, 1)))
    assert "float16" not in tw.plan(x, y).kernel.stores
    assert "float16" in tw.plan(x, y, out_dtype="float16").kernel.stores


@pytest.mark.parametrize(("file", "right"), [
    ("hopper.cu", {"TYPE": "FLOAT8", "TYPE_A": "FLOAT8_E4M3FN", "TYPE_B": "FLOAT8_E5M2", "OUT": "FLOAT32"}),
    ("pack/add_parts.cu", {"SUM": "INT32", "OUT": "INT8"}),
    ("pack/finish.cu", {"SUM": "INT32", "OUT": "BFLOAT16", "BIAS": "FLOAT32"}),
], ids=["hopper", "add_parts", "finish"])  # fmt: skip
def test_a_kernel_of_a_dtype_without_a_number_is_refused(file: str, right: dict[str, str]) -> None:
    path = cuda_engine()["cuda/hopper"].path.parent / file
    for macro in right:
        with pytest.raises(CompileError, match=rf"#error.*\b{macro}\b.*names a dtype that types.cuh does not define"):
            compile_file(path, arch="sm_90a", defines={**right, macro: "UINT8"})
