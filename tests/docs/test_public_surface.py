"""The public surface: every public definition has a docstring and a typed signature, but for numbers that only fall.

Public is a class or function of a module, or a method or property of such a class, without a leading underscore in its name.
No docstring of its own is needed by a method that a Protocol of the same package describes, and by the function under
``@kernel``, whose declaration says its ``idea``. No types are needed by functions that Numba compiles: it infers them from
each call, and there are none in Python for pointers, or for arrays of any dtype and their tuples.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import tilewright

PACKAGE = Path(tilewright.__file__).parent

#: Decorators of functions that Numba compiles, and of kernels.
COMPILED = {"njit", "register_jitable", "overload", "intrinsic", "_inner", "kernel"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

#: How many public definitions of a package have no docstring, or an untyped signature, now. A number may only be lowered.
WITHOUT_DOCSTRING = {
    "arrays": 29,
    "catalog": 2,
    "planning": 5,
    "runtime": 8,
    "streaming": 42,
}
UNTYPED: dict[str, int] = {}


def decorators(node: Definition) -> set[str]:
    """The last names of a definition's decorators: ``@nb.njit(nogil=True)`` is "njit"."""
    names = set()
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def public(body: list[ast.stmt], prefix: str = "") -> list[tuple[str, Definition]]:
    """The public definitions of a module or class, and of the classes in it."""
    found: list[tuple[str, Definition]] = []
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        found.append((prefix + node.name, node))
        if isinstance(node, ast.ClassDef):
            found += public(node.body, f"{prefix}{node.name}.")
    return found


def is_untyped(node: Definition) -> bool:
    """Whether a parameter or the result of a function has no annotation; ``self`` and ``cls`` need none."""
    if isinstance(node, ast.ClassDef) or decorators(node) & COMPILED:
        return False
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    given = [each for each in arguments if each is not None and each.arg not in ("self", "cls")]
    return node.returns is None or any(each.annotation is None for each in given)


def described(sources: list[str]) -> set[str]:
    """The names of the methods that the protocols in these sources describe."""
    classes = (node for source in sources for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    protocols = (each for each in classes if any(getattr(base, "id", "") == "Protocol" for base in each.bases))
    return {name for protocol in protocols for name, node in public(protocol.body) if ast.get_docstring(node)}


def faults(source: str, known: set[str]) -> tuple[list[str], list[str]]:
    """The public definitions of a source without a docstring, and those with an untyped signature."""
    found = public(ast.parse(source).body)
    bare = [
        name
        for name, node in found
        if ast.get_docstring(node) is None and "kernel" not in decorators(node)
        if not ("." in name and node.name in known)
    ]
    return bare, [name for name, node in found if is_untyped(node)]


def counted() -> tuple[Counter[str], Counter[str], list[str]]:
    """How many of either each package has, and all of them by module and name."""
    packages: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        packages.setdefault(path.relative_to(PACKAGE).with_suffix("").parts[0], []).append(path)
    without, untyped, names = Counter[str](), Counter[str](), []
    for package, paths in packages.items():
        known = described([path.read_text(encoding="utf-8") for path in paths])
        for path in paths:
            bare, loose = faults(path.read_text(encoding="utf-8"), known)
            without[package] += len(bare)
            untyped[package] += len(loose)
            where = path.relative_to(PACKAGE).as_posix()
            names += [f"{where} {name}: no docstring" for name in bare] + [
                f"{where} {name}: not typed" for name in loose
            ]
    return +without, +untyped, names


def test_no_more_is_undocumented_or_untyped_than_is_known() -> None:
    without, untyped, names = counted()
    assert not without - Counter(WITHOUT_DOCSTRING), "\n".join(names)
    assert not untyped - Counter(UNTYPED), "\n".join(names)


SOURCE = '''
import numba as nb
from typing import Protocol

class Source(Protocol):
    """A matrix."""
    def read(self) -> None:
        """Read it."""

class Plain:
    def read(self): ...
    def size(self) -> int: ...
    def _own(self, x): ...

@nb.njit(nogil=True)
def compiled(x): ...

@kernel(idea="It multiplies.")
def product(a, b, c): ...

def typed(x: int, *rest: int) -> int:
    """Typed."""

def untyped(x: int, *rest) -> int:
    """Untyped."""
'''


def test_faults_are_found() -> None:
    bare, loose = faults(SOURCE, described([SOURCE]))
    assert bare == ["Plain", "Plain.size", "compiled"]
    assert loose == ["Plain.read", "untyped"]
