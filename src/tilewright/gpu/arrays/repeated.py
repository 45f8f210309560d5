"""The fast path for products of GPU arrays that are like those of an earlier call.

Python plans and launches the first product of a kind. Its launches are recorded (``gpu.runtime.recording``). A later
product repeats the launches with its own addresses, if its arrays have the same dtypes, shapes, strides and addresses
modulo 16 bytes. For any other product the fast path returns None; then the general path computes the product or raises
the error.

If a library has DLPack's exchange interface for C, as PyTorch has from 2.10 on, the C front (``cpu/native/gpu.c``)
reads the tensors itself. If Python read the tensors, the reading would take as long as the rest of such a call.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...cpu.native import front
from ...errors import LaunchError
from .gpu_array import GpuArray

if TYPE_CHECKING:
    from ...product.epilogue import Epilogue
    from ..runtime.device import Device
    from ..runtime.recording import Replay
    from .plan import GpuPlan, Launches

# ---- DLPack's exchange interface: the C front reads tensors ----------------------------------------------------------

#: ``kDLCUDA``
_CUDA = 2
#: Words of a matrix behind the addresses, in what ``read`` returns of lists (``ListedMatrix`` in ``gpu.c``): device; dtype
#: and axes; place of the first byte within a granule; two sizes; two strides. Compared with Python: device, sizes, strides.
_MATRIX_WORDS, _COMPARED_WORDS = 7, [0, 3, 4, 5, 6]

#: An object, the name of an attribute, and its usual value, an object that is always the same.
State = tuple[Any, str, Any]
_ALWAYS: State = (SimpleNamespace(usual=True), "usual", True)


class ExchangeInterface(NamedTuple):
    """DLPack's exchange interface of a library: the types of its arrays, the capsule with the functions, and a function
    that says whether gradients are recorded now.

    ``state`` is an object, an attribute and its usual value. While the attribute has another value, every call takes
    the general path."""

    types: tuple[type, type]
    functions: Any
    grad_enabled: Callable[[], bool]
    state: State = _ALWAYS


def exchange_interface(
    first: type, second: type, grad_enabled: Callable[[], bool], state: State = _ALWAYS
) -> ExchangeInterface | None:
    """The exchange interface of two array types of one library. Returns None if the types have no such interface, or if
    there is no C front."""
    functions = getattr(first, "__dlpack_c_exchange_api__", None)
    if functions is None or front() is None:
        return None
    interface = ExchangeInterface((first, second), functions, grad_enabled, state)
    try:
        _reader(interface, {}, None)
    except ValueError:  # no capsule of that name, or another version
        return None
    return interface


def _reader(interface: ExchangeInterface, known: dict[bytes, Any], otherwise: Callable[..., Any] | None) -> Any:
    """The C object that reads tensors by an interface, and knows products by their keys."""
    c, i = front(), interface
    assert c is not None
    return c.Exchange(*i.types, i.functions, i.grad_enabled, *i.state, "requires_grad", "is_neg", known, otherwise)


class ExchangedProduct(NamedTuple):
    """A product that the C front computes. The C front reads the fields in this order: the program of a ``Replay``,
    functions that allocate the result and the workspace, and a function that raises the error of a status."""

    program: bytes
    result: Callable[[], Any]
    workspace: Callable[[], Any] | None
    failed: Callable[[int], Any]


class ExchangedProducts:
    """The products that the C front computes by ``product(a, b)``. Products that the C front does not know are computed
    by ``otherwise(*args)``."""

    #: The most products that are known at once.
    MOST = 1024

    def __init__(self, interface: ExchangeInterface, otherwise: Callable[..., Any]) -> None:
        self._known: dict[bytes, ExchangedProduct] = {}
        reader = _reader(interface, self._known, otherwise)
        self._key, self.product = reader.key, reader.product

    def learn(self, arrays: tuple[Any, Any], views: tuple[GpuArray, GpuArray], product: ExchangedProduct) -> None:
        """Let the C front compute products of arrays like ``arrays``, if it reads the same properties of these arrays
        as Python."""
        found = self._key(*arrays)
        if found is None:
            return
        *pointers, key = found
        if pointers != [view.pointer for view in views] or not _is_key_of(key, views):
            return
        if len(self._known) >= self.MOST:
            self._known.clear()
        self._known[key] = product


def _is_key_of(key: bytes, views: tuple[GpuArray, GpuArray]) -> bool:
    """Whether a key has the device, shape and strides of both arrays. The words of a key (``key_of`` in ``gpu.c``) are
    the offsets within granules, and whether both arrays have the same address; then, for each array, the device, dtype
    and number of axes, and the size and stride of each axis."""
    words = iter(struct.unpack(f"<{len(key) // 8}q", key)[1:])
    for view in views:
        device, axes = next(words), next(words) & 0xFFFF_FFFF
        if (device, axes) != (_CUDA | view.device << 32, len(view.shape)):
            return False
        sizes = list(zip(view.shape, view.strides, strict=True))
        if list(itertools.islice(words, 2 * axes)) != [*itertools.chain(*sizes)]:
            return False
    return True


class ListReader:
    """Reads two lists of matrices by the C front."""

    def __init__(self, interface: ExchangeInterface) -> None:
        #: ``read(a, b)``: the addresses of all matrices of a, then of b, as words, followed by a key of everything else; or
        #: None unless both lists have as many matrices, none of which needs a gradient.
        self.read: Callable[[Any, Any], bytes | None] = _reader(interface, {}, None).read

    def agrees(self, data: bytes, views: Sequence[GpuArray]) -> bool:
        """Whether ``read``, a function of the C front, gives the same properties of the matrices as Python."""
        words = np.frombuffer(data, np.int64)
        found = words[len(views) :].reshape(len(views), _MATRIX_WORDS)
        expected = [(_CUDA | x.device << 32, *x.shape, *x.strides) for x in views]
        return words[: len(views)].tolist() == [x.pointer for x in views] and bool(
            (found[:, _COMPARED_WORDS] == np.array(expected)).all()
        )


# ---- single products -------------------------------------------------------------------------------------------------

#: For types of arrays, ``way(a, b, out, asked)``: their product, or None if it must go the long way.
short_ways: dict[type, Callable[..., Any]] = {}
#: For types of arrays, ``way(a, b, out, asked, epilogue)``: the same for products with an epilogue.
finished_ways: dict[type, Callable[..., Any]] = {}

#: The most keys of a library, and the most types.
MOST_KEYS, _MOST_TYPES = 1024, 64

#: Products that take longer are launched early: they begin before what precedes them has ended. That saves about 1 µs of the
#: GPU's time and costs as much of the host's. Shorter products wait for the host, and gain nothing. Measured on an H200.
_EARLY_S = 6e-6


#: All of two arrays that their product depends on, except the addresses: hashable, and equal for arrays that are alike.
ArrayKey = tuple[Any, ...]


class ArrayFunctions(NamedTuple):
    """The functions of a library that the fast path needs.

    ``key(a, b)`` is the key of two arrays and both addresses, or None for arrays that only the general path can handle;
    ``key(x, x)`` is the key of one array. ``pointer(x)`` is the address of an array. ``stream(ordinal)`` is the
    caller's stream on a GPU. ``stores_conjugated(a, b)`` says whether values are stored conjugated; it is called only
    for complex dtypes."""

    key: Callable[[Any, Any], tuple[ArrayKey, int, int] | None]
    pointer: Callable[[Any], int]
    stream: Callable[[int], int]
    stores_conjugated: Callable[[Any, Any], bool]


class RepeatingLibrary(Protocol):
    """A library whose products can be repeated."""

    def view(self, x: Any, name: str) -> GpuArray:
        """Address, shape and strides of ``x``."""

    def allocation(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """A function that allocates an uninitialised array."""

    def transposed(self, x: Any) -> Any:
        """A view of ``x`` with its last two axes swapped."""

    def written(self, out: Any) -> None:
        """Note that ``out`` was changed. This method is called after the work that overwrites ``out`` was submitted."""


class _Repeatable(NamedTuple):
    """``run(a, b, c, workspace, …, stream)`` makes the launches and returns 0, or a status for ``error``; the addresses
    of an epilogue's arrays precede the stream. ``result`` and ``workspace`` allocate. ``extents`` are the offsets of
    the first and the last byte of a, b and ``out``, if any, from the addresses of these arrays."""

    run: Callable[..., int]
    error: Callable[[int], Exception]
    result: Callable[[], Any]
    workspace: Callable[[], Any] | None
    ordinal: int
    transposed: Callable[[Any], Any] | None
    is_complex: bool
    extents: tuple[tuple[int, int], ...] = ()
    #: Whether no repetition was made yet: the first one records the launches, so it puts another entry in this one's place.
    is_first: bool = True
    #: The recorded launches; None before they were recorded, and where they cannot be.
    replay: Replay | None = None


class RepeatedProducts:
    """The earlier products of one library's arrays, in one table for each form of call, by the arguments of the
    call."""

    def __init__(
        self, library: RepeatingLibrary, functions: ArrayFunctions, exchange: ExchangeInterface | None
    ) -> None:
        self._library, self._exchange = library, exchange
        self._key, self._pointer, self._stream, self._stores_conjugated = functions
        self._exchanged: ExchangedProducts | None = None
        self._plain: dict[ArrayKey, _Repeatable] = {}  # of a and b alone
        self._asked: dict[tuple[ArrayKey, Any], _Repeatable] = {}  # and what else was asked for
        self._in_place: dict[tuple[ArrayKey, ArrayKey, Any], _Repeatable] = {}  # of a and b; of out; what was asked for
        self._finished: dict[tuple[ArrayKey, ArrayKey, Any], _Repeatable] = {}  # of a and b; of out and epilogue; …
        self._types: set[type] = set()

    def product(self, a: Any, b: Any, out: Any = None, asked: Any = None) -> Any:
        """The product. Returns None if no similar product was computed before, or if there is no memory for the
        product. Raises LaunchError. ``asked`` holds the other options of the caller, such as a precision, in a hashable
        form; None if there are none.
        """
        if out is not None:
            return self._product_in_place(a, b, out, asked)
        if type(b) not in self._types:
            return None
        try:
            found = self._key(a, b)
            if found is None:
                return None
            key, at_a, at_b = found
            known = self._plain.get(key) if asked is None else self._asked.get((key, asked))
            if known is None or (known.is_complex and self._stores_conjugated(a, b)):
                return None
            c, workspace, at_workspace = known.result(), known.workspace, 0
            if workspace is not None:
                scratch = workspace()
                at_workspace = self._pointer(scratch)
        except (RuntimeError, MemoryError, TypeError):  # no memory, no such array or option: the long way says which
            return None
        status = known.run(at_a, at_b, self._pointer(c), at_workspace, self._stream(known.ordinal))
        if status:
            raise known.error(status)
        if known.is_first and asked is None:
            self._teach(a, b, self._plain.get(key, known))
        return c if known.transposed is None else known.transposed(c)

    def _product_in_place(self, a: Any, b: Any, out: Any, asked: Any) -> Any:
        """The product that is written to ``out``, which must share no byte with the operands."""
        if type(b) not in self._types or type(out) not in self._types:
            return None
        try:
            found, to = self._key(a, b), self._key(out, out)
            if found is None or to is None:
                return None
            (key, at_a, at_b), (key_of_out, at_out, _) = found, to
            known = self._in_place.get((key, key_of_out, asked))
            if known is None or (
                known.is_complex and (self._stores_conjugated(a, b) or self._stores_conjugated(out, out))
            ):
                return None
            if _overlap(known.extents, (at_a, at_b, at_out)):
                return None
            workspace, at_workspace = known.workspace, 0
            if workspace is not None:
                scratch = workspace()
                at_workspace = self._pointer(scratch)
        except (RuntimeError, MemoryError, TypeError):
            return None
        status = known.run(at_a, at_b, at_out, at_workspace, self._stream(known.ordinal))
        if status:
            raise known.error(status)
        self._library.written(out)
        return out

    def finished_product(self, a: Any, b: Any, out: Any, asked: Any, epilogue: Epilogue) -> Any:
        """The product with an epilogue; None in the same cases as ``product``. Raises LaunchError."""
        if type(b) not in self._types:
            return None
        try:
            found, others = self._key(a, b), self._key_of_others(out, epilogue)
            if found is None or others is None:
                return None
            (key, at_a, at_b), (key_of_others, (at_c, *applied)) = found, others
            known = self._finished.get((key, key_of_others, asked))
            if known is None or (out is not None and _overlap(known.extents, (at_a, at_b, at_c))):
                return None
            c = known.result() if out is None else out
            at_c = at_c or self._pointer(c)
            workspace = None if known.workspace is None else known.workspace()
            at_workspace = 0 if workspace is None else self._pointer(workspace)
        except (RuntimeError, MemoryError, TypeError):
            return None
        status = known.run(at_a, at_b, at_c, at_workspace, *(at or at_c for at in applied), self._stream(known.ordinal))
        if status:
            raise known.error(status)
        if out is not None:
            self._library.written(out)
        return c if out is not None or known.transposed is None else known.transposed(c)

    def _key_of_others(self, out: Any, epilogue: Epilogue) -> tuple[ArrayKey, list[int]] | None:
        """The key of all other arguments on which launches with an epilogue depend, and the addresses of ``out``, bias
        and scales, with 0 for absent arrays. Returns None for arrays that only the general path can handle."""
        keys: list[Any] = [epilogue.alpha, epilogue.beta, epilogue.activation]
        addresses = []
        for x in (out, epilogue.bias, epilogue.scale_a, epilogue.scale_b):
            found = ((), 0, 0) if x is None else self._key(x, x) if type(x) in self._types else None
            if found is None:
                return None
            keys.append(found[0])
            addresses.append(found[1])
        return tuple(keys), addresses

    def remember(
        self,
        arrays: tuple[Any, Any, Any],
        views: tuple[GpuArray, GpuArray, GpuArray | None],
        launches: Launches,
        gpu: Device,
        asked: Any = None,
        epilogue: Epilogue | None = None,
    ) -> None:
        """Remember a product that ``launches`` computed on this GPU.

        ``arrays`` are a, b and ``out``, which may be None; all belong to the library. ``views`` are the addresses and
        strides of these arrays. ``out`` shares no byte with a and b."""
        a, b, out = arrays
        found, to = self._key(a, b), None if out is None else self._key(out, out)
        kinds = {type(x) for x in arrays if x is not None}
        applied = () if epilogue is None else epilogue.arrays.values()
        self._types |= kinds | {type(x) for x in applied}
        others = None if epilogue is None else self._key_of_others(out, epilogue)
        if found is None or (out is not None and to is None) or (epilogue is not None and others is None):
            return
        if len(short_ways.keys() | kinds) > _MOST_TYPES:
            return
        tables: tuple[dict[Any, _Repeatable], ...] = (self._plain, self._asked, self._in_place, self._finished)
        if sum(map(len, tables)) >= MOST_KEYS:
            for each in tables:
                each.clear()
        table, key = self._plain, found[0]
        if others is not None:
            table, key = self._finished, (key, others[0], asked)
        elif to is not None:
            table, key = self._in_place, (key, to[0], asked)
        elif asked is not None:
            table, key = self._asked, (key, asked)
        order, nbytes = launches.plan.order, launches.plan.workspace_bytes
        table[key] = known = _Repeatable(
            run=lambda *given: self._record(table, key, known, launches, gpu, given),
            error=LaunchError,
            result=self._library.allocation(order.shape, order.dtype, gpu.ordinal),
            workspace=self._library.allocation((nbytes,), "uint8", gpu.ordinal) if nbytes else None,
            ordinal=gpu.ordinal,
            transposed=self._library.transposed if order.transposed else None,
            is_complex=order.dtype.startswith("complex"),
            extents=tuple((x.extent[0] - x.pointer, x.extent[1] - x.pointer) for x in views if x is not None),
        )
        for kind in kinds:
            short_ways.setdefault(kind, self.product)
            finished_ways.setdefault(kind, self.finished_product)

    @staticmethod
    def _record(
        table: dict[Any, _Repeatable],
        key: Any,
        known: _Repeatable,
        launches: Launches,
        gpu: Device,
        given: Sequence[int],
    ) -> int:
        """Makes and records the launches of the first repetition. The first product itself is not recorded, because a
        product that is computed only once does not need a recording."""
        *addresses, stream = given

        def submit(*given: int) -> None:
            a, b, c, workspace, *applied, stream = given
            launches.submit(a, b, c, workspace, stream, *applied)

        by_python, replay = recorded_run(gpu, submit, addresses, stream, early=_gains_early(launches.plan, gpu))
        if replay is None:
            table[key] = known._replace(run=by_python, is_first=False)
        else:
            table[key] = known._replace(run=replay.run, error=replay.error, replay=replay, is_first=False)
        return by_python(*addresses, stream)

    def _teach(self, a: Any, b: Any, known: _Repeatable) -> None:
        """Let machine code do the rest of the fast path too, if the library has an exchange interface."""
        replay, types = known.replay, () if self._exchange is None else self._exchange.types
        if self._exchange is None or replay is None or known.transposed is not None or known.is_complex:
            return
        if type(a) not in types or type(b) not in types:
            return
        if self._exchanged is None:
            self._exchanged = ExchangedProducts(self._exchange, self.product)
            short_ways.update(dict.fromkeys(types, self._exchanged.product))

        def failed(status: int) -> None:
            raise replay.error(status)

        views = self._library.view(a, "a"), self._library.view(b, "b")
        product = ExchangedProduct(replay.program, known.result, known.workspace, failed)
        self._exchanged.learn((a, b), views, product)


def recorded_run(
    gpu: Device, submit: Callable[..., None], addresses: Sequence[int], stream: int, *, early: bool = False
) -> tuple[Callable[..., int], Replay | None]:
    """``submit(*addresses, stream)`` as a function that returns 0, and its launches in the form in which machine code
    repeats them. Returns None if the launches cannot be repeated."""

    def by_python(*given: int) -> int:
        with gpu:
            submit(*given)
        return 0

    return by_python, gpu.replay(submit, addresses, stream, early=early)


def _gains_early(plan: GpuPlan, gpu: Device) -> bool:
    """Whether a product is faster if it may begin before earlier work on the stream has ended. If it may, its blocks
    fill the free multiprocessors. The product gains if all its blocks fit at once, or if there are enough blocks for
    all multiprocessors. Otherwise some multiprocessors get several blocks, and others none. Clusters of blocks would
    find no neighbouring multiprocessors that are free."""
    from ..planning.ways import MOST_SHARED  # which a process without a GPU does not load

    blocks = plan.launch.blocks * plan.parts * math.prod(plan.order.batch)
    if plan.params.get("CLUSTER", 1) > 1 and blocks <= gpu.sms:
        return False
    if 2 * plan.launch.shared_bytes > MOST_SHARED:  # one to a multiprocessor
        fits = blocks <= gpu.sms // 2 or blocks >= 0.9 * gpu.sms
    else:
        fits = blocks >= 2 * gpu.sms
    return (plan.predicted_s or 0) > _EARLY_S and fits


def _overlap(extents: tuple[tuple[int, int], ...], addresses: tuple[int, int, int]) -> bool:
    """Whether ``out`` shares a byte with an operand, for the given extents and addresses of a, b and ``out``."""
    (low_a, high_a), (low_b, high_b), (low, high) = extents
    at_a, at_b, at = addresses
    low, high = at + low, at + high
    return (low < at_a + high_a and at_a + low_a < high) or (low < at_b + high_b and at_b + low_b < high)


# ---- products of groups ----------------------------------------------------------------------------------------------

#: For types of arrays, ``way(a, b, offsets)``: the product of their groups, or None if it must go the long way.
group_ways: dict[type, Callable[[Any, Any, Any], Any]] = {}


class _KnownGroups(NamedTuple):
    """``run(a, b, c, offsets, stream)`` makes the launch, and returns 0 or a status of which ``error`` makes an
    exception. ``run`` is None until the first repetition has recorded the launch."""

    submit: Callable[..., None]
    gpu: Device
    result: Callable[[], Any]
    transposed: Callable[[Any], Any] | None
    run: Callable[..., int] | None = None
    error: Callable[[int], Exception] | None = None


class RepeatedGroups:
    """The earlier grouped products of one library's arrays, without ``out``, by the keys of a and b and of the
    offsets."""

    def __init__(self, library: RepeatingLibrary, functions: ArrayFunctions) -> None:
        self._library, self._functions = library, functions
        self._known: dict[tuple[ArrayKey, ArrayKey], _KnownGroups] = {}

    def product(self, a: Any, b: Any, offsets: Any) -> Any:
        """The product. Returns None if no similar product was computed before, or if there is no memory for the result.
        Raises LaunchError."""
        if type(b) not in group_ways or type(offsets) not in group_ways:
            return None
        key, pointer, stream, _ = self._functions
        try:
            found, ends = key(a, b), key(offsets, offsets)
            if found is None or ends is None:
                return None
            (key_of_ab, at_a, at_b), (key_of_ends, at_ends, _) = found, ends
            known = self._known.get((key_of_ab, key_of_ends))
            if known is None:
                return None
            c = known.result()
        except (RuntimeError, MemoryError, TypeError):  # no memory, or no such array: the long way says which
            return None
        given = at_a, at_b, pointer(c), at_ends, stream(known.gpu.ordinal)
        run = known.run or self._record((key_of_ab, key_of_ends), known, given)
        status = run(*given)
        if status and known.error is not None:
            raise known.error(status)
        return c if known.transposed is None else known.transposed(c)

    def remember(
        self,
        arrays: tuple[Any, Any, Any],
        submit: Callable[..., None],
        gpu: Device,
        result: tuple[tuple[int, ...], str],
        transposed: bool,
    ) -> None:
        """Remember that ``submit(a, b, c, offsets, stream)`` computes the product of arrays like a, b and offsets on
        this GPU, into a ``result`` of this shape and dtype."""
        a, b, offsets = arrays
        found, ends = self._functions.key(a, b), self._functions.key(offsets, offsets)
        if found is None or ends is None:
            return
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        allocation = self._library.allocation(*result, gpu.ordinal)
        view = self._library.transposed if transposed else None
        self._known[found[0], ends[0]] = _KnownGroups(submit, gpu, allocation, view)
        for x in arrays:
            group_ways.setdefault(type(x), self.product)

    def _record(
        self, key: tuple[ArrayKey, ArrayKey], known: _KnownGroups, given: tuple[int, ...]
    ) -> Callable[..., int]:
        """Make the launch that later calls use: machine code, or the earlier function if the launch cannot be recorded.
        Returns the function for this call."""
        *addresses, stream = given
        by_python, replay = recorded_run(known.gpu, known.submit, addresses, stream)
        run, error = (by_python, None) if replay is None else (replay.run, replay.error)
        self._known[key] = known._replace(run=run, error=error)
        return by_python  # this time: a launch that fails says why


# ---- lists of products -----------------------------------------------------------------------------------------------

#: ``multiply(a, b, addresses)``: the products of two lists; the addresses of all matrices of a, then of b, as int64.
ListProduct = Callable[[Sequence[Any], Sequence[Any], Any], list[Any]]


class _KnownLists(NamedTuple):
    """How lists are multiplied. ``distances`` are the required distances of the matrices from the first one; None
    allows any distances. With ``scattered``, a list whose second factors lie at equal distances takes the general path,
    because it may be a batch. ``filled`` are the indices of the matrices that have elements."""

    distances: Any
    scattered: bool
    filled: Any
    multiply: ListProduct

    def takes(self, addresses: Any) -> bool:
        """Whether lists whose matrices lie at these addresses may be multiplied by ``multiply``."""
        filled = addresses[self.filled]
        if not filled.all():  # without memory, as inside a transformation
            return False
        if self.distances is not None:
            return np.array_equal(filled - filled[0], self.distances)
        return not (self.scattered and _are_equal_distances(addresses))


def _are_equal_distances(addresses: Any) -> bool:
    """Whether the addresses in the second half are at equal distances."""
    between = np.diff(addresses[len(addresses) // 2 :])
    return bool((between == between[:1]).all())


class RepeatedLists:
    """The earlier lists of one library's arrays that were multiplied. Machine code reads the properties of a list."""

    #: The most lists, by shapes and layouts, that are known at once, and the most ways for one of them.
    MOST, MOST_WAYS = 256, 4

    def __init__(self, interface: ExchangeInterface) -> None:
        self._interface = interface
        #: By what was asked for, and all that ``ListReader.read`` says except the addresses.
        self._known: dict[tuple[Any, bytes], list[_KnownLists]] = {}
        self._reader: ListReader | None = None

    def products(self, a: Any, b: Any, out: Any = None, asked: Any = None) -> list[Any] | None:
        """The products. Returns None if no similar lists were multiplied before with the precision ``asked``. If
        ``asked`` is None, the precision is "standard"."""
        if self._reader is None or out is not None or type(b) is not list or not a:
            return None
        data = self._reader.read(a, b)
        if data is None:
            return None
        addresses = np.frombuffer(data, np.int64, 2 * len(a))
        for known in self._known.get((asked, data[addresses.nbytes :]), ()):
            if known.takes(addresses):
                return known.multiply(a, b, addresses)
        return None

    def remember(
        self,
        a: list[Any],
        b: list[Any],
        views: Sequence[GpuArray],
        multiply: ListProduct,
        needs_same_distances: bool,
        asked: str | None = None,
    ) -> None:
        """Let ``multiply`` multiply later lists that are similar to ``a`` and ``b``, if the same precision is
        ``asked``. With ``needs_same_distances``, only lists whose matrices have the same distances in memory count as
        similar."""
        if self._reader is None:
            self._reader = ListReader(self._interface)
        data = self._reader.read(a, b)
        if data is None or not self._reader.agrees(data, views):
            return
        if len(self._known) >= self.MOST:
            self._known.clear()
        addresses = np.frombuffer(data, np.int64, len(views))
        filled = np.flatnonzero([math.prod(view.shape) for view in views])
        if not filled.size:
            return
        between = addresses[filled] - addresses[filled[0]] if needs_same_distances else None
        key = asked, data[addresses.nbytes :]
        others = [each for each in self._known.get(key, ()) if each.distances is not None]
        self._known[key] = [
            *others[1 - self.MOST_WAYS :],
            _KnownLists(between, not _are_equal_distances(addresses), filled, multiply),
        ]
        short_ways[list] = self.products
