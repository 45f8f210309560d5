"""Runs the notebooks and stores what their cells show: ``python docs/site/notebooks.py [FILE.ipynb …]``, else all.

The cells run in this process, one after another, as JupyterLab would run them: nothing of Jupyter is needed. A test runs
them again and compares, so that stored outputs do not go stale. What a cell with the tag ``varies`` shows depends on the
machine: it must show as much as before. A notebook that needs a GPU is run where there is one, and its outputs belong to
the cells that were run: the digest of these is stored with them.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
#: The tag of a cell whose outputs depend on the machine.
VARIES = "varies"
Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """The notebook in a file."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def write(path: Path, notebook: Notebook) -> None:
    """Writes a notebook as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def needs_gpu(notebook: Notebook) -> bool:
    """Whether the notebook can run only where there is a GPU."""
    return bool(notebook["metadata"].get("needs_gpu"))


def digest(notebook: Notebook) -> str:
    """A digest of the code."""
    return hashlib.sha256("\0".join(map(source, code_cells(notebook))).encode()).hexdigest()[:16]


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    """The text of a cell; the format allows a list of lines."""
    return "".join(cell["source"])


def executed(notebook: Notebook) -> tuple[Notebook, dict[str, Any]]:
    """The notebook with new outputs, and the variables that its cells leave. An exception of a cell is raised.

    >>> cells = [{"cell_type": "code", "source": ["x = 6\\n", "print(x)\\n", "7 * x"], "outputs": []}]
    >>> ran, variables = executed({"metadata": {}, "cells": cells})
    >>> [shown(output) for output in ran["cells"][0]["outputs"]], variables["x"]
    (['6\\n', '42'], 6)
    """
    ran = copy.deepcopy(notebook)
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(ran), 1):
        try:
            cell["outputs"] = _outputs(source(cell), f"cell {number}", number, variables)
        except Exception as error:
            error.add_note(f"in cell {number}:\n{source(cell)}")
            raise
        cell["execution_count"] = number
    ran["metadata"]["digest"] = digest(ran)
    return ran, variables


def _outputs(code: str, name: str, number: int, variables: dict[str, Any]) -> list[dict[str, Any]]:
    """What one cell prints, and the value of the expression that ends it."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), variables)
        data = _data(value)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if data:
        what = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        outputs.append(what)
    return outputs


def _data(value: object) -> dict[str, list[str]]:
    """A value as Jupyter shows it: text, and HTML if it has some."""
    if value is None:
        return {}
    display = getattr(value, "_repr_html_", None)
    return ({"text/html": _lines(display())} if display else {}) | {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def shown(output: dict[str, Any]) -> str:
    """An output as a reader sees it: HTML where there is some, else text."""
    data = output.get("data", {})
    return "".join(output["text"] if "text" in output else data.get("text/html", data.get("text/plain", [])))


def markdown(notebook: Notebook) -> str:
    """A page of the site: texts, code, and what the cells show. HTML stays as it is; a link in it is none of the page's.

    >>> code = {"cell_type": "code", "source": "1 + 1", "outputs": [{"output_type": "stream", "text": ["2"]}]}
    >>> print(markdown({"cells": [{"cell_type": "markdown", "source": ["# Sums"]}, code]}))
    # Sums
    <BLANKLINE>
    ```python
    1 + 1
    ```
    <BLANKLINE>
    ```text
    2
    ```
    <BLANKLINE>
    """
    parts = []
    for cell in notebook["cells"]:
        is_code = cell["cell_type"] == "code"
        parts.append(f"```python\n{source(cell)}\n```" if is_code else source(cell))
        for output in cell.get("outputs", ()):
            is_html = "text/html" in output.get("data", {})
            text = shown(output).removesuffix("\n")
            parts.append(text.replace("[", "&#91;") if is_html else f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def differences(stored: Notebook, ran: Notebook) -> list[str]:
    """The cells whose stored outputs are not those of this run, with both."""
    found = []
    for number, (before, after) in enumerate(zip(code_cells(stored), code_cells(ran), strict=True), 1):
        said, says = ([*map(shown, cell["outputs"])] for cell in (before, after))
        varies = VARIES in before["metadata"].get("tags", ()) and len(said) == len(says)
        if said != says and not varies:
            found.append(f"cell {number} shows\n{''.join(says)}\nand its stored output is\n{''.join(said)}")
    return found


def main(arguments: Sequence[str]) -> None:
    """Runs the notebooks that are named, or all that this machine can run."""
    paths = [Path(argument) for argument in arguments]
    for path in paths or [path for path in sorted(FOLDER.glob("*.ipynb")) if not needs_gpu(read(path))]:
        write(path, executed(read(path))[0])
        print(f"{path.name}: outputs are stored")


if __name__ == "__main__":
    main(sys.argv[1:])
