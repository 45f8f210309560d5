"""Grouped products whose sizes only the GPU knows, such as the numbers of tokens of the experts in a mixture of
experts.

The ends of the groups are an array on the GPU, from which the kernel finds what each of its blocks computes. So the
call does not wait for the GPU, copies nothing, pads nothing, and can be captured in a CUDA graph. The choice of kernel
and tiles depends only on the mean size of a group.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import DTypeError, OperandError, ShapeError, UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...kernels.expression import cdiv
from ...product.epilogue import block_shapes
from ...product.problem import GroupedShapes, combine_grouped_shapes, itemsize_of
from ..planning.choice import engine_on_gpu
from ..planning.ways import EngineShape, Way, whole_ways
from ..runtime.compilations import Chosen, chosen_params
from ..runtime.device import Device
from ..runtime.engine_product import EngineProduct, Groups, ScaleBlocks, prepare_grouped_boxes, prepare_grouped_product
from ..runtime.memory import GRANULE
from .dtypes import dtype_name, dtype_on_gpu, result_dtype
from .gpu_array import GpuArray, contiguous_strides
from .layouts import Boxes, Strided, given_by_strides, is_down
from .libraries import Library, gpu_at, library_of
from .matmul import allocated, matmul_on_gpu

#: The dtypes of operands, of which one of 8 bits may be multiplied by the other.
DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")

#: ``run(a, b, c, offsets, stream)``: addresses, and the handle of a stream; the addresses of scales precede the stream.
Run = Callable[..., None]


def grouped_matmul_on_gpu(
    a: Any, b: Any, offsets: Any, out: Any = None, out_dtype: Any = None, scale_a: Any = None, scale_b: Any = None
) -> Any:
    """``tilewright.grouped_matmul`` of arrays on one GPU, without recording a gradient. Raises the same errors."""
    if offsets is None:
        combine_grouped_shapes(tuple(a.shape), tuple(b.shape), None)
        return matmul_on_gpu(a, b, out, out_dtype=out_dtype)
    scales = {"scale_a": scale_a, "scale_b": scale_b} if scale_a is not None else {}
    library, views = _views({"a": a, "b": b, "offsets": offsets, "out": out, **scales})
    plan = _plan_of(library, views, out_dtype)
    stream, gpu = library.stream(views["a"].device), gpu_at(views["a"].device)
    c, at = (out, views["out"].pointer) if out is not None else allocated(library, plan.shape, plan.dtype, gpu.ordinal)
    given = [views[name].pointer for name in ("a", "b", "offsets", *scales)]
    with gpu:
        plan.run(given[0], given[1], at, *given[2:], stream)
    library.hold(stream, gpu.ordinal, tuple(views.values()))
    if out is not None:
        library.written(out)
        return out
    if out_dtype is None and not scales and library.groups is not None:
        library.groups.remember((a, b, offsets), plan.run, gpu, (plan.shape, plan.dtype), plan.transposed)
    c = library.answer(c)
    return library.transposed(c) if plan.transposed else c


def _plan_of(library: Library, views: dict[str, GpuArray], out_dtype: Any) -> _Plan:
    """The plan of the product of these arrays."""
    x, y, ends, target = views["a"], views["b"], views["offsets"], views.get("out")
    if len(ends.shape) == 1 and ends.shape[0] > 1 and ends.strides != (1,):
        raise OperandError(f"offsets has a stride of {ends.strides[0]} elements: pass a contiguous copy")
    if target is not None and any(target.overlaps(each) for name, each in views.items() if name != "out"):
        raise OperandError("out shares memory with an operand: pass another")
    asked = None if out_dtype is None else dtype_name(out_dtype)
    scales = tuple(views[name][1:4] for name in ("scale_a", "scale_b") if name in views)
    given = None if target is None else target.in_granule
    return _plan(x.in_granule, y.in_granule, ends.shape, given, asked, views=library.views, scales=scales)


def _views(arrays: dict[str, Any]) -> tuple[Library, dict[str, GpuArray]]:
    """The library of the given arrays, and the address, shape and strides of each."""
    libraries = {name: library_of(x) for name, x in arrays.items() if x is not None}
    for name, library in libraries.items():
        if library is None:
            kind = type(arrays[name]).__name__
            raise OperandError(f"{name} is a {kind} that is not on a GPU, and others are on one: move it there")
    first = libraries["a"]
    assert first is not None
    for name, library in libraries.items():
        if library is not first:
            raise OperandError(f"{name} is a {type(arrays[name]).__name__}, and a is not: pass arrays of one library")
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


def plan_of_groups(a: GpuArray, b: GpuArray, groups: int) -> _Plan:
    """The plan of a grouped product with ``groups`` groups. Nothing is multiplied. Raises any error of
    ``grouped_matmul``."""
    return _plan(a.in_granule, b.in_granule, (groups,), None, None, views=True, scales=())


class _Plan(NamedTuple):
    """``run`` writes a result of this ``shape``. If ``transposed``, the caller gets a transposed view of it."""

    run: Run
    shape: tuple[int, ...]
    dtype: str
    transposed: bool


@functools.lru_cache(maxsize=1024)  # a plan depends on its arguments and the GPU alone
def _plan(
    a: Any, b: Any, ends: tuple[int, ...], out: Any, asked: str | None, *, views: bool, scales: tuple[Any, ...]
) -> _Plan:
    """The plan for arrays that are described without their owners. ``out`` may be None, and ``scales`` may be empty."""
    x, y, target = GpuArray(*a), GpuArray(*b), None if out is None else GpuArray(*out)
    shapes, gpu = combine_grouped_shapes(x.shape, y.shape, ends), gpu_at(x.device)
    for name, each in (("a", x), ("b", y)):
        if each.dtype not in DTYPES:
            raise DTypeError(f"{name} is {each.dtype}: groups on a GPU can be {', '.join(DTYPES)}; convert it")
    compute = dtype_on_gpu(x.dtype, y.dtype)
    if compute != "float8" and x.dtype != y.dtype:
        raise DTypeError(f"a is {x.dtype}, b is {y.dtype}: groups are multiplied in one dtype; convert one of them")
    dtype, blocks = result_dtype(compute, asked), _checked_scales(shapes, compute, scales)
    if target is not None and (target.shape != shapes.result or target.dtype != dtype):
        raise ShapeError(f"out is {target.shape} of {target.dtype}: the result is {shapes.result} of {dtype}")
    if target is not None and target.repeats:
        raise OperandError(f"out has strides {target.strides}: several of its elements share one place; pass a copy")
    # Groups of columns of C are groups of rows of its transpose.
    turned = shapes.grouped_axis == "n"
    transposed = turned and target is None and views
    shape = shapes.result[::-1] if transposed else shapes.result
    stored = GpuArray(0, shape, contiguous_strides(shape), dtype, x.device) if target is None else target
    if transposed:
        stored = stored.transposed
    if 0 in shapes.result:
        return _Plan(lambda *_: None, shape, dtype, transposed)
    if 0 in (shapes.k, shapes.groups):
        return _Plan(_clearing(gpu, stored), shape, dtype, transposed)
    if not turned:
        return _Plan(_prepared(gpu, shapes, x, y, stored, blocks), shape, dtype, transposed)
    of_rows = GroupedShapes("m", shapes.groups, shapes.n, shapes.m, shapes.k, shapes.result[::-1])
    run = _prepared(gpu, of_rows, y.transposed, x.transposed, stored.transposed)
    return _Plan(lambda a, b, *others: run(b, a, *others), shape, dtype, transposed)


def _checked_scales(shapes: GroupedShapes, compute: str, scales: tuple[Any, ...]) -> ScaleBlocks | None:
    """The scales of blocks, each given as shape, strides and dtype. Raises DTypeError, ShapeError and UsageError."""
    if not scales:
        return None
    if shapes.grouped_axis != "m" or compute != "float8":
        raise UsageError(
            f"scale_a and scale_b are for groups of rows of float8, here groups divide {shapes.grouped_axis} of {compute}"
        )
    of_a, (steps, columns) = block_shapes(shapes.m, shapes.n, shapes.k)
    needed = of_a, (shapes.groups, steps, columns)
    for name, (shape, _, dtype), right in zip(("scale_a", "scale_b"), scales, needed, strict=True):
        if dtype != "float32":
            raise DTypeError(f"{name} is {dtype}: it must be float32")
        if shape != right:
            raise ShapeError(f"{name} is {shape}: of these operands it must be {right}, one for each block")
    (row, next_of_rows), (next_group, next_of_columns, column) = scales[0][1], scales[1][1]
    return ScaleBlocks(row, column, next_of_rows, next_of_columns, next_group)


def _clearing(gpu: Device, c: GpuArray) -> Run:
    """A run that fills C with zeros, for products in which k is 0."""
    nbytes = math.prod(c.shape) * itemsize_of(c.dtype)
    if c.extent != (c.pointer, c.pointer + nbytes):
        raise OperandError(f"out has strides {c.strides}: pass a contiguous out")

    def run(a: int, b: int, c: int, offsets: int, stream: int) -> None:  # noqa: ARG001
        gpu.clear(stream, c, 1, nbytes, nbytes)

    return run


def _prepared(
    gpu: Device, shapes: GroupedShapes, x: GpuArray, y: GpuArray, c: GpuArray, blocks: ScaleBlocks | None = None
) -> Run:
    """The launch of the kernel with boxes, if it takes matrices with these layouts, or of a kernel that takes any
    strides."""
    a, b, of_c = x.matrix, y.matrix, c.matrix
    groups, capability = Groups(shapes.groups, shapes.grouped_axis == "k"), gpu.capability
    compute = dtype_on_gpu(x.dtype, y.dtype)
    engine = [each for each in engine_on_gpu(compute, capability) if c.dtype in (compute, *each.stores)]
    for boxes in (Boxes(each) for each in engine if each.boxes and itemsize_of(compute) <= 2):
        # A copy begins at a whole granule, and a group anywhere: what is divided must be rows of boxes.
        lie = is_down(a) == groups.of_k and not (groups.of_k and is_down(b)) and of_c.column == 1
        if lie and boxes.fits(0, a) and boxes.fits(1, b):
            given = boxes.given(0, a), boxes.given(1, b, b.next), boxes.given(2, of_c, of_c.next)
            shape = _mean(shapes, compute, c.dtype, b_across=not given[1].down, a_down=groups.of_k)
            shape = shape._replace(blocks=blocks is not None)
            chosen = _fastest(boxes.kernel, shape, groups, gpu)
            with gpu:
                product = EngineProduct(compute, *given, blocks=blocks)
                return prepare_grouped_boxes(gpu, boxes.kernel, product, groups, chosen)
    for takes in (Strided(each) for each in engine if "lists" in each.strides):
        if takes.fits(0, a) and takes.fits(1, b) and takes.fits(2, of_c):
            given = given_by_strides(a), given_by_strides(b, b.next), given_by_strides(of_c, of_c.next)
            shape = _mean(shapes, x.dtype, c.dtype, b_across=not given[1].down, a_down=given[0].down)
            chosen = _fastest(takes.kernel, shape, groups, gpu)
            with gpu:
                return prepare_grouped_product(gpu, takes.kernel, EngineProduct(x.dtype, *given), groups, chosen)
    if engine and compute == "float8":
        raise OperandError(
            f"a has strides {x.strides}, b {y.strides}: float8 must follow each other along k, whose rows are multiples of "
            f"{GRANULE} bytes, and groups must divide rows; pass b.transpose of a contiguous (groups, n, k)"
        )
    if not any("lists" in each.strides for each in engine):
        raise DTypeError(
            f"a and b are {x.dtype}, the result {c.dtype}: no kernel for groups on this GPU makes it of them"
        )
    raise OperandError(
        f"a has strides {x.strides}, b {y.strides}, the result {c.strides}: rows or columns of each must follow each other"
    )


def _mean(shapes: GroupedShapes, dtype: str, out: str, *, a_down: bool, b_across: bool) -> EngineShape:
    """A batch of as many products as there are groups, each of the mean size."""
    of_k, groups = shapes.grouped_axis == "k", shapes.groups
    m, k = (shapes.m, cdiv(shapes.k, groups)) if of_k else (cdiv(shapes.m, groups), shapes.k)
    return EngineShape(dtype, out, m, shapes.n, k, groups, a_down=a_down, b_across=b_across)


def _fastest(kernel: CudaKernel, shape: EngineShape, groups: Groups, gpu: Device) -> Chosen:
    """The parameters that are predicted to be the fastest. On average the last band of a group is half empty, and half
    a band takes half of the time of a whole band."""

    def seconds_of(bands: int, height: int) -> dict[Chosen, float]:
        of_bands = shape if groups.of_k else shape._replace(m=bands * height)
        found = whole_ways(kernel, of_bands, gpu.card)
        return {
            chosen_params(way.params): way.seconds for way in found if _is_alone(way) and way.params["BM"] == height
        }

    found: dict[Chosen, float] = {}
    for height in {way.params["BM"] for way in whole_ways(kernel, shape, gpu.card) if _is_alone(way)}:
        part, bands = math.modf(max(1.0, shape.m / height + 0.5))
        fewer, more = (seconds_of(int(bands) + others, height) for others in (0, 1))
        found |= {params: (1 - part) * fewer[params] + part * more[params] for params in fewer.keys() & more.keys()}
    # What ``tilewright tune`` found for other products may be for blocks that share a tile.
    return min(sorted(found), key=found.__getitem__, default=chosen_params(kernel.params))


def _is_alone(way: Way) -> bool:
    """Whether a block computes each of its tiles alone, from the first step to the last. Ways in which blocks share
    tiles also work for groups, but are slower, because the bands of a group are rarely as many as the blocks that would
    share them."""
    sharing = (way.params.get(name, 1) for name in ("SPLIT", "NEAR", "CLUSTER", "BESIDE"))
    return all(blocks == 1 for blocks in sharing) and not way.params.get("PINGPONG", 0)
