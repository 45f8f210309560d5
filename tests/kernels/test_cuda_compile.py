"""Compiling CUDA C++ without a GPU: every kernel of the ladder, what each takes, what is kept, and what is refused."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import TilewrightError, UnavailableError, UsageError, how_to_install
from tilewright.gpu.runtime import nvrtc as cuda
from tilewright.gpu.runtime.cubin import read_resources
from tilewright.gpu.runtime.nvrtc import (
    Compiled,
    CompileError,
    architectures,
    compile_file,
    compile_kernel,
    compile_source,
)
from tilewright.host import disk
from tilewright.kernels.catalog import cuda_catalog, load_cuda_file
from tilewright.kernels.cuda_kernel import CudaKernel

LADDER = list(cuda_catalog().values())
NEWEST = architectures()[-1]
ARCHS = ["sm_75", "sm_80", "sm_90a", NEWEST]

ONE = 'extern "C" __global__ void one(float* x) { *x = ONE; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a cache of its own, and sees what is compiled anew."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "others"))  # where the compiler unpacks its headers
    return tmp_path / "cache" / "nvrtc"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was really compiled, and not found on disk."""
    seen: list[str] = []
    compile_now = cuda._compile

    def compile_and_note(source, job, *rest):
        seen.append(job.name)
        return compile_now(source, job, *rest)

    monkeypatch.setattr(cuda, "_compile", compile_and_note)
    return seen


def only(compiled: Compiled):
    (resources,) = compiled.resources.values()
    return resources


# ---- the ladder ------------------------------------------------------------------------------------------------------


def choices(kernel: CudaKernel) -> list[dict[str, int]]:
    """The defaults; where there are few parameters, also each at each of its values that goes with the other defaults."""
    own = kernel.parameters if len(kernel.parameters) <= 2 else ()
    values = [{p.name: value} for p in own for value in p.values if value != p.default]
    return [{}] + [v for v in values if all(rule(**kernel.params | v) for rule in kernel.constraints)]


#: Where arguments begin in their constant bank; a tensor map among them is aligned to 128 bytes of the bank.
_FIRST_ARGUMENT = 0x210


def refused(kernel: CudaKernel, arch: str) -> bool:
    if kernel.capability[-1] == "a":  # for one generation alone
        return arch != f"sm_{kernel.capability.replace('.', '')}"
    return int(arch[3:].rstrip("af")) < int(kernel.capability.replace(".", "").rstrip("af"))


@pytest.mark.slow_cases("sm_80", "sm_121", "cuda/uncoalesced", "cuda/double_buffer")
@pytest.mark.each_value
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_every_kernel_compiles_for_every_gpu(kernel: CudaKernel, arch: str) -> None:
    if refused(kernel, arch):
        with pytest.raises(UsageError, match=rf"needs (at least|exactly) compute capability {kernel.capability}"):
            compile_kernel(kernel, arch=arch)
        return
    for params in choices(kernel):
        compiled = compile_kernel(kernel, arch=arch, **params)
        launch = kernel.launch(100, 100, 100, **params)
        entry = compiled.entry(kernel.entry)
        taken = compiled.resources[entry]
        assert compiled.entries == (entry,)
        assert 0 < taken.registers <= 255
        assert taken.registers * launch.threads <= 65536, "a block fits a multiprocessor"
        if not params:
            assert taken.local_bytes == 0 or arch in kernel.spills, "no spills where the header says none"
        assert taken.max_threads in (None, launch.threads)
        padding = -_FIRST_ARGUMENT % 128 if kernel.boxes else 0  # before A's tensor map
        assert taken.parameter_bytes == padding + sum(128 if name in kernel.boxes else 8 for name in "abc") + 3 * 4
        assert compiled.log == "", "no warnings"
        assert f".target {arch}" in compiled.ptx
        assert compiled.cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tile", [8, 16, 32])
def test_a_shared_tile_takes_two_tiles(tile: int, arch: str) -> None:
    kernel = cuda_catalog()["cuda/shared_tile"]
    assert only(compile_kernel(kernel, arch=arch, TILE=tile)).shared_bytes == 2 * tile * tile * 4


def test_parameters_are_checked_before_anything_is_compiled(compilations: list[str]) -> None:
    with pytest.raises(UsageError, match="TILE must be one of 8, 16, 32, got 12"):
        compile_kernel(cuda_catalog()["cuda/shared_tile"], TILE=12)
    assert not compilations


