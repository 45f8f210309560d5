"""``einsum`` and what is like it, beside NumPy's: values, dtypes, errors, plans, and the memory that they take."""

from __future__ import annotations

import gc
import itertools
import math
import tracemalloc
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

import tilewright as tw
from tilewright.api import contraction, contraction_plan
from tilewright.cpu import contraction as on_cpu
from tilewright.cpu import permuted_copy, prediction
from tilewright.cpu.permuted_copy import copy_permuted
from tilewright.cpu.runtime import runner
from tilewright.errors import (
    DTypeError,
    MemoryLimitError,
    OperandError,
    ReadOnlyError,
    ShapeError,
    UsageError,
)
from tilewright.product import contraction as description

SIZES = dict(zip("abcdefghijklm", (3, 4, 5, 2, 6, 3, 4, 5, 3, 6, 2, 4, 1), strict=True))

#: Subscripts in NumPy's syntax; "..." stands for axes a, b.
CASES = [
    *("ij,jk->ik", "ij,jk", "ij,jk->ki", "ji,jk->ik", "ij,kj", "ij,kj->ki", "ba,cb", " i j , j k -> i k ", "i,i"),
    *("i,i->", "i,j", "i,j->ji", "i,i->i", "ij,ij->ij", "ij,ji->ij", "ij,ij->", "ij,ji->", "ij,i->ij", "ij,j->i"),
    *("ii", "ii->i", "ij->ji", "ij->", "ij->j", "ijk->kij", "iij->j", "iij->ij", "iii->i", "iii", "i->i", "i->"),
    *("ijij->ij", "bij,bjk->bik", "bij,bjk->ibk", "bij,bjk->ikb", "ijb,jbk->bki", "bij,bj->bi", "bi,bi->b"),
    *("abij,abjk->abik", "bi,bj->bij", "...ij,...jk->...ik", "...ij,jk->...ik", "ij,...jk->...ik"),
    *("i...,i...->...", "...,...->...", "...i->...", "...", "i...->i...", "...ij,...jk", "c...d,d...->...c"),
    *("...,", ",...", ",", "i,->i", ",i->", "ij,->ji", "abc-acd-db", "abcd-aebf-dfce", "abcd-aebf-fdec"),
    *("abcd-eafd-fbec", "abcd-ebad-ce", "ab-acd-dbc", "abcdef-dega-gfbc", "iij,jk->ik", "ij,jj->i", "ij,jkk->ik"),
    *("iji,j->i", "iik,kk->i", "ab,cd->ad", "ab,cd->", "abc,cbd->d", "abc,cab->b", "ab,ab->ba", "ij,jk,kl->il"),
    *("ij,jk,kl,li->", "ij,jk,kl,lm->im", "ijk,kjl,lm,mi->", "i,i,i->i", "i,i,i->", "ij,ij,jk->ik", "a,b,c->cab"),
    *("ij,ij,ij->ij", "ij,j,i->", "ai,bi,ci->abc", "ia,ib,ic->abc", "ijm,jkm,kl->mil", "im,mj->ij"),
    *("a,ab,abc->abc", ",,->"),
]  # fmt: skip
DTYPES = ["float64", "float32", "complex64", "complex128", "int64", "int8", "uint16", "bool", "float16"]


def subscripts_of(case: str) -> str:
    """A case of the table as NumPy writes it; those of TCCG have the result first."""
    result, _, others = case.partition("-") if "-" in case and "->" not in case else ("", "", "")
    return f"{others.replace('-', ',')}->{result}" if others else case


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype).kind
    if kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if kind == "b":
        return rng.random(shape) < 0.4
    x = rng.uniform(-1, 1, (2, *shape))
    return np.asarray(x[0] + 1j * x[1] if kind == "c" else x[0]).astype(dtype)


def operands_of(text: str, dtype: str = "float64", sizes: dict[str, int] = SIZES) -> list[np.ndarray]:
    terms = "".join(text.split()).partition("->")[0].split(",")
    shapes = [tuple(sizes[label] for label in term.replace("...", "ab")) for term in terms]
    return [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def check(result: Any, text: Any, operands: list[np.ndarray], precision: str | float = "standard") -> None:
    """The result has NumPy's type, dtype and shape; integers are equal, and others within the classical bound: an element
    is a sum of at most as many products as there are combinations of indices, each rounded once for each operand."""
    arguments = [text, *operands] if isinstance(text, str) else text(operands)
    expected = np.einsum(*arguments)
    assert (type(result), np.shape(result)) == (type(expected), np.shape(expected))
    assert result.dtype == expected.dtype
    if expected.dtype.kind in "biuO":
        np.testing.assert_array_equal(result, expected)
        return
    wide = [x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble) for x in operands]
    sizes = [abs(x).astype(np.longdouble) for x in operands]
    exact, limit = (np.einsum(*([text, *x] if isinstance(text, str) else text(x))) for x in (wide, sizes))
    terms = math.prod(x.size for x in operands)
    unit = float(np.finfo(expected.dtype).eps) / 2
    roundings = 2 if expected.dtype == np.float16 else terms + 3 * len(operands)
    unit_of_sums = 2.0**-24 if expected.dtype == np.float16 else unit
    bound = 2 * (roundings * unit + terms * unit_of_sums) * limit + 1e-7 * (expected.dtype == np.float16)
    if precision == "highest" and expected.dtype.itemsize < 8:
        bound = 1.01 * unit * (abs(exact) + 1e-12)
    assert np.isfinite(np.asarray(result, exact.dtype)).all()
    assert (abs(np.asarray(result) - exact) <= bound + 1e-300).all()


