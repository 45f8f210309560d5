"""The lazy product of Dask arrays: right, the bits of ``multiply``, few tasks, and memory that is kept to."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.local_cluster import local_cluster
from support.matrices import SHAPES, operands
from tilewright import errors
from tilewright.dask import matmul
from tilewright.large.cluster import lazy
from tilewright.large.cluster.lazy import TaskMemory, cut_lazily

#: The kernel's workspace, and some MiB for the tiles.
SMALL = "24MiB"


def bits_of_multiply(a: np.ndarray, b: np.ndarray) -> bytes:
    return tw.multiply(a, b, device="cpu").tobytes()


def chunked(array: np.ndarray, chunks: Any) -> da.Array:
    return da.from_array(array, chunks=chunks)


def own_tasks(product: da.Array) -> dict[Any, Any]:
    return dict(product.dask.layers[product.name])


# ---- right, and the bits of multiply ---------------------------------------------------------------------------------


@pytest.mark.slow_cases("float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: tuple[int, int, int], dtype: str) -> None:
    a, b = operands(shape, dtype)
    c = matmul(chunked(a, (30, 50)), chunked(b, (47, 20)))
    assert (c.shape, c.dtype) == (shape[:2], np.dtype(dtype))
    got = c.compute(scheduler="synchronous")
    assert (got.shape, got.dtype) == (c.shape, c.dtype)
    assert got.tobytes() == bits_of_multiply(a, b)
    unit = float(np.finfo(dtype).eps) / 2
    size = np.abs(a).astype(np.longdouble) @ np.abs(b)
    assert (np.abs(got - a.astype(np.longdouble) @ b) <= shape[2] * unit / (1 - shape[2] * unit) * size).all()


def parts(length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Chunks of an axis: any sizes, some of them 0."""

    def sizes(cuts: list[int]) -> tuple[int, ...]:
        edges = [0, *sorted(cuts), length]
        return tuple(y - x for x, y in itertools.pairwise(edges))

    return st.lists(st.integers(0, length), max_size=7).map(sizes)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    parts(500),
    parts(1701),
    parts(1701),
    parts(620),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_neither_chunks_nor_tiles_change_a_bit(
    rows: tuple[int, ...],
    ks: tuple[int, ...],
    others: tuple[int, ...],
    columns: tuple[int, ...],
    number: int,
    cpus: int,
) -> None:
    a, b, bits = product_of_500_1701_620()
    memory = [None, *memories()][number]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lazy, "CPU_COUNT", cpus)
        c = matmul(chunked(a, (rows, ks)), chunked(b, (others, columns)), memory=memory)
    assert c.compute(scheduler="synchronous").tobytes() == bits


@functools.cache
def product_of_500_1701_620() -> tuple[np.ndarray, np.ndarray, bytes]:
    a, b = operands((500, 620, 1701), "float32")
    return a, b, bits_of_multiply(a, b)


@functools.cache
def memories() -> list[str]:
    """Three limits that lead to different tiles or segments of this product: a kernel's workspace, and so what fits, is
    another on each processor."""
    a, b = operands((500, 620, 1701), "float32")
    found: dict[Any, str] = {}
    for mib in range(2, 65):
        with contextlib.suppress(errors.MemoryLimitError):
            c = matmul(chunked(a, (100, 400)), chunked(b, (400, 100)), memory=f"{mib}MiB")
            found.setdefault((c.chunks, len(own_tasks(c))), f"{mib}MiB")
    return list(found.values())[:3]


@pytest.mark.any_machine
def test_some_memories_lead_to_different_tiles_and_segments() -> None:
    a, b = operands((500, 620, 1701), "float32")
    cuts = [matmul(chunked(a, (100, 400)), chunked(b, (400, 100)), memory=memory) for memory in memories()]
    assert len(cuts) == 3
    assert len({c.chunks for c in cuts}) > 1
    assert any(len(own_tasks(c)) > math.prod(c.numblocks) for c in cuts), "several segments"


