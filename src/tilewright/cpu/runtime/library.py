"""The library of machine code that this process uses, if one was built for its processor."""

from __future__ import annotations

import ctypes
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import MemoryLimitError
from ...host import sources
from ...host.disk import fingerprint
from ...host.levels import InstructionLevel, instruction_levels
from ...host.machine import Machine, machine, vector_facts
from ...host.sources import PACKAGE

#: Where libraries lie.
BUILT = PACKAGE / "prebuilt" / "built"
#: The files from which a library is built.
SOURCES = (
    *(*sources.MACHINE_CODE, "cpu/runtime/*_code.py", "cpu/runtime/facts.py", "cpu/runtime/entries.py"),
    *("prebuilt/translate.py", "prebuilt/support.c", "host/levels.py"),
)
#: What a function returns whose machine code raised an exception, which can only be a lack of memory.
FAILED = -(1 << 63)


@functools.cache
def sources_key() -> str:
    """A key of the sources of a library."""
    return fingerprint(*sources.files(SOURCES))


def built_level(here: Machine) -> InstructionLevel | None:
    """The best level of a machine, if a library was built for it and has its vectors.

    None of a lower level: Python computes the sizes of workspace from the tiles of this machine's instructions.
    """
    arch = here.system.rpartition(" ")[2]
    best = next(iter(instruction_levels(arch, here.isa)), None)
    if best is None or not (BUILT / best.file_name).is_file():
        return None
    vectors = vector_facts(set(best.isa), arch)
    same = (here.vector_bits, here.vector_registers) == (vectors["vector_bits"], vectors["vector_registers"])
    return best if same else None


@functools.cache
def support_function(name: str) -> int | None:
    """The address of a function that does not depend on the processor; None where no library was built."""
    level = built_level(machine())
    if level is None or not is_current(level):
        return None
    return ctypes.cast(ctypes.CDLL(str(BUILT / level.file_name))[name], ctypes.c_void_p).value


def is_current(level: InstructionLevel) -> bool:
    """Whether there is a library of a level that was built from these sources. Those of an installed package do not
    change."""
    about = BUILT / f"{level.name}.json"
    if not about.is_file():
        return False
    if not sources.is_checkout():
        return True
    known: str = json.loads(about.read_text())["key"]
    return known == sources_key()


class BuiltLibrary:
    """A built library: its functions by name."""

    def __init__(self, level: InstructionLevel, folder: Path = BUILT) -> None:
        self.level, self.path = level, folder / level.file_name
        self._dll = ctypes.CDLL(str(self.path))
        self.about: dict[str, Any] = json.loads((folder / f"{level.name}.json").read_text())
        self._functions = frozenset(self.about["functions"])

    def set_numbers(self, numbers: dict[str, int]) -> None:
        """Write the numbers of this machine where the library reads them."""
        for name in self.about["settings"]:
            ctypes.c_int64.in_dll(self._dll, f"tilewright.setting.{name}").value = numbers[name]

    def has(self, name: str) -> bool:
        """Whether it has a function."""
        return name in self._functions

    def address(self, name: str) -> int:
        """Where a function's machine code is."""
        found = ctypes.cast(self._dll[name], ctypes.c_void_p).value
        assert found is not None
        return found

    @functools.cache  # noqa: B019  # lives as long as the process
    def function(self, name: str) -> BuiltFunction:
        """A function that is called with numbers and arrays."""
        return BuiltFunction(self._dll[name])


def address_of(words: np.ndarray) -> int:
    """Where a row of numbers lies that can be written: a fifth of the time of ``words.ctypes.data``."""
    return _address(_from_buffer(words)) if words.size else words.ctypes.data


_address = ctypes.addressof
_from_buffer: Any = ctypes.c_char.from_buffer  # whose stubs do not know that arrays are buffers


class BuiltFunction:
    """A function of a library, called with numbers and arrays. Raises MemoryLimitError where it finds no memory."""

    def __init__(self, code: Any) -> None:
        self._code = code
        self._code.restype = ctypes.c_int64

    def __call__(self, *arguments: Any) -> int:
        words: list[int] = []
        for argument in arguments:
            if type(argument) is not np.ndarray:
                words.append(argument)
            elif argument.ndim == 1:
                words += (address_of(argument), argument.size)
            else:
                words += (argument.ctypes.data, *argument.shape, *argument.strides)
        if self._code.argtypes is None:
            self._code.argtypes = [ctypes.c_int64] * len(words)
        returned: int = self._code(*words)
        if returned == FAILED:
            raise MemoryLimitError("machine code found no memory for its part of a product")
        return returned
