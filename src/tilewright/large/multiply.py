"""The public calls on matrices in files, and on those that are larger than the memory where they are multiplied."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..gpu.runtime.wake import wake_named
from .streaming.options import Options

if TYPE_CHECKING:  # imported in 0.1 s: by each call, while the driver starts
    from .streaming.places.place import Events
    from .streaming.plan.stream import StreamPlan
    from .streaming.run.job import Job, Progress
    from .verification import Verification


def multiply(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    memory: float | str | None = None,
    device: str | None = None,
    device_memory: float | str | None = None,
    partition: str = "rectangles",
    dtype: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    precision: str | float = "standard",
    cluster: Any = None,
    verify: bool = False,
    progress: Progress | bool | None = None,
    events: Events | None = None,
) -> Any:
    """The product of two matrices, each a file or an array, written to ``out`` block by block; returns ``out``.

    ``a`` is (m, k) and ``b`` is (k, n): arrays of any strides, or paths of ``.npy``, ``.zarr``, ``.h5``, ``.safetensors`` or
    raw files (pass what ``files.open_matrix`` returns for a file that needs options). Operands can also be at URLs, such as
    "s3://bucket/a.zarr", which fsspec reads. ``out`` is the path of a file of any of these formats, which appears when it is
    complete; an array of shape (m, n) that shares no memory with the operands; or None for a new array.

    C has the dtype to which ``matmul`` and NumPy promote the operands: any float, complex number, integer or bool. Integers
    wrap around, so C of int8 operands is int8; with bool C is "or" of "and". ``dtype`` is another for C, to which operands
    must cast by the ``same_kind`` rule, such as ``dtype="float32"`` for integers: they are converted to it as they are read.
    float16, bfloat16 and bool are multiplied in float32, and rounded once. GPUs multiply float32 and float64 alone, and what
    is multiplied in float32; by default all other products are the CPU's.

    An existing file is refused, an operand's too. With ``overwrite`` it is replaced when C is complete, whatever it holds;
    operands are read from the old file until then. An array that shares memory with an operand, and a path inside the zarr
    directory of one, are always refused.

    ``memory`` bounds what the product, its planning and its measurements add to this process's memory ("4GiB", or bytes; by
    default most of what is free): up to 16 MiB more may be taken, and less than 8 MiB counts as 8 MiB. Operands and results
    in memory do not count, nor does code that is loaded. ``device_memory`` bounds the GPU's. ``device`` is "cpu", "cuda" (as
    many GPUs as pay), "cuda:1" or "cuda:0,1"; by default the GPUs where there are any. Several share C by ``partition``:
    "rectangles" of tiles, or "strips" of whole rows, which is simpler and moves more.

    With ``resume`` an interrupted product into a file goes on where it stopped, with the same cut: each finished tile is in
    a journal in the directory ``OUT.tilewright``, and so is ``overwrite``. A complete result that was made from these
    operands stays as it is, and any other file of its name is refused. Without ``resume``, or without a journal, the product
    begins anew.

    ``cluster`` multiplies on the workers of a Dask cluster: a ``distributed.Client`` or cluster object, the address of a
    scheduler ("tcp://host:8786"), or "local:4" for so many processes on this machine. Workers reach files by the same paths
    as this process. Operands may be Dask arrays, whose chunks stay on their workers, and arrays of this process, which are
    handed out. Without ``out`` the result is a Dask array that stays on the workers, computed by their processors.
    ``memory`` is that of each worker (by default 40 % of its limit), ``device`` the kind on each worker, and ``partition``
    may state how many workers share C down and across ("2x4"). A worker that is lost changes neither the result nor a bit
    of it. Where C is small and k is much longer than its sides, processors share the sum over k, in an order of its own
    that depends on the shape alone.

    ``precision`` promises an error of the whole product, however k is cut into blocks. With "standard" and "ieee" each
    element is within the classical bound γ_k·(|A||B|); with "ieee" float32 is never computed from float16 parts. With
    "fast" it is within (1.01·2⁻¹⁰ + k·2⁻²⁴)·(|A||B|): products of float32 on a Hopper GPU gain by it. With "highest" a
    float32 C is summed in float64 and rounded once. A number such as 1e-4 promises that the error of no element is above
    1e-4·(|A||B|), of the operands as they are stored: the cheapest way is taken whose bound is not above it, and the plan
    says which one, and its ``error_bound``. ``resume`` refuses what was begun, or made, in another way.

    ``verify=True`` checks the finished product, also one that ``resume`` finds complete: it reads A and C once, B two or
    three times, within ``memory``, and compares by random vectors, in O(n²) operations, with the plan's ``error_bound``.
    What was found is logged at level INFO of the logger "tilewright.verification". A wrong product raises
    VerificationError; its file stays where it is, and ``resume`` does not take it for the product. This process reads all
    three: ``out`` must be another file than the operands, and a cluster needs ``out`` and operands that are no Dask arrays.

    The bits of the result depend on the shapes, the dtype, the kernel, ``memory`` and ``device_memory`` alone.
    ``progress(done, all)`` counts operations, those of earlier runs included, and is called on other threads. ``events``
    collects the time of each piece of work. Ctrl-C is raised when all threads of the product have stopped.

    Raises ShapeError, DTypeError, FileError, MemoryLimitError (says the least that is needed), UnavailableError (no such
    device, no library for a format), UsageError (also for a number that no way keeps), ResumeError (the operands or the
    precision have changed, the journal was changed or damaged, ``resume`` would replace another result), ClusterError (no
    scheduler, a worker that cannot read a file or would compute other bits, the cluster was lost). Finished tiles are kept
    whatever happens. VerificationError: see ``verify``.

    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6.0).reshape(2, 3)
    >>> tw.multiply(a, a.T, device="cpu")
    array([[ 5., 14.],
           [14., 50.]])
    """
    if cluster is None and device is not None:
        wake_named(device)
    from ..cpu.runtime.stop import stoppable

    options = Options(memory, device, device_memory, partition, dtype, resume, overwrite, precision)
    options.check()
    if progress is False:
        progress = None
    elif progress is not None and not callable(progress):
        raise UsageError(
            f"progress must be a function of the operations done and of all, got {progress!r:.80}: pass for example "
            "lambda done, all: print(f'{done / all:.0%}', end='\\r'); the command tilewright multiply shows a bar"
        )

    if verify:
        check_verifiable(a, b, out, cluster)

    def run() -> Any:
        if cluster is not None and out is None:
            from .cluster.product import keep_product

            return keep_product(a, b, options, cluster)
        with job_on(cluster, a, b, out, options) as job:
            if verify:
                check_dtypes_verifiable(job)
            job.run(progress, events)
            if verify:
                verified_job(job, a, b, options).report()
            return job.target if out is None else out

    return stoppable(run)


def plan_multiply(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    memory: float | str | None = None,
    device: str | None = None,
    device_memory: float | str | None = None,
    partition: str = "rectangles",
    dtype: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    precision: str | float = "standard",
    cluster: Any = None,
) -> StreamPlan:
    """What ``multiply`` would do, and the predicted time; nothing is multiplied, and no result begun.

    With ``resume`` it is the plan for what is left to do. Raises what ``multiply`` raises before it begins.

    >>> import numpy as np, tilewright as tw
    >>> a = np.ones((2000, 2000), np.float32)
    >>> plan = tw.plan_multiply(a, a, device="cpu", memory="64MiB")
    >>> plan.place_bytes < 64 << 20
    True
    """
    options = Options(memory, device, device_memory, partition, dtype, resume, overwrite, precision)
    with job_on(cluster, a, b, out, options, only_planned=True) as job:
        return job.plan


def check_verifiable(a: Any, b: Any, out: Any, cluster: Any) -> None:
    """Raises UsageError for a product that this process could not verify afterwards."""
    from .streaming.run.job import is_in

    if cluster is not None and out is None:
        raise UsageError("verify=True needs the result in a file or in this process's memory: give out")
    for name, operand in (("a", a), ("b", b)):
        if hasattr(operand, "__dask_graph__"):
            raise UsageError(
                f"verify=True reads the operands in this process, and {name} is a Dask array: leave verify out"
            )
        if is_in(operand, out):
            raise UsageError(f"verify=True reads {name} after the product, and out replaces it: give out another name")


def check_dtypes_verifiable(job: Job) -> None:
    """Raises DTypeError for a product of bool, which no bound and no wrapping around describes."""
    from .verification import check_dtypes

    check_dtypes(job.product.dtype, job.product.dtype)


def verified_job(job: Job, a: Any, b: Any, options: Options) -> Verification:
    """What the verification of a finished job finds. A wrong result is disowned."""
    from ..cpu.runtime.stop import stoppable
    from ..host.steps import announced
    from .verification import verify_files

    bound = job.plan.error_bound
    if not isinstance(options.precision, str):  # the cut of a result that was complete before is not known
        bound = min(bound, float(options.precision))
    with announced("verifying"):
        found = stoppable(lambda: verify_files(a, b, job.target, bound, options.memory))
    if not found.ok:
        job.disown()
    return found


def precision_of_blocks(precision: str | float) -> str:
    """The precision of blocks, in the dtype in which ``matmul`` computes with this ``precision``."""
    return str(precision) if precision in ("ieee", "fast") else "standard"


def job_on(
    cluster: Any, a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False
) -> contextlib.AbstractContextManager[Job]:
    """The job of a ``multiply`` in this process, or on ``cluster`` where there is one."""
    from .files import path_of_result

    options.check()
    if isinstance(out, (str, os.PathLike)):
        out = path_of_result(out)
    if cluster is None:
        from .streaming.run.job import open_job

        return open_job(a, b, out, options, only_planned=only_planned)
    from .cluster.product import open_cluster_job

    return open_cluster_job(a, b, out, options, cluster, only_planned=only_planned)
