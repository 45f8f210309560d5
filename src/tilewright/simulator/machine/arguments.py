"""Checks what a caller passes for a launch: grid and block, the blocks to run, and the arrays and numbers for the
kernel's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import OperandError, UsageError, did_you_mean
from ...gpu.runtime.cubin import demangled
from ...gpu.runtime.launch import extent
from ...kernels.cuda_kernel import MOST_BLOCK, MOST_GRID, MOST_THREADS
from ..assembly.instructions import SIZES, Variable
from .tensor_map import MAP_BYTES
from .threads import NO_CLUSTER, blocks_by_cluster, clusters_of
from .values import DTYPES, Array, Dim, Ints

#: The most blocks of a run, because their numbers must fit a stamp of ``clocks``.
MOST_BLOCKS = 1 << 26


def dimensions(name: str, value: int | Sequence[int]) -> Dim:
    """Check the dimensions of a grid or block; returns them as (x, y, z).

    Raises UsageError if the dimensions are not one to three positive numbers, or are more than a GPU accepts.

    >>> dimensions("grid", (4, 2))
    (4, 2, 1)
    """
    x, y, z = extent(name, value)
    if name == "block" and x * y * z > MOST_THREADS:
        raise UsageError(f"block {value!r} has {x * y * z} threads: at most {MOST_THREADS} are allowed")
    most = MOST_BLOCK if name == "block" else MOST_GRID
    if x > most[0] or y > most[1] or z > most[2]:
        raise UsageError(f"{name} {value!r} is larger than {most}, the most that a GPU takes along x, y, z")
    return x, y, z


def whole_number(name: str, value: Any, least: int) -> int:
    """Check an option that must be a whole number. Raises UsageError if the option is not a whole number, or is too
    small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}, given {value!r}")
    return int(value)


def check_positions(outputs: Any) -> None:
    """Raise UsageError unless all values are positions of arguments."""
    if isinstance(outputs, str) or not isinstance(outputs, Sequence | np.ndarray | set | frozenset):
        raise UsageError(f"outputs must be positions of arguments, such as [2], given {outputs!r}")
    for output in outputs:
        whole_number("each of outputs", output, 0)


def size_in_words(nbytes: int) -> str:
    """Return a number of bytes as text, such as ``3 MiB`` or ``512 bytes``."""
    return f"{nbytes >> 20:,} MiB" if nbytes >= 1 << 20 else f"{nbytes:,} bytes"


