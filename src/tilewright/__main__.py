"""``python -m tilewright``, and the ``tilewright`` command."""

from __future__ import annotations

import sys

from .errors import TilewrightError, UnavailableError


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr and an exit code."""
    sys.exit(run())


def run() -> int:
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: the commands need the lab extra: pip install 'tilewright[lab]'"
        return _failed(UnavailableError(missing))
    try:
        return app(standalone_mode=False) or 0
    except TilewrightError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to tell
        sys.stderr.close()
        return 0
    except OSError as error:
        return _failed(error)
    except Exception as error:
        if hasattr(error, "format_message"):  # the command-line library's own usage errors
            return _failed(error, error.format_message())
        raise


def _failed(error: Exception, message: str | None = None) -> int:
    print(f"error: {message or error}", file=sys.stderr)
    return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    main()
