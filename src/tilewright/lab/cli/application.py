"""The application, to which every module of commands adds its own."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="tilewright",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        import tilewright

        print(f"tilewright {tilewright.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def commands(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Multiply matrices as fast as the machine allows, and see why.

    Begin with: tilewright info, then: tilewright bench --sizes 64:1024:x4
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)
