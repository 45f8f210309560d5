"""Prepares launches: checks blocks and threads, converts arguments to the width of the kernel's parameters, makes
tensor maps of operands, and loads kernels on a GPU.

The driver reports a kernel's registers and memory. A launch that the driver would refuse without a reason
(``CUDA_ERROR_INVALID_VALUE``) is refused before it reaches the driver, with the limit and the value. A tensor map
describes the layout of an operand. The tensor map is made at the first launch; later launches only change its address.

There are two conventions. A negative stream is the handle of a recording (``recording.recording_with``): the launch is
recorded and not submitted. An argument of type ``int`` is an address; any other number is a NumPy scalar
(``Device.launcher``). The type so tells a repetition of the launch which arguments change.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import LaunchError, OperandError, UsageError
from ...kernels.cuda_kernel import CudaKernel
from ...product.problem import itemsize_of
from .driver import DeviceFacts, call, driver, message
from .memory import GRANULE, LINE_BYTES, Memory
from .nvrtc import Compiled
from .recording import RecordedLaunch, is_recording, recorded_maps, recorded_words, recording_with

# ---- operands as tensor maps, by which the copy engine moves boxes of a matrix, from Hopper on -----------------------

#: ``launch(stream, mapped, pointers)``: the addresses of the operands that have maps, and those that the kernel gets itself.
#: A fourth argument is another structure of the same length.
BoxedLauncher = Callable[..., None]

#: Names of dtypes in the driver. Other elements travel as bytes.
_MAP_TYPES = {
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "int32": "INT32",
    "tf32": "TFLOAT32",  # rounded to nearest as it is loaded
}
#: Boxes of rows that do not begin at lines of the caches lie across two of them; to read 256 bytes at each access then takes
#: 10 to 20 % more time, on an H200, than to read what is asked for.
_SWIZZLE_128, _PROMOTION_256 = 3, 3


class BoxedOperand(NamedTuple):
    """An operand as the copy engine sees it: a number of ``matrices`` of ``rows`` and ``columns``, and the size of the
    box that one copy moves. The next row begins ``row_bytes`` bytes further, and the next matrix ``next_bytes`` bytes
    further."""

    dtype: str
    rows: int
    columns: int
    matrices: int
    row_bytes: int
    next_bytes: int
    box: tuple[int, int]

    def encoded(self, address: int) -> Any:
        """The tensor map for an operand at this address."""
        d = driver()
        kind = getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES.get(self.dtype, 'UINT8')}")
        rows, columns = self.box
        (encoded,) = call(
            f"the tensor map of {self}",
            "cuTensorMapEncodeTiled",
            kind,
            3,
            address,
            [d.cuuint64_t(n) for n in (self.columns, self.rows, self.matrices)],
            [d.cuuint64_t(n) for n in (self.row_bytes, self.next_bytes)],
            [d.cuuint32_t(n) for n in (columns, rows, 1)],
            [d.cuuint32_t(1)] * 3,
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(_SWIZZLE_128),
            d.CUtensorMapL2promotion(0 if self.row_bytes % LINE_BYTES else _PROMOTION_256),
            d.CUtensorMapFloatOOBfill(0),
        )
        return encoded


class Mapped(NamedTuple):
    """An argument of a launch that is passed as a tensor map: memory, and how an operand lies in it."""

    memory: Memory
    operand: BoxedOperand


def mapped_arguments(
    kernel: CudaKernel, shape: tuple[int, int, int], dtype: str, params: Mapping[str, int], operands: Sequence[Any]
) -> list[Any]:
    """Row-major A, B and C without gaps, as arguments of a rung. Operands that its header names in ``boxes`` are passed
    as tensor maps.

    ``params`` has the values of all parameters of the rung. Raises UsageError for a shape for which no tensor map can
    be made.
    """
    m, n, k = shape
    size, found = itemsize_of(dtype), list[Any]()
    for name, (rows, columns), memory in zip("abc", ((m, k), (k, n), (m, n)), operands, strict=True):
        if name in kernel.boxes:
            check_box_rows(kernel, shape, size)
            operand = BoxedOperand(
                dtype, rows, columns, 1, columns * size, rows * columns * size, kernel.box(name, size, params)
            )
            found.append(Mapped(memory, operand))
        else:
            found.append(memory)
    return found


def check_box_rows(kernel: CudaKernel, shape: tuple[int, int, int], itemsize: int) -> None:
    """Raise UsageError if an operand that the kernel takes as a tensor map has empty rows, or rows that are not
    multiples of 16 bytes. The copy engine needs such multiples."""
    m, n, k = shape
    for name, rows, columns in (("A", m, k), ("B", k, n), ("C", m, n)):
        if name.lower() in kernel.boxes and (not rows * columns or columns * itemsize % GRANULE):
            raise UsageError(
                f"{kernel.name} takes {name} as a tensor map, whose rows must be multiples of {GRANULE} bytes and not "
                f"empty: {name} is {rows}x{columns}, its rows have {columns * itemsize} bytes"
            )


class FixedArguments:
    """The memory of a launch's arguments that are the same at each launch: integers, addresses, tensor maps, and
    structures as their bytes."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._kept, places = list[Any](), list[int]()
        for arg in args:
            if isinstance(arg, Mapped):
                kept = arg.operand.encoded(arg.memory.pointer)
                places.append(kept.getPtr())
            else:
                if isinstance(arg, bytes):
                    kept = ctypes.create_string_buffer(arg, len(arg))
                else:
                    kept = ctypes.c_int64(arg.pointer if isinstance(arg, Memory) else int(arg))
                places.append(ctypes.addressof(kept))
            self._kept.append(kept)
        self._places = (ctypes.c_void_p * len(args))(*places)
        #: Where the addresses of the arguments are, as a launch takes them.
        self.address = ctypes.addressof(self._places)


