"""The command ``tilewright``, also ``python -m tilewright``."""

from __future__ import annotations

import io
import os
import runpy
import sys
import warnings
from pathlib import Path

from .errors import CacheWarning, TilewrightError, UnavailableError, UsageError, how_to_install
from .records.legible import legible

_default_format = warnings.formatwarning


def main() -> None:
    """Run the command line. An error that a user can cause becomes one line on stderr and an exit code."""
    if sys.argv[1:2] == ["run"] and sys.argv[2:] and sys.argv[2] not in ("-h", "--help"):
        run_accelerated(sys.argv[2:])
        return
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # its descriptor is closed: the next file that is opened would get its number
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115  # until the end
    if isinstance(sys.stdout, io.TextIOWrapper):  # where "×" cannot be encoded, print its escape code and do not fail
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _in_one_line
    sys.exit(run_command_line())


def run_accelerated(arguments: list[str]) -> None:
    """``tilewright run``: run a script, or with ``-m`` a module, as ``python`` does, while Tilewright computes NumPy's
    products.

    This command needs no extra. The program's own errors and exit code are unchanged.
    """
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    try:
        if not sys.argv or (not is_module and sys.argv[0].startswith("-")):
            raise UsageError("usage: tilewright run SCRIPT [ARGUMENTS], or: tilewright run -m MODULE [ARGUMENTS]")
        if not is_module and not Path(sys.argv[0]).exists():
            raise UsageError(f"there is no file {sys.argv[0]}")
        from .api.numpy_loops import accelerate_numpy

        accelerate_numpy()
    except TilewrightError as error:
        sys.exit(_failed(error))
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else str(Path(sys.argv[0]).resolve().parent)  # noqa: PTH109
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def run_command_line() -> int:
    """Run the command line and return the exit code."""
    try:
        from .lab.cli import app
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: the commands need the lab extra: {how_to_install('lab')}"
        return _failed(UnavailableError(missing))
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()
    except TilewrightError as error:
        return _failed(error)
    except (BrokenPipeError, SystemExit):  # the reader of our output closed its end: no message can arrive
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise the flush at exit would fail as well
        return 0
    except OSError as error:
        return _failed(error, f"{error.filename}: {error.strerror}" if error.filename else None)
    except MemoryError as error:
        return _failed(error, f"not enough memory: {error}")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if hasattr(error, "format_message"):  # the command-line library's own usage errors
            return _failed(error, error.format_message())
        raise
    return code


def _in_one_line(message: Warning | str, category: type[Warning], *where: object, **more: object) -> str:
    """A CacheWarning without the source line that raised it, which tells a user nothing; other warnings as by default."""
    if issubclass(category, CacheWarning):
        return f"warning: {message}\n"
    return _default_format(message, category, *where, **more)  # type: ignore[arg-type]


def _failed(error: BaseException, message: str | None = None) -> int:
    text = str(message or error)
    if not getattr(error, "multiline", False):
        text = " ".join(text.split())  # one line, even if a quoted text had several
    print("error:", legible(text), file=sys.stderr)
    return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    main()
