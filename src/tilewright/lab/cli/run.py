"""``run``: a program whose products of NumPy are computed by Tilewright."""

from __future__ import annotations

from .application import app


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_command(program: list[str]) -> None:
    """Run a Python program while Tilewright multiplies for NumPy.

    PROGRAM is a script, or -m and a module, and its arguments. Its a @ b are computed by tilewright.accelerate_numpy.
    """
    from ...errors import UsageError

    # tilewright.__main__ runs the program before it reads any option, so that no program needs the lab extra.
    raise UsageError(f"{' '.join(program)}: run comes first on the command line, as in: tilewright run script.py")
