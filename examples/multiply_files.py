"""Multiply two matrices in files within a limit of memory, and check the result.

    python examples/multiply_files.py [SIZE] [MEMORY] [FOLDER]

SIZE is 2000 and MEMORY "64MiB" if they are not given; FOLDER is a temporary one, which is removed in the end. With a folder
of your own, interrupt the script with Ctrl-C and start it again: it continues where it was.
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

        # What will be done, before anything is: tiles, bytes that are moved, and the predicted time.
        print(tw.plan_multiply(a, b, out=c, memory=memory, device="cpu", resume=True))

        # Without device= the GPUs are used, where there are any.
        tw.multiply(a, b, out=c, memory=memory, device="cpu", resume=True)

        # 5 rows and 50 columns of C, where they cross, are compared with NumPy's product in float64.
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
