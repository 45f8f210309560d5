"""Lets compiled code read a ``setting``, as a constant or from the library's memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import I64

#: What the names of a library's numbers begin with.
PREFIX = "tilewright.setting."
#: Whether code is built for other processes; see ``prebuilt``.
for_library = False


def reader(name: str, value: int) -> Any:
    """Return a function without arguments, for compiled code, that returns the number of a ``setting``."""

    @intrinsic
    def read(typingctx: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            if not for_library:
                return I64(value)
            return builder.load(_place(builder, name))

        return types.intp(), codegen

    return read


def _place(builder: Any, name: str) -> Any:
    known = builder.module.globals.get(PREFIX + name)
    return known or ir.GlobalVariable(builder.module, I64, PREFIX + name)  # defined by the library's own module
