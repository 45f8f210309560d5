"""Docstrings as Markdown: doctests become blocks of code, names of this package and sections "See Also" become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

import tilewright

DOCTEST = re.compile(r"(?:^|(?<=\n))(>>> .*?)(?=\n[ \t]*\n(?!>>> )|\s*\Z)", re.DOTALL)
#: "see ``matmul``", where the text sends the reader to another entry of the reference.
SEE = re.compile(rf"\b(see\s+)``(?:tilewright\.)?({'|'.join(tilewright.__all__)})``")
#: A section "See Also" with its entries, ``name : What it does.``, one a line.
SEE_ALSO = re.compile(r"(?<=^See Also\n--------\n)(?:[\w.]+ : .*\n?)+", re.MULTILINE)
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


def listed(text: str) -> str:
    """The text of a docstring with the entries of its section "See Also" as a list of links.

    A public name stands for itself in the package; any other name is written in full.

    >>> print(listed("One.\\n\\nSee Also\\n--------\\nplan : Shows more.\\ntilewright.jax.matmul : For JAX."))
    One.
    <BLANKLINE>
    See Also
    --------
    - [`plan`][tilewright.plan]: Shows more.
    - [`tilewright.jax.matmul`][]: For JAX.
    """
    return SEE_ALSO.sub(lambda match: "".join(map(_entry, match[0].splitlines(keepends=True))), text)


def _entry(line: str) -> str:
    name, _, words = line.partition(" : ")
    return f"- [`{name}`][{f'tilewright.{name}' if name in tilewright.__all__ else ''}]: {words}"


def summarised(text: str) -> str:
    """The text of a docstring with its first paragraph on one line: summaries show the first line alone.

    >>> summarised("One\\nsentence.\\n\\nMore\\ntext.")
    'One sentence.\\n\\nMore\\ntext.'
    """
    first, gap, rest = text.partition("\n\n")
    return " ".join(first.split("\n")) + gap + rest


class Doctests(griffe.Extension):
    """Called by griffe for every object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object where it has one."""
        if obj.docstring:
            obj.docstring.value = fenced(linked(listed(summarised(obj.docstring.value))))

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Lets each module know the errors, so that their names become links."""
        for name in ERRORS:
            if name not in mod.members:
                mod.set_member(name, griffe.Alias(name, f"tilewright.errors.{name}"))