def forget() -> None:
    """Forget every plan."""
    contraction_plan._planned.cache_clear()
    contraction_plan._with_path.cache_clear()
    contraction._short_ways.clear()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small operands are copied in pieces, looped over and shared among threads as large ones are."""
    forget()
    monkeypatch.setattr(contraction_plan, "MOST_BY_NUMPY", 0)
    monkeypatch.setattr(contraction_plan, "COPY_BYTES", 64)
    monkeypatch.setattr(contraction_plan, "ELEMENTS_PER_THREAD", 4)
    monkeypatch.setattr(contraction_plan, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(description, "LEAST_LOOPED", 2)
    monkeypatch.setattr(description, "LEAST_LOOPED_UNPACKED", 2)
    monkeypatch.setattr(on_cpu, "ELEMENTS_PER_THREAD", 4)
    monkeypatch.setattr(on_cpu, "INNER_ELEMENTS", 4)
    monkeypatch.setattr(on_cpu, "NEIGHBOURS", 2)
    monkeypatch.setattr(permuted_copy, "BYTES_PER_THREAD", 64)
    monkeypatch.setattr(permuted_copy, "MOST_LINES", 4)
    monkeypatch.setattr(permuted_copy, "BLOCK_LINES", 3)
    yield
    forget()


@pytest.fixture
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of the machine that need not be measured."""
    monkeypatch.setattr(prediction, "peak_gflops", lambda dtype, threads: 100.0 * threads)
    monkeypatch.setattr(prediction, "cache_bandwidth_gbs", lambda dtype, threads: 50.0)
    monkeypatch.setattr(prediction, "bandwidth_gbs", lambda dtype, threads: 10.0)
    monkeypatch.setattr(contraction_plan, "bandwidth_gbs", lambda threads: 10.0)


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_syntax(case: str) -> None:
    """Once as it is planned first, once by the short way, and into arrays of two layouts."""
    text = subscripts_of(case)
    operands = operands_of(text)
    for _ in range(2):
        check(tw.einsum(text, *operands), text, operands)
    shape = np.einsum(text, *operands).shape
    for out in (np.full(shape, np.nan), np.full(shape[::-1], np.nan).T, np.full((*shape, 2), np.nan)[..., 0]):
        assert tw.einsum(text, *operands, out=out) is out
        check(out if out.ndim else out[()], text, operands)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("case", CASES)
def test_every_syntax_in_pieces(case: str) -> None:
    test_every_syntax(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "text", ["abc,cad->bd", "ab,ab->a", "ab,c->cab", "ab,bc,cd->ad", "aab->b", "ab->ba", "ab,ba->"]
)
def test_every_dtype(text: str, dtype: str) -> None:
    operands = operands_of(text, dtype, SIZES | {"a": 30, "b": 20, "c": 10} if len(text) < 12 else SIZES)
    if text == "aab->b":
        operands = [numbers((30, 30, 20), dtype)]
    check(tw.einsum(text, *operands), text, operands)
    check(tw.einsum(text, *(x.astype(x.dtype.newbyteorder()) for x in operands)), text, operands)  # other byte order


@pytest.mark.parametrize(
    "dtypes", [("int8", "float32"), ("float32", "complex64"), ("int8", "uint8"), ("uint64", "int64"), ("bool", "int16")]
)
def test_dtypes_are_promoted_over_all_operands(dtypes: tuple[str, str]) -> None:
    """int8·int8·float32 does not wrap around."""
    first, second = dtypes
    operands = [numbers((5, 6), first, 1), numbers((6, 7), first, 2), numbers((7, 8), second, 3)]
    if "64" in first:
        operands = [(x % 100).astype(x.dtype) for x in operands]
    check(tw.einsum("ij,jk,kl->il", *operands), "ij,jk,kl->il", operands)
    check(tw.einsum("ij,kl->lijk", operands[0], operands[2]), "ij,kl->lijk", [operands[0], operands[2]])


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32", "bool", "float16"])
@pytest.mark.parametrize(
    "text", ["a,b->ab", "a,b->ba", "ca,b->bca", "ab,ba->", "ab,ab->", "cab,acb->", "abc->b", "ab->ba"]
)
def test_what_threads_share(text: str, dtype: str) -> None:
    """Products of elements, inner products, sums and copies that are large enough for two threads."""
    sizes = {"a": 500, "b": 600, "c": 2}
    operands = operands_of(text, dtype, sizes)
    found = []
    for threads in (1, 2):
        with tw.use_threads(threads):
            found.append(tw.einsum(text, *operands))
            check(found[-1], text, operands)
            out = np.empty((*np.shape(found[-1]), 2), operands[0].dtype)[..., 0]
            tw.einsum(text, *operands, out=out)
            check(out if out.ndim else out[()], text, operands)
    np.testing.assert_array_equal(*found)


def test_highest_precision_rounds_once() -> None:
    operands = [numbers((20, 300), "float32"), numbers((300, 30), "float32"), numbers((30, 200), "float32")]
    check(tw.einsum("ij,jk,kl->il", *operands, precision="highest"), "ij,jk,kl->il", operands, "highest")


def test_objects_and_long_double_are_numpys() -> None:
    a = np.array([[1, 2], [3, 10**30]], object)
    assert (tw.einsum("ij,jk->ik", a, a) == np.einsum("ij,jk->ik", a, a)).all()
    b = np.ones((2, 3), np.longdouble)
    assert tw.einsum("ij->ji", b).dtype == np.longdouble
    assert not np.shares_memory(tw.einsum("ij->ji", b), b)


