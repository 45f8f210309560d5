"""A capsule of DLPack's exchange interface, with functions of this process."""

from __future__ import annotations

import ctypes
from typing import Any

#: Tables of interfaces, to which capsules point.
_tables: list[Any] = []


class Interface(ctypes.Structure):
    """DLPackExchangeAPI of the standard."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("unused", ctypes.c_void_p * 4),
        ("tensor_from_object", ctypes.c_void_p), ("current_stream", ctypes.c_void_p),
    )  # fmt: skip


def exchange_capsule(tensor_from_object: Any, current_stream: Any, major: int = 1) -> Any:
    """The capsule; the functions are those of ctypes, or None."""
    table = Interface(major, 3)
    for name, function in (("tensor_from_object", tensor_from_object), ("current_stream", current_stream)):
        setattr(table, name, None if function is None else ctypes.cast(function, ctypes.c_void_p).value)
    _tables.append(table)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.addressof(table), b"dlpack_exchange_api", None)
