"""Show what a type checker knows about Tilewright's functions: it derives the type of a result from the operands.

    python examples/typed.py
    mypy --strict examples/typed.py

The type checker reports an error at an `assert_type` if the type is not the stated one. When the program runs, `assert_type`
does nothing, and the assert statements show that the values have the stated types.
"""

import tempfile
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import tilewright as tw


def arrays() -> None:
    """NumPy's arrays: the dtype stays, and `out_dtype` gives another one."""
    a: NDArray[np.float32] = np.ones((2, 3), np.float32)
    b: NDArray[np.float32] = np.ones((3, 4), np.float32)
    c = assert_type(tw.matmul(a, b), NDArray[np.float32])
    assert c.dtype == np.float32
    wide = assert_type(tw.matmul(a, b, out_dtype=np.float64), NDArray[np.float64])
    assert wide.dtype == np.float64
    integers: NDArray[np.int32] = np.ones((4, 2), np.int32)
    mixed = assert_type(tw.matmul(c, integers), NDArray[Any])  # no checker knows the rules of promotion
    assert mixed.dtype == np.float64

    # `out` is returned; two vectors give a scalar; lists give a list.
    out = np.empty((2, 4))
    same = tw.matmul(a, b, out=out)
    assert same is out
    first, second = np.ones(3, np.float32), np.ones(3, np.float32)
    assert assert_type(tw.matmul(first, second), np.float32).ndim == 0
    products = assert_type(tw.matmul([a, a], [b, b]), list[NDArray[np.float32]])
    assert len(products) == 2

    assert_type(tw.gemm(1.0, a, b, 0.0, c), NDArray[np.float32])
    assert_type(tw.gram(a), NDArray[np.float32])
    assert_type(tw.gram(a, dtype="float64", memory="64MiB"), NDArray[Any])
    assert_type(tw.syrk(1.0, a, 0.0, np.empty((2, 2), np.float32), lower=True).dtype, np.dtype[np.float32])
    assert_type(tw.matvec(a, first).dtype, np.dtype[np.float32])
    assert_type(tw.aligned_empty((2, 2), np.int8), NDArray[np.int8])
    assert_type(tw.einsum("ij,jk->ik", a, b), Any)  # an array or a scalar, as the subscripts say


def plans() -> None:
    """Plans say what would run."""
    plan = tw.plan((300, 200), (200, 100))
    assert_type(plan.device, str)
    assert_type(plan.predicted_s, float | None)
    assert_type(tw.plan_einsum("ij,jk", (2, 3), (3, 4)).operations, int)


def files(folder: Path) -> None:
    """Of files, the result is what `out` is."""
    np.save(folder / "a.npy", np.eye(3))
    path = assert_type(tw.multiply(folder / "a.npy", folder / "a.npy", out=folder / "c.npy", device="cpu"), Path)
    assert path == folder / "c.npy"
    product = assert_type(tw.multiply(folder / "a.npy", folder / "c.npy", device="cpu"), NDArray[Any])
    assert product.shape == (3, 3)
    found = tw.verify(product, product, product)
    assert_type(found.ok, bool)
    assert_type(found.error, float)


def machine() -> None:
    """What this machine is, and which kernels there are."""
    assert_type(tw.info().usable_cores, int)
    assert_type([kernel.idea for kernel in tw.ladder().values()], list[str])
    with tw.use_threads(1):
        assert_type(tw.get_threads(), int)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        files(Path(name))
    arrays()
    plans()
    machine()
    print("all types are true")


if __name__ == "__main__":
    main()
