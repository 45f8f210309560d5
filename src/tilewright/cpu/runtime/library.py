"""Finds and loads the library of machine code that was built for this process's processor, if there is one."""

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

# ---- names of functions, and dtypes of elements ----------------------------------------------------------------------

#: The dtypes that compilers lack reach compiled code as integers with the same bits (``cpu.codegen.row_converter``).
STORAGE = {"float16": np.dtype(np.uint16), "bfloat16": np.dtype(np.int16)}

#: In place of a kernel's name, for the functions that belong to none.
NO_KERNEL = "functions"


def code_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype whose machine code multiplies ``dtype``: for unsigned integers the signed integers with as many
    bits, otherwise ``dtype`` itself.

    Modulo 2^bits, sums of products of signed and of unsigned integers are the same, so one compilation is enough.

    >>> code_dtype(np.dtype("uint16")), code_dtype(np.dtype("float32"))
    (dtype('int16'), dtype('float32'))
    """
    return np.dtype(code_name(dtype.name)) if dtype.kind == "u" else dtype


def code_name(dtype: str) -> str:
    """Return ``code_dtype`` for the name of a dtype, which NumPy may not know."""
    return dtype.removeprefix("u")


def storage(dtype: str) -> np.dtype:
    """Return the dtype as which compiled code sees the elements of ``dtype``."""
    return STORAGE.get(dtype) or np.dtype(dtype)


def kernel_name(kernel: str, dtype: str, result: str) -> str:
    """Return the name in a library of a kernel for operands of a dtype and a C of the dtype ``result``.

    >>> kernel_name("cpu/packed", "float32", "float32")
    'kernel cpu/packed float32 float32'
    """
    return f"kernel {kernel} {dtype} {result}"


def products_name(dtype: str) -> str:
    """Return the name in a library of the loop over a batch of small products."""
    return f"products {dtype}"


def function_name(function: str, dtype: str = "") -> str:
    """Return the name in a library of a function that Python calls with numbers and arrays."""
    return f"{function} {dtype}".strip()


# ---- the library -----------------------------------------------------------------------------------------------------

#: Where libraries lie.
BUILT = PACKAGE / "prebuilt" / "built"
#: The files from which a library is built.
SOURCES = (
    *(*sources.MACHINE_CODE, "cpu/runtime/peaks_code.py", "cpu/runtime/facts.py", "cpu/runtime/entries.py"),
    *("prebuilt/translate.py", "prebuilt/support.c", "host/levels.py"),
)
#: What a function returns whose machine code raised an exception, which can only be a lack of memory.
FAILED = -(1 << 63)


@functools.cache  # reads all sources
def sources_key() -> str:
    """Return a key that identifies the sources from which a library is built."""
    return fingerprint(*sources.files(SOURCES))


def built_level(here: Machine) -> InstructionLevel | None:
    """Return the machine's best instruction level, if a library was built for that level and uses vectors as wide as
    the machine's; otherwise None.

    A library of a lower instruction level is never used, because Python computes the sizes of workspace from the tiles
    of the best level.
    """
    arch = here.system.rpartition(" ")[2]
    best = next(iter(instruction_levels(arch, here.isa)), None)
    if best is None or not (BUILT / best.file_name).is_file():
        return None
    vectors = vector_facts(set(best.isa), arch)
    same = (here.vector_bits, here.vector_registers) == (vectors["vector_bits"], vectors["vector_registers"])
    return best if same else None


@functools.cache  # the library stays loaded
def support_function(name: str) -> int | None:
    """Return the address of a function that does not depend on the processor; None if no library was built."""
    level = built_level(machine())
    if level is None or not is_current(level):
        return None
    return ctypes.cast(ctypes.CDLL(str(BUILT / level.file_name))[name], ctypes.c_void_p).value


def is_current(level: InstructionLevel) -> bool:
    """Return whether a library of this instruction level was built from the present sources. The sources of an
    installed package never change."""
    about = BUILT / f"{level.name}.json"
    if not about.is_file():
        return False
    if not sources.is_checkout():
        return True
    known: str = json.loads(about.read_text())["key"]
    return known == sources_key()


class BuiltLibrary:
    """A built library of machine code, with its functions by name."""

    def __init__(self, level: InstructionLevel, folder: Path = BUILT) -> None:
        self.level, self.path = level, folder / level.file_name
        self._dll = ctypes.CDLL(str(self.path))
        self.about: dict[str, Any] = json.loads((folder / f"{level.name}.json").read_text())
        self._functions = frozenset(self.about["functions"])

    def write_settings(self, settings: dict[str, int]) -> None:
        """Write this machine's numbers, such as the sizes of caches and blocks, into the memory of the loaded
        library."""
        for name in self.about["settings"]:
            ctypes.c_int64.in_dll(self._dll, f"tilewright.setting.{name}").value = settings[name]

    def has(self, name: str) -> bool:
        """Return whether the library has a function of this name."""
        return name in self._functions

    def address(self, name: str) -> int:
        """Return the address of the machine code of a function of the library."""
        found = ctypes.cast(self._dll[name], ctypes.c_void_p).value
        assert found is not None
        return found

    @functools.cache  # noqa: B019  # lives as long as the process
    def function(self, name: str) -> BuiltFunction:
        """Return a function of the library, which can be called with numbers and arrays."""
        return BuiltFunction(self._dll[name])


def data_address(words: np.ndarray) -> int:
    """Return the address of the data of a writable 1-D array. ``data_address`` is five times as fast as the attribute
    ``ctypes.data`` of the array."""
    return _addressof(_from_buffer(words)) if words.size else words.ctypes.data


_addressof = ctypes.addressof
_from_buffer: Any = ctypes.c_char.from_buffer  # whose stubs do not know that arrays are buffers


class BuiltFunction:
    """A function of a built library, which Python calls with numbers and arrays. A call raises MemoryLimitError if
    there is not enough memory."""

    def __init__(self, code: Any) -> None:
        self._code = code
        self._code.restype = ctypes.c_int64

    def __call__(self, *arguments: Any) -> int:
        words: list[int] = []
        for argument in arguments:
            if type(argument) is not np.ndarray:
                words.append(argument)
            elif argument.ndim == 1:
                words += (data_address(argument), argument.size)
            else:
                words += (argument.ctypes.data, *argument.shape, *argument.strides)
        if self._code.argtypes is None:
            self._code.argtypes = [ctypes.c_int64] * len(words)
        returned: int = self._code(*words)
        if returned == FAILED:
            raise MemoryLimitError("machine code found no memory for its part of a product")
        return returned
