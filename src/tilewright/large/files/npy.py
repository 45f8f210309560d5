"""The format ``.npy`` of NumPy: a header with a Python literal that states dtype, order and shape, and then the elements."""

from __future__ import annotations

import functools
import io
import re
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import DTypeError
from .checks import READABLE, ArrayShape, Location, admit_array_shape, admit_dtype, parser_errors, refuse_empty
from .format import FileFormat, Sink, StoredArray
from .output import Output
from .plain import PAGE, FileLayout, PlainSink, beyond, file_size, write_header
from .ranged import open_plain
from .remote import Remote
from .work import WorkDirectory

#: Bytes of the longest header that is parsed, NumPy's own limit: Python's parser is slow on long expressions.
LONGEST_HEADER = 10_000
#: A scalar of NumPy 2 as its ``repr`` is, in a header that was written by hand: a number is meant.
_SCALAR = re.compile(rb"\b(?:np|numpy)\.\w+\(([^()]*)\)")
#: Bytes of the length of the header, by the version of the format.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}


def find_layout(file: BinaryIO, path: Location, wanted: np.dtype | None = None) -> FileLayout:
    """Return the layout that the header of a file states. Raises FileError if the file has no header, DTypeError and
    ShapeError.

    For a dtype that is not NumPy's own, such as bfloat16, the header states only the size of an element. For a file
    with such a dtype, the caller must give the dtype as ``wanted``.
    """
    with parser_errors(path, ".npy file"):
        refuse_empty(path, file_size(file))
        version = np.lib.format.read_magic(file)
        if version not in _LENGTH_BYTES:
            raise ValueError(f"its version is {version[0]}.{version[1]}")
        length = int.from_bytes(file.read(_LENGTH_BYTES[version]), "little")
        text = file.read(min(length, LONGEST_HEADER))
        if len(text) < length:
            raise ValueError(f"its header would have {length} bytes")
        if version == (3, 0) and not text.isascii():  # only names of fields can have other characters
            raise DTypeError(f"{path} has a dtype of several fields: a matrix has one number an element")
        # The versions differ in the length's size, and in an encoding that makes no difference to ASCII.
        text = _SCALAR.sub(rb"\1", text)
        version_2 = io.BytesIO(len(text).to_bytes(4, "little") + text)
        stated_shape, fortran, stated_dtype = np.lib.format.read_array_header_2_0(version_2, LONGEST_HEADER)
        if stated_dtype.kind == "V" and not stated_dtype.names:
            stated_dtype = _foreign(stated_dtype, wanted, path)
        dtype, shape = admit_dtype(stated_dtype, path), admit_array_shape(stated_shape, path)
    orders_differ = 0 not in shape and sum(size > 1 for size in shape) > 1
    return FileLayout(shape, dtype, file.tell(), bool(fortran) and orders_differ)


def _foreign(stated: np.dtype, wanted: np.dtype | None, path: Location) -> np.dtype:
    """The dtype of which a header states only the size. Raises DTypeError unless the caller says which one it is."""
    if wanted is not None and wanted.itemsize == stated.itemsize:
        return wanted
    hint = (
        f"if that is bfloat16, of which NumPy writes only the size, name it {path.name}:bfloat16 on the command line, and "
        "in Python open it with tilewright.large.files.open_matrix(…, dtype='bfloat16')"
    )
    raise DTypeError(f"{path} has dtype {stated}: " + (hint if stated.itemsize == 2 else f"it must be {READABLE}"))


def _open(path: Path | Remote, _: str | None, __: ArrayShape | None, wanted: np.dtype | None) -> StoredArray:
    return open_plain(path, functools.partial(find_layout, wanted=wanted))


def _header(shape: ArrayShape, dtype: np.dtype) -> bytes:
    """NumPy's header, padded with blanks so that the elements begin at a page and not at byte 128."""
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, facts)
    magic = len(np.lib.format.magic(1, 0))
    text = written.getvalue()[magic + 2 :].rstrip()
    length = PAGE - magic - 2
    return np.lib.format.magic(1, 0) + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    header = _header(output.array_shape, output.dtype)
    return PlainSink(output, resume, work, begin=functools.partial(write_header, header), find=find_layout)


FORMAT = FileFormat((".npy",), _open, _create, lost=lambda path, output: beyond(path, find_layout, output))
