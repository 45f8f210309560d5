"""Docstrings as Markdown: their doctests become blocks of code, and names of this package become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

import tilewright

DOCTEST = re.compile(r"(?:^|(?<=\n))(>>> .*?)(?=\n[ \t]*\n(?!>>> )|\s*\Z)", re.DOTALL)
#: "see ``matmul``", where the text sends the reader to another entry of the reference.
SEE = re.compile(rf"\b(see\s+)``(?:tilewright\.)?({'|'.join(tilewright.__all__)})``")
#: The errors of the package: sections "Raises" name them without their module.
ERRORS = [name for name in vars(tilewright.errors) if name.endswith("Error")]


def fenced(text: str) -> str:
    """The text of a docstring with each of its doctests in a block of code.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nTwo.'
    """
    return DOCTEST.sub(lambda match: f"```pycon\n{match[1].rstrip()}\n```", text)


def linked(text: str) -> str:
    """The text of a docstring with links to other entries of the reference.

    >>> linked("The error that is promised: see ``matmul``.")
    'The error that is promised: see [`matmul`][tilewright.matmul].'
    """
    return SEE.sub(r"\1[`\2`][tilewright.\2]", text)


class Doctests(griffe.Extension):
    """Called by griffe for every object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object where it has one."""
        if obj.docstring:
            obj.docstring.value = fenced(linked(obj.docstring.value))

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Lets each module know the errors, so that their names become links."""
        for name in ERRORS:
            if name not in mod.members:
                mod.set_member(name, griffe.Alias(name, f"tilewright.errors.{name}"))