class BoxedArguments:
    """The memory of a launch's arguments: one tensor map for each operand, addresses, and one structure."""

    def __init__(
        self, operands: Sequence[BoxedOperand], structure: bytes, mapped: Sequence[int], pointers: Sequence[int]
    ) -> None:
        self._maps = [operand.encoded(at) for operand, at in zip(operands, mapped, strict=True)]
        self._at = list(mapped)
        self._pointers = (ctypes.c_uint64 * len(pointers))(*pointers)
        self._structure, self._content = ctypes.create_string_buffer(structure, len(structure)), structure
        places = [each.getPtr() for each in self._maps]
        first = ctypes.addressof(self._pointers)
        places += [*(first + 8 * i for i in range(len(pointers))), ctypes.addressof(self._structure)]
        self._places = (ctypes.c_void_p * len(places))(*places)
        #: Where the addresses of the arguments are, as a launch takes them.
        self.address = ctypes.addressof(self._places)

    def change(self, mapped: Sequence[int], pointers: Sequence[int], structure: bytes) -> None:
        """Set the arguments of the next launch."""
        for i, (now, then) in enumerate(zip(mapped, self._at, strict=True)):
            if now != then:
                call("a tensor map", "cuTensorMapReplaceAddress", self._maps[i], now)
                self._at[i] = now
        for i, pointer in enumerate(pointers):
            self._pointers[i] = pointer
        if structure is not self._content:
            ctypes.memmove(self._structure, structure, len(structure))
            self._content = structure

    def recorded(self, what: str, function: int, size: tuple[int, ...]) -> RecordedLaunch | None:
        """A launch with these arguments as data. Returns None if the addresses in the tensor maps cannot be found."""
        pointers, structure = list(self._pointers), self._structure.raw
        return recorded_maps(what, function, size, maps=self._maps, at=self._at, pointers=pointers, structure=structure)


# ---- kernels, loaded and checked -------------------------------------------------------------------------------------

#: A launch, or a call of a library, that was checked once; each call submits it again.
Submission = Callable[[], None]
#: The same for any stream and arguments: ``Device.launcher`` describes the arguments of a call.
Launcher = Callable[..., None]

#: Blocks, threads of a block, and bytes of its dynamic shared memory.
LaunchSize = tuple[int, int, int]

