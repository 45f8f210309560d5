"""The commands ``explain`` and ``occupancy``. A kernel's name tells whether it is explained for a GPU or on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from .application import Console, GroupedCommand, app, check_different_files, check_writeable, say, write_json

if TYPE_CHECKING:
    from ...records.explanation import Explanation
    from ...simulator.requirements import BrokenRequirement


def _list_gpus(name: str) -> str:
    if name == "list":
        from ...simulator.gpus import GPUS

        print("\n".join(gpu.name for gpu in GPUS))
        raise typer.Exit
    return name


#: The options of a launch, which kernels that are no products need.
_OF_LAUNCH = ("grid", "block", "arg", "expect", "shared", "constant", "launch_file")
#: The options that only one of the devices has.
_OF_CUDA = (
    *("gpu", "param", *_OF_LAUNCH, "include", "define", "brief", "whole", "measure", "max_steps", "report_file"),
    *("require", "sarif_file", "annotations"),
)
_OF_CPU = ("dtype", "threads")


_PRODUCT = "Launch of a matrix product"
_ANY = "Launch of any other kernel"
_RUN = "GPU and run"
_COMPILER = "CUDA compiler"
_OUTPUT = "What is shown"
_CI = "Checks in CI"
_CPU = "A kernel on the CPU"

_Kernels = Annotated[
    list[str],
    typer.Argument(
        metavar="KERNEL",
        help="A name that `tilewright ladder` lists, such as coalesced or cpu/packed; or a file of your own: FILE.cu::NAME "
        "or FILE.ptx::NAME for any kernel; FILE.cu for a matrix product with the parameters (const T* a, const T* b, T* c, "
        "int m, int n, int k) and a header that says how it is launched; FILE.py for a kernel on the CPU.",
    ),
]
_Size = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Sizes, separated by commas: N, or MxNxK for C of M×N. Default: 64; 1024 or 2048 if several CUDA kernels or "
        "parameters are compared, so that every multiprocessor has work; 2048 on the CPU.",
        rich_help_panel=_PRODUCT,
    ),
]
_Param = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LIST",
        help="A value for a parameter of the kernels, or several values to try: TILE=8,16,32. Repeatable.",
        rich_help_panel=_PRODUCT,
    ),
]
_Grid = Annotated[
    str | None,
    typer.Option(
        metavar="X[xYxZ]", help="The blocks of the launch: 8, or 4x4 along x and y. Default: 1.", rich_help_panel=_ANY
    ),
]
_Block = Annotated[
    str | None,
    typer.Option(
        metavar="X[xYxZ]",
        help="The threads of a block: 128, or 32x8. Default: the number for which the kernel is compiled, otherwise 32.",
        rich_help_panel=_ANY,
    ),
]
_Arg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="An argument. Give one for each parameter, in order. x:float32:64x32 is an array of random numbers; "
        "x:int32:100:arange, :zeros, :ones or :EXPRESSION sets its elements; x:FILE.npy is an array from a file; "
        "n=100 or 100 is a number.",
        rich_help_panel=_ANY,
    ),
]
_Expect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPR",
        help="What an array should be after the launch, as an expression of NumPy: 'y = 2 * x'. Or FILE.py:FUNCTION, "
        "which gets the arguments. Repeatable.",
        rich_help_panel=_ANY,
    ),
]
_Shared = Annotated[
    int | None, typer.Option(metavar="BYTES", help="The dynamic shared memory of a block.", rich_help_panel=_ANY)
]
_Constant = Annotated[
    list[str] | None,
    typer.Option(metavar="ARG", help="A __constant__ variable, written like --arg. Repeatable.", rich_help_panel=_ANY),
]
_LaunchFile = Annotated[
    Path | None,
    typer.Option(
        "--launch",
        metavar="FILE",
        help="A Python file that sets grid, block, args, expect, … Default: FILE_launch.py in the folder of FILE.cu, if it "
        "exists. A comment '// explain: --grid …' in FILE.cu does the same.",
        rich_help_panel=_ANY,
    ),
]
_Gpu = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        callback=_list_gpus,
        is_eager=True,
        help="The GPU whose limits and rates are used. This machine need not have it. `--gpu list` prints their names.",
        rich_help_panel=_RUN,
    ),
]
_Whole = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="Run every block. Default: of a large launch only a sample of the blocks is run.",
        rich_help_panel=_RUN,
    ),
]
_MaxSteps = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", help="Stop a run when a warp has executed this number of steps.", rich_help_panel=_RUN
    ),
]
_Seed = Annotated[int, typer.Option(metavar="NUMBER", help="The seed of random operands.", rich_help_panel=_RUN)]
_Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Count on this machine's GPU too, with the profiler ncu, and compare. For a matrix product.",
        rich_help_panel=_RUN,
    ),
]
_Include = Annotated[
    list[Path] | None,
    typer.Option(
        "--include", "-I", metavar="DIR", help="A folder with header files. Repeatable.", rich_help_panel=_COMPILER
    ),
]
_Define = Annotated[
    list[str] | None,
    typer.Option(
        "--define", "-D", metavar="NAME[=VALUE]", help="Define a macro. Repeatable.", rich_help_panel=_COMPILER
    ),
]
_Brief = Annotated[
    bool,
    typer.Option("--brief", help="Print one table, with a line for each kernel.", rich_help_panel=_OUTPUT),
]
_Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write JSON, and print nothing else; - is standard output.",
        rich_help_panel=_OUTPUT,
    ),
]
_Page = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write an HTML page with pictures.", rich_help_panel=_OUTPUT),
]
_Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REQUIREMENT",
        help="A limit that every kernel must keep, such as bank_conflicts=0 or 'sectors_per_request<=4.1'. With findings=0, "
        "findings in a library's code do not count, here and for the exit code. Repeatable.",
        rich_help_panel=_CI,
    ),
]
_Sarif = Annotated[
    Path | None,
    typer.Option(
        "--sarif", metavar="FILE", help="Also write the problems as SARIF, for code scanning.", rich_help_panel=_CI
    ),
]
_Annotations = Annotated[
    bool,
    typer.Option(
        "--annotations", help="Also print the problems as annotations for GitHub Actions.", rich_help_panel=_CI
    ),
]
_Dtype = Annotated[str, typer.Option(metavar="NAME", help="The dtype, such as float64.", rich_help_panel=_CPU)]
_Threads = Annotated[int, typer.Option(metavar="NUMBER", help="The number of threads.", rich_help_panel=_CPU)]


@app.command("explain", cls=GroupedCommand)
def explain_command(
    context: typer.Context,
    kernels: _Kernels,
    size: _Size = None,
    param: _Param = None,
    grid: _Grid = None,
    block: _Block = None,
    arg: _Arg = None,
    expect: _Expect = None,
    shared: _Shared = None,
    constant: _Constant = None,
    launch_file: _LaunchFile = None,
    gpu: _Gpu = "H200",
    whole: _Whole = False,
    max_steps: _MaxSteps = 50_000_000,
    seed: _Seed = 1,
    measure: _Measure = False,
    include: _Include = None,
    define: _Define = None,
    brief: _Brief = False,
    json_file: _Json = None,
    report_file: _Page = None,
    require: _Require = None,
    sarif_file: _Sarif = None,
    annotations: _Annotations = False,
    dtype: _Dtype = "float32",
    threads: _Threads = 1,
) -> None:
    """Count the memory accesses of a kernel, and say what limits it.

    A CUDA kernel needs no GPU: it runs on the CPU, instruction by instruction. Races, accesses out of bounds and other
    defects are reported at their source lines. The result of a matrix product is checked at the given size, and again at a
    small, irregular size. The result of another kernel is checked if --expect says what it should be.

    A kernel of the ladder: tilewright explain coalesced --size 256

    A kernel of your own: tilewright explain my.cu::scale --grid 8 --block 128 --arg x:float32:1024 --arg y:float32:1024
    --arg n=1024 --expect "y = 2 * x"

    A kernel on the CPU, such as cpu/packed, is timed and checked. The time of the kernel and the processor's counters,
    if Linux gives access to them, are compared with a cost model. For a kernel on the CPU, the options are --size,
    --dtype, --threads, --seed and --json.

    The exit code is 0 if nothing is wrong. Advice on lines that could be cheaper does not change the exit code. The
    exit code is 1 for a wrong result, a finding, a requirement that is not met, or a launch that the GPU cannot make; 2
    if the command is wrong, the kernel does not compile, or --max-steps stopped a run; 3 if a library is missing; 130
    after an interrupt. Explanations that were finished before an interrupt are kept.
    """
    device = _device(kernels)
    _refuse(context, device)
    check_writeable("json", json_file, dash=True)
    if device == "cpu":
        _explain_cpu(kernels, size or "2048", dtype, threads, seed, json_file)
        return
    from ...simulator.requirements import OF_FINDINGS, broken_requirements, broken_text, required_in
    from ..explain.any_kernel import explain_files, is_explained_alone, named_kernel
    from ..explain.cuda import ExplainRequest, run_explanations
    from ..inputs.launches import LaunchOptions, launch_options

    check_writeable("report", report_file)
    check_writeable("sarif", sarif_file)
    check_different_files(json=json_file, report=report_file, sarif=sarif_file)
    if annotations and str(json_file) == "-":
        raise UsageError("annotations: --annotations and --json - both print on standard output, give one of them")
    asked = [required_in(text) for text in require or []]
    sources = _sources(kernels) if asked or sarif_file or annotations else {}
    request = ExplainRequest(
        *(kernels, size, gpu, param or [], whole, measure, seed, max_steps), include or [], _macros(define or [])
    )
    options = launch_options(grid, block, arg or [], expect or [], shared, constant or [])
    alone = [named_kernel(name) for name in kernels]
    run = partial(run_explanations, request)
    if any(named and is_explained_alone(*named, options, launch_file) for named in alone):
        _refuse_of_products(context)
        run = partial(explain_files, request, options, launch_file)
    elif options != LaunchOptions():
        raise UsageError("--grid, --block, --arg and --expect are for a file of your own, such as my.cu::kernel")
    explanations, interrupted = _explain_cuda(run, shown=json_file is None, brief=brief)
    _write(explanations, json_file, report_file)
    broken = [broken_requirements(asked, e.defects, e.accesses, e.counters, e.advised) for e in explanations]
    for e, of_kernel in zip(explanations, broken, strict=True):
        main = str(sources.get(e.file, e.file))
        for line in broken_text(e.kernel, main, len(asked), of_kernel) if of_kernel else ():
            say(line, file=sys.stderr if json_file else None)
    _tell_code_hosts(explanations, sources, broken, sarif_file, annotations)
    if interrupted:
        raise typer.Exit(130)
    judged = any(requirement.measure in OF_FINDINGS for requirement in asked)
    if any(broken) or any((replace(e, defects=[]) if judged else e).failed for e in explanations):
        raise typer.Exit(1)
    if stopped := [e.kernel for e in explanations if e.stopped]:
        names = ", ".join(dict.fromkeys(stopped))
        raise UsageError(
            f"max-steps: {names} did not end within {max_steps:,} steps, so it was not verified: give more"
        )


def _sources(kernels: list[str]) -> dict[str, Path]:
    """The files that the kernels' names contain, by the file names without a folder, which records use."""
    from ..explain.any_kernel import named_kernel

    paths = dict.fromkeys(named[0] for name in kernels if (named := named_kernel(name)))
    sources = {path.name: path for path in paths}
    if len(sources) < len(paths):
        raise UsageError(f"explain files of the same name in separate runs, got {', '.join(map(str, paths))}")
    return sources


