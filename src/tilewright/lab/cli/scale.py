"""The command ``scale``: simulates how a product scales on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from .application import Console, app, check_writeable

#: The most workers of a cluster, because a simulation with more takes minutes.
MOST_WORKERS = 4096

_Sizes = Annotated[
    str,
    typer.Argument(metavar="SIZE", help="N or MxNxK (C is M×N). Join several sizes by commas, such as 131072,524288."),
]
_Workers = Annotated[str, typer.Option(metavar="LIST", help=f"Numbers of workers, each at most {MOST_WORKERS:,}.")]
_Flops = Annotated[
    str, typer.Option(metavar="RATE", help="Operations per second of a worker, such as 50TFLOPS, 800GFLOPS or 50e12.")
]
_Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="The memory of a worker that blocks of the matrices may take.")
]
_Link = Annotated[
    str,
    typer.Option(metavar="RATE", help="Bytes per second of a worker's network link in each direction, such as 50GB/s."),
]
_Storage = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        help="Bytes per second that can be read from storage; the same number can be written. Give it for each "
        "worker, such as 1GB/s/worker, or for all workers together, such as 200GB/s.",
    ),
]
_Where = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where A, B and C are stored: storage, or workers. With workers they are divided among the memories "
        "of the workers' hosts.",
    ),
]
_Dtype = Annotated[str, typer.Option(metavar="NAME", help="float32 or float64.")]
_Task = Annotated[str, typer.Option(metavar="TIME", help="The time that the scheduler takes for each tile.")]
_Weak = Annotated[
    bool,
    typer.Option(
        "--weak",
        help="Weak scaling: SIZE is the size for the first number of workers. With more workers the size grows, so "
        "that A, B and C take the same memory on each worker.",
    ),
]
_Record = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a record with one line for each number of workers; tilewright report draws it. An existing "
        "FILE is replaced. - is standard output; the table then goes to standard error.",
    ),
]


@app.command("scale")
def scale_command(
    sizes: _Sizes,
    workers: _Workers = "4,16,64,256,1024,4096",
    flops: _Flops = "50TFLOPS",
    memory: _Memory = "141GB",
    link: _Link = "50GB/s",
    storage: _Storage = "1GB/s/worker",
    where: _Where = "storage",
    dtype: _Dtype = "float32",
    task: _Task = "1ms",
    weak: _Weak = False,
    json_file: _Record = None,
) -> None:
    """Simulate how a product scales on a cluster with given rates.

    Nothing is multiplied. For each number of workers, the product is planned as for a real cluster, and its run is
    simulated: every tile, the bytes of every block, and the time in which workers wait.

    Efficiency is the number of operations of the product, divided by the number that all workers could do in the same
    time. The table shows the bytes that a worker moves into and out of its memory, and beside them the fewest bytes
    that its tiles need. If more workers would make the product less than 10 % faster, the plan uses fewer workers.

    Example: tilewright scale 131072 --workers 4,16,64 --where workers
    """
    from ...host.steps import announced
    from ...large.streaming.places.places import parse_bytes
    from ...records.scaling import scaling_line, write_scaling
    from ..inputs.environment import environment
    from ..inputs.options import parse_seconds, parse_sizes
    from ..scale.scaling import ClusterRates, scaling_point, weak_shape
    from ..terminal import show_scaling, steps_shown

    check_writeable("json", json_file, dash=True)
    counts = _counts(workers)
    each = re.fullmatch(r"(.+?)/worker", storage.strip())
    cluster = ClusterRates(
        flops=parse_rate("flops", flops, "FLOPS"),
        memory=parse_bytes("memory", memory),
        link=parse_rate("link", link, "B/s"),
        storage=parse_rate("storage", each[1] if each else storage, "B/s"),
        shared=each is None,
        task_s=parse_seconds("task", task),
    )
    shapes, facts, points = parse_sizes(sizes), environment(operands="none: simulated"), []
    if not all(min(shape) for shape in shapes):
        raise UsageError("sizes: must be above 0")
    with steps_shown(Console(stderr=True)):
        for shape in shapes:
            for count in counts:
                here, first = (weak_shape(shape, counts[0], count), shape) if weak else (shape, None)
                with announced(f"simulating {count:,} workers"):
                    points.append(
                        scaling_point(here, dtype, count, cluster, where, grown_from=first, environment=facts)
                    )
    to_standard_output = json_file is not None and str(json_file) == "-"
    show_scaling(Console(stderr=to_standard_output), points)
    if to_standard_output:
        print(*map(scaling_line, points), sep="\n")
    elif json_file is not None:
        write_scaling(json_file, points)


def parse_rate(name: str, text: str, unit: str) -> float:
    """Parse a rate per second, with or without its ``unit``. Raises UsageError, which names the option, if the text is
    no rate.

    >>> parse_rate("flops", "50TFLOPS", "FLOPS"), parse_rate("link", "1.5 GB/s", "B/s"), parse_rate("link", "50e9", "B/s")
    (50000000000000.0, 1500000000.0, 50000000000.0)
    """
    match = re.fullmatch(rf"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMGTP]?)({re.escape(unit)})?", text.strip(), re.IGNORECASE)
    value = float(match[1]) * 1000 ** " KMGTP".index((match[2] or " ").upper()) if match else 0.0
    if not 1 <= value <= 1e24:
        raise UsageError(f"{name}: must be a rate such as 50G{unit}, got {text!r:.80}")
    return value


def _counts(text: str) -> list[int]:
    """Numbers of workers, each once, in the order given."""
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"\d{1,9}", item) and 1 <= int(item) <= MOST_WORKERS for item in items):
        raise UsageError(f"workers: must be numbers from 1 to {MOST_WORKERS:,}, joined by commas, got {text!r:.80}")
    return list(dict.fromkeys(map(int, items)))
