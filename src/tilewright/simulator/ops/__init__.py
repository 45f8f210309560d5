"""The opcodes that the microscope knows. To add an opcode, write an entry in one of the files of this package."""

# Importing a file of opcodes enters them in the table.
from . import (  # noqa: F401
    access,
    async_copy,
    cluster_launch,
    compare,
    convert,
    floating,
    integer,
    mbarrier,
    miscellaneous,
    mma,
    tcgen05,
    tcgen05_mma,
    tensor_map_edits,
    warp,
    wgmma,
)
from ._table import TABLE, UnknownInstruction, bind, entry

__all__ = ["TABLE", "UnknownInstruction", "bind", "entry", "opcodes"]


def opcodes() -> list[str]:
    """Return the names of all opcodes that can be run, including control flow."""
    return sorted({name for name, _ in TABLE} | {"bra", "brx", "call", "ret", "exit", "trap", "bar", "barrier"})
