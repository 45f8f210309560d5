"""Defines what a benchmark measures: its settings, the cells (single measurements) that follow from them, and the
predicted time of each cell.

The kernel of a cell is a ``Kernel`` on the CPU. On a GPU the kernel of a cell is a ``CudaKernel``, or a ``Reference``
for a library. This module uses only attributes that all three classes have. The time of a cell is predicted from the
time of the same kernel at the previous size.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ...errors import UsageError
from ...kernels import Kernel
from ...records.bench import BenchRecord
from ...records.compare import MIN_SAMPLES
from ..inputs.distributions import distributed
from ..inputs.options import Shape, Values, check_names, param_sets, with_cached

# ---- settings and cells ----------------------------------------------------------------------------------------------

#: Returns the parameters that the tuner cached for a kernel, dtype and shape; None if there are none.
CachedParams = Callable[[Any, str, Shape], Mapping[str, int] | None]


@dataclass(frozen=True)
class Settings:
    """The settings of a benchmark: what is measured, and how. The ratio R is the time of the first of ``references``
    divided by the time of the kernel. Every reference also gets cells of its own, like a kernel.

    If ``dtypes`` is empty, each kernel is measured in float32 if it multiplies float32, otherwise in the first of its
    dtypes. ``params`` has values of kernels' parameters to try: every combination that a kernel allows is measured.
    With ``tuned``, the parameters that are not in ``params`` have the values that the tuner cached. Kernels of the
    ``engine`` are measured only at shapes for which they are made (``suits_shape``).
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
        """Return the user's matrices, or matrices of the ``distribution``. The result is None if operands are uniform,
        because the bench makes such operands itself."""
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
    """One measurement: one kernel with one set of parameters, one shape, one dtype and one number of threads; on a GPU
    also one precision."""

    kernel: Any
    shape: Shape
    dtype: str
    threads: int
    params: dict[str, Any]
    device: str = "cpu"
    precision: str = "standard"

    @property
    def flops(self) -> int:
        """The number of operations of the product: 2mnk, whatever algorithm computes it."""
        return 2 * math.prod(self.shape)

    @property
    def label(self) -> str:
        """The name of the cell in a line of progress."""
        return " ".join([self.kernel.name, self.record("ok").shape, self.dtype, *self._set])

    @property
    def _set(self) -> list[str]:
        return [f"{name}={value}" for name, value in sorted(self.params.items())]

    def record(self, verdict: str, **known: Any) -> BenchRecord:
        """Return the record of the cell, with the fields that are known before it is measured."""
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
        """The series of the cell, which a chart draws as one curve: kernel, dtype and threads, at all sizes."""
        return (" ".join([self.kernel.name, *self._set]), f"{self.dtype} {self.precision}", self.threads)


@dataclass
class Outcome:
    """The result of measuring a cell; its fields are also those of the cell's record."""

    verdict: str
    reason: str = ""
    samples_s: list[float] = field(default_factory=list)
    reference_samples_s: list[float] = field(default_factory=list)
    max_abs_error: float | None = None
    error_over_bound: float | None = None
    rms_error: float | None = None


