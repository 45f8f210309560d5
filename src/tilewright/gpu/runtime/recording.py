"""Records the launches of a product once, and then repeats them with other addresses by one call of machine code.

A launch from Python takes several times as long as the driver itself needs. So the launches of a product are submitted
once more, to a stream that only records them, with addresses that no array has. A value in the arguments of these
launches that equals such an address, or is near it, is recognised as an address; all other values stay the same.
``Replay`` writes the caller's addresses into a copy of the arguments and launches the kernels. The function behind
``Replay`` is in the C front (``cpu/native/gpu.c``).

On one stream the launches of a product become a CUDA graph, which the driver submits faster than a single kernel. The
arguments of the graph are changed before each call; work that was submitted earlier keeps its own arguments. A graph
cannot run concurrently with itself, so it serves only one stream. On other streams, and while a stream is captured, the
kernels are launched one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...cpu.native import front
from ...errors import LaunchError
from .driver import call, driver, message

# ---- a graph of CUDA: one call submits all launches of a product -----------------------------------------------------

#: The most launches of a graph, and the most graphs of a process, each of which takes memory of the GPU.
_MOST_IN_GRAPH, _MOST_GRAPHS = 8, 256
_graphs: set[int] = set()
#: ``CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`` and ``CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC``
_PORT_PROGRAMMATIC, _PROGRAMMATIC = 1, 1


class GraphState(NamedTuple):
    """The state of a graph that machine code reads and writes, as 64-bit words; the nodes of the graph follow.

    ``lock`` says whether a thread uses the graph. ``stream`` is the stream that the graph serves, or -1 after an error.
    The other fields are the graph and functions of the driver."""

    lock: int
    stream: int
    graph: int
    is_capturing: int
    set_arguments: int
    launch: int


class LaunchGraph:
    """A CUDA graph of launches that follow one another. Each launch has a kernel, a size, and the memory and the places
    of its arguments."""

    def __init__(self, launches: Sequence[Any], stream: int, address_of: Callable[[str], int]) -> None:
        what, d = "a graph of launches", driver()
        self._made: Any = None
        (self._graph,) = call(what, "cuGraphCreate", 0)
        nodes: list[Any] = []
        for launch in launches:
            memory = ctypes.create_string_buffer(launch.arguments, len(launch.arguments))
            places = (ctypes.c_void_p * len(launch.places))(*(ctypes.addressof(memory) + at for at in launch.places))
            node = d.CUDA_KERNEL_NODE_PARAMS()
            node.kern, node.kernelParams = d.CUkernel(launch.function), ctypes.addressof(places)
            node.gridDimX, node.gridDimY, node.gridDimZ = launch.size[:3]
            node.blockDimX, node.blockDimY, node.blockDimZ, node.sharedMemBytes = launch.size[3:]
            nodes += call(what, "cuGraphAddKernelNode", self._graph, [], 0, node)
            if len(nodes) > 1:
                edge = _edge(launch.waits)
                call(what, "cuGraphAddDependencies", self._graph, nodes[-2:-1], nodes[-1:], [edge], 1)
        (self._made,) = call(what, "cuGraphInstantiate", self._graph, 0)
        functions = map(address_of, ("StreamIsCapturing", "GraphExecKernelNodeSetParams", "GraphLaunch"))
        words = *GraphState(0, stream, int(self._made), *functions), *map(int, nodes)
        self._state = (ctypes.c_int64 * len(words))(*words)
        _graphs.add(id(self))

    @property
    def address(self) -> int:
        """The address of the state, for machine code."""
        return ctypes.addressof(self._state)

    def __del__(self) -> None:
        _graphs.discard(id(self))
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            if self._made is not None:
                driver().cuGraphExecDestroy(self._made)
            driver().cuGraphDestroy(self._graph)


def _edge(waits: bool) -> Any:
    """The dependency of a launch on the launch before it. A launch begins at the end of the launch before; if its
    kernel ``waits``, it begins when all blocks of that launch have begun and allow it."""
    edge = driver().CUgraphEdgeData()
    if waits:
        edge.from_port, edge.type = _PORT_PROGRAMMATIC, _PROGRAMMATIC
    return edge


def launch_graph(launches: Sequence[Any], stream: int, address_of: Callable[[str], int]) -> LaunchGraph | None:
    """The graph for a stream. Returns None while the stream is captured, or if there would be too many graphs or
    launches.

    ``address_of(name)`` is the address of a function of the driver. The GPU must be the calling thread's current one.
    """
    if not 1 <= len(launches) <= _MOST_IN_GRAPH or len(_graphs) >= _MOST_GRAPHS:
        return None
    status, captured = driver().cuStreamIsCapturing(stream)
    if status != 0 or int(captured) != 0:
        return None
    try:
        with _allocating_in_captures():
            return LaunchGraph(launches, stream, address_of)
    except LaunchError:
        return None


@contextlib.contextmanager
def _allocating_in_captures() -> Iterator[None]:
    """Within the ``with`` block, this thread may allocate memory of the GPU while any thread captures a stream.
    Otherwise the allocation would end the capture with an error."""
    what, relaxed = "the mode of captures", driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (before,) = call(what, "cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        call(what, "cuThreadExchangeStreamCaptureMode", before)


# ---- recordings, and their repetition --------------------------------------------------------------------------------

#: Addresses of operands in a recording: the operand with number i is at (i + 1) · _APART, or this side of the middle to the
#: next one. All of them are addresses that a tensor map can have.
_APART = 1 << 44
#: The most launches that are recorded; as in ``cpu/native/gpu.c``, the most bytes of a launch's arguments, and arguments.
_MOST_LAUNCHES, _MOST_BYTES, _MOST_ARGUMENTS = 1000, 4096, 64
#: Bytes of a tensor map.
_MAP_BYTES = 128
#: The version of CUDA whose functions of the driver are called.
_VERSION = 12000


class RecordedLaunch(NamedTuple):
    """A launch as data. ``size`` has seven numbers: three of the grid, three of the block, and the bytes of shared
    memory.

    ``arguments`` is the memory of the arguments. ``places`` has the byte at which each argument begins, and
    ``addresses`` has the bytes at which 8-byte addresses begin. With ``waits`` the kernel itself waits until the launch
    before it has ended, so it may begin earlier."""

    what: str
    function: int
    size: tuple[int, ...]
    arguments: bytes
    places: tuple[int, ...]
    addresses: tuple[int, ...]
    waits: bool = False


class Recording:
    """A stream with a negative ``handle``. A launch that is submitted to it is recorded, and no kernel runs.

    ``complete`` is False if work was submitted that cannot be repeated.
    """

    def __init__(self) -> None:
        self.handle, self.launches, self.complete = -next(_numbers), list[RecordedLaunch](), True

    def __enter__(self) -> Recording:
        _recordings[self.handle] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _recordings[self.handle]

    def add(self, launch: RecordedLaunch | None, waits: bool = False) -> None:
        """Record a launch. ``waits`` says whether the kernel of the launch waits for the launch before it. None in
        place of a launch says that it cannot be repeated."""
        if launch is None or _is_long(launch) or len(self.launches) == _MOST_LAUNCHES:
            self.complete = False
        else:
            self.launches.append(launch._replace(waits=waits))


def _is_long(launch: RecordedLaunch) -> bool:
    return len(launch.arguments) > _MOST_BYTES or len(launch.places) > _MOST_ARGUMENTS


_numbers = itertools.count(1)
_recordings: dict[int, Recording] = {}


def is_recording(stream: int) -> bool:
    """Whether a stream's handle is that of a recording, so that a launch on it is recorded and not submitted."""
    return stream < 0


