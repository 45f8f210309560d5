"""The commands, one file for each subject. The commands call other modules and compute nothing themselves."""

from . import facts, multiply, gram, scale, bench, tune, explain, records, run  # noqa: F401, I001 (in the order of the help)
from .application import app

__all__ = ["app"]