#: The most blocks of a cluster that every card takes.
_PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class Attributes:
    """Facts that the driver reports about a loaded kernel: registers per thread, bytes of static shared memory per
    block, bytes of local memory per thread, and the largest number of threads of a block that these allow."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


class _ArgumentMemory:
    """The memory of a launch's arguments: eight bytes for each argument, of which the kernel reads as many as its
    parameter has."""

    def __init__(self, count: int) -> None:
        self.slots = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self.slots)
        self._places = (ctypes.c_void_p * count)(*(first + 8 * i for i in range(count)))
        #: Where the addresses of the arguments are, as a launch takes them.
        self.address = ctypes.addressof(self._places)


def _bits(number: Any) -> int:
    """The bits of a NumPy scalar, or of an argument of another library, as an integer."""
    if getattr(getattr(number, "dtype", None), "kind", "") in "iu":
        return int(number)
    return int.from_bytes(np.asarray(number).tobytes()[:8], "little")


@dataclass
class _Kernel:
    """A loaded kernel, the library in which it was loaded, and the most bytes of dynamic shared memory that a launch of it
    may have now."""

    library: Any
    handle: Any
    attributes: Attributes
    dynamic_bytes: int


class Kernels:
    """Compiled kernels on one GPU, each loaded once."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts
        self._loaded: dict[tuple[bytes, str], _Kernel] = {}

    def attributes(self, compiled: Compiled, entry: str) -> Attributes:
        """The driver's facts about a kernel; the kernel is loaded if needed. Raises LaunchError if the driver refuses
        the binary."""
        return self._load(compiled, entry).attributes

    def variable(self, compiled: Compiled, entry: str, name: str) -> tuple[int, int]:
        """The address and the number of bytes of a ``__constant__`` or ``__device__`` variable, given by its name in
        the binary.

        Raises LaunchError if the binary has no such variable."""
        what = f"{compiled.name}: {entry}, variable {name}"
        address, nbytes = call(what, "cuLibraryGetGlobal", self._load(compiled, entry).library, name.encode())
        return int(address), int(nbytes)

    def arguments(self, compiled: Compiled, entry: str, args: Sequence[Any]) -> list[Any]:
        """The arguments, converted for the kernel. Raises UsageError and OperandError for arguments that the kernel
        cannot take."""
        sizes = _argument_sizes(self._load(compiled, entry).handle)
        if len(sizes) != len(args):
            raise UsageError(f"{compiled.name}: {entry} takes {len(sizes)} arguments, given {len(args)}")
        return [argument(i, size, value) for i, (size, value) in enumerate(zip(sizes, args, strict=True))]

    def launcher(self, compiled: Compiled, entry: str, grid: Extent, block: Extent, shared_bytes: int = 0) -> Launcher:
        """See ``Device.launcher``."""
        blocks, threads = extent("grid", grid), extent("block", block)
        what, function = self._function_for(compiled, entry, blocks, threads, shared_bytes)
        run, waits = driver().cuLaunchKernel, compiled.waits
        unused: list[_ArgumentMemory] = []

        def launch(stream: int, *args: Any) -> None:
            # Each concurrent launch takes memory of its own; list.pop and list.append are atomic.
            arguments = unused.pop() if unused else _ArgumentMemory(len(args))
            for i, arg in enumerate(args):
                arguments.slots[i] = arg if type(arg) is int else _bits(arg)
            if is_recording(stream):
                pointers = [i for i, arg in enumerate(args) if type(arg) is int]  # an int is an address
                size = (*blocks, *threads, shared_bytes)
                recorded = recorded_words(what, int(function), size, arguments.slots, pointers)
                recording_with(stream).add(recorded, waits)
                return
            status = run(function, *blocks, *threads, shared_bytes, stream, arguments.address, 0)[0]
            unused.append(arguments)
            if status != 0:
                raise LaunchError(message(what, status.name))

        return launch

    def boxed_launcher(
        self,
        compiled: Compiled,
        entry: str,
        size: LaunchSize,
        operands: Sequence[BoxedOperand],
        structure: bytes,
    ) -> BoxedLauncher:
        """See ``Device.boxed_launcher``."""
        grid, block, shared_bytes = size
        what = (
            f"{compiled.name}: {entry}, {grid} blocks of {block} threads, {shared_bytes} bytes of dynamic shared memory"
        )
        function = self._loaded_for(what, compiled, entry, (grid, 1, 1), (block, 1, 1), shared_bytes)
        run = driver().cuLaunchKernel
        waits = compiled.waits
        unused: list[BoxedArguments] = []

        def launch(stream: int, mapped: Sequence[int], pointers: Sequence[int], other: bytes = structure) -> None:
            if is_recording(stream):
                arguments = BoxedArguments(operands, other, mapped, pointers)
                size = (grid, 1, 1, block, 1, 1, shared_bytes)
                recording_with(stream).add(arguments.recorded(what, int(function), size), waits)
                return
            # Each concurrent launch takes memory of its own; list.pop and list.append are atomic.
            try:
                arguments = unused.pop()
                arguments.change(mapped, pointers, other)
            except IndexError:
                arguments = BoxedArguments(operands, other, mapped, pointers)
            status = run(function, grid, 1, 1, block, 1, 1, shared_bytes, stream, arguments.address, 0)[0]
            unused.append(arguments)
            if status != 0:
                raise LaunchError(message(what, status.name))

        return launch

    def tensor_map_launcher(
        self, compiled: Compiled, entry: str, grid: Extent, block: Extent, args: Sequence[Any], shared_bytes: int
    ) -> Callable[[int], None]:
        """A launch whose arguments are tensor maps (``Mapped``), memory, integers, and structures as their bytes. Each
        call submits the launch to the stream with the given handle."""
        blocks, threads = extent("grid", grid), extent("block", block)
        what, function = self._function_for(compiled, entry, blocks, threads, shared_bytes)
        arguments, run = FixedArguments(args), driver().cuLaunchKernel

        def launch(stream: int) -> None:
            status = run(function, *blocks, *threads, shared_bytes, stream, arguments.address, 0)[0]
            if status != 0:
                raise LaunchError(message(what, status.name))

        return launch

    def _function_for(
        self, compiled: Compiled, entry: str, blocks: Sequence[int], threads: Sequence[int], shared_bytes: int
    ) -> tuple[str, Any]:
        """The kernel, loaded and checked for launches of this size, and the name that errors use for them."""
        shape = f"{tuple(blocks)} blocks of {tuple(threads)} threads, {shared_bytes} bytes of dynamic shared memory"
        what = f"{compiled.name}: {entry}, {shape}"
        return what, self._loaded_for(what, compiled, entry, blocks, threads, shared_bytes)

    def _loaded_for(
        self,
        what: str,
        compiled: Compiled,
        entry: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
    ) -> Any:
        """The function of a loaded kernel. If a launch of this size is possible, the function is allowed to use as much
        shared memory as the launch needs."""
        kernel = self._load(compiled, entry)
        self._refuse_oversized(what, kernel.attributes, grid, block, shared_bytes)
        if shared_bytes > kernel.dynamic_bytes:
            self._set(what, kernel.handle, "MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
            kernel.dynamic_bytes = shared_bytes
        return driver().CUfunction(int(kernel.handle))

    def _load(self, compiled: Compiled, entry: str) -> _Kernel:
        key = (compiled.cubin, entry)
        if key not in self._loaded:
            capability = self._facts.capability
            what = f"{compiled.name}: {entry}, compiled for {compiled.arch}, on compute capability {capability}"
            (library,) = call(what, "cuLibraryLoadData", compiled.cubin, [], [], 0, [], [], 0)
            (handle,) = call(what, "cuLibraryGetKernel", library, entry.encode())
            names = ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
            attributes = Attributes(*(self._get(what, handle, name) for name in names))
            dynamic = self._get(what, handle, "MAX_DYNAMIC_SHARED_SIZE_BYTES")
            self._loaded[key] = _Kernel(library, handle, attributes, dynamic)
            if self._get(what, handle, "REQUIRED_CLUSTER_WIDTH") > _PORTABLE_CLUSTER:
                self._set(what, handle, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        return self._loaded[key]

    def _refuse_oversized(
        self, what: str, has: Attributes, grid: Sequence[int], block: Sequence[int], shared_bytes: int
    ) -> None:
        """Refuse a launch that the driver would refuse without a reason."""
        for name, sizes in (("grid", grid), ("block", block)):
            limits = getattr(self._facts, name)
            if any(size > most for size, most in zip(sizes, limits, strict=True)):
                raise LaunchError(f"{what}: a {name} can be at most {limits}")
        threads = math.prod(block)
        if threads > has.max_threads:
            raise LaunchError(
                f"{what}: {threads} threads are too many: with {has.registers} registers each, and within the kernel's "
                f"own launch bounds, a block can have {has.max_threads}"
            )
        if has.shared_bytes + shared_bytes > self._facts.shared_bytes:
            raise LaunchError(
                f"{what}: too much shared memory: {has.shared_bytes} bytes static and {shared_bytes} dynamic, "
                f"a block on {self._facts.name} can have {self._facts.shared_bytes}"
            )

    def _set(self, what: str, handle: Any, attribute: str, value: int) -> None:
        """Set an attribute without which the driver refuses the launch."""
        call(what, "cuKernelSetAttribute", _named(attribute), value, handle, driver().CUdevice(self._facts.ordinal))

    def _get(self, what: str, handle: Any, attribute: str) -> int:
        (value,) = call(what, "cuKernelGetAttribute", _named(attribute), handle, driver().CUdevice(self._facts.ordinal))
        return int(value)


def _named(attribute: str) -> Any:
    return getattr(driver().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")


def _argument_sizes(handle: Any) -> list[int]:
    """The bytes of each parameter of a kernel. The driver returns an error for the number after the last parameter."""
    sizes: list[int] = []
    while (found := driver().cuKernelGetParamInfo(handle, len(sizes)))[0] == 0:
        sizes.append(int(found[2]))
    return sizes


# ---- the arguments of a launch ---------------------------------------------------------------------------------------

Extent = int | Sequence[int]


def extent(name: str, value: Extent) -> tuple[int, int, int]:
    """One to three positive integers as three, with 1 for each that is missing. Raises UsageError for anything else.

    >>> extent("grid", 7), extent("block", (32, 8))
    ((7, 1, 1), (32, 8, 1))
    """
    try:
        given = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (value,)
        whole = [int(v) for v in given if int(v) == v and not isinstance(v, bool | str)]
    except (TypeError, ValueError, OverflowError):
        whole, given = [], ()
    if len(whole) != len(given) or not 1 <= len(whole) <= 3 or min(whole) < 1:
        raise UsageError(f"{name} must be one to three positive numbers, given {value!r}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def argument(index: int, size: int, value: Any) -> Any:
    """An argument in the form that a launch takes: an address as an int, a number as the unsigned integer with the same
    bits.

    ``size`` is the size of the kernel's parameter in bytes. Raises OperandError for a value that does not fit.
    """
    name = f"argument {index}"
    if isinstance(value, Memory):
        if size != 8:
            raise OperandError(f"{name} is memory, but the kernel takes {size} bytes there: give a number")
        return value.pointer
    if isinstance(value, np.generic) and value.dtype.kind in "iufb" and value.itemsize == size:
        return np.frombuffer(value.tobytes(), f"u{size}")[0]
    if isinstance(value, bool | int | np.integer | np.bool_) and size in (1, 2, 4, 8):
        low = -(1 << 8 * size - 1)
        if not low <= int(value) < 1 << 8 * size:
            raise OperandError(f"{name} is {value}: the kernel takes {size} bytes there, which cannot hold it")
        return np.dtype(f"u{size}").type(int(value) & (1 << 8 * size) - 1)
    if isinstance(value, float | np.floating) and size in (2, 4, 8):
        return np.frombuffer(struct.pack({2: "e", 4: "f", 8: "d"}[size], float(value)), f"u{size}")[0]
    raise OperandError(
        f"{name} is a {type(value).__name__}, and the kernel takes {size} bytes there: give memory or a number"
    )
