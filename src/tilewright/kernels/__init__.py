"""The ladder: one kernel a file. ``catalog`` finds them; nothing lists them."""

from .catalog import NUMERIC, Kernel, catalog, find, kernel, load_file, reference

__all__ = ["NUMERIC", "Kernel", "catalog", "find", "kernel", "load_file", "reference"]