def test_lines_of_the_file_are_in_the_ptx() -> None:
    kernel = cuda_catalog()["cuda/coalesced"]
    ptx = compile_kernel(kernel).ptx
    (number,) = re.findall(r'^\s*\.file\s+(\d+)\s+"[^"]*02_coalesced\.cu"', ptx, re.MULTILINE)
    lines = {int(line) for line in re.findall(rf"^\s*\.loc\s+{number} (\d+)", ptx, re.MULTILINE)}
    wanted = next(i for i, text in enumerate(kernel.source.splitlines(), 1) if "sum +=" in text)
    assert wanted in lines


# ---- what a kernel takes ---------------------------------------------------------------------------------------------

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) spills(float* x) {
    float v[200];
    for (int i = 0; i < 200; i++) v[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 200; i++) x[i * 1024 + threadIdx.x] = v[i] * v[199 - i];
}"""
ARRAY = """
extern "C" __global__ void indexed(int* x) {
    int v[64];
    for (int i = 0; i < 64; i++) v[x[i] & 63] = i;
    x[0] = v[x[1] & 63];
}"""
CONSTANT = '__constant__ float table[100]; extern "C" __global__ void looked_up(float* x) { *x = table[threadIdx.x]; }'
DYNAMIC = """
extern "C" __global__ void dynamic(float* x) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[31 - threadIdx.x];
}"""
SHARED = DYNAMIC.replace("dynamic", "fixed").replace("extern __shared__ float s[]", "__shared__ float s[300]")
#: Registers, local memory and shared memory in the words of ptxas, which tells constants no more from sm_90.
_WORDS = ("registers", "bytes stack frame", "bytes smem")
REQUIRED = 'extern "C" __global__ void __launch_bounds__(96) bounded(float* x) { *x = 1; }'


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("source", "field", "least", "most"),
    [
        (SPILLS, "local_bytes", 4, 1024),
        (ARRAY, "local_bytes", 256, 320),
        (CONSTANT, "constant_bytes", 400, 420),
        (CONSTANT, "parameter_bytes", 8, 8),
        (DYNAMIC, "shared_bytes", 0, 0),
        (SHARED, "shared_bytes", 1200, 1200),
        (REQUIRED, "max_threads", 96, 96),
        (REQUIRED, "shared_bytes", 0, 0),
        (REQUIRED, "local_bytes", 0, 0),
    ],
)
def test_resources_are_those_of_the_source(source: str, field: str, least: int, most: int, arch: str) -> None:
    assert least <= getattr(only(compile_source(source, arch=arch)), field) <= most


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("source", [SPILLS, ARRAY, CONSTANT, DYNAMIC, SHARED, REQUIRED])
def test_the_binary_says_what_ptxas_says(source: str, arch: str) -> None:
    core, _ = cuda._cuda()
    log = io.StringIO()
    options = core.ProgramOptions(name="kernel.cu", arch=arch, lineinfo=True, ptxas_options="-v")
    (taken,) = read_resources(bytes(core.Program(source, "c++", options).compile("cubin", logs=log).code)).values()
    said = [re.search(rf"(\d+) {what}", log.getvalue()) for what in _WORDS]
    assert [int(match[1]) if match else 0 for match in said] == [
        *(taken.registers, taken.local_bytes, taken.shared_bytes),
    ]


def test_without_launch_bounds_there_is_no_largest_block() -> None:
    assert only(compile_source(DYNAMIC)).max_threads is None


@pytest.mark.slow
def test_each_kernel_of_a_file_has_its_own() -> None:
    compiled = compile_source(SHARED + SPILLS + DYNAMIC)
    assert set(compiled.entries) == {"fixed", "spills", "dynamic"}
    assert {name: r.shared_bytes for name, r in compiled.resources.items()} == {
        "fixed": 1200,
        "spills": 0,
        "dynamic": 0,
    }
    assert compiled.resources["spills"].local_bytes > 0 == compiled.resources["fixed"].local_bytes


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"not a cubin at all" * 9, Path(sys.executable).read_bytes()[:4096]])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        read_resources(data)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_kernel_is_found_by_its_name_in_the_source() -> None:
    plain = compile_source("__global__ void mine(float* x) { *x = 1; }")
    assert plain.entry("mine") == "_Z4minePf" == plain.entry("_Z4minePf")
    with pytest.raises(UsageError, match=r"kernel\.cu: other is not one of its kernels: mine$"):
        plain.entry("other")
    both = compile_source("__global__ void f(float* x) { *x = 1; } __global__ void f(int* x) { *x = 1; }")
    with pytest.raises(UsageError, match=r"f names several \(_Z1fP[fi], _Z1fP[fi]\)"):
        both.entry("f")
    with pytest.raises(UsageError, match="it has none"):
        compile_source("__device__ float unused(float x) { return x; }").entry("unused")


def test_an_entry_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        '/*\nidea = "One."\nblock = [1]\ngrid = [1]\nentry = "mine"\n*/\n__global__ void yours(float* x) { *x = 1; }\n'
    )
    with pytest.raises(UsageError, match=r"mine is not one of its kernels: yours$"):
        compile_kernel(load_cuda_file(path))


# ---- files for nvcc --------------------------------------------------------------------------------------------------


def test_headers_of_the_host_are_no_hindrance() -> None:
    names = (
        "cuda_runtime.h cuda.h stdio.h cstdio assert.h cassert stdlib.h cstdlib math.h cmath string.h stdint.h cstdint"
    )
    source = "".join(f"#include <{name}>\n" for name in [*names.split(), "cuda_fp16.h"])
    body = 'assert(n > 0); printf("%d", n); x[0] = fabsf(x[0]); static_assert(sizeof(uint64_t) == 8 && int8_t(-1) < 0, "");'
    assert compile_source(f"{source}__global__ void f(float* x, int32_t n) {{ {body} }}").entry("f") == "_Z1fPfi"


def test_only_what_has_a_kernel_is_compiled_without_host_code() -> None:
    assert compile_source("#include <vector>\n__global__ void f() {}\nint main() {}").entries == ("_Z1fv",)
    with pytest.raises(CompileError) as error:
        compile_source("__global__ void f() { y = 1; }")
    assert "hint" not in str(error.value)


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_the_compilers_words_come_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.cu"
    path.write_text("\n\n__global__ void f(float* x) { x[0] = nothing; }\n")
    with pytest.raises(CompileError) as error:
        compile_file(path)
    assert f'{path}(3): error: identifier "nothing" is undefined' in str(error.value)
    assert isinstance(error.value, TilewrightError)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("#error no\n", "mine.cu(1): catastrophic error: #error directive: no"),
        ('#include "nowhere.cuh"\n', 'open source file "nowhere.cuh"'),
        ('#include "nowhere.cuh"\n__global__ void f() { g(); }', "not found: nowhere.cuh: give the folder that has it"),
        ('extern "C" __global__ void f() { asm("frobnicate;"); }', "frobnicate"),
        (SHARED.replace("300", "99999"), "too much shared data"),
    ],
)
def test_whoever_refuses_it_is_quoted(source: str, words: str) -> None:
    with pytest.raises(CompileError) as error:
        compile_source(source, name="mine.cu")
    assert words in str(error.value)


def test_warnings_are_in_the_log() -> None:
    compiled = compile_source("__global__ void f(int* x) { int unused = 3; *x = 1; }", name="mine.cu")
    assert "mine.cu(1): warning" in compiled.log
    assert compile_source("__global__ void f(int* x) { int unused = 3; *x = 1; }", name="mine.cu").log == compiled.log


@pytest.mark.parametrize(
    "arch", ["sm_1", "sm_999", "90a", "sm_75a", "sm_80f", "compute_90", "", "h200", "sm_90 -G", "sm_90x"]
)
def test_an_unknown_architecture_says_what_is_known(arch: str) -> None:
    with pytest.raises(UsageError, match=rf"architecture '{arch}' is not known to NVRTC \d+\.\d+.*sm_") as error:
        compile_source(ONE, arch=arch)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("capability", "arch", "fits"),
    [
        ("7.5", "sm_75", True),
        ("8.0", "sm_75", False),
        ("9.0", "sm_90a", True),
        ("8.0", NEWEST, True),
        ("9.0a", "sm_90a", True),
        ("9.0a", "sm_90", False),
        ("9.0a", NEWEST, False),
    ],
)
def test_a_kernel_needs_its_least_capability(capability: str, arch: str, fits: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    header = f'idea = "One."\nblock = [1]\ngrid = [1]\ncapability = "{capability}"\n'
    path.write_text(f"/*\n{header}*/\n__global__ void mine(float* x) {{ *x = 1; }}\n")
    if fits:
        assert only(compile_kernel(load_cuda_file(path), arch=arch)).registers > 0
    else:
        with pytest.raises(UsageError, match=rf"my/mine needs .* compute capability {capability} .*, got {arch}"):
            compile_kernel(load_cuda_file(path), arch=arch)


@pytest.mark.parametrize("missing", ["cuda.core", "cuda.bindings.nvrtc"])
def test_without_the_compiler_one_line_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    cuda._cuda.cache_clear()
    try:
        with pytest.raises(UnavailableError, match=re.escape(how_to_install("cuda"))) as error:
            cuda._cuda()
    finally:
        cuda._cuda.cache_clear()
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 3


def test_without_an_elf_reader_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(UnavailableError, match=re.escape(how_to_install("cuda"))):
        read_resources(b"")


@pytest.mark.slow
def test_importing_it_loads_no_cuda() -> None:
    loaded = "[n for n in sys.modules if n.split('.')[0] in ('cuda', 'elftools')]"
    statement = f"import sys, tilewright.gpu.runtime.nvrtc; print({loaded})"
    answer = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


# ---- kept on disk ----------------------------------------------------------------------------------------------------


def test_what_was_compiled_is_found_again(compilations: list[str]) -> None:
    first = compile_source(ONE, defines={"ONE": 1})
    assert compile_source(ONE, defines={"ONE": 1}) == first
    assert compilations == ["kernel.cu"]


@pytest.mark.parametrize(
    "change",
    [
        {"defines": {"ONE": 2}},
        {"arch": "sm_80"},
        {"name": "other.cu"},
        {"source": ONE + "\n"},
        {"compiler": "NVRTC 99.9"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_shapes_it_is_in_the_key(
    change: dict, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_source(ONE, defines={"ONE": 1})
    if other := change.pop("compiler", None):
        monkeypatch.setattr(cuda, "compiler", lambda: other)
    compile_source(**({"source": ONE, "defines": {"ONE": 1}} | change))
    assert len(compilations) == 2


def test_an_edited_header_is_noticed(tmp_path: Path, compilations: list[str]) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer.cuh").write_text('#include "inner/deep.cuh"\n#include "inner/deep.cuh"\n')
    deep = tmp_path / "inner" / "deep.cuh"
    path = tmp_path / "mine.cu"
    path.write_text('# include "outer.cuh"\n' + ONE)
    for number in (1, 1, 2):
        deep.write_text(f"#pragma once\n#define ONE {number}.0f\n")
        bits = {1: "0f3F800000", 2: "0f40000000"}[number]
        ptx = compile_file(path).ptx
        assert bits in ptx or str(int(bits[2:], 16)) in ptx
    assert len(compilations) == 2


def test_cudas_own_headers_need_no_toolkit(compilations: list[str]) -> None:
    half = (
        '#include <cuda_fp16.h>\n#include <mma.h>\nextern "C" __global__ void f(__half* x) { *x = __float2half(2.0f); }'
    )
    assert compile_source(half) == compile_source(half)
    assert len(compilations) == 1


def test_an_include_that_a_macro_names_is_not_kept(tmp_path: Path, compilations: list[str], cache: Path) -> None:
    (tmp_path / "one.cuh").write_text("#define ONE 1\n")
    path = tmp_path / "mine.cu"
    path.write_text("#include HEADER\n" + ONE)
    for _ in range(2):
        compile_file(path, defines={"HEADER": '"one.cuh"'})
    assert len(compilations) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:-9], lambda b: b[9:], lambda b: b.replace(b"one", b"two")]
)
def test_a_torn_file_heals(damage, compilations: list[str], cache: Path) -> None:
    first = compile_source(ONE, defines={"ONE": 1})
    (file,) = cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert compile_source(ONE, defines={"ONE": 1}) == first
    assert compile_source(ONE, defines={"ONE": 1}) == first
    assert len(compilations) == 2
    assert list(cache.iterdir()) == [file], "nothing is left behind"


def test_a_cache_that_cannot_be_written_costs_a_compilation(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "private_directory", lambda *parts: None)
    for _ in range(2):
        assert compile_source(ONE, defines={"ONE": 1}).entries == ("one",)
    assert len(compilations) == 2


def test_an_error_is_not_kept(compilations: list[str], cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(CompileError):
            compile_source("nonsense")
    assert len(compilations) == 2
    assert not cache.exists() or not list(cache.iterdir())
