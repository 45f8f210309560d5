"""A process of its own for the GPU, so that the bench goes on when a kernel crashes or never ends.

After an illegal address CUDA refuses all further work of a process, and a kernel that hangs ends only with its process. The
process answers one request at a time. Before each piece of work for the GPU it sends a ``Watch``: the most seconds until its
next message. If that does not come, the process is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ...errors import TilewrightError
from ...runtime.gpu.cublas import ARITHMETIC_VARIABLES
from ...runtime.gpu.device import open_device
from .cells import Settings
from .device import DeviceBench

#: Longest wait for a process to start and to open the GPU.
START_S = 120.0

_Target = Callable[[Connection, Settings], None]


class LostError(Exception):
    """The process did not answer: it ended by itself, or what it was ``doing`` did not end within ``seconds``."""

    def __init__(self, message: str, doing: str = "", seconds: float = 0.0) -> None:
        super().__init__(message)
        self.doing, self.seconds = doing, seconds


@dataclass(frozen=True)
class Watch:
    """A message from the process: what it does next, and the most seconds until its next message."""

    seconds: float
    doing: str


def serve(connection: Connection, settings: Settings) -> None:
    """The process's function: opens the GPU, sends facts about it, and answers requests until the connection is closed.

    A request is the name of a method of ``DeviceBench`` with its arguments; the answer is what the method returns, or the
    TilewrightError that it raises.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench handles Ctrl-C, and ends this process
    for name in ARITHMETIC_VARIABLES:
        os.environ.pop(name, None)

    def watch(seconds: float, doing: str) -> None:
        connection.send(Watch(seconds, doing))

    try:
        bench = DeviceBench(open_device(), settings, watch=watch)
        connection.send(bench.facts())
    except TilewrightError as error:
        connection.send(error)
        return
    while True:
        try:
            name, args, named = connection.recv()
        except EOFError:  # the bench has ended
            return
        try:
            connection.send(getattr(bench, name)(*args, **named))
        except TilewrightError as error:
            connection.send(error)


class GpuProcess:
    """The bench's handle of the process, which is started at the first request, and again after it was lost."""

    def __init__(self, settings: Settings, target: _Target = serve) -> None:
        self._settings, self._target = settings, target
        self._process: Any = None
        self._connection: Any = None

    def start(self) -> dict[str, Any]:
        """Start it; returns the facts about its GPU. Raises UnavailableError without a GPU, LostError if the process
        ends."""
        context = multiprocessing.get_context("spawn")  # a fork would inherit threads and locks of libraries
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._target, args=(theirs, self._settings), daemon=True)
        self._process.start()
        theirs.close()
        try:
            return self._answer(Watch(START_S, "opening the GPU"))
        except TilewrightError:
            self.stop()
            raise

    def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the process's ``DeviceBench``. Raises what the method raises, and LostError without an answer."""
        if self._process is None:
            self.start()
        self._connection.send((method, args, named))
        return self._answer(Watch(START_S, f"answering {method}"))

    def _answer(self, watch: Watch) -> Any:
        while True:
            try:
                if not self._connection.poll(watch.seconds):
                    self.stop()
                    lost = f"{watch.doing} did not end within {watch.seconds:.3g} s"
                    raise LostError(lost, watch.doing, watch.seconds)
                message = self._connection.recv()
            except (EOFError, ConnectionError):
                self._process.join()
                code = self._process.exitcode
                self.stop()
                raise LostError(f"the process that ran it ended (exit code {code}) while {watch.doing}") from None
            if isinstance(message, TilewrightError):
                raise message
            if not isinstance(message, Watch):
                return message
            watch = message

    def stop(self) -> None:
        """Kill it, also while it computes; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None
