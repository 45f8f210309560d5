"""What is no argument and no PTX: every one of them runs, or is refused in words."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.opcode_cases import CASES
from support.ptx_kernels import ADD_ONE, COUNT, HEAD, NOTHING, SCALARS, add_one, floats
from tilewright.errors import OperandError, TilewrightError, UsageError
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly import parser, program
from tilewright.simulator.ops import TABLE

# ---- arguments -------------------------------------------------------------------------------------------------------


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "every other": lambda: floats(128)[::2],
    "backwards": lambda: floats()[::-1],
    "columns": lambda: floats(128).reshape(8, 16)[:, ::2],
    "transposed": lambda: floats().reshape(8, 8).T,
    "read-only": lambda: readonly(floats()),
    "unaligned": lambda: np.frombuffer(bytes(257), np.uint8)[1:].view(np.float32),
    "masked": lambda: np.ma.array(floats()),
    "no axes": lambda: np.array(5, np.float32),
    "structured": lambda: np.zeros(64, [("x", "f4")]),
    "complex": lambda: np.ones(32, np.complex64),
    "bool": lambda: np.ones(256, bool),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_any_array(name: str) -> None:
    x, y = ARRAYS[name](), ARRAYS[name]()
    before = y.tobytes()
    run = add_one(x, y, x.nbytes // 4, outputs=[1])
    made = run.arrays[1]
    assert made is not None
    assert not run.findings
    assert (made.shape, made.dtype) == (y.shape, y.dtype)
    assert y.tobytes() == before
    assert np.array_equal(np.frombuffer(made.tobytes(), np.float32), np.frombuffer(x.tobytes(), np.float32) + 1)


def test_arrays_without_elements() -> None:
    empty = np.zeros((0, 5), np.float32)
    assert not add_one(empty, empty, 0, outputs=[1]).findings
    run = add_one(empty, empty.copy(), 3)
    assert [f.kind for f in run.findings] == ["out of bounds"]
    assert "which is empty" in run.findings[0].text


def test_null_pointers_are_out_of_bounds() -> None:
    run = add_one(None, floats(), 1)
    assert "address 0x0 of global memory, in no operand (a null pointer?)" in run.findings[0].text


#: (position, value, words of the error)
ARGUMENTS: list[tuple[int, Any, str]] = [
    (0, np.array([1, None]), "array of object"), (0, np.array(["a"]), "array of <U1"), (0, np.zeros(4, "M8[s]"), "array of datetime64"),
    (0, floats().astype(">f4"), "other byte order: give float32"), (0, np.zeros(4, np.longdouble), "that a GPU has"),
    (0, "x", "is a str"), (0, 1j, "is a complex"), (0, 2.5, "is 2.5, the kernel's parameter a .u64"),
    (2, floats(), "is an array, but the kernel's parameter is a .u32"), (2, np.array(64), "is an array"), (2, 64.0, "is 64.0"),
    (2, np.float32(64), "give a number of its type"), (2, float("nan"), "is nan"), (2, 2**40, "does not fit"), (2, -(2**31) - 1, "does not fit"),
    (2, None, "is a NoneType"), (2, object(), "is a object"), (2, b"1234567", "has 7 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("position", "value", "words"), ARGUMENTS, ids=lambda value: re.sub(r"0x\w+", "", str(value))[:30]
)
def test_arguments_of_no_use(position: int, value: Any, words: str) -> None:
    given: list[Any] = [floats(), floats(), 64]
    given[position] = value
    with pytest.raises(OperandError, match=f"argument {position} .*{words}"):
        simulate(ADD_ONE, "k", 2, 32, given)


@pytest.mark.parametrize("args", [[], [1, 2], [1, 2, 3, 4], np.zeros(3), "abc", None, 5])
def test_arguments_that_are_not_the_kernels(args: Any) -> None:
    with pytest.raises(UsageError, match=r"takes 3 arguments|must be a list"):
        simulate(ADD_ONE, "k", 1, 1, args)


def scalars(f: Any = 0, d: Any = 0, u: Any = 0, b: Any = 0, s: Any = bytes(16)) -> list[float]:
    run = simulate(SCALARS, "k", 1, 1, [f, d, u, b, s, np.zeros(4)])
    assert run.arrays[5] is not None
    return list(run.arrays[5].tolist())


def test_scalars_and_structures() -> None:
    structure = np.array((1.5, 258, 3), [("a", "f4"), ("b", "i4"), ("c", "f8")])
    assert scalars(1.5, 2.5, 255, np.float32(2), structure) == [1.5, 2.5, 255, 258]
    assert scalars(1, np.float64(0.1), True, -1, structure[()]) == [1, 0.1, 1, 258]
    assert scalars(float("inf"), -float("inf"), np.uint8(7)) == [float("inf"), -float("inf"), 7, 0]
    for wrong in ({"f": 1e300}, {"d": 10**400}, {"u": 256}, {"u": -129}, {"s": b"123"}, {"s": 5}, {"b": 1.5}):
        with pytest.raises(OperandError, match="argument"):
            scalars(**wrong)


# ---- text that is no PTX ---------------------------------------------------------------------------------------------

TEXTS = {
    "nothing": ("", "holds no function"),
    "blanks": (" \n\t", "holds no function"),
    "binary": ("\0\1\2\x7f", "PTX line 1"),
    "prose": ("this is not PTX", "PTX line 1"),
    "CUDA": ("__global__ void k() { }", "PTX line 1"),
    "cut off in the head": (".visible .entry k(", "the text ends inside"),
    "cut off in the body": (f"{HEAD}.entry k() {{\nret;", "function k has no end"),
    "no semicolon": (".entry k() { ret }", "the text ends inside"),
    "an unknown declaration": (f"{HEAD}.global .frob x;", "PTX line 4: no type of known size"),
    "a register without a type": (".entry k() { .reg %r<2>; ret; }", "no type of known size"),
    "a thousand million registers": (".entry k() { .reg .b32 %r<1000000000>; ret; }", "at most 1,048,576"),
    "a number that is none": (".shared .b8 x[4q]; .entry k() { ret; }", "PTX line 1: not understood"),
    "a huge array": (".entry k() { .local .b8 x[9000000000]; ret; }", "has 9,000,000,000 bytes"),
    "too much shared memory": (".entry k() { .shared .b8 x[300000]; st.shared.u8 [x], 1; ret; }", "a block needs 300,000 bytes"),
    "a register that is not declared": (".entry k() { mov.u32 %r1, 5; ret; }", "unknown operand '%r1'"),
    "no such label": (".entry k() { bra X; }", "no label X"),
    "no such table": (".entry k() { .reg .b32 %r<2>; brx.idx %r1, X; }", "no table of branch targets X"),
    "operands missing": (".entry k() { .reg .b32 %r<2>; st.shared.u32 [%r1]; ret; }", "st takes 2 to 3 operands, given 1: st.shared.u32"),
    "an instruction nobody knows": (".entry k() { frobnicate.u32; ret; }", "frobnicate.u32 is not one that the microscope knows"),
    "a function that is elsewhere": (".entry k() { call f, (); ret; }", "the kernel calls f, which the PTX does not define"),
    "a call through a pointer": (".entry k() { .reg .b64 %rd<2>; call %rd1, (); ret; }", "the kernel calls through a pointer"),
    "recursion": (".func f() { call f; ret; } .entry k() { call f; ret; }", "f calls itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_ptx(name: str) -> None:
    text, words = TEXTS[name]
    with pytest.raises(UsageError, match=words):
        simulate(text, "k", 1, 32, [])


def test_calls_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_CODE", 1000)
    calls = "".join(f".func f{i}() {{ call f{i + 1}; call f{i + 1}; ret; }}\n" for i in range(24))
    with pytest.raises(UsageError, match=r"with its calls inlined the kernel has over 1,000 instructions"):
        simulate(f"{calls}.func f24() {{ ret; }} .entry k() {{ call f0; ret; }}", "k", 1, 32, [])


@pytest.mark.parametrize(
    "text",
    [
        ".entry k() { }",
        ".entry k() { " + "{" * 300 + "}" * 300 + " }",
        "\ufeff" + NOTHING,
        NOTHING.replace("\n", "\r\n"),
    ],
)
def test_odd_text_that_is_ptx(text: str) -> None:
    assert simulate(text, "k", 2, 33, []).complete


@pytest.mark.parametrize(
    ("ptx", "entry"), [(b"abc", "k"), (None, "k"), (5, "k"), (NOTHING, None), (NOTHING, 3), (NOTHING, "kernel")]
)
def test_no_text_or_no_name(ptx: Any, entry: Any) -> None:
    with pytest.raises(UsageError, match=r"give PTX and the name of a kernel|no kernel 'kernel'"):
        simulate(ptx, entry, 1, 1, [])


@pytest.mark.parametrize("seed", range(60))
def test_damaged_ptx_runs_or_is_refused(seed: int) -> None:
    """Characters, lines and numbers changed at random: no error but the package's own."""
    rng = np.random.default_rng(seed)
    text = [ADD_ONE, COUNT, SCALARS][seed % 3]
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(text)))
        new = str(rng.choice(["", "0", "%", ";", "}", "{", "[", ".b64", "-1", "99999999999", "\n", "%r7", "x", ", "]))
        text = text[:at] + new + text[at + int(rng.integers(0, 9)) :]
    args = [[floats(), floats(), 64], [floats(), 9], [1, 2, 3, 4, bytes(16), np.zeros(4)]][seed % 3]
    with contextlib.suppress(TilewrightError):
        assert simulate(text, "k", 2, 32, args, RunOptions(max_steps=2000, max_bytes=1 << 26)).steps < 2100


