"""The index of the reference: each entry of the pages under ``docs/api`` with the first sentence of its docstring.

Modules are read as text, so that those of PyTorch, JAX and Dask need not be installed.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import tilewright

from .common import ROOT

PACKAGE = ROOT / "src" / "tilewright"
#: The pages in their order.
PAGES = ("arrays", "files", "cluster", "torch", "jax", "microscope", "laboratory", "errors")
ENTRY = re.compile(r"^::: (tilewright\.[\w.]+)$", re.MULTILINE)


def entries(page: str) -> list[str]:
    """The full names of what a page describes, in its order."""
    return ENTRY.findall((ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8"))


def index() -> str:
    """The entries of each page, under the page's title: a list, because a phone has no room for a table with such names."""
    lines = []
    for page in PAGES:
        lines += [f"## [{title(page)}]({page}.md)", ""]
        lines += [f"- [`{name}`]({page}.md#{name}): {first_sentence(name)}" for name in entries(page)]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def title(page: str) -> str:
    """The title of a page."""
    return (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def first_sentence(name: str) -> str:
    """The first sentence of an entry's docstring, as Markdown.

    >>> first_sentence("tilewright.gemm"), first_sentence("tilewright.errors")
    ('C ← α·A·B + β·C in place, as in BLAS.', 'The errors that callers can cause.')
    """
    text = docstring(name).split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.])\s(?=[A-Z])", text)[0]


def docstring(name: str) -> str:
    """The docstring of a public name, or of a name of a module, wherever it is defined."""
    return ast.get_docstring(definition(name)) or ""


def definition(name: str) -> ast.Module | ast.FunctionDef | ast.ClassDef:
    """The source of a public name, or of a name of a module, wherever it is defined."""
    parts = name.split(".")[1:]
    if parts[0] in tilewright.__all__:
        module, own = tilewright._PUBLIC[parts[0]]
        return definition_in(module.split("."), own)
    if len(parts) == 1:
        return definition_in(parts, "")
    return definition_in(parts[:-1], parts[-1])


def definition_in(module: list[str], name: str) -> ast.Module | ast.FunctionDef | ast.ClassDef:
    """The source of a name of a module, or of the module itself if it is empty; follows an import of that name."""
    folder = PACKAGE.joinpath(*module)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = parsed(path)
    if not name:
        return tree
    base = module if folder.is_dir() else module[:-1]
    for node in [*ast.walk(tree)][::-1]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name and ast.get_docstring(node):
            return node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return definition_in([*base[: len(base) + 1 - node.level], *(node.module or "").split(".")], name)
    raise LookupError(f"{path.name} has no {name}")


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The source of a file, read once."""
    return ast.parse(path.read_text(encoding="utf-8"))
