"""The sets of parameters of the engine's CUDA kernels as columns: the same numbers as their expressions, one by one."""

import math
import random
from typing import Any

import numpy as np
import pytest

from tilewright.gpu.planning import columns, ways
from tilewright.gpu.planning.columns import staged
from tilewright.gpu.planning.sets import LAYOUT, sets_for
from tilewright.gpu.planning.ways import EngineShape
from tilewright.kernels.catalog import cuda_engine, cuda_engine_for
from tilewright.kernels.cuda_kernel import BASE, LINE, TIMED, Card, CudaKernel, cost_table
from tilewright.kernels.expression import Expression
from tilewright.kernels.header import check_launches
from tilewright.product.problem import itemsize_of

KERNELS = list(cuda_engine().values())


def one_by_one(kernel: CudaKernel, values: dict[str, Any]) -> float:
    """The predicted time, by the expressions of the header."""
    known = dict(values)
    for name, expression in kernel.time.items():
        known[name] = expression.of(known)
    return float(known["seconds"])


def drawn(draw: random.Random, kernel: CudaKernel, largest: int) -> dict[str, Any]:
    """Values for all names of TIMED but those that belong to a set."""
    starts = [draw.choice((2, 16, 64, 128)) for _ in "ab"]
    return {
        **{name: draw.randrange(1, largest) for name in "mnk"},
        **{
            "size": itemsize_of(draw.choice(kernel.dtypes)),
            "batch": draw.choice((1, 1, 7)),
            "memory_ratio": 1.25,
            "int8_rate": 1024,
        },
        **{"sms": draw.choice((16, 84, 108, 132)), "a_start": starts[0], "b_start": starts[1]},
        **{"lines": starts[0] == starts[1] == 128, "a_vector": draw.choice((4, 16)), "b_vector": draw.choice((4, 16))},
        **{name: draw.random() < 0.5 for name in ("a_down", "b_across", "finished", "scaled", "triangle")},
    }


