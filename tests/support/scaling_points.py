"""Points of scaling made by hand: 1024³ in 4 tiles of 512², on workers of 1 GFLOPS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.records.scaling import SPENT, ScalingPoint

RATES = {"flops": 1e9, "link_bytes": 1e9, "latency_s": 1e-4, "memory": 2.0**30, "task_s": 1e-3, "message_s": 2e-4}


def scaled(workers: int, efficiency: float, loss: str = "link", used: int = 0, **changed: Any) -> ScalingPoint:
    """A point in which the used workers compute, and lose the rest of the time to one thing."""
    used = used or workers
    computing = min(1.0, efficiency * workers / used)
    point = ScalingPoint(
        *(
            1024,
            1024,
            1024,
            "float32",
            "workers",
            workers,
            used,
            (1, used),
            (2, 2),
            (512, 512, 1024),
            "rows",
            (2, 2, 2),
        ),
        rates=RATES,
        predicted_s=1.0,
        total_s=2 * 1024**3 / 1e9 / workers / efficiency,
        efficiency=efficiency,
        moved_bytes=2**26 * used,
        least_bytes=2**25 * used,
        received_bytes=2**20,
        shares=dict.fromkeys(SPENT, 0.0) | {"compute": computing, loss: 1 - computing},
        environment={"processor": "Made up", "command": "tilewright scale 1024"},
    )
    return replace(point, **changed)


def series(name: str, *efficiencies: float, **changed: Any) -> list[ScalingPoint]:
    """Points on 1, 4, 16 workers and so on, all of which lose time to ``name``."""
    return [scaled(4**power, efficiency, name, **changed) for power, efficiency in enumerate(efficiencies)]


def in_storage(points: list[ScalingPoint]) -> list[ScalingPoint]:
    """The same points, with their operands in a storage of 1 GB/s for each worker."""
    storage = {"storage_each_bytes": 1e9}
    return [
        replace(point, where="storage", rates=RATES | storage | {"storage_bytes": 1e9 * point.workers})
        for point in points
    ]
