"""Compiles a source with its host code by nvcc, if a CUDA toolkit and a host compiler are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def nvcc() -> str:
    """The path of nvcc: on PATH, else under CUDA_HOME; empty if it is not installed."""
    under_home = str(Path(os.environ["CUDA_HOME"], "bin")) if os.environ.get("CUDA_HOME") else None
    return shutil.which("nvcc") or (shutil.which("nvcc", path=under_home) if under_home else None) or ""


def compile_by_nvcc(
    source: str, name: str, arch: str, macros: Mapping[str, str], folders: Sequence[Path]
) -> tuple[str, bytes, str] | None:
    """The PTX, the binary and the log of a source, whose file is ``name``. Returns None if nvcc is not installed or
    refuses the source.

    ``folders`` are searched for included files. The result holds those instances of template kernels that the host code
    uses.
    """
    tool = nvcc()
    if not tool:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "source.cu")
        file.write_text(f'#line 1 "{name}"\n{source}', encoding="utf-8")
        options = ["-cubin", "-keep", "--keep-dir", folder, "-lineinfo", f"-arch={arch}", "-std=c++17"]
        options += ["--expt-relaxed-constexpr", "--extended-lambda", "-o", f"{folder}/source.cubin"]
        options += [*(f"-D{key}={value}" for key, value in macros.items()), *(f"-I{each}" for each in folders)]
        done = subprocess.run([tool, *options, str(file)], capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            return None
        return Path(folder, "source.ptx").read_text(), Path(folder, "source.cubin").read_bytes(), done.stderr