def test_lists_of_labels() -> None:
    a, b = numbers((3, 4), "float64", 1), numbers((4, 5), "float64", 2)
    np.testing.assert_allclose(tw.einsum(a, [0, 1], b, [1, 2], [2, 0]), (a @ b).T)
    np.testing.assert_allclose(tw.einsum(a, [1, 0], b, [0, 2]), a @ b)
    np.testing.assert_allclose(tw.einsum(a, ["row", "k"], b, ["k", "column"], ["row", "column"]), a @ b)
    np.testing.assert_allclose(tw.einsum(a, [..., 7], [...]), a.sum(1))


def test_labels_of_any_script() -> None:
    a, b = numbers((3, 4), "float64", 1), numbers((4, 5), "float64", 2)
    for _ in range(2):
        np.testing.assert_allclose(tw.einsum("α1,1é->éα", a, b), (a @ b).T)
        np.testing.assert_allclose(tw.einsum("12->2", a), a.sum(0))


def test_many_operands_and_labels() -> None:
    """More labels than there are letters."""
    sublists = [[i, i + 1] for i in range(60)]
    matrices = [numbers((3, 3), "float64", i) for i in range(60)]
    found = tw.einsum(*itertools.chain(*zip(matrices, sublists, strict=True)), [0, 60])
    np.testing.assert_allclose(found, np.linalg.multi_dot(matrices), rtol=1e-8)


def test_subclasses_count_as_plain_arrays() -> None:
    m = np.ones((3, 3)).view(type("Subclass", (np.ndarray,), {}))
    assert type(tw.einsum("ij,jk->ik", m, m)) is np.ndarray
    assert type(tw.tensordot(m, m, 1)) is np.ndarray


@pytest.mark.parametrize("text", ["ij->ji", "ii->i", "ij->ij", "...->..."])
def test_the_result_is_never_a_view(text: str) -> None:
    for n in (4, 50):
        a = np.ones((n, n))
        for _ in range(2):
            found = tw.einsum(text, a)
            assert not np.shares_memory(found, a)
            assert found.flags.writeable


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,kj->ik"])
def test_out_may_overlap_the_operands(text: str) -> None:
    a = numbers((20, 20), "float64")
    expected = np.einsum(text, a, a)
    np.testing.assert_allclose(tw.einsum(text, a, a, out=a), expected)


def test_out_is_cast_by_the_same_kind_rule() -> None:
    a = numbers((20, 30), "float64")
    out = np.empty((20, 20), np.float32)
    np.testing.assert_allclose(tw.einsum("ij,kj->ik", a, a, out=out), a @ a.T, rtol=1e-5)
    with pytest.raises(DTypeError, match="same_kind"):
        tw.einsum("ij,kj->ik", a, a, out=np.empty((20, 20), int))


OUT_OF_RESULT = {
    "einsum": lambda a, b, out: tw.einsum("ij,kj->ik", a, b, out=out),
    "plan_einsum": lambda a, b, out: tw.plan_einsum("ij,kj->ik", a, b, out=out),
    "single": lambda a, b, out: tw.einsum("ij->ji", a[:, :2], out=out),
    "many": lambda a, b, out: tw.einsum("ij,kj,j->ik", a, b, b[0], out=out),
    "tensordot": lambda a, b, out: tw.tensordot(a, b.T, 1, out=out),
    "vecdot": lambda a, b, out: tw.vecdot(a[:, None], b, out),
    "matvec": lambda a, b, out: tw.matvec(np.broadcast_to(b, (2, 2, 3)), a, out),
    "vecmat": lambda a, b, out: tw.vecmat(a, np.broadcast_to(b.T, (2, 3, 2)), out),
    "multi_dot": lambda a, b, out: tw.multi_dot([a, b.T], out=out),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OF_RESULT)
@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty(2), ShapeError),
        (np.empty((2, 2, 1)), ShapeError),
        (np.empty(()), ShapeError),
        (np.empty((2, 1)), ShapeError),
        (np.empty((2, 2), bool), DTypeError),
        ([[0.0, 0.0], [0.0, 0.0]], OperandError),
        (np.broadcast_to(0.0, (2, 2)), ReadOnlyError),
    ],
)
def test_out_is_checked_before_anything_is_planned(name: str, out: Any, error: type[Exception]) -> None:
    a, b = numbers((2, 3), "float64"), numbers((2, 3), "float64", 1)
    with pytest.raises(error, match="out"):
        OUT_OF_RESULT[name](a, b, out)


@pytest.mark.parametrize("name", [name for name in OUT_OF_RESULT if name != "plan_einsum"])
def test_out_of_every_call_is_returned(name: str) -> None:
    """By position where NumPy's namesake takes it so."""
    a, b = numbers((2, 3), "float64"), numbers((2, 3), "float64", 1)
    out, again = np.full((2, 2), np.nan), np.full((2, 4), np.nan)[:, ::2]
    assert OUT_OF_RESULT[name](a, b, out) is out
    OUT_OF_RESULT[name](a, b, again)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((0, 0), (0, 0))])
