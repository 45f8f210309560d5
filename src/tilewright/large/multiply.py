"""The public calls on matrices in files and on matrices that are larger than the memory of the
device that multiplies them.
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
    """The product of two matrices, each a file or an array, written to ``out`` block by block.

    Neither the operands nor the result must fit into memory. The bits of the result depend on the shapes, the dtype, the
    kernel, ``memory`` and ``device_memory`` alone.

    Parameters
    ----------
    a : array of shape (m, k) or (…, m, k), or path
        The left operand: an array of any strides, or a ``.npy``, ``.zarr``, ``.h5``, ``.safetensors`` or raw file
        (pass what ``files.open_matrix`` returns for a file that needs options). A path may be a URL, such as
        "s3://bucket/a.zarr", which fsspec reads.
    b : array of shape (k, n), or path
        The right operand.
    out : array of shape (m, n) or (…, m, n), or path, optional
        Receives the result, cast by the ``same_kind`` rule, and is returned. A file appears when it is complete. An
        array must not share memory with the operands.
    memory : int or str, optional
        The most memory that the call may add to this process: bytes, or a text such as "4GiB". By default it is
        most of what is free, and 8 MiB at least. On a cluster it is that of each worker, by default 40 % of its
        limit.
    device : str, optional
        Where to multiply: "cpu", "cuda" (as many GPUs as make it faster), "cuda:1" or "cuda:0,1". By default the
        GPUs where there are any. On a cluster it is "cpu" or "cuda", for each worker.
    device_memory : int or str, optional
        The most memory that the call may use on each GPU: bytes, or a text such as "4GiB".
    partition : str, default: "rectangles"
        How several GPUs or workers share C: by "rectangles" of tiles, or by "strips" of whole rows, which is
        simpler and moves more. On a cluster it may state how many workers share C down and across, such as "2x4".
    dtype : dtype or str, optional
        The dtype of the result, if not that of the operands: such as "float32" for integers. Operands must cast to
        it by the ``same_kind`` rule, and are converted as they are read.
    resume : bool, default: False
        Whether to continue an interrupted product into a file where it stopped. Without it, or without a journal,
        the product begins anew.
    overwrite : bool, default: False
        Whether an existing file ``out`` is replaced when the result is complete. Otherwise it is refused. Operands
        are read from the old file until then.
    precision : str or float, default: "standard"
        The error that is promised: see ``matmul``. It holds for the whole product, however k is cut into blocks.
    cluster : Client or cluster or str, optional
        The Dask cluster on whose workers to multiply: a ``distributed.Client`` or cluster object, the address of a
        scheduler ("tcp://host:8786"), or "local:4" for so many processes on this machine.
    verify : bool, default: False
        Whether to check the product afterwards, in O(n²) operations on the host, and log the error: see
        ``tilewright.verify``.
    progress : function, optional
        Is called as ``progress(done, all)`` with operations, those of earlier runs included, on other threads.
    events : Events, optional
        Collects the time of each piece of work.
    axes : int, or two lists of int, optional
        The axes that are summed: a number, of the last axes of ``a`` and the first of ``b``; or two lists of axes,
        or two axes, which are summed in pairs. ``axes=(0, 0)`` of matrices is Aᵀ·B.

    Returns
    -------
    path, or array of shape (m, n) or (…, m, n)
        ``out`` itself if it was given, otherwise a new array. With ``axes`` it has the other axes of ``a``, then
        those of ``b``. Without ``out`` on a cluster it is a Dask array that stays on the workers.

    Raises
    ------
    ShapeError
        A mismatch of k, or an ``out`` of another shape.
    DTypeError
        A dtype that cannot be multiplied, or cannot be cast to the one asked for.
    FileError
        A file that is missing, truncated or damaged, or does not fit on the disk.
    MemoryLimitError
        Too little ``memory``: the message says the least that is needed.
    UnavailableError
        There is no such device, or no library for the format.
    UsageError
        An argument that is not allowed, such as a ``precision`` that no kernel can guarantee.
    ResumeError
        The operands or the precision have changed, the journal was changed or damaged, or ``resume`` would replace
        another result.
    ClusterError
        No scheduler, a worker that cannot read a file or would compute other bits, or the cluster was lost.
        Finished tiles are kept whatever happens.
    VerificationError
        A product that ``verify`` finds wrong. Its file stays where it is, and ``resume`` does not take it for the
        product.

    Notes
    -----
    **dtypes.** C has the dtype to which ``matmul`` and NumPy promote the operands: any float, complex number,
    integer or bool. Integers wrap around, so C of int8 operands is int8; for bool, C is the logical OR of ANDs.
    float16, bfloat16 and bool are multiplied in float32, and rounded once. GPUs compute float32 and float64, and
    the dtypes that are multiplied in float32. All other products run on the CPU by default.

    **Memory.** Planning and measurements are included in ``memory``; in-memory operands, results and loaded code
    are not. Up to 16 MiB more may be used.

    **Precision.** With "standard" and "ieee" each element is within the classical bound γ_k·(|A||B|); with "ieee"
    float32 is never computed from float16 parts. With "fast" it is within (1.01·2⁻¹⁰ + k·2⁻²⁴)·(|A||B|): products
    of float32 on a Hopper GPU gain by it. With "highest" a float32 C is summed in float64 and rounded once. A
    number such as 1e-4 promises that the error of no element is above 1e-4·(|A||B|), of the operands as they are
    stored: the cheapest way is taken whose bound is not above it, and the plan says which one, and its
    ``error_bound``.

    **Resuming.** The directory ``OUT.tilewright`` holds a journal of the finished tiles and of the value of
    ``overwrite``; they must have been cut in the same way. A complete result of the same operands is left as it is.
    Any other existing file of that name is refused, and so is an unfinished product or a result that was computed
    with another precision. An array that shares memory with an operand, and a path inside an operand's zarr
    directory, are always refused, also with ``overwrite``.

    **Clusters.** Workers reach files by the same paths as this process. Operands may be Dask arrays, whose chunks
    stay on their workers, and arrays of this process, which are sent to the workers. A result without ``out`` is
    computed by the workers' processors. The loss of a worker does not change the result. Where C is small and k is
    much longer than its sides, the workers each sum a part of k; the order of the sums depends only on the shape.

    **Verification** reads A and C once, B two or three times, within ``memory``, also of a product that ``resume``
    finds complete, and compares by random vectors with the plan's ``error_bound``. The verdict is logged at level
    INFO of the logger "tilewright.verification". This process reads all three matrices: ``out`` must be another
    file than the operands, and with a cluster ``out`` is required and no operand may be a Dask array.

    Ctrl-C is raised when all threads of the product have stopped.

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
    """Return the plan of ``multiply`` with the predicted time. Nothing is multiplied, and no result is begun.

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
        The dtype of the result. By default it is the dtype to which the operands are promoted.
    resume : bool, default: False
        Whether to plan only the unfinished part of an interrupted product.
    overwrite : bool, default: False
        Whether an existing file ``out`` may be replaced when the result is complete. Otherwise it is refused.
    precision : str or float, default: "standard"
        The precision, which promises an error bound: see ``matmul``.
    cluster : Client or cluster or str, optional
        The Dask cluster whose workers multiply: see ``multiply``.
    axes : int, or two lists of int, optional
        The axes that are summed: see ``multiply``.

    Returns
    -------
    StreamPlan
        How the product is cut, in which order its blocks are copied, how many bytes that moves, and the predicted
        time. ``print`` shows all of it.

    Raises
    ------
    TilewrightError
        The errors that ``multiply`` raises before it begins.

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
    """Raise UsageError if this process could not verify the product afterwards."""
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
    """Raise DTypeError for a product of bool, because random vectors cannot verify sums that are a logical OR."""
    from .verification import check_dtypes

    check_dtypes(job.product.dtype, job.product.dtype)  # C is stored in the dtype in which it is computed


def verify_job(job: Job, a: Any, b: Any, options: Options) -> Verification:
    """Verify the result of a finished job. If the result is wrong, it is marked, so that ``resume`` does not accept it."""
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

    The blocks already have the dtype that the precision of the whole product needs.
    """
    return str(precision) if precision in ("ieee", "fast") else "standard"


def job_on(
    cluster: Any, a: Any, b: Any, out: Any, options: Options, *, only_planned: bool = False
) -> contextlib.AbstractContextManager[Job]:
    """Return the job of a ``multiply`` in this process, or on ``cluster`` if there is one."""
    from .files import path_of_result

    if isinstance(out, (str, os.PathLike)):
        out = path_of_result(out)
    if cluster is None:
        from .streaming.run.job import open_job

        return open_job(a, b, out, options, only_planned=only_planned)
    from .cluster.product import open_cluster_job

    return open_cluster_job(a, b, out, options, cluster, only_planned=only_planned)
