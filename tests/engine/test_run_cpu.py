"""Running a CPU kernel: what it refuses, and the machine code that it keeps on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy then knows bfloat16 by its name
import numpy as np
import pytest

from tilewright.cpu.runtime.runner import compiled, runner
from tilewright.errors import CacheWarning, ShapeError, UsageError
from tilewright.kernels import Kernel
from tilewright.kernels.catalog import catalog, load_file

LADDER = [kernel for kernel in catalog().values() if not kernel.is_reference]

MINE = """
from tilewright.kernels import kernel

@kernel(idea="Fills C.", row="", parent="cpu/naive")
def fill(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = {value}
"""

TUNABLE = MINE.replace("a, b, c", "a, b, c, *, first=3, second=4")


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [k for k in LADDER if "float32" in k.dtypes], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        ("float16", {}, "has no float16: it takes float32"),
        ("bool", {}, "has no bool"),
        ("float32", {"threads": 0}, "threads must be at least 1, got 0"),
        ("float32", {"threads": -2}, "threads must be at least 1, got -2"),
        ("float32", {"params": {"leeaf": 3}}, "leeaf is not one of its parameters; tunable: "),
    ],
)
def test_refused(kernel: Kernel, dtype: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        runner(kernel, dtype, **options)


@pytest.mark.slow_cases(
    "cpu/integer_dots", "cpu/bfloat16_dots", "cpu/integer_tiles", "cpu/bfloat16_tiles", "cpu/narrow_integers"
)
@pytest.mark.parametrize("kernel", [k for k in LADDER if set(k.params) - k.tunable], ids=lambda kernel: kernel.name)
def test_fixed_numbers_cannot_be_set(kernel: Kernel) -> None:
    for name in kernel.params.keys() - kernel.tunable:
        with pytest.raises(UsageError, match=f"{kernel.name}: {name} is fixed in its source; tunable: (none|leaf)$"):
            runner(kernel, kernel.dtypes[0], params={name: 1})


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain Python"])
def test_parameters_reach_the_kernel(compiled: bool, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(TUNABLE.format(value="10 * first + second").replace('row=""', f'row="", compiled={compiled}'))
    kernel = load_file(mine)
    c = np.zeros((3, 3))
    for params, value in [({}, 34), ({"second": 7}, 37), ({"second": 1, "first": 2}, 21)]:
        runner(kernel, "float64", params=params)(c, c, c)
        assert (c == value).all()


# ---- what is compiled again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_unsigned_integers_run_the_code_of_signed_ones(dtype: str) -> None:
    """Nothing is compiled for them; what they multiply to is in ``test_dtypes``."""
    kernel = catalog()["cpu/ikj_threads"]
    code = compiled(kernel, np.dtype(dtype))
    assert compiled(kernel, np.dtype(f"u{dtype}")) is code
    large = np.array([[np.iinfo(f"u{dtype}").max]], f"u{dtype}")
    c = np.zeros_like(large)
    runner(kernel, large.dtype)(large, large, c)
    assert c == 1


#: Compiles kernels for a dtype and prints what C became and how often the cache was hit and missed.
PROCESS = """
import json, sys, numpy as np
from tilewright.kernels.catalog import find
from tilewright.cpu.runtime.runner import compiled, runner
said = {}
for kernel in find(sys.argv[2:]):
    c = np.ones((3, 3), sys.argv[1])
    runner(kernel, c.dtype)(c.copy(), c.copy(), c)
    stats = compiled(kernel, c.dtype).dispatcher.stats
    said[kernel.name] = [c[0, 0], sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]
print(json.dumps({name: [float(value), *counts] for name, (value, *counts) in said.items()}))
"""
HIT, MISS = [1, 0], [0, 1]


def start(cache: Path, dtype: str, *kernels: object) -> subprocess.Popen[str]:
    environment = os.environ | {"TILEWRIGHT_CACHE": str(cache)}
    command = [sys.executable, "-W", "error", "-c", PROCESS, dtype, *map(str, kernels)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, list[float]]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def compile_in_a_process(cache: Path, dtype: str, *kernels: object) -> dict[str, list[float]]:
    return finish(start(cache, dtype, *kernels))


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_another_dtype_is_compiled_beside_it(tmp_path: Path) -> None:
    names = [LADDER[0].name, next(kernel.name for kernel in LADDER if kernel.strided)]
    for dtype, expected in [("float32", MISS), ("float64", MISS), ("float32", HIT), ("float64", HIT)]:
        assert compile_in_a_process(tmp_path, dtype, *names) == {name: [3.0, *expected] for name in names}


@pytest.mark.slow
def test_an_edited_kernel_is_compiled_again(tmp_path: Path) -> None:
    mine, cache = tmp_path / "fill.py", tmp_path / "cache"
    then = None
    for value, expected in [(5, MISS), (6, MISS), (5, HIT), (6, HIT)]:
        mine.write_text(MINE.format(value=value))
        if then is not None:  # an editor that keeps the time stamp and the size: numba's own key would not notice
            os.utime(mine, ns=(then.st_atime_ns, then.st_mtime_ns))
        then = mine.stat()
        assert compile_in_a_process(cache, "float64", mine) == {"my/fill": [float(value), *expected]}


@pytest.mark.slow
def test_a_file_edited_after_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was loaded is run, and is not kept as the machine code of what the file says now."""
    mine, cache = tmp_path / "fill.py", tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(cache))
    mine.write_text(MINE.format(value=5))
    kernel = load_file(mine)
    mine.write_text(MINE.format(value=6))
    c = np.zeros((2, 2))
    runner(kernel, "float64")(c, c, c)
    assert (c == 5).all()
    assert compile_in_a_process(cache, "float64", mine) == {"my/fill": [6.0, *MISS]}


