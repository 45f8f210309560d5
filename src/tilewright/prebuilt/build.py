"""Build the engine's machine code: ``python -m tilewright.prebuilt [LEVEL …]``, by default for this machine's best level.

Numba translates the functions of ``entries`` to LLVM's representation, without optimising or running any; then all of them
are linked, optimised once and written as an object, by several processes, each with a share of the functions. The system's
C compiler links the objects and ``support.c`` to a shared library of one level in ``built/``, beside a list of the functions
and of the numbers that the library reads (``codegen.setting``). It also builds the C front (``native``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import did_you_mean
from ..host.levels import LEVELS, InstructionLevel, instruction_levels, level_named
from ..host.machine import BUILD_LEVEL, machine
from ..runtime.cpu.library import BUILT, is_current, sources_key
from .native import build_native
from .tools import BuildError, c_compiler

Say = Callable[[str], object]


#: With these variables every build of the same sources has the same bytes: Numba's order of names is that of their hashes.
SAME_EACH_TIME = {"PYTHONHASHSEED": "0"}


# ---- the process that builds -----------------------------------------------------------------------------------------


def build(
    levels: Sequence[InstructionLevel], folder: Path = BUILT, jobs: int | None = None, say: Say = print
) -> list[Path]:
    """Build a library for each level. Raises BuildError where there is no C compiler, or a step fails."""
    if not levels:
        return []
    compilers = [c_compiler(level.arch) for level in levels]
    folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs or machine().usable_cores
    return [_build_level(level, folder, compiler, jobs, say) for level, compiler in zip(levels, compilers, strict=True)]


def _build_level(level: InstructionLevel, folder: Path, compiler: list[str], jobs: int, say: Say) -> Path:
    begun = time.perf_counter()
    say(f"building {level.name} in {jobs} processes …")
    folders = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {BUILD_LEVEL: level.name, "PYTHONPATH": os.pathsep.join(folders), **SAME_EACH_TIME}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        command = [sys.executable, "-c", "from tilewright.prebuilt.build import translate; translate()"]
        shares = [
            subprocess.Popen([*command, str(work / f"{part}"), str(part), str(jobs)], env=environment)
            for part in range(jobs)
        ]
        codes = [share.wait() for share in shares]
        if any(codes):
            raise BuildError(f"{level.name}: a share of the functions could not be compiled; the error is above")
        objects = [str(work / f"{part}.o") for part in range(jobs)]
        library = work / level.file_name
        support = str(Path(__file__).with_name("support.c"))
        link = [*compiler, "-shared", "-fPIC", "-O2", "-s", "-o", str(library), *objects, support]
        linked = subprocess.run(link, capture_output=True, text=True, check=False)
        if linked.returncode:
            raise BuildError(f"{level.name}: {' '.join(compiler)} could not link: {linked.stderr.strip()}")
        made = [json.loads((work / f"{part}.json").read_text()) for part in range(jobs)]
        about = {
            **made[0],
            "functions": sorted(name for each in made for name in each["functions"]),
            "key": sources_key(),
        }
        (work / "about.json").write_text(json.dumps(about))
        for file, target in ((library, level.file_name), (work / "about.json", f"{level.name}.json")):
            shutil.copy(file, folder / f".{target}")
            (folder / f".{target}").replace(folder / target)  # whole, or as it was
    path = folder / level.file_name
    say(f"built {path.name}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - begun:.0f} s")
    return path


# ---- a process that compiles a share of the functions ----------------------------------------------------------------


def translate() -> None:
    """Compile every ``jobs``-th entry from number ``part`` on: the object, and a list of its functions."""
    target, part, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    level = level_named(os.environ[BUILD_LEVEL])
    from .translate import Translator  # imports Numba

    Translator(level).write(Path(target), part, jobs)
    os._exit(0)  # nothing is left to do, and to take down what Numba has built up takes seconds


def make_current(names: Sequence[str] = (), jobs: int | None = None, say: Say = print) -> list[InstructionLevel]:
    """Build the libraries of these levels, by default of this machine's best one, that are not of these sources; returns
    the levels. Raises BuildError as ``build``, and for a level that there is not."""
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
    build_native(say)
    build(old, jobs=jobs, say=say)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.prebuilt", description="Build the engine's machine code."
    )
    levels = ", ".join(level.name for level in LEVELS)
    parser.add_argument("levels", nargs="*", metavar="LEVEL", help=f"of {levels}; by default this machine's best one")
    parser.add_argument("--jobs", type=int, help="processes; by default one for each processor")
    options = parser.parse_args(arguments)
    try:
        make_current(options.levels, options.jobs)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
