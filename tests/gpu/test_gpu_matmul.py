"""``matmul`` of arrays on a GPU, without one: simulated libraries on a simulated GPU that executes every launch.

What only hardware can tell is in ``test_gpu_arrays.py``.
"""

# ruff: noqa: E501 - tables have one line for each case

from __future__ import annotations

import itertools
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.api.matmul as api
from support import simulated_libraries as fake
from support.layouts import laid
from tilewright.errors import DTypeError, MemoryLimitError, OperandError, ShapeError, UsageError
from tilewright.gpu.arrays.gpu_array import GpuMatrix

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'tilewright[cuda]'")

#: Of tables of several axes the default run takes a case for each value.
pytestmark = pytest.mark.each_value


@pytest.fixture
def gpus(monkeypatch) -> Any:
    found = [fake.Gpu(), fake.Gpu(ordinal=1)]
    fake.install(monkeypatch, found)
    fake.rungs_alone(monkeypatch)
    return found


def whole(*shape: int, dtype: str = "float32", seed: int = 1) -> np.ndarray:
    """Small whole numbers, whose products every order of adding up gets exactly."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


LAYOUTS = ("rows", "columns", "strided", "reversed")


@pytest.mark.slow_cases("rows-rows", "rows-columns", "rows-strided")
@pytest.mark.parametrize("layouts", [*itertools.product(LAYOUTS, LAYOUTS)], ids="-".join)
def test_every_pair_of_layouts(gpus: Any, layouts: tuple[str, str]) -> None:
    a, b = whole(33, 20), whole(20, 37)
    x, y = (laid(fake.Tensor, gpus[0], v, how) for v, how in zip((a, b), layouts, strict=True))
    c = tw.matmul(x, y)
    assert isinstance(c, fake.Tensor)
    np.testing.assert_array_equal(c.view, a @ b)
    np.testing.assert_array_equal(x.view, a)
    np.testing.assert_array_equal(y.view, b)
    copies = [entry for entry, _ in gpus[0].launches if entry == "copy_matrices"]
    both = {"rows": (0, 1), "columns": (1, 0)}  # copies that the straight and the turned product need of it
    needed = [both.get(how, (1, 1)) for how in layouts]
    least = min(sum(way) for way in zip(*needed, strict=True))
    assert len(tw.plan(x, y).copies) == least
    assert len(copies) == (least > 0), "both operands in one launch"
    assert {stream for _, stream in gpus[0].launches} == {100}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_launches_themselves(gpus: Any, dtype: str) -> None:
    """As above, executed: copies that turn, narrow, widen and jump, and the product of what they made."""
    gpus[0].executes = True
    a, b = whole(70, 35, dtype=dtype), whole(35, 41, dtype="float64")
    x, y = laid(fake.Tensor, gpus[0], a, "columns"), laid(fake.Tensor, gpus[0], b, "strided")
    out = laid(fake.Tensor, gpus[0], np.zeros((70, 41), dtype), "columns")
    tw.matmul(x, y, out=out)
    np.testing.assert_array_equal(out.view, a @ b)
    assert len(gpus[0].launches) == {"float64": 2, "float32": 3}[dtype]


BATCHES = [
    ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((2, 5, 3), (3,)), ((3,), (2, 3, 4)), ((2, 5, 3), (3, 4)),
    ((2, 5, 3), (2, 3, 4)), ((5, 3), (2, 3, 4)), ((2, 1, 5, 3), (3, 3, 4)), ((1, 5, 3), (4, 3, 2)), ((2, 1, 5, 3), (1, 3, 4)),
    ((0, 3), (3, 4)), ((5, 0), (0, 4)), ((5, 3), (3, 0)), ((0, 5, 3), (3, 4)), ((0,), (0,)), ((2, 5, 0), (2, 0, 4)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.slow_cases(
    "((0, 3), (3, 4))",
    "((2, 5, 3), (3, 4))",
    "((2, 5, 3), (2, 3, 4))",
    "((2, 1, 5, 3), (3, 3, 4))",
    "((2, 1, 5, 3), (1, 3, 4))",
    "((1, 5, 3), (4, 3, 2))",
)
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "columns"), ("strided", "rows")], ids="-".join)
@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_shapes_are_those_of_matmul(gpus: Any, shapes: Any, layouts: tuple[str, str]) -> None:
    a, b = whole(*shapes[0]), whole(*shapes[1])
    x, y = (laid(fake.Tensor, gpus[0], v, how) for v, how in zip((a, b), layouts, strict=True))
    c = tw.matmul(x, y).view
    np.testing.assert_array_equal(c, np.matmul(a, b))
    assert c.shape == np.matmul(a, b).shape


def test_a_batch_times_one_matrix_is_one_product(gpus: Any) -> None:
    x, y = (fake.Tensor.of(gpus[0], v) for v in (whole(4, 5, 3), whole(3, 6)))
    tw.matmul(x, y)
    assert [entry for entry, _ in gpus[0].launches] == ["register_banks"]


def test_one_matrix_of_many_products_is_copied_once(gpus: Any) -> None:
    x, y = laid(fake.Tensor, gpus[0], whole(5, 8), "strided"), fake.Tensor.of(gpus[0], whole(3, 8, 6))
    tw.matmul(x, y)
    entries = [entry for entry, _ in gpus[0].launches]
    assert entries == ["copy_matrices", *["register_banks"] * 3]


@pytest.mark.slow_cases("float32-float64")
@pytest.mark.parametrize("dtypes", [*itertools.product(("float32", "float64"), repeat=2)], ids="-".join)
def test_dtypes_promote(gpus: Any, dtypes: tuple[str, str]) -> None:
    a, b = whole(9, 12, dtype=dtypes[0]), whole(12, 10, dtype=dtypes[1])
    c = tw.matmul(fake.Tensor.of(gpus[0], a), fake.Tensor.of(gpus[0], b)).view
    assert c.dtype == np.result_type(*dtypes)
    np.testing.assert_array_equal(c, a @ b)


def test_highest_computes_in_float64_and_rounds_once(gpus: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 70), (70, 21)))
    c = tw.matmul(fake.Tensor.of(gpus[0], a), fake.Tensor.of(gpus[0], b), precision="highest").view
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b).astype(np.float32))
    assert any(entry == "dgemm_tensor" for entry, _ in gpus[0].launches)


# ---- out


@pytest.mark.parametrize("layouts", [*itertools.product(LAYOUTS[:3], LAYOUTS[:3], LAYOUTS)], ids="-".join)
def test_out_of_any_layout(gpus: Any, layouts: tuple[str, str, str]) -> None:
    a, b = whole(10, 12), whole(12, 9)
    x, y, out = (
        laid(fake.Tensor, gpus[0], v, how)
        for v, how in zip((a, b, np.full((10, 9), np.nan, "f4")), layouts, strict=True)
    )
    around = np.delete(out.storage.view.copy(), np.s_[1:19:2], axis=-1) if layouts[2] == "strided" else np.zeros(1)
    assert tw.matmul(x, y, out=out) is out
    np.testing.assert_array_equal(out.view, a @ b)
    assert out.versions == 1
    after = np.delete(out.storage.view, np.s_[1:19:2], axis=-1) if layouts[2] == "strided" else np.zeros(1)
    np.testing.assert_array_equal(after, around)


@pytest.mark.slow
def test_out_of_batches_vectors_and_another_dtype(gpus: Any) -> None:
    for (a_shape, b_shape), dtype in itertools.product(BATCHES, ("float32", "float64")):
        a, b = whole(*a_shape), whole(*b_shape)
        out = fake.Tensor.of(gpus[0], np.full(np.matmul(a, b).shape, 7, dtype))
        tw.matmul(fake.Tensor.of(gpus[0], a), fake.Tensor.of(gpus[0], b), out=out)
        np.testing.assert_array_equal(out.view, np.matmul(a, b))


@pytest.mark.slow
def test_out_may_be_an_operand(gpus: Any) -> None:
    a, b = whole(12, 12), whole(12, 12, seed=2)
    for name in ("a", "b"):
        x, y = (fake.Tensor.of(gpus[0], v) for v in (a, b))
        out = x if name == "a" else y.like(y.view.T)
        tw.matmul(x, y, out=out)
        np.testing.assert_array_equal(out.view, a @ b)


# ---- whose arrays


def test_cupy(gpus: Any) -> None:
    a, b = whole(9, 12), whole(12, 10)
    x, y = (laid(fake.CupyArray, gpus[1], v, "columns") for v in (a, b))
    c = tw.matmul(x, y)
    assert type(c) is fake.CupyArray
    np.testing.assert_array_equal(c.view, a @ b)
    assert gpus[1].launches == [("register_banks", 201)], "on its own GPU and stream, turned, without a copy"
    assert gpus[0].launches == []
    assert gpus[1].current == 0


def test_an_unknown_library_gets_an_array_that_speaks_dlpack(gpus: Any) -> None:
    a, b = whole(9, 12), whole(12, 10)
    x, y = (fake.Unknown.of(gpus[0], v) for v in (a, b))
    c = tw.matmul(x, y)
    assert type(c) is GpuMatrix
    assert x.asked == y.asked == [900], "the stream that we work on"
    assert gpus[0].launches == [("register_banks", 900)]
    assert gpus[0].kept[0][0] == 900
    assert c.__dlpack_device__() == (2, 0)
    found = fake.gpu_array.read_capsule(c.__dlpack__(stream=55))
    assert gpus[0].orders == [(900, 55)]
    assert (found.shape, found.strides, found.dtype, found.device) == ((9, 10), (10, 1), "float32", 0)
    heap = gpus[0].heap[found.pointer - fake.BASE :]
    np.testing.assert_array_equal(heap[: 9 * 10 * 4].view("f4").reshape(9, 10), a @ b)
    assert c.__cuda_array_interface__["data"] == (found.pointer, False)
    with pytest.raises(OperandError, match="lies on a GPU"):
        np.asarray(c)
    assert tw.matmul(c, fake.Unknown.of(gpus[0], np.eye(10, dtype="f4")), out=c) is c, "it is ours to write"
    np.testing.assert_array_equal(heap[: 9 * 10 * 4].view("f4").reshape(9, 10), a @ b)
    with pytest.raises(OperandError, match="out is a Unknown, which cannot be written by others"):
        tw.matmul(x, y, out=fake.Unknown.of(gpus[0], np.zeros((9, 10), "f4")))


@pytest.mark.slow
def test_memory_that_somebody_has_by_dlpack_lives_as_long(gpus: Any) -> None:
    import gc

    a = fake.Unknown.of(gpus[0], whole(4, 4))
    c = tw.matmul(a, a)
    gpus[0].kept.clear()
    held = len(gpus[0].held)
    array = fake.gpu_array.read_capsule(c.__dlpack__(stream=7))
    del c
    gc.collect()
    assert len(gpus[0].held) == held, "the capsule has it"
    gpus[0].orders.clear()
    del array
    gc.collect()
    assert len(gpus[0].held) == held - 1
    assert gpus[0].orders == [(7, 900)], "whoever gets that memory next waits for its reader"


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 1), (0, 3), ()], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_what_is_in_a_capsule_comes_out_of_it(dtype: str, shape: tuple[int, ...]) -> None:
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    found = fake.gpu_array.read_capsule(fake.gpu_array.make_capsule(fake.BASE, shape, dtype, 3, None))
    assert found[:5] == (fake.BASE, shape, strides, dtype, 3)


class FromHost:
    """A capsule for ``np.from_dlpack``."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("imported", [False, True], ids=["unused", "imported"])
