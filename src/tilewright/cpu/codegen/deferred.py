"""Functions for compiled code that exist once a compiler is there: so a kernel's module is read without one.

A kernel's module declares compiled functions (``njit``) and asks the generator for others (``codegen.packer(bits)``). Where
the engine's machine code was built before, nothing of that is needed in the process, and Numba may not even be installed.
So these names stand for what they will be: a ``Deferred`` makes the function when Numba first meets it in code that it
compiles, or when Python calls it. Numba asks every value for its type (``_numba_type_``), and finds here what it inlines.
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
    """What ``make()`` returns, once it is needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def real(self) -> Any:
        """The function itself."""
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
    """A function of Python that Numba compiles with these options; ``py_func`` is the function as Python."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(lambda: _numba().njit(**options)(function))
        self.py_func, self.targetoptions = function, options
        functools.update_wrapper(self, function)


#: Functions that stay apart from those which call them.
apart: list[Deferred] = []


def njit(*, stays_apart: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options, deferred. A function that ``stays_apart`` is called where it is built before, and
    never made a part of its caller: where sums may be reordered, or multiplied and added at once, the bits of a result
    would depend on who calls."""

    def declare(function: Callable[..., Any]) -> Any:
        jitted = _Jitted(function, options)
        if stays_apart:
            apart.append(jitted)
        return jitted

    return declare


def register_jitable(function: Function) -> Function:
    """The function itself, which compiled code may call, too: ``numba.extending.register_jitable``, deferred."""
    _untold.append(lambda: _extending().register_jitable(function))
    return function


def overload(function: Callable[..., Any]) -> Callable[[Function], Function]:
    """What compiled code calls in place of ``function``: ``numba.extending.overload``, deferred."""

    def register(chosen: Function) -> Function:
        _untold.append(lambda: _extending().overload(function)(chosen))
        return chosen

    return register


def generated(module: str, name: str) -> Any:
    """A function of the generator that compiled code calls."""
    return Deferred(lambda: _from_generator(module, name))


def generator(module: str, name: str, results: int = 1) -> Callable[..., Any]:
    """A function of the generator that makes one or several such functions."""

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
    """Tell Numba of what was declared since the last time; to be called before anything is compiled."""
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
