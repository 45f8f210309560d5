"""Makes text of any origin safe to show: names of kernels, files and datasets, fields of records, and messages of
errors.

A terminal executes control characters: an ESC in the name of a file can move the cursor, overwrite lines that were
printed before, or set the window's title. Characters for text direction make a text look different from what it is, and
two Unicode separators end a line of JavaScript. All these characters are shown as escapes.
"""

from __future__ import annotations

import re

#: Controls (C0 but tab and line feed, DEL, C1), marks and overrides of direction, the line and paragraph separators.
_UNSAFE = "\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_FOUND = re.compile(f"[{_UNSAFE}]")


def legible(text: str) -> str:
    r"""Replace control characters in ``text`` by visible escapes; tabs and line feeds stay.

    >>> print(legible("plain \x1b[31mred\x1b[0m \u202etxt"))
    plain \x1b[31mred\x1b[0m \u202etxt
    """
    return _FOUND.sub(lambda match: _escape(match[0]), text)


def json_escaped(text: str) -> str:
    r"""Replace control characters in JSON by JSON's own escapes, so that the JSON means the same and is safe to show.

    >>> print(json_escaped('["\x9b\u2028"]'))
    ["\u009b\u2028"]
    """
    return _FOUND.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
