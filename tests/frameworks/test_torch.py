"""``tilewright.torch`` on PyTorch's tensors in the host's memory: numbers, gradients, tracing, transformations, autocast."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import DTypeError, OperandError, ShapeError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tilewright[torch]'")

import tilewright.torch as tt  # noqa: E402
from tilewright.gpu.arrays.libraries import Torch, TorchFunctions  # noqa: E402

SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 3)), ((3, 0), (0, 2)),
]  # fmt: skip


def tensor(*shape: int, dtype: Any = torch.float64, seed: int = 1, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(options.get("grad", False))


def test_a_number_as_precision() -> None:
    """Also where PyTorch passes it on: to a gradient, and to compiled code."""
    a = torch.rand(500, 490, dtype=torch.float64, requires_grad=True)
    b = torch.rand(490, 480, dtype=torch.float64)
    for function in (tt.matmul, compiled(tt.matmul)):
        c = function(a, b, precision=1e-3)
        (gradient,) = torch.autograd.grad(c.sum(), a)
        torch.testing.assert_close(gradient, b.sum(1).expand_as(a), rtol=1e-3, atol=0)
        torch.testing.assert_close(c.detach(), (a @ b).detach(), rtol=1e-3, atol=0)
        assert (c.detach() != (a @ b).detach()).any(), "it is computed in float32"


@pytest.mark.parametrize("dtype", [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int32, torch.bool,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("precision", ["standard", "highest"])
def test_every_dtype(dtype: Any, precision: str) -> None:
    a, b = ((tensor(*shape, dtype=torch.float32, seed=i) * 4).to(dtype) for i, shape in enumerate([(9, 40), (40, 7)]))
    c = tt.matmul(a, b, precision=precision)
    assert (type(c), c.dtype, c.shape) == (torch.Tensor, dtype, (9, 7))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = a.to(wide) @ b.to(wide)
    exact = exact != 0 if dtype is torch.bool else exact.to(dtype)
    if precision == "highest" and dtype is not wide:
        assert torch.equal(c, exact)
    else:
        torch.testing.assert_close(c, exact)


def test_dtypes_promote() -> None:
    a, b = tensor(3, 4, dtype=torch.bfloat16, grad=True), tensor(4, 2, dtype=torch.float64, grad=True)
    c = tt.matmul(a, b)
    c.sum().backward()
    assert (c.dtype, a.grad.dtype, b.grad.dtype) == (torch.float64, torch.bfloat16, torch.float64)


def test_views_that_negate_or_conjugate() -> None:
    a, b = tensor(3, 4, dtype=torch.complex128), tensor(4, 5, dtype=torch.complex128)
    torch.testing.assert_close(tt.matmul(a.conj(), b), a.conj() @ b)
    torch.testing.assert_close(tt.matmul(a.conj().imag, b.imag), a.conj().imag @ b.imag)


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients_of_every_shape(shapes: Any) -> None:
    """Ours, ours of gradients, and the operator's, against differences and against PyTorch's."""
    a, b = (tensor(*shape, seed=i, grad=True) for i, shape in enumerate(shapes))
    assert torch.autograd.gradcheck(tt.matmul, (a, b))
    assert torch.autograd.gradgradcheck(tt.matmul, (a, b))
    weights = tensor(*(a @ b).shape, seed=5)
    expected = torch.autograd.grad((a @ b * weights).sum(), (a, b))
    for call in (tt.matmul, torch.ops.tilewright.matmul):
        for found, right in zip(torch.autograd.grad((call(a, b) * weights).sum(), (a, b)), expected, strict=True):
            torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex128], ids=str)
def test_gradients_of_every_dtype(dtype: Any) -> None:
    a, b = tensor(2, 3, 4, dtype=dtype, grad=True), tensor(4, 5, dtype=dtype, grad=True)
    weights = tensor(2, 3, 5, dtype=dtype, seed=3)
    found, expected = (torch.autograd.grad(call(a, b), (a, b), weights) for call in (tt.matmul, torch.matmul))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one, other)


def test_forward_differentiation() -> None:
    a, b, da = tensor(3, 4), tensor(4, 5, seed=2), tensor(3, 4, seed=3)
    c, dc = torch.func.jvp(lambda x: tt.matmul(x, b), (a,), (da,))
    torch.testing.assert_close((c, dc), (a @ b, da @ b))
    with torch.autograd.forward_ad.dual_level():
        dual = tt.matmul(a, torch.autograd.forward_ad.make_dual(b, b))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, a @ b)


def test_tensors_with_tangents_are_known_to_have_them() -> None:
    """On a GPU such a product is recorded; where it cannot be, the tensor is refused."""
    a, library = tensor(3, 4), Torch(torch)
    forward, functions = torch.autograd.forward_ad, TorchFunctions(torch)
    holder, name, usual = functions.state
    assert getattr(holder, name) is usual
    with forward.dual_level():
        dual = forward.make_dual(a, a)
        assert getattr(holder, name) is not usual
        assert functions.has_tangents()
        assert functions.key(dual, a) is None
        assert library.records(dual)
        with pytest.raises(OperandError, match=r"a has a tangent.*tilewright\.torch\.matmul"):
            library.view(dual, "a")
        assert library.view(a, "a").shape == (3, 4), "it has none"
    assert getattr(holder, name) is usual
    assert not functions.has_tangents()


def test_nothing_is_kept_that_no_gradient_needs() -> None:
    a, b = tensor(3, 4, grad=True), tensor(4, 5)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        tt.matmul(a, b)
    assert [x.data_ptr() for x in kept] == [b.data_ptr()], "a frozen weight needs no activations"


@pytest.mark.parametrize("shapes", [((7, 3, 4), (7, 4, 5)), ((7, 4), (7, 4, 5)), ((7, 3, 4), (7, 4)), ((7, 4), (7, 4))])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_mapped(shapes: Any, axes: Any) -> None:
    a, b = (tensor(*shape, seed=i) for i, shape in enumerate(shapes))
    a, b = (x[0] if axis is None else x for x, axis in zip((a, b), axes, strict=True))
    torch.testing.assert_close(torch.vmap(tt.matmul, axes)(a, b), torch.vmap(torch.matmul, axes)(a, b))


def test_gradients_of_each_sample() -> None:
    def loss(multiply: Any, w: Any, x: Any) -> Any:
        return multiply(x, w).square().sum()

    w, x = tensor(4, 2), tensor(6, 3, 4, seed=2)
    found, right = (
        torch.vmap(torch.func.grad(lambda w, x, call=call: loss(call, w, x)), (None, 0))(w, x)
        for call in (tt.matmul, torch.matmul)
    )
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,), (0, 4)], ids=str)
@pytest.mark.parametrize("frozen", [(), ("bias",), ("weight",), ("input",), ("weight", "input")], ids=str)
def test_gradients_of_a_layer_with_a_bias(shape: Any, frozen: tuple[str, ...]) -> None:
    given = {"input": tensor(*shape), "weight": tensor(3, 4, seed=2), "bias": tensor(3, seed=3)}
    weights = tensor(*shape[:-1], 3, seed=4)
    found = []
    for layer in (tt.Linear(4, 3, dtype=torch.float64), torch.nn.Linear(4, 3, dtype=torch.float64)):
        leaves = {name: x.clone().requires_grad_(name not in frozen) for name, x in given.items()}
        parameters = {name: leaves[name] for name in ("weight", "bias")}
        c = torch.func.functional_call(layer, parameters, leaves["input"])
        (c * weights).sum().backward()
        found.append([c, *(x.grad for x in leaves.values() if x.requires_grad)])
    for one, right in zip(*found, strict=True):
        torch.testing.assert_close(one, right)


def test_a_bias_is_mapped_and_has_a_tangent_and_second_gradients() -> None:
    ours, theirs = tt.Linear(4, 3, dtype=torch.float64), torch.nn.Linear(4, 3, dtype=torch.float64)
    x, weights, biases = tensor(6, 5, 4), tensor(6, 3, 4, seed=2), tensor(6, 3, seed=3)

    def call(layer: Any) -> Any:
        return lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, x)

    for function in (torch.vmap, lambda f: lambda *args: torch.func.jvp(lambda x, w, b: f(x, w[0], b[0]), args, args)):
        torch.testing.assert_close(function(call(ours))(x, weights, biases), function(call(theirs))(x, weights, biases))
    operands = [value.requires_grad_() for value in (x[0], weights[0].detach(), biases[0].detach())]
    assert torch.autograd.gradgradcheck(call(ours), operands)


# ---- the operator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4,))], ids=str)
def test_the_operator_keeps_the_rules_of_pytorch(shapes: Any) -> None:
    a, b = (tensor(*shape, grad=True) for shape in shapes)
    bias = tensor(*b.shape[1:], grad=True)
    plain, biased = (a, b), (a, b, "standard", bias)
    for operator, operands in (
        ("matmul", plain),
        ("matmul", biased),
        ("product", (a.detach(), b.detach())),
        ("product", (a.detach(), b.detach(), "standard", bias.detach())),
    ):
        done = torch.library.opcheck(getattr(torch.ops.tilewright, operator).default, operands)
        assert set(done.values()) == {"SUCCESS"}


def compiled(function: Any, **options: Any) -> Any:
    """Traced by PyTorch, forward and backward, with no break in the graph; the generation of code is left out."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def test_a_compiled_product_has_its_gradients() -> None:
    found = compiled(lambda a, b: tt.matmul(a, b.mT).relu(), dynamic=True)
    for n in (3, 5):
        a, b = tensor(2, n, 4, grad=True), tensor(6, 4, grad=True)
        got = torch.autograd.grad(found(a, b).sum(), (a, b))
        torch.testing.assert_close(got, torch.autograd.grad((a @ b.mT).relu().sum(), (a, b)))


