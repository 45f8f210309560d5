"""Tensor maps: boxes of every rank, type, swizzle and place against NumPy, and bit for bit against an NVIDIA H200
(``data/tensor-maps-h200.npz``, which ``benchmarks/record_tensor_maps.py`` writes); rows that a store overruns; what is
refused, by the driver or by the GPU.
"""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.async_sources import found, run_async
from support.tensor_map_cases import MapCase, cases, stopped_cases, unit
from support.twelve_kernels import DATA
from tilewright.errors import OperandError, UnavailableError, UsageError
from tilewright.simulator.findings import NEIGHBOURS
from tilewright.simulator.machine.tensor_map import BoxedTensor, edited

CASES = list(cases())
Array = np.ndarray[Any, Any]


def box_of(case: MapCase) -> Array:
    """The box of a load, element by element: what the tensor holds at each place, or what fills its outside."""
    t, array = case.source.tensor, case.source.array
    view = array.reshape(-1).view(np.uint8)
    box = np.zeros((*t.counts[::-1], t.itemsize), np.uint8)
    if t.fill == "nan":
        box.view(np.uint16)[...] = 0x7FF7
    for place in itertools.product(*map(range, t.counts)):
        at = [c + p * s for c, p, s in zip(case.at, place, t.element_strides, strict=True)]
        if all(0 <= a < n for a, n in zip(at, t.sizes, strict=True)):
            first = sum(a * s for a, s in zip(at, t.strides, strict=True))
            box[place[::-1]] = view[first : first + t.itemsize]
    return box.reshape(-1)


def simulated(case: MapCase) -> tuple[list[Array], list[Any]]:
    try:
        return case.simulated()
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")


LOADS = [
    case
    for case in CASES
    if not case.after and not case.source.tensor.swizzle and "tf32" not in case.name and "ftz" not in case.name
]


@pytest.mark.parametrize("case", LOADS, ids=lambda case: case.name)
def test_a_box_is_what_the_array_holds_there(case: MapCase) -> None:
    (box, _), findings = simulated(case)
    assert findings == []
    np.testing.assert_array_equal(box, box_of(case))


NARROW = [case for case in CASES if case.name.startswith("swizzle")]


