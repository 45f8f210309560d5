"""Intrinsics for compiled code that Python calls directly: they read Python's objects and call other machine code.

Addresses are ``void*``; nothing is checked. Without the GIL, only ``restore_thread`` and functions that touch no object may
be called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from .vectors import I8, I32, I64

_ADDRESS = I8.as_pointer()
_MATRIX = types.Array(types.uint8, 2, "A")


def _read(builder: Any, kind: Any, address: Any, offset: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(address, [offset]), kind.as_pointer()))


def _reader(result: Any, kind: Any) -> Any:
    @intrinsic
    def read(typingctx: Any, address: Any, offset: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            value = _read(builder, kind, *args)
            return builder.sext(value, I64) if kind is I32 else value

        return result(types.voidptr, types.intp), codegen

    return read


@intrinsic
def _behind(typingctx: Any, address: Any, offset: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.gep(args[0], [args[1]])

    return types.voidptr(types.voidptr, types.intp), codegen


@intrinsic
def _integer(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.ptrtoint(args[0], I64)

    return types.intp(types.voidptr), codegen


@intrinsic
def _write_words(typingctx: Any, values: Any) -> Any:  # noqa: ARG001
    """Store the 64-bit numbers of the tuple ``values`` on the stack; returns their address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        place = cgutils.alloca_once(builder, I64, size=len(values))
        for at, value in enumerate(cgutils.unpack_tuple(builder, args[0])):
            builder.store(value, builder.gep(place, [I64(at)]))
        return builder.bitcast(place, _ADDRESS)

    return types.voidptr(values), codegen


@intrinsic
def _call(typingctx: Any, code: Any, itemsize: Any, a: Any, b: Any, c: Any, numbers: Any) -> Any:  # noqa: ARG001
    """Call a function that Numba compiled, at address ``code``, for three matrices and a tuple of numbers.

    Each matrix is (address, rows, columns, two strides in bytes). Returns whether the function ran to its end: it may fail
    to allocate memory.
    """
    kinds = [_MATRIX] * 3 + list(numbers)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        code, itemsize, *matrices, rest = args
        values = [_matrix(context, builder, itemsize, matrix) for matrix in matrices]
        values += cgutils.unpack_tuple(builder, rest)
        convention = context.call_conv
        kind = convention.get_function_type(types.none, kinds)
        callee = builder.bitcast(code, kind.as_pointer())
        status, _ = convention.call_function(builder, callee, types.none, kinds, values)
        return status.is_ok

    return types.boolean(code, itemsize, a, b, c, numbers), codegen


def _matrix(context: Any, builder: Any, itemsize: Any, matrix: Any) -> Any:
    data, rows, columns, row, column = cgutils.unpack_tuple(builder, matrix)
    view = context.make_array(_MATRIX)(context, builder)
    populate_array(
        view,
        data=builder.bitcast(data, view.data.type),
        shape=cgutils.pack_array(builder, [rows, columns]),
        strides=cgutils.pack_array(builder, [row, column]),
        itemsize=itemsize,
        meminfo=None,
    )
    return view._getvalue()


def _python_function(name: str, result: Any, arguments: list[Any]) -> Any:
    """A function of Python's own C interface as an intrinsic."""
    llvm = {types.void: ir.VoidType(), types.voidptr: _ADDRESS}

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(llvm[result], [llvm[argument] for argument in arguments])
        value = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        return context.get_dummy_value() if result is types.void else value

    if arguments:

        @intrinsic
        def call(typingctx: Any, x: Any) -> Any:  # noqa: ARG001
            return result(*arguments), emit
    else:

        @intrinsic
        def call(typingctx: Any) -> Any:  # noqa: ARG001
            return result(), emit

    return call


@intrinsic
def _new_array(typingctx: Any, create: Any, kind: Any, dtype: Any, axes: Any, shape: Any) -> Any:  # noqa: ARG001
    """``PyArray_NewFromDescr``, whose address is ``create``; it takes over a reference to ``dtype``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        create, kind, dtype, axes, shape = args
        none = ir.Constant(_ADDRESS, None)
        function = ir.FunctionType(_ADDRESS, [_ADDRESS, _ADDRESS, I32, _ADDRESS, _ADDRESS, _ADDRESS, I32, _ADDRESS])
        callee = builder.bitcast(create, function.as_pointer())
        return builder.call(callee, [kind, dtype, builder.trunc(axes, I32), shape, none, none, I32(0), none])

    return types.voidptr(*[types.voidptr] * 3, types.intp, types.voidptr), codegen


@intrinsic
def _unwrapped(typingctx: Any, unwrap: Any, array: Any) -> Any:  # noqa: ARG001
    """``PyArray_Return``, whose address is ``unwrap``: an array without axes becomes a scalar."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        function = ir.FunctionType(_ADDRESS, [_ADDRESS])
        return builder.call(builder.bitcast(args[0], function.as_pointer()), [args[1]])

    return types.voidptr(types.voidptr, types.voidptr), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
word: Callable[..., int] = _reader(types.intp, I64)
number: Callable[..., int] = _reader(types.intp, I32)
follow: Callable[..., Any] = _reader(types.voidptr, _ADDRESS)
behind: Callable[..., Any] = _behind
integer: Callable[..., int] = _integer
words: Callable[..., Any] = _write_words
call: Callable[..., bool] = _call
new_array: Callable[..., Any] = _new_array
unwrapped: Callable[..., Any] = _unwrapped
new_reference: Callable[..., None] = _python_function("Py_IncRef", types.void, [types.voidptr])
drop_reference: Callable[..., None] = _python_function("Py_DecRef", types.void, [types.voidptr])
save_thread: Callable[..., Any] = _python_function("PyEval_SaveThread", types.voidptr, [])
restore_thread: Callable[..., None] = _python_function("PyEval_RestoreThread", types.void, [types.voidptr])
