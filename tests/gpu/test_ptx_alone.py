"""What tests compile to PTX alone stays with the simulated GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from support import ptx_alone
from tilewright.runtime.gpu.nvrtc import Compiled


def kept() -> dict[tuple[str, str], Any]:
    """All functions of the package that return a compiled source and keep it, by module and name."""
    return {
        (module, name): value
        for module in list(sys.modules)
        if module.startswith("tilewright.")
        for name, value in list(vars(sys.modules[module]).items())  # a deferred function imports what it is made of
        if hasattr(value, "cache_info") and value.__annotations__.get("return") == Compiled.__name__
    }


def test_a_gpu_of_the_same_process_is_given_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver would refuse it: it has no binary."""
    before = kept()
    ptx_alone.install(monkeypatch)
    assert before
    assert [name for name, function in kept().items() if function is before[name]] == []
