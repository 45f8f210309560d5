"""The format ``.safetensors``: the length of the header in eight bytes, a JSON header with the position of each tensor, and
then the elements.

https://github.com/huggingface/safetensors describes the format. A file that Tilewright writes holds one tensor.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import numpy as np

from ...errors import DTypeError, FileError
from ...product.operands import dtype_of
from .checks import (
    LONGEST,
    READABLE,
    ArrayShape,
    Location,
    admit_array_shape,
    admit_dtype,
    listed,
    parser_errors,
    pick,
    refuse_empty,
)
from .format import FileFormat, Sink, StoredArray
from .output import Output
from .plain import PAGE, FileLayout, FindLayout, PlainSink, beyond, file_size, write_header
from .ranged import open_plain
from .remote import Remote
from .work import WorkDirectory

_DTYPES = {
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BOOL": "|b1"},
    **{f"{sign.upper()}{8 * size}": f"<{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)},
}
#: The format's own limit for the header, in bytes: a file that states more is not of this format.
_LONGEST_HEADER = 100_000_000


class _TensorEntry(NamedTuple):
    """The entry of a tensor in the header: the tensor has the bytes from ``begin`` to ``end``, counted from the end of
    the header."""

    begin: int
    end: int
    dtype: str
    shape: list[int]


def _tensors(file: BinaryIO, path: Location) -> tuple[dict[str, _TensorEntry], int]:
    """The header's entry of each tensor, and the byte at which the tensors begin. Raises FileError for an invalid one."""
    with parser_errors(path, ".safetensors file"):
        size = file_size(file)
        refuse_empty(path, size)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"its header would have {length} bytes, the file has {size}")
        header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")  # noqa: TRY004  # a wrong file, not an argument of a wrong type
        tensors = {name: _tensor(name, of) for name, of in header.items() if name != "__metadata__"}
    last = 0
    for name, tensor in sorted(tensors.items(), key=lambda each: each[1][:2]):
        if tensor.begin < min(last, tensor.end):  # an empty tensor shares no bytes
            raise FileError(f"{path} is damaged: the bytes of tensor {name!r:.80} belong to another one too")
        last = max(last, tensor.end)
    return tensors, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"its header has {twice!r:.80} twice")
    return entries


def _tensor(name: str, of: Any) -> _TensorEntry:
    """An entry of the header. Raises ValueError for one that the format does not allow."""
    known: dict[str, Any] = of if isinstance(of, dict) else {}
    dtype, shape, offsets = known.get("dtype"), known.get("shape"), known.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets):
        raise ValueError(f"tensor {name!r:.80} must have a dtype, a shape and data_offsets of whole numbers")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(
            f"tensor {name!r:.80} has data_offsets {offsets!r:.80}: they must be its first byte and its end"
        )
    return _TensorEntry(offsets[0], offsets[1], dtype, shape)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and 0 <= each <= LONGEST for each in value)


def _dtype(code: str, path: Location) -> np.dtype:
    if code == "BF16":
        return dtype_of("bfloat16", path)
    if code not in _DTYPES:
        raise DTypeError(f"{path} holds a tensor of dtype {code:.80}: it must be {READABLE}")
    return np.dtype(_DTYPES[code])


def _find(name: str | None) -> FindLayout:
    def find(file: BinaryIO, path: Location) -> FileLayout:
        tensors, data = _tensors(file, path)
        chosen = pick(tensors, name, path, "tensor")
        where = f"{path}:{chosen}"
        begin, end, code, shape = tensors[chosen]
        dtype = admit_dtype(_dtype(code, path), where)
        layout = FileLayout(admit_array_shape(shape, where), dtype, data + begin)
        if layout.end != data + end:
            raise FileError(f"{where} is damaged: {end - begin} bytes for shape {layout.shape} of {dtype}")
        return layout

    return find


def _open(path: Path | Remote, name: str | None, *_: object) -> StoredArray:
    return open_plain(path, _find(name))


def _header(name: str, shape: ArrayShape, dtype: np.dtype, path: Path) -> bytes:
    codes = {**{np.dtype(text).name: code for code, text in _DTYPES.items()}, "bfloat16": "BF16"}
    if dtype.byteorder == ">":
        raise DTypeError(f"{path}: .safetensors is little-endian, got {dtype}")
    if dtype.name not in codes:
        raise DTypeError(f"{path}: .safetensors has no {dtype}: write it with dtype='complex64', or to another format")
    nbytes = math.prod(shape) * dtype.itemsize
    tensor = {"dtype": codes[dtype.name], "shape": list(shape), "data_offsets": [0, nbytes]}
    text = json.dumps({name: tensor}).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    return len(text).to_bytes(8, "little") + text


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    name = output.member or "matrix"
    header = _header(name, output.array_shape, output.dtype, output.path)
    return PlainSink(output, resume, work, begin=functools.partial(write_header, header), find=_find(name))


def _lost(path: Path, output: Output) -> str | None:
    """What a new result would lose: tensors of other names, metadata, and bytes that belong to no tensor."""
    name = output.member or "matrix"
    with path.open("rb") as file:
        tensors, data = _tensors(file, path)
        file.seek(8)
        metadata = json.loads(file.read(data - 8)).get("__metadata__")
    others = sorted(tensors.keys() - {name})
    if others:
        return f"holds {listed(others, 'tensor')}"
    if metadata:
        return f"holds {listed(sorted(metadata), 'metadata entry')}"
    return beyond(path, _find(name), output) if tensors else None


FORMAT = FileFormat((".safetensors",), _open, _create, _lost, members=True, bfloat16=True)
