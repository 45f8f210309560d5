"""Lists of products whose matrices lie anywhere: kernels that take lists, executed by the microscope, and the short way."""

from __future__ import annotations

import ctypes
import itertools
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from support import simulated_libraries as fake
from support.exchange_capsule import exchange_capsule
from support.stand_driver import WORD
from tilewright.errors import UsageError
from tilewright.gpu.arrays import libraries, lists
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.repeated import ExchangeInterface, ListReader, RepeatedLists
from tilewright.gpu.runtime import engine_product
from tilewright.gpu.runtime.engine_product import ListedShape, prepare_listed_product
from tilewright.gpu.runtime.layout import row_major_matrix
from tilewright.kernels.catalog import cuda_engine

BF16 = np.dtype(ml_dtypes.bfloat16)
#: (m, n, k) of products, also of empty ones.
SHAPES = [(5, 6, 8), (34, 9, 24), (1, 1, 1), (0, 6, 8), (3, 2, 0), (9, 72, 8)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")
    found = fake.Gpu(1 << 20)
    found.sms = 4
    fake.install(monkeypatch, [found])
    monkeypatch.setattr(lists, "LAUNCH_HOST_S", 1.0)  # as if launches one by one took long
    yield found
    engine_product.prepare_listed_product.cache_clear()


def scattered(gpu: Any, arrays: list[np.ndarray], gap: int, transposed: bool = False) -> list[Any]:
    """Copies of the arrays in one allocation, the last one first, ``gap`` elements apart."""
    room = fake.Tensor.of(gpu, np.zeros(sum(x.size + gap for x in arrays) + gap, arrays[0].dtype))
    found, at = [], gap
    for x in reversed(arrays):
        shape = x.shape[::-1] if transposed else x.shape
        view = room.view[at : at + x.size].reshape(shape)
        view[...] = x.T if transposed else x
        found.append(room.like(view.T if transposed else view))
        at += x.size + gap
    return found[::-1]


def operands(dtype: Any, shapes: list[tuple[int, int, int]] = SHAPES) -> tuple[list[np.ndarray], list[np.ndarray]]:
    generator = np.random.default_rng(3)
    a = [generator.integers(-4, 5, (m, k)).astype(dtype) for m, _, k in shapes]
    return a, [generator.integers(-4, 5, (k, n)).astype(dtype) for _, n, k in shapes]


def check(results: Any, a: Any, b: Any) -> None:
    for c, x, y in zip(results, a, b, strict=True):
        wide = complex if np.iscomplexobj(x) else float
        np.testing.assert_array_equal(c.view, (x.astype(wide) @ y.astype(wide)).astype(x.dtype))


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("dtype", "entry"),
    [(BF16, "mma"), (np.float32, "simt"), (np.float64, "dmma"), (np.complex64, "simt_complex"),
     (np.complex128, "dmma_complex")],
    ids=str,
)  # fmt: skip
def test_lists_of_every_dtype_are_one_launch(gpu: Any, dtype: Any, entry: str, transposed: bool) -> None:
    a, b = operands(np.dtype(dtype))
    results = tw.matmul(scattered(gpu, a, 8), scattered(gpu, b, 24, transposed))
    check(results, a, b)
    assert {name for name, _ in gpu.launches} == {entry}
    # Matrices of one element or none may lie another way than the others, and are launched apart.
    assert len(gpu.launches) <= 3


@pytest.mark.slow_cases("ragged")
@pytest.mark.parametrize("shapes", [SHAPES, [(4, 6, 8)] * 5], ids=["ragged", "alike"])
def test_matrices_that_are_stored_conjugated(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, int, int]]
) -> None:
    a, b = ([x + 1j * x[::-1] for x in side] for side in operands(np.dtype(np.complex128), shapes))
    room, places = fake.Tensor.of(gpu, np.zeros(1 << 13, np.complex128)), itertools.count(0, 1 << 10)

    def computed(x: Any) -> Any:
        """A copy, whose memory has other values as soon as nobody holds it."""
        first = next(places)
        view = room.view[first : first + x.view.size].reshape(x.shape)
        view[...] = x.view.conj()
        copy = room.like(view)
        weakref.finalize(copy, view.fill, np.nan)
        return copy

    monkeypatch.setattr(fake.Tensor, "resolve_conj", computed)
    x, y = scattered(gpu, a, 8), scattered(gpu, b, 24)
    for one in x:
        one.conjugated = True
    check(tw.matmul(x, y), [one.conj() for one in a], b)


