"""The commands, one file a subject; no arithmetic here."""

from . import facts, multiply, bench, tune, explain, records  # noqa: F401, I001 (in the order of the help)
from .application import app

__all__ = ["app"]