def test_empty_axes(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = (np.ones(shape) for shape in shapes)
    for text in ("ij,jk->ik", "ij,jk->ki", "ij,jk->", "ij,jk->ijk"):
        check(tw.einsum(text, a, b), text, [a, b])


def test_axes_of_length_one_broadcast() -> None:
    a, b, c = numbers((2, 1), "float64"), numbers((3, 4), "float64"), numbers((1, 1), "float64")
    for text, operands in {
        "ij,jk->ik": [a, b],
        "ij,jk->ijk": [a, b],
        "ij,jk,ii->k": [a, b, c],
        "ij,jk,kk": [a, b, c],
    }.items():
        check(tw.einsum(text, *operands), text, operands)


def test_nan_and_infinity_propagate_without_a_warning() -> None:
    a = np.array([[np.nan, 1e308], [np.inf, 0]])
    for text in ("ij,jk->ik", "ij,ij->ij", "ij->i", "ij,jk,kl->il"):
        operands = [a] * len(text.partition("->")[0].split(","))
        with np.errstate(all="ignore"):
            expected = np.einsum(text, *operands)
        np.testing.assert_array_equal(np.isnan(tw.einsum(text, *operands)), np.isnan(expected))


@pytest.mark.parametrize("text", ["ab->a", "ab,ab->", "ab,ba->", "cab,acb->", "ab,a->ab", "ab,c->abc", "ab,bc->ac"])
def test_threads_give_no_warning_of_infinities(text: str) -> None:
    """Each pair of elements has the product of an infinity and zero."""
    sizes = {"a": 500, "b": 600, "c": 4}
    terms = text.partition("->")[0].split(",")
    with tw.use_threads(2):
        found = [
            tw.einsum(
                text,
                *(np.full([sizes[label] for label in term], value) for term, value in zip(terms, values, strict=False)),
            )
            for values in ((np.inf, 0.0), (1e300, 1e300))
        ]
    assert len(terms) == 1 or (np.isnan(found[0]).all() and np.isinf(found[1]).all())


# ---- random contractions -----------------------------------------------------------------------------------------------


@st.composite
def contractions(draw: st.DrawFn, most: int = 3) -> tuple[str, list[np.ndarray]]:
    """Subscripts, and operands of any strides."""
    sizes = {label: draw(st.sampled_from([1, 2, 3, 5])) for label in "abcde"}
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=most))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([label for label in used if draw(st.booleans())]))) if used else ""
    dtype = draw(st.sampled_from(["float64", "float32", "complex128", "int32", "bool"]))
    arrays = []
    for seed, term in enumerate(terms):
        x = numbers(tuple(sizes[label] for label in term), dtype, seed)
        if x.ndim and draw(st.booleans()):
            order = draw(st.permutations(range(x.ndim)))
            x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        if x.ndim and draw(st.booleans()):
            x = np.repeat(x, 2, axis=-1)[..., ::2]
        if x.ndim and draw(st.booleans()):
            x = np.ascontiguousarray(x[::-1])[::-1]
        arrays.append(x)
    return ",".join(terms) + "->" + output, arrays


@pytest.mark.usefixtures("small_limits")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contractions())
@example(("ab,ab->", [np.ones((3, 5)), np.ones((5, 3)).T]))
@example(("bc,bc->", [np.ones((2, 2)), np.ones((2, 2)).T.copy().T]))
def test_random_contractions_in_pieces(case: tuple[str, list[np.ndarray]]) -> None:
    text, operands = case
    check(tw.einsum(text, *operands), text, operands)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("memory", [100, 200, 1000])
def test_pieces_of_k_without_other_axes(memory: int) -> None:
    """Sums of pieces are added to a result without axes."""
    x, y = numbers((2, 3), "float64", 1), numbers((3, 2), "float64", 2).T
    check(tw.einsum("ab,ab->", x, y, memory=memory), "ab,ab->", [x, y])


@pytest.mark.thorough
@pytest.mark.usefixtures("small_limits")
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contractions(4), st.sampled_from([None, 200, 1000]), st.booleans())
def test_many_random_contractions(case: tuple[str, list[np.ndarray]], memory: int | None, into: bool) -> None:
    text, operands = case
    out = np.empty(np.einsum(text, *operands).shape[::-1], operands[0].dtype).T if into else None
    try:
        found = tw.einsum(text, *operands, memory=memory, out=out)
    except MemoryLimitError:
        return
    check(found if found.ndim else found[()], text, operands)


# ---- what is like einsum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ((3, 4, 5), (4, 3, 2), ([1, 0], [0, 1])), ((3, 4), (4, 5), 1), ((3, 4), (3, 4), 2), ((3, 4), (5, 2), 0),
        ((3, 4, 5), (5, 4, 3), ((0, -2), (-1, 1))), ((3,), (3,), 1), ((3, 4), (4,), (1, 0)), ((), (3,), 0),
        ((0, 3), (3, 0), 1),
        ((2, 3, 4), (3, 4, 5), 2), ((2, 3), (3, 2), ([0, 1], [1, 0])),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int16"])
def test_tensordot(a: tuple[int, ...], b: tuple[int, ...], axes: Any, dtype: str) -> None:
    x, y = numbers(a, dtype, 1), numbers(b, dtype, 2)
    expected = np.tensordot(x, y, axes)
    found = tw.tensordot(x, y, axes)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (np.shape(found), found.dtype) == (expected.shape, expected.dtype)
    out = np.empty(expected.shape, dtype)
    np.testing.assert_allclose(tw.tensordot(x, y, axes, out=out), expected, rtol=1e-5, atol=1e-6)


VECTORS = [
    ((5,), (5,)),
    ((3, 5), (5,)),
    ((5,), (2, 3, 5)),
    ((4, 1, 5), (3, 5)),
    ((2, 0), (2, 0)),
    ((40, 500), (40, 500)),
]