def test_an_exported_array_is_released_while_an_exception_is_raised(imported: bool) -> None:
    values = np.arange(6, dtype=np.float32)
    freed: list[str] = []

    def exported() -> Any:
        class Owner:
            memory = values

        owner = Owner()
        weakref.finalize(owner, freed.append, "owner")
        capsule = fake.gpu_array.make_capsule(values.ctypes.data, (2, 3), "float32", 0, owner)
        if not imported:
            return capsule
        fake.gpu_array._tensor(capsule).device_type = 1
        array = np.from_dlpack(FromHost(capsule))
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
        return array

    def fail() -> None:
        assert not freed
        raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller") as caught:
        print(exported(), fail())  # the first argument is on the stack, which is emptied while the exception is raised
    assert freed == ["owner"]
    assert caught.value.__cause__ is None


def test_two_libraries_in_one_product(gpus: Any) -> None:
    a, b = whole(9, 12), whole(12, 10)
    c = tw.matmul(fake.Tensor.of(gpus[0], a), fake.CupyArray.of(gpus[0], b))
    assert type(c) is fake.Tensor
    np.testing.assert_array_equal(c.view, a @ b)
    assert gpus[0].orders == [(200, 100), (100, 200)], "after what CuPy was asked for, and CuPy after us"


