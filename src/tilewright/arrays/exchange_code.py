"""Machine code of the short way for libraries with DLPack's exchange interface for C, such as PyTorch from 2.10 on.

From Python, reading what a product depends on takes as long as the rest of a short call. Two functions, which Python calls
like built-in ones, read the tensors' fields by that interface instead. Both are bound to the words of ``Facts``. In C:

    PyObject *product(PyObject *bound, PyObject *const *args, Py_ssize_t count) {        // (a, b) or (a, b, None)
        struct Facts *facts = (struct Facts *)PyBytes_AsString(bound);
        if ((count != 2 && count != 3) || (count == 3 && args[2] != Py_None)) goto decline;
        if (!(key = key_of(args))) goto decline;                      // types are known, sizes and places of both are read
        known = PyDict_GetItem(facts->known, key);
        if (!known) goto decline;
        Py_IncRef(known);                                             // (program, result, workspace, failed)
        if (facts->state.attribute is not facts->usual) goto decline; // as while tangents are recorded
        for (x in a, b) if ((x.requires_grad and grad_enabled()) or x.is_neg()) goto decline;
        result = known[1]();
        workspace = known[2] is None ? NULL : known[2]();
        if (no result or no workspace) goto decline;
        facts->stream_of(CUDA, ordinal of a, &stream);
        failed = launches(known[0], {addresses of a, b, result, workspace, 0}, stream);
        Py_DecRef(workspace); Py_DecRef(known);
        if (failed) { Py_DecRef(result); return known[3](failed); }   // raises
        return result;
      decline:
        PyErr_Clear();
        return PyObject_Vectorcall(facts->otherwise, args, count, NULL);
    }

    PyObject *learn(PyObject *bound, PyObject *const *args, Py_ssize_t count) {          // (a, b, known)
        if (count == 3 && (key = key_of(args))) PyDict_SetItem(facts->known, key, args[2]);
        return None;
    }

A key is made of the words of both tensors: the places of their first bytes within a granule, then for each its device, its
number of axes and dtype, its shape and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ..codegen.vectors import I8, I32, I64
from ..runtime.gpu.memory import GRANULE
from ..runtime.gpu.replay_code import Emitter
from ..runtime.gpu.words import TENSOR_WORDS, Facts, TensorWord

_OBJECT = I8.as_pointer()


#: ``kDLCUDA``, and the most axes of an array.
_CUDA, _MOST_AXES = 2, 8


def emit_products(module: Any) -> None:
    """Emit ``product`` and ``learn``; ``launches`` is in the module."""
    for name, emitter in (("product", _Product), ("learn", _Learn)):
        emitter(module, name, _OBJECT, [_OBJECT, _OBJECT.as_pointer(), I64]).build()


class TensorReader(Emitter):
    """What functions that read tensors have in common. ``need`` leaves for the block ``declined`` unless a condition
    holds."""

    def build(self) -> None:
        """Emit the whole function."""
        raise NotImplementedError

    def begin(self) -> None:
        """Read the arguments of the function, and the facts."""
        self.declined = self.function.append_basic_block("declined")
        self.bound, self.args, self.count = self.function.args
        words = self.python("PyBytes_AsString", _OBJECT, self.bound)
        place = self.builder.bitcast(words, I64.as_pointer())
        self.facts = Facts(*(self.builder.load(self.builder.gep(place, [I64(i)])) for i in range(len(Facts._fields))))

    def need(self, condition: Any) -> None:
        """Go on where the condition holds, and else at ``declined``."""
        following = self.function.append_basic_block("following")
        self.builder.cbranch(condition, following, self.declined)
        self.builder.position_at_end(following)

    def equal(self, x: Any, y: Any) -> Any:
        """Whether two words are equal."""
        return self.builder.icmp_unsigned("==", x, y)

    def is_there(self, x: Any) -> Any:
        """Whether an object is not null."""
        return self.builder.icmp_unsigned("!=", x, _OBJECT(None))

    def drop(self, x: Any) -> None:
        """Give back a reference."""
        self.python("Py_DecRef", ir.VoidType(), x)

    def object_at(self, address: Any) -> Any:
        """The object at an address."""
        return self.builder.inttoptr(address, _OBJECT)

    def argument(self, i: int) -> Any:
        """The caller's argument with this number."""
        return self.builder.load(self.builder.gep(self.args, [I64(i)]))

    def field(self, tensor: Any, i: int) -> Any:
        """A word of a tensor that was read."""
        return self.builder.load(self.builder.gep(tensor, [I64(i)]))

    def axes(self, tensor: Any) -> Any:
        """Its number of axes."""
        return self.builder.and_(self.field(tensor, TensorWord.AXES), I64(0xFFFF_FFFF))

    def viewed(self, x: Any, tensor: Any) -> None:
        """Read the fields of an object of the library."""
        self.need(self.equal(self.at_address(self.facts.view, I32, x, tensor), I32(0)))

    def need_known_type(self, x: Any) -> None:
        """The object is of one of the library's two types."""
        kind = self.python("PyObject_Type", _OBJECT, x)
        self.drop(kind)  # the object keeps its type
        kind = self.builder.ptrtoint(kind, I64)
        self.need(self.builder.or_(self.equal(kind, self.facts.first_type), self.equal(kind, self.facts.second_type)))

    def need_no_gradient(self, x: Any, are_recorded: Callable[[], Any]) -> None:
        """No gradient is wanted; ``are_recorded`` emits the condition that they are recorded now."""
        answer = self.python("PyObject_GetAttr", _OBJECT, x, self.object_at(self.facts.requires_grad))
        self.need(self.is_there(answer))
        self.drop(answer)
        wanted = self.builder.icmp_unsigned("!=", self.builder.ptrtoint(answer, I64), self.facts.false)
        with self.builder.if_then(wanted, likely=False):
            self.need(self.builder.not_(are_recorded()))

    def gradients_are_recorded(self) -> Any:
        """Whether they are now."""
        answer = self.python("PyObject_CallNoArgs", _OBJECT, self.object_at(self.facts.grad_enabled))
        self.need(self.is_there(answer))
        self.drop(answer)
        return self.builder.icmp_unsigned("!=", self.builder.ptrtoint(answer, I64), self.facts.false)

    def need_positive(self, x: Any) -> None:
        """The values are not stored negated."""
        place = self.room(_OBJECT)
        self.builder.store(x, place)
        name = self.object_at(self.facts.is_neg)
        answer = self.python("PyObject_VectorcallMethod", _OBJECT, name, place, I64(1), _OBJECT(None))
        self.need_same(answer, self.facts.false)

    def need_usual_state(self) -> None:
        """The attribute of the library's state is as usual."""
        state, attribute = map(self.object_at, (self.facts.state, self.facts.attribute))
        self.need_same(self.python("PyObject_GetAttr", _OBJECT, state, attribute), self.facts.usual)

    def need_same(self, answer: Any, known: Any) -> None:
        """The object is there, and is the one at the address ``known``."""
        self.need(self.is_there(answer))
        self.drop(answer)
        self.need(self.equal(self.builder.ptrtoint(answer, I64), known))

    def none(self) -> None:
        """Return None."""
        none = self.object_at(self.facts.none)
        self.python("Py_IncRef", ir.VoidType(), none)
        self.builder.ret(none)