@pytest.mark.slow
def test_lists_in_tf32(gpu: Any) -> None:
    """Also the second time, when the short way is asked, which knows the precision."""
    a, b = operands(np.dtype(np.float32))
    with pytest.raises(UsageError, match="'tf32' is for arrays of float32"):
        tw.matmul(*(scattered(gpu, [x.astype(BF16) for x in side], 8) for side in (a, b)), precision="tf32")
    x, y = scattered(gpu, a, 8), scattered(gpu, b, 24)
    library = libraries.library_of(x[0])
    assert library is not None
    known: dict[Any, Any] = {}

    class Lists:
        remember = staticmethod(lambda a, b, views, run, distances, asked=None: known.update({asked: run}))
        products = staticmethod(lambda a, b, out, asked: known[asked](a, b, at) if asked in known else None)

    library.lists = Lists()
    at = np.array([library.view(each, "x").pointer for each in (*x, *y)])
    for _ in range(2):
        gpu.launches.clear()
        check(tw.matmul(x, y, precision="tf32"), a, b)
        assert {name for name, _ in gpu.launches} == {"mma_tf32"}
    assert list(known) == ["tf32"]
    check(tw.matmul(x, y), a, b)
    assert gpu.launches[-1][0] == "simt"
    (result,) = tw.matmul(x[:1], y[:1], precision="tf32", out_dtype="bfloat16")
    assert result.view.dtype == BF16


@pytest.mark.slow
def test_empty_products_that_lie_another_way_than_the_others(gpu: Any) -> None:
    shapes = [(0, 6, 8), (33, 6, 8), (5, 0, 3)]
    a, b = operands(BF16, shapes)
    across = scattered(gpu, b, 8)
    check(tw.matmul(scattered(gpu, a, 8), [*across[:1], *scattered(gpu, b, 8, True)[1:]]), a, b)
    check(tw.matmul(scattered(gpu, a[::2], 8), scattered(gpu, b[::2], 8)), a[::2], b[::2])


@pytest.mark.slow
def test_matrices_at_any_address(gpu: Any) -> None:
    a, b = operands(BF16)
    check(tw.matmul(scattered(gpu, a, 3), scattered(gpu, b, 1)), a, b)
    assert {name for name, _ in gpu.launches} == {"mma"}


@pytest.mark.slow
def test_more_products_than_a_launch_takes(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "TABLES", (2, 4))
    a, b = operands(np.dtype(np.float32), [(m, 5, 6) for m in (1, 2, 3, 4, 5, 6, 2, 8, 9)])
    check(tw.matmul(scattered(gpu, a, 4), scattered(gpu, b, 4)), a, b)
    assert [name for name, _ in gpu.launches] == ["simt"] * 3


@pytest.mark.slow
def test_large_products_are_multiplied_one_by_one(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "LAUNCH_HOST_S", 0.0)  # as if a launch took no time on the host
    monkeypatch.setattr(lists, "_seconds_one_by_one", lambda *_: 0.0)
    a, b = operands(np.dtype(np.float32), [(4, 5, 6), (5, 5, 6)])
    check(tw.matmul(scattered(gpu, a, 4), scattered(gpu, b, 4)), a, b)
    assert len(gpu.launches) == 2


@pytest.mark.slow
def test_lists_of_several_dtypes_and_of_batches(gpu: Any) -> None:
    a, b = operands(np.dtype(np.float32), [(4, 5, 6), (5, 5, 6)])
    x, y = scattered(gpu, a, 4), scattered(gpu, b, 4)
    other = fake.Tensor.of(gpu, a[0].astype(np.float64))
    results = tw.matmul([*x, other], [*y, fake.Tensor.of(gpu, b[0].astype(np.float64))])
    check(results, [*a, a[0].astype(np.float64)], [*b, b[0].astype(np.float64)])
    three = np.stack([a[0]] * 3)
    (result,) = tw.matmul([fake.Tensor.of(gpu, three)], [y[0]])
    np.testing.assert_array_equal(result.view, three @ b[0])


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("name", ["cuda/mma", "cuda/mma_tf32", "cuda/simt", "cuda/dmma"])
def test_every_tile_takes_lists(gpu: Any, name: str) -> None:
    kernel = cuda_engine()[name]
    compute = kernel.dtypes[0]
    dtype = {"bfloat16": BF16, "tf32": np.dtype("float32")}.get(compute) or np.dtype(compute)
    a, b = operands(dtype, [(3, 9, 5), (33, 70, 4)])
    memory = [gpu.put(np.concatenate([x.reshape(-1) for x in side]).view(np.uint8)) for side in (a, b)]
    sizes = [(x.shape[0], y.shape[1], x.shape[1]) for x, y in zip(a, b, strict=True)]
    at = [np.cumsum([0, *(x.nbytes for x in side)]) for side in (a, b)]
    addresses = np.array([m.pointer + int(p) for m, tops in zip(memory, at, strict=True) for p in tops[:2]])
    shapes = tuple(
        ListedShape(
            *(m, n, k),
            *(row_major_matrix(*shape, dtype.name)._replace(alignment=2) for shape in ((m, k), (k, n))),
            i * 3 * 9 * dtype.itemsize,
        )
        for i, (m, n, k) in enumerate(sizes)
    )
    for preset in kernel.presets:
        c = gpu.allocate((3 * 9 + 33 * 70) * dtype.itemsize)
        run = prepare_listed_product(gpu, kernel, compute, shapes, tuple(preset.params.items()), dtype.name)
        run(addresses, c.pointer, 0)
        found = gpu.get(c, dtype, 3 * 9 + 33 * 70)
        for got, x, y in zip((found[:27], found[27:]), a, b, strict=True):
            np.testing.assert_array_equal(got, (x.astype(float) @ y.astype(float)).astype(dtype).reshape(-1))


