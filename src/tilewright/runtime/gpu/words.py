"""What machine code and Python both know of GPU calls: sizes of a launch's program, words of tensors, and facts."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from ...codegen.builtin_functions import define_function
from ..cpu.library import support_function

#: Bytes of a tensor map, the most bytes of a launch's arguments, the most arguments of a launch, and the most operands.
MAP_BYTES, MOST_BYTES, MOST_ARGUMENTS, MOST_OPERANDS = 128, 4096, 64, 8
#: Words of a matrix behind the addresses, in what ``read`` returns of lists.
MATRIX_WORDS = 6


#: Functions by name, and what keeps their machine code in memory.
_known: dict[str, Callable[[Any], Callable[..., Any]]] = {}
_engines: list[Any] = []


class TensorWord(enum.IntEnum):
    """Words of a ``DLTensor``: the address, the device's type and number, the number of axes and the dtype, the addresses of
    shape and strides, and the bytes before the first element."""

    DATA, DEVICE, AXES, SHAPE, STRIDES, OFFSET = range(6)


TENSOR_WORDS = len(TensorWord)


class Facts(NamedTuple):
    """What functions that read tensors need: addresses of two types, of the interface's functions
    ``dltensor_from_py_object_no_sync`` and ``current_work_stream``, and of objects: the dictionary of what is known, names
    of attributes, the function that tells whether gradients are recorded, the function for everything else, False and None,
    and an object with an attribute and its usual value."""

    first_type: int
    second_type: int
    view: int
    stream_of: int
    known: int
    requires_grad: int
    grad_enabled: int
    is_neg: int
    otherwise: int
    false: int
    none: int
    state: int
    attribute: int
    usual: int


def python_function(name: str, emit: Callable[[Any], None]) -> Callable[[Any], Callable[..., Any]]:
    """A function as Python calls it, once it is bound to an object: the library's or, compiled now in some 20 ms, what
    ``emit`` writes into a module."""
    if name not in _known:
        address = support_function(name)
        _known[name] = define_function(name, _compiled(name, emit) if address is None else address)
    return _known[name]


def _compiled(name: str, emit: Callable[[Any], None]) -> int:
    from llvmlite import binding, ir

    module = ir.Module(name)
    emit(module)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))
