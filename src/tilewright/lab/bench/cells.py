"""What a benchmark consists of: settings, and the cells that they ask for.

A kernel is a ``Kernel`` on the CPU; on a GPU a ``CudaKernel``, or a ``Reference`` for a library. All three have the
attributes that are used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError
from ...kernels import Kernel
from ...records.bench import BenchRecord
from ...records.compare import MIN_SAMPLES
from ..inputs.distributions import distributed
from ..inputs.params import Values, check_names, param_sets, with_cached
from ..inputs.sizes import Shape

#: Returns the parameters that the tuner cached for a kernel, dtype and shape; None where there are none.
CachedParams = Callable[[Any, str, Shape], Mapping[str, int] | None]


@dataclass(frozen=True)
class Settings:
    """What to measure. The first of ``references`` is the one that R refers to; all of them get cells of their own.

    No ``dtypes`` means each kernel's own: float32 where it takes that, else the first that it takes. ``params`` are values
    to try: every combination that a kernel allows is measured. With ``tuned``, parameters without values to try have those
    that the tuner cached. Kernels of the ``engine`` are measured only in shapes that they are made for (``suits_shape``).
    """

    kernels: list[Any]
    references: list[Any]
    sizes: list[Shape]
    dtypes: list[str]
    threads: list[int]
    repeat: int = MIN_SAMPLES
    limit_s: float = 10.0
    seed: int = 1
    params: Values = field(default_factory=dict)
    tuned: bool = False
    operands: tuple[np.ndarray, np.ndarray] | None = None
    device: str = "cpu"
    engine: list[Kernel] = field(default_factory=list)
    distribution: str = ""

    def given(self, shape: Shape, dtype: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The user's matrices, or those of ``distribution``; None for uniform ones, which the bench makes itself."""
        if self.operands is None and self.distribution:
            return distributed(self.distribution, shape, "float64" if dtype == "float64" else "float32", self.seed)
        return self.operands

    def __post_init__(self) -> None:
        for name, low in (("repeat", 1), ("limit_s", 0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= low and value > 0):
                raise UsageError(f"{name.removesuffix('_s')} must be positive and finite, got {value}")
        check_names(self.params, self.kernels)
        for kernel in self.kernels:
            param_sets(kernel, self.params)  # raises before anything is measured


@dataclass(frozen=True)
class Cell:
    """One kernel with one set of parameters, one shape, one dtype, one number of threads; on a GPU, one precision."""

    kernel: Any
    shape: Shape
    dtype: str
    threads: int
    params: dict[str, Any]
    device: str = "cpu"
    precision: str = "standard"

    @property
    def flops(self) -> int:
        """2mnk, for every algorithm."""
        return 2 * math.prod(self.shape)

    @property
    def label(self) -> str:
        """The cell as a progress line names it."""
        return " ".join([self.kernel.name, self.record("ok").shape, self.dtype, *self._set])

    @property
    def _set(self) -> list[str]:
        return [f"{name}={value}" for name, value in sorted(self.params.items())]

    def record(self, verdict: str, **known: Any) -> BenchRecord:
        """The cell's identity as a record, with the fields that are known."""
        (m, n, k), kernel = self.shape, self.kernel
        tunables = {name: kernel.params[name] for name in sorted(kernel.tunable)} | self.params
        about = kernel.about | {"constants": {key: v for key, v in kernel.params.items() if key not in tunables}}
        return BenchRecord(
            kernel=kernel.name,
            device=self.device,
            m=m,
            n=n,
            k=k,
            dtype=self.dtype,
            precision=self.precision,
            threads=self.threads,
            params=tunables,
            about=about,
            verdict=verdict,
            **known,
        )

    @property
    def series(self) -> tuple[str, str, int]:
        """The curve this cell is a point of."""
        return (" ".join([self.kernel.name, *self._set]), f"{self.dtype} {self.precision}", self.threads)


@dataclass
class Outcome:
    """The result of measuring a cell; the fields are those of the record."""

    verdict: str
    reason: str = ""
    samples_s: list[float] = field(default_factory=list)
    reference_samples_s: list[float] = field(default_factory=list)
    max_abs_error: float | None = None
    error_over_bound: float | None = None
    rms_error: float | None = None


def cells(settings: Settings, cached: CachedParams = lambda kernel, dtype, shape: None) -> list[Cell]:
    """Every cell in the order of measurement, size by size, so that each size is predicted from the previous one.

    ``cached`` is what the tuner cached, for settings that are ``tuned``.
    """
    if settings.device == "cuda":
        return _device_cells(settings, cached)
    todo = []
    for shape in settings.sizes:
        for dtype in settings.dtypes:
            for threads in sorted({1, *settings.threads}):
                suited = [kernel for kernel in settings.engine if suits_shape(kernel, dtype, shape)]
                wanted = [*settings.kernels, *suited]
                chosen = [kernel for kernel in wanted if threads in _thread_counts(kernel, settings)]
                for kernel in dict.fromkeys([*chosen, *settings.references] if chosen else []):
                    for params in param_sets(kernel, settings.params):
                        todo.append(Cell(kernel, shape, dtype, threads, params))
    return todo


def _device_cells(settings: Settings, cached: CachedParams) -> list[Cell]:
    """Cells on a GPU: kernels with the dtypes that they take, libraries with the same dtypes and precisions."""
    own = {kernel: own_dtype(kernel) for kernel in settings.kernels}
    todo = []
    for shape in settings.sizes:
        for dtype in settings.dtypes or dict.fromkeys(own.values()):
            chosen = [k for k in own if (dtype in k.dtypes if settings.dtypes else dtype == own[k])]
            libraries = [library for library in settings.references if dtype in library.dtypes]
            for precision in dict.fromkeys(kernel.precision for kernel in chosen):
                alike = [kernel for kernel in chosen if kernel.precision == precision]
                for kernel in (*alike, *libraries):
                    best = cached(kernel, dtype, shape) if settings.tuned and kernel.tunable else None
                    for params in param_sets(kernel, settings.params):
                        chosen_set = with_cached(kernel, best, params)
                        todo.append(Cell(kernel, shape, dtype, 1, chosen_set, "cuda", precision))
    return todo


def suits_shape(kernel: Kernel, dtype: str, shape: Shape) -> bool:
    """Whether a kernel of the engine is made for this shape: it suits the shape, but not a cube of the shape's longest side.

    >>> from tilewright.kernels.catalog import catalog
    >>> shapes = [(1000, 1000, 1000), (1, 4096, 4096), (2000, 2000, 4)]
    >>> [name for s in shapes for name, k in catalog().items() if suits_shape(k, "float32", s)]
    ['cpu/vector', 'cpu/outer']
    """
    if kernel.suits is None or dtype not in kernel.dtypes:
        return False
    return bool(kernel.suits(*shape)) and not kernel.suits(*(max(shape),) * 3)


def own_dtype(kernel: Any) -> str:
    """The dtype that a CUDA kernel is measured with by default: float32 if it takes that, else the first that it takes."""
    return "float32" if "float32" in kernel.dtypes else kernel.dtypes[0]


def _thread_counts(kernel: Kernel, settings: Settings) -> set[int]:
    """The numbers of threads of a kernel: a serial one runs on one thread, and is compared with the reference on one."""
    return {1} if kernel.shared == "serial" else set(settings.threads)