def _tell_code_hosts(
    explanations: list[Explanation],
    sources: dict[str, Path],
    broken: list[list[BrokenRequirement]],
    sarif_file: Path | None,
    annotations: bool,
) -> None:
    """Write and print the problems of kernels in the requested formats. A problem that a kernel has at several sizes is
    reported once."""
    from ..terminal import annotation, problems_of, sarif

    of_kernels = zip(explanations, broken, strict=True)
    problems = [p for e, found in of_kernels for p in problems_of(e, sources.get(e.file, Path(e.file)), found)]
    problems = list(dict.fromkeys(problems))
    if sarif_file is not None:
        write_json(sarif_file, sarif(problems))
    for problem in problems if annotations else ():
        say(annotation(problem))


def _macros(define: list[str]) -> dict[str, str]:
    """Macros by name; a macro without a value is 1, as for a compiler."""
    pairs = [given.partition("=") for given in define]
    return {name: value if equals else "1" for name, equals, value in pairs}


def _explain_cuda(run: Callable[..., object], *, shown: bool, brief: bool) -> tuple[list[Explanation], bool]:
    """The finished explanations of a run, and whether there was an interrupt. If ``shown``, each explanation is printed
    when it is finished; with ``brief``, only a table is printed at the end."""
    from ..terminal import blocks_progress, show_explanations, steps_shown

    explanations: list[Explanation] = []

    def finished(explanation: Explanation) -> None:
        explanations.append(explanation)
        if shown and not brief:
            show_explanations(Console(), [explanation])

    interrupted = False
    try:
        progress = partial(blocks_progress, Console(stderr=True))
        with steps_shown(Console(stderr=True)):
            run(finished=finished, progress=progress)
    except KeyboardInterrupt:
        interrupted = True
    if explanations and shown and (brief or len(explanations) > 1):
        show_explanations(Console(), explanations, brief=True)
    return explanations, interrupted


