"""One step of the Muon optimiser: the gradient of a matrix is made nearly orthogonal by five Newton-Schulz iterations.

    X ← a·X + (b·S + c·S²)·X, where S = X·Xᵀ

An iteration has three products. Two of them are Gram matrices, of which only one half is computed: S, and S², which equals
S·Sᵀ because S is symmetric. The third product is added to a·X when it is stored.

    python examples/muon_step.py [SIZE]

The script needs PyTorch. The default of SIZE is 1024. The script prints how long a step takes with Tilewright's products and
with PyTorch's. The constants a, b and c are those of Keller Jordan, Muon (2024).
"""

import sys
import time

import torch

import tilewright as tw
import tilewright.torch

A, B, C = 3.4445, -4.7750, 2.0315


def norm(x: torch.Tensor) -> torch.Tensor:
    """The square root of the sum of squares; of ``torch.Tensor.norm`` type checkers know too little."""
    return x.square().sum().sqrt()


def orthogonalised(gradient: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The gradient (m, n) with singular values near 1."""
    x = gradient / (norm(gradient) + 1e-7)
    if x.shape[0] > x.shape[1]:
        return orthogonalised(gradient.T, steps).T
    for _ in range(steps):
        s = tilewright.torch.gram(x, rows=True)
        polynomial = B * s + C * tilewright.torch.gram(s, rows=True)
        x = tw.matmul(polynomial, x, out=A * x, beta=1)  # added to what is there, as it is stored
    return x


def orthogonalised_by_torch(gradient: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The same with PyTorch's products."""
    x = gradient / (norm(gradient) + 1e-7)
    if x.shape[0] > x.shape[1]:
        return orthogonalised_by_torch(gradient.T, steps).T
    for _ in range(steps):
        s = x @ x.T
        x = torch.addmm(x, B * s + C * s @ s, x, beta=A)
    return x


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    gradient = torch.randn(size, 2 * size, generator=torch.Generator().manual_seed(1))
    ways = {"tilewright": orthogonalised, "torch": orthogonalised_by_torch}
    found = {name: way(gradient) for name, way in ways.items()}
    print(f"largest difference {(found['tilewright'] - found['torch']).abs().max():.1e}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):  # in turns
        for name, way in ways.items():
            begun = time.perf_counter()
            way(gradient)
            seconds[name].append(time.perf_counter() - begun)
    for name, each in seconds.items():
        print(f"{name:10} {sorted(each)[2] * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
