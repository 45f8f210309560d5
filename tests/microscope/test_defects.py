"""Right kernels are silent and right, however they look; a planted defect is named: kind, line, thread, place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.defects import DEFECTS, KERNELS, RIGHT, Defect, source
from tilewright.errors import UnavailableError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.findings import ASYNCHRONOUS, CLUSTERS, COMPILED, KINDS, Finding, marked_grade

NAMES = [defect.name for defect in DEFECTS]


def execute(text: str, kernel: str, **options: Any) -> Run:
    try:
        ptx = compile_source(text, name="test.cu", arch="sm_90").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    launch = KERNELS[kernel]
    given = {"outputs": [launch.output], "shared_bytes": launch.shared_bytes, "max_steps": 200_000} | options
    return simulate(ptx, "k", launch.grid, launch.block, launch.args(), RunOptions(**given))


def marked(text: str) -> list[tuple[int, str]]:
    """Lines that must be named, and as what."""
    return sorted(
        (number, kind.strip())
        for number, line in enumerate(text.splitlines(), 1)
        if "// !! " in line
        for kind in line.split("// !! ")[1].split(",")
    )


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernel_is_silent_and_right(name: str) -> None:
    launch = KERNELS[name]
    run = execute(source(name), name)
    assert run.findings == []
    assert run.complete
    made = run.arrays[launch.output]
    assert made is not None
    np.testing.assert_array_equal(made, launch.right(*launch.args()).reshape(made.shape))


def main_finding(defect: Defect, findings: list[Finding]) -> Finding:
    """The one that the entry describes: the first with a line, or the one without if no line is to be named."""
    return next((f for f in findings if f.line), findings[0])


@pytest.mark.slow_cases("row guard is <=", "a loop that steps over its end")
@pytest.mark.parametrize("defect", DEFECTS, ids=NAMES)
def test_planted_defect_is_named(defect: Defect) -> None:
    run = execute(defect.source, defect.kernel, **defect.options)
    assert sorted({(f.line, f.kind) for f in run.findings if f.line}) == marked(defect.source)
    assert [f.kind for f in run.findings if not f.line] == [defect.nowhere] * bool(defect.nowhere)
    found = main_finding(defect, run.findings)
    assert (found.kernel, found.block, found.thread) == ("k", defect.block, defect.thread)
    assert defect.says in found.text
    named = f"{found.kind}{marked_grade(found.grade)}"
    assert str(found).startswith(f"{found.file}:{found.line}: {named} in k, " if found.line else named)


@pytest.mark.parametrize("defect", [d for d in DEFECTS if d.at], ids=lambda d: d.name)
def test_the_place_is_named(defect: Defect) -> None:
    """The operand or shared variable, and the byte in it; the address of a shared variable is its offset."""
    found = main_finding(defect, execute(defect.source, defect.kernel, **defect.options).findings)
    assert defect.at is not None
    assert found.address is not None
    where, byte = defect.at
    if isinstance(where, int):
        arrays = [i for i, value in enumerate(KERNELS[defect.kernel].args()) if isinstance(value, np.ndarray)]
        assert found.address == (arrays.index(where) + 1 << 36) + byte
        assert f"argument {where}" in found.text
    else:
        assert f"byte {byte} of " in found.text
        assert f"shared {where} (" in found.text


def test_every_right_kernel_is_launched() -> None:
    assert len(list(RIGHT.glob("*.cu"))) == len(KERNELS)


def test_every_kind_is_planted() -> None:
    kinds = [kind for defect in DEFECTS for _, kind in marked(defect.source)] + [
        d.nowhere for d in DEFECTS if d.nowhere
    ]
    assert set(kinds) == set(KINDS) - {"trap", *ASYNCHRONOUS, *CLUSTERS, *COMPILED}
    assert len(DEFECTS) >= 24
    assert len(set(NAMES)) == len(NAMES)


def test_the_test_of_a_defect_can_fail() -> None:
    """A right kernel fails it: nothing is named where something must be."""
    sound = Defect("none", "tiled", [("__syncthreads(); // full", "__syncthreads(); // !! race")])
    with pytest.raises(AssertionError):
        test_planted_defect_is_named(sound)


def test_a_failed_assertion_traps() -> None:
    says = 'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);\n'
    text = says + source("pairs").replace(
        "s[i] = x[i];", 'if (n <= 64) __assertfail("n > 64", "test.cu", 5, "k", 1); // !! trap\ns[i] = x[i];'
    )
    run = execute(text, "pairs")
    assert [(f.line, f.kind) for f in run.findings if f.line] == marked(text)
