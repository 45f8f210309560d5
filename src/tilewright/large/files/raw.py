"""The raw format: a file that contains only the elements, row by row. The caller must state the shape and dtype of a
raw file.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import FileError, UsageError
from .checks import ArrayShape, Location
from .format import FileFormat, Sink, StoredArray
from .output import Output
from .plain import FileLayout, FindLayout, PlainSink, file_size
from .ranged import open_plain
from .remote import Remote
from .work import WorkDirectory


def _stated(shape: ArrayShape, dtype: np.dtype) -> FindLayout:
    """Finds the layout that the caller stated; refuses a file with more bytes, because it holds another matrix."""

    def find(file: BinaryIO, path: Location) -> FileLayout:
        layout, size = FileLayout(shape, dtype), file_size(file)
        if size > layout.end:
            raise FileError(
                f"{path} has {size} bytes; shape {shape} of {dtype} is {layout.end}: give its real shape and dtype"
            )
        return layout

    return find


def _open(path: Path | Remote, _: str | None, shape: ArrayShape | None, dtype: np.dtype | None) -> StoredArray:
    if shape is None or dtype is None:
        missing = " and ".join(name for name, value in (("shape", shape), ("dtype", dtype)) if value is None)
        raise UsageError(
            f"{path} does not say what it holds: give its {missing}, in Python "
            f"tilewright.large.files.open_matrix('{path.name}', shape=(2000, 3000), dtype='float32')"
        )
    return open_plain(path, _stated(shape, dtype))


def _create(output: Output, resume: bool, work: WorkDirectory | None) -> Sink:
    find = _stated(output.array_shape, output.dtype)
    return PlainSink(output, resume, work, begin=lambda _: None, find=find)


def _lost(path: Path, output: Output) -> str | None:
    """A raw file does not describe what it holds, so a file of another size than the result may hold anything."""
    size, needed = path.stat().st_size, FileLayout(output.shape, output.dtype).end
    return None if size == needed else f"has {size} bytes, not the {needed} of the result, and may hold anything"


FORMAT = FileFormat((".raw", ".bin"), _open, _create, _lost, bfloat16=True)
