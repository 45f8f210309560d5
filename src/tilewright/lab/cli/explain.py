"""``explain``: what a kernel does, and why it is as fast as it is. The kernel's name decides for which device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from .application import Console, Json, Param, app, check_different_files, check_writeable, say, write_json

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


_Kernels = Annotated[
    list[str],
    typer.Argument(
        metavar="KERNEL",
        help="Names, such as cuda/coalesced or coalesced or cpu/packed (see: tilewright ladder), or files of your own: "
        "FILE.cu::KERNEL or FILE.ptx with --grid, --block and --arg; a FILE.cu with a header, whose kernel takes "
        "(const T* a, const T* b, T* c, int m, int n, int k); or Python, such as my.py, with a kernel for the CPU.",
    ),
]
_Size = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Sizes joined by commas: N, or MxNxK (C is M×N), as bench takes them. Default: 64; where several CUDA "
        "kernels or parameters are compared, 1024 or 2048, so that every multiprocessor has work; on the CPU 2048.",
    ),
]
_Dtype = Annotated[str, typer.Option(metavar="NAME", help="For a kernel on the CPU: the dtype, such as float64.")]
_Threads = Annotated[int, typer.Option(metavar="NUMBER", help="For a kernel on the CPU: how many threads.")]
_Gpu = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        callback=_list_gpus,
        is_eager=True,
        help="The card to explain it for; this machine need not have it. `--gpu list` prints all known cards.",
    ),
]
_Brief = Annotated[bool, typer.Option("--brief", help="Only one table, with a line for each kernel.")]
_Whole = Annotated[
    bool, typer.Option("--whole", help="Run every block. Default: above 512³ only a sample of the blocks.")
]
_Measure = Annotated[bool, typer.Option("--measure", help="Count on this machine's GPU too, with ncu, and compare.")]
_MaxSteps = Annotated[
    int, typer.Option(metavar="NUMBER", help="Stop a run when a warp has taken this number of steps.")
]
_Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random operands.")]
_Include = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", metavar="DIR", help="A folder with header files. Repeatable."),
]
_Define = Annotated[
    list[str] | None, typer.Option("--define", "-D", metavar="NAME[=VALUE]", help="Define a macro. Repeatable.")
]
_Grid = Annotated[
    str | None,
    typer.Option(metavar="X[xYxZ]", help="For a kernel that is not a matrix product: the blocks of the launch."),
]
_Block = Annotated[
    str | None,
    typer.Option(metavar="X[xYxZ]", help="The threads of a block. Default: what the kernel is compiled for, else 32."),
]
_Arg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="An argument; give one for each parameter, in order. x:float32:64x32 is an array of random numbers; "
        "x:int32:100:arange, :zeros, :ones or :EXPRESSION sets other elements; x:FILE.npy is an array from a file; "
        "n=100 or 100 is a number. Repeatable.",
    ),
]
_Expect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPR",
        help="The right result, as an expression of NumPy: 'y = 2 * x', or the right side alone; or FILE.py:FUNCTION, which "
        "gets the arguments. Repeatable.",
    ),
]
_Shared = Annotated[int | None, typer.Option(metavar="BYTES", help="Dynamic shared memory of a block.")]
_Constant = Annotated[
    list[str] | None, typer.Option(metavar="ARG", help="A __constant__ variable, written as an argument. Repeatable.")
]
_LaunchFile = Annotated[
    Path | None,
    typer.Option(
        "--launch",
        metavar="FILE",
        help="A Python file that sets grid, block, args, expect, … Default: FILE_launch.py beside FILE.cu, if it exists. "
        "A comment '// explain: --grid …' in FILE.cu does the same.",
    ),
]
_Page = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML) with pictures too.")]
_Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REQUIREMENT",
        help="A limit for each kernel, such as bank_conflicts=0 or 'sectors_per_request<=4.1'. findings=0 does not count "
        "findings in a library's code, and the exit code then ignores them, too. Repeatable.",
    ),
]
_Sarif = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Also write the problems as SARIF, for code scanning.")
]
_Annotations = Annotated[
    bool, typer.Option("--annotations", help="Also print the problems as annotations of GitHub's workflows.")
]


@app.command("explain")
def explain_command(
    context: typer.Context,
    kernels: _Kernels,
    size: _Size = None,
    dtype: _Dtype = "float32",
    threads: _Threads = 1,
    gpu: _Gpu = "H200",
    param: Param = None,
    grid: _Grid = None,
    block: _Block = None,
    arg: _Arg = None,
    expect: _Expect = None,
    shared: _Shared = None,
    constant: _Constant = None,
    launch_file: _LaunchFile = None,
    include: _Include = None,
    define: _Define = None,
    brief: _Brief = False,
    whole: _Whole = False,
    measure: _Measure = False,
    max_steps: _MaxSteps = 50_000_000,
    seed: _Seed = 1,
    json_file: Json = None,
    report_file: _Page = None,
    require: _Require = None,
    sarif_file: _Sarif = None,
    annotations: _Annotations = False,
) -> None:
    """Count the memory accesses of a kernel, and say what limits it.

    A CUDA kernel needs no GPU: it runs on the CPU, instruction by instruction. Races, accesses out of bounds and other
    mistakes are reported at their source lines. The result of a matrix product is verified, also at a small odd size.
    The result of another kernel is verified if --expect gives the right one.

    Any kernel: tilewright explain my.cu::scale --grid 8 --block 128 --arg x:float32:1024 --arg y:float32:1024
    --arg n=1024 --expect "y = 2 * x"

    A kernel on the CPU is timed and verified. It is compared with a cost model (operations an access of its tile and
    blocks, bytes through each cache, instructions of its inner loop) and with the processor's counters, if Linux gives
    access to them. Its options are --size, --dtype, --threads, --seed and --json.

    The exit code is 1 if something is wrong, breaks a requirement, or cannot be launched on the card, and 2 if a run was
    stopped by --max-steps.
    After an interrupt, finished explanations are kept.
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
        raise UsageError("annotations: are printed on standard output, as --json - is")
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
    """The files among the kernels, by their names without a folder, which records have."""
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
    """Write and print what is wrong in the formats that were asked for; a kernel of several sizes has a problem once."""
    from ..terminal import annotation, problems_of, sarif

    of_kernels = zip(explanations, broken, strict=True)
    problems = [p for e, found in of_kernels for p in problems_of(e, sources.get(e.file, Path(e.file)), found)]
    problems = list(dict.fromkeys(problems))
    if sarif_file is not None:
        write_json(sarif_file, sarif(problems))
    for problem in problems if annotations else ():
        say(annotation(problem))


