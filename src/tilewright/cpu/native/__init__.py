"""The C front ``tilewright._native``: short calls enter it with arrays or tensors, and leave it with their product.

It reads them by the headers of Python, NumPy and the standard of DLPack, and calls machine code at addresses that Python
gives: small and shared products on the CPU (``front.c``), recorded launches on a GPU (``gpu.c``). ``front()`` is the module,
or None where none was built for this interpreter: then Python takes the long way, with the same results.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

from ...host import sources
from ...host.disk import fingerprint

#: The files from which it is built.
SOURCES = ("cpu/native/*.c", "cpu/native/*.h")


def front_key() -> str:
    """A key of the sources."""
    return fingerprint(*sources.files(SOURCES))


@functools.cache  # in a checkout its sources are read
def front() -> ModuleType | None:
    """The extension module; None where it was not built, or from other sources than those of this checkout.

    None also without a GIL: it is written for that, but was never tested there.
    """
    if "t" in getattr(sys, "abiflags", ""):
        return None
    try:
        found = importlib.import_module("tilewright._native")
    except ImportError:
        return None
    return None if sources.is_checkout() and found.key != front_key() else found