@pytest.mark.parametrize(("a", "b"), VECTORS)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int8", "bool"])
def test_vecdot(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    x, y = numbers(a, dtype, 1), numbers(b, dtype, 2)
    expected = np.vecdot(x, y)
    found = tw.vecdot(x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert (type(found), found.dtype) == (type(expected), expected.dtype)
    out = np.empty(expected.shape, dtype)
    np.testing.assert_allclose(tw.vecdot(x, y, out=out), expected, rtol=1e-12)


def test_vecdot_along_another_axis() -> None:
    x, y = numbers((5, 3, 4), "complex128", 1), numbers((5, 3, 4), "complex128", 2)
    for axis in (0, 1, 2, -1, -2, -3):
        np.testing.assert_allclose(tw.vecdot(x, y, axis=axis), np.vecdot(x, y, axis=axis))


@pytest.mark.parametrize(
    ("a", "x"), [((3, 5), (5,)), ((2, 3, 5), (5,)), ((3, 5), (4, 5)), ((2, 1, 3, 5), (4, 5)), ((3, 0), (0,))]
)
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int32"])
def test_matvec_and_vecmat(a: tuple[int, ...], x: tuple[int, ...], dtype: str) -> None:
    m, v = numbers(a, dtype, 1), numbers(x, dtype, 2)
    t = m.swapaxes(-1, -2)
    expected = np.einsum("...ij,...j->...i", m, v)
    np.testing.assert_allclose(tw.matvec(m, v), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tw.vecmat(v, t), np.einsum("...j,...ji->...i", v.conj(), t), rtol=1e-4, atol=1e-5)
    out = np.empty(expected.shape, dtype)
    assert tw.matvec(m, v, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    if hasattr(np, "matvec"):
        with np.errstate(invalid="ignore"):  # lanes of a vector that OpenBLAS does not store
            same = (tw.matvec(m, v), np.matvec(m, v)), (tw.vecmat(v, t), np.vecmat(v, t))
        for found, theirs in same:
            np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 4), (4, 5)], [(3, 4), (4, 5), (5, 6)], [(10, 100), (100, 5), (5, 50), (50, 2)], [(4,), (4, 5), (5, 6)],
        [(3, 4), (4, 5), (5,)], [(4,), (4, 5), (5,)], [(4,), (4,)], [(0, 4), (4, 5), (5, 2)],
    ],
)  # fmt: skip
def test_multi_dot(shapes: list[tuple[int, ...]]) -> None:
    arrays = [numbers(shape, "float64", i) for i, shape in enumerate(shapes)]
    expected = np.linalg.multi_dot(arrays)
    found = tw.multi_dot(arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert np.shape(found) == np.shape(expected)
    if np.ndim(expected):
        out = np.empty(np.shape(expected))
        assert tw.multi_dot(arrays, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def operations_of_chain(sides: tuple[int, ...], i: int, j: int, cuts: Any) -> int:
    """The fewest multiply-adds of matrices i to j, with the ``cuts`` of each stretch."""
    return min(
        (
            operations_of_chain(sides, i, c, cuts)
            + operations_of_chain(sides, c + 1, j, cuts)
            + sides[i] * sides[c + 1] * sides[j + 1]
            for c in (cuts(i, j) if i < j else ())
        ),
        default=0,
    )


def test_the_order_of_a_chain_takes_the_fewest_operations() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        sides = tuple(int(side) for side in rng.integers(1, 30, 6))
        best = contraction.chain_order(sides)
        chosen = operations_of_chain(sides, 0, 4, lambda i, j, best=best: [best[i, j]])
        assert chosen == operations_of_chain(sides, 0, 4, range)


# ---- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("ij,jk", (2, 3), (4, 5)),
            ShapeError,
            r"the label 'j' is 3 in operand 0, \(2, 3\), and 4 in operand 1, \(4, 5\)",
        ),
        (("...,...", (2, 3), (4, 3)), ShapeError, r"an axis of '\.\.\.' is 2 in operand 0"),
        (("ii", (2, 3)), ShapeError, "its axes with the label 'i', which has a diagonal, are 2 and 3 long"),
        (("ij", (2,)), ShapeError, "operand 0 has 2 labels, and 1 axes: each axis needs one; remove labels"),
        (("i", (2, 3)), ShapeError, r"each axis needs one; add '\.\.\.' for the others"),
        (("ij,jk", (2, 3)), UsageError, "are of 2 operands, got 1"),
        (("ij->ii", (2, 3)), UsageError, "'i' of the output occurs twice"),
        (("ij->k", (2, 3)), UsageError, "'k' of the output occurs in no operand"),
        (("i.j", (2, 3)), UsageError, r"'\.' cannot be a label: an ellipsis is three points"),
        (("ij->->", (2, 3)), UsageError, "one -> may precede the output"),
        (("...i...", (2, 3)), UsageError, "cannot be a label"),
        (("...i->i", (2, 3)), UsageError, r"the output needs '\.\.\.'"),
        (("i",), UsageError, "need one operand or more, got none"),
        ((), UsageError, "needs subscripts and arrays"),
    ],
)
def test_errors_of_subscripts(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    operands = [np.ones(x) if isinstance(x, tuple) else x for x in arguments]
    with pytest.raises(error, match=message):
        tw.einsum(*operands)


def test_errors_of_operands() -> None:
    a = np.ones((2, 3))
    for call, error, message in [
        (lambda: tw.einsum("i", np.array(["x"])), DTypeError, "cannot be multiplied"),
        (lambda: tw.einsum("i", np.ma.masked_array([1.0])), OperandError, "masked"),
        (lambda: tw.einsum("ij->ji", a, out=np.ones((2, 3))), ShapeError, r"out is \(2, 3\), the product is \(3, 2\)"),
        (lambda: tw.einsum("ij->ij", a, out=np.broadcast_to(1.0, (2, 3))), ReadOnlyError, "read-only"),
        (lambda: tw.einsum("ij->ij", a, out=[1]), OperandError, "out must be a numpy.ndarray"),
        (lambda: tw.einsum("ij->ij", a, precision="best"), UsageError, "precision 'best' is not known"),
        (lambda: tw.einsum("ij->ij", a, memory="much"), UsageError, "memory 'much'"),
        (lambda: tw.einsum(a, 3), UsageError, "list of labels"),
        (lambda: tw.einsum(a, [0, "x"]), UsageError, "have no order"),
        (lambda: tw.tensordot(a, a, 1), ShapeError, "equally long"),
        (lambda: tw.tensordot(a, a, 3), UsageError, "axes is 3"),
        (lambda: tw.tensordot(a, a, ([0], [0, 1])), UsageError, "the same number of axes"),
        (lambda: tw.tensordot(a, a, ([0, 0], [0, 1])), UsageError, "once"),
        (lambda: tw.tensordot(a, a, ([5], [0])), UsageError, "a has 2 axes"),
        (lambda: tw.tensordot(a, a, "x"), UsageError, "two lists of axes"),
        (lambda: tw.vecdot(a, np.ones(2)), ShapeError, "n mismatch"),
        (lambda: tw.vecdot(a, a, axis=2), UsageError, "no such axis"),
        (lambda: tw.vecdot(1.0, a), ShapeError, "1 axis or more"),
        (lambda: tw.matvec(a, np.ones(2)), ShapeError, "n mismatch"),
        (lambda: tw.matvec(np.ones(3), np.ones(3)), ShapeError, "2 axes or more"),
        (lambda: tw.vecmat(np.ones(3), a), ShapeError, "n mismatch"),
        (lambda: tw.multi_dot([a]), UsageError, "two arrays or more"),
        (lambda: tw.multi_dot([a, a]), ShapeError, "as many columns as"),
        (lambda: tw.multi_dot([a, np.ones(3), a]), ShapeError, "only the first and the last may be vectors"),
        (lambda: tw.plan_einsum("ij", (2, -1)), ShapeError, "must be at least 0"),
    ]:
        with pytest.raises(error, match=message):
            call()


# ---- plans -------------------------------------------------------------------------------------------------------------


def test_the_plan_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    a, b, c = numbers((30, 40, 20), "float64"), numbers((20, 30, 50), "float64"), numbers((50, 7), "float64")
    ran: list[Any] = []
    run = contraction_plan.ContractionPlan.run
    monkeypatch.setattr(
        contraction_plan.ContractionPlan, "run", lambda self, *rest: ran.append(self) or run(self, *rest)
    )
    tw.einsum("ijk,kil,lm->jm", a, b, c)
    assert ran == [tw.plan_einsum("ijk,kil,lm->jm", a, b, c)]


@pytest.mark.any_machine
@pytest.mark.usefixtures("known_rates")
def test_a_plan_prints_itself() -> None:
    plan = tw.plan_einsum("abc,cad->bd", np.empty((40, 50, 60), np.float32), np.empty((60, 40, 70), np.float32))
    text = str(plan)
    for part in (
        "einsum abc,cad->bd float32",
        "a 40, b 50, c 60, d 70",
        "50 × 70 × 2400 (m × n × k)",
        "copied as",
        "kernel",
    ):
        assert part in text
    assert plan.operations == 2 * 50 * 70 * 2400
    assert [str(step.subscripts) for step in plan.steps] == ["abc,cad->bd"]
    lies = str(tw.plan_einsum("abc,cd->abd", (20, 30, 400), (400, 50)))
    assert lies.count("where it lies") == 3
    assert "copied" not in lies


@pytest.mark.any_machine
@pytest.mark.usefixtures("known_rates")
def test_the_order_of_products() -> None:
    plan = tw.plan_einsum("ij,jk,kl->il", (100, 2000), (2000, 5), (5, 300))
    assert [str(step.subscripts) for step in plan.steps] == ["ij,jk->ik", "ik,kl->il"]
    assert plan.largest_intermediate == 100 * 5 * 8
    text = str(plan)
    assert "path" in text
    assert "intermediate result 3.9 KiB" in text
    assert "predicted" in text
    assert tw.plan_einsum("ab,ba->", (1000, 1000), (1000, 1000)).predicted_s == pytest.approx(
        32e6 / 10e9
    )  # read, copied


@pytest.mark.parametrize(
    ("path", "pairs"),
    [
        ([(0, 1), (0, 1), (0, 1)], ((0, 1), (0, 1), (0, 1))),
        (["einsum_path", (2, 3), (0, 2), (0, 1)], ((2, 3), (0, 2), (0, 1))),
        ([(1, 2), (0, 1, 2)], ((1, 2), (0, 1), (0, 1))),
        ([(0, 1, 2, 3)], ((0, 1), (0, 1), (0, 1))),
        ([(1,), (0, 3), (0, 1), (0, 1)], ((0, 1), (0, 1), (0, 1))),
    ],
)
def test_an_order_of_products_is_taken(path: list[Any], pairs: tuple[tuple[int, int], ...]) -> None:
    operands = [numbers(shape, "float64") for shape in [(2, 3), (3, 4), (4, 5), (5, 6)]]
    found = tw.plan_einsum("ij,jk,kl,lm->im", *operands, optimize=path)
    assert found.path == pairs
    assert "optimize" in str(found)
    expected = np.einsum("ij,jk,kl,lm->im", *operands, optimize=True)
    np.testing.assert_allclose(tw.einsum("ij,jk,kl,lm->im", *operands, optimize=path), expected)
    np.testing.assert_allclose(tw.einsum("ij,jk,kl,lm->im", *operands, optimize=path, memory=1000), expected)


@pytest.mark.parametrize("optimize", [True, False, "greedy", "optimal", ("greedy", 1e6), ["optimal", 10]])
def test_numpys_optimizers_leave_the_order_to_the_plan(optimize: Any) -> None:
    operands = [numbers(shape, "float64") for shape in [(2, 3), (3, 4), (4, 5)]]
    assert tw.plan_einsum("ij,jk,kl", *operands, optimize=optimize).path == tw.plan_einsum("ij,jk,kl", *operands).path
    found = tw.einsum("ij,jk,kl", *operands, optimize=optimize)
    np.testing.assert_array_equal(found, tw.einsum("ij,jk,kl", *operands))


@pytest.mark.parametrize(
    "path", [[(0, 3)], [(0, 0)], [(0, 1), (0, 2)], [(0, 1)], [], [(-1, 0)], [("a", "b")], 7, [0, 1]]
)
def test_wrong_paths_are_refused(path: Any) -> None:
    with pytest.raises(UsageError, match="optimize"):
        tw.einsum("ij,jk,kl", np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5)), optimize=path)


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("text", "shapes", "rows"),
    [
        (
            "cdab,eab->ced",
            [(51, 52, 61, 40), (46, 61, 40)],
            "cd",
        ),  # the columns would be packed, transposed, for 46 rows
        ("eab,cdab->ced", [(46, 61, 40), (51, 52, 61, 40)], "cd"),
        ("ab,bc->ac", [(300, 200), (200, 400)], "a"),  # a copy of the result counts more than packing
        ("ab,bc->ca", [(300, 200), (200, 300)], "c"),
        ("ai,bi->iab", [(300, 40), (20, 40)], "a"),
    ],
)
def test_the_long_side_has_the_rows_where_that_saves_packing(
    text: str, shapes: list[tuple[int, ...]], rows: str
) -> None:
    operands = [numbers(shape, "float64", number) for number, shape in enumerate(shapes)]
    assert tw.plan_einsum(text, *operands).steps[0].layout.m == rows


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("text", "shapes", "looped"),
    [
        ("cab,ad->dcb", [(154, 176, 119), (176, 94)], "c"),
        ("bac,da->cdb", [(168, 90, 132), (150, 90)], "b"),  # not c, whose indices are neighbours
        ("cab,ad->dcb", [(154, 176, 40), (176, 94)], ""),  # few columns: a copy takes less time
    ],
)
def test_small_products_are_looped_over_an_outer_axis(text: str, shapes: list[tuple[int, ...]], looped: str) -> None:
    operands = [numbers(shape, "float64", number) for number, shape in enumerate(shapes)]
    layout = tw.plan_einsum(text, *operands).steps[0].layout
    assert layout.m[: layout.looped_m] + layout.n[: layout.looped_n] == looped
    assert bool(layout.x_copied or layout.y_copied) == (not looped)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("cdab,eab->ced", [(51, 52, 61, 40), (46, 61, 40)]),
        ("ab,bc->ca", [(300, 200), (200, 300)]),
        ("ai,bi->iab", [(300, 40), (20, 40)]),
        ("cab,ad->dcb", [(154, 176, 119), (176, 94)]),
        ("bac,da->cdb", [(168, 90, 132), (150, 90)]),
    ],
)
def test_products_by_these_layouts(text: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [numbers(shape, "float64", number) for number, shape in enumerate(shapes)]
    right = np.einsum(text, *operands, optimize=True)
    np.testing.assert_allclose(tw.einsum(text, *operands), right, rtol=1e-9, atol=1e-9)


@pytest.mark.any_machine
def test_operands_that_lie_as_matrices_are_not_copied() -> None:
    sizes = dict(zip("abcde", (40, 30, 50, 20, 60), strict=True))
    for text in (
        "abc,cd->abd",
        "abc,cd->dab",
        "cab,cd->abd",
        "abc,bcd->ad",
        "abc,dbc->ad",
        "eab,ebc->eac",
        "abc,bd->acd",
    ):
        terms = text.partition("->")[0].split(",")
        step = tw.plan_einsum(text, *(tuple(sizes[label] for label in term) for term in terms)).steps[0]
        expected = "" if text != "abc,bd->acd" else "km"
        assert (step.layout.x_copied or step.layout.y_copied)[:1] == expected[:1], text


# ---- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["ai,bi,ci,di->abcd", "ij,jk,kl,li->", "ijk,klm,mn->ijln", "ab,bc,cd,de->ae", "iab,jab,ik->jk"]
)
def test_no_intermediate_exceeds_the_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of all new arrays that are alive at a time, counted by the interpreter, beside the workspace of kernels."""
    forget()
    sizes = dict(zip("abcdeijklmn", (12, 11, 16, 9, 20, 40, 30, 50, 20, 30, 25), strict=True))
    operands = [
        numbers(tuple(sizes[label] for label in term), "float64") for term in text.partition("->")[0].split(",")
    ]
    expected = np.einsum(text, *operands, optimize=True)
    for limit in (20_000, 60_000):
        try:
            plan = tw.plan_einsum(text, *operands, memory=limit)
        except MemoryLimitError:
            continue
        out = np.empty(np.shape(expected))
        tw.einsum(text, *operands, memory=limit, out=out)  # plans and workspace are there from now on
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)
        # The interpreter keeps up to 2,000 freed tuples of each length, of which a call takes some and leaves more, until a
        # collection frees them: they are memory that no contraction asked for, and after some calls there are no more.
        gc.disable()
        for _ in range(30):
            tw.einsum(text, *operands, memory=limit, out=out)
        out.fill(np.nan)
        tracemalloc.start()
        tw.einsum(text, *operands, memory=limit, out=out)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.enable()
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)
        assert most <= limit + 40_000, (limit, most, plan.slices)  # objects of Python: indices, plans, views
        assert plan.largest_intermediate <= limit


def test_too_small_a_limit_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match="memory is 8 bytes, and slices of one index of each label need"):
        tw.einsum("ij,jk,kl->il", *(np.ones((9, 9)) for _ in range(3)), memory=8)


@pytest.mark.parametrize("text", ["ij,jk,kl,lm->im", "ij,jk->ik", "ij,ij->", "aij,ajk,ki->a"])
def test_bits_do_not_depend_on_threads(text: str) -> None:
    sizes = dict(zip("aijklm", (6, 130, 140, 150, 60, 170), strict=True))
    operands = [
        numbers(tuple(sizes[label] for label in term), "float32") for term in text.partition("->")[0].split(",")
    ]
    for memory in (None, "100KiB", "1MiB"):
        found = []
        for threads in (1, 2):
            with tw.use_threads(threads):
                found.append(tw.einsum(text, *operands, memory=memory))
        np.testing.assert_array_equal(*found)


# ---- memory of results --------------------------------------------------------------------------------------------------


@pytest.fixture
def recycles_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Results of 1 KiB and more are recycled, and the cache is empty."""
    monkeypatch.setattr(runner, "LEAST_RECYCLED", 1024)
    monkeypatch.setattr(contraction_plan, "LEAST_RECYCLED", 1024)
    forget()
    runner.release_workspace()
    yield
    forget()


