"""The machine code of ``recording.Replay``: a function that Python calls like a built-in one, compiled once in a process.

It is compiled from LLVM's intermediate representation in some 20 ms, so that no compiler of C is needed. The launches are
data: the words of a ``bytes`` object, which the function reads one after the other. In C:

    PyObject *replay(PyObject *program, PyObject *const *args, Py_ssize_t count) {
        int64_t *words = (int64_t *)PyBytes_AsString(program), operands = words[5], address[MOST_OPERANDS + 1];
        if (count != operands + 1) { PyErr_BadArgument(); return NULL; }
        for (i = 0; i < operands; i++) address[i] = PyLong_AsUnsignedLongLong(args[i]);
        address[operands] = 0;                                  // what no operand is near is added to 0
        stream = PyLong_AsUnsignedLongLong(args[operands]);
        if (PyErr_Occurred()) return NULL;
        return PyLong_FromLongLong(launches(words, address, stream));
    }

    static int64_t launches(int64_t *at, int64_t *address, int64_t stream) {
        read get_current, push, pop, launch, context, operands, launches, graph from at;
        PyThreadState *saved = PyEval_SaveThread();             // a launch waits while the stream's queue is full
        int64_t failed = 0;
        get_current(&current);
        if (current != context && (status = push(context)) != 0) failed = launches << 32 | status;
        if (graph && !failed && !atomic_exchange(&graph->lock, 1)) {    // see graph.py
            if (graph->stream == stream && !is_capturing(stream)) {
                change the arguments of all nodes, as below, and submit the graph; done if there was no error
            }
            atomic_store(&graph->lock, 0);
        }
        for (i = 0; i < launches && !failed && !done; i++) {
            read function, seven sizes, waits, arguments, addresses, bytes from at;
            for (j = 0; j < arguments; j++) place[j] = block + next word from at;
            copy so many bytes from at to block;
            for (j = 0; j < addresses; j++) {
                read byte, operand, offset from at;
                *(int64_t *)(block + byte) = address[operand] + offset;
            }
            // a kernel that waits for the launch before it by itself may begin before the end of that one
            CUlaunchConfig config = {sizes, stream, {PROGRAMMATIC_STREAM_SERIALIZATION, 1}, waits};
            if ((status = launch(&config, function, place, NULL)) != 0) failed = i << 32 | status;
        }
        if (pushed) pop(&current);
        PyEval_RestoreThread(saved);
        return failed;
    }

The arguments are copied to the stack first: several threads may launch at once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...codegen.vectors import I1, I8, I32, I64
from .graph import GraphState
from .words import MOST_ARGUMENTS, MOST_BYTES, MOST_OPERANDS

#: The word of a program that says how many operands it has.
_OPERANDS = 5
_ADDRESS = I8.as_pointer()
#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


def emit_replay(module: Any) -> None:
    """Emit ``launches`` and ``replay``."""
    code = Emitter(module, "replay", _ADDRESS, [_ADDRESS, _ADDRESS.as_pointer(), I64])
    builder, (program, args, count) = code.builder, code.function.args
    words = builder.bitcast(code.python("PyBytes_AsString", _ADDRESS, program), I64.as_pointer())
    operands, address = builder.load(builder.gep(words, [I64(_OPERANDS)])), code.room(I64, MOST_OPERANDS + 1)

    def number(index: Any) -> Any:
        return code.python("PyLong_AsUnsignedLongLong", I64, builder.load(builder.gep(args, [index])))

    with builder.if_then(builder.icmp_signed("!=", count, builder.add(operands, I64(1)))):
        code.python("PyErr_BadArgument", I32)
        builder.ret(_ADDRESS(None))
    with cgutils.for_range(builder, operands) as loop:
        builder.store(number(loop.index), builder.gep(address, [loop.index]))
    builder.store(I64(0), builder.gep(address, [operands]))
    stream = number(operands)
    with builder.if_then(builder.icmp_unsigned("!=", code.python("PyErr_Occurred", _ADDRESS), _ADDRESS(None))):
        builder.ret(_ADDRESS(None))
    launches = _Launches(code.module, "launches", I64, [I64.as_pointer(), I64.as_pointer(), I64])
    launches.build()
    failed = builder.call(launches.function, [words, address, stream])
    builder.ret(code.python("PyLong_FromLongLong", _ADDRESS, failed))


class Emitter:
    """Emits a function into a module: ``builder`` stands at its beginning."""

    def __init__(self, module: Any, name: str, result: Any, kinds: list[Any]) -> None:
        self.module, self.function = module, ir.Function(module, ir.FunctionType(result, kinds), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def room(self, kind: Any, count: int = 1, alignment: int = 8) -> Any:
        """Memory on the stack."""
        place = cgutils.alloca_once(self.builder, kind, count)
        place.align = alignment
        return place

    def at_address(self, address: Any, result: Any, *args: Any) -> Any:
        """Call the function at an address."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return self.builder.call(self.builder.inttoptr(address, kind.as_pointer()), args)

    def python(self, name: str, result: Any, *args: Any) -> Any:
        """Call a function of Python's C interface."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return self.builder.call(cgutils.get_or_insert_function(self.module, kind, name), args)


class _Launches(Emitter):
    """Emits the function ``launches`` above. ``word`` emits the reading of the next word of the program."""

    def build(self) -> None:
        builder, (words, self.address, stream) = self.builder, self.function.args
        self.at, self.current = self.room(I64.as_pointer()), self.room(I64)
        self.failed, self.pushed, self.done = self.room(I64), self.room(I1), self.room(I1)
        self.block, self.places = self.room(I8, MOST_BYTES, 64), self.room(_ADDRESS, MOST_ARGUMENTS)
        builder.store(words, self.at)
        get_current, push, pop, launch, context, _, launches, graph = (self.word() for _ in range(8))
        saved = self.python("PyEval_SaveThread", _ADDRESS)
        builder.store(I64(0), self.failed)
        builder.store(I1(0), self.pushed)
        builder.store(I1(0), self.done)
        self.at_address(get_current, I32, self.current)
        with builder.if_then(builder.icmp_unsigned("!=", builder.load(self.current), context)):
            self.note(self.at_address(push, I32, context), launches)
            builder.store(builder.not_(self.has_failed()), self.pushed)
        # CUlaunchConfig: seven sizes, the stream, attributes and their number; CUlaunchAttribute: its kind and 64 bytes
        config, attribute = self.room(I64, 7), self.room(I64, 9)
        builder.store(I64(0), builder.gep(config, [I64(3)]))
        builder.store(stream, builder.gep(config, [I64(4)]))
        builder.store(builder.ptrtoint(attribute, I64), builder.gep(config, [I64(5)]))
        for i, value in enumerate((_PROGRAMMATIC_STREAM_SERIALIZATION, 1, *[0] * 7)):
            builder.store(I64(value), builder.gep(attribute, [I64(i)]))
        with builder.if_then(builder.icmp_unsigned("!=", graph, I64(0))):
            self.by_graph(builder.inttoptr(graph, I64.as_pointer()), launches, stream)
        with builder.if_then(builder.not_(builder.load(self.done))), cgutils.for_range(builder, launches) as loop:
            with builder.if_then(self.has_failed()):
                loop.do_break()
            function, sizes, waits = self.arguments()
            for i, size in enumerate(sizes):
                builder.store(size, builder.gep(builder.bitcast(config, I32.as_pointer()), [I32(i)]))
            builder.store(waits, builder.gep(config, [I64(6)]))
            status = self.at_address(launch, I32, config, function, self.places, I64(0))
            self.note(status, loop.index)
        with builder.if_then(builder.load(self.pushed)):
            self.at_address(pop, I32, self.current)
        self.python("PyEval_RestoreThread", ir.VoidType(), saved)
        builder.ret(builder.load(self.failed))

    def arguments(self) -> tuple[Any, list[Any], Any]:
        """Read a launch from the program: its arguments are then at ``places``. Returns the kernel, the seven sizes, and
        whether the kernel waits."""
        builder = self.builder
        function, *sizes, waits, arguments, addresses, nbytes = (self.word() for _ in range(12))
        with cgutils.for_range(builder, arguments) as loop:
            builder.store(builder.gep(self.block, [self.word()]), builder.gep(self.places, [loop.index]))
        source = builder.bitcast(builder.load(self.at), _ADDRESS)
        cgutils.raw_memcpy(builder, self.block, source, nbytes, 1)
        builder.store(builder.bitcast(builder.gep(source, [nbytes]), I64.as_pointer()), self.at)
        with cgutils.for_range(builder, addresses):
            byte, operand, offset = (self.word() for _ in range(3))
            value = builder.add(builder.load(builder.gep(self.address, [operand])), offset)
            builder.store(value, builder.bitcast(builder.gep(self.block, [byte]), I64.as_pointer()))
        return function, [builder.trunc(size, I32) for size in sizes], waits

    def by_graph(self, words: Any, launches: Any, stream: Any) -> None:
        """Submit the graph and set ``done``, if the graph is free and serves this stream, which is not captured."""
        builder = self.builder
        state = {name: builder.gep(words, [I64(i)]) for i, name in enumerate(GraphState._fields)}
        captured, node, errors = self.room(I32), self.room(I64, 9), self.room(I32)
        begin = builder.load(self.at)
        taken = builder.atomic_rmw("xchg", state["lock"], I64(1), "acquire")
        with builder.if_then(builder.icmp_unsigned("==", taken, I64(0))):
            serves = builder.icmp_unsigned("==", builder.load(state["stream"]), stream)
            with builder.if_then(builder.and_(serves, builder.not_(self.has_failed()))):
                status = self.at_address(builder.load(state["is_capturing"]), I32, stream, captured)
                status = builder.or_(status, builder.load(captured))
                with builder.if_then(builder.icmp_unsigned("==", status, I32(0))):
                    self.change_and_submit(state, builder.gep(words, [I64(len(state))]), launches, stream, node, errors)
            builder.store_atomic(I64(0), state["lock"], "release", 8)
        builder.store(begin, self.at)

    def change_and_submit(self, state: Any, nodes: Any, launches: Any, stream: Any, node: Any, errors: Any) -> None:
        """Change the arguments of all nodes and submit the graph; after an error it serves no stream any more."""
        builder = self.builder
        graph = builder.load(state["graph"])
        builder.store(I32(0), errors)
        with cgutils.for_range(builder, launches) as loop:
            function, sizes, _ = self.arguments()
            # CUDA_KERNEL_NODE_PARAMS: a function (null: a kernel), sizes, arguments, no others, the kernel, its context
            for i, value in enumerate((I64(0), I64(0), I64(0), I64(0), I64(0), self.places, I64(0), function, I64(0))):
                word = builder.ptrtoint(value, I64) if value is self.places else value
                builder.store(word, builder.gep(node, [I64(i)]))
            place = builder.bitcast(builder.gep(node, [I64(1)]), I32.as_pointer())
            for i, size in enumerate(sizes):
                builder.store(size, builder.gep(place, [I64(i)]))
            of_graph = builder.load(builder.gep(nodes, [loop.index]))
            status = self.at_address(builder.load(state["set_arguments"]), I32, graph, of_graph, node)
            builder.store(builder.or_(builder.load(errors), status), errors)
        with builder.if_then(builder.icmp_unsigned("==", builder.load(errors), I32(0))):
            builder.store(self.at_address(builder.load(state["launch"]), I32, graph, stream), errors)
        is_right = builder.icmp_unsigned("==", builder.load(errors), I32(0))
        builder.store(is_right, self.done)
        builder.store(builder.select(is_right, stream, I64(-1)), state["stream"])

    def note(self, status: Any, number: Any) -> None:
        """Remember the status of a call, and its number, if it is an error."""
        builder = self.builder
        failed = builder.or_(builder.shl(number, I64(32)), builder.zext(status, I64))
        is_error = builder.icmp_unsigned("!=", status, I32(0))
        builder.store(builder.select(is_error, failed, I64(0)), self.failed)

    def has_failed(self) -> Any:
        return self.builder.icmp_unsigned("!=", self.builder.load(self.failed), I64(0))

    def word(self) -> Any:
        place = self.builder.load(self.at)
        self.builder.store(self.builder.gep(place, [I64(1)]), self.at)
        return self.builder.load(place)