class _WithKey(TensorReader):
    """What ``product`` and ``learn`` have in common."""

    def begin(self) -> None:
        super().begin()
        self.tensors = [self.room(I64, TENSOR_WORDS + 2) for _ in range(2)]

    def key(self) -> Any:
        """The key of the first two arguments, a new object, after their fields were read."""
        builder = self.builder
        for i, tensor in enumerate(self.tensors):
            self.need_known_type(self.argument(i))
            self.viewed(self.argument(i), tensor)
            self.need(builder.icmp_unsigned("<=", self.axes(tensor), I64(_MOST_AXES)))
            # An address of 0: empty, or without memory inside a transformation.
            self.need(builder.icmp_unsigned("!=", self.field(tensor, TensorWord.DATA), I64(0)))
            self.need(self.equal(self.field(tensor, TensorWord.OFFSET), I64(0)))
            self.need(builder.icmp_unsigned("!=", self.field(tensor, TensorWord.STRIDES), I64(0)))
        words = self.room(I64, 5 + 4 * _MOST_AXES)
        count = self.room(I64)
        builder.store(I64(0), count)

        def push(word: Any) -> None:
            at = builder.load(count)
            builder.store(word, builder.gep(words, [at]))
            builder.store(builder.add(at, I64(1)), count)

        first, second = (builder.urem(self.field(tensor, TensorWord.DATA), I64(GRANULE)) for tensor in self.tensors)
        push(builder.or_(first, builder.shl(second, I64(8))))
        for tensor in self.tensors:
            push(self.field(tensor, TensorWord.DEVICE))
            push(self.field(tensor, TensorWord.AXES))
            sizes = [
                builder.inttoptr(self.field(tensor, i), I64.as_pointer())
                for i in (TensorWord.SHAPE, TensorWord.STRIDES)
            ]
            with cgutils.for_range(builder, self.axes(tensor)) as loop:
                for each in sizes:
                    push(builder.load(builder.gep(each, [loop.index])))
        nbytes = builder.mul(builder.load(count), I64(8))
        key = self.python("PyBytes_FromStringAndSize", _OBJECT, builder.bitcast(words, _OBJECT), nbytes)
        self.need(self.is_there(key))
        return key