# ---- by tensor maps


def lists_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels that take lists were slow."""
    fastest = lists._fastest
    monkeypatch.setattr(lists, "_fastest", lambda *product: (fastest(*product)[0], 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_products_of_any_height_by_tensor_maps(gpu: Any, monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    """Also empty ones, in two launches; nothing is read beyond the rows of a matrix, or written beyond those of C."""
    monkeypatch.setattr(lists, "MOST_RAGGED", 4)
    lists_are_slow(monkeypatch)
    a, b = operands(BF16, [(m, 24, 72) for m in (130, 0, 1, 40, 7)])
    x, y = scattered(gpu, a, 64 * 72), scattered(gpu, b, 8, transposed)
    check(tw.matmul(x, y), a, b)
    assert [name for name, _ in gpu.launches] == ["hopper", "hopper"]


@pytest.mark.slow
def test_matrices_that_lie_too_far_apart_for_a_tensor_map(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_product, "_MOST_SCATTERED", 8)
    lists_are_slow(monkeypatch)
    a, b = operands(BF16, [(m, 24, 72) for m in (9, 4)])
    check(tw.matmul(scattered(gpu, a, 64), scattered(gpu, b, 8)), a, b)
    assert [name for name, _ in gpu.launches] == ["mma"]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"k": 80}, {"n": 32}, {"gap": 4}], ids=str)
def test_lists_that_tensor_maps_do_not_find(gpu: Any, monkeypatch: pytest.MonkeyPatch, changed: dict[str, int]) -> None:
    """Other widths or depths, and addresses within a granule."""
    lists_are_slow(monkeypatch)
    sizes = {"n": 24, "k": 72, **changed}
    a, b = operands(BF16, [(9, 24, 72), (5, sizes["n"], sizes["k"])])
    gap = changed.get("gap", 8)
    check(tw.matmul(scattered(gpu, a, gap), scattered(gpu, b, gap)), a, b)
    assert "hopper" not in {name for name, _ in gpu.launches[:1]} or len(gpu.launches) > 1


# ---- the short way


class Matrix:
    requires_grad, negated, broken = False, False, False

    def __init__(self, shape: tuple[int, ...], at: int, strides: tuple[int, ...] = (), dtype: int = 0x12002) -> None:
        self.shape, self.at, self.dtype = shape, at, dtype
        self.strides = strides or (*shape[1:], 1)
        self.sizes = (ctypes.c_int64 * 8)(*shape, *self.strides)

    def is_neg(self) -> bool:
        return self.negated

    @property
    def gpu_array(self) -> GpuArray:
        return GpuArray(self.at, self.shape, self.strides, "float32", 0)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def view(x: Any, to: int) -> int:
    sizes, rank = ctypes.addressof(x.sizes), len(x.shape)
    (WORD * 6).from_address(to)[:] = (x.at, 2, rank | x.dtype << 32, sizes, sizes + 8 * rank, 0)
    return -x.broken


class Interface:
    def __init__(self) -> None:
        self.gradients = False
        self.level = -1
        functions = exchange_capsule(view, view)
        self.facts = ExchangeInterface((Matrix, Matrix), functions, lambda: self.gradients, (self, "level", -1))


def two_lists(at: int = 0x1000, **changed: Any) -> tuple[list[Any], list[Any]]:
    a = [Matrix((m, 6), at + 0x400 * m, **changed) for m in (3, 4)]
    return a, [Matrix((6, 5), 2 * at + 0x700 * i) for i in range(2)]


def test_lists_are_read() -> None:
    reader = ListReader(Interface().facts)
    a, b = two_lists()
    data = reader.read(a, b)
    assert data is not None
    assert np.frombuffer(data, np.int64, 4).tolist() == [x.at for x in (*a, *b)]
    views = [x.gpu_array for x in (*a, *b)]
    assert reader.agrees(data, views)
    for other in ({"pointer": 0x10}, {"shape": (3, 7)}, {"strides": (1, 3)}, {"device": 1}):
        assert not reader.agrees(data, [views[0]._replace(**other), *views[1:]])
    elsewhere = reader.read(*two_lists(0x2000))
    assert elsewhere is not None
    assert elsewhere[32:] == data[32:], "the key has no addresses"
    for unlike in (two_lists(0x1004), two_lists(dtype=0x14002), two_lists(strides=(8, 1)), (a[::-1], b)):
        found = reader.read(*unlike)
        assert found is not None
        assert found[32:] != data[32:]


def test_what_is_no_plain_list_is_not_read() -> None:
    interface = Interface()
    reader = ListReader(interface.facts)
    a, b = two_lists()
    cube = Matrix((3, 4, 5), 0x1000, (20, 5, 1))
    others = [
        (a, b[:1]), ([], []), (tuple(a), b), (a, tuple(b)), (a, [b[0], 3]), ([cube, a[0]], b), (a, a, None), (a,), (),
        ([np.ones((2, 2))] * 2, b),
    ]  # fmt: skip
    for args in others:
        assert reader.read(*args) is None
    for name in ("broken", "negated"):
        setattr(b[1], name, True)
        assert reader.read(a, b) is None
        setattr(b[1], name, False)
    a[1].requires_grad = True
    assert reader.read(a, b) is not None, "no gradient is recorded"
    interface.gradients = True
    assert reader.read(a, b) is None
    a[1].requires_grad = False
    assert reader.read(a, b) is not None
    interface.level = 0  # as while tensors may have tangents
    assert reader.read(a, b) is None


def test_references_to_list_items_are_given_back() -> None:
    interface = Interface()
    reader = ListReader(interface.facts)
    a, b = two_lists()

    def every_way() -> None:
        reader.read(a, b)
        reader.read(a, b[:1])
        b[1].broken = True
        reader.read(a, b)
        b[1].broken = False
        interface.gradients = b[0].requires_grad = True
        reader.read(a, b)
        interface.gradients = b[0].requires_grad = False

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in (a, b, *a, *b, Matrix, None, False)][:-2]

    every_way()
    before = counts()
    for _ in range(50):
        every_way()
    assert counts() == before


def test_lists_like_earlier_ones_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.gpu.arrays.repeated.short_ways", ways := {})
    repeated = RepeatedLists(Interface().facts)
    a, b = two_lists()
    views = [x.gpu_array for x in (*a, *b)]
    assert repeated.products(a, b) is None
    runs: list[Any] = []

    def anywhere(*given: Any) -> list[str]:
        runs.append(given[2].tolist())
        return ["anywhere"]

    repeated.remember(a, b, views, lambda *_: ["these distances"], needs_same_distances=True)
    assert ways[list] == repeated.products
    assert repeated.products(a, b) == ["these distances"]
    moved, others = two_lists(0x2000)
    assert repeated.products(moved, others) is None, "b is at twice the address of a, so its distance is another"
    repeated.remember(moved, others, [x.gpu_array for x in (*moved, *others)], anywhere, needs_same_distances=False)
    assert repeated.products(a, b) == ["these distances"]
    assert repeated.products(moved, others) == ["anywhere"]
    assert runs == [[x.at for x in (*moved, *others)]]
    assert repeated.products(a, b, asked="tf32") is repeated.products(a, b, [1]) is repeated.products(a, b[0]) is None
    repeated.remember(a, b, views, lambda *_: ["in tf32"], False, "tf32")
    assert repeated.products(a, b, asked="tf32") == ["in tf32"]
    assert repeated.products(a, b) == ["these distances"]
    moved[0].at = 0  # without memory, as inside a transformation
    assert repeated.products(moved, others) is None


def test_lists_that_the_interface_reads_otherwise_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.gpu.arrays.repeated.short_ways", ways := {})
    repeated = RepeatedLists(Interface().facts)
    a, b = two_lists()
    views = [x.gpu_array for x in (*a, *b)]
    repeated.remember(a, b, [views[0]._replace(strides=(1, 3)), *views[1:]], lambda *_: [], needs_same_distances=False)
    assert repeated.products(a, b) is None
    assert ways == {}


@pytest.mark.slow
def test_no_array_is_kept_after_the_call(gpu: Any) -> None:
    """What is remembered of a list must not keep its arrays alive."""
    a, b = operands(BF16)
    x, y = scattered(gpu, a, 8), scattered(gpu, b, 8)
    remembered: list[Any] = []
    library = libraries.library_of(x[0])
    assert library is not None
    library.lists = type("Lists", (), {"remember": staticmethod(lambda *given: remembered.append(given[3]))})()
    check(tw.matmul(x, y), a, b)
    count = sys.getrefcount(x[0])
    assert len(remembered) == 1
    remembered.clear()
    after = sys.getrefcount(x[0])
    assert after == count
