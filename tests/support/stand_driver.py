"""A stand-in for the driver: functions of this process, with addresses as the driver's have."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

WORD, ADDRESS = ctypes.c_uint64, ctypes.c_void_p
#: Kernels of the stand-in: how many bytes each argument has.
WIDTHS = {7: (8, 8, 4, 8), 8: (8,), 9: (128, 128, 8, 12)}


class NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of the driver's header, version 2."""

    _fields_ = (
        ("func", ADDRESS), ("size", ctypes.c_uint * 7), ("kernelParams", ADDRESS), ("extra", ADDRESS), ("kern", WORD),
        ("ctx", ADDRESS),
    )  # fmt: skip


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of the driver's header; the first attribute as words."""

    _fields_ = (
        ("size", ctypes.c_uint * 7),
        ("stream", WORD),
        ("attributes", ctypes.POINTER(WORD)),
        ("count", ctypes.c_uint),
    )


class StandDriver:
    """The driver's functions in C: ``current`` is the thread's context, ``fails`` maps a function to its status."""

    def __init__(self) -> None:
        self.current, self.fails, self.calls = 55, dict[Any, int](), list[Any]()
        self.mode, self.captured, self.nodes, self.destroyed = 0, 0, dict[int, Any](), list[Any]()
        self.edges, self.early = list[tuple[int, ...]](), list[bool]()
        kinds = {
            "CtxGetCurrent": (self.get_current, [ctypes.POINTER(WORD)]),
            "CtxPushCurrent": (self.push, [WORD]),
            "CtxPopCurrent": (self.pop, [ADDRESS]),
            "LaunchKernelEx": (self.launch, [ctypes.POINTER(LaunchConfig), WORD, ADDRESS, ADDRESS]),
            "StreamIsCapturing": (self.is_capturing, [WORD, ctypes.POINTER(ctypes.c_int)]),
            "GraphExecKernelNodeSetParams": (self.set_arguments, [WORD, WORD, ctypes.POINTER(NodeParams)]),
            "GraphLaunch": (self.launch_graph, [WORD, WORD]),
        }
        self.functions = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *args)(function) for name, (function, args) in kinds.items()
        }

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:  # noqa: N802, ARG002 - as NVIDIA's bindings have it
        status = SimpleNamespace(name="CUDA_ERROR_NOT_FOUND") if name in self.fails else 0
        return status, ctypes.cast(self.functions[name.decode()[2:]], ADDRESS).value, 0

    def CUresult(self, code: int) -> Any:  # noqa: N802
        return SimpleNamespace(name=f"CUDA_ERROR_{code}")

    def get_current(self, to: Any) -> int:
        to[0] = self.current
        return 0

    def push(self, context: int) -> int:
        self.calls.append(("push", context))
        return self.fails.get("push", 0)

    def pop(self, to: int) -> int:  # noqa: ARG002
        self.calls.append("pop")
        return 0

    def launch(self, given: Any, function: int, places: int, _: Any) -> int:
        config = given[0]
        size, stream = list(config.size), config.stream
        assert (config.attributes[0], config.attributes[1]) == (6, 1), "programmatic stream serialization"
        self.early.append(bool(config.count))
        widths = WIDTHS[function]
        args = [
            ctypes.string_at(at, width) for at, width in zip((ADDRESS * 9).from_address(places), widths, strict=False)
        ]
        self.calls.append((function, tuple(size), stream, *args))
        return self.fails.get(function, 0)

    # ---- graphs: their number is 1000, and that of a node 2000 and more

    def is_capturing(self, stream: int, to: Any) -> int:  # noqa: ARG002
        to[0] = self.captured
        return self.fails.get("capture", 0)

    def set_arguments(self, graph: int, node: int, params: Any) -> int:
        assert graph == 1000
        p = params[0]
        assert (p.func, p.extra, p.ctx) == (None, None, None)
        places = (ADDRESS * 9).from_address(p.kernelParams)
        args = [ctypes.string_at(at, width) for at, width in zip(places, WIDTHS[p.kern], strict=False)]
        self.nodes[node] = (p.kern, tuple(p.size), *args)
        return self.fails.get(node, 0)

    def launch_graph(self, graph: int, stream: int) -> int:
        assert graph == 1000
        self.calls.append(("graph", stream, *(self.nodes[node] for node in sorted(self.nodes))))
        return self.fails.get("graph", 0)

    def cuStreamIsCapturing(self, stream: int) -> Any:  # noqa: N802, ARG002
        return 0, self.captured

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> Any:  # noqa: N802
        before, self.mode = self.mode, mode
        return 0, before

    def cuGraphCreate(self, flags: int) -> Any:  # noqa: N802, ARG002
        return 0, 999

    def CUDA_KERNEL_NODE_PARAMS(self) -> Any:  # noqa: N802
        return SimpleNamespace()

    def CUkernel(self, handle: int) -> int:  # noqa: N802
        return handle

    def cuGraphAddKernelNode(self, graph: int, after: Any, count: int, node: Any) -> Any:  # noqa: N802
        assert graph == 999
        assert len(after) == count == 0
        self.nodes[2000 + len(self.nodes)] = node.kern
        return 0, max(self.nodes)

    def CUgraphEdgeData(self) -> Any:  # noqa: N802
        return SimpleNamespace(from_port=0, to_port=0, type=0)

    def cuGraphAddDependencies(self, graph: int, before: Any, after: Any, edges: Any, count: int) -> Any:  # noqa: N802
        assert (graph, len(before), len(after), len(edges), count) == (999, 1, 1, 1, 1)
        self.edges.append((before[0], after[0], edges[0].from_port, edges[0].to_port, edges[0].type))
        return (0,)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:  # noqa: N802, ARG002
        assert self.mode == 2, "it allocates, which would end the capture of another thread"
        return (SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY"),) if "instantiate" in self.fails else (0, 1000)

    def cuGraphExecDestroy(self, graph: int) -> None:  # noqa: N802
        self.destroyed.append(graph)

    def cuGraphDestroy(self, graph: int) -> None:  # noqa: N802
        self.destroyed.append(graph)