@dataclass(frozen=True)
class SimulatedBlocks:
    """The blocks of a grid that are run, in order. Only whole clusters are run.

    ``chosen`` has the numbers of these blocks, in the order of ``threads.blocks_by_cluster``; None means all blocks of
    the grid.
    """

    grid: Dim
    cluster: Dim = NO_CLUSTER
    chosen: Ints | None = None

    @classmethod
    def of(cls, grid: Dim, blocks: int | Sequence[int] | None, cluster: Dim = NO_CLUSTER) -> SimulatedBlocks:
        """Select all blocks, the blocks of the given linear indices, or a number of blocks spread over the grid. If one
        block of a cluster is selected, the whole cluster is run."""
        total, size = math.prod(grid), math.prod(cluster)
        if blocks is None:
            if total > MOST_BLOCKS:
                raise UsageError(
                    f"the grid has {total:,} blocks, too many to run all: give the number or the indices of some (blocks=)"
                )
            return cls(grid, cluster)
        if isinstance(blocks, int | np.integer):
            count = -(-min(whole_number("blocks", blocks, 1), total, MOST_BLOCKS) // size)
            spread = [i * (total // size - 1) // max(1, count - 1) for i in range(count)]
            return cls(grid, cluster, _whole_clusters(np.array(spread, np.int64), size))
        index = np.asarray(blocks) if not isinstance(blocks, str) else np.zeros(0)
        if index.ndim != 1 or not index.size or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= total:
            raise UsageError(f"blocks must be a number, or indices from 0 to {total - 1}, given {blocks!r}")
        clusters = np.unique(clusters_of(index.astype(np.int64), grid, cluster))
        return cls(grid, cluster, _whole_clusters(clusters, size))

    @property
    def total(self) -> int:
        """The number of blocks of the grid."""
        return math.prod(self.grid)

    @property
    def count(self) -> int:
        """The number of blocks that are run."""
        return self.total if self.chosen is None else int(self.chosen.size)

    def part(self, first: int, count: int) -> Ints:
        """Return the indices in the grid of ``count`` blocks of the run, beginning with block ``first`` of the run."""
        stop = min(first + count, self.count)
        numbers = np.arange(first, stop, dtype=np.int64) if self.chosen is None else self.chosen[first:stop]
        return blocks_by_cluster(numbers, self.grid, self.cluster)

    def at(self, ordinal: int) -> int:
        """Return the index in the grid of one block of the run."""
        return int(self.part(ordinal, 1)[0])


def _whole_clusters(clusters: Ints, size: int) -> Ints:
    """The numbers of all blocks of these clusters."""
    return np.asarray((clusters[:, None] * size + np.arange(size)).reshape(-1))


def is_pointer(param: Variable) -> bool:
    """Whether a parameter may hold an address."""
    return param.size == 8 and param.type in ("u64", "b64", "s64")


def _scalars(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    """The scalar types that a type is made of: itself, or those of the fields of a structure."""
    if dtype.subdtype is not None:
        return _scalars(dtype.subdtype[0])
    if dtype.names is None:
        return [dtype]
    return [scalar for name in dtype.names for scalar in _scalars(dtype[name])]


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind not in "OSUMm" and dtype.itemsize <= {"f": 8, "c": 16}.get(dtype.kind, 1 << 31)


def checked_array(name: str, value: Array) -> Array:
    """Convert an array to the form that a kernel sees: elements in C order. Raises OperandError for an array of a dtype
    that no GPU has."""
    if not all(_is_number(dtype) for dtype in _scalars(value.dtype)):
        raise OperandError(f"{name} is an array of {value.dtype}: give one of numbers that a GPU has")
    if not value.dtype.isnative:
        raise OperandError(
            f"{name} is an array of {value.dtype}, of the other byte order: give {value.dtype.newbyteorder('=')}"
        )
    return np.ascontiguousarray(value)


def parameter_bytes(name: str, param: Variable, value: Any) -> bytes:
    """Convert a number, a structure or None (a null pointer) to the bytes of a kernel parameter.

    Raises OperandError if the value is not of the parameter's type, or does not fit the parameter.
    """
    kind = f".{param.type}" + (f"[{param.size}]" if param.size != SIZES[param.type] else "")
    if value is None and is_pointer(param):
        return bytes(8)
    if isinstance(value, np.ndarray) and param.size == SIZES[param.type]:
        raise OperandError(f"{name} is an array, but the kernel's parameter is a {kind}: give a number")
    if isinstance(value, np.float16) and param.size == 2 and param.type[0] == "b":  # __half is a structure
        return value.tobytes()
    if isinstance(value, bytes | bytearray | np.void | np.ndarray):
        data = (
            bytes(value) if isinstance(value, bytes | bytearray) else checked_array(name, np.asarray(value)).tobytes()
        )
        if len(data) != param.size:
            raise OperandError(f"{name} has {len(data)} bytes, the kernel's parameter {param.size}")
        return data
    if isinstance(value, complex | np.complexfloating) or not isinstance(value, int | float | np.number | np.bool_):
        tensor_map = ", or for a CUtensorMap a tilewright.TensorMap" if param.size >= MAP_BYTES else ""
        raise OperandError(f"{name} is a {type(value).__name__}: give an array, a number or bytes{tensor_map}")
    if param.size != SIZES[param.type] or param.size > 8:
        raise OperandError(f"{name} is a number, but the kernel's parameter is a {kind}: give its bytes")
    if isinstance(value, np.generic) and value.dtype.itemsize == param.size:
        same = DTYPES.get(param.type)
        if param.type[0] == "b" or same is None or "f" not in (same.kind, value.dtype.kind) or same == value.dtype:
            return value.tobytes()
    if param.type in ("f16", "f32", "f64"):
        return _real(name, kind, DTYPES[param.type], value)
    if isinstance(value, float | np.floating):
        hint = ", for example np.float32(2)" if param.type[0] == "b" else ""
        raise OperandError(f"{name} is {value!r}, the kernel's parameter a {kind}: give a number of its type{hint}")
    number, bits = int(value), 8 * param.size
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise OperandError(f"{name} is {number}, which does not fit the kernel's parameter, a {kind}")
    return (number & ((1 << bits) - 1)).to_bytes(param.size, "little")


@dataclass(frozen=True)
class Member:
    """A member of a structure: its bytes, and the alignment of its address."""

    data: bytes
    align: int


def number_member(name: str, value: Any) -> Member:
    """Make a member from a number or a structure of NumPy, from bytes, or from None for a null pointer.

    Raises OperandError for a value that is no NumPy number, no NumPy structure, no bytes and not None. Numbers of
    Python's own types are refused, because their types do not fix a number of bits.
    """
    if value is None:
        return Member(bytes(8), 8)
    if isinstance(value, bytes | bytearray):
        return Member(bytes(value), 1)
    if not isinstance(value, np.generic):
        given = f"{name} is a {type(value).__name__}"
        raise OperandError(
            f"{given}: a member of a list is an array, a TensorMap, a number such as np.int32(3), or bytes"
        )
    checked_array(name, np.asarray(value))
    return Member(value.tobytes(), value.dtype.alignment)


def structure(members: Sequence[Member]) -> Member:
    """Join members to the bytes of a structure, aligned as in C++.

    >>> structure([Member(b"ab", 2), Member(b"cdef", 4)])
    Member(data=b'ab\\x00\\x00cdef', align=4)
    """
    align, data = max((member.align for member in members), default=1), b""
    for member in members:
        data += bytes(-len(data) % member.align) + member.data
    return Member(data + bytes(-len(data) % align), align)


def chosen_values(
    chosen: Mapping[str, Any], variables: Sequence[Variable], bytes_of: Callable[[str, Variable, Any], bytes]
) -> dict[str, bytes]:
    """Return the bytes of the module's variables for which a value is ``chosen``, by their names in the PTX. ``chosen``
    may have the names of the variables in C++ or in the PTX. ``bytes_of`` converts a value that is no array.
    ``bytes_of`` takes the name for messages, the variable and the value.

    Raises UsageError for a name that no variable has, and OperandError for a value that does not fit its variable.
    """
    known = {name: v for v in variables if not v.name.startswith("$") for name in (demangled(v.name), v.name)}
    found = {}
    for name, value in chosen.items():
        if name not in known:
            names = list(dict.fromkeys(demangled(v.name) for v in known.values()))
            hint = did_you_mean(name, names) if names else "it uses none"
            raise UsageError(f"constants: the kernel uses no __constant__ or __device__ variable {name!r}: {hint}")
        what, variable = f"constants[{name!r}]", known[name]
        if isinstance(value, np.ndarray):
            data = checked_array(what, value).tobytes()
            if len(data) != variable.size:
                raise OperandError(f"{what} has {len(data)} bytes, the variable {variable.size}")
            found[variable.name] = data
        else:
            found[variable.name] = bytes_of(what, variable, value)
    return found


def _real(name: str, kind: str, dtype: np.dtype[Any], value: Any) -> bytes:
    with np.errstate(over="ignore"):
        try:
            real = dtype.type(value)
        except OverflowError:
            real = dtype.type(np.inf)
    if np.isinf(real) and value not in (np.inf, -np.inf):
        raise OperandError(f"{name} is {str(value)[:24]}, which does not fit the kernel's parameter, a {kind}")
    return bytes(real.tobytes())
