"""A graph of CUDA for the launches of a product: one call submits all of them, faster than the driver launches one kernel.

Its arguments are changed before each call; work that was submitted before keeps its own. A graph does not run beside itself,
so it serves one stream: products on other streams, and those that are captured, are launched one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import LaunchError
from .driver import call, driver

#: The most launches of a graph, and the most graphs of a process, each of which takes memory of the GPU.
_MOST_LAUNCHES, _MOST_GRAPHS = 8, 256
_graphs: set[int] = set()
#: ``CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`` and ``CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC``
_PORT_PROGRAMMATIC, _PROGRAMMATIC = 1, 1


class GraphState(NamedTuple):
    """What machine code reads and writes, a word each; the graph's nodes follow. ``lock``: whether a thread uses the graph.
    ``stream``: the one that it serves, or -1 after an error. Then the graph, and the driver's functions."""

    lock: int
    stream: int
    graph: int
    is_capturing: int
    set_arguments: int
    launch: int


class LaunchGraph:
    """A graph for launches that follow each other: a kernel, its size, the memory of its arguments and their places."""

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
        """Where the state is, for machine code."""
        return ctypes.addressof(self._state)

    def __del__(self) -> None:
        _graphs.discard(id(self))
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            if self._made is not None:
                driver().cuGraphExecDestroy(self._made)
            driver().cuGraphDestroy(self._graph)


def _edge(waits: bool) -> Any:
    """What a launch waits for before it begins: the end of the one before, or only, where its kernel ``waits``, until all
    blocks of that one have begun and let it."""
    edge = driver().CUgraphEdgeData()
    if waits:
        edge.from_port, edge.type = _PORT_PROGRAMMATIC, _PROGRAMMATIC
    return edge


def launch_graph(launches: Sequence[Any], stream: int, address_of: Callable[[str], int]) -> LaunchGraph | None:
    """The graph for a stream; None while it is captured, and where there would be too many graphs or launches.

    ``address_of(name)`` is the address of a function of the driver. The GPU must be the current one.
    """
    if not 1 <= len(launches) <= _MOST_LAUNCHES or len(_graphs) >= _MOST_GRAPHS:
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
    """Within the block this thread may take memory of the GPU while a stream is captured, by whichever thread: otherwise
    that would end the capture with an error."""
    what, relaxed = "the mode of captures", driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (before,) = call(what, "cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        call(what, "cuThreadExchangeStreamCaptureMode", before)
