"""Multiply two matrices in files within a memory limit, and check the result.

    python examples/multiply_files.py [SIZE] [MEMORY] [FOLDER]

The default of SIZE is 2000, and that of MEMORY is "64MiB". By default the files are in a temporary folder, which is removed
at the end. If you pass a FOLDER, you may interrupt the script with Ctrl-C and start it again: it continues where it stopped.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import tilewright as tw


def written(path: Path, size: int, seed: int) -> Path:
    """The path of a matrix of random numbers, which is written row by row, so that it never has to fit in memory."""
    if not path.exists():
        rng = np.random.default_rng(seed)
        matrix = np.lib.format.open_memmap(path, "w+", np.float32, (size, size))
        for row in range(size):
            matrix[row] = rng.uniform(-1, 1, size)
    return path


def main(size: int = 2000, memory: str = "64MiB", folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(folder or temporary)
        place.mkdir(parents=True, exist_ok=True)
        a, b = written(place / "a.npy", size, seed=1), written(place / "b.npy", size, seed=2)
        c = place / "c.npy"

        # The plan says what will be done: the tiles, the bytes that are copied, and the predicted time.
        print(tw.plan_multiply(a, b, out=c, memory=memory, device="cpu", resume=True))

        # Without device="cpu" the product would use the GPUs of the machine, if it has any.
        tw.multiply(a, b, out=c, memory=memory, device="cpu", resume=True)

        # 5 × 50 elements of C are compared with NumPy's product in float64.
        left, right, result = (np.load(path, mmap_mode="r") for path in (a, b, c))
        rows, columns = (np.linspace(0, size - 1, count).astype(int) for count in (5, 50))
        exact = left[rows].astype(float) @ right[:, columns].astype(float)
        error = np.abs(result[np.ix_(rows, columns)] - exact).max() / np.abs(exact).max()
        print(f"\n{c.name}: {result.shape[0]}×{result.shape[1]} {result.dtype}, largest relative error {error:.1e}")
        if error > 1e-5:
            raise SystemExit("the result is wrong")


if __name__ == "__main__":
    size, *others = sys.argv[1:] or ["2000"]
    main(int(size), *others)
