"""Products of groups of which only the GPU knows the sizes, such as the tokens of each expert of a mixture of experts.

The ends of the groups are an array on the GPU, where a kernel finds what each of its blocks computes. So the call does not
wait for the GPU, copies nothing, pads nothing, and can be captured in a CUDA graph. Which kernel and which tiles are taken
depends on the mean size of a group alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import DTypeError, OperandError, ShapeError
from ..kernels.cuda_kernel import CudaKernel
from ..planning.choice import engine_on_gpu
from ..planning.ways import EngineShape, Way
from ..problem import GroupedShapes, combine_grouped_shapes, itemsize_of
from ..runtime.gpu.boxed_product import BoxedProduct, Groups, prepare_grouped_boxes
from ..runtime.gpu.device import Device
from ..runtime.gpu.listed_product import prepare_grouped_product
from ..runtime.gpu.memory import GRANULE
from ..runtime.gpu.strided_product import StridedProduct
from .dtypes import dtype_name, result_dtype
from .gpu_array import GpuArray, Matrix, contiguous_strides
from .layouts import Boxes, Strided, is_down, strides_of
from .libraries import Library, gpu_at, library_of, memory_error
from .matmul import matmul_on_gpu
from .scattered import whole_ways

#: The dtypes of operands.
DTYPES = ("bfloat16", "float16", "float32", "float64")

#: ``run(a, b, c, offsets, stream)``: addresses, and the handle of a stream.
Run = Callable[[int, int, int, int, int], None]


def grouped_matmul_on_gpu(a: Any, b: Any, offsets: Any, out: Any = None, out_dtype: Any = None) -> Any:
    """``tilewright.grouped_matmul`` of arrays on one GPU; no gradient is recorded. Raises what that raises."""
    if offsets is None:
        combine_grouped_shapes(tuple(a.shape), tuple(b.shape), None)
        return matmul_on_gpu(a, b, out, out_dtype=out_dtype)
    library, views = _views({"a": a, "b": b, "offsets": offsets, "out": out})
    x, y, ends, target = views["a"], views["b"], views["offsets"], views.get("out")
    if ends.strides not in ((1,), (0,)) and ends.shape[0] > 1:
        raise OperandError(f"offsets has a stride of {ends.strides[0]} elements: pass a contiguous copy")
    asked = None if out_dtype is None else dtype_name(out_dtype)
    given = None if target is None else target.in_granule
    plan = _plan(x.in_granule, y.in_granule, ends.shape, given, asked, library.views)
    if target is not None and any(target.overlaps(each) for each in (x, y, ends)):
        raise OperandError("out shares memory with an operand: pass another")
    stream = library.stream(x.device)
    if target is None:
        try:
            out, at = library.empty(plan.shape, plan.dtype, x.device)
        except MemoryError as error:
            raise memory_error(math.prod(plan.shape) * itemsize_of(plan.dtype), x.device, error) from None
    else:
        at = target.pointer
    with gpu_at(x.device):
        plan.run(x.pointer, y.pointer, at, ends.pointer, stream)
    library.hold(stream, x.device, (x, y, ends, target))
    if target is None and asked is None and library.groups is not None:
        result = plan.shape, plan.dtype
        library.groups.remember((a, b, offsets), plan.run, gpu_at(x.device), result, plan.transposed)
    if target is not None:
        library.written(out)
        return out
    c = library.answer(out)
    return library.transposed(c) if plan.transposed else c


def _views(arrays: dict[str, Any]) -> tuple[Library, dict[str, GpuArray]]:
    """The library of the arrays that are given, and each as the GPU sees it."""
    libraries = {name: library_of(x) for name, x in arrays.items() if x is not None}
    for name, library in libraries.items():
        if library is None:
            kind = type(arrays[name]).__name__
            raise OperandError(f"{name} is a {kind} that is not on a GPU, and others are on one: move it there")
    first = libraries["a"]
    assert first is not None
    for name, library in libraries.items():
        if library is not first:
            raise OperandError(f"{name} is a {type(arrays[name]).__name__}, and a is none: pass arrays of one library")
    if "out" in libraries and not first.mutable:
        kind = type(arrays["out"]).__name__
        raise OperandError(f"out is a {kind}, which cannot be written by others: use the result instead")
    views = {name: first.view(arrays[name], name) for name in libraries}
    for name, view in views.items():
        if view.device != views["a"].device:
            raise OperandError(
                f"{name} is on GPU {view.device}, a is on GPU {views['a'].device}: move one to the other"
            )
    return first, views


class _Plan(NamedTuple):
    """``run`` writes a result of this ``shape``, which is ``transposed`` for the caller."""

    run: Run
    shape: tuple[int, ...]
    dtype: str
    transposed: bool


@functools.lru_cache(maxsize=1024)
def _plan(a: Any, b: Any, ends: tuple[int, ...], out: Any, asked: str | None, views: bool) -> _Plan:
    """The plan for arrays that are described without their owners, of which ``out`` may be None."""
    x, y, target = GpuArray(*a), GpuArray(*b), None if out is None else GpuArray(*out)
    shapes, gpu = combine_grouped_shapes(x.shape, y.shape, ends), gpu_at(x.device)
    if x.dtype != y.dtype:
        raise DTypeError(f"a is {x.dtype}, b is {y.dtype}: groups are multiplied in one dtype; convert one of them")
    if x.dtype not in DTYPES:
        raise DTypeError(f"a and b are {x.dtype}: groups on a GPU can be {', '.join(DTYPES)}; convert them")
    dtype = result_dtype(x.dtype, asked)
    if target is not None and (target.shape != shapes.result or target.dtype != dtype):
        raise ShapeError(f"out is {target.shape} of {target.dtype}: the result is {shapes.result} of {dtype}")
    if target is not None and target.repeats:
        raise OperandError(f"out has strides {target.strides}: several of its elements share one place; pass a copy")
    # Groups of columns of C are groups of rows of its transpose.
    turned = shapes.divides == "n"
    transposed = turned and target is None and views
    shape = shapes.result[::-1] if transposed else shapes.result
    stored = GpuArray(0, shape, contiguous_strides(shape), dtype, x.device) if target is None else target
    if transposed:
        stored = _transposed(stored)
    if 0 in shapes.result:
        return _Plan(lambda *_: None, shape, dtype, transposed)
    if 0 in (shapes.k, shapes.groups):
        return _Plan(_clearing(gpu, stored), shape, dtype, transposed)
    if not turned:
        return _Plan(_prepared(gpu, shapes, x, y, stored), shape, dtype, transposed)
    of_rows = GroupedShapes("m", shapes.groups, shapes.n, shapes.m, shapes.k, shapes.result[::-1])
    run = _prepared(gpu, of_rows, _transposed(y), _transposed(x), _transposed(stored))
    return _Plan(lambda a, b, *others: run(b, a, *others), shape, dtype, transposed)


def _transposed(x: GpuArray) -> GpuArray:
    """With its last two axes swapped."""
    shape, strides = (*x.shape[:-2], *x.shape[:-3:-1]), (*x.strides[:-2], *x.strides[:-3:-1])
    return x._replace(shape=shape, strides=strides)


def _clearing(gpu: Device, c: GpuArray) -> Run:
    """Zeros in place of sums of nothing."""
    nbytes = math.prod(c.shape) * itemsize_of(c.dtype)
    if c.extent != (c.pointer, c.pointer + nbytes):
        raise OperandError(f"out has strides {c.strides}: pass a contiguous out")

    def run(a: int, b: int, c: int, offsets: int, stream: int) -> None:  # noqa: ARG001
        gpu.clear(stream, c, 1, nbytes, nbytes)

    return run


def _matrix(x: GpuArray) -> tuple[Matrix, int]:
    """The matrix, or the first one of a batch, and the elements to the next one."""
    (rows, columns), (row, column), size = x.shape[-2:], x.strides[-2:], itemsize_of(x.dtype)
    step = x.strides[0] if len(x.shape) == 3 and x.shape[0] > 1 else 0
    return Matrix(rows, columns, row, column, x.dtype, math.gcd(GRANULE, x.pointer, step * size)), step


def _prepared(gpu: Device, shapes: GroupedShapes, x: GpuArray, y: GpuArray, c: GpuArray) -> Run:
    """The launch by the kernel with boxes, if it takes matrices that lie like these, or by one that takes any strides."""
    (a, _), (b, next_b), (of_c, next_c) = map(_matrix, (x, y, c))
    groups, capability = Groups(shapes.groups, shapes.divides == "k"), gpu.capability
    sizes = shapes.m, shapes.n, shapes.k
    engine = [each for each in engine_on_gpu(x.dtype, capability) if c.dtype in (x.dtype, *each.stores)]
    for boxes in (Boxes(each) for each in engine if each.boxes and itemsize_of(x.dtype) == 2):
        # A copy begins at a whole granule, and a group anywhere: what is divided must be rows of boxes.
        lie = is_down(a) == groups.of_k and not (groups.of_k and is_down(b)) and of_c.column == 1
        if lie and boxes.fits(0, a) and boxes.fits(1, b):
            shape = _mean(shapes, x.dtype, c.dtype, b_across=not boxes.laid(1, b, next_b).down, a_down=groups.of_k)
            chosen = _fastest(boxes.kernel, shape, groups, sizes[0], gpu)
            laid = boxes.laid(0, a, 0), boxes.laid(1, b, next_b), boxes.laid(2, of_c, next_c)
            boxed = BoxedProduct(x.dtype, c.dtype, *sizes, 1, *laid, aligned=of_c.aligned)
            with gpu:
                return prepare_grouped_boxes(gpu, boxes.kernel, boxed, groups, chosen)
    for takes in (Strided(each) for each in engine if "lists" in each.strides):
        if takes.fits(0, a) and takes.fits(1, b) and takes.fits(2, of_c):
            laid_a, laid_b = strides_of(a), strides_of(b, next_b)
            shape = _mean(shapes, x.dtype, c.dtype, b_across=not laid_b.down, a_down=laid_a.down)
            chosen = _fastest(takes.kernel, shape, groups, sizes[0], gpu)
            strided = StridedProduct(x.dtype, c.dtype, *sizes, 1, laid_a, laid_b, strides_of(of_c, next_c))
            with gpu:
                return prepare_grouped_product(gpu, takes.kernel, strided, groups, chosen)
    if not any("lists" in each.strides for each in engine):
        raise DTypeError(
            f"a and b are {x.dtype}, the result {c.dtype}: no kernel for groups on this GPU makes it of them"
        )
    raise OperandError(
        f"a has strides {x.strides}, b {y.strides}, the result {c.strides}: rows or columns of each must follow each other"
    )


def _mean(shapes: GroupedShapes, dtype: str, out: str, *, a_down: bool, b_across: bool) -> EngineShape:
    """A product like those of the groups of k, or of all rows."""
    k = -(-shapes.k // shapes.groups) if shapes.divides == "k" else shapes.k
    batch = shapes.groups if shapes.divides == "k" else 1
    return EngineShape(dtype, out, shapes.m, shapes.n, k, batch, a_down=a_down, b_across=b_across)


def _fastest(
    kernel: CudaKernel, shape: EngineShape, groups: Groups, rows: int, gpu: Device
) -> tuple[tuple[str, int], ...]:
    """The parameters that are predicted to be the fastest, if half of a band of each group is empty in the mean."""

    def seconds(way: Way) -> float:
        band = way.params["BM"] * way.params.get("CLUSTER", 1)
        filled = rows + groups.number * band / 2
        return way.seconds if groups.of_k else way.seconds * max(filled, groups.number * band) / rows

    able = [way for way in whole_ways(kernel, shape, gpu.card) if _is_whole(way)]
    return tuple(sorted(min(able, key=seconds).params.items()))


def _is_whole(way: Way) -> bool:
    """Whether each tile is computed by one block, as those of groups are."""
    return way.params.get("SPLIT", 1) == way.params.get("NEAR", 1) == 1