def _macros(define: list[str]) -> dict[str, str]:
    """Macros by name; one without a value is 1, as for a compiler."""
    pairs = [given.partition("=") for given in define]
    return {name: value if equals else "1" for name, equals, value in pairs}


def _explain_cuda(run: Callable[..., object], *, shown: bool, brief: bool) -> tuple[list[Explanation], bool]:
    """The finished explanations of a run, and whether there was an interrupt. If ``shown``, each is printed when it is
    finished; with ``brief``, only a table at the end."""
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
    """The device of the kernels, by their names; cuda for names that no kernel has. Raises UsageError where they differ."""
    from ...kernels.catalog import catalog

    def of_cpu(name: str) -> bool:
        return name.endswith(".py") or name in catalog() or f"cpu/{name}" in catalog()

    devices = {name: "cpu" if of_cpu(name) else "cuda" for name in kernels}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise UsageError(f"kernels of one device can be explained together, got {listed}")
    return devices[kernels[0]]


def _refuse(context: typer.Context, device: str) -> None:
    """Raises UsageError for an option that was given and means nothing on this device."""
    others, what = (_OF_CUDA, "a kernel on the CPU") if device == "cpu" else (_OF_CPU, "a CUDA kernel")
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.removesuffix('_file').replace('_', '-')} means nothing for {what}")


def _refuse_of_products(context: typer.Context) -> None:
    """Raises UsageError for an option that means something for products alone."""
    for name in ("size", "param", "measure"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"--{name} is for products of matrices; of any other kernel --grid and --arg give the sizes"
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
    """Write the requested files; none if nothing was finished."""
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
    threads: Annotated[int, typer.Argument(metavar="THREADS", help="The number of threads of a block, such as 256.")],
    registers: Annotated[int, typer.Option(metavar="NUMBER", help="The number of registers of a thread.")] = 0,
    shared: Annotated[
        int, typer.Option(metavar="BYTES", help="Bytes of shared memory of a block, static and dynamic together.")
    ] = 0,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A GPU, such as T4. May be repeated. Default: all known GPUs."),
    ] = None,
) -> None:
    """Show how many blocks a multiprocessor holds, and why.

    A block that no card can launch is refused: it has too many threads or registers, or too much shared memory.
    """
    from ...simulator.gpus import GPUS, find_gpu
    from ...simulator.occupancy import occupancy as occupancy_of
    from ..terminal import refusals, show_occupancy

    cards = [find_gpu(name) for name in gpu] if gpu else GPUS
    occupancies = [occupancy_of(card, threads, registers, shared) for card in cards]
    if all(one.refusal for one in occupancies):
        raise UsageError(f"no such block can be launched: {'; '.join(refusals(occupancies))}")
    show_occupancy(Console(), occupancies)