@pytest.mark.slow
def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    """All start from an empty cache; whatever they leave is whole, and nobody gets the other dtype's code."""
    name = LADDER[0].name
    dtypes = ["float32", "float64", "float32", "float64"]
    for process in [start(tmp_path, dtype, name) for dtype in dtypes]:
        assert finish(process)[name][0] == 3.0
    for dtype in dtypes[:2]:
        assert compile_in_a_process(tmp_path, dtype, name)[name] == [3.0, *HIT]


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a kernel, and with a cache that holds its machine code, also where it is copied to."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "fill.py").write_text(MINE.format(value=5))
    assert compile_in_a_process(folder / "cache", "float32", folder / "fill.py") == {"my/fill": [5.0, *MISS]}
    shutil.copytree(folder / "cache", folder / "copy")
    assert compile_in_a_process(folder / "copy", "float32", folder / "fill.py") == {"my/fill": [5.0, *HIT]}
    return folder


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"torn"], ids=["empty", "torn"])
def test_what_a_crash_has_torn_is_written_anew(
    suffix: str, content: bytes, compiled_once: Path, tmp_path: Path
) -> None:
    mine, cache = compiled_once / "fill.py", tmp_path / "cache"
    shutil.copytree(compiled_once / "cache", cache)
    (torn,) = cache.rglob(f"*{suffix}")
    torn.write_bytes(content)
    for expected in (MISS, HIT):
        assert compile_in_a_process(cache, "float32", mine) == {"my/fill": [5.0, *expected]}


@pytest.mark.slow
def test_machine_code_of_which_a_crash_lost_a_page_is_not_called(compiled_once: Path, tmp_path: Path) -> None:
    mine, cache = compiled_once / "fill.py", tmp_path / "cache"
    shutil.copytree(compiled_once / "cache", cache)
    (code,) = cache.rglob("*.nbc")
    content = bytearray(code.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 512] = bytes(512)
    code.write_bytes(content)
    for expected in (MISS, HIT):
        assert compile_in_a_process(cache, "float32", mine) == {"my/fill": [5.0, *expected]}


def test_a_cache_that_cannot_be_written_costs_no_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    mine = tmp_path / "fill.py"
    mine.write_text(MINE.format(value=5))
    c = np.zeros((2, 2))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    with pytest.warns(CacheWarning, match="is not used: No space left on device; compiled code"):
        runner(load_file(mine), "float64")(c, c, c)
    assert (c == 5).all()


@pytest.mark.parametrize("name", ["cpu/ikj", "cpu/register_tile"])
@pytest.mark.parametrize("shapes", [((3, 4), (5, 6), (3, 6)), ((3, 4), (4, 6), (2, 6)), ((3, 4), (4, 6), (3, 7))])
def test_shapes_that_do_not_fit_are_refused(name: str, shapes: tuple[tuple[int, int], ...]) -> None:
    a, b, c = (np.ones(shape, np.float32) for shape in shapes)
    with pytest.raises(ShapeError, match="must be"):
        runner(catalog()[name], "float32")(a, b, c)
