"""Build the C front ``tilewright._native``: one file for every CPython from 3.11 on (abi3), or for one without a GIL."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..host.sources import PACKAGE
from ..native import front_key
from .tools import BuildError, c_compiler

#: The oldest CPython whose interface is asked for.
LIMITED_API = "0x030B0000"


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


def build_native(say: Callable[[str], object] = print) -> Path:
    """Build the extension, unless it is of these sources. Raises BuildError without a C compiler or Python's headers.

    With ``$CFLAGS``, such as those of sanitizers, it is always built, with these flags too.
    """
    target, key, more = PACKAGE / file_name(), front_key(), shlex.split(os.environ.get("CFLAGS", ""))
    if not more and target.is_file() and key.encode() in target.read_bytes():
        return target
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        raise BuildError(f"{headers} has no Python.h: install Python's headers (python3-dev)")
    limited = [] if is_free_threaded() else [f"-DPy_LIMITED_API={LIMITED_API}"]
    includes = [f"-I{folder}" for folder in (headers, np.get_include())]
    flags = [
        "-O2",
        "-std=c11",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Wno-cast-function-type",
    ]
    sources = [str(path) for path in sorted((PACKAGE / "native").glob("*.c"))]
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / target.name
        command = [
            *c_compiler(platform.machine()), *flags, *limited,
            f'-DTILEWRIGHT_KEY="{key}"', *includes, *(more or ["-s"]), "-o", str(made), *sources, "-lm",
        ]  # fmt: skip
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise BuildError(f"{target.name}: {command[0]} failed: {built.stderr.strip()}")
        shutil.copy(made, target.with_name(f".{target.name}"))
        target.with_name(f".{target.name}").replace(target)  # whole, or as it was
    say(f"built {target.name}")
    return target
