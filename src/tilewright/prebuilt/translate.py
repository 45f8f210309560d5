"""Translates functions of Python to an object file: what a process of the build does.

Numba usually compiles each function that another one calls into a library of its own, optimises it, links it into the
library of its caller and optimises that library again. In a build, nothing is optimised until all functions are in one
module, and nothing is run: so this module changes the classes that Numba uses, for this process.
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba as nb
from llvmlite import ir
from numba.core import cgutils, codegen, cpu, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array

from ..cpu.codegen import direct, machine_numbers
from ..cpu.codegen.deferred import apart
from ..cpu.codegen.settings import SETTINGS
from ..cpu.codegen.vectors import I64
from ..cpu.runtime.entries import Entry
from ..cpu.runtime.library import FAILED
from ..host.levels import InstructionLevel

# ---- private names of Numba ------------------------------------------------------------------------------------------
#
# ``_changes`` has those that are replaced. ``_translates_for`` and ``_finish`` set what the methods in whose place they are
# would set. The others:
#
#     CodeLibrary._final_module, ._linking_libraries         the modules that are linked here, without ``finalize``
#     CodeLibrary._codegen, Codegen._data_layout             the generator of a library, and its target's layout
#     Codegen._create_empty_module                           the module of the functions that C calls
#     Codegen._module_pass_manager                           the passes that Numba itself runs
#     BaseContext._internal_codegen                          the generator, which is made again for the target
#     array structure ._getvalue                             the value of an array that is filled field by field
#
# If a name is gone, the build raises AttributeError. If one has another meaning, tests/prebuilt/test_built_library.py fails:
# ``test_machine_code_does_not_depend_on_the_machine_that_builds_it``, or a test that multiplies by the built library.


def change_numba(level: InstructionLevel) -> None:
    """Change Numba so that it only translates functions, for the system of a level."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for owner, name, change in _changes(level):
        getattr(owner, name)  # raises AttributeError where Numba has no such name, and would not call what is set
        setattr(owner, name, change)
    context: Any = cpu_target.target_context
    context._internal_codegen = codegen.JITCPUCodegen("tilewright")  # in place of the one for this machine
    machine_numbers.for_library = True


def _changes(level: InstructionLevel) -> list[tuple[Any, str, Any]]:
    """Owner, name and new value of each attribute that is replaced; the comments say what the old one does."""
    translates = functools.partialmethod(_translates_for, level)
    library = codegen.CPUCodeLibrary
    return [
        (llvm, "get_process_triple", lambda: level.triple),  # the system of this machine
        (codegen.CPUCodegen, "_init", translates),  # makes an engine that runs code on this machine
        (library, "_optimize_functions", _give_layout),  # optimises a module when it is added to a library
        (library, "_optimize_final_module", _do_nothing),  # optimises a library
        (library, "finalize", _finish),  # links the libraries that it uses, optimises the whole and loads it
        (cpu.CPUContext, "get_executable", _nothing_to_run),  # makes a function of Python of loaded code
    ]


def _translates_for(self: Any, level: InstructionLevel, *_: Any) -> None:
    """What Numba's generator of code knows of its target, and no engine that could run code."""
    self._tm, self._tm_features = target_machine(level), level.llvm_features
    self._target_data = self._tm.target_data
    self._data_layout = str(self._target_data)
    self._loopvect, self._opt_level, self._engine = False, 0, None


def _give_layout(self: Any, module: Any) -> None:
    module.data_layout = self._codegen._data_layout


def _do_nothing(self: Any, *_: Any) -> None:
    """All modules are linked and optimised at the end."""


def _finish(self: Any) -> None:
    self._finalized = True


def _nothing_to_run(*_: Any) -> Callable[..., Any]:
    """A new function each time: Numba knows compiled functions by these."""
    return [].append


def target_machine(level: InstructionLevel) -> Any:
    """Return LLVM's generator of machine code for a level; the code can be loaded at any address."""
    return llvm.Target.from_triple(level.triple).create_target_machine(
        cpu=level.tuned_for, features=level.llvm_features, opt=3, reloc="pic", codemodel="default"
    )


