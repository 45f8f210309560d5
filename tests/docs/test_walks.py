"""Which components a call enters: calls go down the staircase of imports, also those of functions that were passed.

A *climb* is a call of a function of a component by code of a component below it. Three kinds of calls are no climbs: a
property that is computed at its first use, the work that a thread is started with, and what a kernel declares.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from docs.test_house import PACKAGE
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.gpu.arrays import repeated

#: The folders of the package, the lowest first.
FOLDERS = ("records", "host", "product", "kernels", "cpu", "gpu", "prebuilt", "large", "api", "simulator", "lab")
#: What is called for another: who called it is looked for above.
THROUGH = (
    "host/cached_property",
    "cpu/runtime/stop",
    "cpu/runtime/interrupts",
    "cpu/runtime/threads",
    "kernels/declared",
)
TEXT = """
extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }
"""


@functools.cache
def module_of(code: CodeType) -> str:
    """The module of the package that a function is in, as a path; "" for others."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return ""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


class Walk:
    """The folders that were entered, and the climbs, of all threads."""

    def __init__(self) -> None:
        self.folders, self.climbs = set[str](), set[tuple[str, str]]()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:  # noqa: ARG002
        if event != "call" or not (module := module_of(frame.f_code)):
            return
        folder, _, file = module.partition("/")
        if not file or frame.f_code.co_flags & CO_GENERATOR:  # an entry file; what only yields was called before
            return
        self.folders.add(folder)
        below = frame.f_back
        while below is not None and (not (of := module_of(below.f_code)) or of.startswith(THROUGH)):
            below = below.f_back
        if below is not None and folder in FOLDERS:
            caller = module_of(below.f_code)
            start = caller.split("/")[0]
            if start in FOLDERS and FOLDERS.index(start) < FOLDERS.index(folder):
                self.climbs.add((f"{caller}: {below.f_code.co_name}", f"{module}: {frame.f_code.co_name}"))


@contextmanager
def walked() -> Iterator[Walk]:
    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def squares(n: int, count: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.uniform(-1, 1, (n, n)).astype(np.float32) for _ in range(count)]


def matmul(n: int) -> Callable[[Path], object]:
    return lambda folder: tw.matmul(*squares(n))


def gemm(folder: Path) -> None:
    a, b, c = squares(90, 3)
    tw.gemm(2.0, a, b, 1.0, c)


def multiply(folder: Path) -> None:
    for name, matrix in zip("ab", squares(70), strict=True):
        np.save(folder / f"{name}.npy", matrix)
    tw.multiply(folder / "a.npy", folder / "b.npy", out=folder / "c.npy", overwrite=True)


def microscope(folder: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    tw.microscope(TEXT, "twice", 1, 32, [np.ones(32, np.float32)])


#: Each walk with the folders that it may enter.
ON_HOST = {"api", "product", "cpu", "kernels", "host"}
WALKS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "matmul of 8": (matmul(8), ON_HOST),
    "matmul of 300": (matmul(300), ON_HOST),
    "matmul of 1200 on two threads": (matmul(1200), ON_HOST),
    "gemm": (gemm, ON_HOST),
    "multiply": (multiply, ON_HOST - {"api"} | {"large", "gpu", "records"}),
    "microscope": (microscope, {"simulator", "gpu", "host", "records"}),
}


@pytest.mark.parametrize("name", WALKS)
def test_calls_go_down(name: str, tmp_path: Path) -> None:
    call, folders = WALKS[name]
    with tw.use_threads(2):
        call(tmp_path)  # loads modules
    with tw.use_threads(2), walked() as walk:
        call(tmp_path)
    assert not walk.climbs
    assert walk.folders <= folders


def test_calls_on_a_gpu_go_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first product of a shape, and one like it, which repeats its launches."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    gpu = fake.installed(monkeypatch, 1 << 21, 4)
    fake.rungs_alone(monkeypatch)
    (x, y), (a, b) = ([laid(fake.Tensor, gpu, each, "rows") for each in squares(n)] for n in (20, 24))
    try:
        tw.matmul(x, y)  # loads modules
        with walked() as first:
            tw.matmul(a, b)
        tw.matmul(a, b)
        with walked() as again:
            tw.matmul(a, b)
    finally:
        repeated.short_ways.clear()
        repeated.finished_ways.clear()
    assert not first.climbs | again.climbs
    assert first.folders <= ON_HOST | {"gpu"}  # of "cpu" the C front, which does not know the shape yet
    assert again.folders <= {"api", "gpu", "cpu"}  # the C front


def test_every_folder_has_a_place() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == {*FOLDERS}


def test_a_climb_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.api import matmul as above
    from tilewright.product import problem as below

    monkeypatch.setattr(below, "call", eval(compile("lambda f: f()", below.__file__, "eval")), raising=False)
    function = eval(compile("lambda: None", above.__file__, "eval"))
    with walked() as walk:
        below.call(function)
    assert walk.climbs == {("product/problem: <lambda>", "api/matmul: <lambda>")}
