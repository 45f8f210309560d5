"""The bench on a GPU. The bench measures cells one after another, and predicts the time of each cell from those of
earlier cells. The GPU is used in a separate process, which may crash or hang without ending the run.

``device`` decides what is timed, and what is checked before a time counts. This module skips cells that would take too
long, makes the outcome of a cell during which the GPU's process crashed or hung, and writes the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ...errors import TilewrightError, UnavailableError
from ...gpu.runtime.cublas import ARITHMETIC_VARIABLES
from ...gpu.runtime.device import open_device
from ...records.bench import BenchRecord
from .cells import Cell, Outcome, PredictingBench, Settings
from .device import FIRST, SAMPLE_S, WARM_S, DeviceBench, MeasuredCell

#: Seconds that a cell takes in addition to its samples, for compiling, operands and verification.
AROUND_S = 0.5


class CudaBench(PredictingBench):
    """Measures cells on the first GPU. Raises UnavailableError, with the reason, if there is no GPU."""

    telling_s, guessed_flops = 1e-3, 1e12

    def __init__(self, settings: Settings, environment: dict[str, Any], process: GpuProcess | None = None) -> None:
        super().__init__(settings)
        self._process = process or GpuProcess(settings)
        self._peaks: dict[str, float | None] = {}
        try:
            facts = self._process.start()
        except LostError as error:
            raise UnavailableError(f"the GPU cannot be used: {error}") from None
        libraries = environment.get("blas", {}) | {"cublas": facts.pop("cublas")}
        self.environment = environment | facts | {"blas": libraries}

    def measure(self, cell: Cell) -> BenchRecord:
        """Measure one cell, or find out why it cannot be measured. Ctrl-C is passed on to the caller; every other
        failure is described in the record."""
        skipped = self.over_limit(cell)
        return self.record(cell, self.ask(cell) if skipped is None else MeasuredCell(skipped))

    def ask(self, cell: Cell, **how: Any) -> MeasuredCell:
        """Measure a cell in the process that uses the GPU; ``how`` has further arguments of ``DeviceBench.measure``."""
        try:
            measured = self._process.ask("measure", cell, **how)
        except LostError as error:
            if error.doing == FIRST:
                limit = self.settings.limit_s
                reason = f"one product had not ended after {error.seconds:.3g} s, the limit is {limit:g} s"
                return MeasuredCell(Outcome("time_limit", reason), once_s=error.seconds)
            return MeasuredCell(Outcome("wrong", str(error)))
        except TilewrightError as error:  # unforeseen: the process is in an unknown state
            verdict = "unsupported" if isinstance(error, UnavailableError) else "wrong"
            measured = MeasuredCell(Outcome(verdict, str(error)), lost=True)
        if measured.lost:
            self._process.stop()
        return measured

    def record(self, cell: Cell, measured: MeasuredCell) -> BenchRecord:
        """Return the record of a measured cell. The time of the cell's first product is remembered, to predict the next
        size."""
        if measured.once_s is not None:
            self.remember(cell, measured.once_s)
        outcome = measured.outcome
        moment = {"kernel_source": cell.kernel.source_hash} | measured.moment
        record = cell.record(
            peak_gflops=self._peak(cell.dtype) if cell.precision == "standard" else None,
            reference=self.settings.references[0].name if outcome.reference_samples_s else None,
            seed=self.settings.seed,
            environment=self.environment | moment,
            **vars(outcome),
        ).with_rates()
        return dataclasses.replace(record, about=record.about | measured.about)

    def _peak(self, dtype: str) -> float | None:
        """The peak for a dtype, measured once in a run; None, too, if that fails, which does not spoil the record."""
        if dtype not in self._peaks:
            self._peaks[dtype] = None
            with contextlib.suppress(TilewrightError, LostError):
                self._peaks[dtype] = self._process.ask("peak", dtype)
        return self._peaks[dtype]

    def _whole_cell_s(self, cell: Cell, once_s: float) -> float:
        if once_s > self.settings.limit_s:
            return AROUND_S
        samples, loops = self.settings.repeat + 4, [once_s]
        if self.settings.references:
            loops.append(self.reference_s(cell) or once_s)
        return AROUND_S + sum(WARM_S + samples * max(one_s, SAMPLE_S) for one_s in loops)

    def close(self) -> None:
        """End the process, which frees the GPU's memory."""
        self._process.stop()


# ---- cuda process ----------------------------------------------------------------------------------------------------
# A process of its own for the GPU, so that the bench goes on when a kernel crashes or never ends.
#
# After an illegal address CUDA refuses all further work of a process, and a kernel that hangs ends only with its process.
# The process answers one request at a time. Before each piece of work for the GPU it sends a ``Watch``: the most seconds
# until its next message. If that does not come, the process is killed.


#: The longest wait, in seconds, for a process to start and to open the GPU.
START_S = 120.0

_Target = Callable[[Connection, Settings], None]


class LostError(Exception):
    """The process that uses the GPU gave no answer: it ended by itself, or its work (``doing``) did not end within
    ``seconds``."""

    def __init__(self, message: str, doing: str = "", seconds: float = 0.0) -> None:
        super().__init__(message)
        self.doing, self.seconds = doing, seconds


@dataclass(frozen=True)
class Watch:
    """A message from the process that uses the GPU: what it does next, and the most seconds until its next message."""

    seconds: float
    doing: str


def serve(connection: Connection, settings: Settings) -> None:
    """The main function of the process: it opens the GPU, sends facts about the GPU, and answers requests until the
    connection is closed.

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
    """The bench's handle of the process that uses the GPU. The process is started at the first request, and started
    again after it crashed or was killed."""

    def __init__(self, settings: Settings, target: _Target = serve) -> None:
        self._settings, self._target = settings, target
        self._process: Any = None
        self._connection: Any = None

    def start(self) -> dict[str, Any]:
        """Start the process that uses the GPU; return the facts about the GPU. Raises UnavailableError if there is no
        GPU, and LostError if the process ends before it answers."""
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
        """Call a method of the process's ``DeviceBench``. Raises the exceptions of the method, and LostError if there
        is no answer."""
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
        """Kill the process, even while it computes; the next request starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None