#: What no operand is, or not in every place.
ODD = ("x", "5q", "-", "_", "%tid.x", "{}", "{%r1}", "[%r1+4q]", "[]", "1e400", "9" * 24, "%p1|%p2", "!%p1", "0x")
MODIFIERS = ("sync", "wide", "shared", "cas", "v4", "u64", "b128", "f16x2", "row", "all")


def damaged(text: str, rng: random.Random) -> str:
    """An instruction of a kernel with an operand or a modifier taken away, added or replaced."""
    statements = text.split(";")
    at = rng.choice([i for i, statement in enumerate(statements) if re.search(r"[a-z0-9]\s+[%\[{]", statement)])
    opcode, operands = re.fullmatch(r"(.*?[a-z][\w.:]*)(\s[^;]*)", statements[at], re.DOTALL).groups()  # type: ignore[union-attr]
    parts, listed = opcode.split("."), re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", operands)
    change = rng.randrange(4)
    if change == 0 and listed:
        del listed[rng.randrange(len(listed))]
    elif change == 1 and listed:
        listed[rng.randrange(len(listed))] = rng.choice(ODD)
    elif change == 2:
        listed.insert(rng.randint(0, len(listed)), rng.choice(ODD))
    else:
        parts[rng.randint(1, len(parts)) :] = [rng.choice(MODIFIERS), *parts[rng.randint(1, len(parts)) :]]
    statements[at] = f"{'.'.join(parts)} {', '.join(listed)}"
    return ";".join(statements)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_instructions_run_or_are_refused(seed: int) -> None:
    """No error but the package's own, though none is turned into one: what is missing is looked for beforehand."""
    rng = random.Random(seed)
    refused = 0
    for _ in range(40):
        case = CASES[rng.choice(list(CASES))]
        text = damaged(case.ptx, rng)
        try:
            simulate(text, "k", 1, 32, list(case.arguments), RunOptions(shared_bytes=case.shared, max_steps=2000))
        except TilewrightError:
            refused += 1
    assert refused > 10


def fail(*_: Any) -> Any:
    return ()[0]  # type: ignore[misc]


@pytest.mark.parametrize("when", ["bound", "executed"])
def test_a_defect_of_ours_looks_like_one(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It is no fault of the kernel's, and no error that users are told to mend."""
    monkeypatch.setitem(TABLE, ("add", "f32"), fail if when == "bound" else lambda ins, lanes: fail)
    with pytest.raises(IndexError, match="tuple index out of range"):
        add_one(floats(), floats(), 64)


def test_a_defect_of_the_parser_looks_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_function", fail)
    with pytest.raises(IndexError, match="tuple index out of range"):
        simulate(NOTHING, "k", 1, 1, [])
