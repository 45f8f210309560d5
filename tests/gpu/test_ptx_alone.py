"""What tests compile to PTX alone stays with the simulated GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support import ptx_alone
from tilewright.gpu.runtime import steps  # noqa: F401  # imports all that compiles for a GPU
from tilewright.gpu.runtime.compilations import Compilations


def kept() -> dict[tuple[str, str], Any]:
    """All that the package has compiled and keeps, by module and name."""
    return {
        (module, name): value
        for module in list(sys.modules)
        if module.startswith("tilewright.")
        for name, value in list(vars(sys.modules[module]).items())  # a deferred function imports what it is made of
        if isinstance(value, Compilations)
    }


def test_a_gpu_of_the_same_process_is_given_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver would refuse it: it has no binary."""
    before = kept()
    ptx_alone.install(monkeypatch)
    assert before
    assert [name for name, compilations in kept().items() if compilations is before[name]] == []
