"""Random products on a GPU for ``random_gpu_products.py``: dtypes, shapes, layouts, what is asked of ``tilewright.matmul``,
and how far each element of the result may be from the product in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Multiply-adds and elements of a product at most.
MOST, MOST_ELEMENTS = 1e9, 2e7
#: The largest error of one rounding to a dtype, as a factor of the number.
ROUNDING = {
    "bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53, "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """Products that are multiplied alike: dtypes of ``a`` and of ``b``, of which one is drawn each time, how often they are
    drawn, and what is asked of ``matmul``.

    The error of an element is at most ``once`` + k · ``each`` times that of |A|·|B|, and one rounding to the dtype of the
    result: by default ``made``, else one of ``outs``. An epilogue makes one of ``finished``, if any.
    """

    of_a: tuple[str, ...]
    of_b: tuple[str, ...]
    weight: int
    made: str
    each: float
    once: float = 0.0
    asked: dict[str, str] = field(default_factory=dict)
    outs: tuple[str, ...] = ()
    finished: tuple[str, ...] = ("float32", "bfloat16", "float16")


_HALF, _BYTES = ("float32", "bfloat16", "float16"), ("float8_e4m3fn", "float8_e5m2")
_OF_INT8 = ("int32", "float32", "bfloat16")
_SUMS, _WIDE = 2.0**-24, 2.0**-52  # the reference is rounded itself: for float64 its own error counts as well
#: By name. A tensor core keeps 13 bits of a sum of 32 products of float8, and 10 of the bits of an operand of TF32.
KINDS = {
    "bfloat16": Kind(("bfloat16",), ("bfloat16",), 5, "bfloat16", _SUMS, outs=("float32", "float16")),
    "float16": Kind(("float16",), ("float16",), 4, "float16", _SUMS, outs=("float32", "bfloat16")),
    "float32": Kind(("float32",), ("float32",), 5, "float32", _SUMS, outs=_HALF, finished=_HALF),
    "float64": Kind(("float64",), ("float64",), 3, "float64", _WIDE, outs=("float32",), finished=("float64",)),
    "tf32": Kind(("float32",), ("float32",), 2, "float32", 2.0**-23, 2.0**-10, {"precision": "tf32"}),
    "highest": Kind(_HALF, _HALF, 1, "", _WIDE, asked={"precision": "highest"}, finished=()),
    "float8": Kind(_BYTES, _BYTES, 3, "bfloat16", 2.0**-24, 2.0**-10, outs=_HALF),
    "float8 fast": Kind(_BYTES, _BYTES, 2, "bfloat16", 2.0**-17, 2.0**-12, {"precision": "fast"}, _HALF),
    "int8": Kind(("int8",), ("int8",), 3, "int8", 0.0, outs=_OF_INT8, finished=_OF_INT8[1:]),
    "complex64": Kind(("complex64",), ("complex64",), 2, "complex64", 3 * _SUMS, finished=()),
    "complex128": Kind(("complex128",), ("complex128",), 2, "complex128", 3 * _WIDE, finished=()),
    "mixed": Kind(_HALF, ("float32", "float64"), 1, "", _SUMS, finished=()),
}


@dataclass
class Product:
    """A product to be computed: operands, or lists of them, the keywords of ``matmul``, and ``out`` with what lies around it
    (``frame``) and with its values ``before``."""

    kind: Kind
    a: Any
    b: Any
    keywords: dict[str, Any]
    out: Any = None
    frame: Any = None
    before: Any = None

    left: int = 0

    def again(self) -> None:
        """Give ``out`` its values back."""
        if self.out is not None:
            self.out.copy_(self.before)

    def intact(self) -> Any:
        """Whether nothing around ``out`` has changed, as a tensor."""
        marks = self.frame.clone()
        marks[..., 1 : 1 + self.out.shape[-2], self.left : self.left + self.out.shape[-1]] = 7
        return (marks == 7).all()


def draw(rng: np.random.Generator, choices: Any) -> Any:
    """One of them."""
    return choices[int(rng.integers(len(choices)))]


# ---- shapes and layouts ----------------------------------------------------------------------------------------------


def sizes(rng: np.random.Generator) -> tuple[tuple[int, ...], int, int, int]:
    """A batch, m, n and k: on a logarithmic scale, with sizes next to tiles, and now and then with empty ones."""
    while True:
        m, n, k = (int(2 ** rng.uniform(0, top)) for top in rng.permuted([13, 11, draw(rng, [9, 17])]))
        if rng.random() < 0.3:
            m, n, k = (max(1, round(x / 64) * 64 + int(rng.integers(-1, 2))) for x in (m, n, k))
        if rng.random() < 0.02:
            m, n, k = (x * int(rng.random() < 0.6) for x in (m, n, k))
        batch = tuple(int(x) for x in rng.integers(1, 5, draw(rng, [0, 0, 0, 1, 1, 2])))
        count = int(np.prod(batch))
        if rng.random() < 0.03:
            batch, m, n, k, count = (int(rng.integers(100, 3000)),), *(x % 33 for x in (m, n, k)), 3000
        if m * n * k * count <= MOST and (m * k + k * n + m * n) * count < MOST_ELEMENTS:
            return batch, m, n, k


class Maker:
    """Makes tensors of random numbers on the GPU."""

    def __init__(self, torch: Any, rng: np.random.Generator, seed: int, device: str = "cuda") -> None:
        self.torch, self.rng, self.device = torch, rng, device
        self.generator = torch.Generator(device).manual_seed(seed)

    def numbers(self, shape: Any, dtype: str) -> Any:
        """Uniform from -1 to 1; all numbers of int8."""
        torch, how = self.torch, {"device": self.device, "generator": self.generator}
        kind = getattr(torch, dtype)
        if dtype == "int8":
            return torch.randint(-128, 128, tuple(shape), dtype=kind, **how)
        wide = torch.float64 if dtype in ("float64", "complex128") else torch.float32
        parts = [torch.rand(tuple(shape), dtype=wide, **how) * 2 - 1 for _ in range(1 + dtype.startswith("complex"))]
        return torch.complex(*parts) if len(parts) > 1 else parts[0].to(kind)

    def laid(self, shape: Any, dtype: str) -> Any:
        """A tensor in a random layout."""
        rng, (*outer, rows, columns) = self.rng, shape
        way = draw(rng, ["rows", "rows", "rows", "columns", "columns", "wider", "taller", "offset", "gaps"])
        if way == "columns":
            return self.laid((*outer, columns, rows), dtype).transpose(-1, -2)
        wide = [*outer, rows, columns]
        left = top = 0
        if way in ("wider", "offset"):
            left, wide[-1] = int(rng.integers(0, 9)), columns + int(rng.integers(8, 20))
        if way == "taller":
            top, wide[-2] = int(rng.integers(0, 3)), rows + 3
        if way == "gaps":
            wide[-1] = 2 * columns
        x = self.numbers(wide, dtype)
        x = x[..., top : top + rows, ::2] if way == "gaps" else x[..., top : top + rows, left : left + columns]
        if outer and rng.random() < 0.15:
            x = x[:1].expand(outer[0], *x.shape[1:])
        return x.conj() if dtype.startswith("complex") and rng.random() < 0.1 else x

    def product(self, kind: Kind) -> Product:
        """A random product of that kind."""
        rng = self.rng
        of_a, of_b = draw(rng, kind.of_a), draw(rng, kind.of_b)
        keywords: dict[str, Any] = dict(kind.asked)
        form = rng.random()
        if kind.outs and rng.random() < 0.25:
            keywords["out_dtype"] = draw(rng, kind.outs)
        if form < 0.08:
            return Product(kind, *self._lists(of_a, of_b), keywords)
        batch, m, n, k = sizes(rng)
        if form < 0.12 and m and n:
            a, b = self.laid((m, k), of_a), self.laid((k, n), of_b)
            a, b = (a[0], b) if rng.random() < 0.5 else (a, b[:, 0])
            return Product(kind, a, b, keywords)
        a = self.laid((*batch, m, k), of_a)
        b = self.laid((*(batch if rng.random() < 0.7 else ()), k, n), of_b)
        made = Product(kind, a, b, keywords)
        finishes = bool(kind.finished) and form < 0.3
        if finishes and keywords.get("out_dtype", kind.made) not in kind.finished:
            keywords["out_dtype"] = draw(rng, kind.finished)
        name = keywords.get("out_dtype", kind.made) or made_dtype(self.torch, kind, a, b)
        if rng.random() < 0.3:
            made.left = int(rng.integers(0, 9))
            made.frame = self.torch.full((*batch, m + 2, n + 9), 7, device=self.device, dtype=getattr(self.torch, name))
            made.out = made.frame[..., 1 : m + 1, made.left : made.left + n]
            made.out.copy_(self.numbers(made.out.shape, name if name != "int32" else "int8"))
            made.before = made.out.clone()
        if finishes:
            self._epilogue(made, m, n)
        return made

    def _epilogue(self, made: Product, m: int, n: int) -> None:
        rng, given = self.rng, made.keywords
        if rng.random() < 0.5:
            given["alpha"] = float(rng.uniform(-2, 2))
        if made.out is not None and rng.random() < 0.5:
            given["beta"] = float(rng.uniform(-2, 2))
        if rng.random() < 0.5:
            given["bias"] = self.laid((1, n), draw(rng, ["float32", "bfloat16", "float16"]))[0]
        if rng.random() < 0.3:
            given["activation"] = draw(rng, ["relu", "gelu", "silu"])
        for name, size in (("scale_a", m), ("scale_b", n)):
            if rng.random() < 0.3:
                given[name] = self.numbers((size if rng.random() < 0.7 else 1,), "float32")

    def _lists(self, of_a: str, of_b: str) -> tuple[list[Any], list[Any]]:
        """Lists of matrices: of a batch, of rows that follow each other, or of any shapes."""
        rng, count = self.rng, int(self.rng.integers(1, 7))
        m, n, k = (int(2 ** rng.uniform(2, 8)) for _ in range(3))
        if rng.random() < 0.5:
            m, n, k = (-(-x // 16) * 16 for x in (m, n, k))
        way = draw(rng, ["batch", "split", "any"])
        if way == "batch":
            return list(self.laid((count, m, k), of_a)), list(self.laid((count, k, n), of_b))
        rows = [int(x) for x in rng.integers(0, m + 1, count)]
        if way == "split":
            return list(self.numbers((sum(rows), k), of_a).split(rows)), list(self.numbers((count, k, n), of_b))
        return [self.laid((each, k), of_a) for each in rows], [self.laid((k, n), of_b) for _ in rows]


def made_dtype(torch: Any, kind: Kind, a: Any, b: Any) -> str:
    """The dtype that a product must have if none is asked for."""
    return kind.made or str(torch.promote_types(a.dtype, b.dtype)).removeprefix("torch.")


# ---- what is right ---------------------------------------------------------------------------------------------------


def worst(torch: Any, made: Product, a: Any, b: Any, c: Any) -> Any:
    """The largest error of an element of ``c`` over its bound, as a tensor; infinite where shape or dtype are wrong."""
    kind, given = made.kind, made.keywords
    name = given.get("out_dtype") or made_dtype(torch, kind, a, b)
    wide = torch.complex128 if name.startswith("complex") else torch.float64
    x, y = a.to(wide), b.to(wide)
    exact, sums = x @ y, x.abs() @ y.abs()
    if tuple(c.shape) != tuple(exact.shape) or c.dtype is not getattr(torch, name):
        return torch.tensor(torch.inf, dtype=torch.float64, device=exact.device)
    if not c.numel():
        return torch.zeros((), dtype=torch.float64, device=exact.device)
    each = 2.0**-52 if made_dtype(torch, kind, a, b) == "float64" else kind.each
    bound = (kind.once + (a.shape[-1] + 2) * each) * sums
    if name in ("int8", "int32"):  # modulo the size of the type
        span = 2.0**8 if name == "int8" else 2.0**32
        return torch.where((torch.remainder(c.double() - exact, span) != 0).any(), torch.inf, 0.0).double()
    exact, bound = _finished(torch, made, exact, bound)
    once = ROUNDING[name]
    bound = bound * (1 + once) + once * exact.abs() + torch.finfo(c.dtype).tiny * torch.finfo(c.dtype).eps
    return ((c.to(wide) - exact).abs() / bound).amax()


def _finished(torch: Any, made: Product, exact: Any, bound: Any) -> tuple[Any, Any]:
    """The result and its bound after the epilogue, whose own roundings are a few of float32's, or of float64's."""
    given = made.keywords
    if not given.keys() - {"precision", "out_dtype"}:
        return exact, bound
    unit = 4 * (2.0**-52 if made.kind.made == "float64" else 2.0**-24)
    factor = torch.full((), given.get("alpha", 1.0), dtype=torch.float64, device=exact.device)
    if "scale_a" in given:
        factor = factor * given["scale_a"].double()[:, None]
    if "scale_b" in given:
        factor = factor * given["scale_b"].double()
    exact, bound = exact * factor, bound * factor.abs()
    sizes = exact.abs()
    if "beta" in given:
        added = given["beta"] * made.before.double()
        exact, sizes = exact + added, sizes + added.abs()
    if "bias" in given:
        exact, sizes = exact + given["bias"].double(), sizes + given["bias"].double().abs()
    bound = bound + unit * sizes
    function = given.get("activation")
    if function is None:
        return exact, bound
    activated = getattr(torch.nn.functional, function)(exact)
    return activated, 1.2 * bound + 2 * unit * exact.abs()  # the steepest slope is 1.13
