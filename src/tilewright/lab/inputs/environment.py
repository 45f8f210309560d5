"""The environment of a record: all facts that decide whether two records may be compared."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import threadpoolctl
from llvmlite import binding

from ...host.machine import VARIABLE, machine
from ...host.sources import PACKAGE


def environment(*, operands: str, command: str | None = None) -> dict[str, Any]:
    """The environment as plain JSON values: processor, caches, libraries, thread pools, revision, command and time."""
    m = machine()
    pools = threadpoolctl.threadpool_info()
    return {
        "processor": m.processor or platform.machine(),
        **({"described_by": Path(os.environ[VARIABLE]).name} if VARIABLE in os.environ else {}),
        "cores": m.usable_cores,
        "cores_why": m.usable_why,
        "llvm_cpu": binding.get_host_cpu_name(),
        "vector_bits": m.vector_bits,
        "vector_registers": m.vector_registers,
        "caches": {f"L{c.level} {c.type}": str(c) for c in m.caches},
        "memory_bytes": m.memory_total,
        "system": m.system,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("tilewright", "numpy", "numba", "llvmlite")},
        **{name: _version(name) for name in ("torch",) if name in sys.modules},  # loaded only if it is a reference
        "blas": {p["internal_api"]: p["version"] for p in pools if p["user_api"] == "blas"},
        "blas_kernels": {p["internal_api"]: p["architecture"] for p in pools if p.get("architecture")},
        "thread_pools": sorted({f"{p['internal_api']} ({p.get('threading_layer', p['user_api'])})" for p in pools}),
        "operands": operands,
        "git": _git_revision(),
        "command": command or shlex.join(["tilewright", *sys.argv[1:]]),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """The git revision of the working tree from which this package runs, with "+" if files are changed; None for an
    installed package."""
    here = PACKAGE.resolve()
    git = ["git", "-C", str(here)]
    try:
        known = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False)
        if known.returncode != 0:
            return None
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", str(here)],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