class Translator:
    """Collects the functions that entries need, and writes them as object files."""

    def __init__(self, level: InstructionLevel) -> None:
        gc.disable()  # of what Numba allocates little is garbage: looking for it took a third of the time
        change_numba(level)
        self._level = level
        self._context = cpu_target.target_context
        self._codegen = self._context.codegen()

    def write(self, path: Path, wanted: Iterable[Entry], *, is_for_calls: bool) -> None:
        """Write the wanted entries to an object file ``.o``, and a list of them to a file ``.json``. The object for
        calls has the functions that belong to no kernel, and defines the numbers that all objects read."""
        self._libraries: dict[int, Any] = {}
        self._wrappers = self._codegen._create_empty_module("wrappers")
        #: Names of machine code that has another name in the library, and that one.
        self._names: dict[str, str] = {}
        functions = []
        with global_compiler_lock:
            for entry in wanted:
                self._add(entry)
                functions.append(entry.name)
        Path(f"{path}.o").write_bytes(self._object(self._linked(is_for_calls)))
        Path(f"{path}.json").write_text(json.dumps({"functions": functions, "settings": sorted(SETTINGS)}))

    def _add(self, entry: Entry) -> None:
        njit: Any = nb.njit  # whose stubs lack these options
        options = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **entry.options}
        dispatcher = njit(**options)(entry.function)
        dispatcher.compile(entry.arguments if entry.returns is None else entry.returns(*entry.arguments))
        (compiled,) = dispatcher.overloads.values()
        self._gather(compiled.library)
        native = compiled.fndesc.llvm_func_name
        if entry.kind == "kernel":
            self._names[native] = entry.name
        self._wrap(entry, native, compiled.signature)

    def _gather(self, library: Any) -> None:
        if id(library) not in self._libraries:
            self._libraries[id(library)] = library
            for other in library._linking_libraries:
                self._gather(other)

    # ---- functions as C calls them -----------------------------------------------------------------------------------

    def _wrap(self, entry: Entry, native: str, signature: Any) -> None:
        """A function of C that calls the machine code. An array is its address, shape and, with two axes, strides;
        other arguments, and the result, are 64-bit numbers or addresses."""
        words = [I64] * sum(map(_words, signature.args))
        name = f"call {entry.name}" if entry.kind == "kernel" else entry.name
        function = ir.Function(self._wrappers, ir.FunctionType(I64, words), name)
        builder = ir.IRBuilder(function.append_basic_block())
        given = iter(function.args)
        values = [self._value(builder, kind, given) for kind in signature.args]
        convention = self._context.call_conv
        callee = cgutils.get_or_insert_function(
            self._wrappers, convention.get_function_type(signature.return_type, signature.args), native
        )
        status, returned = convention.call_function(builder, callee, signature.return_type, signature.args, values)
        builder.ret(builder.select(status.is_ok, _as_number(builder, signature.return_type, returned), I64(FAILED)))

    def _value(self, builder: Any, kind: Any, given: Iterator[Any]) -> Any:
        if isinstance(kind, types.CPointer):
            return builder.inttoptr(next(given), self._context.get_value_type(kind))
        if not isinstance(kind, types.Array):
            number = next(given)
            return builder.trunc(number, self._context.get_value_type(kind)) if _bits(kind) < 64 else number
        view = self._context.make_array(kind)(self._context, builder)
        address, shape = next(given), [next(given) for _ in range(kind.ndim)]
        itemsize = I64(self._context.get_abi_sizeof(self._context.get_data_type(kind.dtype)))
        strides = [next(given) for _ in range(kind.ndim)] if kind.ndim > 1 else [itemsize]
        populate_array(
            view,
            data=builder.inttoptr(address, view.data.type),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, strides),
            itemsize=itemsize,
            meminfo=None,
        )
        return view._getvalue()

    # ---- one module --------------------------------------------------------------------------------------------------

    def _linked(self, is_for_calls: bool) -> Any:
        """All modules as one, of which only what the library offers can be seen from outside."""
        settings = {machine_numbers.PREFIX + name for name in SETTINGS}
        offered = {function.name for function in self._wrappers.functions if function.blocks}
        if is_for_calls:
            for name in sorted(settings):
                ir.GlobalVariable(self._wrappers, I64, name).initializer = I64(0)
            for add_table in direct.TABLES.values():
                add_table(self._wrappers)
        module = llvm.parse_assembly(cgutils.normalize_ir_text(str(self._wrappers)))
        for library in self._libraries.values():
            module.link_in(library._final_module, preserve=True)  # other objects need it, too
        defined = {function.name for function in module.functions}
        for native, name in self._names.items():
            module.get_function(native).name = name
        for function in apart:
            for compiled in function.real.overloads.values():
                if compiled.fndesc.llvm_func_name in defined:
                    module.get_function(compiled.fndesc.llvm_func_name).add_function_attribute("noinline")
        offered |= settings | set(self._names.values()) | set(direct.TABLES)
        # In kernels as Numba has them: LLVM inlines an internal function that has one caller, however large, and loops that
        # are then compiled as one function keep addresses on the stack. A call of a small product is faster so.
        inlined = "internal" if is_for_calls else "linkonce_odr"
        for values, hidden in ((module.functions, inlined), (module.global_variables, "internal")):
            for value in values:
                if not value.is_declaration:
                    value.linkage = "external" if value.name in offered else hidden
                if value.name in direct.TABLES:
                    value.visibility = "hidden"  # within the library: its address needs no look-up
        module.verify()
        return module

    def _object(self, module: Any) -> bytes:
        """The module as an object, after the passes that Numba runs on a module."""
        for options in ({"loop_vectorize": False, "slp_vectorize": False, "opt": 0, "cost": "cheap"}, {}):
            passes, builder = self._codegen._module_pass_manager(**options)
            passes.run(module, builder)
        for function in module.functions:
            if function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = "internal"  # another object may have another function of this name
        return bytes(target_machine(self._level).emit_object(module))


def _words(kind: Any) -> int:
    """The numbers by which C passes an argument."""
    return (1 + kind.ndim + (kind.ndim if kind.ndim > 1 else 0)) if isinstance(kind, types.Array) else 1


def _bits(kind: Any) -> int:
    return 1 if isinstance(kind, types.Boolean) else int(kind.bitwidth)


def _as_number(builder: Any, kind: Any, value: Any) -> Any:
    if kind == types.none:
        return I64(0)
    return builder.zext(value, I64) if isinstance(kind, types.Boolean) else value
