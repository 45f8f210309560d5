"""What the short way for repeated products needs of PyTorch, by its fastest functions, or by others where it lacks these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..runtime.gpu.memory import GRANULE
from .exchange import State
from .gpu_array import contiguous_strides


class TorchFunctions:
    """Keys of tensors, streams and allocations."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        forward = getattr(torch.autograd, "forward_ad", None)
        self._forward: Any = forward if hasattr(forward, "_current_level") else SimpleNamespace(_current_level=-1)
        # The function that ``current_stream`` calls; it returns the handle without an object around it.
        self._handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        # The function by which compiled models of PyTorch allocate, on the current GPU, and that GPU's number.
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self._empty_strided = getattr(guards, "_empty_strided_cuda", None)
        self._current = getattr(torch._C, "_cuda_getDevice", None)

    @property
    def state(self) -> State:
        """What is as usual while no tensor has a tangent."""
        return (self._forward, "_current_level", -1)

    def has_tangents(self) -> bool:
        """Whether a tensor may have a tangent of forward differentiation, which is recorded now."""
        return self._forward._current_level >= 0 and self._torch._C._is_fwd_grad_enabled()

    def key(self, a: Any, b: Any) -> tuple[tuple[Any, ...], int, int] | None:
        """What products of two tensors have in common that make the same launches, and both addresses; None for tensors
        that must be looked at in full."""
        if a.is_neg() or b.is_neg() or ((a.requires_grad or b.requires_grad) and self._torch.is_grad_enabled()):
            return None
        if self.has_tangents():
            return None
        x, y = a.data_ptr(), b.data_ptr()
        if not x or not y:  # empty, or without memory inside a transformation
            return None
        return (
            (x % GRANULE, y % GRANULE, a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device),
            *(x, y),
        )

    @staticmethod
    def pointer(x: Any) -> int:
        """The address of a tensor."""
        return int(x.data_ptr())

    def stream(self, device: int) -> int:
        """The handle of the stream on which the caller works now."""
        if self._handle is not None:
            return int(self._handle(device))
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    @staticmethod
    def unlike(a: Any, b: Any) -> bool:
        """Whether complex values of one of them are stored conjugated."""
        return bool(a.is_conj() or b.is_conj())

    def allocation(self, shape: tuple[int, ...], kind: Any, device: int) -> Callable[[], Any]:
        """A function that allocates an uninitialised row-major tensor of PyTorch's dtype ``kind``."""
        general = functools.partial(self._torch.empty, shape, dtype=kind, device=self._torch.device("cuda", device))
        if self._empty_strided is None or self._current is None or 0 in shape:
            return general
        fast = functools.partial(self._empty_strided, shape, contiguous_strides(shape), kind)
        if self._torch.cuda.device_count() == 1:
            return fast
        current = self._current
        return lambda: fast() if current() == device else general()
