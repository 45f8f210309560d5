"""Archives of GPU kernels: what products ask for, what an archive gives, and what makes it useless."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import UnavailableError
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.matmul import plan_of_views
from tilewright.gpu.arrays.plan import prepare
from tilewright.gpu.runtime import compilations, nvrtc
from tilewright.gpu.runtime.compilations import Request, engine_file, engine_kernel
from tilewright.kernels.catalog import cuda_engine
from tilewright.prebuilt import build, gpu

pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'tilewright[cuda]'")

ARCH = "sm_80"
BF16 = ("bfloat16", "standard", None)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Request]]:
    """An archive of the kernels of a few products, and what they are."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    wanted = gpu.needed(ARCH, [("complex128", "standard", None)], 1)[:2]
    folder = tmp_path_factory.mktemp("built")
    gpu.write_archive(ARCH, wanted, folder, jobs=1, say=lambda _: None)
    return folder, wanted


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No archive is open, and none is found, before a test and after it."""
    monkeypatch.setattr(compilations, "_BUILT", Path("nowhere"))
    compilations._archive.cache_clear()
    compilations._compilations.clear()
    yield
    compilations._archive.cache_clear()
    compilations._compilations.clear()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the compiler is asked for; it compiles none."""
    asked: list[str] = []

    def refuse(source: str, *, name: str, **_: Any) -> Any:
        asked.append(Path(name).name)
        raise UnavailableError("no compiler")

    monkeypatch.setattr(nvrtc, "compile_source", refuse)
    return asked


def compiled_alone(wanted: list[Request]) -> list[bytes]:
    """The binaries, from a process of their own: after a kernel was compiled without optimising it, NVRTC makes others."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return [rows[0][-1] for _, rows in pool.map(gpu._rows, [[request] for request in wanted])]


def test_products_ask_for_kernels(compiles: list[str]) -> None:
    """Nothing is compiled to find them; two dtypes ask for different ones, and the same again for the same."""
    first, second = (gpu.needed("sm_90a", [case], 3) for case in (BF16, ("float64", "standard", None)))
    assert first
    assert second
    assert not set(first) & {request for request in second if "hopper" in request.path.name}
    assert {request.arch for request in first} == {"sm_90a"}
    assert all(request.path.is_file() and request.macros == tuple(sorted(request.macros)) for request in first)
    assert not compiles


def test_every_set_of_parameters_for_every_layout() -> None:
    path = cuda_engine()["cuda/hopper"].path
    one = Request(path, "sm_90a", (("A_DOWN", "0"), ("BM", "64"), ("BN", "64"), ("TYPE", "INT8")))
    two = Request(path, "sm_90a", (("A_DOWN", "1"), ("BM", "128"), ("BN", "64"), ("TYPE", "INT8")))
    other = Request(path, "sm_90a", (("A_DOWN", "1"), ("BM", "192"), ("BN", "64"), ("TYPE", "TF32")))
    found = gpu.every_set([one, two, other])
    assert len(found) == 5
    assert Request(path, "sm_90a", (("A_DOWN", "0"), ("BM", "128"), ("BN", "64"), ("TYPE", "INT8"))) in found


@pytest.mark.thorough
def test_an_archive_has_what_the_compiler_makes(
    built: tuple[Path, list[Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, wanted = built
    compiled = [nvrtc.compile_file(path, arch=arch, defines=dict(macros)) for path, arch, macros in wanted]
    monkeypatch.setattr(compilations, "_BUILT", folder)
    for (path, arch, macros), other in zip(wanted, compiled, strict=True):
        found = engine_file(path, arch, dict(macros))
        assert isinstance(found.text, type(lambda: ""))  # from the archive
        assert (found.entries, found.waits, found.name) == (other.entries, other.waits, other.name)
        assert 0 < len(found.cubin) < len(other.cubin)  # which has the lines of the source
        assert found.ptx == other.ptx


@pytest.mark.parametrize("is_apart", [False, True], ids=["in the package", "in one of its own"])
def test_a_product_is_prepared_without_a_compiler(
    built: tuple[Path, list[Request]],
    compiles: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_apart: bool,
) -> None:
    folder, wanted = built
    if is_apart:
        shutil.copytree(folder, tmp_path / "tilewright_cuda")
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setattr(compilations, "_BUILT", folder)
    for path, arch, macros in wanted:
        assert engine_file(path, arch, dict(macros)).cubin
    assert not compiles


def test_what_it_lacks_is_compiled(
    built: tuple[Path, list[Request]], compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other macros, another architecture, a kernel whose source was changed, other sources, and a damaged file."""
    folder, (request, *_) = built
    monkeypatch.setattr(compilations, "_BUILT", folder)
    kernel = next(kernel for kernel in cuda_engine().values() if kernel.boxes == {} and kernel.path == request.path)
    values = {name: int(value) for name, value in request.macros if name in kernel.params}
    macros = {name: value for name, value in request.macros if name not in kernel.params}
    assert engine_kernel(kernel, values, ARCH, macros).cubin
    changed = replace(kernel, source=kernel.source + "// another\n")
    for given in ((changed, values, ARCH, macros), (kernel, values, ARCH, macros | {"MORE": 1})):
        with pytest.raises(UnavailableError, match="no compiler"):
            engine_kernel(*given)
    with pytest.raises(UnavailableError, match="no compiler"):
        engine_kernel(kernel, values, "sm_86", macros)
    assert len(compiles) == 3


