"""Building blocks of the code generators: emit operations on vectors of scalars in LLVM IR, and loops over vectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_POINTER = I8.as_pointer()


def bits_of(scalar: Any) -> int:
    """Return the width in bits of a float, a double or an integer type."""
    return {ir.FloatType: 32, ir.DoubleType: 64}.get(type(scalar)) or scalar.width


class Vectors:
    """Emits operations on vectors of ``lanes`` scalars of one type, which is a float, a double or an integer.

    Pointers point to scalars, and offsets count scalars. Loads and stores of vectors assume only the alignment of a
    scalar, because operands belong to the caller.
    """

    def __init__(self, builder: Any, scalar: Any, lanes: int) -> None:
        self.builder, self.scalar, self.lanes = builder, scalar, lanes
        self.vector = ir.VectorType(scalar, lanes)
        self.itemsize = bits_of(scalar) // 8
        self.is_float = not isinstance(scalar, ir.IntType)
        self.zero = ir.Constant(self.vector, None)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def at(self, pointer: Any, elements: Any) -> Any:
        """Return the address that is ``elements`` scalars (a constant or a value) after ``pointer``."""
        index = I64(elements) if isinstance(elements, int) else elements
        return self.builder.bitcast(self.builder.gep(pointer, [index]), self.vector.as_pointer())

    def load(self, pointer: Any, elements: Any = 0) -> Any:
        """Load the vector that is ``elements`` scalars after ``pointer``."""
        load = self.builder.load(self.at(pointer, elements))
        load.align = self.itemsize
        return load

    def store(self, value: Any, pointer: Any, elements: Any = 0) -> None:
        """Store a vector at the address that is ``elements`` scalars after ``pointer``."""
        self.builder.store(value, self.at(pointer, elements)).align = self.itemsize

    def scalar_at(self, pointer: Any, elements: int) -> Any:
        """Load the scalar that is ``elements`` scalars after ``pointer``."""
        return self.builder.load(self.builder.gep(pointer, [I64(elements)]))

    def mask(self, count: Any) -> Any:
        """Return a mask of the lanes below ``count``, a 64-bit value. The mask has no lanes if ``count`` is 0 or
        less."""
        numbers = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        limit = Vectors(self.builder, I64, self.lanes).broadcast(count)
        return self.builder.icmp_signed("<", numbers, limit)

    def load_masked(self, mask: Any, pointer: Any, elements: Any = 0) -> Any:
        """Load the lanes that are in ``mask``; the other lanes are zero, and their memory is not accessed."""
        kind = ir.FunctionType(self.vector, [self.vector.as_pointer(), I32, mask.type, self.vector])
        function = self.declared(f"llvm.masked.load.{self._suffix}.p0", kind)
        return self.builder.call(function, [self.at(pointer, elements), I32(self.itemsize), mask, self.zero])

    def store_masked(self, mask: Any, value: Any, pointer: Any, elements: Any = 0) -> None:
        """Store the lanes that are in ``mask``. The memory of the other lanes is not accessed."""
        kind = ir.FunctionType(ir.VoidType(), [self.vector, self.vector.as_pointer(), I32, mask.type])
        function = self.declared(f"llvm.masked.store.{self._suffix}.p0", kind)
        self.builder.call(function, [value, self.at(pointer, elements), I32(self.itemsize), mask])

    def prefetch(self, pointer: Any, elements: Any = 0, *, write: bool = False, level: int = 1) -> None:
        """Prefetch a line of memory that will be needed soon into the cache of the given level."""
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, I32, I32, I32])
        line = self.builder.bitcast(self.at(pointer, elements), _POINTER)
        self.builder.call(self.declared("llvm.prefetch.p0", kind), [line, I32(int(write)), I32(4 - level), I32(1)])

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def broadcast(self, element: Any) -> Any:
        """Return a vector whose lanes are all ``element``."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        lane0 = self.builder.insert_element(undefined, element, I32(0))
        everywhere = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(lane0, undefined, everywhere)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Return x·y + z: rounded once for floats, modulo 2^bits for integers."""
        if not self.is_float:
            return self.builder.add(self.builder.mul(x, y), z)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(self.declared(f"llvm.fma.{self._suffix}", kind), [x, y, z])

    def add(self, x: Any, y: Any) -> Any:
        """x + y."""
        return self.builder.fadd(x, y) if self.is_float else self.builder.add(x, y)

    # ---- the module --------------------------------------------------------------------------------------------------

    def declared(self, name: str, kind: Any) -> Any:
        """Declare an LLVM intrinsic by its name; llvmlite's declare_intrinsic supports neither vectors nor opaque
        pointers."""
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, kind, name)

    @property
    def _suffix(self) -> str:
        return f"v{self.lanes}{'f' if self.is_float else 'i'}{8 * self.itemsize}"


# ---- a function around emitted code, a counted loop, and sums over lanes ---------------------------------------------

Values = list[Any]


def emitted(kinds: str, vector_bits: int, emit: Callable[..., None]) -> Callable[..., None]:
    """Return an intrinsic whose code ``emit(vectors, *args)`` writes. ``kinds`` has a letter for each argument: "i" for
    an integer, "p" for a pointer to elements, all of the same type. ``"ip"`` is for ``f(count, x)``."""

    def run(typingctx: Any, *argument_types: Any) -> Any:  # noqa: ARG001
        pointer = argument_types[kinds.index("p")]
        signature = types.void(*[pointer if kind == "p" else types.intp for kind in kinds])

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            scalar = context.get_data_type(pointer.dtype)
            emit(Vectors(builder, scalar, vector_bits // bits_of(scalar)), *args)
            return context.get_dummy_value()

        return signature, codegen

    names = ["typingctx", *(f"{kind}{place}" for place, kind in enumerate(kinds))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Numba folds *args into a tuple
    return intrinsic(run)


def counted_loop(
    builder: Any, start: Any, stop: Any, step: int, carried: Sequence[Any], body: Callable[[Any, Values], Values]
) -> tuple[Any, Values]:
    """Emit a loop for index = start, start + step, … as long as a whole step fits before ``stop``. In each step,
    ``body(index, values)`` returns new values.

    Returns the index of the first step that did not fit, and the values of the last step, or ``carried`` if no step
    fitted.
    """
    before, head = builder.block, builder.append_basic_block("loop.head")
    inside, done = builder.append_basic_block("loop.body"), builder.append_basic_block("loop.done")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    values = [builder.phi(value.type) for value in carried]
    following = builder.add(index, I64(step))
    builder.cbranch(builder.icmp_signed("<=", following, stop), inside, done)
    builder.position_at_end(inside)
    updated = body(index, values)
    last = builder.block  # the body may have branched
    for phi, first, new in zip([index, *values], [start, *carried], [following, *updated], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, last)
    builder.branch(head)
    builder.position_at_end(done)
    return index, values


def vector_loop(
    vectors: Vectors, count: Any, chains: int, carried: Sequence[Any], body: Callable[..., Values]
) -> Values:
    """Emit a loop of ``body(index, values, load, store, chain)`` over ``count`` elements by vectors, with ``chains``
    vectors in an iteration.

    If the last vector is partial, ``load(pointer, index)`` and ``store(value, pointer, index)`` are masked for it:
    elements from ``count`` on are not accessed, and ``load`` returns zeros for them. ``chain`` is the number of a
    vector within its iteration; the vectors of the remainder have chain 0.
    """
    builder, lanes = vectors.builder, vectors.lanes

    def whole(index: Any, values: Values) -> Values:
        for chain in range(chains):
            at = builder.add(index, I64(chain * lanes))
            values = body(at, values, vectors.load, vectors.store, chain)
        return values

    def cut(index: Any, values: Values) -> Values:
        mask = vectors.mask(builder.sub(count, index))

        def load(pointer: Any, at: Any) -> Any:
            return vectors.load_masked(mask, pointer, at)

        def store(value: Any, pointer: Any, at: Any) -> None:
            vectors.store_masked(mask, value, pointer, at)

        return body(index, values, load, store, 0)

    index, values = counted_loop(builder, I64(0), count, chains * lanes, carried, whole)
    return counted_loop(builder, index, builder.add(count, I64(lanes - 1)), lanes, values, cut)[1]


def sum_of_lanes(vectors: Vectors, value: Any) -> Any:
    """Return the sum of a vector's lanes as a scalar. The two halves of the vector are added, then the halves of the
    result, until one lane is left; the order is the same on all processors."""
    builder, lanes = vectors.builder, vectors.lanes
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, lanes), list(range(at, at + lanes))))
            for at in (0, lanes)
        )
        value = vectors.add(low, high)
    return builder.extract_element(value, I32(0))


def row_pointers(builder: Any, first: Any, stride: Any, rows: int, live: Any) -> Values:
    """Pointers to ``rows`` rows. After the first ``live`` rows, the pointer to the last of these rows is repeated, so
    that all pointers may be read."""
    last = builder.sub(live, I64(1))
    pointers = []
    for row in range(rows):
        inside = builder.icmp_signed("<", I64(row), live)
        pointers.append(builder.gep(first, [builder.mul(builder.select(inside, I64(row), last), stride)]))
    return pointers
