"""``.npy``, NumPy's own: a line of Python that says dtype, order and shape, then the elements."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import DTypeError, FileError
from .checks import admit_dtype, admit_shape
from .format import Format, Shape, Sink, Source
from .output import Output
from .plain import PAGE, Layout, PlainSink, PlainSource, beyond
from .work import WorkDirectory


def find_layout(file: BinaryIO, path: Path) -> Layout:
    """The layout that the header states. Raises FileError where there is none, DTypeError, ShapeError."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (3, 0):
            raise DTypeError(f"{path} has a dtype of several fields: a matrix has one number an element")
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except DTypeError:
        raise
    except Exception as error:  # a damaged header fails in any way that a parser of Python can
        raise FileError(f"{path} is no .npy file, or a damaged one: {' '.join(str(error).split())[:200]}") from error
    found = admit_dtype(dtype, path)
    return Layout(admit_shape(shape, path), found, file.tell(), bool(fortran) and min(shape) > 1)


def _open(path: Path, *_: object) -> Source:
    return PlainSource(path, find_layout)


def _header(shape: Shape, dtype: np.dtype) -> bytes:
    """NumPy's, with more blanks at its end: so that the elements begin at a page, and not after 128 bytes."""
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, facts)
    magic = len(np.lib.format.magic(1, 0))
    text = written.getvalue()[magic + 2 :].rstrip()
    length = PAGE - magic - 2
    return np.lib.format.magic(1, 0) + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    if output.dtype.name == "bfloat16":
        raise DTypeError(f"{output.path}: .npy has no bfloat16; write float32, or a .safetensors file")
    header = _header(output.shape, output.dtype)
    return PlainSink(output, resume, work, begin=lambda file: os.pwrite(file, header, 0), find=find_layout)


FORMAT = Format((".npy",), _open, _create, lost=lambda path, _: beyond(path, find_layout))