@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_layer_is_three_products_and_copies_no_weight(bias: bool) -> None:
    """The graphs after differentiation: one product forward, two backward, and nothing that moves a matrix or adds."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[list[str]] = []

    def seen(graph: Any, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    layer = torch.compile(tt.Linear(6, 8, bias=bias), fullgraph=True, backend=aot_autograd(fw_compiler=seen))
    layer(tensor(4, 5, 6, dtype=torch.float32, grad=True)).sum().backward()
    assert [graph.count("tilewright.product.default") for graph in graphs] == [1, 2]
    others = {target for graph in graphs for target in graph} - {"tilewright.product.default"}
    names = ("clone.default", "copy.default", "contiguous.default", "mm.default", "add.Tensor")
    assert not others & {f"aten.{name}" for name in names}


@pytest.mark.parametrize("operator", ["matmul", "product"])
def test_compiled_code_lays_no_operand_anew(operator: str) -> None:
    """Otherwise compiled code writes an operand that is also kept for the gradient twice."""
    assert torch.Tag.flexible_layout in getattr(torch.ops.tilewright, operator).default.tags


def test_compiled_code_may_call_the_product_of_arrays() -> None:
    """Of NumPy's arrays the product is one, of tensors a tensor, compiled or not. (PyTorch takes code that it compiled for
    an array also for a tensor, so each is compiled anew.)"""
    a, b = np.eye(3), np.arange(12.0).reshape(3, 4)
    for x, y in ((a, b), (torch.from_numpy(a), torch.from_numpy(b))):
        result = compiled(lambda a, b: tw.matmul(a, b) + 1)(x, y)
        assert type(result) is type(x) is type(tw.matmul(x, y))
        np.testing.assert_array_equal(result, b + 1)


def test_compiled_code_names_the_arguments_that_it_does_not_take() -> None:
    with pytest.raises(Exception, match=r"out_dtype: inside torch.* matmul takes a, b and precision alone"):
        compiled(lambda a: tw.matmul(a, a, out_dtype="float64"))(tensor(3, 3))


def test_operations_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        tt.matmul(tensor(6, 3, 4, grad=True), tensor(4, 5)).sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 6 * 3 * 4 * 5)


def test_tensors_without_memory() -> None:
    c = tt.matmul(tensor(3, 4).to("meta"), tensor(4, 5).to("meta"))
    assert (c.device.type, c.shape) == ("meta", (3, 5))


def test_a_subclass_sees_the_product() -> None:
    class Named(torch.Tensor):
        pass

    assert type(tt.matmul(tensor(3, 4).as_subclass(Named), tensor(4, 5))) is Named


# ---- autocast and the layer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_autocast_is_that_of_pytorch(dtype: Any) -> None:
    a, b = tensor(3, 4, dtype=dtype), tensor(4, 5, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found, right = tt.matmul(a, b), torch.matmul(a, b)
        assert tw.matmul(a, b).dtype is dtype, "multiplies what it gets"
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(tt.matmul(a, b), a @ b)


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3, bias=False))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("through", ["eager", "compiled"])
def test_a_model_learns_the_same(through: str, precision: str) -> None:
    right = model()
    ours = tt.replace_linear(copy.deepcopy(right))
    assert [type(one) for one in ours] == [tt.Linear, torch.nn.GELU, tt.Linear]
    if precision == "bfloat16":
        right, ours = right.bfloat16(), ours.bfloat16()
    call = compiled(ours) if through == "compiled" else ours
    x = tensor(4, 5, 6, dtype=right[0].weight.dtype)
    for one, forward in ((right, right), (ours, call)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            assert all(p.grad.is_contiguous() and p.grad.dtype is p.dtype for p in one.parameters())
            optimizer.zero_grad()
    for name, weight in right.state_dict().items():
        tolerance = {} if precision == "float32" else {"rtol": 0.02, "atol": 0.004}
        torch.testing.assert_close(ours.state_dict()[name], weight, **tolerance)


def test_the_layer_is_made_and_stored_like_that_of_pytorch() -> None:
    first, second = torch.nn.Linear(4, 3, dtype=torch.float64), tt.Linear(4, 3, dtype=torch.float64)
    second.load_state_dict(first.state_dict())
    x = tensor(4)
    torch.testing.assert_close(second(x), first(x))
    assert isinstance(second, torch.nn.Linear)


def test_a_layer_that_computes_something_else_is_left() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, input: Any) -> Any:
            return 2 * super().forward(input)

    layers = tt.replace_linear(torch.nn.ModuleList([Doubled(2, 2), torch.nn.MultiheadAttention(4, 2)]))
    assert not any(type(layer) is tt.Linear for layer in layers.modules())


@pytest.mark.parametrize(("a", "b", "kind", "words"), [
    ((3, 4), (5, 2), ShapeError, "k mismatch"),
    ((), (5, 2), ShapeError, "scalar"),
    ((2, 3, 4), (3, 4, 5), ShapeError, "batch mismatch"),
])  # fmt: skip
def test_shapes_that_are_refused(a: Any, b: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        tt.matmul(tensor(*a), tensor(*b))


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are deprecated
        return torch.quantize_per_tensor(tensor(3, 3, dtype=torch.float32), 0.1, 0, torch.qint8)


def nested(layout: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor([torch.eye(3), torch.eye(3)], layout=layout)


#: What makes an operand, the error, and the step that it names, which makes the product possible.
REFUSED = [
    (lambda: torch.empty(3, 3, device="meta"), OperandError, "b is on meta|b on meta", None),
    (lambda: torch.eye(3).to(torch.float8_e4m3fn), DTypeError, r"pass \w\.float\(\)", lambda x: x.float()),
    (lambda: torch.eye(3).to_sparse(), OperandError, r"pass \w\.to_dense\(\)", lambda x: x.to_dense()),
    (lambda: torch.eye(3).to_mkldnn(), OperandError, r"pass \w\.to_dense\(\)", lambda x: x.to_dense()),
    (quantized, OperandError, r"pass \w\.dequantize\(\)", lambda x: x.dequantize()),
    (lambda: nested(torch.strided), OperandError, r"multiply those of \w\.unbind\(\)", lambda x: x.unbind()[0]),
    (lambda: nested(torch.jagged), OperandError, r"multiply those of \w\.unbind\(\)", lambda x: x.unbind()[0]),
    (lambda: np.eye(3, dtype="f4"), OperandError, r"is a numpy\.ndarray.*torch\.as_tensor\(\w\)", torch.as_tensor),
    (lambda: [[1.0] * 3] * 3, OperandError, r"is a list.*torch\.as_tensor\(\w\)", torch.as_tensor),
]


@pytest.mark.parametrize(("make", "error", "words", "step"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
@pytest.mark.parametrize("call", [tt.matmul, tw.matmul], ids=["torch", "api"])
@pytest.mark.parametrize("side", [0, 1], ids="ab")
def test_operands_that_are_refused_name_the_step_that_works(
    make: Any, error: Any, words: str, step: Any, call: Any, side: int
) -> None:
    def pair(x: Any) -> tuple[Any, Any]:
        return (torch.eye(3), x) if side else (x, torch.eye(3))

    x = make()
    with pytest.raises(error, match=words.replace("b is", "ab"[side] + " is")):
        call(*pair(x))
    if step is not None:
        assert torch.equal(call(*pair(step(x))), step(x))


# ---- tilewright.matmul -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_product_of_tensors_is_a_tensor(shapes: Any) -> None:
    a, b = (tensor(*shape, seed=i, grad=True) for i, shape in enumerate(shapes))
    c, right = tw.matmul(a, b), a @ b
    assert (type(c), c.dtype, c.shape) == (torch.Tensor, right.dtype, right.shape)
    torch.testing.assert_close(c, right)
    weights = tensor(*c.shape, seed=3)
    found, expected = (torch.autograd.grad((x * weights).sum(), (a, b)) for x in (c, right))
    torch.testing.assert_close(found, expected)


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations_with_replacement(DTYPES, 2)), ids=str)
def test_dtypes_promote_as_those_of_pytorch(left: Any, right: Any) -> None:
    """With and without options, each rounded once from a product that holds both."""
    a, b = torch.arange(12).reshape(3, 4).to(left), torch.arange(20).reshape(4, 5).to(right)
    expected = (a.double() @ b.double()).to(torch.promote_types(left, right))
    for c in (tw.matmul(a, b), tw.matmul(a, b, algorithm="strassen") if expected.is_floating_point() else expected):
        assert c.dtype == expected.dtype
        assert torch.equal(c, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_options_of_tensors(dtype: Any) -> None:
    a, b, bias = tensor(6, 7, seed=1).to(dtype), tensor(7, 5, seed=2).to(dtype), tensor(5, seed=3).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = a.to(wide) @ b.to(wide)
    close = {"rtol": 0.01, "atol": 0.01}
    torch.testing.assert_close(tw.matmul(a, b, alpha=2, bias=bias), (2 * exact + bias).to(dtype), **close)
    torch.testing.assert_close(tw.matmul(a, b, verify=True), exact.to(dtype), **close)
    out = torch.ones(5, 6, dtype=dtype).T
    version = out._version
    assert tw.matmul(a, b, out) is out
    torch.testing.assert_close(out, exact.to(dtype), **close)
    assert out._version > version, "a gradient that needs the old values must see that they are gone"
    torch.testing.assert_close(tw.matmul(a, b, out, alpha=2, beta=1), (3 * exact).to(dtype), **close)
    assert tw.gemm(1, a, b, -1, out) is out
    torch.testing.assert_close(out, (-2 * exact).to(dtype), **close)
    lists = tw.matmul([a, a], [b, b])
    assert [type(c) for c in lists] == [torch.Tensor] * 2


def test_out_dtype_of_tensors() -> None:
    a, b = tensor(3, 4, dtype=torch.float32), tensor(4, 5, dtype=torch.float32)
    for name in ("float64", "float16", "bfloat16"):
        for given in (name, getattr(torch, name)):
            c = tw.matmul(a, b, out_dtype=given)
            torch.testing.assert_close(c, (a.double() @ b.double()).to(getattr(torch, name)))
    counts = torch.full((2, 300), 100, dtype=torch.int8)
    assert torch.equal(
        tw.matmul(counts, counts.T, out_dtype=torch.int32), torch.full((2, 2), 3_000_000, dtype=torch.int32)
    )
    with pytest.raises(DTypeError, match="out_dtype"):
        tw.matmul(a, b, out_dtype="float7")


def test_where_no_gradient_is_recorded_a_tensor_that_needs_one_is_refused() -> None:
    a, b = tensor(3, 4, grad=True), tensor(4, 5)
    calls: list[Any] = [
        lambda: tw.matmul(a, b, torch.empty(3, 5, dtype=torch.float64)),
        lambda: tw.matmul(a, b, alpha=2),
        lambda: tw.matmul(b.T, a.detach().T, bias=tensor(3, grad=True)),
        lambda: tw.matmul(b.T, a.detach().T, tensor(5, 3, grad=True)),
        lambda: tw.gemm(1, a, b, 0, torch.empty(3, 5, dtype=torch.float64)),
    ]
    for call in calls:
        with pytest.raises(OperandError, match=r"requires grad.*pass \w+\.detach\(\)"):
            call()
        with torch.no_grad():
            call()
    with pytest.raises(OperandError, match=r"out is a numpy\.ndarray.*torch\.as_tensor\(out\)"):
        tw.matmul(b, b.T, np.empty((4, 4)))
    with pytest.raises(OperandError, match="a is a tensor on meta"):
        tw.matmul(b.to("meta"), b.T, alpha=2)


def test_the_plan_of_tensors_is_that_of_their_product() -> None:
    a, b = tensor(30, 40, dtype=torch.bfloat16, grad=True), tensor(40, 50, dtype=torch.bfloat16)
    assert tw.plan(a, b).dtype == np.float32, "products of bfloat16 are rounded by PyTorch"
    assert tw.plan(a.double(), b, out_dtype=torch.float32).compute == "float64"
    assert tw.verify(a, b, tw.matmul(a, b)).ok
    assert not tw.verify(a, b, tw.matmul(a, b) + 1).ok
