"""The engine's built machine code: what a process does with it, and without it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.cpu.codegen.settings import SETTINGS
from tilewright.cpu.runtime import library, machine_code
from tilewright.cpu.runtime.library import kernel_name
from tilewright.host.levels import LEVELS, instruction_levels
from tilewright.host.machine import machine
from tilewright.kernels import blocking
from tilewright.prebuilt import build, tools

HERE = library.built_level(machine())
built = pytest.mark.skipif(
    HERE is None, reason="no library was built for this processor: python -m tilewright.prebuilt"
)


def child(code: str, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# ---- with a library --------------------------------------------------------------------------------------------------

PRODUCTS = """
import sys, ml_dtypes, numpy as np, tilewright as tw
rng = np.random.default_rng(1)
for dtype in sys.argv[1:] or "float32 float64 complex64 complex128 int8 uint8 int16 int32 uint64 float16 bfloat16".split():
    for m, k, n in ((3, 4, 5), (150, 170, 190), (1, 500, 600), (40, 2100, 30), (300, 10, 400), (430, 420, 410)):
        x, y = (rng.integers(0, 3, shape) for shape in ((m, k), (k, n)))
        a, b, exact = x.astype(dtype), y.astype(dtype), (x @ y).astype(dtype)
        for threads in (1, 2):
            with tw.use_threads(threads):
                assert (tw.matmul(a, b) == exact).all(), (dtype, m, k, n, threads)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"numba", "llvmlite"}))
"""


@pytest.mark.thorough
@built
def test_no_dtype_needs_a_compiler() -> None:
    """Small, large and thin products, in rows and by several threads, import neither Numba nor LLVM."""
    assert child(PRODUCTS) == "\n"


@built
@pytest.mark.slow
def test_the_same_products_by_the_compiler() -> None:
    assert child(PRODUCTS.replace("sys.argv[1:] or ", "['float32'] or "), TILEWRIGHT_COMPILE="1") == "llvmlite numba\n"


@built
def test_the_library_has_all_that_the_engine_calls() -> None:
    from tilewright.cpu.runtime import entries

    assert HERE is not None
    about = json.loads((library.BUILT / f"{HERE.name}.json").read_text())
    if not library.is_current(HERE):
        pytest.skip("the library is older than the sources")
    assert set(about["functions"]) == {entry.name for entry in entries.entries()}
    assert set(about["settings"]) == set(SETTINGS)
    assert kernel_name("cpu/packed", "float32", "float32") in about["functions"]


@built
def test_numbers_of_the_machine_are_read_by_machine_code(tmp_path: Path) -> None:
    """The library has none of its own: the same file serves a machine with other caches."""
    code = """
