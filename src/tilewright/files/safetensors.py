"""``.safetensors``: eight bytes of length, as much JSON that says where each tensor lies, then their elements.

The format is https://github.com/huggingface/safetensors; a file that is written here holds one tensor.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DTypeError, FileError, UnavailableError
from .checks import READABLE, admit_dtype, admit_shape, listed, pick
from .format import Format, Shape, Sink, Source
from .output import Output
from .plain import PAGE, FindLayout, Layout, PlainSink, PlainSource, beyond
from .work import WorkDirectory

_DTYPES = {
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "|b1"},
    **{f"{sign.upper()}{8 * size}": f"<{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)},
}
#: The format's own limit, in bytes: what claims a longer header is no such file.
_LONGEST_HEADER = 100_000_000


def _tensors(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """What the header says of each tensor, and the byte at which they begin."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    try:
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"its header would have {length} bytes, the file has {size}")
        header = json.loads(file.read(length))
        tensors = {name: header[name] for name in header if name != "__metadata__"}
        for each in tensors.values():
            str(each["dtype"]), tuple(each["shape"]), (int(each["data_offsets"][0]), int(each["data_offsets"][1]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FileError(f"{path} is no .safetensors file, or a damaged one: {error!r}") from error
    return tensors, 8 + length


def _dtype(code: str, path: Path) -> np.dtype:
    if code == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            raise UnavailableError(f"{path} holds bfloat16, which needs ml_dtypes: pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    if code not in _DTYPES:
        raise DTypeError(f"{path} holds a tensor of dtype {code}: it must be {READABLE}")
    return np.dtype(_DTYPES[code])


def _find(name: str | None) -> FindLayout:
    def find(file: BinaryIO, path: Path) -> Layout:
        tensors, data = _tensors(file, path)
        chosen = pick(tensors, name, path, "tensor")
        where = f"{path}:{chosen}"
        dtype = admit_dtype(_dtype(tensors[chosen]["dtype"], path), where)
        first, end = tensors[chosen]["data_offsets"]
        layout = Layout(admit_shape(tensors[chosen]["shape"], where), dtype, data + first)
        if first < 0 or layout.end != data + end:
            raise FileError(f"{where} is damaged: {end - first} bytes for shape {layout.shape} of {dtype}")
        return layout

    return find


def _open(path: Path, name: str | None, *_: object) -> Source:
    return PlainSource(path, _find(name))


def _header(name: str, shape: Shape, dtype: np.dtype, path: Path) -> bytes:
    codes = {**{np.dtype(text).name: code for code, text in _DTYPES.items()}, "bfloat16": "BF16"}
    if dtype.byteorder == ">":
        raise DTypeError(f"{path}: .safetensors is little-endian, got {dtype}")
    nbytes = shape[0] * shape[1] * dtype.itemsize
    tensor = {"dtype": codes[dtype.name], "shape": list(shape), "data_offsets": [0, nbytes]}
    text = json.dumps({name: tensor}).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    return len(text).to_bytes(8, "little") + text


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    name = output.member or "matrix"
    header = _header(name, output.shape, output.dtype, output.path)
    return PlainSink(output, resume, work, begin=lambda file: os.pwrite(file, header, 0), find=_find(name))


def _lost(path: Path, output: Output) -> str | None:
    """Tensors of other names, metadata, and bytes that belong to no tensor."""
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
    return beyond(path, _find(name)) if tensors else None


FORMAT = Format((".safetensors",), _open, _create, _lost, members=True)
