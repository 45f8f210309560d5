"""``python -m tilewright``, and the ``tilewright`` command."""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path

from .errors import CacheWarning, TilewrightError, UnavailableError
from .records.legible import legible

_default_format = warnings.formatwarning


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr and an exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # its descriptor is closed: the next file that is opened would get its number
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115  # until the end
    if isinstance(sys.stdout, io.TextIOWrapper):  # where "×" cannot be encoded, print its escape code and do not fail
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _in_one_line
    sys.exit(run_command_line())


def run_command_line() -> int:
    """Run the command line; returns the exit code."""
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: the commands need the lab extra: pip install 'tilewright[lab]'"
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