def _device(kernels: list[str]) -> str:
    """The device of the kernels, by their names; a name that no kernel has counts as cuda. Raises UsageError if the
    kernels have different devices."""
    from ...kernels.catalog import catalog

    def of_cpu(name: str) -> bool:
        return name.endswith(".py") or name in catalog() or f"cpu/{name}" in catalog()

    devices = {name: "cpu" if of_cpu(name) else "cuda" for name in kernels}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise UsageError(f"explain kernels of one device together, got {listed}")
    return devices[kernels[0]]


def _refuse(context: typer.Context, device: str) -> None:
    """Raises UsageError for an option that was given and means nothing on this device."""
    others, what = (_OF_CUDA, "a kernel on the CPU") if device == "cpu" else (_OF_CPU, "a CUDA kernel")
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.removesuffix('_file').replace('_', '-')} means nothing for {what}")


def _refuse_of_products(context: typer.Context) -> None:
    """Raises UsageError for an option that has a meaning only for products."""
    for name in ("size", "param", "measure"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"--{name} is for products of matrices; for any other kernel --grid and --arg give the sizes"
            )


def _explain_cpu(kernels: list[str], size: str, dtype: str, threads: int, seed: int, json_file: Path | None) -> None:
    """Explain the kernels one after another, and print each explanation when it is finished."""
    from ...host.steps import announced
    from ..explain import cpu as explain_cpu
    from ..terminal import show_cpu_explanation, steps_shown

    explanations: list[explain_cpu.CpuExplanation] = []
    interrupted = False
    try:
        for kernel, m, n, k in explain_cpu.check_request(kernels, size, dtype, threads, seed):
            with steps_shown(Console(stderr=True)), announced(f"explaining {kernel.name} at {m}×{n}×{k}"):
                explanations.append(explain_cpu.explain_cpu(kernel, m, n, k, dtype=dtype, threads=threads, seed=seed))
            if json_file is None:
                show_cpu_explanation(Console(), explanations[-1])
    except KeyboardInterrupt:
        interrupted = True
    if json_file is not None and explanations:
        items = [explanation.as_dict() for explanation in explanations]
        write_json(json_file, items[0] if len(items) == 1 else items)
    if interrupted:
        raise typer.Exit(130)
    if not all(explanation.verified["ok"] for explanation in explanations):
        raise typer.Exit(1)