@pytest.mark.parametrize("module", ["sqlite3", "zstandard"])
def test_a_python_that_cannot_read_it_compiles(
    built: tuple[Path, list[Request]], compiles: list[str], monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    folder, (request, *_) = built
    monkeypatch.setattr(compilations, "_BUILT", folder)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match="no compiler"):
        engine_file(request.path, ARCH, dict(request.macros))
    assert compiles


def test_what_there_is_in_a_line(
    built: tuple[Path, list[Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations.describe_archives().startswith("none: ")
    folder, wanted = built
    file = tmp_path / compilations.archive_name(ARCH)
    file.write_bytes((folder / file.name).read_bytes())
    file.with_name(compilations.archive_name("sm_86")).write_bytes(b"damaged")
    monkeypatch.setattr(compilations, "_BUILT", tmp_path)
    assert compilations.describe_archives() == f"sm_80: {len(wanted)}; sm_86: of other sources, or damaged: not used"


@pytest.mark.parametrize("harm", ["sources", "row", "file", "empty"])
def test_an_archive_that_is_no_use(
    built: tuple[Path, list[Request]],
    compiles: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
) -> None:
    folder, (request, *_) = built
    file = tmp_path / compilations.archive_name(ARCH)
    file.write_bytes((folder / file.name).read_bytes())
    if harm in ("sources", "row"):
        rows = sqlite3.connect(file)
        rows.execute("UPDATE about SET sources = 'x'" if harm == "sources" else "UPDATE kernels SET cubin = x'00ff'")
        rows.commit()
        rows.close()
    else:
        file.write_bytes(b"no database, whatever it is called" * (harm == "file"))
    monkeypatch.setattr(compilations, "_BUILT", tmp_path)
    with pytest.raises(UnavailableError, match="no compiler"):
        engine_file(request.path, ARCH, dict(request.macros))
    assert compiles


@pytest.mark.slow
def test_twins_are_stored_as_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of float16 and one of bfloat16, of which each comes back as the compiler makes it."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    wanted = [
        next(request for request in gpu.needed(ARCH, [(dtype, "standard", None)], 1) if request.path.name == "mma.cu")
        for dtype in ("bfloat16", "float16")
    ]
    file = gpu.write_archive(ARCH, wanted, tmp_path, jobs=1, say=lambda _: None)
    rows = sqlite3.connect(file).execute("SELECT base, length(cubin) FROM kernels ORDER BY base").fetchall()
    assert [base for base, _ in rows] == [None, wanted[0].key]
    cubins = compiled_alone(wanted)
    assert rows[1][1] * 50 < len(cubins[1])
    monkeypatch.setattr(compilations, "_BUILT", tmp_path)
    assert [engine_file(path, arch, dict(macros)).cubin for path, arch, macros in wanted] == cubins


@pytest.mark.thorough
def test_equal_binaries_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of alignments that lead to the same code; also where a kernel of float16 differs from one that is stored like that."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    request = next(r for r in gpu.needed(ARCH, [BF16], 3) if r.path.name == "slices_mma.cu")
    macros = dict(request.macros) | {"A_VECTOR": "16", "B_VECTOR": "2"}
    types = [{}, {name: "FLOAT16" for name in ("TYPE", "OUT") if macros[name] == "BFLOAT16"}]
    wanted = [
        request._replace(macros=tuple(sorted((macros | {"C_VECTOR": vector} | of_type).items())))
        for vector in ("4", "2")
        for of_type in types
    ]
    file = gpu.write_archive(ARCH, wanted, tmp_path, jobs=1, say=lambda _: None)
    stored = dict(sqlite3.connect(file).execute("SELECT key, base FROM kernels").fetchall())
    assert [stored[request.key] for request in wanted] == [None, wanted[0].key, wanted[0].key, wanted[2].key]
    monkeypatch.setattr(compilations, "_BUILT", tmp_path)
    assert [engine_file(path, arch, dict(given)).cubin for path, arch, given in wanted] == compiled_alone(wanted)


def test_an_architecture_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--gpu", "sm_90"]) == 1
    assert "did you mean sm_90a" in capsys.readouterr().err


def test_plans_of_a_described_gpu(compiles: list[str]) -> None:
    """They are those of that GPU, and what they need is noted whatever the operands are."""
    described: Any = gpu._Described("sm_90a", "9.0", "NVIDIA H200", 132, 3_201_000, 6144)
    ordinal = gpu.add_described(described)
    x, y = (GpuArray(1 << at, (512, 512), (512, 1), "float16", ordinal) for at in (30, 40))
    with compilations.requests() as asked:
        prepare(plan_of_views(x, y))
    assert {request.path.name for request in asked} == {"hopper.cu"}
    assert plan_of_views(x, y).gpu == "NVIDIA H200"
    assert np.dtype(plan_of_views(x, y).order.dtype) == np.float16
    assert not compiles
