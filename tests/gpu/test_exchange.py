"""The short way in machine code, with a library, an interface and a driver of this process."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from support.exchange_capsule import exchange_capsule
from support.stand_driver import WORD, StandDriver
from tilewright.errors import LaunchError
from tilewright.gpu.arrays import repeated
from tilewright.gpu.arrays.gpu_array import GpuArray
from tilewright.gpu.arrays.repeated import ExchangedProduct, ExchangedProducts, ExchangeInterface, exchange_interface
from tilewright.gpu.runtime import recording
from tilewright.gpu.runtime.recording import Replay, recorded, recorded_words, recording_with

SIZE = (2, 1, 1, 32, 1, 1, 0)


class Array:
    """``fields``: address, device, type of device, dtype, bytes before the first element."""

    requires_grad, negated, broken = False, False, False

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], address: int, **fields: int) -> None:
        self.shape, self.strides, self.address, self.fields = shape, strides, address, fields
        self.sizes = (ctypes.c_int64 * 16)(*shape, *strides)

    def is_neg(self) -> bool:
        return self.negated

    @property
    def gpu_array(self) -> GpuArray:
        return GpuArray(self.address, self.shape, self.strides, "float32", self.fields.get("device", 0))


class Parameter(Array):
    pass


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def view(x: Any, to: int) -> int:
    if x.broken:
        return -1
    sizes, rank = ctypes.addressof(x.sizes), len(x.shape)
    device = x.fields.get("kind", 2) | x.fields.get("device", 0) << 32
    words = (
        x.address,
        device,
        rank | x.fields.get("dtype", 0x12002) << 32,
        sizes,
        sizes + 8 * rank,
        x.fields.get("offset", 0),
    )
    (WORD * 6).from_address(to)[:] = words
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(WORD))
def stream_of(kind: int, ordinal: int, to: Any) -> int:
    to[0] = 70 + ordinal
    return 0 if kind == 2 else -1


def submit(a: int, b: int, c: int, workspace: int, stream: int) -> None:
    recording_with(stream).add(recorded_words("first", 7, SIZE, (WORD * 4)(a, b, 5, c), [0, 1, 3]))
    recording_with(stream).add(recorded_words("second", 8, SIZE, (WORD * 1)(workspace), [0]))


class Library:
    """Its products; ``gradients`` says whether they are recorded, ``declined`` is what went another way."""

    def __init__(self, types: tuple[type, type] = (Array, Parameter)) -> None:
        self.gradients, self.memory, self.declined = False, True, list[Any]()
        self.tangents = SimpleNamespace(level=-1)
        functions = exchange_capsule(view, stream_of)
        self.interface = ExchangeInterface(types, functions, lambda: self.gradients, (self.tangents, "level", -1))
        self.products = ExchangedProducts(self.interface, lambda *args: self.declined.append(args))
        self.product = self.products.product

    def allocated(self) -> Any:
        if not self.memory:
            raise MemoryError
        return Array((4, 5), (5, 1), 0xC000)

    def workspace(self) -> Any:
        if not self.memory:
            raise MemoryError
        return Parameter((100,), (1,), 0xD00)

    def learn(self, a: Any, b: Any, workspace: bool = True) -> None:
        replay = Replay(recorded(submit, (0, 0, 0, 0)), (0, 0, 0, 0), 55)

        def failed(status: int) -> None:
            raise replay.error(status)

        product = ExchangedProduct(replay.program, self.allocated, self.workspace if workspace else None, failed)
        self.products.learn((a, b), (a.gpu_array, b.gpu_array), product)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StandDriver:
    stand = StandDriver()
    monkeypatch.setattr(recording, "driver", lambda: stand)
    return stand


@pytest.fixture
def library(driver: StandDriver) -> Library:
    assert driver
    made = Library()
    made.learn(*operands())
    return made


def operands(at: int = 0x1000, **fields: int) -> tuple[Any, Any]:
    return Array((4, 6), (6, 1), at, **fields), Array((6, 5), (5, 1), 2 * at, **fields)


def numbers(*values: int) -> tuple[bytes, ...]:
    return tuple(value.to_bytes(8, "little") for value in values)


def test_a_known_product_is_launched(driver: StandDriver, library: Library) -> None:
    for at in (0x1000, 0x7000_0000_0010 - 16):
        for rest in ((), (None,)):
            driver.calls.clear()
            c = library.product(*operands(at), *rest)
            assert (c.address, c.shape) == (0xC000, (4, 5))
            a, b, c_at, workspace = numbers(at, 2 * at, 0xC000, 0xD00)
            assert driver.calls == [(7, SIZE, 70, a, b, (5).to_bytes(4, "little"), c_at), (8, SIZE, 70, workspace)]
    assert library.declined == []


def test_products_without_a_workspace_and_on_another_gpu(driver: StandDriver, library: Library) -> None:
    library.learn(*operands(device=3), workspace=False)
    assert library.product(*operands(device=3)).address == 0xC000
    assert [call[2] for call in driver.calls] == [73, 73]
    assert driver.calls[1][3] == bytes(8)


def test_what_is_not_known_goes_another_way(driver: StandDriver, library: Library) -> None:
    a, b = operands()
    other_type = type("Subclass", (Array,), {})
    others = [
        operands(0x1004), operands(dtype=0x14002), operands(device=1), operands(kind=1), operands(offset=8), (b, a),
        (Array((4, 6), (1, 4), 0x1000), b), (Array((3, 6), (6, 1), 0x1000), b), (a, Array((6,), (1,), 0x2000)),
        (a, Array((1, 6, 5), (30, 5, 1), 0x2000)), (a, Array((), (), 0x2000)), (a, 3),
        (other_type((4, 6), (6, 1), 0x1000), b), (a, Array((1,) * 8, (1,) * 8, 0x2000)), (a, b, a),
        (a, b, None, "highest"), (a,), (), operands(0),
    ]  # fmt: skip
    for args in others:
        assert library.product(*args) is None
    assert library.declined == others
    assert driver.calls == []


def test_arrays_of_many_axes_are_not_read(library: Library) -> None:
    a, b = operands()
    many = Array((1,) * 8, (1,) * 8, 0x2000)
    many.fields["dtype"] = 0
    view_of = many.shape
    many.shape = (1,) * 9  # as a library would say it whose arrays have more axes than a key has room for
    assert library.product(a, many) is None
    many.shape = view_of
    assert len(library.declined) == 1
    assert library.product(a, b) is not None


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", [Array, Parameter])
def test_gradients_and_negated_values(library: Library, which: int, kind: Any) -> None:
    args = list(operands())
    x = args[which] = kind(args[which].shape, args[which].strides, args[which].address)
    x.requires_grad = True
    assert library.product(*args) is not None, "no gradient is recorded"
    library.gradients = True
    assert library.product(*args) is None
    x.requires_grad, x.negated = False, True
    assert library.product(*args) is None
    x.negated = False
    assert library.product(*args) is not None
    assert len(library.declined) == 2


def test_what_the_library_refuses_is_no_error_here(library: Library) -> None:
    a, b = operands()
    library.memory = False
    assert library.product(a, b) is None
    library.memory, b.broken = True, True
    assert library.product(a, b) is None
    b.broken = False
    b.is_neg = lambda: 1 / 0  # type: ignore[assignment]
    assert library.product(a, b) is None
    assert len(library.declined) == 3


def test_an_error_of_the_driver_is_raised(driver: StandDriver, library: Library) -> None:
    driver.fails = {8: 700}
    with pytest.raises(LaunchError, match="second: CUDA_ERROR_700"):
        library.product(*operands())


def test_references_are_given_back(driver: StandDriver, library: Library) -> None:
    a, b = operands()
    made = Array((4, 5), (5, 1), 0xC000)
    library.allocated = lambda: made  # type: ignore[method-assign]
    library.learn(a, b)
    (known,) = library.products._known.values()

    def counts() -> list[int]:
        library.declined.clear()
        return [sys.getrefcount(x) for x in (a, b, made, known, Array, library.product, library.interface.grad_enabled)]

    def every_way() -> None:
        library.product(a, b)
        library.product(a, b, a)
        library.product(b, a)
        b.requires_grad, library.gradients = True, True
        library.product(a, b)
        b.requires_grad, b.broken = False, True
        library.product(a, b)
        b.broken = False
        driver.fails = {7: 700}
        with pytest.raises(LaunchError):
            library.product(a, b)
        driver.fails = {}
        library.products._key(a, b)
        library.products._key(a, 3)

    every_way()
    before = counts()
    for _ in range(50):
        every_way()
    assert counts() == before


def test_an_interface_that_says_something_else_is_not_used(library: Library) -> None:
    library.products._known.clear()
    a, b = operands()
    x = a.gpu_array
    for other in (
        x._replace(pointer=0x1010),
        x._replace(strides=(1, 4)),
        x._replace(shape=(4, 5)),
        x._replace(device=1),
    ):
        library.products.learn((a, b), (other, b.gpu_array), ExchangedProduct(b"", library.allocated, None, print))
    assert library.products._known == {}
    library.learn(a, b)
    assert len(library.products._known) == 1


def test_what_is_known_is_forgotten_before_it_is_too_much(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExchangedProducts, "MOST", 2)
    for dtype in range(5):
        library.learn(*operands(dtype=dtype))
        assert library.product(*operands(dtype=dtype)) is not None
    assert len(library.products._known) <= 2


def test_while_tangents_are_recorded_nothing_is_computed_here(library: Library) -> None:
    a, b = operands()
    assert library.product(a, b) is not None
    library.tangents.level = 0
    assert library.product(a, b) is None
    del library.tangents.level
    assert library.product(a, b) is None
    assert len(library.declined) == 2
    library.tangents.level = -1
    assert library.product(a, b) is not None


@pytest.mark.parametrize(
    ("given", "found"),
    [((view, stream_of), True), ((view, stream_of, 2), False), ((None, stream_of), False), ((view, None), False)],
)
def test_the_interface_is_that_of_a_version_that_is_known(given: Any, found: bool) -> None:
    kind = type("Tensor", (), {"__dlpack_c_exchange_api__": exchange_capsule(*given)})
    assert (exchange_interface(kind, kind, bool) is not None) == found
    assert exchange_interface(Array, Array, bool) is None
    other = type("Tensor", (), {"__dlpack_c_exchange_api__": 3})
    assert exchange_interface(other, other, bool) is None


def test_without_the_c_front_there_is_no_interface_and_no_replay(
    driver: StandDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (repeated, recording):
        monkeypatch.setattr(module, "front", lambda: None)
    kind = type("Tensor", (), {"__dlpack_c_exchange_api__": exchange_capsule(view, stream_of)})
    assert exchange_interface(kind, kind, bool) is None
    with pytest.raises(LaunchError, match="_native, which was not built"):
        Replay(recorded(submit, (0, 0, 0, 0)), (0, 0, 0, 0), 55)
    assert driver.calls == []
