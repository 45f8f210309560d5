"""A product on a GPU as a list of steps. Each step is one launch, with the places where its operands begin.

Steps are data and are made without a GPU. If their places are changed, the steps of a part of a product become steps of
the whole product. ``load`` makes a function of a list of steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from .compilations import Chosen, KernelCode
from .device import Device
from .launch import BoxedOperand, Launcher, LaunchSize
from .layout import Matrix
from .product import prepare_gpu_product

#: The buffers of a product: its matrices, the workspace, and the arrays of an epilogue.
A, B, C, WORKSPACE, BIAS, SCALE_A, SCALE_B = range(7)

#: ``submit(a, b, c, workspace, stream, *arrays)``: makes all launches; addresses, and the handle of a stream.
SubmitSteps = Callable[..., None]


class BufferPlace(NamedTuple):
    """The place where an operand begins: a number of bytes after the address of a buffer."""

    buffer: int
    offset: int = 0

    def after(self, nbytes: int) -> BufferPlace:
        """The place ``nbytes`` further."""
        return BufferPlace(self.buffer, self.offset + nbytes)


#: The places of a product whose matrices begin where their buffers do.
OPERANDS = BufferPlace(A), BufferPlace(B), BufferPlace(C)


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of compiled code. The arguments of the launch are the tensor maps of ``maps``, addresses, and ``rest``:
    numbers, or a structure as its bytes. The first places of the launch are those of the tensor maps."""

    code: KernelCode
    entry: str
    size: LaunchSize
    rest: bytes | tuple[np.generic, ...]
    maps: tuple[BoxedOperand, ...] = ()

    def load(self, gpu: Device) -> Launcher:
        """The launch on a GPU; the kernel is compiled, loaded and checked."""
        compiled, rest, count = self.code.compiled(gpu.arch), self.rest, len(self.maps)
        entry = compiled.entry(self.entry)
        if isinstance(rest, bytes):
            mapped = gpu.boxed_launcher(compiled, entry, self.size, self.maps, rest)
            return lambda stream, *at: mapped(stream, at[:count], at[count:])
        launch = gpu.launcher(compiled, entry, *self.size)
        return lambda stream, *at: launch(stream, *at, *rest)


@dataclass(frozen=True)
class RungLaunch:
    """A product of row-major matrices without gaps, computed by a rung of the ladder."""

    kernel: CudaKernel
    dtype: str
    sizes: tuple[int, int, int]
    params: Chosen

    def load(self, gpu: Device) -> Launcher:
        """The launch on a GPU, as ``prepare_gpu_product`` prepares it."""
        product = prepare_gpu_product(gpu, self.kernel, self.dtype, *self.sizes, params=dict(self.params))
        return lambda stream, a, b, c: product(a, b, c, stream)


@dataclass(frozen=True)
class Clear:
    """The step that fills a matrix with zeros."""

    matrix: Matrix

    def load(self, gpu: Device) -> Launcher:
        """The function that fills the matrix with zeros."""
        c, size = self.matrix, itemsize_of(self.matrix.dtype)
        if not c.nbytes:
            return lambda stream, at: None
        return lambda stream, at: gpu.clear(stream, at, c.rows, c.columns * size, c.row * size)


class GpuStep(NamedTuple):
    """One launch of a product, with the places of its operands."""

    launch: KernelLaunch | RungLaunch | Clear
    places: tuple[BufferPlace, ...]

    def moved(self, buffers: Sequence[BufferPlace]) -> GpuStep:
        """The same step, moved: the buffers with the numbers 0, 1, … now begin at the places ``buffers``. Buffers with
        higher numbers than ``buffers`` has are unchanged."""
        last = len(buffers)
        places = (buffers[at.buffer].after(at.offset) if at.buffer < last else at for at in self.places)
        return GpuStep(self.launch, tuple(places))


#: Only one thread at a time may load kernels.
_lock = threading.Lock()


def load(gpu: Device, steps: Iterable[GpuStep]) -> SubmitSteps:
    """Return a function that makes the launches of ``steps`` in their order and does not wait for them. The kernels are
    compiled, loaded and checked now. The GPU must be the calling thread's current one now and at each call.

    Raises UsageError for parameters that a kernel does not take, CompileError if a kernel does not compile, and
    LaunchError if the GPU refuses a kernel.
    """
    runs, launches, steps = dict[int, Launcher](), list[tuple[Launcher, tuple[BufferPlace, ...]]](), list(steps)
    with _lock:
        for launch, places in steps:
            if id(launch) not in runs:  # steps along a batch have one launch
                runs[id(launch)] = launch.load(gpu)
            launches.append((runs[id(launch)], places))

    def submit(a: int, b: int, c: int, workspace: int, stream: int, *arrays: int) -> None:
        at = (a, b, c, workspace, *arrays)
        for run, places in launches:
            run(stream, *[at[buffer] + offset for buffer, offset in places])

    return submit


def compile_steps(arch: str, steps: Iterable[GpuStep]) -> None:
    """Begin to compile the kernels of steps, each on another thread. A compilation that was begun before is not
    repeated. ``load`` waits for the compilation, and raises its error."""
    for launch, _ in steps:
        if isinstance(launch, KernelLaunch):
            launch.code.begin(arch)
