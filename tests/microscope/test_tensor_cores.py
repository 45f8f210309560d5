"""The arithmetic of tensor cores: against an NVIDIA H200, and against a second implementation in whole numbers.

``data/tensor-cores-h200.npz`` has the results of every case of ``tensor_core_cases``, written on an H200 by ``python
benchmarks/record_tensor_cores.py DIR``, which also leaves whole results in ``DIR`` to analyse a difference. It has a hash of
each case's PTX and inputs: record anew when cases change.
"""

from __future__ import annotations

import functools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tensor_core_cases import CASES, kept, replay
from tilewright.simulator.ops.tensor_core import SumRule, TensorProduct, factors, fused_sum

RECORD = Path(__file__).parents[1] / "data" / "tensor-cores-h200.npz"
RNG = np.random.default_rng(90)
LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "e4m3": -6, "e5m2": -14}
WORD = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "e4m3": np.uint8, "e5m2": np.uint8}


@functools.cache
def recording() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Metadata, and what is kept of the result of each case."""
    with np.load(RECORD) as file:
        outputs = {name: file[name].tobytes() for name in file.files if name != "metadata"}
        return json.loads(str(file["metadata"])), outputs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if at % 8 else []) for at, name in enumerate(CASES)]
)
def test_as_the_gpu_does_in_every_bit(name: str) -> None:
    assert kept(replay(name)) == recording()[1][name]


def test_the_recording_is_of_these_cases() -> None:
    metadata, outputs = recording()
    assert not metadata["failed"]
    assert set(outputs) == set(CASES)
    assert metadata["cases"] == {name: case.digest() for name, case in CASES.items()}
    assert "H200" in metadata["gpu"]


@pytest.mark.parametrize("name", ["wgmma.m64n8k16.f32.f16.f16.near", "wgmma.m64n64k16.f32.f16.f16.wide"])
def test_one_other_bit_is_rejected(name: str) -> None:
    made = bytearray(replay(name))
    made[-1] ^= 1
    assert kept(bytes(made)) != recording()[1][name]


def exponent(x: float, kind: str) -> int:
    return max(math.frexp(x)[1] - 1, LEAST[kind])


def cut(x: Fraction, unit: Fraction) -> Fraction:
    """Towards zero, to a multiple of the unit."""
    whole = abs(x) // unit * unit
    return whole if x >= 0 else -whole


def summed(a: list[float], b: list[float], c: float, kinds: tuple[str, str], rule: SumRule, half: bool) -> float:
    """One fused sum by the rule of the papers."""
    everything = [*(x * y for x, y in zip(a, b, strict=True)), c]
    if not all(map(math.isfinite, everything)):
        return sum(everything)
    terms = [
        (Fraction(x) * Fraction(y), exponent(x, kinds[0]) + exponent(y, kinds[1])) for x, y in zip(a, b, strict=True)
    ]
    terms.append((Fraction(c), exponent(c, "f16" if half else "f32")))
    terms = [(value, size) for value, size in terms if value]
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(size for _, size in terms) - rule.fraction)
    total = sum((cut(value, unit) for value, _ in terms), Fraction(0))
    if half:
        return float(np.float64(float(total)).astype(np.float16))  # at most 33 bits: float() is exact
    size = max(math.frexp(float(total))[1] - 1, -126)
    total = cut(total, Fraction(2) ** (size - rule.kept))
    return math.copysign(math.inf, total) if abs(total) >= 2**128 else float(total)


def operands(kind: str, shape: tuple[int, int], how: str) -> np.ndarray:
    """Numbers of a type: any bits, or numbers near 1 of which some cancel."""
    bits = RNG.integers(0, 1 << 8 * WORD[kind]().itemsize, shape, dtype=np.uint64).astype(WORD[kind])
    with np.errstate(all="ignore"):
        numbers = factors(np.ascontiguousarray(bits), kind)
    if how == "any":
        return numbers
    finite = np.where(np.isfinite(numbers), numbers, 1.5)
    return np.ldexp(np.frexp(finite)[0], RNG.integers(-2, 2, shape))


@pytest.mark.parametrize("how", ["any", "near"])
@pytest.mark.parametrize(
    ("kind", "other", "rule", "result"),
    [
        ("f16", "f16", SumRule(25, 16), np.float32),
        ("f16", "f16", SumRule(25, 16), np.float16),
        ("f16", "f16", SumRule(24, 8), np.float32),
        ("bf16", "bf16", SumRule(25, 16), np.float32),
        ("tf32", "tf32", SumRule(25, 8), np.float32),
        ("e4m3", "e5m2", SumRule(13, 32, 13), np.float32),
        ("e5m2", "e5m2", SumRule(13, 32, 13), np.float16),
    ],
)
def test_fused_sums_follow_the_rule(kind: str, other: str, rule: SumRule, result: type, how: str) -> None:
    a, b = operands(kind, (12, rule.span), how), operands(other, (rule.span, 24), how)
    c = operands("f16" if result is np.float16 else "tf32", (12, 24), how).astype(result)
    c[0] = 0
    with np.errstate(all="ignore"):
        made = fused_sum(a, b, c, (kind, other), rule)
        want = [
            [
                summed(list(a[i]), list(b[:, j]), float(c[i, j]), (kind, other), rule, result is np.float16)
                for j in range(24)
            ]
            for i in range(12)
        ]
    np.testing.assert_array_equal(made, np.array(want).astype(result))
    assert np.isnan(want).any() == (how == "any")


def test_nan_is_canonical_and_infinities_cancel_to_it() -> None:
    a, b = np.array([[np.inf, 1.0], [np.nan, 1.0], [np.inf, 0.0]]), np.array([[1.0], [-np.inf]])
    product = TensorProduct("wgmma", ("f16", "f16"), "f32")
    with np.errstate(all="ignore"):
        bits = product.sum(a, b, np.zeros((3, 1), np.float32)).view(np.uint32)
    assert bits.ravel().tolist() == [0x7FFFFFFF] * 3


def test_a_sum_of_zero_is_positive() -> None:
    zero = np.full((1, 1), -0.0, np.float32)
    made = TensorProduct("mma", ("f16", "f16"), "f32").sum(-np.zeros((1, 4)), np.zeros((4, 1)), zero)
    assert not np.signbit(made).any()


def test_batches_and_slabs_change_nothing() -> None:
    a, b = (
        operands("f16", (3 * 64, 16), "near").reshape(3, 64, 16),
        operands("f16", (3 * 16, 512), "near").reshape(3, 16, -1),
    )
    c = RNG.standard_normal((3, 64, 512)).astype(np.float32)
    rule = SumRule(25, 16)
    whole = fused_sum(a, b, c, ("f16", "f16"), rule)
    for i in range(3):
        for j in (0, 17, 63):
            one = fused_sum(a[i, j : j + 1], b[i], c[i, j : j + 1], ("f16", "f16"), rule)
            np.testing.assert_array_equal(whole[i, j : j + 1], one)


@pytest.mark.parametrize("flags", [frozenset(), frozenset({"satfinite"})])
def test_integers_wrap_or_saturate(flags: frozenset[str]) -> None:
    c = np.array([[2**31 - 1]], np.int32)
    made = TensorProduct("mma", ("s8", "u8"), "s32", flags).sum(np.full((1, 2), 100.0), np.full((2, 1), 200.0), c)
    assert made.item() == (2**31 - 1 if flags else 40_000 - 2**31 - 1)


@pytest.mark.parametrize("how", ["and", "xor"])
def test_pairs_of_bits_are_counted(how: str) -> None:
    a, b = (RNG.integers(0, 2, shape).astype(np.float64) for shape in ((3, 128), (128, 5)))
    made = TensorProduct("mma", ("b1", "b1"), "s32", frozenset({how})).sum(a, b, np.zeros((3, 5), np.int32))
    pairs = a[:, :, None] * b if how == "and" else a[:, :, None] != b
    np.testing.assert_array_equal(made, pairs.sum(axis=1))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("wmma") and n.endswith((".near", ".any"))])
def test_wmma_multiplies_matrices_of_every_shape_and_layout(name: str) -> None:
    """Within the error of any order of summation: a wrong layout is far off."""
    case = CASES[name]
    _, form, d, kind, c, *_, by_a, by_b, by_c, _ = name.split(".")
    m, n, k = (int(x) for x in form.removeprefix("m").replace("n", " ").replace("k", " ").split())

    def matrix(bits: np.ndarray, kind: str, shape: tuple[int, int], by: str) -> np.ndarray:
        plain = {"f32": np.float32, "s32": np.int32, "f16": np.float16}.get(kind)
        numbers = factors(bits, kind) if plain is None else bits.view(plain).astype(np.float64)
        return numbers.reshape(shape) if by == "row" else numbers.reshape(shape[::-1]).T

    sides = ((kind, (m, k), by_a), (kind, (k, n), by_b), (c, (m, n), by_c))
    A, B, C = (matrix(bits, *side) for bits, side in zip(case.arguments, sides, strict=False))
    made = matrix(np.frombuffer(replay(name), case.arguments[3].dtype), d, (m, n), by_c)
    if d == "s32":
        low, high = (-(2**31), 2**31 - 1) if "satfinite" in name else (-np.inf, np.inf)
        wanted = np.clip(A @ B + C, low, high)
        np.testing.assert_array_equal((made - wanted) % 2**32, 0)
    else:
        size = np.abs(A) @ np.abs(B) + np.abs(C)
        assert (np.abs(made - (A @ B + C)) <= size * 2.0 ** (-9 if "f16" in (c, d) else -21)).all()


def test_movmatrix_transposes() -> None:
    given = CASES["movmatrix"].arguments[0].view(np.uint16).reshape(2, 8, 8)
    made = np.frombuffer(replay("movmatrix"), np.uint16).reshape(2, 8, 8)
    np.testing.assert_array_equal(made, given.swapaxes(1, 2))