def test_segments_that_cut_the_kernels_parts_would_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bits = product_of_500_1701_620()
    monkeypatch.setattr(lazy, "kc_of", lambda *_: 100)
    monkeypatch.setattr("tilewright.large.cluster.lazy.kc_of", lambda *_: 100)
    monkeypatch.setattr("tilewright.large.cluster.lazy.SHORT", 1)
    monkeypatch.setattr("tilewright.large.cluster.lazy.DEPTH", 1)
    assert matmul(chunked(a, (90, 90)), chunked(b, (90, 90)), memory=SMALL).compute().tobytes() != bits


def test_a_worker_whose_kernel_sums_longer_parts_computes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bits = product_of_500_1701_620()
    c = matmul(a, b)
    monkeypatch.setattr("tilewright.large.cluster.lazy.kc_of", lambda *_: 1024)
    assert c.compute(scheduler="synchronous").tobytes() == bits


@pytest.mark.slow_cases("processes")
@pytest.mark.parametrize("scheduler", ["threads", "processes", "synchronous"])
def test_every_scheduler_computes_the_same_bits(scheduler: str) -> None:
    a, b, bits = product_of_500_1701_620()
    c = matmul(chunked(a, (170, 300)), chunked(b, (500, 170)), memory="16MiB")
    assert c.compute(scheduler=scheduler, num_workers=2).tobytes() == bits


@pytest.mark.parametrize("left", ["float16", "float32", "float64", "bool", "int8", "uint16", "int32", ">f4"])
@pytest.mark.parametrize("right", ["float32", "float64", "int32"])
def test_dtypes_are_converted_as_multiply_converts_them(left: str, right: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2, (50, 70)).astype(left), rng.integers(-9, 9, (70, 30)).astype(right)
    want = tw.multiply(a, b, device="cpu")
    got = matmul(chunked(a, (20, 70)), chunked(b, (70, 30))).compute(scheduler="synchronous")
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()
    assert matmul(a, b).compute(scheduler="synchronous").tobytes() == want.tobytes(), "one piece"


@pytest.mark.slow
def test_layers_are_added_in_an_order_of_their_own() -> None:
    """And neither chunks nor memory change their bits."""
    a, b = operands((30, 40, 70_000), "float32")
    found = set()
    for chunks, memory in ((7000, "1GiB"), (1111, SMALL), (70_000, "14MiB")):
        c = matmul(chunked(a, (30, chunks)), chunked(b, (chunks, 40)), memory=memory)
        assert sum(task.func is lazy.add_sums for task in own_tasks(c).values() if hasattr(task, "func")) == 15
        found.add(c.compute(scheduler="synchronous").tobytes())
    assert len(found) == 1
    got = np.frombuffer(found.pop(), np.float32).reshape(30, 40)
    assert np.abs(got - a.astype(np.float64) @ b).max() < 70_000**0.5 * np.finfo(np.float32).eps * 10


def test_nan_and_infinity_propagate_without_a_warning() -> None:
    a, b = np.ones((3, 70_000), np.float32), np.ones((70_000, 3), np.float32)
    a[0, 0], a[1, 1], a[1, 69_999] = np.nan, np.inf, -np.inf
    assert np.isnan(matmul(a, b).compute(scheduler="synchronous")).tolist() == [[True] * 3] * 2 + [[False] * 3]


# ---- lazy, and part of a program -------------------------------------------------------------------------------------


def forbidden(block: np.ndarray) -> np.ndarray:
    raise AssertionError("a chunk was computed")


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    x = da.ones((3000, 2000), chunks=500, dtype="f4").map_blocks(forbidden, dtype="f4", meta=np.empty((0, 0), "f4"))
    c = (matmul(x, x.T)[:100] + 1).rechunk(50)
    with pytest.raises(AssertionError, match="was computed"):
        c.compute(scheduler="synchronous")