def test_the_stream_of_the_moment(gpus: Any) -> None:
    x = fake.Tensor.of(gpus[0], whole(4, 4))
    tw.matmul(x, x)
    sys.modules["torch"].current = 300
    tw.matmul(x, x)
    assert [stream for _, stream in gpus[0].launches] == [100, 300]


@pytest.mark.slow
def test_no_library_is_imported() -> None:
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        "class X:\n"
        "    def __dlpack_device__(self): return (2, 0)\n"
        "    def __dlpack__(self, stream=None): raise BufferError('none')\n"
        "try: tw.matmul(X(), X())\n"
        "except tw.errors.TilewrightError as error: pass\n"
        "assert not {'torch', 'cupy', 'jax'} & set(sys.modules)\n"
        "tw.matmul(np.eye(2), np.eye(2))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- refusals


def tensor(gpus: Any, *shape: int, gpu: int = 0, dtype: str = "float32", **says: Any) -> Any:
    x = fake.Tensor.of(gpus[gpu], whole(*shape, dtype=dtype))
    for name, value in says.items():
        setattr(x, name, value)
    return x


REFUSED = {
    "gradient": (lambda g: (tensor(g, 3, 3), tensor(g, 3, 3, requires_grad=True)), OperandError, "b requires grad.*no_grad.*b.detach"),
    "sparse": (lambda g: (tensor(g, 3, 3, layout="sparse_coo"), tensor(g, 3, 3)), OperandError, "a is a tensor of layout sparse_coo"),
    "integers": (lambda g: (tensor(g, 3, 3), tensor(g, 3, 3, dtype="int32")), DTypeError, "b is a tensor of int32.*float32, float64, bfloat16, float16"),
    "two GPUs": (lambda g: (tensor(g, 3, 3), tensor(g, 3, 3, gpu=1)), OperandError, "a is on GPU 0, b on GPU 1"),
    "host": (lambda g: (np.eye(3), tensor(g, 3, 3)), OperandError, "a is a ndarray that is not on a GPU, and b is on one"),
    "host second": (lambda g: (tensor(g, 3, 3), [[1.0]]), OperandError, "b is a list that is not on a GPU, and a is"),
    "host tensor": (lambda g: (tensor(g, 3, 3), tensor(g, 3, 3, is_cuda=False)), OperandError, "b is a Tensor that is not on a GPU"),
    "k": (lambda g: (tensor(g, 3, 4), tensor(g, 3, 3)), ShapeError, "k mismatch"),
    "scalar": (lambda g: (tensor(g), tensor(g, 3, 3)), ShapeError, "a is a scalar"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_operands_that_are_refused(gpus: Any, why: str) -> None:
    make, kind, words = REFUSED[why]
    a, b = make(gpus)
    for call in (tw.matmul, tw.plan):
        with pytest.raises(kind, match=words):
            call(a, b)
    assert gpus[0].launches == []


def test_a_gradient_that_nobody_records(gpus: Any) -> None:
    sys.modules["torch"].grad = False
    tw.matmul(tensor(gpus, 3, 3, requires_grad=True), tensor(gpus, 3, 3))


@pytest.mark.parametrize(
    ("out", "kind", "words"),
    [
        (lambda g: tensor(g, 3, 4), ShapeError, r"out is \(3, 4\), the product is \(3, 3\)"),
        (lambda g: tensor(g, 3, 3, gpu=1), OperandError, "out is on GPU 1, a and b are on GPU 0"),
        (lambda g: np.zeros((3, 3), "f4"), OperandError, "out is a ndarray that is not on a GPU, and a is on one"),
        (lambda g: tensor(g, 3, 3, dtype="int32"), DTypeError, "out is int32, the product is float32"),
        (lambda g: tensor(g, 3, 3, requires_grad=True), OperandError, "out requires grad"),
        (
            lambda g: (x := tensor(g, 1, 3)).like(np.broadcast_to(x.view, (3, 3))),
            OperandError,
            "several of its elements",
        ),
    ],
)
def test_out_that_is_refused(gpus: Any, out: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        tw.matmul(tensor(gpus, 3, 3), tensor(gpus, 3, 3), out=out(gpus))
    assert gpus[0].launches == []


def test_words_that_are_not_known(gpus: Any) -> None:
    x = tensor(gpus, 3, 3)
    with pytest.raises(UsageError, match="precision 'high' is not known: did you mean highest"):
        tw.matmul(x, x, precision="high")
    with pytest.raises(UsageError, match="algorithm 'strassen': on a GPU there is classical alone"):
        tw.matmul(x, x, algorithm="strassen")


@pytest.mark.thorough
@pytest.mark.slow_cases("Tensor", "CupyArray")
@pytest.mark.parametrize("kind", [fake.Tensor, fake.CupyArray, fake.Unknown])
def test_memory_that_is_not_there(gpus: Any, kind: Any) -> None:
    x, y = kind.of(gpus[0], whole(900, 2)), kind.of(gpus[0], whole(2, 900))
    held = dict(gpus[0].held)
    with pytest.raises(MemoryLimitError, match="needs 3,240,000 bytes more on GPU 0"):
        tw.matmul(x, y)
    assert gpus[0].launches == []
    assert gpus[0].held == held


@pytest.mark.slow
def test_workspace_that_is_not_there_leaves_out_as_it_was(gpus: Any) -> None:
    a = fake.Tensor.of(gpus[0], whole(400, 400))
    out = fake.Tensor.of(gpus[0], np.full((400, 400), 7, "f4"))
    strided = a.like(a.view[::-1])
    filler = fake.Tensor.of(gpus[0], np.zeros(500_000 // 4, "f4"))
    with pytest.raises(MemoryLimitError, match="needs 640,000 bytes more"):
        tw.matmul(strided, a, out=out)
    del filler
    assert (out.view == 7).all()


# ---- the plan


def test_the_plan_tells_the_whole_of_it(gpus: Any) -> None:
    x, y = laid(fake.Tensor, gpus[0], whole(33, 20), "columns"), laid(fake.Tensor, gpus[0], whole(20, 37), "strided")
    plan = tw.plan(x, y)
    assert repr(plan) == f"<GpuPlan: {plan.title} by {plan.kernel.name} on cuda:0; print it for the whole>"
    text = str(plan)
    assert text.startswith("(33×20) · (20×37) float32\n  kernel     cuda/register_banks:")
    for words in ("compute capability 9.0", "BM=32", "preset", "grid 2, block 128", "of shared memory", "workspace"):
        assert words in text
    assert "Cᵀ = Bᵀ·Aᵀ" in text
    assert "b (strides of 77 and 2 elements), 2,960 bytes" in text
    assert plan.workspace_bytes == 3072
    assert gpus[0].launches == []
    assert "copies     none" in str(tw.plan(fake.Tensor.of(gpus[0], whole(3, 3)), fake.Tensor.of(gpus[0], whole(3, 3))))


def test_a_product_that_a_library_must_know_of(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient, an operand of a transformation, and a subclass go to the operator; the plan stays what it is without."""

    class Subclass(fake.Tensor):
        pass

    torch = sys.modules["torch"]
    monkeypatch.setattr(torch, "library", SimpleNamespace(register_autograd=None), raising=False)
    torch._C._functorch = SimpleNamespace(is_functorch_wrapped_tensor=lambda x: x.layout == "wrapped")
    monkeypatch.setattr(api, "_recorded", lambda a, b, precision: (a, b, precision))
    monkeypatch.setattr(fake.Tensor, "detach", lambda x: x.like(x.view), raising=False)
    x, y = tensor(gpus, 3, 3), tensor(gpus, 3, 3, requires_grad=True)
    assert tw.matmul(x, y, precision="highest") == (x, y, "highest")
    assert str(tw.plan(x, y)) == str(tw.plan(x, x))
    with pytest.raises(OperandError, match="b requires grad"):
        tw.matmul(x, y, out=tensor(gpus, 3, 3))
    torch.grad = False
    assert type(tw.matmul(x, y)) is fake.Tensor

    def no_memory() -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    for other in (tensor(gpus, 3, 3, layout="wrapped", data_ptr=no_memory), Subclass.of(gpus[0], whole(3, 3))):
        assert tw.matmul(x, other) == (x, other, "standard")
