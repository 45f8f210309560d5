"""The command ``multiply``: multiplies matrices in files, which may be larger than memory."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import TilewrightError, UsageError
from ...records.json_data import dumped
from .application import Console, app, check_different_files, check_writeable

if TYPE_CHECKING:
    from ...large.streaming.places.place import Events
    from ...large.streaming.run.job import Job
    from ...large.verification import Verification

_RAW = re.compile(r"(.+\.(?:raw|bin)(?:\?.*)?):(\d{1,19}(?:[x×]\d{1,19})+):(\w+)", re.IGNORECASE)
_NPY = re.compile(r"(.+\.npy(?:\?.*)?):(\w+)", re.IGNORECASE)

OPERAND = (
    "A file or its URL: .npy, .h5, .zarr, .safetensors. Write FILE:NAME to choose one of several matrices "
    "in a file. Write FILE.raw:ROWSxCOLUMNS:DTYPE for a file of raw elements, row by row, and "
    "FILE.npy:bfloat16 for a .npy of bfloat16."
)


_A = Annotated[str, typer.Argument(metavar="A", help=OPERAND)]
_B = Annotated[
    str,
    typer.Argument(
        metavar="B", help="The other file. The elements of both may be floats, integers, bool or complex numbers."
    ),
]
_Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="C",
        help="The file of the result, in one of the formats of A. It appears when it is complete; until then it is "
        "in the directory C.tilewright. If a file of this name exists, --overwrite is needed.",
    ),
]
_Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="The most memory that the product may take, such as 4GiB. Default: four fifths of the free memory; on "
        "a cluster 40% of each worker's limit.",
    ),
]
_Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where to multiply: cpu, cuda, cuda:1 or cuda:0,1. Default: the GPUs, or the CPU if there are none.",
    ),
]
_DeviceMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="The most memory that the product may take on each GPU, such as 11GB."),
]
_Partition = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How C is divided among several GPUs or workers: into rectangles of tiles, into strips of whole rows, "
        "or into a grid such as 2x4, with 2 parts of the rows and 4 of the columns.",
    ),
]
_Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Multiply on the workers of a Dask cluster. WHERE is the address tcp://HOST:PORT of its scheduler, or "
        "local:4 for four processes on this machine. The workers must reach the files by the same paths.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Convert A and B to this dtype, which C then has, too. Default: the dtype to which NumPy promotes A "
        "and B. Integers wrap around in that dtype.",
    ),
]
_Axes = Annotated[
    str | None,
    typer.Option(
        metavar="OF_A:OF_B",
        help="The axes that are summed, as in numpy.tensordot: 0:0 is Aᵀ·B, and 1,2:0,1 sums over two axes. A "
        "number N means the last N axes of A and the first N of B. Default: the last axis of A and the first "
        "of B, which must then be a matrix.",
    ),
]
_Precision = Annotated[
    str,
    typer.Option(
        metavar="WORD|NUMBER",
        help="The guaranteed error bound. standard: the classical bound. fast: a GPU may round float32 to 10 bits. "
        "ieee: float32 is never computed from float16 parts. highest: float32 is summed in float64. A number "
        "such as 1e-4 is the largest error of an element, relative to |A||B|.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="The number of threads on the CPU. Default: one for each usable core."),
]
_Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue an interrupted run. Finished tiles are not computed again. If C is complete and A and B are the "
        "same, nothing is computed.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an existing file C when the new one is complete. The old file may contain anything, and may "
        "be A or B.",
    ),
]
_Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Check the finished C with random vectors, in O(n²) operations. A and C are read once, B two or three "
        "times.",
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and multiply nothing.")]
_Record = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a record of the plan, the prediction, the measurement and the machine. - is standard output; "
        "everything else then goes to standard error.",
    ),
]
_Timeline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a timeline as JSON, with one read, copy or multiplication per line; tilewright report draws "
        "it. With --dry-run it is the predicted timeline.",
    ),
]


@app.command("multiply")
def multiply_command(
    a: _A,
    b: _B,
    output: _Output,
    memory: _Memory = None,
    device: _Device = None,
    device_memory: _DeviceMemory = None,
    partition: _Partition = "rectangles",
    dtype: _Dtype = None,
    axes: _Axes = None,
    precision: _Precision = "standard",
    threads: Threads = None,
    resume: _Resume = False,
    overwrite: Overwrite = False,
    cluster: _Cluster = None,
    verify: _Verify = False,
    dry_run: _DryRun = False,
    json_file: _Record = None,
    timeline: _Timeline = None,
) -> None:
    """Multiply matrices in files of any size: C = A·B.

    The plan is shown before anything runs: how C is cut into tiles, what will be read and written, and how long it will
    take. If --memory is too little for the product, the command refuses at once.

    After an interruption (Ctrl-C, a full disk, kill -9) the finished tiles are kept. The same command with --resume
    continues the product, unless A or B have changed. Without --resume the product starts from the beginning.

    If the file C exists, the command refuses to run, unless --overwrite is given.

    Example: tilewright multiply a.npy b.npy -o c.npy --memory 4GiB
    """
    from ...host.limits import get_threads, use_threads
    from ...large.files import path_of_result
    from ...large.multiply import check_dtypes_verifiable, check_verifiable, job_on, verify_job
    from ...large.streaming.options import Options
    from ..terminal import show_plan, show_product, steps_shown

    output = path_of_result(output)
    files = [file_of(text) for text in (a, b, output)]
    check_writeable("json", json_file, dash=True, spare=files)
    check_writeable("timeline", timeline, spare=files)
    check_different_files(json=json_file, timeline=timeline, output=Path(output))
    console = Console(stderr=json_file is not None and str(json_file) == "-")
    options = Options(
        memory=memory,
        device=device,
        device_memory=device_memory,
        partition=partition,
        dtype=dtype,
        resume=resume,
        overwrite=overwrite,
        precision=_precision(precision),
        axes=_axes(axes),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(steps_shown(Console(stderr=True)))
        stack.enter_context(use_threads(get_threads() if threads is None else threads))
        x, y = (stack.enter_context(opened_operand(text)) for text in (a, b))
        if verify:
            check_verifiable(x, y, output, cluster)
        job = stack.enter_context(job_on(cluster, x, y, output, options, only_planned=dry_run))
        if verify:
            check_dtypes_verifiable(job)
        if resume or job.discarded:
            console.print(_resume_text(job, output, dry_run), highlight=False, markup=False)
        if not job.complete:
            show_plan(console, job.plan)
        found = None
        if not dry_run:
            _run(job, timeline)
            found = verify_job(job, x, y, options) if verify else None
            show_product(console, job, output, found)
        elif timeline is not None:
            _write_timeline(job, None, timeline)
        if json_file is not None:
            write_record("multiply", {**job.as_dict(), **_verification(found)}, json_file)
        if found is not None:
            found.report(output)


def file_of(text: str) -> Path | None:
    """The local file that holds a matrix; None if the text is a URL."""
    from ...large.files import local_path, locate

    here = local_path(text)
    if here is None or here.exists():
        return here
    match = _RAW.fullmatch(text) or _NPY.fullmatch(text)
    found = locate(match[1] if match else text)[1]
    return found if isinstance(found, Path) else None


@contextlib.contextmanager
def opened_operand(text: str) -> Iterator[Any]:
    """Open an operand that the command line names. A raw file is opened with the shape and dtype that ``text`` states,
    and a .npy file with the dtype that ``text`` states. Any other name or URL is returned unchanged. Raises UsageError
    for a raw file without shape and dtype, and for an unknown suffix."""
    from ...large.files import local_path, locate, open_array

    path_here = local_path(text)
    is_here = path_here is not None and path_here.exists()
    match, npy = (None if is_here else pattern.fullmatch(text) for pattern in (_RAW, _NPY))
    if npy is not None:
        with contextlib.closing(open_array(npy[1], dtype=npy[2])) as source:
            yield source
        return
    if match is None:
        where = locate(text)[1]
        if where.suffix.lower() in (".raw", ".bin"):
            raise UsageError(
                f"{where} does not say what it holds: name it as {where}:ROWSxCOLUMNS:DTYPE, as in {where}:2000x3000:float32"
            )
        yield text
        return
    path, sizes, dtype = match.groups()
    shape = tuple(map(int, re.split("[x×]", sizes)))
    with contextlib.closing(open_array(path, shape=shape, dtype=dtype)) as source:
        yield source


def _precision(text: str) -> str | float:
    """A precision: a word, or a number."""
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def _axes(text: str | None) -> Any:
    """A number of axes, or two lists of axes. Raises UsageError."""
    if text is None:
        return None
    try:
        lists = [[int(axis) for axis in part.split(",") if axis.strip()] for part in text.split(":")]
        return lists if len(lists) == 2 else int(text)
    except ValueError:
        raise UsageError(f"--axes {text}: must be those of A and of B, such as 0:0 or 1,2:0,1, or a number") from None


def _resume_text(job: Job, output: str, dry_run: bool) -> str:
    if job.discarded:
        return (
            f"{job.discarded} finished tiles of an interrupted run {'would be' if dry_run else 'are'} discarded: --resume "
            "continues that run, if A, B and the options are the same"
        )
    if job.complete:
        return f"resume: {output} is complete, and was made from this A and B: nothing is left to do"
    if job.begun is None:
        return f"resume: there is no unfinished {output} to continue; it is begun anew"
    return f"resume: {job.measured.before} of {job.measured.tiles} tiles are finished"


def _run(job: Job, timeline: Path | None) -> None:
    """Run with a progress bar; when an error or an interrupt stops it, print how many tiles are kept."""
    from ...large.streaming.places.place import Events
    from ..terminal import ProductProgress

    console, events = Console(stderr=True), Events()
    try:
        with ProductProgress(console, job.plan.cost.total_s) as progress:
            job.run(progress, events)
    except (KeyboardInterrupt, TilewrightError, OSError, MemoryError) as error:
        stopped = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        kept = f"{job.finished_tiles} of {job.measured.tiles} tiles are finished and kept; --resume continues"
        if job.finished_tiles or isinstance(error, KeyboardInterrupt):
            text = kept if job.finished_tiles else "no tile was finished"
            console.print(f"{stopped}: {text}", highlight=False, markup=False, soft_wrap=True)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(130) from None
        raise
    finally:
        if timeline is not None:
            _write_timeline(job, events, timeline)


def _write_timeline(job: Job, events: Events | None, path: Path) -> None:
    """Write the timeline of the run; without ``events``, write the predicted timeline."""
    from ...large.streaming.run.job import predicted_timeline, timeline
    from ...records.timeline import write_timelines
    from ..inputs.environment import environment

    facts = environment(operands="files")
    write_timelines(path, [predicted_timeline(job, facts) if events is None else timeline(job, events, facts)])


def write_record(kind: str, facts: dict[str, Any], path: Path) -> None:
    """Write the record of a run as one line; the path - means standard output. The record of a dry run has no
    measurements."""
    import sys

    from ..inputs.environment import environment

    line = dumped({"kind": kind, "schema": 1, **facts, "environment": environment(operands="files")}) + "\n"
    if str(path) == "-":
        sys.stdout.write(line)
    else:
        path.write_text(line, encoding="utf-8")


def _verification(found: Verification | None) -> dict[str, Any]:
    """The facts of a verification that a record has. Infinity becomes None, because JSON has no infinity."""
    if found is None:
        return {}
    error = found.error if math.isfinite(found.error) else None
    return {"verification": {"ok": found.ok, "error": error, "bound": found.bound, "where": list(found.where)}}