@pytest.mark.usefixtures("recycles_small")
@pytest.mark.parametrize("text", ["abc,bd->acd", "ab,cb->ac", "abc,dba->cd", "abc,ad->bdca"])
def test_a_large_result_is_recycled_with_its_last_reference(text: str) -> None:
    sizes = dict(zip("abcd", (12, 14, 30, 20), strict=True))
    operands = [numbers(tuple(sizes[x] for x in term), "float64") for term in text.partition("->")[0].split(",")]
    expected = np.einsum(text, *operands)
    first, second = tw.einsum(text, *operands), tw.einsum(text, *operands)
    assert not np.may_share_memory(first, second)
    place, view = first.ctypes.data, first[..., :3]
    del first
    third = tw.einsum(text, *operands)
    assert not np.may_share_memory(third, view), "a view still reads the memory"
    np.testing.assert_allclose(view, expected[..., :3], rtol=1e-12, atol=1e-12)
    del view
    again = tw.einsum(text, *operands)
    assert again.ctypes.data == place
    for found in (second, third, again):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert found.flags.writeable


@pytest.mark.usefixtures("recycles_small")
def test_a_small_array_keeps_no_large_buffer() -> None:
    large = runner.recycled_empty((100_000,), np.dtype(np.uint8))
    del large
    small = runner.recycled_empty((2000,), np.dtype(np.uint8))
    assert sum(map(len, runner._cached.values())) >= 100_000
    assert runner.recycled_empty((90_000,), np.dtype(np.uint8)).size == 90_000
    assert small.size == 2000


