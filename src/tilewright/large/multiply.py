"""Defines the public functions for matrices in files, and for matrices that are larger than the memory of the device
that multiplies them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from ..errors import UsageError
from ..gpu.runtime.wake import wake_named
from .streaming.options import Options

if TYPE_CHECKING:  # these imports take 0.1 s, so each call makes them while the GPU driver starts
    import dask.array as da
    from numpy.typing import DTypeLike, NDArray

    from ..product.array_types import Operand, OutT, Path, SameT
    from .files import Source
    from .streaming.places.place import Events
    from .streaming.plan.stream import StreamPlan
    from .streaming.run.job import Job, Progress
    from .verification import Verification

    #: An operand of ``multiply``.
    Matrix = Operand | Path | Source

    class MultiplyOptions(TypedDict, total=False):
        """The options of ``multiply`` that do not change the type of its result."""

        memory: float | str | None
        device: str | None
        device_memory: float | str | None
        partition: str
        resume: bool
        overwrite: bool
        precision: str | float
        verify: bool
        progress: Progress | None
        events: Events | None
        axes: Any


@overload
def multiply(
    a: NDArray[SameT], b: NDArray[SameT], /, out: None = None, *, dtype: None = None, **options: Unpack[MultiplyOptions]
) -> NDArray[SameT]: ...
@overload
def multiply(
    a: Matrix, b: Matrix, /, out: None = None, *, dtype: DTypeLike | None = None, **options: Unpack[MultiplyOptions]
) -> NDArray[Any]: ...
@overload
def multiply(
    a: Matrix,
    b: Matrix,
    /,
    out: None = None,
    *,
    dtype: DTypeLike | None = None,
    cluster: object,
    **options: Unpack[MultiplyOptions],
) -> da.Array: ...
@overload
def multiply(
    a: Matrix,
    b: Matrix,
    /,
    out: OutT,
    *,
    dtype: DTypeLike | None = None,
    cluster: object = None,
    **options: Unpack[MultiplyOptions],
) -> OutT: ...
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
    axes: Any = None,
) -> Any:
    """The product of two matrices, which may be files or arrays, written to ``out`` block by block.

    The operands and the result may be larger than memory. The bits of the result depend only on the shapes, the dtype,
    the kernel, ``memory`` and ``device_memory``.

    Parameters
    ----------
    a : array of shape (m, k) or (…, m, k), or path
        The left operand: an array of any strides, or a ``.npy``, ``.zarr``, ``.h5``, ``.safetensors`` or raw file. For
        a file that needs options, pass the object that ``tilewright.files.open_matrix`` returns. A path may be a URL,
        such as "s3://bucket/a.zarr", which fsspec reads.
    b : array of shape (k, n), or path
        The right operand.
    out : array of shape (m, n) or (…, m, n), or path, optional
        Receives the result, cast by NumPy's ``same_kind`` rule, and is returned. If ``out`` is a path, a file of this
        name appears when the result is complete. If ``out`` is an array, it must not share memory with the operands.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB". The default is most of
        the free memory, but at least 8 MiB. On a cluster, ``memory`` is the limit for each worker, by default 40 % of
        the worker's memory.
    device : str, optional
        Where to multiply: "cpu", "cuda" (as many GPUs as make it faster), "cuda:1" or "cuda:0,1". The default is
        "cuda", or "cpu" if there are no GPUs. On a cluster, ``device`` is "cpu" or "cuda" and holds for each worker.
    device_memory : int or str, optional
        The most memory that the call may use on each GPU: bytes, or a text such as "4GiB".
    partition : str, default: "rectangles"
        How C is divided among several GPUs or workers: into "rectangles" of tiles, or into "strips" of whole rows. A
        partition into strips is simpler but moves more data. On a cluster, ``partition`` may also be a grid of workers,
        such as "2x4", which divides the rows of C into 2 parts and the columns into 4 parts.
    dtype : dtype or str, optional
        The dtype of the result, if not that of the operands, such as "float32" for operands of integers. The operands
        are converted to ``dtype`` as they are read; the ``same_kind`` rule must allow this cast.
    resume : bool, default: False
        Whether to continue an interrupted product whose result is a file. If False, or if there is no journal of the
        interrupted product, the product starts from the beginning.
    overwrite : bool, default: False
        Whether to replace an existing file ``out`` when the result is complete. If False, such a file is an error.
        Until the result is complete, operands can be read from the old file.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``. The bound holds for the whole product, however k is cut into blocks.
    cluster : Client or cluster or str, optional
        The Dask cluster on whose workers to multiply: a ``distributed.Client`` or cluster object, the address of a
        scheduler ("tcp://host:8786"), or "local:4" for 4 worker processes on this machine.
    verify : bool, default: False
        Whether to check the product afterwards, in O(n²) operations on the host, and log the error: see
        ``tilewright.verify``.
    progress : function, optional
        Is called as ``progress(done, all)`` with numbers of operations, on other threads. If a product is resumed,
        ``done`` includes the operations of earlier runs.
    events : Events, optional
        An object that records the time of each read, copy and multiplication.
    axes : int, or two lists of int, optional
        The axes that are summed. A number N means the last N axes of ``a`` and the first N axes of ``b``. If two lists
        are given, of axes of ``a`` and of axes of ``b``, the axes are summed in pairs; two single axes may be given
        instead. For two matrices ``axes=(0, 0)`` gives Aᵀ·B.

    Returns
    -------
    path, or array of shape (m, n) or (…, m, n)
        The object ``out`` if it was given, otherwise a new array. With ``axes`` the result has the axes of ``a`` that
        are not summed, followed by the axes of ``b`` that are not summed. On a cluster without ``out`` the result is a
        Dask array that stays on the workers.

    Raises
    ------
    ShapeError
        The operands differ in k, or ``out`` has another shape.
    DTypeError
        An operand has a dtype that cannot be multiplied or cannot be cast to the requested dtype.
    FileError
        A file of an operand is missing, truncated or damaged, or the result does not fit on the disk.
    MemoryLimitError
        ``memory`` is too small; the message says how much memory is needed at least.
    UnavailableError
        The device does not exist, or no library for the file's format is installed.
    UsageError
        An argument is not allowed, such as a ``precision`` that no kernel can guarantee.
    ResumeError
        The operands or the precision have changed since the product began, the journal was changed or damaged, or
        ``resume`` would replace another result.
    ClusterError
        There is no scheduler, a worker cannot read a file or would compute other bits, or the cluster was lost. Tiles
        that were finished before the error are kept.
    VerificationError
        The check by ``verify`` found that the product is wrong. The file of the wrong product is kept, but ``resume``
        does not accept it as the result.

    See Also
    --------
    plan_multiply : Shows how ``multiply`` would compute a product, without computing it.
    matmul : Multiplies arrays that fit into memory.
    tilewright.files.open_matrix : Opens a file that needs options.
    gram : Computes the Gram matrix of a file.

    Notes
    -----
    **Dtypes.** C has the dtype to which ``matmul`` and NumPy promote the operands: any float, complex, integer or bool
    dtype. Integers wrap around, so the product of int8 operands is int8. For bool, each element of C is the logical OR
    of ANDs. Products of float16, bfloat16 or bool are computed in float32 and rounded once. GPUs compute products of
    float32, of float64 and of the dtypes that are computed in float32. By default, products of all other dtypes run on
    the CPU.

    **Memory.** The limit ``memory`` includes the memory for planning and measurements. ``memory`` does not include
    loaded code, or operands and results that are arrays in memory. The call may exceed ``memory`` by up to 16 MiB.

    **Precision.** With the precisions "standard" and "ieee" the error of each element is at most the classical bound
    γ_k·(|A||B|). With precision "ieee" a float32 product is never computed from float16 parts. With precision "fast"
    the error is at most (1.01·2⁻¹⁰ + k·2⁻²⁴)·(|A||B|); the weaker bound makes float32 products on a Hopper GPU faster.
    With precision "highest" a float32 C is summed in float64 and rounded once. A precision such as 1e-4 guarantees that
    no element's error is above 1e-4·(|A||B|), for the operands as they are stored. If the precision is a number, the
    fastest method that guarantees it is used; the plan names the method, and the plan's attribute ``error_bound`` is
    the bound of this method.

    **Resuming.** The directory ``OUT.tilewright`` holds a journal of the finished tiles and the value of ``overwrite``.
    A product can be resumed only if it is cut into the same tiles. With ``resume``, a file ``out`` that is a complete
    result of the same operands is left unchanged. Any other existing file ``out`` is refused. An unfinished product or
    a result that was computed with another precision is refused too. An ``out`` that shares memory with an operand, or
    a path inside an operand's zarr directory, is always refused, even with ``overwrite``.

    **Clusters.** Workers reach files by the same paths as this process. Operands may be Dask arrays, whose chunks stay
    on their workers, or arrays of this process, which are sent to the workers. Without ``out`` the product is computed
    by the CPUs of the workers, even if they have GPUs. The loss of a worker does not change the result. If C is small
    and k is much longer than C's sides, each worker sums a part of k; the order of these sums depends only on the
    shape.

    **Verification.** With ``verify``, both C and A·B are multiplied by random vectors, and the difference is compared
    with the plan's ``error_bound``. The check reads A and C once and B two or three times, and does not exceed
    ``memory``. A product that ``resume`` finds complete is checked too. The verdict of the check is logged at level
    INFO of the logger "tilewright.verification". The calling process reads A, B and C for the check. For this reason
    ``out`` must not be the file of an operand if ``verify`` is set. With a cluster and ``verify``, ``out`` is required,
    and no operand may be a Dask array.

    After Ctrl-C, KeyboardInterrupt is raised as soon as all threads of the product have stopped.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a = np.arange(6.0).reshape(2, 3)
    >>> tw.multiply(a, a.T, device="cpu")
    array([[ 5., 14.],
           [14., 50.]])
    """
    if cluster is None and device is not None:
        wake_named(device)
    from ..cpu.runtime.stop import stoppable

    options = Options(
        memory=memory,
        device=device,
        device_memory=device_memory,
        partition=partition,
        dtype=dtype,
        resume=resume,
        overwrite=overwrite,
        precision=precision,
        axes=axes,
    )
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
                verify_job(job, a, b, options).report()
            if out is not None:
                return out
            shape = job.product.result_shape
            return job.target if job.target.shape == shape else job.target.reshape(shape)

    return stoppable(run)


def plan_multiply(
    a: Matrix,
    b: Matrix,
    /,
    out: Operand | Path | None = None,
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
    axes: Any = None,
) -> StreamPlan:
    """The plan of the call ``multiply`` with these arguments, and its predicted time. Nothing is multiplied, and no
    file is written.

    Parameters
    ----------
    a : array of shape (m, k) or (…, m, k), or path
        The left operand: see ``multiply``.
    b : array of shape (k, n), or path
        The right operand.
    out : array of shape (m, n) or (…, m, n), or path, optional
        The array or file that would receive the result.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB".
    device : str, optional
        Where to multiply: "cpu", "cuda" (as many GPUs as make it faster), "cuda:1" or "cuda:0,1".
    device_memory : int or str, optional
        The most memory that the call may use on each GPU: bytes, or a text such as "4GiB".
    partition : str, default: "rectangles"
        How C is divided among several GPUs or workers: see ``multiply``.
    dtype : dtype or str, optional
        The dtype of the result, by default the dtype to which the operands are promoted.
    resume : bool, default: False
        Whether to plan only the rest of an interrupted product.
    overwrite : bool, default: False
        Whether to replace an existing file ``out`` when the result is complete. If False, such a file is an error.
    precision : str or float, default: "standard"
        The guaranteed error bound: see ``matmul``.
    cluster : Client or cluster or str, optional
        The Dask cluster whose workers multiply: see ``multiply``.
    axes : int, or two lists of int, optional
        The axes that are summed: see ``multiply``.

    Returns
    -------
    StreamPlan
        The tiles, the order in which blocks are copied, the cost of the copies, and the predicted time. ``print`` shows
        all of them.

    Raises
    ------
    TilewrightError
        Any error that ``multiply`` raises before it begins.

    See Also
    --------
    multiply : Computes the product that ``plan_multiply`` plans.
    plan : The plan of a product of arrays in memory.
    tilewright.large.streaming.plan.plan.StreamPlan : The class of the result.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> a = np.ones((2000, 2000), np.float32)
    >>> plan = tw.plan_multiply(a, a, device="cpu", memory="64MiB")
    >>> plan.place_bytes < 64 << 20
    True
    """
    options = Options(
        memory=memory,
        device=device,
        device_memory=device_memory,
        partition=partition,
        dtype=dtype,
        resume=resume,
        overwrite=overwrite,
        precision=precision,
        axes=axes,
    )
    with job_on(cluster, a, b, out, options, only_planned=True) as job:
        return job.plan


def check_verifiable(a: Any, b: Any, out: Any, cluster: Any) -> None:
    """Raise UsageError if this process could not verify the product after it is computed."""
    from .streaming.run.job import is_in

    if cluster is not None and out is None:
        raise UsageError("verify=True needs the result in a file or in this process's memory: pass out")
    for name, operand in (("a", a), ("b", b)):
        if hasattr(operand, "__dask_graph__"):
            raise UsageError(
                f"verify=True reads the operands in this process, and {name} is a Dask array: leave verify out"
            )
        if is_in(operand, out):
            raise UsageError(
                f"verify=True reads {name} after the product, but out replaces that file: choose another name for out"
            )


def check_dtypes_verifiable(job: Job) -> None:
    """Raise DTypeError for a product of bool, because products with random vectors cannot verify sums that are a
    logical OR.
    """
    from .verification import check_dtypes

    check_dtypes(job.product.dtype, job.product.dtype)  # C is stored in the dtype in which it is computed


def verify_job(job: Job, a: Any, b: Any, options: Options) -> Verification:
    """Verify the result of a finished job. A wrong result is marked, so that ``resume`` does not accept it."""
    from ..cpu.runtime.stop import stoppable
    from ..host.steps import announced
    from .files.axes import AxesSource
    from .streaming.run.job import open_result
    from .verification import verify_files

    bound = job.plan.error_bound
    # A result of an earlier run may have been cut in another way, so its own error bound is not known: use the promised one.
    if not isinstance(options.precision, str):
        bound = min(bound, float(options.precision))
    # The caller's operands, unless axes of them are merged: those of a cluster are read by its workers alone.
    x, y = (
        source if isinstance(source, AxesSource) else given
        for source, given in zip(job.product.sources, (a, b), strict=True)
    )
    with announced("verifying"), contextlib.ExitStack() as stack:
        c = job.target
        if isinstance(c, (str, os.PathLike)):
            c = stack.enter_context(contextlib.closing(open_result(c, job.product.extents, job.product.dtype)))
        found = stoppable(lambda: verify_files(x, y, c, bound, options.memory))
    if not found.ok:
        job.disown()
    return found


def precision_of_blocks(precision: str | float) -> str:
    """Return the precision with which each block is multiplied if ``matmul`` with this ``precision`` computes block by
    block.

    The blocks have already been converted to the dtype that ``precision`` needs for the whole product.
    """
    return str(precision) if precision in ("ieee", "fast") else "standard"


def job_on(
    cluster: Any, a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False
) -> contextlib.AbstractContextManager[Job]:
    """Return the job of a ``multiply`` in this process, or on ``cluster`` if a cluster is given."""
    from .files import path_of_result

    if isinstance(out, (str, os.PathLike)):
        out = path_of_result(out)
    if cluster is None:
        from .streaming.run.job import open_job

        return open_job(a, b, out, options, only_planned=only_planned)
    from .cluster.product import open_cluster_job

    return open_cluster_job(a, b, out, options, cluster, only_planned=only_planned)
