"""Which kernel multiplies on a GPU, with which parameters, and why: what is known before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..catalog import cuda_catalog
from ..errors import DTypeError
from ..host.machine import bytes_text
from ..kernels.cuda_kernel import CudaKernel, Launch
from ..problem import Problem
from .tuned import best_params


@dataclass(frozen=True)
class Choice:
    """A kernel, all of its parameters, and the reasons for both."""

    kernel: CudaKernel
    params: dict[str, int]
    why: str
    why_params: str


def choose(dtype: str, m: int, n: int, k: int, *, capability: str, sms: int = 132, gpu: str = "") -> Choice:
    """The highest rung for C[m×n] = A[m×k]·B[k×n] of ``dtype`` on a GPU of that compute capability, with ``sms``
    multiprocessors, and of that name.

    What ``tilewright tune`` kept for this GPU and size goes before the kernel's own presets, and these before its defaults.
    Raises DTypeError where no kernel is for the dtype.

    >>> choose("float64", 4096, 4096, 4096, capability="9.0").kernel.name
    'cuda/dgemm_tensor'
    """
    kernel, why = _rung(dtype, m, n, k, capability)
    tuned = best_params(kernel, gpu, dtype, (m, n, k)) if gpu else None
    if tuned is not None:
        return Choice(kernel, tuned, why, "kept by tilewright tune for this GPU and sizes like these")
    preset = kernel.preset(m, n, k, sms)
    if preset is not None:
        words = f"the kernel's preset that gives each of {sms} multiprocessors the fairest share of this size"
        return Choice(kernel, kernel.checked(preset.params), why, words)
    return Choice(kernel, kernel.params, why, "the kernel's defaults")


def _rung(dtype: str, m: int, n: int, k: int, capability: str) -> tuple[CudaKernel, str]:
    rungs = sorted(cuda_catalog().values(), key=lambda kernel: -kernel.order)
    able = [x for x in rungs if dtype in x.dtypes and x.precision == "standard" and x.fits(capability)]
    for kernel in able:
        if kernel.suits is not None and kernel.suits(m=m, n=n, k=k):
            return kernel, f"the highest rung for {dtype} that suits this shape, on compute capability {capability}"
    rest = [kernel for kernel in able if kernel.suits is None]
    if not rest:
        known = sorted({dtype for kernel in rungs for dtype in kernel.dtypes if kernel.precision == "standard"})
        raise DTypeError(
            f"no kernel multiplies {dtype} on compute capability {capability}: {', '.join(known)} have some"
        )
    return rest[0], f"the highest rung for {dtype} that compute capability {capability} has; none above suits"


@dataclass(frozen=True)
class GpuPlan:
    """What a product of arrays on a GPU would run; ``str()`` tells the whole of it. Nothing is allocated or compiled yet.

    ``turned``: the kernel computes Cᵀ = Bᵀ·Aᵀ. ``copies``: what is copied on the GPU before or after, in words, with bytes.
    """

    problem: Problem
    choice: Choice
    launch: Launch
    compute: str
    gpu: str
    turned: bool
    copies: tuple[str, ...] = field(default=())
    workspace_bytes: int = 0

    @property
    def kernel(self) -> CudaKernel:
        return self.choice.kernel

    @property
    def params(self) -> dict[str, int]:
        return self.choice.params

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.params.items()) or "none"
        shared = bytes_text(self.launch.shared_bytes)
        rows = [
            ("GPU", self.gpu),
            ("kernel", f"{self.kernel.name}: {self.kernel.idea}"),
            ("because", self.choice.why),
            ("params", f"{given}: {self.choice.why_params}"),
            (
                "launch",
                f"grid {_extent(self.launch.grid)}, block {_extent(self.launch.block)}, {shared} of shared memory",
            ),
            ("computes", "Cᵀ = Bᵀ·Aᵀ, so that less is copied" if self.turned else "C = A·B"),
            *(
                (("in", f"{self.compute}, rounded to {self.problem.dtype}"),)
                if self.compute != self.problem.dtype
                else ()
            ),
            ("copies", "; ".join(self.copies) or "none"),
            ("workspace", bytes_text(self.workspace_bytes)),
        ]
        return "\n".join([str(self.problem), *(f"  {label:<10} {text}" for label, text in rows)])


def _extent(sizes: tuple[int, int, int]) -> str:
    """
    >>> _extent((132, 1, 1)), _extent((32, 8, 1))
    ('132', '32×8')
    """
    used = [size for i, size in enumerate(sizes) if size > 1 or not i]
    return "×".join(map(str, used))
