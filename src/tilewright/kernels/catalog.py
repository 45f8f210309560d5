"""Finds every kernel by name: the rungs of the ladder, the engine's kernels, the references, and kernels in a user's
files.

There is no list of kernels: this module finds a kernel because the kernel's file lies in one of the folders below.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import KernelFileError, UsageError, did_you_mean
from ..host.disk import fingerprint
from ..host.sources import PACKAGE
from . import Kernel
from .blocking import Blocking, use_candidate
from .declared import split_name

if TYPE_CHECKING:
    from .cuda_kernel import CudaKernel

#: A complete kernel for the CPU; the error about a file without a kernel shows it as an example.
TEMPLATE = """\
from tilewright.kernels import kernel


@kernel(idea="what it does differently", row="", parent="cpu/naive")
def my_kernel(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = 0
            for p in range(a.shape[1]):
                c[i, j] += a[i, p] * b[p, j]
"""

#: Where kernels for the CPU lie: the ladder, the engine, the vendors' libraries.
_ENGINE = "cpu/kernels"
_FOLDERS = ("kernels/cpu", _ENGINE, "kernels/ref")


# Cached throughout: a process imports or reads each of the package's files once.


@functools.cache
def catalog() -> dict[str, Kernel]:
    """Every kernel of the package that runs on the CPU, by name.

    Returns
    -------
    dict of str to Kernel
        The kernels in reading order: the rungs of the ladder, the kernels that ``matmul`` uses, and references, which
        are vendors' libraries.

    See Also
    --------
    tilewright.kernels.Kernel : The class of the entries.
    plan : Shows which kernel a product takes.

    Examples
    --------
    >>> import tilewright as tw
    >>> rungs = [name for name, kernel in tw.ladder().items() if kernel.is_rung]
    >>> rungs[:3]
    ['cpu/naive', 'cpu/transposed', 'cpu/transposed_simd']
    """
    kernels = [kernel for folder in _FOLDERS for kernel in _kernels_in(folder)]
    return {k.name: k for k in sorted(kernels, key=lambda k: (k.is_reference, k.order))}


@functools.cache
def engine() -> dict[str, Kernel]:
    """Return the engine's kernels for the CPU by name; ``matmul`` dispatches to these kernels."""
    return {kernel.name: kernel for kernel in _kernels_in(_ENGINE)}


def _kernels_in(folder: str) -> list[Kernel]:
    paths = sorted((PACKAGE / folder).glob("[0-9a-z]*.py"))
    name = f"{PACKAGE.name}.{folder.replace('/', '.')}"
    return [_only_kernel(importlib.import_module(f"{name}.{path.stem}")) for path in paths]


@functools.cache
def cuda_engine() -> dict[str, CudaKernel]:
    """Return the engine's CUDA kernels by name. ``matmul`` dispatches to the engine's CUDA kernels; they are not rungs
    of the ladder."""
    kernels = [_engine_kernel(path) for path in _engine_files()]
    return {k.name: k for k in kernels}


@functools.cache
def cuda_engine_for(dtype: str) -> tuple[CudaKernel, ...]:
    """Return the engine's CUDA kernels that multiply a dtype. Only the headers of the kernels for this dtype are
    parsed, because parsing the headers of all kernels takes a tenth of a second."""
    named = (path for path in _engine_files() if re.search(rf'^dtypes = \[.*"{dtype}"', path.read_text("utf-8"), re.M))
    return tuple(map(_engine_kernel, named))


def _engine_files() -> list[Path]:
    return sorted((PACKAGE / "gpu/kernels").glob("[a-z]*.cu"))


@functools.cache
def cuda_catalog() -> dict[str, CudaKernel]:
    """Return every rung of the CUDA ladder by name, in reading order."""
    kernels = [_cuda_kernel(path, "cuda") for path in (PACKAGE / "kernels/cuda").glob("[0-9a-z]*.cu")]
    return {k.name: k for k in sorted(kernels, key=lambda k: (k.order, k.name))}


def load_cuda_file(path: str | Path) -> CudaKernel:
    """Load a user's own kernel from a ``.cu`` file anywhere on disk. Raises UsageError if the file has no header, or if
    the header is wrong."""
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"kernel file {path} does not exist")
    return _cuda_kernel(path, "my")


@functools.cache  # for all of the engine, and for each dtype
def _engine_kernel(path: Path) -> CudaKernel:
    return _cuda_kernel(path, "cuda")


def _cuda_kernel(path: Path, folder: str) -> CudaKernel:
    from .header import read_kernel  # a process without a GPU reads none

    number, stem = split_name(re.sub(r"\W+", "_", path.stem))
    return read_kernel(path, name=f"{folder}/{stem}", order=number, entry=stem)


