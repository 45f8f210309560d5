"""Builds the engine's machine code. The command is ``python -m tilewright.prebuilt [LEVEL …]``; without a level it
builds for this machine's best level of instructions.

Numba translates the functions of ``entries`` to LLVM's representation; it neither optimises nor runs them. Then all
functions that belong to one kernel of the engine are linked, optimised once and written as an object file. Several
processes do this. The system's C compiler links the objects and ``support.c`` to a shared library for one level, in
``built/``. A file next to the library lists the library's functions and the numbers that it reads
(``cpu.codegen.setting``). Object files are kept, so that after a change of one kernel only this kernel is built again.
The command also builds the C front (``native``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..cpu.native import front_key
from ..cpu.runtime.facts import BEFORE_VECTORS, FOR_VECTORS, KERNEL
from ..cpu.runtime.library import BUILT, NO_KERNEL, SOURCES, is_current, sources_key
from ..errors import did_you_mean
from ..host import sources
from ..host.disk import fingerprint
from ..host.levels import LEVELS, InstructionLevel, instruction_levels, level_named
from ..host.machine import BUILD_LEVEL, machine
from ..host.sources import PACKAGE
from ..kernels.catalog import engine
from .tools import BuildError, c_compiler, put

Say = Callable[[str], object]


#: With these variables, every build of the same sources has the same bytes, because Numba orders names by their hashes.
SAME_EACH_TIME = {"PYTHONHASHSEED": "0"}
#: The functions that belong to no kernel take as long to build as a kernel with this number of dtypes.
WEIGHT_OF_OTHERS = 14


# ---- the process that builds -----------------------------------------------------------------------------------------


def build(
    levels: Sequence[InstructionLevel], folder: Path = BUILT, jobs: int | None = None, say: Say = print
) -> list[Path]:
    """Build a library of machine code for each level. Raises BuildError if there is no C compiler, or if a step of the
    build fails."""
    if not levels:
        return []
    compilers = [c_compiler(level.arch) for level in levels]
    folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs or machine().usable_cores
    return [_build_level(level, folder, compiler, jobs, say) for level, compiler in zip(levels, compilers, strict=True)]


def _build_level(level: InstructionLevel, folder: Path, compiler: list[str], jobs: int, say: Say) -> Path:
    begun = time.perf_counter()
    objects = _objects(level, folder / "objects" / level.name, jobs, say)
    made = [json.loads(path.with_suffix(".json").read_text()) for path in objects]
    about = {
        **made[0],
        "functions": sorted(name for each in made for name in each["functions"]),
        "key": sources_key(),
    }
    with tempfile.TemporaryDirectory() as name:
        library, facts = Path(name) / level.file_name, Path(name) / f"{level.name}.json"
        facts.write_text(json.dumps(about))
        support = str(Path(__file__).with_name("support.c"))
        link = [*compiler, "-shared", "-fPIC", "-O2", "-s", "-o", str(library), *map(str, objects), support]
        linked = subprocess.run(link, capture_output=True, text=True, check=False)
        if linked.returncode:
            raise BuildError(f"{level.name}: {' '.join(compiler)} could not link: {linked.stderr.strip()}")
        for file in (library, facts):
            put(file, folder)
    path = folder / level.file_name
    say(f"built {path.name}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - begun:.0f} s")
    return path


def _objects(level: InstructionLevel, folder: Path, jobs: int, say: Say) -> list[Path]:
    """The objects of a level, one for each kernel; those of other sources than these are made anew."""
    own = own_sources()
    shared = [path for path in sources.files(SOURCES) if path.parent != PACKAGE / "cpu" / "kernels"]
    keys = {kernel: fingerprint(level.name, *shared, *paths) for kernel, paths in own.items()}
    objects = {kernel: folder / f"{kernel.rpartition('/')[2]}-{key}.o" for kernel, key in keys.items()}
    missing = [kernel for kernel, path in objects.items() if not path.with_suffix(".json").is_file()]
    say(f"building {level.name}: {len(missing)} of {len(objects)} objects, in {jobs} processes …")
    folder.mkdir(parents=True, exist_ok=True)
    for path in set(folder.iterdir()) - {path.with_suffix(end) for path in objects.values() for end in (".o", ".json")}:
        path.unlink()
    folders = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {BUILD_LEVEL: level.name, "PYTHONPATH": os.pathsep.join(folders), **SAME_EACH_TIME}
    command = [sys.executable, "-c", "from tilewright.prebuilt.build import translate; translate()"]
    shares = [
        subprocess.Popen(
            [*command, *(f"{kernel}={objects[kernel].with_suffix('')}" for kernel in share)], env=environment
        )
        for share in even_shares(missing, jobs)
    ]
    codes = [share.wait() for share in shares]
    if any(codes):
        raise BuildError(f"{level.name}: a share of the functions could not be compiled; the error is above")
    return list(objects.values())


def own_sources() -> dict[str, list[Path]]:
    """Return, for each kernel of the engine, the source files that only this kernel needs; and those that only the
    functions without a kernel need."""
    kernels = {kernel.name: [kernel.path] for kernel in engine().values()}
    return {NO_KERNEL: [kernel.path for kernel in (KERNEL, FOR_VECTORS, BEFORE_VECTORS)], **kernels}


def even_shares(kernels: Sequence[str], jobs: int) -> list[list[str]]:
    """Divide kernels among at most ``jobs`` processes, so that all processes take about the same time: kernels with the
    most dtypes come first, and each kernel goes to the process with the least work so far.

    >>> even_shares([], 2)
    []
    """
    weights = {kernel.name: len(kernel.dtypes) + len(kernel.sums) for kernel in engine().values()}
    shares: list[list[str]] = [[] for _ in range(jobs)]
    for kernel in sorted(kernels, key=lambda name: -weights.get(name, WEIGHT_OF_OTHERS)):
        min(shares, key=lambda share: sum(weights.get(name, WEIGHT_OF_OTHERS) for name in share)).append(kernel)
    return [share for share in shares if share]


# ---- a process that compiles a share of the functions ----------------------------------------------------------------


def translate() -> None:
    """Compile kernels, each given as ``NAME=PATH``, to an object ``PATH.o`` and a list of its functions,
    ``PATH.json``."""
    level = level_named(os.environ[BUILD_LEVEL])
    from ..cpu.runtime.entries import entries  # imports Numba
    from .translate import Translator

    translator, known = Translator(level), list(entries())
    for given in sys.argv[1:]:
        kernel, _, path = given.partition("=")
        wanted = (entry for entry in known if entry.kernel == kernel)
        translator.write(Path(path), wanted, is_for_calls=kernel == NO_KERNEL)
    os._exit(0)  # nothing is left to do, and to take down what Numba has built up takes seconds


def make_current(names: Sequence[str] = (), jobs: int | None = None, say: Say = print) -> list[InstructionLevel]:
    """Build the libraries of these levels that are not up to date; by default only the library of this machine's best
    level. Returns all of these levels, whether or not their libraries were built now. Raises BuildError as ``build``
    does, and for a level that does not exist."""
    known = {level.name: level for level in LEVELS}
    if wrong := [name for name in names if name not in known]:
        raise BuildError(f"there is no level {wrong[0]}; {did_you_mean(wrong[0], known)}")
    arch, sets = platform.machine(), machine().isa
    chosen = [known[name] for name in names] or instruction_levels(arch, sets)[:1]
    if not chosen:
        raise BuildError(f"no level is known for {arch} with {', '.join(sets) or 'unknown instruction sets'}")
    old = [level for level in chosen if not is_current(level)]
    if not old:
        say(f"up to date: {', '.join(level.name for level in chosen)}")
    build_native(say, chosen[0].arch)
    build(old, jobs=jobs, say=say)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.prebuilt", description="Build the engine's machine code, or the kernels of GPUs."
    )
    levels = ", ".join(level.name for level in LEVELS)
    parser.add_argument("levels", nargs="*", metavar="LEVEL", help=f"of {levels}; by default this machine's best one")
    parser.add_argument("--jobs", type=int, help="processes; by default one for each processor")
    parser.add_argument("--gpu", metavar="ARCH", help="build the archive of a GPU's kernels instead, such as sm_90a")
    parser.add_argument("--count", type=int, help="products that are planned to find them, of each dtype and layout")
    parser.add_argument(
        "--folder", type=Path, default=BUILT, help="where the archive is put; by default in the package"
    )
    options = parser.parse_args(arguments)
    try:
        if options.gpu:
            from . import gpu

            gpu.build_archive(options.gpu, count=options.count or gpu.COUNT, folder=options.folder, jobs=options.jobs)
        else:
            make_current(options.levels, options.jobs)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


# ---- native ----------------------------------------------------------------------------------------------------------
# Build the C front ``tilewright._native``: one file for every CPython from 3.11 on (abi3), or for one without a GIL.


#: The oldest CPython whose stable interface the extension uses.
LIMITED_API = "0x030B0000"
FLAGS = (
    *("-O2", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wno-cast-function-type"),
)


def file_name() -> str:
    """Return the file name of the extension. The extension uses the stable interface (abi3), which interpreters without
    a GIL do not have."""
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}" if is_free_threaded() else "_native.abi3.so"


def python_tag() -> str:
    """Return the tags of interpreter and interface for a wheel with the extension."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{version}-{version}t" if is_free_threaded() else "cp311-abi3"