import ctypes
from tilewright.cpu.runtime import library
from tilewright.cpu.runtime.machine_code import engine_code
from tilewright.host.machine import machine
from tilewright.kernels import blocking
import numpy as np, tilewright as tw
tw.matmul(np.ones((9, 9)), np.ones((9, 9)))
dll = ctypes.CDLL(str(library.BUILT / library.built_level(machine()).file_name))
print(ctypes.c_int64.in_dll(dll, "tilewright.setting.l2").value)
"""
    folder = Path(__file__).parents[1] / "data" / "machines"
    for name in ("xeon-large-l3", "one-core"):
        caches = json.loads((folder / f"{name}.json").read_text())["caches"]
        description = {"caches": caches, "isa": machine().isa}  # the same library
        (tmp_path / "machine.json").write_text(json.dumps(description))
        l2 = next(cache["size"] for cache in caches if cache["level"] == 2)
        assert int(child(code, TILEWRIGHT_MACHINE=str(tmp_path / "machine.json"))) == l2


OBJECT = """
import hashlib, sys
from pathlib import Path
from tilewright.host.levels import level_named
from tilewright.prebuilt.translate import Translator
from tilewright.cpu.runtime.entries import entries
names = "packed float32 float32", "outer float32 float32", "strassen_fused float32 float32", "integer_dots int8 int32"
wanted = {f"kernel cpu/{name}" for name in names} | {"products float32", "stand_by"}
translator = Translator(level_named("x86-64-v4-vnni"))
translator.write(sys.argv[1], (entry for entry in entries() if entry.name in wanted), is_for_calls=True)
print(hashlib.sha256(Path(sys.argv[1] + ".o").read_bytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the level is of x86-64")
def test_machine_code_does_not_depend_on_the_machine_that_builds_it(tmp_path: Path) -> None:
    """It would be wrong on another one of its level."""
    folder, found = Path(__file__).parents[1] / "data" / "machines", set()
    for name in ("xeon-large-l3", "one-core"):
        facts = json.loads((folder / f"{name}.json").read_text())
        machine_file = tmp_path / f"{name}.json"
        machine_file.write_text(json.dumps({key: facts[key] for key in ("caches", "usable_cores")}))
        variables = {
            "TILEWRIGHT_MACHINE": str(machine_file),
            "TILEWRIGHT_BUILD_LEVEL": "x86-64-v4-vnni",
        } | build.SAME_EACH_TIME
        found.add(child(OBJECT, str(tmp_path / "object"), **variables))
    assert len(found) == 1


def test_after_a_change_of_a_kernel_its_own_object_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[str] = []

    class Process:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            assert env["TILEWRIGHT_BUILD_LEVEL"] == level.name
            for given in command[3:]:
                kernel, _, path = given.partition("=")
                built.append(kernel)
                Path(f"{path}.json").touch()

        def wait(self) -> int:
            return 0

    def objects() -> set[str]:
        built.clear()
        paths = build._objects(level, tmp_path / "objects", 2, lambda _: None)
        assert {path.with_suffix(".json") for path in paths} == set((tmp_path / "objects").iterdir())
        return set(built)

    level, own = LEVELS[0], build.own_sources()
    monkeypatch.setattr(build.subprocess, "Popen", Process)
    assert objects() == set(own)
    assert not objects()
    changed = tmp_path / "packed.py"
    changed.write_text("another")
    monkeypatch.setattr(build, "own_sources", lambda: own | {"cpu/packed": [changed]})
    assert objects() == {"cpu/packed"}


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    level = LEVELS[0]
    monkeypatch.setattr(library, "BUILT", tmp_path)
    assert not library.is_current(level)
    about = tmp_path / f"{level.name}.json"
    about.write_text(json.dumps({"key": library.sources_key()}))
    assert library.is_current(level)
    about.write_text(json.dumps({"key": "another"}))
    assert not library.is_current(level)


def test_only_the_best_level_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the code of a lower one, or of other vectors, workspace of this machine's tiles would be too small."""
    monkeypatch.setattr(library, "BUILT", tmp_path)
    low, high = (next(level for level in LEVELS if level.name == name) for name in ("x86-64-v3", "x86-64-v4"))
    vectors = {"vector_bits": 512, "vector_registers": 32}
    here = replace(machine(), isa=high.isa, system="Linux 6 x86_64", **vectors)
    (tmp_path / low.file_name).touch()
    assert library.built_level(here) is None
    assert library.built_level(replace(here, isa=low.isa, vector_bits=256, vector_registers=16)) == low
    (tmp_path / high.file_name).touch()
    assert library.built_level(here) == high
    assert library.built_level(replace(here, vector_bits=256)) is None


def test_a_tuned_tile_is_not_multiplied_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    here = blocking.analytic(machine())
    for change, same in (({"kc": here.kc // 2 or 16}, True), ({"mr": here.mr - 1}, False), ({"unroll": 1}, False)):
        monkeypatch.setattr(blocking, "in_force", lambda change=change: replace(here, **change))
        assert blocking.has_analytic_tile() is same, change


# ---- without one -----------------------------------------------------------------------------------------------------

NUMPY_ALONE = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
from pathlib import Path
from tilewright.cpu.runtime import library
library.BUILT = Path("/nowhere")
import numpy as np, tilewright as tw
from tilewright.errors import UnavailableError
a = np.arange(12.0).reshape(3, 4)
assert (tw.matmul(a, a.T) == a @ a.T).all()
assert (tw.gemm(2.0, a, a.T, 0.0, np.zeros((3, 3))) == 2 * (a @ a.T)).all()
try:
    tw.plan_multiply(a, a.T, device="cpu")
except UnavailableError as error:
    print(error)
print(tw.plan(a, a.T))
"""


def test_without_library_and_compiler_numpy_multiplies() -> None:
    said = child(NUMPY_ALONE)
    assert "must be compiled, and no library was built for this processor" in said
    assert "Numba is not installed: pip install" in said
    assert "ref/numpy" in said or "NumPy" in said


@pytest.mark.parametrize("name", ["", "no-such-compiler-anywhere"])
def test_without_a_c_compiler_the_build_says_so(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", name)
    with pytest.raises(tools.BuildError, match=r"no C compiler \(cc\): install gcc or clang, or name one in \$CC"):
        tools.c_compiler(platform.machine())


def test_an_unknown_level_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["x86-64-v5"]) == 1
    assert "there is no level x86-64-v5; did you mean x86-64-v" in capsys.readouterr().err


# ---- levels ----------------------------------------------------------------------------------------------------------


def test_each_level_has_what_an_earlier_one_of_its_line_has() -> None:
    for level in LEVELS:
        assert instruction_levels(level.arch, level.isa)[0] == level
        assert len(set(level.isa)) == len(level.isa)
    assert instruction_levels("x86_64", {"sse2"}) == []
    assert instruction_levels("riscv64", LEVELS[0].isa) == []


@pytest.mark.parametrize(("lacking", "best"), [("avx512bf16", "x86-64-v4-vnni"), ("avx512f", "x86-64-v3"), ("fma", "")])
def test_the_best_level_of_a_processor(lacking: str, best: str) -> None:
    isa = set(next(level for level in LEVELS if level.name == "x86-64-v4-bf16").isa) - {lacking}
    found = instruction_levels("x86_64", isa)
    assert (found[0].name if found else "") == best


def test_what_machine_code_is_in_use_is_described() -> None:
    text = machine_code.describe_code()
    assert text.startswith("built for ") if HERE and library.is_current(HERE) else "compiled" in text or "none" in text