@pytest.mark.parametrize("case", NARROW, ids=lambda case: case.name)
def test_a_swizzle_spreads_narrow_rows(case: MapCase) -> None:
    """Row r begins at r times the swizzle, however narrow it is; between rows nothing is written."""
    (seen, _), findings = simulated(case)
    t, box = case.source.tensor, box_of(case).reshape(-1, case.source.tensor.box[0] // 4, 16)
    right = np.full((t.shared_bytes // 16, 16), 0xEE, np.uint8)
    for row, column in np.ndindex(box.shape[:2]):
        place = row * (t.swizzle or 16 * box.shape[1]) // 16 + column
        right[place ^ (place // 8 & (t.swizzle or 16) // 16 - 1)] = box[row, column]
    assert findings == []
    np.testing.assert_array_equal(seen, right.reshape(-1))


STORES = [
    case
    for case in CASES
    if case.after == "store" and case.target and case.rank == 2 and not case.target.tensor.swizzle
]


@pytest.mark.parametrize("case", STORES, ids=lambda case: case.name)
def test_a_store_clips_the_box_but_moves_whole_chunks(case: MapCase) -> None:
    """Outside the tensor nothing changes, but for the rest of the last 16 bytes of each row; that is reported."""
    (_, after), findings = simulated(case)
    assert case.target is not None
    t, size = case.target.tensor, case.target.tensor.itemsize
    right, (x0, y0) = case.target.array.copy(), case.to
    columns = t.sizes[0] + -t.sizes[0] * size % 16 // size
    for i, j in itertools.product(range(t.box[1]), range(t.box[0])):
        if 0 <= y0 + i < t.sizes[1] and 0 <= x0 + j < columns:
            right[y0 + i, x0 + j] = case.source.array[1 + i, j]
    np.testing.assert_array_equal(after.view(np.uint8), right.view(np.uint8))
    over = x0 < t.sizes[0] < min(columns, x0 + t.box[0])
    assert [f.kind for f in findings] == [NEIGHBOURS] * over


def test_overrun_rows_are_named() -> None:
    case = next(c for c in STORES if c.name == "store f32 rows of 10 from 0")
    text = simulated(case)[1][0].text
    assert (
        "rows of 40 bytes are no multiple of 16: it overwrites 8 bytes after each, the last at element [6, 10]" in text
    )


STOPPED = list(stopped_cases())
MISALIGNED = [case for case in STOPPED if (case.to if case.after else case.at)[0] % unit(case.source.tensor.type)]
BEFORE = [case for case in STOPPED if case.after and min(case.to) < 0]


@pytest.mark.parametrize("case", MISALIGNED, ids=lambda case: case.name)
def test_a_box_begins_at_a_multiple_of_16_bytes_of_a_row(case: MapCase) -> None:
    """A GPU stops the others as an illegal instruction: loads, stores and reductions."""
    (_, after), (finding,) = simulated(case)
    x = (case.to if case.after else case.at)[0] * case.source.tensor.itemsize
    assert finding.kind == "misaligned"
    assert f"the box begins at byte {x} of a row, which is no multiple of 16" in finding.text
    np.testing.assert_array_equal(after, case.source.array)


@pytest.mark.parametrize("case", BEFORE, ids=lambda case: case.name)
def test_only_a_load_may_begin_before_the_tensor(case: MapCase) -> None:
    (_, after), (finding,) = simulated(case)
    dimension = 0 if case.to[0] < 0 else 1
    assert finding.kind == "out of bounds"
    assert f"the box begins at {min(case.to)} of dimension {dimension}, before the tensor" in finding.text
    np.testing.assert_array_equal(after, case.source.array)


@functools.cache
def recorded() -> dict[str, Array]:
    """What an H200 made of the cases: ``benchmarks/record_tensor_maps.py``."""
    with np.load(DATA / "tensor-maps-h200.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bits_are_those_of_an_h200(case: MapCase) -> None:
    made, _ = simulated(case)
    for part, array in zip(case.parts, made, strict=False):
        assert array.tobytes() == recorded()[f"{case.name}|{part}"].tobytes(), part


def test_what_an_h200_stops_is_reported() -> None:
    names = {name for name in recorded() if name.endswith("|stopped")}
    assert names == {f"{case.name}|stopped" for case in STOPPED}
    assert {str(recorded()[name]) for name in names} == {"CUDA_ERROR_ILLEGAL_INSTRUCTION"}
    (sum_of_s64,) = [case for case in STOPPED if case not in MISALIGNED + BEFORE]
    with pytest.raises(UsageError, match=r"cannot reduce elements of type s64 by \.add"):
        simulated(sum_of_s64)


def test_integer_reductions() -> None:
    for case in CASES:
        if (
            case.after in ("add", "min", "max", "and", "or", "xor")
            and case.source.tensor.type == "u32"
            and not case.bulk
            and "rows" not in case.name
        ):
            (_, after), findings = simulated(case)
            assert findings == []
            assert case.target is not None
            right = case.target.array.copy()
            new = case.source.array[:6, : 64 - 4]
            how = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                   "xor": np.bitwise_xor}[case.after]  # fmt: skip
            right[2:, 4:] = how(right[2:, 4:], new)
            np.testing.assert_array_equal(after, right)


COPIED = """(MAP a, uint4* copy, float* y) {
  __shared__ alignas(128) float box[256]; __shared__ u64 b;
  if (threadIdx.x < 8) copy[threadIdx.x] = ((const uint4*)&a)[threadIdx.x];
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    INIT(&b, 1);
    FENCE_INIT();
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(copy) : "memory");
    asm volatile("prefetch.tensormap [%0];" :: "l"(copy) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" :: "l"(copy), "r"(0), "r"(0) : "memory");
    ARRIVE_EXPECT(&b, 1024);
    BOX(box, *copy, 0, 8, &b);
  }
  __syncthreads();
  WAIT(&b, 0);
  y[threadIdx.x] = box[threadIdx.x];
}"""


def test_a_map_that_the_kernel_copies() -> None:
    a = np.arange(1024, dtype=np.float32).reshape(64, 16)
    run = run_async(COPIED, [tw.TensorMap(a, (16, 16)), np.zeros(32, np.uint32), np.zeros(256, np.float32)], 1, 256)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[2], a[8:24].reshape(-1))


@pytest.mark.parametrize("fence", ["release", "acquire"])
def test_a_map_that_the_copy_engine_may_not_see(fence: str) -> None:
    """A map that the kernel wrote, with one of the two fences left out."""
    lines = COPIED.splitlines()
    (left_out,) = (i for i, line in enumerate(lines) if f"tensormap::generic.{fence}" in line)
    source = "\n".join(line for i, line in enumerate(lines) if i != left_out)
    a = np.arange(1024, dtype=np.float32).reshape(64, 16)
    run = run_async(source, [tw.TensorMap(a, (16, 16)), np.zeros(32, np.uint32), np.zeros(256, np.float32)], 1, 256)
    assert [(f.kind, f"generic.{fence}" in f.text) for f in run.findings] == [("missing fence", True)]


def test_a_map_and_a_pointer_share_their_array() -> None:
    source = """(MAP a, float* x) {
      __shared__ alignas(128) float box[64];
      box[threadIdx.x] = threadIdx.x;
      FENCE();
      __syncthreads();
      if (threadIdx.x == 0) { STORE_BOX(a, 0, 1, box); COMMIT(); WAIT_ALL(0); x[0] = 7; }
    }"""
    x = np.zeros((4, 16), np.float32)
    run = run_async(source, [tw.TensorMap(x, (2, 16), shape=(4, 16)), x], 1, 64)
    assert run.findings == []
    right = np.zeros((4, 16), np.float32)
    right[1:3], right[0, 0] = np.arange(32).reshape(2, 16), 7
    for array in run.arrays:
        np.testing.assert_array_equal(array, right)
    assert not x.any()


def test_the_bytes_hold_the_map() -> None:
    given = tw.TensorMap(
        np.zeros((3, 5, 64), np.float16), (2, 3, 32), swizzle=64, offset=0, element_strides=(2, 1, 1), oob_fill="nan"
    )
    data = given.encoded(1 << 40)
    assert len(data) == 128
    t = BoxedTensor.decode(data)
    assert t is not None
    assert (t.address, t.sizes, t.strides, t.box) == (1 << 40, (64, 5, 3), (2, 128, 640), (32, 3, 2))
    assert (t.element_strides, t.type, t.swizzle, t.fill, t.box_bytes) == ((1, 1, 2), "f16", 64, "nan", 32 * 3 * 2)
    assert BoxedTensor.decode(bytes(128)) is None


def test_a_map_is_made_of_zeros_field_by_field() -> None:
    """PTX ISA, table 33: ranks count from 0, types and swizzles have numbers of their own."""
    fields = [("global_address", 0, 1 << 40), ("rank", 0, 1), ("box_dim", 0, 32), ("box_dim", 1, 3), ("global_dim", 0, 64),
              ("global_dim", 1, 5), ("global_stride", 0, 128), ("element_stride", 0, 1), ("element_stride", 1, 2),
              ("elemtype", 0, 6), ("interleave_layout", 0, 0), ("swizzle_mode", 0, 2), ("fill_mode", 0, 1)]  # fmt: skip
    data: bytes | None = bytes(128)
    for field, ordinal, value in fields:
        assert data is not None
        data = edited(data, field, ordinal, value)
    assert data is not None
    found = BoxedTensor.decode(data)
    assert found == BoxedTensor(1 << 40, (64, 5), (2, 128), (32, 3), (1, 2), "f16", 64, "nan")
    assert edited(b"x" * 128, "rank", 0, 1) is None
    for field, ordinal, value in (
        ("rank", 0, 5),
        ("elemtype", 0, 13),
        ("swizzle_mode", 0, 4),
        ("box_dim", 5, 1),
        ("box_dim", 0, 512),
    ):
        assert edited(data, field, ordinal, value) is None


MATRIX = np.zeros((16, 64), np.float32)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"box_dim": (8,)}, "box_dim has 1 sides, the array 2 dimensions"),
        ({"box_dim": (8, 260)}, r"every side of the box must be from 1 to 256, given \(8, 260\)"),
        ({"box_dim": (0, 4)}, "from 1 to 256"),
        ({"box_dim": (8, 3)}, "innermost side is 12 bytes: give a multiple of 16"),
        ({"box_dim": (8, 16), "swizzle": 32}, "64 bytes: give a multiple of 16 and at most 32 with this swizzle"),
        ({"box_dim": (8, 16), "swizzle": 16}, "swizzle must be 0, 32, 64 or 128, given 16"),
        ({"box_dim": (8, 16), "shape": (16, 10), "strides": (40, 4)}, r"multiple of 16 bytes, given \(40, 4\)"),
        ({"box_dim": (8, 16), "shape": (17, 64)}, "reach 4352 bytes into an array of 4096"),
        ({"box_dim": (8, 16), "offset": 4}, "offset must be a multiple of 16 bytes, given 4"),
        ({"box_dim": (8, 16), "offset": 16}, "reach 4112 bytes"),
        ({"box_dim": (8, 16), "oob_fill": "one"}, "oob_fill must be 'zero' or 'nan'"),
        ({"box_dim": (8, 16), "element_strides": (9, 1)}, "from 1 to 8"),
    ],
)
def test_what_the_driver_refuses(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tw.TensorMap(MATRIX, **given)


def test_arrays_that_no_map_can_describe() -> None:
    with pytest.raises(OperandError, match="C-contiguous"):
        tw.TensorMap(MATRIX.T, (8, 16))
    with pytest.raises(OperandError, match="data_type 'f16' does not fit an array of float32"):
        tw.TensorMap(MATRIX, (8, 16), data_type="f16")
    with pytest.raises(UsageError, match="needs floats"):
        tw.TensorMap(np.zeros((4, 16), np.int32), (2, 16), oob_fill="nan")


BOX = """(MAP a, int x) { __shared__ alignas(128) float box[256]; __shared__ u64 b;
  if (threadIdx.x == 0) { INIT(&b, 1); FENCE_INIT(); ARRIVE_EXPECT(&b, 1024); }
  if (threadIdx.x == 0)
    BOX(box + 4 * x, a, 0, 0, &b);
  __syncthreads(); WAIT(&b, 0); }"""


def test_what_is_no_map_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"holds no tensor map where cp.async.bulk.tensor.2d.* pass a tilewright.TensorMap"
    ):
        run_async(BOX, [bytes(128), 0])
    with pytest.raises(UsageError, match="holds a tensor map of rank 1 where"):
        run_async(BOX, [tw.TensorMap(np.zeros(256, np.float32), (256,)), 0])
    with pytest.raises(
        OperandError, match=r"argument 0 is a object: give .* or for a CUtensorMap a tilewright.TensorMap"
    ):
        run_async(BOX, [object(), 0])
    with pytest.raises(OperandError, match="is a TensorMap of 128 bytes, the kernel's parameter has 4"):
        run_async(BOX, [bytes(128), tw.TensorMap(MATRIX, (8, 16))])


def test_a_box_is_aligned_to_128_bytes() -> None:
    run = run_async(BOX, [tw.TensorMap(MATRIX, (4, 64)), 1])
    assert found(run) == [(4, "misaligned")]
    assert "is 16 off a multiple of 128" in run.findings[0].text
    assert found(run_async(BOX, [tw.TensorMap(MATRIX, (4, 64)), 32])) == [(4, "out of bounds")]
    assert run_async(BOX, [tw.TensorMap(MATRIX, (4, 64)), 0]).findings == []


def test_modes_that_cannot_be_run() -> None:
    im2col = """asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %2, %2}], [%3], {%4, %4};" :: "r"(sm(box)), "l"(&a), "r"(x), "r"(sm(&b)), "h"((short)0) : "memory");"""
    with pytest.raises(UsageError, match=r"of a mode that cannot be run \(only .tile can\)"):
        run_async(BOX.replace("BOX(box + 4 * x, a, 0, 0, &b);", im2col), [tw.TensorMap(MATRIX, (8, 16)), 0])
