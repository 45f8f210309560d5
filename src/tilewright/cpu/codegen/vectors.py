"""Vectors of scalars in LLVM IR, as every generator here needs them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_POINTER = I8.as_pointer()


def bits_of(scalar: Any) -> int:
    """The width of a float, a double or an integer."""
    return {ir.FloatType: 32, ir.DoubleType: 64}.get(type(scalar)) or scalar.width


class Vectors:
    """Emits operations on vectors of ``lanes`` scalars of one type, which is a float, a double or an integer.

    Pointers are to scalars, offsets count scalars. No more than a scalar's alignment is assumed: operands are the caller's.
    """

    def __init__(self, builder: Any, scalar: Any, lanes: int) -> None:
        self.builder, self.scalar, self.lanes = builder, scalar, lanes
        self.vector = ir.VectorType(scalar, lanes)
        self.itemsize = bits_of(scalar) // 8
        self.is_float = not isinstance(scalar, ir.IntType)
        self.zero = ir.Constant(self.vector, None)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def at(self, pointer: Any, elements: Any) -> Any:
        """The address of the vector that lies ``elements`` (a number or a value) after ``pointer``."""
        index = I64(elements) if isinstance(elements, int) else elements
        return self.builder.bitcast(self.builder.gep(pointer, [index]), self.vector.as_pointer())

    def load(self, pointer: Any, elements: Any = 0) -> Any:
        """The vector that lies ``elements`` after ``pointer``."""
        load = self.builder.load(self.at(pointer, elements))
        load.align = self.itemsize
        return load

    def store(self, value: Any, pointer: Any, elements: Any = 0) -> None:
        """Write a vector, ``elements`` after ``pointer``."""
        self.builder.store(value, self.at(pointer, elements)).align = self.itemsize

    def scalar_at(self, pointer: Any, elements: int) -> Any:
        """The scalar that lies ``elements`` after ``pointer``."""
        return self.builder.load(self.builder.gep(pointer, [I64(elements)]))

    def mask(self, count: Any) -> Any:
        """The lanes below ``count``, a 64-bit value: none where it is 0 or less."""
        numbers = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        limit = Vectors(self.builder, I64, self.lanes).broadcast(count)
        return self.builder.icmp_signed("<", numbers, limit)

    def load_masked(self, mask: Any, pointer: Any, elements: Any = 0) -> Any:
        """A vector with zeros where ``mask`` is not set; memory is not accessed there."""
        kind = ir.FunctionType(self.vector, [self.vector.as_pointer(), I32, mask.type, self.vector])
        function = self.declared(f"llvm.masked.load.{self._suffix}.p0", kind)
        return self.builder.call(function, [self.at(pointer, elements), I32(self.itemsize), mask, self.zero])

    def store_masked(self, mask: Any, value: Any, pointer: Any, elements: Any = 0) -> None:
        """Write the lanes that ``mask`` sets; memory is not accessed for the others."""
        kind = ir.FunctionType(ir.VoidType(), [self.vector, self.vector.as_pointer(), I32, mask.type])
        function = self.declared(f"llvm.masked.store.{self._suffix}.p0", kind)
        self.builder.call(function, [value, self.at(pointer, elements), I32(self.itemsize), mask])

    def prefetch(self, pointer: Any, elements: Any = 0, *, write: bool = False, level: int = 1) -> None:
        """Prefetch a line of memory that will be needed soon into the cache of this level."""
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, I32, I32, I32])
        line = self.builder.bitcast(self.at(pointer, elements), _POINTER)
        self.builder.call(self.declared("llvm.prefetch.p0", kind), [line, I32(int(write)), I32(4 - level), I32(1)])

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def broadcast(self, element: Any) -> Any:
        """A vector whose lanes all are ``element``."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        lane0 = self.builder.insert_element(undefined, element, I32(0))
        everywhere = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(lane0, undefined, everywhere)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """x·y + z: rounded once for floats, modulo 2^bits for integers."""
        if not self.is_float:
            return self.builder.add(self.builder.mul(x, y), z)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(self.declared(f"llvm.fma.{self._suffix}", kind), [x, y, z])

    def add(self, x: Any, y: Any) -> Any:
        """x + y."""
        return self.builder.fadd(x, y) if self.is_float else self.builder.add(x, y)

    # ---- the module --------------------------------------------------------------------------------------------------

    def declared(self, name: str, kind: Any) -> Any:
        """An LLVM intrinsic by its name: llvmlite's declare_intrinsic supports neither vector nor opaque pointer types."""
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, kind, name)

    @property
    def _suffix(self) -> str:
        return f"v{self.lanes}{'f' if self.is_float else 'i'}{8 * self.itemsize}"
