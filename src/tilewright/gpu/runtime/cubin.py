"""What a compiled kernel needs of a multiprocessor, read from the binary itself.

A cubin is an ELF file. ptxas writes a kernel's registers, stack and launch bounds as attributes in the sections ``.nv.info``
(one for the file, one for each kernel); the sizes of the sections ``.nv.shared.<kernel>`` and ``.nv.constant<bank>`` are
those of the memory that they name. The driver reads the same at launch. It is there for every architecture and needs no tool
of the toolkit; the text that ptxas prints changes with its version. The attributes' numbers are those that ``nvdisasm`` and
``cuobjdump -elf`` name ``EIATTR_…``.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import UnavailableError

# An attribute is a byte of format, a byte of kind, and two bytes: the value, or the size of the payload that follows.
_SIZED = 0x04
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_FRAME_SIZE = 0x11
_PARAMETER_SIZE = 0x19
_REGISTERS = 0x2F

#: Prefix of the sections of constant bank 0, one for each kernel, which hold its arguments.
_ARGUMENTS = ".nv.constant0."

#: Bytes of every block's shared memory that the system uses. From compute capability 9.0 the kernel's section counts them.
_RESERVED_SHARED = 1024


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers and bytes of local memory of a thread, bytes of shared memory of a block.

    ``local_bytes`` is the stack frame: registers that did not fit (spills) and arrays that are indexed at run time.
    ``shared_bytes`` is what the source declares with a size. At launch, dynamic shared memory is added, and on every GPU
    from compute capability 8.0 the kibibyte that the system uses in each block.
    ``constant_bytes`` are ``__constant__`` variables and literals of the module, ``parameter_bytes`` the kernel's arguments.
    ``max_threads`` is the largest block, in threads, if the source sets launch bounds, else None.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    constant_bytes: int
    parameter_bytes: int
    max_threads: int | None


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """The resources of every kernel (``__global__`` function) in a cubin, by its name in the binary.

    Raises UnavailableError without pyelftools, ValueError for bytes that are not a cubin.
    """
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise UnavailableError("pyelftools is not installed; pip install 'tilewright[cuda]'") from None
    try:
        elf = ELFFile(io.BytesIO(cubin))
        sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
        symbols = [symbol.name for symbol in sections[".symtab"].iter_symbols()]
        by_function = _by_function(sections[".nv.info"].data(), symbols)
        # A device function that was not inlined has no section of arguments.
        kernels = [name.removeprefix(_ARGUMENTS) for name in sections if name.startswith(_ARGUMENTS)]
        return {name: _of_kernel(name, sections, by_function) for name in kernels}
    except (ELFError, KeyError, IndexError, struct.error) as error:
        raise ValueError(f"not a cubin: {error}") from error


def _of_kernel(name: str, sections: dict[str, Any], by_function: dict[tuple[int, str], int]) -> Resources:
    own = dict(_attributes(sections[f".nv.info.{name}"].data()))
    bounds = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
    parameters = own.get(_PARAMETER_SIZE)
    shared = sections.get(f".nv.shared.{name}")
    reserved = _RESERVED_SHARED if ".nv.shared.reserved.0" in sections else 0
    return Resources(
        registers=by_function[_REGISTERS, name],
        local_bytes=by_function.get((_FRAME_SIZE, name), 0),
        shared_bytes=shared["sh_size"] - reserved if shared else 0,
        constant_bytes=sum(s["sh_size"] for title, s in sections.items() if _is_constant_of(name, title)),
        parameter_bytes=int.from_bytes(parameters, "little") if parameters else 0,
        max_threads=_product(struct.unpack("<3I", bounds)) if bounds else None,
    )


def _is_constant_of(kernel: str, section: str) -> bool:
    """Whether a section holds constants that the kernel reads, other than its arguments (bank 0)."""
    bank, _, owner = section.removeprefix(".nv.constant").partition(".")
    return section.startswith(".nv.constant") and bank not in ("", "0") and owner in ("", kernel)


def _by_function(info: bytes, symbols: list[str]) -> dict[tuple[int, str], int]:
    """The attributes of the whole file that give a number to a function: (attribute, function) → number."""
    pairs = {}
    for attribute, payload in _attributes(info):
        if attribute in (_REGISTERS, _FRAME_SIZE):
            symbol, value = struct.unpack("<2I", payload)
            pairs[attribute, symbols[symbol]] = value
    return pairs


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of an ``.nv.info`` section: the kind of each, and its payload (or its two bytes of value)."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        value = info[at + 2 : at + 4]
        at += 4
        if form == _SIZED:
            value = info[at : at + size]
            at += size
        yield attribute, value


def _product(sizes: tuple[int, ...]) -> int:
    x, y, z = sizes
    return x * y * z
