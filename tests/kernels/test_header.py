"""What a ``.cu`` says of itself: read, launched, and refused with the file, the key and the rule where it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import HeaderError, UsageError
from tilewright.kernels.catalog import catalog, cuda_catalog, find, load_cuda_file, load_file
from tilewright.kernels.cuda_kernel import CudaKernel, Launch
from tilewright.kernels.expression import Expression, cdiv

GOOD = """
idea = "Tiles."
parent = "cuda/coalesced"
row = "S0.5"
block = ["TILE", "TILE // ROWS"]
grid = ["cdiv(n, TILE)", "cdiv(m, TILE)"]
shared = "2 * TILE * TILE * 4"
constraints = ["TILE % ROWS == 0"]
capability = "8.0"
dtypes = ["float32", "float16"]
notes = ["Needs nothing else."]

[params]
TILE = { default = 32, values = [8, 16, 32] }
ROWS = { default = 4, min = 1, max = 8 }
"""
LEAST = 'idea = "One."\nblock = [32, 32]\ngrid = ["cdiv(n, 32)", "cdiv(m, 32)"]\n'
BODY = 'extern "C" __global__ void mine(const float* a, const float* b, float* c, int m, int n, int k) {}\n'


def written(folder: Path, header: str, name: str = "07_mine.cu") -> Path:
    path = folder / name
    path.write_text(f"/*\n{header}*/\n{BODY}", encoding="utf-8")
    return path


# ---- expressions -----------------------------------------------------------------------------------------------------

SIZES = {"m": 100, "n": 33, "k": 0, "TILE": 32}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (64, 64),
        (" m ", 100),
        ("m + n * TILE", 100 + 33 * 32),
        ("(m + n) * TILE", 133 * 32),
        ("m - n - 1", 66),
        ("m // TILE", 3),
        ("m % TILE", 4),
        ("-m + +n", -67),
        ("cdiv(m, TILE)", 4),
        ("cdiv(n, TILE) * cdiv(k, TILE)", 0),
        ("min(m, n, k)", 0),
        ("max(m, n)", 100),
        ("TILE == 32", True),
        ("TILE != 32", False),
        ("0 < n < m <= 100", True),
        ("0 < n < m < 100", False),
        ("TILE >= 33", False),
        ("TILE > 31", True),
    ],
)
def test_arithmetic(text: str | int, value: int) -> None:
    assert Expression.parse(text, SIZES)(**SIZES) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it does not parse"),
        ("m +", "it does not parse"),
        ("m; n", "it does not parse"),
        ("m = 3", "it does not parse"),
        ("x", "x is not known"),
        ("TIEL", "TIEL is not known (did you mean TILE?)"),
        ("m / 2", "write // or cdiv(a, b)"),
        ("m ** n", "'m ** n' is not arithmetic"),
        ("m << 9", "'m << 9' is not arithmetic"),
        ("m and n", "is not arithmetic"),
        ("not m", "is not arithmetic"),
        ("~m", "is not arithmetic"),
        ("1.5", "'1.5' is not arithmetic"),
        ("True", "'True' is not arithmetic"),
        ("None", "is not arithmetic"),
        ("'a'", "is not arithmetic"),
        ("m if n else k", "is not arithmetic"),
        ("m in n", "is not arithmetic"),
        ("[m, n]", "is not arithmetic"),
        ("(m, n)", "is not arithmetic"),
        ("m[0]", "is not arithmetic"),
        ("m.real", "'m.real' is not arithmetic"),
        ("(1).__class__", "is not arithmetic"),
        ("lambda: 1", "is not arithmetic"),
        ("(x := 1)", "is not arithmetic"),
        ("[x for x in m]", "is not arithmetic"),
        ("f'{m}'", "is not arithmetic"),
        ("abs(m)", "'abs(m)' is not arithmetic"),
        ("__import__('os').system('true')", "is not arithmetic"),
        ("min", "min is not known"),
        ("min(m)", "min takes 2 numbers or more, got 1"),
        ("cdiv(m)", "cdiv takes 2 numbers, got 1"),
        ("cdiv(m, b=2)", "is not arithmetic"),
        ("min(*m)", "min takes 2 numbers or more, got 1"),
        ("min(*m, n)", "'*m' is not arithmetic"),
        ("min(m, n)(k)", "is not arithmetic"),
        ("(" * 250 + "m", "it does not parse"),
        ("m\0", "it does not parse"),
        ("1" * 301, "300 at most"),
        ("-" * 299 + "m", ""),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    if not message:
        assert Expression.parse(text, SIZES)(**SIZES) == -100
        return
    with pytest.raises(UsageError) as error:
        Expression.parse(text, SIZES)
    assert message in str(error.value)


@pytest.mark.parametrize(("text", "value"), [("m / 8", 12.5), ("2.5e-6", 2.5e-6), ("sqrt(m) + (n > 3) / 2", 10.5)])
def test_times_are_real_numbers(text: str, value: float) -> None:
    assert Expression.parse(text, SIZES, real=True)(**SIZES) == value
    with pytest.raises(UsageError):
        Expression.parse(text, SIZES)


@pytest.mark.thorough
@given(st.text(max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        value = Expression.parse(text, SIZES)(**SIZES)
    except UsageError:
        return
    assert isinstance(value, int)


@pytest.mark.parametrize("text", ["m // k", "m % k", "cdiv(m, k)", "m // (n - 33)"])
def test_a_division_by_zero_says_where(text: str) -> None:
    with pytest.raises(UsageError, match=r"divides by zero at m=100, n=33, k=0"):
        Expression.parse(text, SIZES)(**SIZES)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_cdiv_is_the_least_cover(a: int, b: int) -> None:
    assert (cdiv(a, b) - 1) * b < a or a == 0
    assert cdiv(a, b) * b >= a


# ---- a header --------------------------------------------------------------------------------------------------------


def test_a_header_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    kernel = load_cuda_file(path)
    assert (kernel.name, kernel.order, kernel.path, kernel.entry) == ("my/mine", 7, path, "mine")
    assert (kernel.device, kernel.is_reference) == ("cuda", False)
    assert kernel.about == {"idea": "Tiles.", "parent": "cuda/coalesced", "row": "S0.5", "order": 7}
    assert kernel.params == {"TILE": 32, "ROWS": 4}
    assert kernel.tunable == {"TILE", "ROWS"}
    assert (kernel.capability, kernel.dtypes) == ("8.0", ("float32", "float16"))
    assert kernel.notes == ("Needs nothing else.",)
    assert kernel.launch(100, 70, 9) == Launch((3, 4, 1), (32, 8, 1), 8192)
    assert kernel.launch(100, 70, 9, TILE=16, ROWS=2) == Launch((5, 7, 1), (16, 8, 1), 2048)
    assert (kernel.launch(100, 70, 9).blocks, kernel.launch(100, 70, 9).threads) == (12, 256)


def test_a_least_header_is_enough(tmp_path: Path) -> None:
    kernel = load_cuda_file(written(tmp_path, LEAST))
    assert (kernel.entry, kernel.row, kernel.parent, kernel.params) == ("mine", "", None, {})
    assert (kernel.dtypes, kernel.shared()) == (("float32",), 0)
    named = load_cuda_file(written(tmp_path, LEAST + 'entry = "other"\n'))
    assert named.entry == "other"


@pytest.mark.parametrize(("m", "n", "blocks"), [(0, 5, 0), (5, 0, 0), (0, 0, 0), (1, 1, 1)])
def test_an_empty_product_launches_nothing(m: int, n: int, blocks: int, tmp_path: Path) -> None:
    assert load_cuda_file(written(tmp_path, LEAST)).launch(m, n, 0).blocks == blocks


def test_the_source_as_it_was_read_is_what_is_hashed(tmp_path: Path) -> None:
    before = load_cuda_file(written(tmp_path, LEAST))
    written(tmp_path, LEAST + "# edited\n")
    assert load_cuda_file(before.path).source_hash != before.source_hash
    assert "edited" not in before.source


@pytest.mark.parametrize("text", ["", BODY, "// a kernel\n" + BODY, "int x; /* idea = 'late' */\n" + BODY])
def test_a_file_without_a_header_is_shown_what_it_needs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bare.cu"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"bare\.cu: has no header: the file must begin") as error:
        load_cuda_file(path)
    sentence, template = str(error.value).split("\n\n")
    assert "\n" not in sentence
    assert template.startswith("/*\nidea = "), "it stands as it is pasted"
    path.write_text(template + BODY)
    assert load_cuda_file(path).entry == "mine", "the lines it shows are enough"


WRONG = [
    ("Copyright 2026 by me.\n", "its first block comment is not TOML"),
    ('idea = "One.\n', "line 2"),
    (LEAST.replace('"One."', "3"), "idea must be a sentence, got 3"),
    (LEAST.replace("One.", " "), "idea must be a sentence"),
    (LEAST.replace("idea", "idae"), "idae is not a key of a header: did you mean idea?"),
    (LEAST.replace('idea = "One."\n', ""), "idea is missing: the file must begin"),
    (LEAST.replace("block = [32, 32]\n", ""), "block is missing"),
    (LEAST.replace("[32, 32]", "32"), "block must be a list of one to three expressions, for x, y and z, got 32"),
    (LEAST.replace("[32, 32]", "[]"), "block must be a list of one to three"),
    (LEAST.replace("[32, 32]", "[1, 1, 1, 1]"), "block must be a list of one to three"),
    (LEAST.replace("[32, 32]", "[32.5]"), "block[0] must be an expression or a whole number, got 32.5"),
    (LEAST.replace("[32, 32]", "[true]"), "block[0] must be an expression or a whole number, got True"),
    (
        LEAST + "[strides]\na = 'any'\nb = 'rows'\n",
        "strides must have a, b and c, each one of any, either, rows, columns",
    ),
    (LEAST + "[strides]\na = 'any'\nb = 'rows'\nc = 'all'\n", "strides must have a, b and c"),
    (LEAST + "costs = ['Rate']\n[time]\nseconds = 1\n", "costs: Rate must be a word of small letters"),
    (LEAST + "costs = ['parts']\n[time]\nseconds = 1\n", "costs: parts must be a word of small letters"),
    (LEAST + "costs = ['rate']\n[time]\nrate = 1\nseconds = 1\n", "time.rate: must be a word of small letters"),
    (LEAST + "[time]\nseconds = 'rate'\n", "time.seconds: expression 'rate': rate is not known"),
    (LEAST + "[time]\ntiles = 1\n", "time: the last of its expressions must be seconds, got tiles"),
    (LEAST + "[time]\nseconds = 'later'\nlater = 1\n", "time.seconds: expression 'later': later is not known"),
    (
        LEAST + "[time]\nparts = 1\nseconds = 2\n",
        "time.parts: must be a word of small letters that has no other meaning",
    ),
    (LEAST + "[time]\nmax = 1\nseconds = 2\n", "time.max: must be a word of small letters that has no other meaning"),
    (LEAST + "step = 'WORD'\n", "step: expression 'WORD': WORD is not known"),
    (LEAST + "suits = 'batch > 1'\n", "suits: expression 'batch > 1': batch is not known"),
    (LEAST + f"[params]\nTILE = {{ default = {2**31}, min = 1, max = {2**62} }}\n", "must be below 2^31"),
    (LEAST + f"[params]\nTILE = {{ default = {10**3000}, values = [{10**3000}] }}\n", "must be below 2^31"),
    (LEAST + "x = " + "[" * 3000 + "\n", "is not TOML"),
    (LEAST + "x = " + "9" * 5000 + "\n", "is not TOML"),
    (LEAST.replace("[32, 32]", '[32, "TILE"]'), "block[1]: expression 'TILE': TILE is not known"),
    (LEAST.replace("cdiv(n, 32)", "n / 32"), "grid[0]: expression 'n / 32': / may give a fraction"),
    (LEAST.replace("[32, 32]", "[64, 32]"), "a block is 2048 threads, must be at most 1024"),
    (LEAST.replace("[32, 32]", "[0]"), "block x is 0, must be from 1 to 1024"),
    (LEAST.replace("[32, 32]", "[1, 1, 65]"), "block z is 65, must be from 1 to 64"),
    (
        LEAST.replace("cdiv(m, 32)", "m // (k - 1)"),
        "its own defaults are refused: expression 'm // (k - 1)' divides by zero",
    ),
    (LEAST + 'shared = "-4"\n', "shared is -4 bytes, must not be negative"),
    (LEAST + "shared = [4]\n", "shared must be an expression or a whole number, got [4]"),
    (LEAST + 'entry = "my kernel"\n', "entry must be the name of a function, got 'my kernel'"),
    (LEAST + 'parent = "coalesced"\n', "parent must be a kernel's name, such as cuda/coalesced, got 'coalesced'"),
    (LEAST + "row = 5\n", "row must be text, got 5"),
    (LEAST + "capability = 7.5\n", 'capability must be a compute capability, such as "7.5" or "9.0a", got 7.5'),
    (LEAST + 'capability = "sm_80"\n', "capability must be a compute capability"),
    (LEAST + 'dtypes = "float32"\n', "dtypes must be a list of text, got 'float32'"),
    (LEAST + "dtypes = []\n", "dtypes must be a list of text, got []"),
    (LEAST + "notes = [1]\n", "notes must be a list of text, got [1]"),
    (LEAST + 'constraints = ["m > 0"]\n', "constraints[0]: expression 'm > 0': m is not known"),
    (LEAST + 'constraints = ["1 > 2"]\n', "its own defaults are refused: my/mine: 1 > 2 must hold"),
    (LEAST + 'triangle = "8"\n', "triangle must be a list of one to three"),
    (LEAST + 'triangle = ["8", "8"]\n', "triangle must have the rows and columns of a tile and its blocks"),
    (LEAST + "params = 3\n", "params must be a table [params], got 3"),
    (LEAST + "[params]\ntile = { default = 1, values = [1] }\n", "params.tile: a parameter becomes a macro"),
    (LEAST + "[params]\nT = 32\n", "params.T must look like { default = 32, values"),
    (LEAST + "[params]\nT = { default = 1, vales = [1] }\n", "params.T must look like"),
    (LEAST + "[params]\nT = { default = 1, values = [1], min = 1 }\n", "params.T must look like"),
    (LEAST + "[params]\nT = { values = [1] }\n", "params.T.default is missing"),
    (LEAST + "[params]\nT = { default = 1, min = 1 }\n", "params.T.max is missing"),
    (LEAST + "[params]\nT = { default = 1, values = 1 }\n", "params.T.values must be a list of whole numbers, got 1"),
    (LEAST + '[params]\nT = { default = "1", values = [1] }\n', "params.T.default must be a whole number, got '1'"),
    (LEAST + "[params]\nT = { default = 1, values = [] }\n", "params.T.values must be a list of whole numbers, got []"),
    (LEAST + "[params]\nT = { default = 1, min = 1, max = 2, step = 0 }\n", "params.T.step must be at least 1, got 0"),
    (
        LEAST + "[params]\nT = { default = 3, values = [1, 2] }\n",
        "params.T.default must be one of its allowed values, got 3",
    ),
    (LEAST + "[params]\nT = { default = 3, min = 2, max = 8, step = 2 }\n", "params.T.default must be one of its"),
]


@pytest.mark.parametrize(("header", "message"), WRONG, ids=lambda value: value[-30:].strip())
def test_a_wrong_header_names_file_key_and_rule(header: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, header)
    with pytest.raises(UsageError) as error:
        load_cuda_file(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"TIEL": 8}, "my/mine: TIEL is not one of its parameters: did you mean TILE?"),
        ({"TILE": 12}, "my/mine: TILE must be one of 8, 16, 32, got 12"),
        ({"TILE": "8"}, "TILE must be one of 8, 16, 32, got '8'"),
        ({"TILE": True}, "got True"),
        ({"ROWS": 9}, "ROWS must be from 1 to 8, got 9"),
        ({"ROWS": 3}, "TILE % ROWS == 0 must hold, got TILE=32, ROWS=3"),
    ],
)
def test_parameters_it_cannot_take(params: dict, message: str, tmp_path: Path) -> None:
    kernel = load_cuda_file(written(tmp_path, GOOD))
    for call in (kernel.checked, lambda given: kernel.launch(1, 1, 1, **given)):
        with pytest.raises(UsageError) as error:
            call(params)
        assert message in str(error.value)


def test_a_grid_that_no_gpu_has_is_refused(tmp_path: Path) -> None:
    kernel = load_cuda_file(written(tmp_path, LEAST))
    with pytest.raises(UsageError, match="grid y is 65536, must be from 0 to 65535"):
        kernel.launch(65535 * 32 + 1, 1, 1)
    with pytest.raises(UsageError, match="it has none"):
        kernel.launch(1, 1, 1, TILE=8)


# ---- finding them ----------------------------------------------------------------------------------------------------

LADDER = list(cuda_catalog().values())


def test_the_ladder_of_cuda_is_found_by_itself() -> None:
    assert find([], device="cuda") == LADDER
    assert find(["coalesced", "cuda/shared_tile"], device="cuda") == [
        cuda_catalog()["cuda/coalesced"],
        cuda_catalog()["cuda/shared_tile"],
    ]


def test_a_users_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    (kernel,) = find([str(path)], device="cuda")
    assert (kernel.name, kernel.source) == ("my/mine", path.read_text())


def test_the_cpu_has_no_cuda_kernels_and_says_so(tmp_path: Path) -> None:
    path = str(written(tmp_path, GOOD))
    assert not cuda_catalog().keys() & catalog().keys()
    assert {kernel.device for kernel in find([])} == {"cpu"}
    for name in ("cuda/coalesced", path):
        with pytest.raises(UsageError, match="runs on device cuda, not on device cpu"):
            find([name])
    for name in ("cpu/naive", "my.py"):
        with pytest.raises(UsageError, match="runs on device cpu, not on device cuda"):
            find([name], device="cuda")
    with pytest.raises(UsageError, match=r"must be a Python file"):
        load_file(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("cuda/coalesed", "did you mean cuda/coalesced"), ("zzz", "known: cuda/"), ("no.cu", "does not exist")],
)
def test_unknown_kernels_say_what_is_known(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find([name], device="cuda")


@pytest.mark.parametrize("name", ["my-kernel.cu", "my kernel.cu", "02_my--kernel.cu"])
def test_any_file_name_makes_a_kernel_name(name: str, tmp_path: Path) -> None:
    assert load_cuda_file(written(tmp_path, LEAST, name)).name == "my/my_kernel"


ABOVE = "// Copyright 2026.\n#pragma once\n#include <cuda_runtime.h>  // for nvcc\n\n"


def test_the_header_may_stand_below_comments_of_a_line_and_directives(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST)
    path.write_text(ABOVE + path.read_text())
    assert load_cuda_file(path).idea == "One."
    path.write_text("// " * 200 + "\n" + "#" * 200 + "\n")
    with pytest.raises(HeaderError, match="has no header"):
        load_cuda_file(path)


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("__global__ void other(float* x) {}", "other"),
        ('extern "C" __global__ void __launch_bounds__(32 * (8), 2) other(float* x) {}', "other"),
        ("template <int N> __global__ __launch_bounds__(N) void\nother (float* x) {}", "other"),
        ("__global__ void other(float*);\n__global__ void other(float* x) {}", "other"),
        ("// __global__ void none(int)\n/* __global__ void none(int) */ __global__ void other(int) {}", "other"),
        ("__global__ void one(int) {}\n__global__ void two(int) {}", "mine"),
        ("__device__ void one(int) {}", "mine"),
    ],
)
def test_the_only_kernel_of_a_file_needs_no_entry(code: str, entry: str, tmp_path: Path) -> None:
    path = tmp_path / "07_mine.cu"
    path.write_text(f"/*\n{LEAST}*/\n{code}\n")
    assert load_cuda_file(path).entry == entry


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(b"/*\xff\xfe*/")
    with pytest.raises(UsageError, match=r"mine\.cu: cannot be read as text"):
        load_cuda_file(path)


# ---- the ladder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_a_kernel_describes_itself(kernel: CudaKernel) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", kernel.idea), "one sentence"
    assert ". " not in kernel.idea, "one sentence"
    assert re.fullmatch(r"(S\d+(\.\d+)?(, S\d+(\.\d+)?)*)?", kernel.row)
    assert len(kernel.source.splitlines()) <= 250
    if kernel is LADDER[0]:
        assert kernel.parent is None
    else:
        assert kernel.parent is not None
        assert cuda_catalog()[kernel.parent].order < kernel.order, "upward only, so no cycle"


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1), (10**9, 7, 1), (7, 10**9, 1)])
def test_every_shape_can_be_launched(kernel: CudaKernel, shape: tuple[int, int, int]) -> None:
    for parameter in kernel.parameters:
        for value in parameter.values:
            chosen = kernel.params | {parameter.name: value}
            if all(rule(**chosen) for rule in kernel.constraints):
                launch = kernel.launch(*shape, **chosen)
                assert (launch.blocks > 0) == (shape[0] > 0 and shape[1] > 0)
