"""``matmul`` of arrays on a GPU: the data stay on the GPU, and the result is an array of the caller's library.

The call submits the work to the caller's current stream and does not wait for it. The first call for a shape takes
longer, because it compiles and loads the kernels for the shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import DTypeError, LaunchError, MemoryLimitError, OperandError, UsageError
from ...host.machine import bytes_text, seconds_text
from ...product.epilogue import Epilogue, vector_step
from ...product.operands import GRAM_LEAST
from ...product.precision import INVARIANT, asked_precision, check_words, is_error_goal
from ...product.problem import combine_shapes, itemsize_of
from ..planning.choice import computed_on_gpu
from ..runtime.device import gpu_at
from ..runtime.engine_product import FinishForm, ScaleBlocks
from ..runtime.layout import Matrix
from ..runtime.steps import WORKSPACE, A, B, BufferPlace, C, GpuStep, KernelLaunch
from .choose import gpu_plan, peeled_plan
from .copies import RESULTS_OF_EPILOGUES, pack_code
from .dtypes import dtype_name, dtype_on_gpu, result_dtype
from .gpu_array import GpuArray, GpuMatrix, contiguous_strides
from .libraries import Library, library_of, memory_error
from .order import Operands
from .plan import GpuPlan, Launches, PlanPiece, prepare
from .repeated import finished_ways, short_ways


def matmul_on_gpu(
    a: Any,
    b: Any,
    out: Any = None,
    precision: str | float = "standard",
    algorithm: str = "classical",
    out_dtype: Any = None,
    epilogue: Epilogue | None = None,
    *,
    record: Callable[[Any, Any, str | float], Any] | None = None,
) -> Any:
    """The product of two arrays on one GPU, as ``tilewright.matmul`` describes it. ``record`` multiplies arrays whose
    library must record the product.

    Raises OperandError, DTypeError and ShapeError for operands that cannot be multiplied. Raises MemoryLimitError, and
    writes nothing, if the GPU has too little memory. Raises UsageError for options that cannot be used, and
    UnavailableError if ``cuda.bindings`` is missing.
    """
    asked = None if precision == "standard" and out_dtype is None else (precision, out_dtype)
    if epilogue is None and algorithm == "classical" and (way := short_ways.get(type(a))) is not None:
        again = way(a, b, out, asked)
        if again is not None:
            return again
    if epilogue is not None and algorithm == "classical" and (way := finished_ways.get(type(a))) is not None:
        again = way(a, b, out, asked, epilogue)
        if again is not None:
            return again
    check_words_on_gpu(precision, algorithm)
    if (
        record is not None
        and out is None
        and out_dtype is None
        and epilogue is None
        and any((owner := library_of(x)) and owner.records(x) for x in (a, b))
    ):
        return record(a, b, precision)
    library, others, x, y = _operands(a, b, out)
    target = None if out is None else _target(out, x)
    result, launches = submit_product(
        library, others, (x, y, target), precision, out=out, out_dtype=out_dtype, epilogue=epilogue
    )
    gpu, order = gpu_at(x.device), launches.plan.order
    if library.repeated is not None and not others and _disjoint(target, x, y):
        library.repeated.remember((a, b, out), (x, y, target), launches, gpu, asked, epilogue)
    if target is not None:
        if (owner := library_of(out)) is not None:
            owner.written(out)
        return out
    result = library.answer(result)
    return library.transposed(result) if order.transposed else result


def submit_product(
    library: Library,
    others: list[Library],
    arrays: tuple[GpuArray, GpuArray, GpuArray | None],
    precision: str | float,
    *,
    out: Any = None,
    out_dtype: Any = None,
    epilogue: Epilogue | None = None,
) -> tuple[Any, Launches]:
    """Submit the product of ``arrays`` a and b to the caller's stream. Returns the result, which is ``out`` if the
    third array is its memory, and the launches. Raises any error of ``matmul_on_gpu``."""
    x, y, target = arrays
    stream = library.stream(x.device)
    form, given, kept = (None, (), []) if epilogue is None else finish_form(epilogue, library, x, y)
    launches = _launches(_key(x, y, target, library.views, precision, out_dtype), form)
    order, gpu = launches.plan.order, gpu_at(x.device)
    if target is None:
        result, pointer = allocated(library, order.shape, order.dtype, x.device, launches.plan)
    else:
        result, pointer = out, target.pointer
    try:
        workspace, at = (
            allocated(library, (launches.plan.workspace_bytes,), "uint8", x.device)
            if launches.plan.workspace_bytes
            else (None, 0)
        )
    except MemoryLimitError:
        if launches.plan.split is None:
            raise
        del result  # there is no memory for split operands: they are multiplied as they are
        return submit_product(library, others, arrays, "ieee", out=out, out_dtype=out_dtype, epilogue=epilogue)
    for other in others:
        gpu.order(other.stream(x.device), stream)
    with gpu:
        launches.submit(x.pointer, y.pointer, pointer, at, stream, *given)
    for other in others:  # so that work on its stream that frees or overwrites an operand runs after the product
        gpu.order(stream, other.stream(x.device))
    for each in (library, *others):
        each.hold(stream, x.device, (x, y, target, workspace, kept))
    return result, launches


def multiply_views(x: GpuArray, y: GpuArray, out: GpuArray, stream: int, precision: str | float = "standard") -> None:
    """Submit the product of two arrays on one GPU to a stream of the caller. ``out`` shares no memory with the
    operands."""
    launches = _launches(_key(x, y, out, False, precision, None), None)
    gpu, nbytes, workspace = gpu_at(x.device), launches.plan.workspace_bytes, None
    with gpu:
        try:
            workspace = gpu.allocate(nbytes) if nbytes else None
        except LaunchError as error:
            if launches.plan.split is not None:
                multiply_views(x, y, out, stream, "ieee")
                return
            raise memory_error(nbytes, x.device, MemoryError(str(error))) from None
        if workspace is not None:
            gpu.order(gpu.stream, stream)  # on which it is allocated
        launches.submit(x.pointer, y.pointer, out.pointer, workspace.pointer if workspace else 0, stream)
    if workspace is not None:
        gpu.keep_until_now(stream, workspace)


def plan_of_views(
    x: GpuArray, y: GpuArray, *, views: bool = True, precision: str | float = "standard", out_dtype: str | None = None
) -> GpuPlan:
    """The plan of a product of two arrays; their GPU may be a description of a GPU that this machine does not have.
    With ``views`` the result may be a transposed view. Raises ShapeError and DTypeError."""
    return _plan(_key(x, y, None, views, precision, out_dtype))


def plan_on_gpu(
    a: Any,
    b: Any,
    out: Any = None,
    precision: str | float = "standard",
    algorithm: str = "classical",
    out_dtype: Any = None,
    epilogue: Epilogue | None = None,
) -> GpuPlan:
    """The plan of ``matmul_on_gpu`` for these arrays. Nothing is compiled. Raises any error of ``matmul_on_gpu``."""
    check_words_on_gpu(precision, algorithm)
    if out is None:  # a gradient does not change the plan
        a, b = (x.detach() if (owner := library_of(x)) and owner.records(x) else x for x in (a, b))
    library, _, x, y = _operands(a, b, out)
    form = None if epilogue is None else finish_form(epilogue, library, x, y)[0]
    return _plan(_key(x, y, None if out is None else _target(out, x), library.views, precision, out_dtype), form)


class _PlanKey(NamedTuple):
    """All that a plan depends on except the epilogue. ``x``, ``y`` and ``out`` are ``GpuArray.in_granule`` of a, b and
    ``out``: shapes, strides, dtypes, the GPU, and addresses modulo 16 bytes. ``disjoint`` says that ``out`` shares no
    memory with the operands. ``is_gram`` says that b is the transpose of a in the same memory, so that the product is
    symmetric. ``views`` says that the result may be a transposed view."""

    x: Any
    y: Any
    out: Any
    disjoint: bool
    is_gram: bool
    views: bool
    precision: str | float
    out_dtype: str | None


def _key(
    x: GpuArray, y: GpuArray, target: GpuArray | None, views: bool, precision: str | float, out_dtype: Any
) -> _PlanKey:
    asked, out = None if out_dtype is None else dtype_name(out_dtype), None if target is None else target.in_granule
    gram = len(x.shape) > 1 and x.shape[-2] >= GRAM_LEAST and not x.dtype.startswith("complex") and y.is_transpose_of(x)
    return _PlanKey(x.in_granule, y.in_granule, out, _disjoint(target, x, y), gram, views, precision, asked)


@functools.lru_cache(maxsize=1024)  # a plan depends on its arguments and the GPU alone
def _plan(key: _PlanKey, form: FinishForm | None = None) -> GpuPlan:
    precision, out_dtype, views = asked_precision(key.precision), key.out_dtype, key.views
    first, second = GpuArray(*key.x), GpuArray(*key.y)
    target = None if key.out is None else GpuArray(*key.out)
    whole = _planned(
        first, second, target, precision, out_dtype, disjoint=key.disjoint, views=views, form=form, is_gram=key.is_gram
    )
    if not key.disjoint or whole.problem.symmetry:
        return whole

    def in_pieces(
        whole: GpuPlan, x: GpuArray, y: GpuArray, out: GpuArray | None, given: str | float, result: str | None
    ) -> GpuPlan:
        return peeled_plan(whole, x, y, out, lambda x, y, out: _planned(x, y, out, given, result))

    def of_reals(x: GpuArray, y: GpuArray, out: GpuArray) -> GpuPlan:
        # Residues of complex numbers take half as many products as those of their reals.
        given = "ieee" if x.dtype == "float64" else precision
        return in_pieces(_planned(x, y, out, given, None), x, y, out, given, None)

    whole = in_pieces(whole, first, second, target, precision, out_dtype)
    if precision not in ("standard", "ieee"):
        return whole
    return paired_plan(whole, first, second, target, of_reals, views=views)


def _planned(
    first: GpuArray,
    second: GpuArray,
    target: GpuArray | None,
    precision: str | float,
    out_dtype: str | None,
    *,
    disjoint: bool = True,
    views: bool = False,
    form: FinishForm | None = None,
    is_gram: bool = False,
) -> GpuPlan:
    gpu = gpu_at(first.device)
    operands = dtype_on_gpu(first.dtype, second.dtype)
    result = result_dtype(operands, out_dtype)
    if form is not None and result not in RESULTS_OF_EPILOGUES:
        known = ", ".join(RESULTS_OF_EPILOGUES)
        raise DTypeError(f"the result is {result}: with an epilogue it can be {known}; out_dtype chooses it")

    wanted = result if form is None or result == "float64" else "float32"
    computes = computed_on_gpu(operands, precision, wanted, first.shape[-1] if first.shape else 1, gpu.capability)
    splits = precision == "standard" or is_error_goal(precision)
    is_gram = is_gram and form is None and precision != INVARIANT  # else nothing is known of C, or of its bits
    given = Operands(
        first,
        second,
        target,
        disjoint=disjoint,
        views=views,
        out_dtype=out_dtype,
        has_epilogue=form is not None,
        is_gram=is_gram,
    )
    return gpu_plan(given, computes, gpu, form, splits, precision)


@functools.lru_cache(maxsize=1024)  # kernels stay loaded; addresses come with each launch
def _launches(key: _PlanKey, form: FinishForm | None) -> Launches:
    return prepare(_plan(key, form))


def check_words_on_gpu(precision: str | float, algorithm: str) -> None:
    """Raise UsageError for a precision or an algorithm that products on a GPU do not have."""
    check_words(precision, algorithm)
    if algorithm != "classical":
        raise UsageError(f"algorithm {algorithm!r}: on a GPU there is classical alone")


def _operands(a: Any, b: Any, out: Any) -> tuple[Library, list[Library], GpuArray, GpuArray]:
    """The library of the result, the other libraries among the arguments, and both operands. Raises OperandError."""
    first, second = library_of(a), library_of(b)
    third = first if out is None else library_of(out)
    if first is None or second is None or third is None:
        raise OperandError(_not_all_on_gpu({"a": a, "b": b, "out": out}, [first, second, third]))
    x, y = first.view(a, "a"), second.view(b, "b")
    if x.device != y.device:
        raise OperandError(f"a is on GPU {x.device}, b on GPU {y.device}: move one to the other")
    others = (
        [] if first is second is third else [other for other in dict.fromkeys((second, third)) if other is not first]
    )
    return first, others, x, y


def _not_all_on_gpu(values: dict[str, Any], libraries: list[Library | None]) -> str:
    places = dict(zip(values, libraries, strict=True))
    off = next(name for name, library in places.items() if library is None)
    on = next(name for name, library in places.items() if library is not None and values[name] is not None)
    return f"{off} is a {type(values[off]).__name__} that is not on a GPU, and {on} is on one: move one to the other"


def _target(out: Any, x: GpuArray) -> GpuArray:
    """Address, shape and strides of ``out``. Raises OperandError if ``out`` cannot be written or is on another
    device."""
    library = library_of(out)
    assert library is not None
    if not library.mutable and not isinstance(out, GpuMatrix):
        raise OperandError(f"out is a {type(out).__name__}, which cannot be written by others: use the result instead")
    target = library.view(out, "out")
    if target.device != x.device:
        raise OperandError(f"out is on GPU {target.device}, a and b are on GPU {x.device}: pass an out on that GPU")
    if target.repeats:
        raise OperandError(
            f"out has strides {target.strides}: several of its elements share one place in memory; pass a copy"
        )
    return target


def _disjoint(target: GpuArray | None, *operands: GpuArray) -> bool:
    return target is None or not any(target.overlaps(x) for x in operands)


def allocated(library: Library, shape: tuple[int, ...], dtype: str, device: int, order: Any = None) -> tuple[Any, int]:
    """An array for a result, and its address. Raises MemoryLimitError; the size in its message includes the workspace
    of an ``order``."""
    try:
        return library.empty(shape, dtype, device)
    except MemoryError as error:
        size = math.prod(shape) * itemsize_of(dtype)
        raise memory_error(size + (order.workspace_bytes if order else 0), device, error) from None


# ---- epilogue arrays -------------------------------------------------------------------------------------------------
# The arrays of an epilogue on a GPU: checked, and described for the kernel that reads them.


def finish_form(
    epilogue: Epilogue, library: Library, a: GpuArray, b: GpuArray
) -> tuple[FinishForm, tuple[int, int, int], list[Any]]:
    """The form of an epilogue of the product of ``a`` and ``b``, the addresses of bias and scales, and the objects that
    own them.

    Raises OperandError, DTypeError and ShapeError for arrays that cannot be used.
    """
    epilogue.check_matrices(a.shape, b.shape)
    has_blocks, strides = epilogue.has_blocks(a.shape, b.shape), dict[str, tuple[int, ...]]()
    shapes = combine_shapes(a.shape, b.shape)
    steps: dict[str, int | None] = dict.fromkeys(("bias", "scale_a", "scale_b"))
    at, keep, dtype = dict.fromkeys(steps, 0), [], ""
    for name, value in epilogue.arrays.items():
        if library_of(value) is not library:
            raise OperandError(
                f"{name} is a {type(value).__name__}: it must be an array on the GPU like a, of its library"
            )
        view = library.view(value, name)
        if view.device != a.device:
            raise OperandError(f"{name} is on GPU {view.device}, a is on GPU {a.device}: move one to the other")
        if view.dtype not in (RESULTS_OF_EPILOGUES if name == "bias" else ("float32",)):
            rule = f"one of {', '.join(RESULTS_OF_EPILOGUES)}" if name == "bias" else "float32"
            raise DTypeError(f"{name} is {view.dtype}: it must be {rule}")
        strides[name] = view.strides
        if name == "bias" or not has_blocks:
            size, axis = (shapes.m, 0) if name == "scale_a" else (shapes.n, 1)
            steps[name] = vector_step(name, view.shape, view.strides, size, axis)
        at[name] = view.pointer
        keep.append(view)
        dtype = view.dtype if name == "bias" else dtype
    bias = None if steps["bias"] is None else (dtype, steps["bias"])
    blocks = None
    if has_blocks:
        (row, next_of_rows), (next_of_columns, column) = strides["scale_a"], strides["scale_b"]
        blocks = ScaleBlocks(row, column, next_of_rows, next_of_columns)
    scales = steps["scale_a"], steps["scale_b"]
    form = FinishForm(epilogue.alpha, epilogue.beta, epilogue.activation, bias, *scales, shapes.m, blocks)
    return form, (at["bias"], at["scale_a"], at["scale_b"]), keep


# ---- paired ----------------------------------------------------------------------------------------------------------
# Complex products as real ones, whose kernels are faster: float32 from float16 parts, float64 by the copy engine.
#
# A row of complex A is in memory a row of twice as many reals, re and im in turn, and so is one of C. With each number of
# B as the matrix [[re, im], [−im, re]], C = A·B is the product of these matrices of reals. It has the same multiply-adds,
# in the same precision, and only B is written anew. Where columns of B follow each other in memory, Bᵀ and A change
# places.


_REALS = {"complex64": "float32", "complex128": "float64"}
#: Elements of a row that a block writes at once, its threads, and the most blocks.
_CHUNK, _THREADS, _MOST_BLOCKS = 1024, 256, 1 << 16
#: Bytes of which the beginning of the other workspace is a multiple.
_ALIGNMENT = 1024
#: Bytes a second that writing pairs moves, and seconds of its launch. Of an H200.
_MOVED, _LAUNCH_S = 2.6e12, 2.5e-6
#: The share of the time of a complex kernel that the real product may take at most: predictions are not better than that.
_GAINS = 0.95


def paired_plan(
    whole: GpuPlan,
    x: GpuArray,
    y: GpuArray,
    out: GpuArray | None,
    planned: Callable[[GpuArray, GpuArray, GpuArray], GpuPlan],
    *,
    views: bool,
) -> GpuPlan:
    """The plan that computes a product of complex numbers by products of reals, if it is predicted to take less time
    than ``whole``, the plan for the same arrays; otherwise ``whole``.

    ``planned`` is the function that plans the product of reals. With ``views`` the result may be a transposed view."""
    real = _REALS.get(x.dtype)
    if real is None or y.dtype != x.dtype or whole.order.dtype != x.dtype or not whole.predicted or whole.finish:
        return whole
    if min(len(x.shape), len(y.shape)) < 2:
        return whole
    found, least = whole, _GAINS * whole.predicted
    shapes = whole.order.shapes
    for swapped in (False, True):
        p, q = (y.transposed, x.transposed) if swapped else (x, y)
        shape = (*shapes.result[:-2], shapes.n, shapes.m) if swapped else shapes.result
        c = GpuArray(0, shape, contiguous_strides(shape), x.dtype, x.device)
        if out is not None:
            c = out.transposed if swapped else out
        elif swapped and not views:
            continue
        if len(q.shape) > 3 or {p.strides[-1], c.strides[-1]} != {1}:
            continue
        b, batch = _matrices(q)
        nbytes = -(-2 * batch * b.nbytes // _ALIGNMENT) * _ALIGNMENT
        written_s = _LAUNCH_S + 1.5 * nbytes / _MOVED
        if written_s > least:
            continue
        plan = planned(_by_columns(p, real), _as_reals(q, b), _by_columns(c, real))
        if plan.predicted is None or (seconds := plan.predicted + written_s) > least:
            continue
        order = plan.order._replace(shapes=shapes, shape=shape, dtype=x.dtype, operands=x.dtype, transposed=swapped)
        first, second = (BufferPlace(B), BufferPlace(A)) if swapped else (BufferPlace(A), BufferPlace(B))
        piece = PlanPiece(plan, (first, BufferPlace(WORKSPACE), BufferPlace(C), BufferPlace(WORKSPACE, nbytes)))
        written = f"each number of {'ab'[second.buffer]} is written as [[re, im], [−im, re]], {bytes_text(nbytes)}"
        note = f"{written}; a kernel of complex numbers: {seconds_text(whole.predicted)}"
        found = replace(
            plan,
            problem=whole.problem,
            order=order,
            predicted=seconds,
            before=(pairs_step(b, batch, second),),
            pieces=(piece,),
            notes=(("reals", note),),
        )
        least = seconds
    return found


def pairs_step(b: Matrix, batch: int, source: BufferPlace) -> GpuStep:
    """The launch that writes a batch of complex matrices as real matrices to the beginning of the workspace."""
    macros = {"DOUBLE": int(b.dtype == "complex128"), "BY_COLUMNS": int(b.down)}
    lines, numbers, number = (b.columns, b.rows, b.row) if b.down else (b.rows, b.columns, b.column)
    jobs = batch * lines * -(-numbers // _CHUNK)
    sizes = tuple(map(np.int64, (lines, numbers, b.step, number, b.next)))
    code, size = pack_code("write_pairs", **macros), (min(jobs, _MOST_BLOCKS), _THREADS, 0)
    return GpuStep(KernelLaunch(code, "write_pairs", size, (*sizes, np.int32(batch))), (source, BufferPlace(WORKSPACE)))


def _matrices(y: GpuArray) -> tuple[Matrix, int]:
    """The layout of B as the launch reads it, along the columns if their elements follow each other in memory; and the
    number of matrices."""
    (k, n), (row, column) = y.shape[-2:], y.strides[-2:]
    batch, following = (y.shape[0], y.strides[0]) if len(y.shape) == 3 and y.strides[0] else (1, 0)
    return Matrix(k, n, row, column, y.dtype, next=following, down=row == 1 != column), batch


def _as_reals(y: GpuArray, b: Matrix) -> GpuArray:
    """The complex B as the real matrix that the launch writes."""
    k, n = 2 * b.rows, 2 * b.columns
    strides: tuple[int, ...] = (1, k) if b.down else (n, 1)
    if len(y.shape) == 3:
        strides = (k * n if y.strides[0] else 0, *strides)
    return GpuArray(0, (*y.shape[:-2], k, n), strides, _REALS[b.dtype], y.device)


def _by_columns(x: GpuArray, real: str) -> GpuArray:
    """The same memory as an array of reals, in which real and imaginary parts are in alternate columns."""
    strides = (*(2 * stride for stride in x.strides[:-1]), 1)
    return x._replace(shape=(*x.shape[:-1], 2 * x.shape[-1]), strides=strides, dtype=real)