@pytest.mark.parametrize("largest", [100, 10_000, 2**31])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_columns_are_what_the_expressions_say(kernel: CudaKernel, largest: int) -> None:
    draw = random.Random(f"{kernel.name} {largest}")
    for cut in (False, True) * 4:
        given = drawn(draw, kernel, largest)
        m, n, k = (given[name] for name in "mnk")
        sets = sets_for(kernel, tuple(given[name] for name in LAYOUT))
        conditions = [True, *(preset.when for preset in kernel.presets)]
        known = given | {LINE: 128 // given["size"]} | cost_table(BASE).costs_of(kernel)
        allowed = [
            i
            for i, (when, each) in enumerate(zip(conditions, sets.params, strict=True))
            if when is True or when.of(known | each)
        ]
        index = sets.allowed(m, n, k)
        assert index.tolist() == allowed
        if given["triangle"]:  # others have no blocks
            index = index[sets.in_triangle[index]]
            allowed = [i for i in allowed if kernel.triangle is not None and kernel.triangle.of(known | sets.params[i])]
            assert index.tolist() == allowed
            if not allowed:
                continue
        grid = kernel.grid if kernel.triangle is None or not given["triangle"] else (kernel.triangle,)
        blocks = [math.prod(extent.of(known | sets.params[i]) for extent in grid) for i in allowed]
        assert sets.blocks(index, m, n, k).tolist() == blocks
        parts = [draw.choice((1, 1, 3, 8)) if cut else 1 for _ in allowed]
        varied = {
            "parts": parts,
            "blocks": [count * given["batch"] * part for count, part in zip(blocks, parts, strict=True)],
            "part": [-(-k // part) for part in parts],
            "out_size": [4 if part > 1 else 2 for part in parts],
            "c_down": [part == 1 and cut for part in parts],
        }
        expected = [
            one_by_one(kernel, known | sets.params[i] | {name: values[at] for name, values in varied.items()})
            for at, i in enumerate(allowed)
        ]
        given_columns = {name: np.array(values, float) for name, values in varied.items()}
        if not cut:
            given_columns |= {name: varied[name][0] for name in ("parts", "part", "out_size", "c_down")}
        rest = {name: given[name] for name in TIMED if name not in (*LAYOUT, "lines", *varied)}
        found = sets.seconds(index, cut=cut, **rest, **given_columns)
        # Columns round whole numbers beyond 2^53, which Python does not.
        np.testing.assert_allclose(found, expected, rtol=0 if largest < 2**31 else 1e-12)


@pytest.mark.parametrize("text", [
    "(A > 2) + (m > 3) + (B > 1)", "-(A > 2) - (B > 1)", "min(A, m, B) + max(1, B)", "A % B + m // A + cdiv(m, B)",
    "(1 < A <= B) * (m != 4) / B", "sqrt(A) * sqrt(m) + 7 % 4", "5", "m * 2", "A",
])  # fmt: skip
@pytest.mark.parametrize("by", ["C", "NumPy"])
def test_columns_have_the_arithmetic_of_numbers(text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more columns than a strip has, too."""
    if by == "NumPy":
        monkeypatch.setattr(columns, "front", lambda: None)
    elif columns.front() is None:
        pytest.skip("the C front is not built: python -m tilewright.prebuilt")
    expression = Expression.parse(text, ["A", "B", "m"], real=True)
    a, b = [1, 2, 3, 7] * 40, [2, 2, 1, 9] * 40
    program = staged({"value": expression}, ["A", "B"], ["m"], ["A", "B"])
    prepared = program.prepare({"A": np.array(a, float), "B": np.array(b, float)})
    for m, index in ((3, None), (4, None), (10, np.array([1, 3, 158]))):
        found = program.finish(prepared, index, {"m": m})
        expected = [expression.of({"A": x, "B": y, "m": m}) for x, y in zip(a, b, strict=True)]
        assert found.tolist() == (expected if index is None else [expected[i] for i in index])


@pytest.mark.parametrize("by", ["C", "NumPy"])
def test_a_division_by_zero_is_an_error(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "NumPy":
        monkeypatch.setattr(columns, "front", lambda: None)
    for text in ("A / m", "A // m", "A % m", "cdiv(A, m)", "m / (A - 2)"):
        program = staged({"value": Expression.parse(text, ["A", "m"], real=True)}, ["A"], ["m"], ["A"])
        with pytest.raises(ZeroDivisionError):
            program.finish(program.prepare({"A": np.array([1.0, 2.0])}), None, {"m": 0})


def test_c_computes_the_bits_that_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, blocks and conditions of all kernels."""
    draw, found = random.Random(7), list[list[np.ndarray[Any, Any]]]()
    given = [(kernel, drawn(draw, kernel, 5000)) for kernel in KERNELS for _ in range(20)]
    for front in (columns.front, lambda: None):
        monkeypatch.setattr(columns, "front", front)
        found.append([])
        for kernel, values in given:
            sets = sets_for(kernel, tuple(values[name] for name in LAYOUT))
            index = sets.allowed(*(values[name] for name in "mnk"))
            index = index[sets.in_triangle[index]] if values["triangle"] else index  # others have no blocks
            blocks = sets.blocks(index, *(values[name] for name in "mnk"))
            rest = {name: values[name] for name in TIMED if name in values and name not in (*LAYOUT, "lines")}
            rest |= {"blocks": blocks, "parts": 1, "part": values["k"], "out_size": 2, "c_down": False}
            found[-1] += [index, blocks, sets.seconds(index, **rest)]
    for by_c, by_numpy in zip(*found, strict=True):
        np.testing.assert_array_equal(by_c, by_numpy)


def test_a_program_that_does_not_fit_its_values_is_refused() -> None:
    """The C front reads and writes nothing outside of what it is given."""
    native = columns.front()
    if native is None:
        pytest.skip("the C front is not built: python -m tilewright.prebuilt")
    expression = Expression.parse("A * m + B", ["A", "B", "m"])
    program = staged({"value": expression}, ["A"], ["m", "B"], ["A", "B"])
    numbers, table, _ = program.prepare({"A": np.arange(70.0)})
    index, b, out = np.arange(70), np.ones(70), np.empty(70)
    good: list[Any] = [program._code, program._columns, numbers, (2,), table, index, (b,), out]
    native.evaluate(*good)
    np.testing.assert_array_equal(out, 2 * np.arange(70.0) + 1)
    code = program._code
    wrong: dict[int, list[Any]] = {
        0: [b"", code[:-4], code + b"1234", code[:24] + b"\xff" * len(code[24:]), code[:24] + b"\x7f" * len(code[24:])],
        1: [0, -1, 2],
        2: [np.ones(1)],
        3: [(), (1, 2)],
        4: [table[:, :3].copy(), np.empty((0, 0))],
        5: [index[:9], index + 1, index - 1],
        6: [(), (b, b), (b[:9],), (b,) * 9],
        7: [np.empty(9)],
    }
    for place, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match="do not fit"):
                native.evaluate(*good[:place], value, *good[place + 1 :])
    with pytest.raises((TypeError, BufferError)):
        native.evaluate(*good[:7], b"no place to write")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_defaults_and_presets_of_the_engine_can_be_launched(kernel: CudaKernel) -> None:
    check_launches(kernel)


def test_headers_are_read_for_the_dtypes_that_they_name() -> None:
    for dtype in {dtype for kernel in KERNELS for dtype in kernel.dtypes}:
        assert list(cuda_engine_for(dtype)) == [kernel for kernel in KERNELS if dtype in kernel.dtypes]
    assert cuda_engine_for("float") == ()


def test_c_finds_the_way_that_numpy_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, parameters and parts of k, with epilogues and copies, for few and for many multiprocessors."""
    if columns.front() is None:
        pytest.skip("the C front is not built: python -m tilewright.prebuilt")
    draw, given = random.Random(11), []
    for kernel in KERNELS:
        for _ in range(30):
            sizes = [draw.choice((1, 7, 64, 130, 1000, draw.randrange(1, 9000))) for _ in "mnk"]
            dtype = draw.choice(kernel.dtypes)
            made = {"float8": "bfloat16", "float8_fast": "bfloat16"}.get(dtype, dtype)
            vectors = draw.choice((None, 0, 2)) if kernel.finishes is not None else None
            invariant = kernel.invariant is not None and draw.random() < 0.3
            lie = (draw.choice((16, 64, 128)), draw.choice((2, 128)), draw.random() < 0.5, draw.random() < 0.5, 16, 8)
            shape = EngineShape(dtype, made, *sizes, draw.choice((1, 1, 9)), *lie, vectors, invariant=invariant)
            given.append((kernel, shape, Card("", draw.choice((16, 132)), 1.25), draw.choice((0.0, 3e-6))))
    by_c = [ways.fastest_way(*each) for each in given]
    assert sum(found is not None and found[2] > 1 for found in by_c) > 50
    monkeypatch.setattr(ways, "_search", lambda *_: None)
    for found, each in zip(by_c, given, strict=True):
        assert found == ways.fastest_way(*each), each


def test_a_way_search_that_does_not_fit_its_sets_is_refused() -> None:
    native = columns.front()
    if native is None:
        pytest.skip("the C front is not built: python -m tilewright.prebuilt")
    hopper = cuda_engine()["cuda/hopper"]
    sets = sets_for(hopper, (2, 132, 1.0, 2048, False, False, False, False, False))
    programs = sets.search_programs(ways._GIVEN, ways._COLUMNS, ways._total(1.0))
    of_sets, facts = np.ones((3, len(sets.params))).tobytes(), (132, 1, 1, 4, 256, 1e6)
    assert native.way_search(of_sets, facts, programs)(*[128] * (len(ways._GIVEN) - 1))
    code, count, numbers, table, values, taken, first, end = times = programs[2]
    wrong = [
        (code[:-4], *times[1:]), (code, 2, *times[2:]), (code, count, numbers[1:], *times[3:]),
        (*times[:3], table[:, 1:].copy(), *times[4:]), (*times[:4], values[4:], *times[5:]),
        (*times[:4], b"\x7f" * len(values), *times[5:]), (*times[:5], taken[4:], first, end),
        (*times[:5], b"\xff" * len(taken), first, end), (*times[:6], first + 1, end), (*times[:7], end + 1),
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(ValueError, match="do not fit"):
            native.way_search(of_sets, facts, (*programs[:2], each, *programs[3:]))
    with pytest.raises(ValueError, match="do not fit"):
        native.way_search(of_sets, facts, (times, *programs[1:]))
    with pytest.raises(ValueError, match="programs"):
        native.way_search(of_sets, facts, programs[:3])
    with pytest.raises(TypeError):
        native.way_search(of_sets, facts, programs)(1, 2, 3)
