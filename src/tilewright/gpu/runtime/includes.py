"""Which files a CUDA source includes, and the folders in which the compiler looks for them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UnavailableError, UsageError
from ...host.sources import PACKAGE

#: Where ``prelude.cuh`` is, for the kernels of the package and for those of users.
PRELUDE = PACKAGE / "kernels" / "cuda"
#: Where the headers of asynchronous instructions are, for the same.
ENGINE = PACKAGE / "gpu" / "kernels"

#: Replacements for the host's headers that sources for nvcc include: NVRTC has none of these.
HOST_HEADERS = PRELUDE / "host_headers"

#: The first NVRTC that brings CUDA's own headers and libcu++.
_BRINGS_HEADERS = (13, 3)

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(.*))$', re.MULTILINE)


def folders_of(name: str, include: Sequence[str | Path]) -> list[Path]:
    """The folders of includes: that of the file, the caller's, those of the package's kernels, and that of replaced
    host headers. Raises UsageError where one of the caller's is not there."""
    if isinstance(include, str | Path):
        raise UsageError(f"include must be a list of folders, such as [{str(include)!r}], given {include!r}")
    for folder in include:
        if not Path(folder).is_dir():
            raise UsageError(f"include: {folder} is not a folder")
    own = [Path(name).absolute().parent] if "/" in name or os.sep in name else []
    return [*own, *(Path(folder).absolute() for folder in include), PRELUDE, ENGINE, HOST_HEADERS]


@dataclass(frozen=True)
class Includes:
    """The files that a source includes, directly or through other files, each with its digest.

    ``missing``: names of included files that are not in these folders. They come with the compiler, whose version is in the
    cache key. ``complete``: no include is named by a macro, so all included files are known.
    """

    files: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    complete: bool


def included(source: str, folders: Sequence[Path]) -> Includes:
    """What a source includes from these folders; conditions of the preprocessor are not evaluated."""
    found: dict[Path, str] = {}
    missing: dict[str, None] = {}
    complete = True
    waiting: list[tuple[str, Sequence[Path]]] = [(source, folders)]
    while waiting:
        text, places = waiting.pop()
        for quoted, angled, macro in _INCLUDE.findall(text):
            path = next((p for folder in places if (p := folder / (quoted or angled)).is_file()), None)
            complete = complete and not macro.strip()
            if path is None:
                missing[quoted or angled] = None
            elif path not in found:
                content = path.read_bytes()
                found[path] = hashlib.sha256(content).hexdigest()
                waiting.append((content.decode(errors="replace"), [path.parent, *folders]))
    return Includes(tuple(sorted((str(path), digest) for path, digest in found.items())), tuple(missing), complete)


def headers_needed(includes: Includes, compiler: str) -> list[Path] | None:
    """The folders of CUDA's own headers that a source needs: none, those of a toolkit, or None for those that NVRTC brings.

    Raises UnavailableError where an older NVRTC brings none, the source includes one, and no toolkit is installed.
    """
    if not includes.missing:
        return []
    found = re.search(r"(\d+)\.(\d+)", compiler)
    if found is None or (int(found[1]), int(found[2])) >= _BRINGS_HEADERS:
        return None
    folders = toolkit_headers()
    for header in includes.missing:
        if (package := _package_of(header)) and not any((folder / header).is_file() for folder in folders):
            newest = ".".join(map(str, _BRINGS_HEADERS))
            raise UnavailableError(
                f"{header}: not found, and {compiler} brings no headers: pip install {package}, or an nvidia-cuda-nvrtc "
                f"from {newest} on"
            )
    return folders


def toolkit_headers() -> list[Path]:
    """The folders with CUDA's headers and libcu++ that are installed: by wheels, else in a toolkit."""
    from importlib import metadata  # slow, and only needed to compile for a GPU

    folders = []
    for package in ("nvidia-cuda-runtime", "nvidia-cuda-cccl"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            for file in metadata.files(package) or []:
                if file.name in ("cuda_fp16.h", "pipeline") and "include" in file.parts:
                    at = Path(str(file.locate()))
                    folders.append(at.parent if file.name == "cuda_fp16.h" else at.parents[1])
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            folders += [Path(home, "include"), Path(home, "include", "cccl")]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


@functools.cache
def is_library(file: str) -> bool:
    """Whether a source file is a header of CUDA, its libraries or this package: not one of the user's.

    >>> is_library("/usr/local/cuda-13.0/targets/x86_64-linux/include/cuda_fp16.hpp"), is_library("/home/me/tile.cuh")
    (True, False)
    """
    own = file.startswith((f"{PRELUDE}/", f"{ENGINE}/")) and not file.endswith(".cu")
    return own or _LIBRARIES.search(file) is not None


_LIBRARIES = re.compile(
    r"/(nvrtc-bundled-headers|cuda(-[\d.]+)?/(targets/[^/]+/)?include|nvidia/(cu\d+|cuda_\w+)/include)/"
)

#: Beginnings of the names of headers, and the package that has them.
_PACKAGES = {
    "cuda/": "nvidia-cuda-cccl",
    "nv/": "nvidia-cuda-cccl",
    "cub/": "nvidia-cuda-cccl",
    "thrust/": "nvidia-cuda-cccl",
    "cuda_": "nvidia-cuda-runtime",
    "cooperative_groups": "nvidia-cuda-runtime nvidia-cuda-cccl",
    "mma.h": "nvidia-cuda-runtime nvidia-cuda-crt",
    "curand": "nvidia-curand",
}


def _package_of(header: str) -> str:
    return next((package for start, package in _PACKAGES.items() if header.startswith(start)), "")


def hint_for(header: str, quoted: bool) -> str:
    """What to do about a header that the compiler does not find, in one line; empty for the host's own headers.

    ``quoted``: the source has its name in quotation marks, as it has those of its own files.
    """
    for folder in toolkit_headers():
        if (folder / header).is_file():
            return f"hint: it is in {folder}: give this folder as include=[…], or with -I"
    if package := _package_of(header):
        return f"hint: pip install {package}"
    if quoted or "/" in header or header.endswith((".cuh", ".hpp", ".inl", ".cu")):
        return f"hint: give the folder that has {header} as include=[…], or with -I"
    return ""