def load_file(path: str | Path) -> Kernel:
    """Load a user's own kernel from a ``.py`` file anywhere on disk. Raises UsageError if the file declares no
    kernel."""
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"kernel file {path} does not exist")
    split_name(path.stem)
    return _loaded(path, f"tilewright_user_{path.stem}")


def remade(kernel: Kernel, chosen: Blocking) -> Kernel:
    """Load a kernel's file again, compiled for another blocking, and return that kernel."""
    # The module's name is part of the names in the machine code, so each blocking needs a module name of its own.
    with use_candidate(chosen):
        return _loaded(kernel.path, f"tilewright_blocking_{fingerprint(chosen)}_{kernel.path.stem}")


class _FromSource(SourceFileLoader):
    """Loads a module from its source each time: cached bytecode is identified by the file's time and size, which an
    edit may leave unchanged."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _loaded(path: Path, name: str) -> Kernel:
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise UsageError(f"kernel file {path}: must be a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"kernel file {path}: {type(error).__name__}: {error}") from error
    return _only_kernel(module)


def _only_kernel(module: ModuleType) -> Kernel:
    kernels = [value for value in vars(module).values() if isinstance(value, Kernel)]
    if len(kernels) != 1:
        wrong = f"kernel file {module.__file__}: must declare exactly one kernel, found {len(kernels)}"
        raise KernelFileError(f"{wrong}. One that works, to begin with:\n\n{TEMPLATE}")
    return kernels[0]


@overload
def find(names: Iterable[str], *, device: Literal["cpu"] = "cpu") -> list[Kernel]: ...
@overload
def find(names: Iterable[str], *, device: Literal["cuda"]) -> list[CudaKernel]: ...
def find(names: Iterable[str], *, device: str = "cpu") -> list[Kernel] | list[CudaKernel]:
    """Return the kernels with these names (``cpu/ikj``, or ``ikj`` for short) or paths of a user's files, in the order
    of ``names``.

    Without names, ``find`` returns the ladder of ``device``, without the engine's kernels. Raises UsageError for an
    unknown name, with a suggestion, and for a kernel of another device.
    """
    known: dict[str, Any] = dict(catalog()) if device == "cpu" else cuda_catalog() | cuda_engine()
    chosen = [_find_one(name, device, known) for name in names]
    return chosen or [k for k in known.values() if (not k.in_engine if device == "cuda" else k.is_rung)]


def _find_one(name: str, device: str, known: dict[str, Any]) -> Any:
    full = name if "/" in name else f"{device}/{name}"
    if name.endswith((".py", ".cu")):
        runs_on = "cuda" if name.endswith(".cu") else "cpu"
        if runs_on == device:
            return load_cuda_file(name) if device == "cuda" else load_file(name)
    elif full in known:
        return known[full]
    elif full in (other := catalog() if device == "cuda" else cuda_catalog() | cuda_engine()):
        runs_on = other[full].device
    else:
        raise UsageError(f"kernel {name!r} is not known: {did_you_mean_kernel(name, [*known, *other], listed=known)}")
    raise UsageError(f"kernel {name!r} runs on device {runs_on}, not on device {device}")


def did_you_mean_kernel(name: str, names: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Suggest kernels whose names are similar to ``name``, as ``did_you_mean`` does. A name without a device is
    compared with the part of each name after "/".

    If no name is similar, the hint lists ``listed``, which is all of ``names`` by default.

    >>> did_you_mean_kernel("coalescd", ["cpu/packed", "cuda/coalesced", "cuda/tf32"])
    'did you mean cuda/coalesced?'
    """
    import difflib  # slow to import, and needed for a wrong name only

    pool = list(names)
    compared = {full: full if "/" in name else full.partition("/")[2] for full in pool}
    close = difflib.get_close_matches(name, dict.fromkeys(compared.values()), n=2, cutoff=0.6)
    similar = [full for like in close for full in pool if compared[full] == like]
    return f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(sorted(listed or pool))}"


def tunable() -> list[str]:
    """Return the kernels that ``tilewright tune`` can tune: those with a blocking or parameters."""
    cpu = [name for name, kernel in catalog().items() if kernel.blocking is not None]
    return cpu + [name for name, kernel in (cuda_catalog() | cuda_engine()).items() if kernel.parameters]


def reference(name: str) -> Kernel:
    """Return the kernel of a vendor's library by name (``openblas``, ``mkl``, …), whether or not that library is
    installed."""
    known = {k.name.split("/")[1]: k for k in catalog().values() if k.is_reference}
    short = name.removeprefix("ref/")
    if short not in known:
        raise UsageError(f"reference {name!r} is not known: {did_you_mean(short, known)}")
    return known[short]
