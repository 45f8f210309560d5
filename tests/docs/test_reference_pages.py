"""The reference under ``docs/api``: every public name is on one page, and its docstring describes every parameter."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import tilewright

ROOT = Path(__file__).parents[2]
#: Modules to import, which belong to the public surface with the package itself.
MODULES = ("dask", "torch", "jax", "files")

#: How the description of an option begins, wherever a product has it; those that plan say what the product would do.
SAME_WORDS = {
    "precision": "The guaranteed error bound",
    "out": "Receives the result, cast by NumPy's ``same_kind`` rule, and is returned."
    "|The array (or file )?that would receive",
    "memory": "The most memory that (the call may add to this process|each task may take): bytes, or a text such as",
    "device_memory": "The most memory that the call may use on each GPU: bytes, or a text such as",
    "overwrite": "Whether to replace an existing file ``out`` when the result is complete. "
    "If False, such a file is an error.",
    "out_dtype": "The dtype of the result, if not that of the operands",
    "device": "Where to multiply",
    "axes": "The axes that are summed",
    "verify": "Whether to check the product afterwards, in O\\(n²\\) operations on the host, and log the error",
    "optimize": "The order in which pairs of operands are multiplied",
    "progress": "Is called as ``progress\\(done, all\\)``",
    "offsets": "The end of each group.",
    "rows": "Whether to multiply rows: A·Aᴴ.",
    "lower": "The triangle of C, with the diagonal, that is read and written",
}
#: Where a name of the table means something else.
OTHER_MEANING = {("tilewright.torch.Linear", "device"), ("tilewright.files.open_matrix", "axes")}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module("tables.api")


def public_names() -> list[str]:
    """The full names of everything public: what ``__all__`` has, of the package and of the modules to import."""
    names = [f"tilewright.{name}" for name in tilewright.__all__]
    for module in MODULES:
        text = (ROOT / "src" / "tilewright" / f"{module}.py").read_text(encoding="utf-8")
        listed = re.search(r"^__all__ = (\[.*?\])$", text, re.MULTILINE | re.DOTALL)
        assert listed, f"{module} has no __all__"
        names += [f"tilewright.{module}.{name}" for name in ast.literal_eval(listed[1])]
    return sorted(names)


def test_every_public_name_is_on_exactly_one_page(reference: ModuleType) -> None:
    found = Counter(name for page in reference.PAGES for name in reference.entries(page))
    assert {name for name, pages in found.items() if pages > 1} == set()
    assert {name for name in public_names() if name not in found} == set()
    assert {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} == {"index", *reference.PAGES}
    assert "tilewright.torch.Linear" in found


def test_every_entry_has_a_line_in_the_index(reference: ModuleType) -> None:
    index = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    assert reference.index() in index
    assert doctest.testmod(reference) == (0, 1)
    with pytest.raises(LookupError, match="away"):
        reference.first_sentence("tilewright.torch.away")


# ---- what a docstring says


def sections(text: str) -> dict[str, dict[str, str]]:
    """The sections of a docstring in numpydoc's style: of each one its items, with their descriptions."""
    parts = re.split(r"^(\w+(?: Also)?)\n-+\n", text, flags=re.MULTILINE)
    found = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        items = re.split(r"^(?=\S)", body, flags=re.MULTILINE) if title != "Notes" else [body]
        pairs = [item.partition("\n") for item in items if item.strip()]
        found[title] = {
            name.strip(): " ".join(each.strip() for each in rest.splitlines() if each.strip())
            for head, _, rest in pairs
            for name in head.partition(" :")[0].split(",")
        }
    return found


def parameters(node: ast.FunctionDef) -> list[str]:
    """The parameters of a function, without ``self``; stars as numpydoc writes them."""
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [each.arg for each in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return [name for name in names if name != "self"]


def faults(name: str, text: str, node: ast.FunctionDef) -> list[str]:
    """What is wrong with the docstring of a public function."""
    found = sections(text)
    described = found.get("Parameters", {})
    wrong = [] if list(described) == parameters(node) else [f"describes {list(described)}, has {parameters(node)}"]
    returns = node.returns is None or ast.unparse(node.returns) not in ("None", "Iterator[None]")
    needed = {"Examples"} | ({"Returns"} if returns else set())
    wrong += [f"no section {title}" for title in sorted(needed - set(found))]
    wrong += [
        f"{title}: {item} has no text"
        for title in ("Parameters", "Raises")
        for item, said in found.get(title, {}).items()
        if not said
    ]
    wrong += [
        f"{option}: {described[option][:50]!r}"
        for option, words in SAME_WORDS.items()
        if option in described and (name, option) not in OTHER_MEANING and not re.match(words, described[option])
    ]
    return [f"{name}: {each}" for each in wrong]


def test_every_public_function_describes_its_parameters_result_and_errors(reference: ModuleType) -> None:
    found = []
    for name in public_names():
        node = reference.definition(name)
        if isinstance(node, ast.FunctionDef):
            found += faults(name, ast.get_docstring(node) or "", node)
        elif isinstance(node, ast.ClassDef):
            found += [
                f"{name}: no section {title}"
                for title in ("Parameters", "Examples")
                if title not in sections(ast.get_docstring(node) or "")
            ]
    assert found == []


def test_every_entry_names_its_neighbours(reference: ModuleType) -> None:
    """One to four, each an entry of the pages, in the form of which ``docs/site/doctests.py`` makes links."""
    entries = [name for page in reference.PAGES if page != "errors" for name in reference.entries(page)]
    for name in entries:
        section = re.search(r"^See Also\n-{8}\n((?:.+\n?)+)", reference.docstring(name), re.MULTILINE)
        assert section, name
        neighbours = [re.fullmatch(r"([\w.]+) : [A-Z].*[.]", line) for line in section[1].splitlines()]
        assert all(neighbours), name
        named = [each[1] for each in neighbours if each]
        full = {f"tilewright.{each}" if each in tilewright.__all__ else each for each in named}
        assert full <= {*entries} - {name}, name
        assert len(full) == len(named) <= 4, name


def test_a_docstring_that_leaves_something_out_is_found() -> None:
    source = '''
def product(a, *, precision="standard", out=None) -> int:
    """One.

    Parameters
    ----------
    a : array
    precision : str
        How precise it is.
    """
'''
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert faults("product", ast.get_docstring(node) or "", node) == [
        "product: describes ['a', 'precision'], has ['a', 'precision', 'out']",
        "product: no section Examples",
        "product: no section Returns",
        "product: Parameters: a has no text",
        "product: precision: 'How precise it is.'",
    ]
