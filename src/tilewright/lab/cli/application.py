"""Has the code that all commands share: the application object, the output and the options.

Control characters and Rich's markup in the name of a file or kernel have no effect on the terminal. Output files are
checked before the work begins.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TextIO

import rich.console
import typer
import typer.core
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ...errors import UsageError
from ...records.legible import json_escaped, legible

# ---- the application -------------------------------------------------------------------------------------------------

app = typer.Typer(
    name="tilewright",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help lists its options in groups. The group of an option is its ``rich_help_panel``; options
    without one come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then a section for each group in the order in which the function declares its options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            kind = "Arguments" if param.param_type_name == "argument" else "Other options"
            if (entry := param.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or kind, []).append(entry)
        for title, entries in groups.items():
            with formatter.section(title):
                formatter.write_dl(entries)


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


# ---- output ----------------------------------------------------------------------------------------------------------


class Console(rich.console.Console):
    """Rich's console, which prints control characters in texts as escapes. Rich's own control codes still work.

    Strings are escaped before their width is measured, so that columns are aligned; ``render`` escapes all other
    objects. An ``:emoji:`` code in a name is printed unchanged.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"emoji": False, **settings})

    def render_str(self, text: str, **settings: Any) -> Text:
        """Does what Rich's method does, with control characters shown as escapes."""
        return super().render_str(legible(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Does what Rich's method does, with control characters shown as escapes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(legible(segment.text), segment.style)


def say(line: str, file: TextIO | None = None) -> None:
    """Print a line to standard output or ``file``."""
    print(legible(line), file=file)


# ---- options, and files to write -------------------------------------------------------------------------------------

Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write JSON to this file instead of printing; - is standard output."),
]

Param = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LIST",
        help="Set a parameter of the kernels, or try several values: TILE=8,16,32. May be repeated.",
    ),
]


def fraction(name: str, text: str) -> float:
    """Convert a percentage to a fraction. Raises UsageError, which names the option, if the text is no percentage."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%?", text.strip())
    if match is None or float(match[1]) >= 100:
        raise UsageError(f"{name}: must be a percentage from 0% to below 100%, such as 3%, got {text!r}")
    return float(match[1]) / 100


def check_writeable(name: str, path: Path | None, *, dash: bool = False, spare: Iterable[Path | None] = ()) -> None:
    """Raise UsageError, before the work begins, if a file cannot be written or is one of ``spare``, the files that the
    command reads."""
    if path is None or (dash and str(path) == "-"):
        return
    if str(path) == "-":
        raise UsageError(f"{name}: must be a file, got -")
    if path.is_dir() or not path.parent.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise UsageError(f"{name}: {path} cannot be written: {wrong}")
    if Path(os.path.realpath(path)).is_symlink():
        raise UsageError(f"{name}: {path} cannot be written: it is a link that leads back to itself")
    if path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in spare):
        raise UsageError(f"{name}: {path} is read by this command, and would be overwritten")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{name}: {path} cannot be written: permission denied")


def check_different_files(**files: Path | None) -> None:
    """Raise UsageError if two options name the same file; standard output may be named twice."""
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None or str(path) == "-":
            continue
        other = seen.setdefault(Path(os.path.realpath(path)), name)  # a loop of links raises no error here
        if other != name:
            raise UsageError(f"{name}: {path} is the file of {other} too")


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON, with control characters escaped; the path - means standard output."""
    text = json_escaped(json.dumps(data, indent=1, ensure_ascii=False, default=str))
    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text + "\n", encoding="utf-8")
