"""What a zarr directory holds besides one matrix, by its metadata and the names of its files, without the library."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from .checks import listed
from .output import Output

#: Keys of metadata that say how an array is stored; a user may have added any other.
_STORED = {
    3: {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
        *("attributes", "dimension_names", "storage_transformers"),
    },
    2: {
        *("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"),
        "dimension_separator",
    },
}
_OF_A_GROUP = {"zarr_format", "node_type", "attributes"}


def lost_from(path: Path, output: Output) -> str | None:
    """What a directory holds that is not part of one matrix, as text; None where there is nothing.

    The groups on the path of a member are part of it. Damaged metadata raise FileError, or what their parser raises.
    """
    here = path
    for part in [part for part in (output.member or "").strip("/").split("/") if part]:
        lost = _beside_in_group(here, part)
        if lost is not None:
            return lost
        here = here / part
    return _beside_array(here)


def _beside_in_group(group: Path, member: str) -> str | None:
    metadata = _json(group / "zarr.json")
    if metadata.get("node_type") != "group":
        return "is not a group of zarr 3 with one array"
    others = sorted({entry.name for entry in os.scandir(group)} - {"zarr.json", member})
    if others:
        return f"holds {listed(others, 'object')}"
    if not stat.S_ISDIR((group / member).lstat().st_mode):
        return f"holds {member!r}, which is a link or not a directory"
    return _of_a_user(metadata, _OF_A_GROUP)


def _beside_array(root: Path) -> str | None:
    if (root / ".zarray").exists():
        metadata, version, described = _json(root / ".zarray"), 2, {".zarray", ".zattrs"}
        metadata["attributes"] = _json(root / ".zattrs") if (root / ".zattrs").exists() else {}
    else:
        metadata, version, described = _json(root / "zarr.json"), 3, {"zarr.json"}
        if metadata.get("node_type") != "array":
            inside = sorted(entry.name for entry in os.scandir(root) if entry.name != "zarr.json")
            return f"is a group that holds {listed(inside, 'object')}" if inside else "is a group"
    lost = _of_a_user(metadata, _STORED[version] | {"attributes"}) or _no_matrix(metadata, version)
    if lost is not None:
        return lost
    chunk, grid = _chunks(metadata, version)
    for name, is_file in _entries(root):
        match = chunk.fullmatch(name)
        is_chunk = match is not None and all(int(at) < count for at, count in zip(match.groups(), grid, strict=True))
        if not (is_file and (name in described or is_chunk)):
            return f"holds {name!r}, which is not part of its array"
    return None


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError where there is none."""
    try:
        metadata = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileError(f"holds no {path.name} of a zarr array") from None
    except (ValueError, RecursionError):
        raise FileError(f"holds a damaged {path.name}") from None
    if not isinstance(metadata, dict):
        raise FileError(f"holds a damaged {path.name}")
    return metadata


def _of_a_user(metadata: dict[str, Any], known: set[str]) -> str | None:
    """What a user has added to metadata, as text; None where there is nothing."""
    if metadata.get("attributes"):
        return f"holds {listed(sorted(metadata['attributes']), 'attribute')}"
    if any(metadata.get("dimension_names") or ()):
        return f"names its dimensions {metadata['dimension_names']}"
    others = sorted(key for key in metadata.keys() - known if metadata[key] is not None)
    others += ["storage_transformers"] * bool(metadata.get("storage_transformers"))
    return f"holds {listed(others, 'metadata entry')}" if others else None


def _no_matrix(metadata: dict[str, Any], version: int) -> str | None:
    dtype, shape = metadata["dtype" if version == 2 else "data_type"], metadata["shape"]
    is_number = dtype == "bfloat16" or np.dtype(dtype).kind in "biufc"
    is_matrix = is_number and len(shape) == 2
    return None if is_matrix else f"holds an array of shape {tuple(shape)} and dtype {dtype}, which is not a matrix"


def _chunks(metadata: dict[str, Any], version: int) -> tuple[re.Pattern[str], list[int]]:
    """A pattern of the names of the chunks, and how many chunks there are along rows and columns."""
    if version == 2:
        sides, prefix, between = metadata["chunks"], "", metadata.get("dimension_separator", ".")
    else:
        sides = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        encoding = metadata["chunk_key_encoding"]
        is_default = encoding["name"] == "default"
        between = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        prefix = f"c{between}" if is_default else ""
    number = "(0|[1-9][0-9]{0,18})"
    name = re.escape(prefix) + number + re.escape(between) + number
    return re.compile(name), [-(-size // side) for size, side in zip(metadata["shape"], sides, strict=True)]


def _entries(root: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    """The names below a directory, and whether each is a file. Left out are directories that hold something, and empty
    ones that are named like those of chunks."""
    for entry in sorted(os.scandir(root / below), key=lambda entry: entry.name):
        name = f"{below}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry.is_file(follow_symlinks=False)
            continue
        inside = list(_entries(root, f"{name}/"))
        yield from inside
        if not inside and not re.fullmatch(r"c|(c/)?[0-9]+", name):
            yield f"{name}/", False
