"""The arrays of an epilogue on a GPU: checked, and described for the kernel that reads them."""

from __future__ import annotations

from typing import Any

from ..epilogue import Epilogue, vector_step
from ..errors import DTypeError, OperandError
from ..problem import combine_shapes
from ..runtime.gpu.engine_product import FinishForm, ScaleBlocks
from .finish import RESULTS_OF_EPILOGUES
from .gpu_array import GpuArray
from .libraries import Library, library_of


def finish_form(
    epilogue: Epilogue, library: Library, a: GpuArray, b: GpuArray
) -> tuple[FinishForm, tuple[int, int, int], list[Any]]:
    """The form of an epilogue of the product of ``a`` and ``b``, the addresses of bias and scales, and what keeps them.

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