# ---- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_permuted_copies(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permuted_copy, "MOST_LINES", 20)
    monkeypatch.setattr(permuted_copy, "BLOCK_LINES", 7)
    monkeypatch.setattr(permuted_copy, "BYTES_PER_THREAD", 1000)
    source = numbers((5, 6, 7, 8), "float32").transpose(order)
    target = np.full(source.shape, np.nan, np.float32)
    copy_permuted(target, source)
    np.testing.assert_array_equal(target, source)
    backwards = np.full(source.shape[::-1], np.nan, np.float64).T[::-1]
    copy_permuted(backwards, source)
    np.testing.assert_array_equal(backwards, source)


# ---- wrong steps that the checks reject ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "wrong", ["a piece is left out", "a copy is not written", "a piece of k is not added", "a copy is rounded"]
)
def test_a_wrong_step_is_rejected(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "abc,cad->bd"
    operands = [numbers((3, 4, 4), "float64", 1), numbers((4, 3, 4), "float64", 2)]
    check(tw.einsum(text, *operands), text, operands)
    forget()
    pieces, copy = on_cpu.pieces_of_layout, on_cpu.copy_permuted
    if wrong == "a piece is left out":
        monkeypatch.setattr(on_cpu, "pieces_of_layout", lambda layout: list(pieces(layout))[:-1])
    elif wrong == "a copy is not written":
        monkeypatch.setattr(on_cpu, "copy_permuted", lambda target, source: target.fill(np.nan))
    elif wrong == "a piece of k is not added":
        monkeypatch.setattr(on_cpu.np, "add", lambda x, y, out=None: out)
    else:
        monkeypatch.setattr(on_cpu, "copy_permuted", lambda target, source: copy(target, source.astype(np.float32)))
    with pytest.raises((AssertionError, ValueError)):
        check(tw.einsum(text, *operands), text, operands)
