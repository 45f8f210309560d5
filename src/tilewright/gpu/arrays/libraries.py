"""The libraries whose arrays can be on a GPU. For each library: where an array is, the current stream, how to allocate
memory, and how to return a result. ``host_libraries`` does the same for arrays of these libraries on the host.

The type of an array identifies its library, which is taken from ``sys.modules``. A caller with an array has already
imported the library, so this module imports no library.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...errors import DTypeError, LaunchError, MemoryLimitError, OperandError
from ...product.problem import itemsize_of
from ..runtime.memory import GRANULE
from .dtypes import DTYPES, RESULTS
from .gpu_array import CUDA, CUDA_MANAGED, GpuArray, GpuMatrix, contiguous_strides, read_capsule
from .repeated import ArrayFunctions, RepeatedGroups, RepeatedLists, RepeatedProducts, State, exchange_interface


class Library:
    """What a product needs from a library. ``mutable`` means that arrays of the library can be ``out``; ``views`` means
    that arrays of the library can be transposed without a copy."""

    name, mutable, views = "", True, True
    #: The short way for products of its arrays, where there is one.
    repeated: RepeatedProducts | None = None
    #: The same for lists of its arrays.
    lists: RepeatedLists | None = None
    #: The same for groups of its arrays.
    groups: RepeatedGroups | None = None
    #: Splits an array by its rows, where the library does that in one call.
    split: Callable[[Any, list[int]], Sequence[Any]] | None = None

    def on_gpu(self, x: Any) -> bool:
        """Whether ``x``, an array of this library, is on a GPU."""
        raise NotImplementedError

    def view(self, x: Any, name: str) -> GpuArray:
        """Address, shape and strides of ``x``, which messages call ``name``. Raises OperandError and DTypeError."""
        raise NotImplementedError

    def records(self, x: Any) -> bool:  # noqa: ARG002
        """Whether the library must record what is done with ``x``: for a gradient, in a trace, or in a
        transformation."""
        return False

    def stream(self, device: int) -> int:
        """The handle of the caller's current stream."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> tuple[Any, int]:
        """An uninitialised row-major array, allocated for the current stream, and its address. Raises MemoryError."""
        raise NotImplementedError

    def allocation(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """A function that allocates an array as ``empty`` does, but may raise the library's own error."""
        return lambda: self.empty(shape, dtype, device)[0]

    def pieces(self, shapes: Sequence[tuple[int, int]], dtype: str, device: int) -> Pieces:
        """Matrices in one allocation. Raises MemoryError if the memory cannot be allocated."""
        return pieces_of(shapes, functools.partial(self.empty, dtype=dtype, device=device), self.split)

    def transposed(self, x: Any) -> Any:
        """A view of ``x`` with its last two axes swapped."""
        raise NotImplementedError

    def answer(self, x: Any) -> Any:
        """The result that the caller receives, for an array from ``empty``. This method is called after the work that
        fills the array was submitted."""
        return x

    def written(self, out: Any) -> None:
        """Note that ``out`` was changed. This method is called after the work that overwrites ``out`` was submitted."""

    def hold(self, stream: int, device: int, things: Any) -> None:
        """Keep ``things`` alive until all submitted work on them is done, if the library does not. This method is
        called after the work on ``things`` was submitted."""


def is_on_gpu(*values: Any) -> bool:
    """Whether any of the values is an array on a GPU."""
    return any(map(library_of, values))


def gpu_at(device: int) -> Any:
    """The GPU with this number. The modules that drive a GPU are imported by this function, because arrays in the
    host's memory do not need them."""
    from ..runtime import device as gpus

    return gpus.gpu_at(device)


def device_of(pointer: int) -> int:
    """The number of the GPU to which an address belongs."""
    from ..runtime import driver

    return driver.device_of(pointer)


def is_of_a_library(*values: Any) -> bool:
    """Whether any of the values is an array of another library than NumPy, on a GPU or on the host."""
    return any(map(library_by_type, values))


def library_of(x: Any) -> Library | None:
    """The library of an array on a GPU; None for anything else."""
    library = library_by_type(x)
    return library if library is not None and library.on_gpu(x) else None


def library_by_type(x: Any) -> Library | None:
    """The library of an array on a GPU or on the host; None for NumPy arrays and for values that are not arrays."""
    kind = type(x)
    if kind is np.ndarray:
        return None
    if kind not in _known:
        if len(_known) > 256:  # the caller creates types without end
            _known.clear()
        _known[kind] = _recognised(x)
    return _known[kind]


#: By types of arrays.
_known: dict[type, Library | None] = {}


def _recognised(x: Any) -> Library | None:
    if isinstance(x, np.ndarray | np.generic | int | float | complex | list | tuple):
        return None
    for name, array, library in (("torch", "Tensor", Torch), ("cupy", "ndarray", Cupy), ("jax", "Array", Jax)):
        kind = getattr(sys.modules.get(name), array, None)
        if kind is not None and isinstance(x, kind):
            is_subclass = library is Torch and type(x) is not kind and type(x).__name__ != "Parameter"
            return _instance(TorchSubclass if is_subclass else library, name)
    foreign = hasattr(type(x), "__dlpack_device__") or hasattr(type(x), "__cuda_array_interface__")
    return _instance(OtherLibrary) if foreign else None


@functools.cache  # one object of each library
def _instance(library: Callable[..., Library], *name: str) -> Library:
    return library(*(sys.modules[n] for n in name))


def _dtype(name: str, kind: str, dtype: str) -> str:
    if name == "offsets":
        if dtype != "int32":
            raise DTypeError(f"offsets is a {kind} of {dtype} on a GPU: the ends of groups must be int32")
        return dtype
    if dtype not in DTYPES and not (name == "out" and dtype in RESULTS):
        raise DTypeError(f"{name} is a {kind} of {dtype} on a GPU: {', '.join(DTYPES)} have kernels there; convert it")
    return dtype


class Torch(Library):
    """PyTorch and its tensors."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch, self._strided = torch, torch.strided
        known = (*DTYPES, *RESULTS)  # older versions have no float8
        self._dtypes = {getattr(torch, dtype): dtype for dtype in known if hasattr(torch, dtype)}
        self._kinds = {dtype: kind for kind, dtype in self._dtypes.items()} | {"uint8": torch.uint8}
        self._devices: dict[int, Any] = {}
        self._functions = fast = TorchFunctions(torch)
        parameter = getattr(getattr(torch, "nn", None), "Parameter", torch.Tensor)
        interface = exchange_interface(torch.Tensor, parameter, torch.is_grad_enabled, fast.state)
        functions = ArrayFunctions(fast.key, fast.pointer, fast.stream, fast.stores_conjugated)
        self.repeated = RepeatedProducts(self, functions, interface)
        self.lists = None if interface is None else RepeatedLists(interface)
        self.groups = RepeatedGroups(self, functions)
        # It is unsafe to write to the split tensor later; nothing does, as nothing else refers to it.
        self.split = getattr(torch, "unsafe_split_with_sizes", None)
        #: PyTorch before 2.4 gets no gradients from us.
        self._can_record = hasattr(getattr(torch, "library", None), "register_autograd")

    def on_gpu(self, x: Any) -> bool:
        return bool(x.is_cuda)

    def records(self, x: Any) -> bool:
        if not self._can_record:
            return False
        needed = (x.requires_grad and self._torch.is_grad_enabled()) or self._functions.has_tangents()
        return needed or self._torch._C._functorch.is_functorch_wrapped_tensor(x)

    def refuse_recorded(self, x: Any, name: str) -> None:
        """Raise OperandError for a tensor that requires a gradient or has a tangent, if the call cannot record it."""
        torch = self._torch
        if x.requires_grad and torch.is_grad_enabled():
            raise OperandError(
                f"{name} requires grad, and no gradient of the product would be recorded: "
                f"multiply within torch.no_grad() or torch.inference_mode(), or pass {name}.detach()"
            )
        if self._functions.has_tangents() and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise OperandError(
                f"{name} has a tangent, and no tangent of the product would be recorded: multiply by "
                "tilewright.torch.matmul, or pass the primal of torch.autograd.forward_ad.unpack_dual"
            )

    def view(self, x: Any, name: str) -> GpuArray:
        torch = self._torch
        self.refuse_recorded(x, name)
        if x.layout is not torch.strided:
            raise OperandError(f"{name} is a tensor of layout {x.layout}: pass {name}.to_dense()")
        dtype = _dtype(name, "tensor", self._dtypes.get(x.dtype) or str(x.dtype).removeprefix("torch."))
        if name == "out" and (x.is_neg() or x.is_conj()):
            raise OperandError("out is a tensor whose elements are stored negated or conjugated: pass another")
        if x.is_neg():
            x = x.resolve_neg()
        if x.is_conj():
            x = x.resolve_conj()
        try:
            return GpuArray(x.data_ptr(), tuple(x.shape), x.stride(), dtype, x.get_device(), x)
        except RuntimeError as error:  # inside a transformation or a trace a tensor has no memory
            raise OperandError(f"{name} has no memory to read: {str(error).splitlines()[0]}") from None

    def stream(self, device: int) -> int:
        return self._functions.stream(device)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> tuple[Any, int]:
        if device not in self._devices:
            self._devices[device] = self._torch.device("cuda", device)
        try:
            x = self._torch.empty(shape, dtype=self._kinds[dtype], device=self._devices[device])
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from None
        return x, x.data_ptr()

    def allocation(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        return self._functions.allocation(shape, self._kinds[dtype], device)

    def transposed(self, x: Any) -> Any:
        return x.transpose(-1, -2)

    def written(self, out: Any) -> None:
        if not out.is_inference():
            self._torch.autograd.graph.increment_version(out)  # so that a gradient that needs the old values raises


class TorchSubclass(Torch):
    """Tensors of a subclass that may handle products itself, such as fake and traced tensors. PyTorch passes each
    product of such tensors to the subclass."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.repeated = self.lists = self.groups = None

    def records(self, x: Any) -> bool:  # noqa: ARG002
        return self._can_record


class Cupy(Library):
    """CuPy and its arrays."""

    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        functions = ArrayFunctions(self._key, operator.attrgetter("data.ptr"), self.stream, lambda *_: False)
        self.repeated = RepeatedProducts(self, functions, None)
        self.groups = RepeatedGroups(self, functions)

    def on_gpu(self, x: Any) -> bool:
        return isinstance(x, self._cupy.ndarray)

    def view(self, x: Any, name: str) -> GpuArray:
        dtype, size = _dtype(name, "cupy.ndarray", x.dtype.name), x.itemsize
        if any(stride % size for stride in x.strides):
            raise OperandError(f"{name} has strides of {x.strides} bytes: they must be whole elements; pass a copy")
        strides = tuple(stride // size for stride in x.strides)
        return GpuArray(int(x.data.ptr), x.shape, strides, dtype, int(x.device.id), x)

    def _key(self, a: Any, b: Any) -> tuple[Any, int, int]:
        (x, y), gpus = (a.data.ptr, b.data.ptr), (a.device.id, b.device.id)
        shared = x == y  # a product may be symmetric
        layouts = a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype
        return (x % GRANULE, y % GRANULE, shared, *layouts, *gpus), x, y

    def stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> tuple[Any, int]:
        with self._cupy.cuda.Device(device):
            x = self._cupy.empty(shape, dtype)
        return x, int(x.data.ptr)

    def transposed(self, x: Any) -> Any:
        return x.swapaxes(-1, -2)


class OtherLibrary(Library):
    """A library that has no class of its own in this module, and whose arrays have DLPack's or CUDA's array interface.
    The product runs on a stream of Tilewright, which waits for the work that fills the operands. A stream that receives
    the result waits for the product.

    Arrays of such a library cannot be ``out``, because these interfaces cannot announce that an array was written.
    """

    name, mutable, views = "DLPack", False, False

    def on_gpu(self, x: Any) -> bool:
        try:
            device = x.__dlpack_device__()[0] if hasattr(type(x), "__dlpack_device__") else CUDA
            return device in (CUDA, CUDA_MANAGED)
        except Exception:  # a foreign object may raise anything; then it does not count as on a GPU
            return False

    def view(self, x: Any, name: str) -> GpuArray:
        try:
            array = self._by_dlpack(x) if hasattr(type(x), "__dlpack__") else self._by_interface(x)
        except (LaunchError, OperandError):
            raise
        except Exception as error:  # a foreign object may raise anything; the message quotes it
            raise OperandError(f"{name} cannot be used as a matrix: {type(x).__name__} says {error}") from error
        return array._replace(dtype=_dtype(name, type(x).__name__, array.dtype))

    def _by_dlpack(self, x: Any) -> GpuArray:
        stream = self.stream(x.__dlpack_device__()[1])
        return read_capsule(x.__dlpack__(stream=stream))

    def _by_interface(self, x: Any) -> GpuArray:
        interface = x.__cuda_array_interface__
        dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
        in_bytes = interface.get("strides")
        strides = tuple(s // dtype.itemsize for s in in_bytes) if in_bytes else contiguous_strides(shape)
        pointer = int(interface["data"][0] or 0)
        device = device_of(pointer)
        if interface.get("stream"):
            gpu_at(device).order(int(interface["stream"]), self.stream(device))
        return GpuArray(pointer, shape, strides, dtype.name, device, x)

    def stream(self, device: int) -> int:
        return gpu_at(device).stream

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> tuple[Any, int]:
        gpu = gpu_at(device)
        try:
            with gpu:
                memory = gpu.allocate(int(np.prod(shape, dtype=np.int64)) * itemsize_of(dtype))
        except LaunchError as error:
            raise MemoryError(str(error)) from None
        x = GpuMatrix(gpu, memory, shape, dtype, gpu.stream)
        return x, x.pointer

    def hold(self, stream: int, device: int, things: Any) -> None:
        gpu_at(device).keep_until_now(stream, things)


class Jax(OtherLibrary):
    """JAX and its arrays, which are received and returned through DLPack."""

    name = "jax"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def on_gpu(self, x: Any) -> bool:
        if isinstance(x, self._jax.core.Tracer):
            return False  # a traced value has no memory: it is treated as an operand on the host, and refused there
        return any(device.platform in ("gpu", "cuda") for device in x.devices())

    def view(self, x: Any, name: str) -> GpuArray:
        if len(x.devices()) > 1:
            raise OperandError(f"{name} lies on {len(x.devices())} devices: put it on one")
        return super().view(x, name)

    def answer(self, x: Any) -> Any:
        return self._jax.dlpack.from_dlpack(x)


def memory_error(needed: int, device: int, error: MemoryError) -> MemoryLimitError:
    """The error for too little memory, which says how much a product needs."""
    return MemoryLimitError(f"the product needs {needed:,} bytes more on GPU {device}: {error}")


# ---- pieces ----------------------------------------------------------------------------------------------------------
# Row-major matrices in one piece of memory, as the results of a list of products.


#: A function that allocates matrices in one piece of memory and returns them with its address; and the offset of each there,
#: in elements.
Pieces = tuple[Callable[[], tuple[list[Any], int]], list[int]]


def pieces_of(
    shapes: Sequence[tuple[int, int]],
    empty: Callable[[tuple[int, ...]], tuple[Any, int]],
    split: Callable[[Any, list[int]], Sequence[Any]] | None,
) -> Pieces:
    """Matrices with these shapes in as few allocations as possible.

    ``empty(shape)`` returns an array and its address. ``split(x, heights)`` splits an array by its rows in one call.
    With ``split``, matrices of the same width follow one another in memory; without it, all matrices follow one another
    in the given order."""
    of_width: dict[int, list[int]] = {}
    for i, (_, width) in enumerate(shapes):
        of_width.setdefault(0 if split is None else width, []).append(i)
    order = [i for numbers in of_width.values() for i in numbers]
    tops = dict(zip(order, itertools.accumulate((math.prod(shapes[i]) for i in order), initial=0), strict=False))
    total = sum(map(math.prod, shapes))
    if split is None:
        places = [(tops[i], tops[i] + math.prod(shape), shape) for i, shape in enumerate(shapes)]

        def one_by_one() -> tuple[list[Any], int]:
            x, pointer = empty((total,))
            return [x[top:end].reshape(shape) for top, end, shape in places], pointer

        return one_by_one, [top for top, *_ in places]
    parts = [(width, tops[numbers[0]], [shapes[i][0] for i in numbers]) for width, numbers in of_width.items()]
    where = sorted(range(len(order)), key=order.__getitem__)

    def by_width() -> tuple[list[Any], int]:
        x, pointer = empty((total,))
        found: list[Any] = []
        for width, top, heights in parts:
            count = sum(heights)
            found += split(x[top : top + count * width].reshape((count, width)), heights)
        return found if len(parts) == 1 else [found[i] for i in where], pointer

    return by_width, [tops[i] for i in range(len(shapes))]


# ---- torch functions -------------------------------------------------------------------------------------------------
# What the short way for repeated products needs of PyTorch, by its fastest functions, or by others where it lacks these.


class TorchFunctions:
    """Functions that read the keys of tensors, find the current stream, and allocate tensors."""

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
        """An object, its attribute, and the value that the attribute has while no tensor has a tangent."""
        return (self._forward, "_current_level", -1)

    def has_tangents(self) -> bool:
        """Whether forward differentiation is active now, so that a tensor may have a tangent."""
        return self._forward._current_level >= 0 and self._torch._C._is_fwd_grad_enabled()

    def key(self, a: Any, b: Any) -> tuple[tuple[Any, ...], int, int] | None:
        """The key that all products of two tensors with the same launches have in common, and both addresses. The key
        is None for tensors that must be examined in full."""
        if a.is_neg() or b.is_neg() or ((a.requires_grad or b.requires_grad) and self._torch.is_grad_enabled()):
            return None
        if self.has_tangents():
            return None
        x, y = a.data_ptr(), b.data_ptr()
        if not x or not y:  # empty, or without memory inside a transformation
            return None
        return (
            (
                *(x % GRANULE, y % GRANULE, x == y),  # of the same memory a product may be symmetric
                *(a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device),
            ),
            *(x, y),
        )

    @staticmethod
    def pointer(x: Any) -> int:
        """The address of a tensor."""
        return int(x.data_ptr())

    def stream(self, device: int) -> int:
        """The handle of the caller's current stream."""
        if self._handle is not None:
            return int(self._handle(device))
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    @staticmethod
    def stores_conjugated(a: Any, b: Any) -> bool:
        """Whether the complex values of one of the tensors are stored conjugated."""
        return bool(a.is_conj() or b.is_conj())

    def allocation(self, shape: tuple[int, ...], kind: Any, device: int) -> Callable[[], Any]:
        """A function that allocates an uninitialised row-major tensor of the PyTorch dtype ``kind``."""
        general = functools.partial(self._torch.empty, shape, dtype=kind, device=self._torch.device("cuda", device))
        if self._empty_strided is None or self._current is None or 0 in shape:
            return general
        fast = functools.partial(self._empty_strided, shape, contiguous_strides(shape), kind)
        if self._torch.cuda.device_count() == 1:
            return fast
        current = self._current
        return lambda: fast() if current() == device else general()
