"""The result for arrays of an unknown library: an array on the GPU, with DLPack and CUDA's array interface."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OperandError
from ..runtime.memory import Memory
from . import dlpack

if TYPE_CHECKING:  # what drives a GPU is not imported for arrays in the host's memory
    from ..runtime.device import Device


class GpuMatrix:
    """A row-major array on a GPU. Other libraries import it without a copy, as by ``torch.from_dlpack(c)``.

    The work that fills it may still be running: a stream for which it is imported by DLPack waits for that work.
    """

    def __init__(self, gpu: Device, memory: Memory, shape: tuple[int, ...], dtype: str, stream: int) -> None:
        self._gpu, self._memory, self._stream = gpu, memory, stream
        self._readers: set[int] = set()
        self.shape, self._dtype = shape, dtype

    def __repr__(self) -> str:
        return f"GpuMatrix(shape={self.shape}, dtype={self.dtype}, GPU {self._gpu.ordinal})"

    @property
    def dtype(self) -> Any:
        """NumPy's dtype; where NumPy has none (bfloat16), its name."""
        return self._dtype if self._dtype == "bfloat16" else np.dtype(self._dtype)

    @property
    def pointer(self) -> int:
        """The address of its first element on the GPU."""
        return self._memory.pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._dtype == "bfloat16":
            raise AttributeError("CUDA's array interface has no bfloat16; DLPack has")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if math.prod(self.shape) else 0, False),
            "version": 3,
            "stream": self._stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._gpu.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} is exported without a copy, on its own GPU")
        if stream != -1:
            self._gpu.order(self._stream, stream or 0)
            self._readers.add(stream or 0)
        return dlpack.make_capsule(self.pointer, self.shape, self._dtype, self._gpu.ordinal, self)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise OperandError(
            f"{self!r} lies on a GPU: import it into a library, such as torch.from_dlpack(c).cpu().numpy()"
        )

    def __del__(self) -> None:
        for stream in self._readers:  # their work must end before this memory is used again
            self._gpu.order(stream, self._stream)
        self._memory.close()
