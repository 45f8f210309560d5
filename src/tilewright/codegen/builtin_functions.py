"""Machine code as a function that Python calls like a built-in one, without unpacking its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class _MethodDef(ctypes.Structure):
    """PyMethodDef of Python's C interface."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_METH_FASTCALL = 0x80
#: Definitions of functions, which Python reads for as long as it runs.
_definitions: list[_MethodDef] = []


def define_function(name: str, code: int) -> Callable[[Any], Callable[..., Any]]:
    """A function that binds the machine code at address ``code`` to an object.

    The code is ``PyObject *code(PyObject *bound, PyObject *const *args, Py_ssize_t count)``.
    """
    method = _MethodDef(name.encode(), code, _METH_FASTCALL, None)
    _definitions.append(method)

    def bind(bound: Any) -> Callable[..., Any]:
        create = ctypes.pythonapi.PyCFunction_NewEx
        create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        function: Callable[..., Any] = create(ctypes.addressof(method), bound, None)
        return function

    return bind
