"""Docstrings as Markdown: their doctests, which Markdown would take for quotations, are put into code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^|(?<=\n))(>>> .*?)(?=\n[ \t]*\n(?!>>> )|\s*\Z)", re.DOTALL)


def fenced(text: str) -> str:
    """The text of a docstring with each of its doctests in a block of code.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nTwo.'
    """
    return DOCTEST.sub(lambda match: f"```pycon\n{match[1].rstrip()}\n```", text)


class Doctests(griffe.Extension):
    """Called by griffe for every object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object where it has one."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