def is_free_threaded() -> bool:
    """Return whether this interpreter has no GIL."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def native_file(arch: str) -> Path:
    """Return the path at which the extension is built. For another architecture the path is not the one from which this
    interpreter would load the extension."""
    return PACKAGE / file_name() if arch == platform.machine() else BUILT / arch / file_name()


def build_native(say: Callable[[str], object] = print, arch: str = platform.machine()) -> Path | None:
    """Build the extension of the C front, unless it is up to date. Returns None if Python's headers are missing. Raises
    BuildError if there is no C compiler. This machine's headers of Python are also used to build for another 64-bit
    architecture, because the interface is the same.

    If ``$CFLAGS`` is set, for example for sanitizers, the extension is always built, with these flags in addition.
    """
    target, key, more = native_file(arch), front_key(), shlex.split(os.environ.get("CFLAGS", ""))
    if not more and target.is_file() and key.encode() in target.read_bytes():
        return target
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        say(
            f"no C front, so short calls take longer: {headers} has no Python.h: install Python's headers (python3-dev)"
        )
        return None
    limited = [] if is_free_threaded() else [f"-DPy_LIMITED_API={LIMITED_API}"]
    includes = [f"-I{folder}" for folder in (headers, np.get_include())]
    sources = [str(path) for path in sorted((PACKAGE / "cpu" / "native").glob("*.c"))]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / target.name
        command = [
            *c_compiler(arch), *FLAGS, *limited,
            f'-DTILEWRIGHT_KEY="{key}"', *includes, *(more or ["-s"]), "-o", str(made), *sources, "-lm",
        ]  # fmt: skip
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise BuildError(f"{target.name}: {command[0]} failed: {built.stderr.strip()}")
        put(made, target.parent)
    say(f"built {target.name}")
    return target