class _Learn(_WithKey):
    """Emits ``learn``."""

    def build(self) -> None:
        self.begin()
        self.need(self.equal(self.count, I64(3)))
        key = self.key()
        self.python("PyDict_SetItem", I32, self.object_at(self.facts.known), key, self.argument(2))
        self.drop(key)
        self.none()
        self.builder.position_at_end(self.declined)
        self.python("PyErr_Clear", ir.VoidType())
        self.none()


class _Product(_WithKey):
    """Emits ``product``."""

    def build(self) -> None:
        self.begin()
        builder, declined = self.builder, self.declined
        held, result, workspace = (self.room(_OBJECT) for _ in range(3))
        for place in (held, result, workspace):
            builder.store(_OBJECT(None), place)
        with builder.if_else(self.equal(self.count, I64(3))) as (three, other):
            with three:
                self.need(self.equal(builder.ptrtoint(self.argument(2), I64), self.facts.none))
            with other:
                self.need(self.equal(self.count, I64(2)))
        key = self.key()
        known = self.python("PyDict_GetItem", _OBJECT, self.object_at(self.facts.known), key)
        self.drop(key)
        self.need(self.is_there(known))
        self.python("Py_IncRef", ir.VoidType(), known)
        builder.store(known, held)
        program, allocate, allocate_workspace, raise_ = (
            self.python("PyTuple_GetItem", _OBJECT, known, I64(i)) for i in range(4)
        )
        self.need_usual_state()
        for i in range(2):
            self.need_no_gradient(self.argument(i), self.gradients_are_recorded)
            self.need_positive(self.argument(i))
        builder.store(self.python("PyObject_CallNoArgs", _OBJECT, allocate), result)
        made = builder.load(result)
        self.need(self.is_there(made))
        address = self.room(I64, 5)
        place = self.room(I64, TENSOR_WORDS + 2)
        self.viewed(made, place)
        for i, value in enumerate((*(self.field(x, TensorWord.DATA) for x in (*self.tensors, place)), I64(0), I64(0))):
            builder.store(value, builder.gep(address, [I64(i)]))
        has_workspace = builder.icmp_unsigned("!=", builder.ptrtoint(allocate_workspace, I64), self.facts.none)
        with builder.if_then(has_workspace):
            builder.store(self.python("PyObject_CallNoArgs", _OBJECT, allocate_workspace), workspace)
            self.need(self.is_there(builder.load(workspace)))
            self.viewed(builder.load(workspace), place)
            builder.store(self.field(place, TensorWord.DATA), builder.gep(address, [I64(3)]))
        stream, ordinal = (
            self.room(I64),
            builder.trunc(builder.lshr(self.field(self.tensors[0], TensorWord.DEVICE), I64(32)), I32),
        )
        self.need(self.equal(self.at_address(self.facts.stream_of, I32, I32(_CUDA), ordinal, stream), I32(0)))
        words = builder.bitcast(self.python("PyBytes_AsString", _OBJECT, program), I64.as_pointer())
        failed = builder.call(self.module.globals["launches"], [words, address, builder.load(stream)])
        with builder.if_then(self.is_there(builder.load(workspace))):
            self.drop(builder.load(workspace))
        with builder.if_then(builder.icmp_unsigned("!=", failed, I64(0)), likely=False):
            self.drop(made)
            status = self.python("PyLong_FromLongLong", _OBJECT, failed)
            answer = self.python("PyObject_CallOneArg", _OBJECT, raise_, status)
            self.drop(status)
            self.drop(known)
            builder.ret(answer)
        self.drop(known)
        builder.ret(made)

        builder.position_at_end(declined)
        self.python("PyErr_Clear", ir.VoidType())
        for place in (held, result, workspace):
            with builder.if_then(self.is_there(builder.load(place))):
                self.drop(builder.load(place))
        otherwise = self.object_at(self.facts.otherwise)
        builder.ret(self.python("PyObject_Vectorcall", _OBJECT, otherwise, self.args, self.count, _OBJECT(None)))
