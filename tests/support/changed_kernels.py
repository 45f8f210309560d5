"""Kernels of the engine with a defect, which tests must find."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tilewright.kernels.cuda_kernel import CudaKernel


def changed(kernel: CudaKernel, folder: Path, file: str, *changes: tuple[str, str], times: int = 1) -> CudaKernel:
    """The kernel, copied to ``folder`` with all files beside it, of which ``file`` has another text in place of what each of
    these patterns matches, so many ``times``."""
    for path in kernel.path.parent.glob("*.cu*"):
        (folder / path.name).write_bytes(path.read_bytes())
    text = (folder / file).read_text()
    for pattern, instead in changes:
        text, count = re.subn(pattern, instead, text)
        assert count == times
    (folder / file).write_text(text)
    copy = folder / kernel.path.name
    return dataclasses.replace(kernel, path=copy, source=copy.read_text())
