"""Products of arrays of any number of axes in files, against ``numpy.tensordot``."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.cpu.runtime.machine_code import engine_code
from tilewright.errors import ResumeError, ShapeError, UsageError, VerificationError
from tilewright.large.files import open_array, open_matrix
from tilewright.large.files.array import ArraySource
from tilewright.large.files.axes import Axes, AxesSource, as_matrix, boxes, chunk_sides, is_transpose
from tilewright.large.files.positional import rectangles
from tilewright.large.streaming.run.job import Job

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

relaxed = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
FORMATS = ["npy", "fortran.npy", "raw.zarr", "packed.zarr", "chunked.h5", "plain.h5", "safetensors"]
needs_machine_code = pytest.mark.skipif(engine_code() is None, reason="without machine code no blocks are multiplied")


def store(folder: Path, name: str, array: np.ndarray, seed: int = 0) -> Path:
    """The array in a file of that format, in chunks of random sides where it has any."""
    path = folder / f"{name}-{len(list(folder.iterdir()))}.{name.rpartition('.')[2]}"
    rng = np.random.default_rng([seed, *array.shape])
    chunks = tuple(int(rng.integers(1, max(2, size + 1))) for size in array.shape)
    if name.endswith("npy"):
        np.save(path, np.array(array, order="F") if "fortran" in name else array)
    elif name.endswith("zarr"):
        packed = {} if "packed" in name else {"compressors": None}
        stored = zarr.create_array(store=str(path), shape=array.shape, dtype=array.dtype, chunks=chunks, **packed)
        stored[...] = array
    elif name.endswith("h5"):
        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=array, chunks=chunks if "chunked" in name and array.ndim else None)
    else:
        code = {"float32": "F32", "float64": "F64", "int64": "I64"}[array.dtype.name]
        header = f'{{"a": {{"dtype": "{code}", "shape": {list(array.shape)}, "data_offsets": [0, {array.nbytes}]}}}}'
        path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + array.tobytes())
    return path


def load(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".zarr":
        return np.asarray(zarr.open_array(store=str(path), mode="r")[...])
    if path.suffix == ".h5":
        with h5py.File(path, "r") as file:
            return np.asarray(file["matrix"][...])
    source = open_array(path)
    out = np.empty(source.shape, source.dtype)
    source.read_box(tuple(slice(0, size) for size in source.shape), out)
    source.close()
    return out


def numbers(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(shape)
    return rng.integers(-9, 10, shape).astype(dtype)  # sums of them are exact


# ---- boxes -----------------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@relaxed
@given(shapes, st.data())
def test_a_stretch_is_its_boxes_and_a_box_its_rectangles(shape: tuple[int, ...], data: st.DataObject) -> None:
    count = math.prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    places = np.arange(count).reshape(shape)
    found = [places[box].reshape(-1) for box in boxes(shape, start, stop)] if start < stop or shape else []
    if shape:
        assert np.concatenate([np.empty(0, int), *found]).tolist() == list(range(start, stop))
    box = tuple(slice(*sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))) for size in shape)
    out = np.full(places[box].shape, -1)[..., ::-1] if shape else np.full((), -1)
    if out.size:
        for begin, pitch, part in rectangles(shape, [each.start for each in box], out):
            part[...] = begin + pitch * np.arange(len(part))[:, None] + np.arange(part.shape[1])
        assert np.array_equal(out, places[box])


@relaxed
@given(st.sampled_from(FORMATS), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data())
def test_any_rectangle_of_merged_axes_is_what_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory, name: str, shape: list[int], data: st.DataObject
) -> None:
    array = numbers(tuple(shape))
    order, cut = data.draw(st.permutations(range(len(shape)))), data.draw(st.integers(0, len(shape)))
    axes = order[:cut], order[cut:]
    path = store(tmp_path_factory.mktemp("axes"), name, array)
    with contextlib.closing(open_matrix(path, axes=axes)) as source:
        check_rectangle(source, array.transpose(order).reshape(source.shape), data)


def check_rectangle(source: Any, matrix: np.ndarray, data: st.DataObject) -> None:
    rows, columns = (
        slice(*sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))) for size in source.shape
    )
    part = matrix[rows, columns]
    for dtype, turned in itertools.product(("float64", "float32"), (False, True)):
        out = np.full(part.shape[::-1] if turned else part.shape, np.nan, dtype)
        source.read(rows, columns, out.T if turned else out)
        assert np.array_equal(out.T if turned else out, part)
    with contextlib.closing(source.opener()()) as again:
        out = np.empty(matrix.shape)
        again.read(slice(0, matrix.shape[0]), slice(0, matrix.shape[1]), out)
        assert np.array_equal(out, matrix)
        assert again.fingerprint() == source.fingerprint()


def test_axes_are_checked() -> None:
    array = ArraySource(np.ones((2, 3, 4)))
    for axes in (([0], [1]), ([0, 1], [1, 2]), ([0, 1], [3]), 1, ([0, 1], "x")):
        with pytest.raises(UsageError, match="axes"):
            as_matrix(array, "a", axes)
    with pytest.raises(ShapeError, match=r"a has 3 dimensions, shape \(2, 3, 4\): a matrix has 2"):
        as_matrix(array, "a")


def test_transposes_are_recognised(tmp_path: Path) -> None:
    x = numbers((5, 6))
    path, other = store(tmp_path, "npy", x), store(tmp_path, "npy", x)
    with contextlib.ExitStack() as stack:
        one, turned, another = (
            stack.enter_context(contextlib.closing(open_matrix(each, axes=axes)))
            for each, axes in ((path, None), (path, ([1], [0])), (other, None))
        )
        assert is_transpose(one, turned)
        assert is_transpose(turned, one)
        assert not is_transpose(one, one)
        assert not is_transpose(turned, another)
    assert is_transpose(ArraySource(x), ArraySource(x.T))
    assert not is_transpose(ArraySource(x), ArraySource(x.T.copy()))
    assert not is_transpose(ArraySource(x[:, :5]), ArraySource(x[:, 1:].T))
    stack = ArraySource(numbers((2, 3, 4)))
    assert is_transpose(AxesSource(stack, Axes((0, 1), (2,))), AxesSource(stack, Axes((2,), (0, 1))))
    assert not is_transpose(AxesSource(stack, Axes((0, 1), (2,))), AxesSource(stack, Axes((2,), (1, 0))))


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_machine_code
@relaxed
@given(st.data())
def test_random_contractions_of_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("contractions")
    sizes = st.integers(0, 9) | st.sampled_from([40])
    summed, of_a, of_b = (tuple(data.draw(st.lists(sizes, max_size=2))) for _ in range(3))
    a_order, b_order = (data.draw(st.permutations(range(len(summed) + len(rest)))) for rest in (of_a, of_b))
    a_sizes, b_sizes = summed + of_a, summed + of_b
    a = numbers(tuple(a_sizes[i] for i in a_order))
    b = numbers(tuple(b_sizes[i] for i in b_order), data.draw(st.sampled_from(["float64", "float32"])))
    axes = [a_order.index(i) for i in range(len(summed))], [b_order.index(i) for i in range(len(summed))]
    want = np.tensordot(a, b.astype(a.dtype), axes)
    operands = [store(folder, data.draw(st.sampled_from(FORMATS)), x) if 0 not in x.shape else x for x in (a, b)]
    form = data.draw(st.sampled_from(["npy", "zarr", "h5", "safetensors", "memory"]))
    if form == "memory" or (form == "h5" and not want.shape):
        found = tw.multiply(*operands, axes=axes, device="cpu")
    else:
        out = folder / f"c.{form}"
        assert tw.tensordot(*operands, axes, out=out, memory="8MiB") == out
        found = load(out)
    assert found.shape == want.shape
    assert np.array_equal(found, want)


@needs_machine_code
@pytest.mark.parametrize("name", FORMATS)
def test_stacks_in_every_format_under_a_small_memory(tmp_path: Path, name: str) -> None:
    x, w = numbers((9, 50, 300), "float32"), numbers((300, 700), "float32")
    a, b = store(tmp_path, name, x), store(tmp_path, "npy", w)
    for form in ("zarr", "h5", "safetensors") if name == "npy" else ("npy",):
        out = tmp_path / f"c.{form}"
        tw.multiply(a, b, out, device="cpu", memory="8MiB", verify=True)
        assert np.array_equal(load(out), x @ w)
        stamp = out.stat().st_mtime_ns
        tw.multiply(a, b, out, device="cpu", memory="8MiB", resume=True)  # known to be complete
        assert out.stat().st_mtime_ns == stamp
    with pytest.raises(ResumeError, match=r"is not \(9, 50, 2\) float32"):
        tw.multiply(a, w[:, :2], out, device="cpu", resume=True)
    with pytest.raises(ResumeError, match="b changed since it was made"):
        tw.multiply(a, w + 1, out, device="cpu", resume=True)


@pytest.mark.slow
@needs_machine_code
def test_arrays_in_memory(tmp_path: Path) -> None:
    x, w = numbers((4, 5, 6)), numbers((5, 3))
    out = np.empty((4, 6, 3))
    assert tw.multiply(x, w, out, axes=(1, 0), device="cpu") is out
    assert np.array_equal(out, np.tensordot(x, w, (1, 0)))
    assert np.array_equal(tw.multiply(x, x[0].T, device="cpu"), x @ x[0].T)
    assert np.array_equal(tw.multiply(np.float64(2), w, axes=0, device="cpu"), 2 * w)  # one row, of 15 columns
    with pytest.raises(UsageError, match="do not follow one another"):
        tw.multiply(x, w, np.empty((6, 4, 3)).transpose(1, 0, 2), axes=(1, 0), device="cpu")
    with pytest.raises(ShapeError, match="out must have exactly this shape"):
        tw.multiply(x, w, np.empty((4, 6, 2)), axes=(1, 0), device="cpu")
    with pytest.raises(UsageError, match="shares memory with a"):
        tw.multiply(x, np.eye(6), x, device="cpu")
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.array_equal(tw.tensordot(mapped, w, (1, 0), memory="8MiB"), out)


@needs_machine_code
def test_what_is_refused(tmp_path: Path) -> None:
    x = store(tmp_path, "npy", numbers((3, 4, 5)))
    with pytest.raises(ShapeError, match=r"3 dimensions.*a matrix has 2; give the axes"):
        tw.multiply(x, x, device="cpu")
    with pytest.raises(ShapeError, match="k mismatch"):
        tw.multiply(x, np.ones((4, 2)), device="cpu")
    with pytest.raises(ShapeError, match="axis 0 of a and axis 1 of b"):
        tw.multiply(x, x, axes=(0, 1), device="cpu")
    with pytest.raises(UsageError, match="a has 3 axes"):
        tw.tensordot(x, x, axes=(3, 0))
    with pytest.raises(ShapeError, match="a matrix has 2"):
        tw.gram(x)
    with pytest.raises(UsageError, match="one number"):
        tw.tensordot(x, x, axes=3, out=tmp_path / "c.h5")


def stopped_and_resumed(
    a: Any, b: Any, out: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[Job]:
    """A product that is stopped when half of it is done, and resumed: what ran, which further calls are added to."""

    class Enough(Exception):  # noqa: N818
        pass

    def stops(done: int, total: int) -> None:
        if done > total // 2:
            raise Enough

    with pytest.raises(Enough):
        tw.multiply(a, b, out, **options, progress=stops)
    seen: list[Job] = []
    real = Job.run
    monkeypatch.setattr(Job, "run", lambda self, *rest: (seen.append(self), real(self, *rest))[1])
    tw.multiply(a, b, out, **options, resume=True)
    return seen


@needs_machine_code
@pytest.mark.parametrize("form", ["npy", "zarr", "h5"])
def test_a_stopped_product_is_resumed(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = numbers((30, 700, 20)), numbers((700, 900))  # of so many tiles that some are stored when half are multiplied
    a, b, out = store(tmp_path, "raw.zarr", x), store(tmp_path, "npy", w), tmp_path / f"c.{form}"
    options: dict[str, Any] = {"axes": (1, 0), "device": "cpu", "memory": "8MiB"}
    seen = stopped_and_resumed(a, b, out, options, monkeypatch)
    assert 0 < seen[0].measured.before < seen[0].measured.tiles
    assert np.array_equal(load(out), np.tensordot(x, w, (1, 0)))


@pytest.mark.slow
@needs_machine_code
def test_a_wrong_element_of_a_result_with_three_axes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.large.files.zarr import RawChunks

    x, w = numbers((3, 40, 50)), numbers((50, 60))
    real = RawChunks.write

    def wrong(self: RawChunks, first: Any, block: np.ndarray) -> Any:
        return real(self, first, block + 1)

    monkeypatch.setattr(RawChunks, "write", wrong)
    with pytest.raises(VerificationError):
        tw.multiply(x, w, tmp_path / "c.zarr", device="cpu", verify=True)


@pytest.mark.parametrize("sizes", [(), (1,), (5000,), (3, 2000), (10, 20, 300), (2, 3, 4), (1, 1, 7)])
def test_chunks_of_a_result_are_of_moderate_size(sizes: tuple[int, ...]) -> None:
    sides = chunk_sides(sizes, 1024)
    assert len(sides) == len(sizes)
    assert math.prod(sides) <= 1024
    assert all(1 <= side <= size for side, size in zip(sides, sizes, strict=True))
    assert 2 * math.prod(sides) > min(1024, math.prod(sizes)) or math.prod(sizes) > 1024


# ---- C that equals its transpose -------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_machine_code
@pytest.mark.parametrize(
    ("dtype", "memory"),
    [("float64", "8MiB"), ("float32", "256MiB"), ("complex64", "8MiB"), ("int8", "8MiB"), ("float16", "256MiB")],
)
def test_a_file_times_its_transpose_is_a_triangle(tmp_path: Path, dtype: str, memory: str) -> None:
    x = numbers((500, 700), dtype)
    if dtype == "complex64":
        x = x + 1j * numbers((700, 500), dtype).T
    np.save(tmp_path / "x.npy", x)
    path, options = tmp_path / "x.npy", {"device": "cpu", "memory": memory}
    for axes in ((0, 0), (1, 1)):
        wide = x.astype({"c": np.complex128, "f": np.float64}.get(x.dtype.kind, x.dtype))
        want = np.tensordot(wide, wide, axes).astype(dtype)
        general = tw.multiply(path, x, axes=axes, **options)
        out = tmp_path / f"c{axes[0]}.{'zarr' if axes[0] else 'npy'}"
        assert "triangle" in str(tw.plan_multiply(path, path, out, axes=axes, **options))
        c = load(tw.multiply(path, path, out, axes=axes, **options))
        assert np.array_equal(c, c.T)
        assert np.array_equal(c, want)
        assert x.dtype.kind == "c" or np.array_equal(c, general)
    assert "triangle" not in str(tw.plan_multiply(path, x, axes=(0, 0), **options))


@needs_machine_code
def test_a_triangle_has_the_bits_of_the_general_product_and_reads_each_element_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (3000, 200))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    seen: list[Job] = []
    real = Job.run
    monkeypatch.setattr(Job, "run", lambda self, *rest: (seen.append(self), real(self, *rest))[1])
    c = tw.multiply(mapped.T, mapped, device="cpu", memory="64MiB", verify=False)
    assert seen[0].plan.triangle
    assert seen[0].measured.read_bytes == seen[0].plan.read_bytes == x.nbytes
    assert np.array_equal(c, tw.multiply(x.T.copy(), x, device="cpu", memory="64MiB"))
    assert np.array_equal(c, tw.multiply(x.T, x, device="cpu", memory="64MiB"))
    assert [job.plan.triangle for job in seen] == [True, False, True]
    with_fewer = tw.multiply(mapped.T, mapped, tmp_path / "c.npy", device="cpu", memory="8MiB", verify=True)
    assert np.array_equal(np.load(with_fewer), c)


@needs_machine_code
def test_a_stopped_triangle_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers((300, 1200))
    np.save(tmp_path / "x.npy", x)
    path, out = tmp_path / "x.npy", tmp_path / "c.zarr"
    options: dict[str, Any] = {"axes": (0, 0), "device": "cpu", "memory": "8MiB"}
    seen = stopped_and_resumed(path, path, out, options, monkeypatch)
    count = seen[0].plan.grid.tiles[0]
    assert seen[0].measured.tiles == count * (count + 1) // 2 > seen[0].measured.before > 0
    assert np.array_equal(load(out), x.T @ x)
    tw.multiply(path, path, out, **options, resume=True)
    assert seen[1].complete
