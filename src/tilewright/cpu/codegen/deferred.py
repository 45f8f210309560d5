"""Defers the creation of functions for compiled code until a compiler needs them, so that a kernel's module can be
imported without a compiler.

A kernel's module declares compiled functions (``njit``), and gets other compiled functions from the generator
(``codegen.packer(bits)``). If the engine's machine code was built before, the process needs no compiled functions, and
Numba need not be installed. So each such function is a ``Deferred``, which makes the function when Numba first meets
its name in code that it compiles, or when Python calls it. Numba reads the attribute ``_numba_type_`` of every value,
and so finds the function behind a ``Deferred``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from ...host.cached_property import cached_property

Function = TypeVar("Function", bound=Callable[..., Any])

#: What is to be told to Numba before it compiles.
_untold: list[Callable[[], object]] = []


class Deferred:
    """A stand-in for the result of ``make()``; the function ``make`` is called when its result is first needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def real(self) -> Any:
        """The function that ``make()`` returns."""
        tell_compiler()
        return self._make()

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(self.real)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.real(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by ``copy`` and the like, which are to know nothing of the function
            raise AttributeError(name)
        return getattr(self.real, name)


class _Jitted(Deferred):
    """A function in Python that Numba compiles with given options; ``py_func`` is the uncompiled function."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(lambda: _numba().njit(**options)(function))
        self.py_func, self.targetoptions = function, options
        functools.update_wrapper(self, function)


#: Functions that stay apart from those which call them.
apart: list[Deferred] = []


def njit(*, stays_apart: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options, deferred.

    A function that ``stays_apart`` is compiled separately and never inlined into its caller. ``stays_apart`` is for
    code whose sums the compiler may reorder or fuse with multiplications: if that code were inlined, the bits of a
    result would depend on the caller."""

    def declare(function: Callable[..., Any]) -> Any:
        jitted = _Jitted(function, options)
        if stays_apart:
            apart.append(jitted)
        return jitted

    return declare


def register_jitable(function: Function) -> Function:
    """``numba.extending.register_jitable``, deferred: Python and compiled code can both call the function."""
    _untold.append(lambda: _extending().register_jitable(function))
    return function


def overload(function: Callable[..., Any]) -> Callable[[Function], Function]:
    """Defer ``numba.extending.overload``: compiled code calls the decorated function instead of ``function``."""

    def register(chosen: Function) -> Function:
        _untold.append(lambda: _extending().overload(function)(chosen))
        return chosen

    return register


def generated(module: str, name: str) -> Any:
    """Return a ``Deferred`` for a function of the code generator that compiled code calls."""
    return Deferred(lambda: _from_generator(module, name))


def generator(module: str, name: str, results: int = 1) -> Callable[..., Any]:
    """Return a ``Deferred`` for a function of the code generator that makes one or several functions for compiled
    code."""

    def make(*arguments: Any, **named: Any) -> Any:
        made = Deferred(
            lambda: _from_generator(module, name)(
                *map(_undeferred, arguments), **{key: _undeferred(value) for key, value in named.items()}
            )
        )
        return made if results == 1 else tuple(Deferred(functools.partial(_part, made, at)) for at in range(results))

    make.__name__ = name
    return make


def tell_compiler() -> None:
    """Register with Numba everything that was declared since the last call of ``tell_compiler``. ``tell_compiler`` must
    be called before anything is compiled."""
    importlib.import_module("tilewright.cpu.codegen.jit")  # first: it says for what processor is compiled
    while _untold:
        _untold.pop(0)()


def _part(made: Deferred, at: int) -> Any:
    return made.real[at]


def _undeferred(value: Any) -> Any:
    return value.real if isinstance(value, Deferred) else value


def _from_generator(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"tilewright.cpu.codegen.{module}"), name)


def _numba() -> Any:
    import numba

    return numba


def _extending() -> Any:
    import numba.extending

    return numba.extending
