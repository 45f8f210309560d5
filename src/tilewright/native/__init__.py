"""The C front ``tilewright._native`` reads what it is called with by the layouts that Python's and NumPy's headers give, and
calls machine code at the addresses that it is told.

``front()`` is the module, or None where none was built for this interpreter: then Python takes the long way, with the same
results.
"""

from __future__ import annotations

import functools
from types import ModuleType

from ..host import sources
from ..host.disk import fingerprint

#: The files from which it is built.
SOURCES = ("native/*.c", "native/*.h")


def front_key() -> str:
    """A key of the sources."""
    return fingerprint(*sources.files(SOURCES))


@functools.cache
def front() -> ModuleType | None:
    """The extension module; None where it was not built, or from other sources than those of this checkout."""
    try:
        from .. import _native
    except ImportError:
        return None
    is_checkout = (sources.PACKAGE.parents[1] / "pyproject.toml").is_file()
    found: ModuleType = _native
    return None if is_checkout and found.key != front_key() else found
