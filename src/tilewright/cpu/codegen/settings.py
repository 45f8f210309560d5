"""Holds the numbers of the machine that compiled code uses: sizes of caches and blocks, and numbers of cores.

Code that is compiled in this process contains these numbers as constants. Code that was built before, as a library,
runs on machines with different caches; so it reads these numbers from the library's memory. The process writes the
numbers to the library's memory when it loads the library.
"""

from __future__ import annotations

from .deferred import Deferred, generator

_read = generator("machine_numbers", "reader")

#: Each number's value on this machine, by its name in the library.
SETTINGS: dict[str, int] = {}


class Setting(Deferred):
    """A number of the machine. A number of the machine, which Python and compiled code get by calling this object."""

    def __init__(self, name: str, value: int) -> None:
        self.value = int(value)
        super().__init__(lambda: _read(name, self.value).real)

    def __call__(self) -> int:
        return self.value


def setting(name: str, value: int) -> Setting:
    """Declare a number of the machine under a unique name.

    Kernels that are loaded a second time, to try other block sizes, are compiled in the process; they do not change the
    number in the library."""
    SETTINGS.setdefault(name, int(value))
    return Setting(name, value)
