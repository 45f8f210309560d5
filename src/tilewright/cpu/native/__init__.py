"""The C front ``tilewright._native``: an extension module that computes products on fast paths; it reads arrays or
tensors and returns their product.

The module uses the headers of Python, NumPy and DLPack, and calls machine code at addresses that Python passes to it:
small and shared products on the CPU (``front.c``), and recorded launches on a GPU (``gpu.c``). ``front()`` returns the
module, or None if none was built for this interpreter. Without the C front, calls take the general path in Python, with
the same results.
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
    """Return a key that identifies the sources of the C front."""
    return fingerprint(*sources.files(SOURCES))


@functools.cache  # in a checkout its sources are read
def front() -> ModuleType | None:
    """The extension module. The result is None if the C front was not built, or was built from other sources than those
    of this checkout.

    The result is also None in a Python without a GIL: the C front is written for such a Python, but was never tested in
    it.
    """
    if "t" in getattr(sys, "abiflags", ""):
        return None
    try:
        found = importlib.import_module("tilewright._native")
    except ImportError:
        return None
    return None if sources.is_checkout() and found.key != front_key() else found
