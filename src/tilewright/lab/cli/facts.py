"""The commands ``info``, which shows facts about this machine, and ``ladder``, which lists the kernels."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from .application import Console, Json, app, check_writeable, write_json


@app.command("info")
def info_command(
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure the peak, the bandwidth and the first call again, instead of showing the cached figures.",
        ),
    ] = False,
    json_file: Json = None,
) -> None:
    """Show the facts and the measured rates of this machine.

    The peak of arithmetic, the bandwidth of memory, and the time that a program waits for its first product are
    measured. The other facts come from the operating system.
    """
    from ...cpu.engine import dots
    from ...cpu.runtime.machine_code import describe_code
    from ...cpu.runtime.peaks import roofs
    from ...errors import UnavailableError
    from ...gpu.runtime.compilations import describe_archives
    from ...host.limits import get_threads, why_threads
    from ...host.machine import VARIABLE, machine
    from ...kernels import blocking
    from ..bench.library import known_first_call, measure_first_call
    from ..terminal import show_facts, steps_shown

    check_writeable("json", json_file, dash=True)
    threads, missing = get_threads(), ""
    try:
        with steps_shown(Console(stderr=True)):
            measured = roofs(fresh=measure)
    except UnavailableError as error:
        if measure:
            raise
        measured, missing = [], f"not measured: {error}"
    first = measure_first_call() if measure else known_first_call()
    narrow = dots.instruction_names(machine().isa, machine().vector_bits or 128)
    if json_file:
        known = {"roofs": measured, "roofs_missing": missing, "threads": threads, "first_call": first and asdict(first)}
        known["blocking"] = {
            "numbers": blocking.in_force().numbers,
            "tuned": (kept := blocking.stored_blocking()) and kept.found,
        }
        known["narrow_products"], known["machine_code"] = narrow, describe_code()
        known["gpu_kernels"] = describe_archives()
        write_json(json_file, machine().as_dict() | known)
    else:
        show_facts(
            Console(),
            [
                *([("described by", f"${VARIABLE}: {os.environ[VARIABLE]}")] if VARIABLE in os.environ else []),
                *machine().describe(),
                ("threads", f"{threads} ({why_threads()})"),
                ("blocking", blocking.describe()),
                ("narrow products", narrow),
                ("machine code", describe_code()),
                ("GPU kernels", describe_archives()),
            ],
        )
        start = first.describe() if first else [("first product", "not measured here yet: tilewright info --measure")]
        roof_rows = [(r["what"], r["text"]) for r in measured] or [("peaks", missing)]
        show_facts(Console(), [*roof_rows, *start], title="\nmeasured")


@app.command("ladder")
def ladder_command(json_file: Json = None) -> None:
    """List all kernels in reading order, each with its idea.

    The ladder comes first, then the kernels of the engine, which the library uses, then the references, which are
    vendors' libraries.
    """
    from ...kernels import Kernel
    from ...kernels.catalog import catalog, cuda_catalog, cuda_engine
    from ...kernels.cuda_kernel import CudaKernel
    from ..terminal import show_facts

    check_writeable("json", json_file, dash=True)
    cpu = catalog().values()
    parts: dict[str, list[Kernel | CudaKernel]] = {
        "": [*(k for k in cpu if k.is_rung), *cuda_catalog().values()],
        "\nthe engine, by shape": [k for k in cpu if not (k.is_rung or k.is_reference)],
        "\nthe engine on GPUs, by predicted time": list(cuda_engine().values()),
        "\nreferences": [k for k in cpu if k.is_reference],
    }
    if json_file:
        kernels = [kernel for part in parts.values() for kernel in part]
        write_json(json_file, [{"name": k.name, "device": k.device, "params": k.params} | k.about for k in kernels])
        return
    for title, part in parts.items():
        show_facts(Console(), [(k.name, k.idea) for k in part], title=title)
