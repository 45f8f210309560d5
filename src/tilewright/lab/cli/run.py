"""The command ``run``: runs a program whose NumPy products are computed by Tilewright."""

from __future__ import annotations

from typing import Annotated

import typer

from .application import app

_Program = Annotated[
    list[str],
    typer.Argument(metavar="PROGRAM", help="A script, or -m and a module, followed by the program's own arguments."),
]


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_command(program: _Program) -> None:
    """Run a Python program while Tilewright multiplies for NumPy.

    Every a @ b of NumPy arrays in the program is computed as after a call of tilewright.accelerate_numpy().
    """
    from ...errors import UsageError

    # tilewright.__main__ runs the program before it reads any option, so that no program needs the lab extra.
    raise UsageError(f"{' '.join(program)}: run comes first on the command line, as in: tilewright run script.py")
