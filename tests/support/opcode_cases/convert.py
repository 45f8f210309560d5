"""Conversions between all types, with every rounding and saturation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import FORMAT, Array, Case, elementwise, floats, ints, operands, words

INTS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
MODES = ("rn", "rz", "rm", "rp")
ROUND = ("rni", "rzi", "rmi", "rpi")


def cases() -> Iterator[Case]:
    for given in INTS:
        for made in INTS:
            rows = [f"cvt{sat}.{made}.{given} {{d}}, {{a}}" for sat in (("",) if _holds(made, given) else ("", ".sat"))]
            yield elementwise(f"cvt.{made}.{given}", rows, made, (given,), [ints(given, n=64)])
        for made in ("f16", "bf16", "f32", "f64"):
            if made == "bf16" and given[1:] == "8":
                continue  # there is no such conversion
            rows = [f"cvt.{m}.{made}.{given} {{d}}, {{a}}" for m in MODES]
            yield elementwise(f"cvt.{made}.{given}", rows, made, (given,), [ints(given)])
    for given in ("f16", "bf16", "f32", "f64"):
        for made in INTS:
            if given == "bf16" and made[1:] == "8":
                continue
            ftz = ["", ".ftz"] if given == "f32" else [""]
            rows = [f"cvt.{r}{f}.{made}.{given} {{d}}, {{a}}" for r in ROUND for f in ftz]
            yield elementwise(f"cvt.{made}.{given}", rows, made, (given,), [around(given)])
        yield from between_floats(given)
    yield from narrow()


def _holds(made: str, given: str) -> bool:
    """Whether a type holds all values of another: .sat is then not allowed."""
    wider = int(made[1:]) - int(given[1:])
    return wider >= 0 if made[0] == given[0] else given[0] == "u" and wider > 0


def around(kind: str) -> Array:
    """Floats of the size of integers, halves among them, with the limits of the integer types and corners."""
    x = floats(kind, n=256, near=9 if kind == "f16" else 40, seed="around")
    x[:16] = floats(kind, n=256)[:16]
    limits = [s * (2.0**p + d) for p in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (-1, 0, 1)]
    limits += [0.5, -0.5, 1.5, 2.5, -2.5, 0.25, -0.75]
    exact = np.array(limits, np.float64)
    if kind == "f64":
        bits = exact.view(np.uint64)
    elif kind == "f16":
        bits = np.clip(exact, -65504, 65504).astype(np.float16).view(np.uint16)
    else:
        bits = exact.astype(np.float32).view(np.uint32)
        bits = (bits >> np.uint32(16)).astype(np.uint16) if kind == "bf16" else bits
    x[16 : 16 + len(bits)] = bits
    return x


def between_floats(given: str) -> Iterator[Case]:
    """Into the same type by rounding to a whole number, into a narrower one by rounding, into a wider one as it is."""
    ranks = {"f16": 0, "bf16": 0, "f32": 1, "f64": 2}
    for made in ranks:
        if made == given:
            ftz = ["", ".ftz"] if given == "f32" else [""]
            flags = [f".{r}{f}{s}" for r in ROUND for f in ftz for s in ("", ".sat")]
            flags += [".sat", ".ftz", ".ftz.sat"] if given == "f32" else [".sat"] if given in ("f16", "f64") else []
            if given == "bf16":
                flags = [f".{r}" for r in ROUND]
            x = around(given)
        elif ranks[made] > ranks[given]:
            flags = ["", ".ftz", ".sat", ".ftz.sat"] if (made, given) == ("f32", "f16") else ["", ".sat"]
            flags = ["", ".ftz"] if given == "bf16" and made == "f32" else [""] if given == "bf16" else flags
            if (made, given) == ("f64", "f32"):
                flags = ["", ".ftz", ".sat"]
            x = floats(given)
        else:
            flags = [f".{m}{s}" for m in MODES for s in ("", ".sat")]
            if "bf16" in (made, given):
                flags = [f".{m}" for m in MODES]
            if (made, given) == ("f32", "f64"):
                flags += [f".{m}.ftz" for m in MODES]
            if given == "f32":
                flags += [f".{m}.relu" for m in ("rn", "rz")]
            x = landing(given, made)
        rows = [f"cvt{f}.{made}.{given} {{d}}, {{a}}" for f in flags]
        yield elementwise(f"cvt.{made}.{given}", rows, made, (given,), [x])


def landing(given: str, made: str) -> Array:
    """Floats that land in the narrower type's range: ties, subnormal results, overflow and corners."""
    x = floats(given, n=256)
    reach = min({"f16": 26, "bf16": 140, "f32": 155}[made], (1 << (FORMAT[given][0] - 1)) - 2)
    x[128:] = floats(given, n=128, near=reach, seed="landing")
    return x


def narrow() -> Iterator[Case]:
    """Pairs of halves from two floats, tf32, and the 8-bit floats."""
    two = [landing("f32", "f16"), landing("f32", "bf16")]
    for made in ("f16x2", "bf16x2"):
        rows = [f"cvt.{m}{relu}.{made}.f32 {{d}}, {{a}}, {{b}}" for m in ("rn", "rz") for relu in ("", ".relu")]
        yield elementwise(f"cvt.{made}.f32", rows, made, ("f32", "f32"), two)
    rows = ["cvt.rna.tf32.f32 {d}, {a}"] + [
        f"cvt.{m}{r}.tf32.f32 {{d}}, {{a}}" for m in ("rn", "rz") for r in ("", ".relu")
    ]
    yield elementwise("cvt.tf32.f32", rows, "b32", ("f32",), [floats("f32")])
    for made in ("e4m3x2", "e5m2x2"):
        few = [floats("f32", i, n=256, near=18, seed=made) for i in range(2)]
        for i in range(2):
            few[i][:26] = np.roll(floats("f32", n=64)[:26], 3 * i)
        rows = [f"cvt.rn.satfinite{relu}.{made}.f32 {{d}}, {{a}}, {{b}}" for relu in ("", ".relu")]
        yield elementwise(f"cvt.{made}.f32", rows, "b16", ("f32", "f32"), few)
        rows = [f"cvt.rn.satfinite{relu}.{made}.f16x2 {{d}}, {{a}}" for relu in ("", ".relu")]
        yield elementwise(f"cvt.{made}.f16x2", rows, "b16", ("f16x2",), operands(("f16x2",)))
        every = np.arange(256, dtype=np.uint16) | np.arange(255, -1, -1, dtype=np.uint16) << np.uint16(8)
        rows = [f"cvt.rn{relu}.f16x2.{made} {{d}}, {{a}}" for relu in ("", ".relu")]
        yield elementwise(f"cvt.f16x2.{made}", rows, "f16x2", ("b16",), [every])
    for made in ("u8", "s8", "u16", "s16"):
        size = ".b32" if made.endswith("8") else ""
        taken = "{d}, {a}, {b}, {c}" if size else "{d}, {a}, {b}"
        given = [ints("s32", 0, 2), ints("s32", 1, 2), words("pack", 128)]
        kinds = ("s32", "s32", "b32")[: 3 if size else 2]
        yield elementwise(
            f"cvt.pack.{made}", [f"cvt.pack.sat.{made}.s32{size} {taken}"], "b32", kinds, given[: len(kinds)]
        )
