"""Numbers of the machine for compiled code: sizes of caches and blocks, and numbers of cores.

Code that is compiled in the process has them as constants. Code that is built before reads them where the library keeps
them, because it runs on machines with other caches; the process writes them there when it loads the library.
"""

from __future__ import annotations

from .deferred import Deferred, generator

_read = generator("machine_numbers", "reader")

#: Each number's value on this machine, by its name in the library.
SETTINGS: dict[str, int] = {}


class Setting(Deferred):
    """A number that compiled code, and Python, gets by calling this."""

    def __init__(self, name: str, value: int) -> None:
        self.value = int(value)
        super().__init__(lambda: _read(name, self.value).real)

    def __call__(self) -> int:
        return self.value


def setting(name: str, value: int) -> Setting:
    """A number of the machine under a name that no other has. Kernels that are loaded again, to try another blocking, are
    compiled in the process and leave the library's number as it is."""
    SETTINGS.setdefault(name, int(value))
    return Setting(name, value)
