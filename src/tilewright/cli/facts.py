"""``info`` and ``ladder``: what there is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from . import app
from .options import Json, check_writeable, write_json


@app.command()
def info(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure peak and bandwidth anew; they are remembered otherwise.")
    ] = False,
    json_file: Json = None,
) -> None:
    """What this machine is, and what it reaches."""
    from ..machine import machine
    from ..peaks import roofs
    from ..terminal import show_facts

    check_writeable("json", json_file, dash=True)
    measured = roofs(fresh=measure)
    if json_file:
        write_json(json_file, machine().as_dict() | {"roofs": measured})
    else:
        show_facts(Console(), machine().describe())
        show_facts(Console(), [(r["what"], r["text"]) for r in measured], title="\nmeasured")


@app.command()
def ladder(json_file: Json = None) -> None:
    """The kernels in reading order, each with its idea."""
    from ..kernels import CudaKernel, Kernel, catalog, cuda_catalog
    from ..terminal import show_facts

    check_writeable("json", json_file, dash=True)
    found: list[Kernel | CudaKernel] = [*catalog().values(), *cuda_catalog().values()]
    kernels = sorted(found, key=lambda k: k.is_reference)
    if json_file:
        write_json(json_file, [{"name": k.name, "device": k.device, "params": k.params} | k.about for k in kernels])
    else:
        show_facts(Console(), [(k.name, k.idea) for k in kernels])
