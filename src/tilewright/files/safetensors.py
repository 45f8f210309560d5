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
from .checks import READABLE, admit_dtype, admit_shape, explained, pick
from .format import Format, Shape, Sink, Source
from .plain import PAGE, FindLayout, Layout, PlainSink, PlainSource

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


def _create(path: Path, name: str | None, shape: Shape, dtype: np.dtype, resume: bool) -> Sink:
    chosen = name or "matrix"
    header = _header(chosen, shape, dtype, path)
    _refuse_to_lose(path, chosen)
    return PlainSink(
        path, shape, dtype, resume=resume, begin=lambda partial: partial.write_bytes(header), find=_find(chosen)
    )


def _refuse_to_lose(path: Path, name: str) -> None:
    """A file is replaced as a whole, so it must hold no tensor but the one that is written."""
    if not path.is_file() or not path.stat().st_size:
        return
    with explained(path, "read"), path.open("rb") as file:
        others = sorted(_tensors(file, path)[0].keys() - {name})
    if others:
        raise FileError(f"{path} holds {others[0]} too, which would be lost: choose another file, or remove it")


FORMAT = Format((".safetensors",), _open, _create, members=True)
