"""The source files of a kernel, with their texts: its own file, and the files that it includes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def file_label(file: str, main: str) -> str:
    """Return the name of a source file in a listing. The name is empty for the kernel's own file ``main``. The name of
    another file is its path, relative to the folder of ``main`` or to the current folder if the file lies in one of
    them.

    >>> [file_label(file, "/home/me/k.cu") for file in ("/home/me/k.cu", "/home/me/inc/t.cuh", "/a/t.cuh")]
    ['', 'inc/t.cuh', '/a/t.cuh']
    """
    plain = os.path.normpath(main)
    while plain.startswith(f"..{os.sep}"):
        plain = plain[3:]
    if not file or file == plain or file.endswith(f"/{plain}"):
        return ""
    for folder in (Path(main).absolute().parent, Path.cwd()):
        if file.startswith(f"{folder}/"):
            return file[len(str(folder)) + 1 :]
    return file


def included_texts(labels: Iterable[str], main: str) -> dict[str, str]:
    """Return the texts of files by their labels, in order; the text is empty for a file that cannot be read."""
    texts = {}
    for label in sorted({label for label in labels if label}):
        places = [Path(main).absolute().parent / label, Path(label)]
        texts[label] = next((text for place in places if (text := _text(place))), "")
    return texts


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""
