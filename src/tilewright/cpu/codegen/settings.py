"""Numbers of the machine that compiled code uses: sizes of caches and blocks, and numbers of cores.

Code that is compiled in the process has them as constants. Code that was built before reads them from the library's
memory, because it runs on machines with different caches. The process writes them there when it loads the library.
"""

from __future__ import annotations

from .deferred import Deferred, generator

_read = generator("machine_numbers", "reader")

#: Each number's value on this machine, by its name in the library.
SETTINGS: dict[str, int] = {}


class Setting(Deferred):
    """A number of the machine. Compiled code and Python get the number by calling this object."""

    def __init__(self, name: str, value: int) -> None:
        self.value = int(value)
        super().__init__(lambda: _read(name, self.value).real)

    def __call__(self) -> int:
        return self.value


def setting(name: str, value: int) -> Setting:
    """A number of the machine under a unique name.

    Kernels that are loaded again, to try another blocking, are compiled in the process; they do not change the number
    in the library."""
    SETTINGS.setdefault(name, int(value))
    return Setting(name, value)