def _write(explanations: list[Explanation], json_file: Path | None, report_file: Path | None) -> None:
    """Write the requested files; write no file if no explanation was finished."""
    if not explanations:
        return
    if json_file is not None:
        from ...records.explanation import to_json

        if str(json_file) == "-":
            sys.stdout.write(to_json(explanations))
        else:
            json_file.write_text(to_json(explanations), encoding="utf-8")
    if report_file is not None:
        from ...records.report import write_explanation

        say(f"page: {write_explanation(explanations, report_file)}", file=sys.stderr if json_file else None)


@app.command("occupancy")
def occupancy_command(
    threads: Annotated[int, typer.Argument(metavar="THREADS", help="The threads of a block, such as 256.")],
    registers: Annotated[int, typer.Option(metavar="NUMBER", help="The registers of a thread.")] = 0,
    shared: Annotated[int, typer.Option(metavar="BYTES", help="The shared memory of a block, static and dynamic.")] = 0,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A GPU, such as T4. Repeatable. Default: all that are known."),
    ] = None,
) -> None:
    """Show how many blocks a multiprocessor holds, and why.

    A block that no GPU can launch is refused: one with too many threads or registers, or too much shared memory.
    """
    from ...simulator.gpus import GPUS, find_gpu
    from ...simulator.occupancy import occupancy as occupancy_of
    from ..terminal import refusals, show_occupancy

    cards = [find_gpu(name) for name in gpu] if gpu else GPUS
    occupancies = [occupancy_of(card, threads, registers, shared) for card in cards]
    if all(one.refusal for one in occupancies):
        raise UsageError(f"no such block can be launched: {'; '.join(refusals(occupancies))}")
    show_occupancy(Console(), occupancies)
