"""The public surface: every public definition has a docstring and a typed signature.

Public is a class or function of a module, or a method or property of such a class, without a leading underscore in its name.
No docstring of its own is needed by a method that a base class or a Protocol describes, and by the function under
``@kernel``, whose declaration says its ``idea``. No types are needed by functions that Numba compiles: it infers them from
each call, and there are none in Python for pointers, or for arrays of any dtype and their tuples.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent

#: Decorators of functions that Numba compiles, and of kernels.
COMPILED = {"njit", "register_jitable", "overload", "intrinsic", "_inner", "kernel"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

#: How many public definitions of a package may have no docstring, or an untyped signature: none.
WITHOUT_DOCSTRING: dict[str, int] = {}
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


@dataclass(frozen=True)
class Described:
    """What the docstrings of classes say: the members of each by its name, and those that protocols describe."""

    members: dict[str, set[str]]
    bases: dict[str, set[str]]
    by_protocols: set[str]

    @classmethod
    def by(cls, sources: list[str]) -> Described:
        classes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        members, bases = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for each in classes:  # of one name there may be several
            members[each.name] |= {name for name, node in public(each.body) if ast.get_docstring(node)}
            bases[each.name] |= {ast.unparse(base).partition("[")[0] for base in each.bases}
        return cls(members, bases, set().union(*(members[name] for name in bases if "Protocol" in bases[name])))

    def of(self, name: str) -> set[str]:
        """The members of a class that itself, its bases or a protocol describe."""
        own = self.members.get(name, set())
        return own.union(self.by_protocols, *(self.of(base) for base in self.bases.get(name, set())))


def faults(source: str, known: Described) -> tuple[list[str], list[str]]:
    """The public definitions of a source without a docstring, and those with an untyped signature."""
    tree = ast.parse(source)
    found = public(tree.body)
    bare = [
        name
        for name, node in found
        if ast.get_docstring(node) is None and not {"kernel", "overload"} & decorators(node)
        if not ("." in name and node.name in known.of(name.rpartition(".")[0]))
    ]
    return bare, [name for name, node in found if is_untyped(node)]


def counted() -> tuple[Counter[str], Counter[str], list[str]]:
    """How many of either each package has, and all of them by module and name."""
    packages: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        packages.setdefault(path.relative_to(PACKAGE).with_suffix("").parts[0], []).append(path)
    without, untyped, names = Counter[str](), Counter[str](), []
    known = Described.by([path.read_text(encoding="utf-8") for paths in packages.values() for path in paths])
    for package, paths in packages.items():
        for path in paths:
            bare, loose = faults(path.read_text(encoding="utf-8"), known)
            without[package] += len(bare)
            untyped[package] += len(loose)
            where = path.relative_to(PACKAGE).as_posix()
            names += [f"{where} {name}: no docstring" for name in bare] + [
                f"{where} {name}: not typed" for name in loose
            ]
    return +without, +untyped, names


@pytest.mark.slow
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
    bare, loose = faults(SOURCE, Described.by([SOURCE]))
    assert bare == ["Plain", "Plain.size", "compiled"]
    assert loose == ["Plain.read", "untyped"]
