"""Machine code that reads two lists of matrices by DLPack's exchange interface for C; see ``exchange_code``. In C:

PyObject *read(PyObject *bound, PyObject *const *args, Py_ssize_t count) {           // (a, b)
    struct Facts *facts = (struct Facts *)PyBytes_AsString(bound);
    int64_t n = PyList_Size(args[0]);
    if (count != 2 || n <= 0 || PyList_Size(args[1]) != n) goto decline;
    data = PyBytes_FromStringAndSize(NULL, 2 * n * 8 * (1 + MATRIX_WORDS));
    recorded = facts->grad_enabled();
    for (i = 0; i < 2 * n; i++) {
        x = i < n ? args[0][i] : args[1][i - n];
        if (x is of no known type, or no matrix, or recorded and x.requires_grad, or x.is_neg()) goto decline;
        store its address as word i of data, and its device, dtype with its place in a granule, shape and strides behind;
    }
    return data;
  decline:
    PyErr_Clear();
    return None;
}
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ..codegen.vectors import I1, I8, I64
from ..runtime.gpu.memory import GRANULE
from ..runtime.gpu.words import MATRIX_WORDS, TENSOR_WORDS, TensorWord
from .exchange_code import TensorReader

_OBJECT = I8.as_pointer()


def emit_read(module: Any) -> None:
    """Emit ``read``."""
    _Read(module, "read", _OBJECT, [_OBJECT, _OBJECT.as_pointer(), I64]).build()


class _Read(TensorReader):
    """Emits ``read``."""

    def build(self) -> None:
        self.begin()
        builder, data = self.builder, self.room(_OBJECT)
        builder.store(_OBJECT(None), data)
        self.need(self.equal(self.count, I64(2)))
        self.need_usual_state()
        n, others = (self.python("PyList_Size", I64, self.argument(i)) for i in range(2))
        self.need(builder.and_(builder.icmp_signed(">", n, I64(0)), self.equal(n, others)))
        both = builder.mul(n, I64(2))
        nbytes = builder.mul(both, I64(8 * (1 + MATRIX_WORDS)))
        builder.store(self.python("PyBytes_FromStringAndSize", _OBJECT, _OBJECT(None), nbytes), data)
        self.need(self.is_there(builder.load(data)))
        words = builder.bitcast(self.python("PyBytes_AsString", _OBJECT, builder.load(data)), I64.as_pointer())
        matrices = builder.gep(words, [both])
        recorded = self.room(I1)
        builder.store(self.gradients_are_recorded(), recorded)
        tensor = self.room(I64, TENSOR_WORDS + 2)
        first, second = self.argument(0), self.argument(1)
        with cgutils.for_range(builder, both) as loop:
            is_first = builder.icmp_signed("<", loop.index, n)
            number = builder.select(is_first, loop.index, builder.sub(loop.index, n))
            x = self.python("PyList_GetItem", _OBJECT, builder.select(is_first, first, second), number)
            self.need(self.is_there(x))
            self.need_known_type(x)
            self.viewed(x, tensor)
            self.need(self.equal(self.axes(tensor), I64(2)))
            self.need(self.equal(self.field(tensor, TensorWord.OFFSET), I64(0)))
            self.need(builder.icmp_unsigned("!=", self.field(tensor, TensorWord.STRIDES), I64(0)))
            with builder.if_then(builder.load(recorded)):
                self.need_no_gradient(x, lambda: builder.load(recorded))
            self.need_positive(x)
            address = self.field(tensor, TensorWord.DATA)
            builder.store(address, builder.gep(words, [loop.index]))
            to = builder.gep(matrices, [builder.mul(loop.index, I64(MATRIX_WORDS))])
            dtype = builder.and_(self.field(tensor, TensorWord.AXES), I64(-1 << 32))
            of_tensor = [self.field(tensor, TensorWord.DEVICE), builder.or_(dtype, builder.urem(address, I64(GRANULE)))]
            for word in (TensorWord.SHAPE, TensorWord.STRIDES):
                sizes = builder.inttoptr(self.field(tensor, word), I64.as_pointer())
                of_tensor += [builder.load(builder.gep(sizes, [I64(i)])) for i in range(2)]
            for i, value in enumerate(of_tensor):
                builder.store(value, builder.gep(to, [I64(i)]))
        builder.ret(builder.load(data))

        builder.position_at_end(self.declined)
        self.python("PyErr_Clear", ir.VoidType())
        with builder.if_then(self.is_there(builder.load(data))):
            self.drop(builder.load(data))
        self.none()
