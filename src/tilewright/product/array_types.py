"""The types of arrays in the signatures of public calls. Type checkers read this module; no program imports it.

NumPy is the only library of arrays that this module names. PyTorch tensors and arrays of CuPy and JAX match the
protocol ``Array``. So type checkers infer that the product of two ``torch.Tensor`` is a ``torch.Tensor``.
"""

from __future__ import annotations

import os
from typing import Any, Never, Protocol, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Array(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> Any:
        """The lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """The type of the elements."""

    def __matmul__(self, other: Any, /) -> Any: ...


#: An operand in memory: an array of any library, or lists of numbers.
Operand = ArrayLike | Array
#: The path or the URL of a matrix in a file.
Path = str | os.PathLike[str]

#: The type of both operands, and of the result.
ArrayT = TypeVar("ArrayT", bound=Array)
#: The type of ``out``, which the call returns.
OutT = TypeVar("OutT")
#: The dtype of one operand, or the dtype that the caller requests.
ScalarT = TypeVar("ScalarT", bound=np.generic)
#: The dtype of both operands. It is a list of dtypes. With ``ScalarT``, a checker would accept int32 and float32 together
#: as either of the two, although their product is float64.
SameT = TypeVar(
    "SameT",
    np.bool,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
)

#: An array of one axis.
Vector = np.ndarray[tuple[int], np.dtype[SameT]]
#: An array whose number of axes a checker does not know; no other shape consists of ``Never``. NumPy's own stubs do the
#: same.
UnknownShape = np.ndarray[tuple[Never, Never, Never, Never, Never], np.dtype[SameT]]
#: An array whose dtype a checker does not know, or of which it only knows the kind.
UnknownDType = NDArray[
    np.floating[Never] | np.signedinteger[Never] | np.unsignedinteger[Never] | np.complexfloating[Never, Never]
]


class MatmulOptions(TypedDict, total=False):
    """The options of ``matmul`` that do not change the type of its result."""

    precision: str | float
    algorithm: str
    device: str | None
    alpha: float
    beta: float
    bias: Operand | None
    activation: str | None
    scale_a: Operand | None
    scale_b: Operand | None
    invariant: bool
    verify: bool


class GramOptions(TypedDict, total=False):
    """The options of ``gram`` that do not change the type of its result."""

    rows: bool
    conjugate: bool
    precision: str | float
    center: bool
    ddof: int | None
    memory: float | str | None
    overwrite: bool