def test_a_slice_computes_what_it_needs() -> None:
    seen = []

    def note(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        seen.append(tuple(block_info[0]["chunk-location"]))
        return block

    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (1000, 800)).astype("f4")
    x = chunked(a, (250, 200)).map_blocks(note, dtype="f4", meta=np.empty((0, 0), "f4"))
    c = matmul(x, a.T, memory="8MiB")
    assert c.chunks[0][0] <= 500
    row = c[0].compute(scheduler="synchronous")
    assert row.tobytes() == tw.multiply(a, a.T, device="cpu")[0].tobytes()
    assert {i for i, _ in seen} == set(range(-(-c.chunks[0][0] // 250)))


def test_it_composes() -> None:
    a, b = operands((300, 200, 260), "float64")
    x, y = chunked(a, (70, 90)), chunked(b, (111, 60))
    c = matmul((x * 2).persist(scheduler="synchronous"), y.rechunk((50, 200))).map_blocks(np.abs)
    again = matmul(c.rechunk(64)[:, ::-1], c.T)
    want = np.abs(tw.multiply(a * 2, b, device="cpu"))
    assert again.compute(scheduler="synchronous").tobytes() == bits_of_multiply(want[:, ::-1], want.T)
    assert da.allclose(again.sum(axis=0), (want[:, ::-1] @ want.T).sum(axis=0)).compute()


def test_equal_products_have_equal_names() -> None:
    x = da.ones((100, 100), chunks=40)
    assert matmul(x, x).name == matmul(x, x).name
    assert matmul(x, x).name != matmul(x, x.T).name
    assert matmul(x, x).name != matmul(x.rechunk(50), x).name


def test_the_graph_is_coarse_and_its_tasks_hold_no_array() -> None:
    a = np.ones((1000, 1000), np.float32)
    x = chunked(a, (100, 100))
    c = matmul(x, x, memory="18MiB")
    tasks, tiles = own_tasks(c), math.prod(c.numblocks)
    assert tiles > 1
    segments = len(tasks) / tiles
    assert segments == int(segments) >= 1
    assert len(tasks) < 10 * 10 * 10 / 8
    assert max(len(pickle.dumps(task)) for task in tasks.values()) < 12_000


def test_chunks_that_tiles_or_segments_cut_are_cut_where_they_are() -> None:
    """One task for each part of a large chunk; chunks that are much smaller than a panel are moved whole."""
    large, small = (da.zeros((6000, 6000), chunks=size, dtype="f4") for size in (3000, 100))
    for x in (large, small):
        c = matmul(x, x, memory="100MiB")
        kinds = [str(key[0]).rpartition("-")[0] for key in own_tasks(c)]
        segments = kinds.count("tilewright-sum") // math.prod(c.numblocks) + 1
        cut = kinds.count("tilewright-cut-x"), kinds.count("tilewright-cut-y")
        assert len(kinds) == math.prod(c.numblocks) * segments + sum(cut)
        if x is small:
            assert cut == (0, 0)
        else:
            assert 0 < cut[0] <= (c.numblocks[0] + 1) * (segments + 1)


# ---- memory ----------------------------------------------------------------------------------------------------------


@given(
    parts(9000),
    parts(5000),
    st.integers(1, 200_000),
    st.integers(20, 4000),
    st.integers(1, 64),
    st.sampled_from([4, 8]),
)
def test_a_task_keeps_to_its_memory(
    rows: tuple[int, ...], columns: tuple[int, ...], k: int, mib: int, threads: int, size: int
) -> None:
    memory = TaskMemory(mib << 20, lambda m, n: 11 << 20, (4, size, size))
    cut = cut_lazily(rows, columns, k, 512, memory, threads)
    assert [sum(sizes) for sizes in cut.chunks] == [9000, 5000]
    assert min(map(min, cut.chunks)) > 0
    segments = [segment for layer in cut.layers for segment in layer]
    assert [s.start for s in segments] == [0, *(s.stop for s in segments[:-1])]
    assert segments[-1].stop == k
    bm, bn = map(max, cut.chunks)
    longest = max(s.stop - s.start for s in segments)
    assert memory.bytes(bm, bn, longest) <= memory.limit


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 16, 100])
def test_threads_have_work(threads: int) -> None:
    memory = TaskMemory(8 << 30, lambda m, n: 11 << 20, (4, 4, 4))
    cut = cut_lazily([1000] * 20, [20_000], 20_000, 512, memory, threads)
    tiles = math.prod(map(len, cut.chunks))
    assert tiles >= 2 * threads
    assert tiles / (threads * math.ceil(tiles / threads)) >= 0.9
    assert tiles <= 8 * threads + 8


@pytest.mark.slow
def test_a_tile_that_cannot_fit_is_refused_with_what_it_needs() -> None:
    x = da.ones((2000, 2000), chunks=500, dtype="f4")
    with pytest.raises(
        errors.MemoryLimitError, match=r"a task may take 100 KiB: .* needs \S+ [KM]iB; give more memory$"
    ) as one:
        matmul(x, x, memory="100KiB")  # whatever the machine's blocks
    need = str(one.value).partition(" needs ")[2].partition(";")[0]
    assert matmul(x, x, memory=need).compute(scheduler="synchronous")[-1, -1] == 2000


# ---- refusals --------------------------------------------------------------------------------------------------------

ONES = da.ones((6, 6), chunks=4, dtype="f4")


@pytest.mark.parametrize(
    ("operands", "error", "message"),
    [
        ((ONES, ONES[:5]), errors.ShapeError, "k mismatch: x is (6, 6), y is (5, 6)"),
        ((ONES, ONES[0]), errors.ShapeError, "y has 1 dimensions, shape (6,)"),
        ((ONES[ONES[:, 0] > 0], ONES), errors.ShapeError, "x has chunks of unknown sizes: call compute_chunk_sizes()"),
        ((ONES.astype("M8[s]"), ONES), errors.DTypeError, "x has dtype datetime64"),
        ((ONES, da.ma.masked_equal(ONES, 0)), errors.OperandError, "y has chunks of numpy.MaskedArray: convert them"),
        ((ONES, np.ma.masked_equal(np.ones(6), 0)), errors.OperandError, "y is a masked array"),
        ((None, ONES), errors.OperandError, "x is None, not an array"),
    ],
    ids=["k", "a vector", "unknown sizes", "dates", "masked chunks", "masked", "None"],
)
def test_what_cannot_be_multiplied_is_refused_in_one_line(
    operands: tuple[Any, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        matmul(*operands)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


class OnGpu(np.lib.mixins.NDArrayOperatorsMixin):
    """As much of an array of another library as Dask asks for."""

    __module__ = "cupy"
    ndim, dtype, shape = 2, np.dtype("f4"), (0, 0)

    def __array_function__(self, *_: Any) -> OnGpu:
        return self

    def __getitem__(self, _: Any) -> OnGpu:
        return self


def test_chunks_on_a_gpu_are_refused() -> None:
    x = ONES.map_blocks(lambda block: block, meta=OnGpu(), dtype="f4")
    with pytest.raises(errors.OperandError, match=r"^x has chunks of cupy\.OnGpu: convert them to numpy.ndarray"):
        matmul(x, ONES)


@pytest.mark.any_machine
@pytest.mark.parametrize("memory", ["much", 0, -1, 1.5])
def test_a_memory_that_is_none_is_refused(memory: Any) -> None:
    with pytest.raises(errors.UsageError, match="memory"):
        matmul(ONES, ONES, memory=memory)


def test_a_chunk_of_another_shape_than_its_array_says_is_refused() -> None:
    x = ONES.map_blocks(lambda block: block[:1], dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(
        errors.ShapeError, match=r"a chunk of x has \(1, 4\) elements where its Dask array says \(4, 4\)"
    ):
        matmul(x, ONES).compute(scheduler="synchronous")


def test_without_dask_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['dask'] = None\n"
        "import tilewright.errors as errors\n"
        "try:\n    import tilewright.dask\nexcept errors.UnavailableError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"tilewright.dask needs dask, which is not installed: {errors.how_to_install('cluster')}\n"


def test_arrays_of_the_query_planner_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(da, "Array", type("Array", (), {}))
    with pytest.raises(errors.UnavailableError, match=r"array\.query-planning"):
        matmul(ONES, ONES)


# ---- on workers ------------------------------------------------------------------------------------------------------


def rows_by_columns(block_info: Any = None, row: int = 0, column: int = 0) -> np.ndarray:
    """A chunk of a matrix whose element (i, j) is a small integer of i times one of j."""
    (top, bottom), (left, right) = block_info[None]["array-location"]
    return small(np.arange(top, bottom) + row)[:, None] * small(np.arange(left, right) + column)


def small(numbers: np.ndarray) -> np.ndarray:
    return (numbers % 5 - 2).astype(np.float32)


def outer(shape: tuple[int, int], chunks: tuple[int, int], row: int, column: int) -> da.Array:
    sizes = da.core.normalize_chunks(chunks, shape)
    return da.map_blocks(rows_by_columns, chunks=sizes, dtype="f4", meta=np.empty((0, 0), "f4"), row=row, column=column)


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return rss("VmRSS")


def rss(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone tells and resets a process's peak")
def test_no_process_holds_a_whole_matrix(client: Client) -> None:
    """The left operand and the product are larger than what a task may take; chunks are made, used and dropped there."""
    k, n = 600, 512
    middle = float(small(np.arange(k) + 2) @ small(np.arange(k) + 2))
    assert middle != 0

    def compute(m: int) -> int:
        """The smaller of the operand's bytes and the product's."""
        x, y = outer((m, k), (3000, 600), 1, 2), outer((k, n), (600, 512), 2, 4)
        c = matmul(x, y, memory="64MiB")
        assert (c == outer((m, n), c.chunks, 1, 4) * np.float32(middle)).all().compute()
        return min(x.nbytes, c.nbytes)

    compute(12_000)  # loads libraries and machine code, or compiles it
    client.run(product_of_500_1701_620)
    before = client.run(forget_peak)
    nbytes = compute(120_000)
    peak = client.run(rss, "VmHWM")
    assert nbytes > 3 * (64 << 20)
    assert all(peak[worker] - before[worker] < nbytes for worker in before)


@pytest.mark.slow
def test_operands_on_workers_stay_there(client: Client) -> None:
    """Persisted chunks in, persisted tiles out: the bits are those of multiply."""
    a, b = operands((900, 700, 1500), "float32")
    x, y = (chunked(array, (300, 300)).persist() for array in (a, b))
    c = matmul(x, y).persist()
    wait([x, y, c])
    assert c.compute().tobytes() == bits_of_multiply(a, b)
    assert len(client.who_has(c)) == math.prod(c.numblocks)


@pytest.mark.slow
def test_tasks_are_sized_for_the_workers_of_the_current_client(client: Client) -> None:
    share, threads = lazy._share_of_thread()
    assert (share, threads) == (int(0.4 * (2048 - 192 << 20)), 2)


def killed_once(block: np.ndarray, marker: str, block_info: Any = None) -> np.ndarray:
    """The worker that first computes one block in the middle is killed there."""
    if tuple(block_info[0]["chunk-location"]) == (2, 1):
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_changes_no_bit(tmp_path: Path) -> None:
    a, b = operands((900, 700, 1500), "float32")
    marker = tmp_path / "killed"
    x = chunked(a, (300, 500)).map_blocks(killed_once, str(marker), dtype="f4", meta=np.empty((0, 0), "f4"))
    with local_cluster() as cluster, Client(cluster):
        assert matmul(x, b, memory=SMALL).compute().tobytes() == bits_of_multiply(a, b)
    assert marker.exists()


@pytest.mark.parametrize(
    "name",
    [
        "float16",
        *(pytest.param(x, marks=pytest.mark.further) for x in ("int8", "uint16", "int64", "bool", "complex64")),
    ],
)
def test_a_lazy_product_has_the_dtype_of_matmul(name: str) -> None:
    """Integers wrap around; float16 and bool are multiplied in float32."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-100, 100, shape) for shape in ((60, 90), (90, 50)))
    a, b = ((x / 100 if name[0] in "fc" else x).astype(name) for x in (a, b))
    if name == "complex64":
        a = a * np.complex64(1 + 2j)
    c = matmul(da.from_array(a, chunks=(25, 40)), da.from_array(b, chunks=(30, 50)))
    found, expected = c.compute(scheduler="synchronous"), tw.matmul(a, b)
    assert c.dtype == found.dtype == expected.dtype
    assert np.allclose(found, expected, atol=1e-4) if name[0] in "fc" else np.array_equal(found, expected)