def recording_with(handle: int) -> Recording:
    """The recording with the handle that a launch received as its stream."""
    return _recordings[handle]


def recorded(submit: Callable[..., None], alike: Sequence[int]) -> Recording:
    """The recording of what ``submit(*addresses, stream)`` launches, for addresses that are equal to ``alike`` modulo
    4,096."""
    with Recording() as recording:
        submit(*((i + 1) * _APART + address % 4096 for i, address in enumerate(alike)), recording.handle)
    return recording


class Replay:
    """Repeats the launches of a complete recording in a GPU's ``context``. ``run(*addresses, stream)`` returns 0, or a
    number that ``error`` turns into an exception. ``alike`` are the addresses for which the recording was made.

    With a ``stream``, products on that stream are submitted as one graph. With ``early``, a single launch whose kernel
    waits is submitted without a graph, so that it can begin before earlier work on the stream has ended. The calling
    thread's current context does not matter. Several threads may call ``run`` at once. Raises LaunchError if there is
    no C front.
    """

    def __init__(
        self, recording: Recording, alike: Sequence[int], context: int, stream: int | None = None, early: bool = False
    ) -> None:
        c, launches = front(), recording.launches
        if c is None:
            raise LaunchError("recorded launches are repeated by tilewright._native, which was not built")
        is_early = early and len(launches) == 1 and launches[0].waits
        self._graph = None if stream is None or is_early else launch_graph(launches, stream, _address)
        self._what = [launch.what for launch in recording.launches]
        functions = [_address(name) for name in ("CtxGetCurrent", "CtxPushCurrent", "CtxPopCurrent", "LaunchKernelEx")]
        graph = 0 if self._graph is None else self._graph.address
        program = [_words(*functions, context, len(alike), len(recording.launches), graph)]
        for launch in recording.launches:
            size = -(-len(launch.arguments) // 8) * 8
            counts = len(launch.places), len(launch.addresses), size
            program.append(struct.pack("<q8I3q", launch.function, *launch.size, launch.waits, *counts))
            program += [_words(*launch.places), launch.arguments.ljust(size, b"\0")]
            program += [_words(at, *_operand(launch.arguments, at, alike)) for at in launch.addresses]
        #: The launches as words, which the C front reads.
        self.program = b"".join(program)
        #: ``run(*addresses, stream)``, a function as Python's built-in ones are.
        self.run: Callable[..., int] = c.replay(self.program)

    def error(self, status: int) -> LaunchError:
        """The exception for a result of ``run`` that is not 0."""
        number, code = status >> 32, status & 0xFFFF_FFFF
        what = self._what[number] if number < len(self._what) else "make the GPU the current one"
        return LaunchError(message(what, driver().CUresult(code).name))


def _operand(arguments: bytes, at: int, alike: Sequence[int]) -> tuple[int, int]:
    """The number of the operand to which the address at this byte belongs, and the distance in bytes from the operand's
    address to it. For a value that is not an address, such as null, the number is beyond the last operand."""
    (value,) = struct.unpack_from("<q", arguments, at)
    number = (value + _APART // 2) // _APART - 1
    if not 0 <= number < len(alike):
        return len(alike), value
    return number, value - (number + 1) * _APART - alike[number] % 4096


def _words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _address(name: str) -> int:
    """The address of a function of the driver in C."""
    d = driver()
    status, address, _ = d.cuGetProcAddress(f"cu{name}".encode(), _VERSION, 0)
    if status != 0:
        raise LaunchError(message(f"find cu{name}", status.name))
    return int(address)


def recorded_words(
    what: str, function: int, size: tuple[int, ...], words: Any, addresses: Sequence[int]
) -> RecordedLaunch:
    """A recorded launch whose arguments are words of eight bytes each. The words with the numbers ``addresses`` are
    addresses."""
    places = tuple(range(0, 8 * len(words), 8))
    return RecordedLaunch(what, function, size, bytes(words), places, tuple(8 * i for i in addresses))


def recorded_maps(
    what: str,
    function: int,
    size: tuple[int, ...],
    *,
    maps: Sequence[Any],
    at: Sequence[int],
    pointers: Sequence[int],
    structure: bytes,
) -> RecordedLaunch | None:
    """A recorded launch whose arguments are tensor maps of operands at the addresses ``at``, further addresses, and a
    structure. Returns None if this driver does not store the address of an operand in the first eight bytes of a
    map."""
    d = driver()
    arguments, places, addresses = b"", [], []
    for made, address in zip(maps, at, strict=True):
        before, other = _bytes_of(made), address ^ 0x1000
        if d.cuTensorMapReplaceAddress(made, other)[0] != 0 or _bytes_of(made) != _words(other) + before[8:]:
            return None
        d.cuTensorMapReplaceAddress(made, address)
        if _bytes_of(made) != before or before[:8] != _words(address):
            return None
        places.append(len(arguments))
        addresses.append(len(arguments))
        arguments += before
    for pointer in pointers:
        places.append(len(arguments))
        addresses.append(len(arguments))
        arguments += _words(pointer)
    return RecordedLaunch(what, function, size, arguments + structure, (*places, len(arguments)), tuple(addresses))


def _bytes_of(made: Any) -> bytes:
    return ctypes.string_at(made.getPtr(), _MAP_BYTES)
