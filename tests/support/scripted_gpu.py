"""What may become of the process that has a GPU, each as one that does it: processes for ``GpuProcess`` to start.

Each is told the settings, says what its GPU is, and then answers as its name says. Cells of a size of 13 are the ones that
go wrong.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

from tilewright.errors import LaunchError, UnavailableError
from tilewright.lab.bench.cells import Cell, Outcome, Settings
from tilewright.lab.bench.cuda import Watch
from tilewright.lab.bench.device import FIRST, MeasuredCell

FACTS = {"gpu": "Example GPU", "arch": "sm_90a", "sms": 132, "driver": "1.2", "nvrtc": "NVRTC 13", "cublas": "13.1.0"}
UNLUCKY = 13


def right(cell: Cell, with_reference: bool, repeat: int | None) -> MeasuredCell:
    """A product of 1 GFLOPS; smaller tiles are slower."""
    once = cell.flops / 1e9 * (1 + 1 / cell.params.get("TILE", 1)) + 1e-9
    samples = [once * (1 + i / 100) for i in range(repeat or 4)]
    reference = [2 * once] * 4 if with_reference and not cell.kernel.is_reference else []
    moment = {"clock_mhz_before": 1980, "clock_mhz_after": 1900, "power_w": 600.0, "throttled": "power limit"}
    return MeasuredCell(
        Outcome("ok", "", samples, reference, 1e-7, 0.1), once, {"registers": 40}, moment | {"pid": os.getpid()}
    )


class Script:
    """Answers every question; what it does for an unlucky cell is in the classes below."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self.connection, self.settings = connection, settings

    def measure(self, cell: Cell, with_reference: bool = True, repeat: int | None = None) -> MeasuredCell:
        with_reference = with_reference and bool(self.settings.references)
        return self.unlucky() if cell.shape[0] == UNLUCKY else right(cell, with_reference, repeat)

    def peak(self, dtype: str) -> float | None:
        return 10.0 if dtype == "float32" else None

    def unlucky(self) -> MeasuredCell:
        raise LaunchError("not foreseen")

    @classmethod
    def serve(cls, connection: Connection, settings: Settings) -> None:
        script = cls(connection, settings)
        connection.send(dict(FACTS))
        while True:
            try:
                name, args, named = connection.recv()
            except EOFError:
                return
            try:
                connection.send(getattr(script, name)(*args, **named))
            except LaunchError as error:
                connection.send(error)


class Crashes(Script):
    def unlucky(self) -> MeasuredCell:
        self.connection.send(Watch(60, "a sample"))
        os._exit(7)


class Hangs(Script):
    what = FIRST

    def unlucky(self) -> MeasuredCell:
        self.connection.send(Watch(60, "compiling"))
        self.connection.send(Watch(0.2, self.what))
        time.sleep(600)
        raise AssertionError


class HangsLater(Hangs):
    what = "a sample"


class IsLost(Script):
    """An illegal address: the kernel is stopped, and the GPU takes no more from this process."""

    lost = False

    def measure(self, cell: Cell, **how: Any) -> MeasuredCell:
        if self.lost:
            return MeasuredCell(Outcome("wrong", "the context is lost"), lost=True)
        return super().measure(cell, **how)

    def unlucky(self) -> MeasuredCell:
        self.lost = True
        return MeasuredCell(Outcome("wrong", "illegal address"), lost=True)


class HasNoPeak(Script):
    def peak(self, dtype: str) -> float | None:
        raise LaunchError(dtype)


class IsWrong(Script):
    """Half of the parameters give wrong results, a quarter none."""

    def measure(self, cell: Cell, **how: Any) -> MeasuredCell:
        tile = cell.params.get("TILE")
        if tile == 16:
            return MeasuredCell(Outcome("wrong", "C[0, 0] is off by 1"))
        return super().measure(cell, **how)


def absent(connection: Connection, settings: Settings) -> None:
    connection.send(UnavailableError("GPU 0 cannot be used: none"))


def dead(connection: Connection, settings: Settings) -> None:
    os._exit(3)


def crash(*_: Any) -> None:
    """Plays a compiler."""
    os._exit(1)
