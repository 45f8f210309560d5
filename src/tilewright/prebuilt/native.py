"""Build the C front ``tilewright._native``: one file for every CPython from 3.11 on (abi3), or for one without a GIL."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..host.sources import PACKAGE
from ..native import front_key
from ..runtime.cpu.library import BUILT
from .tools import BuildError, c_compiler, put

#: The oldest CPython whose interface is asked for.
LIMITED_API = "0x030B0000"
FLAGS = (
    *("-O2", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wno-cast-function-type"),
)


def file_name() -> str:
    """The extension's file: abi3, but an interpreter without a GIL has no stable interface."""
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}" if is_free_threaded() else "_native.abi3.so"


def python_tag() -> str:
    """The tags of a wheel with the extension: interpreter and interface."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{version}-{version}t" if is_free_threaded() else "cp311-abi3"


def is_free_threaded() -> bool:
    """Whether this interpreter has no GIL."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def native_file(arch: str) -> Path:
    """Where the extension is built; that for another architecture not where this interpreter looks for its own."""
    return PACKAGE / file_name() if arch == platform.machine() else BUILT / arch / file_name()


def build_native(say: Callable[[str], object] = print, arch: str = platform.machine()) -> Path | None:
    """Build the extension, unless it is of these sources. None without Python's headers. Raises BuildError without a C
    compiler. The headers are this machine's for another architecture of 64 bits, too: the interface is the same.

    With ``$CFLAGS``, such as those of sanitizers, it is always built, with these flags too.
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
    sources = [str(path) for path in sorted((PACKAGE / "native").glob("*.c"))]
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
