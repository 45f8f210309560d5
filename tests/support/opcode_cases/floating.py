"""Floating-point arithmetic: correctly rounded in all four directions, and the approximations of the fast unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Case, Within, elementwise, floats, operands

MODES = ("rn", "rz", "rm", "rp")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def _rows(op: str, kind: str, count: int, flags: Sequence[str]) -> list[str]:
    taken = ", ".join(f"{{{x}}}" for x in "abc"[:count])
    return [f"{op}{f}.{kind} {{d}}, {taken}" for f in flags]


def _on(name: str, rows: Sequence[str], kind: str, count: int, within: Within | None = None) -> Case:
    return elementwise(name, rows, kind, (kind,) * count, operands((kind,) * count), within)


def cases() -> Iterator[Case]:
    single = [f".{m}{f}{s}" for m in MODES for f in ("", ".ftz") for s in ("", ".sat")]
    for op, count in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("mad", 3)):
        yield _on(f"{op}.f32", _rows(op, "f32", count, single if op != "mad" else single[::4]), "f32", count)
        yield _on(f"{op}.f64", _rows(op, "f64", count, [f".{m}" for m in MODES]), "f64", count)
        if op == "mad":
            continue
        for kind in HALVES:
            flags = [".rn"]
            if kind.startswith("f16"):
                flags += [".rn.ftz", ".rn.sat", ".rn.ftz.sat", *[".rn.relu", ".rn.ftz.relu"] * (op == "fma")]
            elif op == "fma":
                flags += [".rn.relu"]
            yield _on(f"{op}.{kind}", _rows(op, kind, count, flags), kind, count)
    rounded = [f".{m}{f}" for m in MODES for f in ("", ".ftz")]
    for op, count in (("div", 2), ("rcp", 1), ("sqrt", 1)):
        yield _on(f"{op}.f32", _rows(op, "f32", count, rounded), "f32", count)
        yield _on(f"{op}.f64", _rows(op, "f64", count, [f".{m}" for m in MODES]), "f64", count)
    yield from extremes()
    yield from approximations()


def extremes() -> Iterator[Case]:
    flags = {
        "f32": ["", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".ftz.NaN.xorsign.abs"],
        "f64": [""],
        "f16": ["", ".ftz", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"],
        "bf16": ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"],
    }
    for kind in ("f32", "f64", *HALVES):
        given = flags[kind.removesuffix("x2")]
        yield _on(f"extreme.{kind}", [r for op in ("min", "max") for r in _rows(op, kind, 2, given)], kind, 2)
        ftz = ["", ".ftz"] if kind in ("f32", "f16", "f16x2") else [""]
        yield _on(f"sign.{kind}", [r for op in ("abs", "neg") for r in _rows(op, kind, 1, ftz)], kind, 1)
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    for kind in ("f32", "f64"):
        yield _on(f"copysign.{kind}", _rows("copysign", kind, 2, [""]), kind, 2)
        rows = [f"testp.{t}.{kind} {{d}}, {{a}}" for t in tests]
        yield elementwise(f"testp.{kind}", rows, "pred", (kind,), operands((kind,)))


#: The errors that the PTX ISA documents. The microscope rounds the exact value once, half a unit in the last place.
_BOUNDS = {
    "rcp": Within("f32", "rcp.approx.f32: 1 ulp; the microscope rounds exactly", ulp=1.5),
    "sqrt": Within("f32", "sqrt.approx.f32: relative error 2^-23", ulp=1, relative=2.0**-23),
    "rsqrt": Within("f32", "rsqrt.approx.f32: relative error 2^-22.9", ulp=1, relative=2.0**-22.9),
    "lg2": Within("f32", "lg2.approx.f32: error 2^-22, absolute in (0.5, 2), else relative", ulp=1, absolute=2.0**-22,
                  relative=2.0**-22),
    "ex2": Within("f32", "ex2.approx.f32: relative error 2^-22.5 and 2 ulp in full range", ulp=2.5),
    "sin": Within("f32", "sin.approx.f32: absolute error 2^-20.5 in [-2π, 2π]", ulp=1, absolute=2.0**-20.5),
    "cos": Within("f32", "cos.approx.f32: absolute error 2^-20.5 in [-2π, 2π]", ulp=1, absolute=2.0**-20.5),
    "tanh": Within("f32", "tanh.approx.f32: relative error 2^-11", ulp=1, relative=2.0**-11),
}  # fmt: skip


def approximations() -> Iterator[Case]:
    angles = _angles()
    for op, bound in _BOUNDS.items():
        given = angles if op in ("sin", "cos") else _positive(floats("f32", n=512), op)
        flags = [".approx"] if op == "tanh" else [".approx", ".approx.ftz"]
        yield elementwise(f"{op}.approx.f32", _rows(op, "f32", 1, flags), "f32", ("f32",), [given], bound)
    two = Within("f32", "div.approx and div.full: 2 ulp for divisors from 2^-126 to 2^126", ulp=2.5)
    rows = _rows("div", "f32", 2, [".approx", ".approx.ftz", ".full", ".full.ftz"])
    near = [floats("f32", i, n=256, near=20, seed="div") for i in range(2)]
    yield elementwise("div.approx.f32", rows, "f32", ("f32", "f32"), near, two)
    # Divisors beyond 2^126 and other corners: what the fast unit does with them is part of the instruction.
    yield _on("div.approx.corners.f32", rows[:2], "f32", 2, two)
    yield _on("div.full.corners.f32", rows[2:], "f32", 2, two)
    for op in ("rcp", "rsqrt"):
        gross = Within("f64", f"{op}.approx.ftz.f64: a first approximation, of the upper 32 bits", relative=2.0**-19)
        given = _positive(floats("f64"), op)
        yield elementwise(f"{op}.approx.ftz.f64", _rows(op, "f64", 1, [".approx.ftz"]), "f64", ("f64",), [given], gross)
    full = Within("f64", "rsqrt.approx.f64: emulated, within 2 ulp", ulp=2.5)
    yield elementwise("rsqrt.approx.f64", _rows("rsqrt", "f64", 1, [".approx"]), "f64", ("f64",),
                      [_positive(floats("f64"), "rsqrt")], full)  # fmt: skip
    bounds = {
        "ex2.f16": Within("f16", "ex2.approx.f16: relative error 2^-9.9", ulp=1, relative=2.0**-9.9),
        "ex2.bf16": Within("bf16", "ex2.approx.ftz.bf16: relative error 2^-7", ulp=1, relative=2.0**-7),
        "tanh.f16": Within("f16", "tanh.approx.f16: absolute error 2^-10.987", ulp=1, absolute=2.0**-10.987),
        "tanh.bf16": Within("bf16", "tanh.approx.bf16: relative error 2^-8", ulp=1, relative=2.0**-8),
    }
    for op in ("ex2", "tanh"):
        for kind in HALVES:
            ftz = [".ftz"] if kind.startswith("bf16") and op == "ex2" else [""]
            rows = _rows(f"{op}.approx", kind, 1, ftz)
            yield _on(f"{op}.approx.{kind}", rows, kind, 1, bounds[f"{op}.{kind.removesuffix('x2')}"])


def _positive(x: np.ndarray, op: str) -> np.ndarray:
    """For roots and logarithms mostly positive numbers; the corners stay."""
    if op not in ("sqrt", "rsqrt", "lg2"):
        return x
    x = x.copy()
    x[16:] &= x.dtype.type((1 << (8 * x.dtype.itemsize - 1)) - 1)
    return x


def _angles() -> np.ndarray:
    """Angles from -2π to 2π, where the documentation bounds the error, and ±0, infinities and NaN."""
    x = floats("f32", n=512, near=2, seed="angle").copy()
    large = (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x40C90FDA)
    x[large] -= np.uint32(1 << 23)
    x[:6] = 0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1
    return x
