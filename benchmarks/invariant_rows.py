"""Counts rows of products whose bits change with the rows beside them: with ``invariant=True`` none should.

    python benchmarks/invariant_rows.py OUT.jsonl [--seconds 60] [--seed 1] [--device cpu] [--dtypes float32,float64]

Random products A·B of each dtype are computed whole, and then some of their rows again: of a part of A at any place, of any
height and layout, in a batch, with a bias, or into a result of other strides. A line of the record has for each dtype the
products and the rows that were compared, and how many differed with ``invariant=True`` and without.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tilewright.lab.inputs.environment import environment

DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float32", "float64", "complex64", "complex128")
#: The sides of B, and the most rows; on the host less.
SIDES, ROWS, ON_HOST = (16, 8192), 8192, 8
#: Parts of A that are multiplied again for each product.
PARTS = 8


class Operands:
    """Random operands of a dtype on a device."""

    def __init__(self, rng: np.random.Generator, device: str) -> None:
        self.rng, self.device = rng, device
        self.less = ON_HOST if device == "cpu" else 1

    def side(self, least: int, most: int) -> int:
        """A random size, half of them of whole granules."""
        size = int(2 ** self.rng.uniform(np.log2(least), np.log2(most // self.less)))
        return -(-size // 16) * 16 if self.rng.random() < 0.5 else size

    def matrix(self, rows: int, columns: int, dtype: str) -> torch.Tensor:
        """Uniform numbers from -1 to 1."""
        kind = getattr(torch, dtype)
        x = 2 * torch.rand(rows, columns, 1 + kind.is_complex, device=self.device) - 1
        return (torch.view_as_complex(x) if kind.is_complex else x[..., 0]).to(kind)

    def laid(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers in another layout: as they are, transposed, in rows that are apart, or at an odd address."""
        rows, columns = x.shape
        way = self.rng.integers(4)
        if way == 0:
            return x.mT.contiguous().mT
        if way == 1:
            wide = torch.empty(rows, columns + int(self.rng.integers(1, 40)), device=x.device, dtype=x.dtype)
            return wide[:, :columns].copy_(x)
        if way == 2:
            flat = torch.empty(rows * columns + 3, device=x.device, dtype=x.dtype)
            return flat[3:].view(rows, columns).copy_(x)
        return x

    def part(self, a: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The first row of a part of A, and the part."""
        m = len(a)
        count = int(self.rng.integers(1, min(m, 9) + 1)) if self.rng.random() < 0.5 else self.side(1, m * self.less)
        first = int(self.rng.integers(0, m - min(count, m) + 1))
        return first, a[first : first + count]


def product(
    rng: np.random.Generator, a: torch.Tensor, b: torch.Tensor, bias: Any, asked: dict[str, Any]
) -> torch.Tensor:
    """The product, alone or as the last of a batch, in a new array or in one of other strides."""
    says = asked if bias is None else {**asked, "bias": bias}
    way = rng.integers(4) if bias is None and a.dtype.itemsize > 1 else 0
    if way == 1:
        return tw.matmul(torch.stack([a, a]), b, **says)[1]
    if way == 2:
        out = torch.empty(b.shape[1], len(a), device=a.device, dtype=a.dtype).mT
        return tw.matmul(a, b, out, **says)
    if way == 3 and len(a) == 1:
        return tw.matmul(a[0], b, **says)[None]
    return tw.matmul(a, b, **says)


def differing(c: torch.Tensor, d: torch.Tensor) -> int:
    """The rows that differ in a bit."""
    x, y = (each.contiguous().view(torch.uint8) for each in (c, d))
    return int((x != y).any(dim=1).sum())


def compare(made: Operands, dtype: str, found: dict[str, int]) -> None:
    """Compare rows of one product, and add up what was found."""
    m, k, n = made.side(8, ROWS), *(made.side(*SIDES) for _ in range(2))
    if dtype.startswith("float8"):
        k, n = (-(-size // 16) * 16 for size in (k, n))
    a, b = made.matrix(m, k, dtype), made.matrix(n, k, dtype).mT
    if not dtype.startswith("float8") and made.rng.random() < 0.5:
        b = b.contiguous()
    with_bias = dtype in ("bfloat16", "float16", "float32") and made.rng.random() < 0.3
    bias = made.matrix(1, n, dtype)[0] if with_bias else None
    for name, asked in (("invariant", {"invariant": True}), ("standard", {})):
        whole = product(made.rng, a, b, bias, asked)
        if name == "invariant":  # that a product is right other programs show; this one shows that it is none at all
            exact = a[:64].to(torch.complex128 if a.is_complex() else torch.float64) @ b.to(
                torch.complex128 if a.is_complex() else torch.float64
            )
            exact = exact if bias is None else exact + bias.double()
            if float((whole[:64].to(exact.dtype) - exact).abs().max()) > 0.02 * k**0.5 + 0.02 * float(
                exact.abs().max()
            ):
                raise SystemExit(f"{dtype} {m}×{k}×{n}: wrong")
        for _ in range(PARTS):
            first, part = made.part(a)
            again = product(made.rng, made.laid(part), b, bias, asked)
            found[f"{name}_rows"] += len(part)
            found[f"{name}_differ"] += differing(whole[first : first + len(part)], again)
    found["products"] += 1


def main() -> None:
    """Compare, print and append the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    made = Operands(np.random.default_rng(asked.seed), asked.device)
    named = asked.dtypes.split(",")
    dtypes = [dtype for dtype in named if asked.device != "cpu" or not dtype.startswith("float8")]
    record: dict[str, Any] = {"kind": "invariant_rows", "device": asked.device, "seed": asked.seed}
    for dtype in dtypes:
        found = dict.fromkeys(("products", "invariant_rows", "invariant_differ", "standard_rows", "standard_differ"), 0)
        until = time.perf_counter() + asked.seconds / len(dtypes)
        while time.perf_counter() < until:
            compare(made, dtype, found)
        record[dtype] = found
        print(f"{dtype:14}", ", ".join(f"{name} {count:,}" for name, count in found.items()), flush=True)
    command = f"python benchmarks/invariant_rows.py OUT.jsonl --seconds {asked.seconds:g} --seed {asked.seed}"
    record["environment"] = environment(operands="uniform [-1, 1)", command=f"{command} --device {asked.device}")
    if asked.device != "cpu":
        record["gpu"] = torch.cuda.get_device_name()
    with asked.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    if any(record[dtype]["invariant_differ"] for dtype in dtypes):
        raise SystemExit("rows differ")


if __name__ == "__main__":
    main()