def cells(settings: Settings, cached: CachedParams = lambda kernel, dtype, shape: None) -> list[Cell]:
    """Return every cell in the order of measurement. The order goes from size to size, so that the times at each size
    are predicted from those at the previous size. If the settings are ``tuned``, ``cached`` returns the parameters that
    the tuner cached.
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
    """Return whether a kernel of the engine is made for this shape in particular. Such a kernel suits the shape, but
    does not suit a cube whose sides are the shape's longest side.

    >>> from tilewright.kernels.catalog import catalog
    >>> shapes = [(1000, 1000, 1000), (1, 4096, 4096), (2000, 2000, 4)]
    >>> [name for s in shapes for name, k in catalog().items() if suits_shape(k, "float32", s)]
    ['cpu/vector', 'cpu/outer']
    """
    if kernel.suits is None or dtype not in kernel.dtypes:
        return False
    return bool(kernel.suits(*shape)) and not kernel.suits(*(max(shape),) * 3)


def own_dtype(kernel: Any) -> str:
    """Return the dtype in which a CUDA kernel is measured by default: float32 if the kernel multiplies float32,
    otherwise the first of its dtypes."""
    return "float32" if "float32" in kernel.dtypes else kernel.dtypes[0]


def _thread_counts(kernel: Kernel, settings: Settings) -> set[int]:
    """The numbers of threads of a kernel: a serial one runs on one thread, and is compared with the reference on one."""
    return {1} if kernel.shared == "serial" else set(settings.threads)


# ---- predicted times -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeLeft:
    """An estimate of the seconds that the remaining cells will take. ``known`` is False if the kernel of a remaining
    cell has no measured time yet."""

    seconds: float
    known: bool


class PredictingBench(ABC):
    """A bench that remembers the last time of each series of cells, and predicts the next cell of the series at the
    same rate."""

    #: A product that takes at least this many seconds is long enough to predict from: its time grows with its operations.
    #: A shorter time may be all overhead.
    telling_s: ClassVar[float]
    #: Operations per second assumed for a kernel that has not run yet, to estimate the time that is left.
    guessed_flops: ClassVar[float]
    #: Seconds assumed to compile a kernel before any kernel was compiled. It is 0 if each cell's estimate contains the
    #: compilation.
    guessed_prepared_s: ClassVar[float] = 0.0
    #: A run has this many seconds for each of its cells to take further samples of those whose samples do not decide
    #: whether kernel or reference is faster.
    undecided_s: ClassVar[float] = 0.6
    #: What is left of those seconds, and the number of cells that are left, including the one that is measured next.
    spare_s: float = 0.0
    cells_left: int = 1

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._last: dict[tuple[str, str, int], tuple[int, float]] = {}
        #: The measured seconds to compile a kernel for a dtype.
        self.prepared_s: dict[tuple[str, str], float] = {}

    def remember(self, cell: Cell, seconds: float) -> None:
        """Remember the measured or predicted seconds of one product of this cell."""
        self._last[cell.series] = (cell.flops, seconds)

    def resume(self, cell: Cell, record: BenchRecord) -> None:
        """Use a record of an earlier run that is still valid, to predict later cells."""
        if record.median_s:
            self.remember(cell, record.median_s)

    def predicted_s(self, cell: Cell) -> float | None:
        """Return the predicted seconds of one product of a cell, at the rate of the previous size; None at the first
        size."""
        if cell.series not in self._last:
            return None
        flops, seconds = self._last[cell.series]
        return seconds * cell.flops / flops if flops else seconds

    def over_limit(self, cell: Cell, times: float = 1.0) -> Outcome | None:
        """Return the outcome of a cell whose predicted time is more than ``times`` times the limit; None for a cell
        that is to be measured."""
        predicted, limit = self.predicted_s(cell), self.settings.limit_s
        if predicted is None or predicted <= times * limit or self._last[cell.series][1] < min(self.telling_s, limit):
            return None
        self.remember(cell, predicted)
        return Outcome("time_limit", f"predicted {predicted:.3g} s from the size before, the limit is {limit:g} s")

    def time_left(self, todo: Iterable[Cell]) -> TimeLeft:
        """Estimate the seconds that these cells will take, including compilation. Kernels without a measured rate are
        assumed to reach ``guessed_flops``."""
        seconds, known = 0.0, True
        for cell in (cells := list(todo)):
            once = self.predicted_s(cell)
            known = known and once is not None
            seconds += self._whole_cell_s(cell, cell.flops / self.guessed_flops if once is None else once)
        new = {(cell.kernel.name, cell.dtype) for cell in cells} - self.prepared_s.keys()
        mean = statistics.fmean(self.prepared_s.values()) if self.prepared_s else self.guessed_prepared_s
        return TimeLeft(seconds + mean * len(new), known)

    def reference_s(self, cell: Cell) -> float | None:
        """Return the predicted seconds of one product of the reference that is measured in alternation with a cell;
        None if they are not known."""
        if not self.settings.references:
            return 0.0
        return self.predicted_s(replace(cell, kernel=self.settings.references[0], params={}))

    @abstractmethod
    def _whole_cell_s(self, cell: Cell, once_s: float) -> float:
        """Seconds of a cell with all its samples, where one product takes ``once_s``."""
