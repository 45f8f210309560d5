"""Makes pictures of asynchronous kernels for the page about them, from runs in the microscope."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.records.pipeline import Pipeline, SwizzledTile
from tilewright.records.report.access_picture import Picture
from tilewright.records.report.pipeline_section import (
    phase_picture,
    pipeline_picture,
    standalone_picture,
    swizzle_picture,
)

from .common import ROOT

KERNELS = ROOT / "tests" / "microscope" / "asynchronous"
#: The descriptor of A in the product, and the same without its swizzle.
DESCRIPTOR = "descriptor(s.a[slot][half * 64], 16, 1024)"
WITHOUT_SWIZZLE = f"({DESCRIPTOR} & ~(3ull << 62))"
#: Columns of k of the product: six steps in four stages.
DEPTH = 6 * 64


@functools.cache
def ring() -> Pipeline:
    """Return the pipeline of seven rows in the ring of two stages."""
    x = np.zeros((7, 128), np.float32)
    return _seen(
        tw.microscope(ROOT / "examples" / "ring_of_copies.cu", "ring", 1, 160, [x, np.zeros(128, np.float32), 7])
    )


@functools.cache
def product(descriptor: str = DESCRIPTOR) -> Pipeline:
    """Return the pipeline of one tile of a product in bf16, with a given descriptor of A."""
    source = (KERNELS / "product.cu").read_text(encoding="utf-8")
    assert DESCRIPTOR in source
    maps = [tw.TensorMap(np.zeros((128, DEPTH), np.uint16), (128, 64), swizzle=128, data_type="bf16") for _ in "ab"]
    args = [*maps, np.zeros((128, 128), np.float32), 128, 128, DEPTH]
    seen = tw.microscope(
        source.replace(DESCRIPTOR, descriptor), "product", 1, 384, args, arch="sm_90a", include=[KERNELS],
        defines={"OPERAND": "Bf16"}, shared_bytes=4 * 32768 + 64,
    )  # fmt: skip
    return _seen(seen)


def copied(swizzle: int) -> SwizzledTile:
    """Return a tile as a copy with a swizzle writes it."""
    width = (swizzle or 128) // 4
    x = tw.TensorMap(np.zeros((32, width), np.float32), (32, width), swizzle=swizzle)
    args = [x, np.zeros((width, 32), np.float32), 32, width]
    kernel, defines = KERNELS / "swizzled_copy.cu", {"SWIZZLE": swizzle}
    (tile,) = _seen(tw.microscope(kernel, "swizzled_copy", 1, 256, args, arch="sm_90a", defines=defines)).tiles
    return tile


#: The picture's name → its drawing, given an identifier.
PICTURES: dict[str, Callable[[str], Picture | None]] = {
    "ring-timeline": lambda ident: pipeline_picture(ring(), ident),
    "ring-full": lambda ident: phase_picture(ring().barriers[0], ident),
    "ring-empty": lambda ident: phase_picture(ring().barriers[1], ident),
    "product-timeline": lambda ident: pipeline_picture(product(), ident),
    "swizzle-none": lambda ident: swizzle_picture(copied(0), ident),
    "swizzle-32": lambda ident: swizzle_picture(copied(32), ident),
    "swizzle-64": lambda ident: swizzle_picture(copied(64), ident),
    "swizzle-128": lambda ident: swizzle_picture(product().tiles[0], ident),
    "swizzle-contradicted": lambda ident: swizzle_picture(product(WITHOUT_SWIZZLE).tiles[0], ident),
}


def drawn(name: str, theme: str) -> str:
    """Return a picture as the text of a file."""
    picture = PICTURES[name](name)
    assert picture is not None
    return standalone_picture(str(picture.svg), theme)


def save(folder: Path) -> list[Path]:
    """Write every picture, for light and for dark paper."""
    written = []
    for name in PICTURES:
        for theme in ("light", "dark"):
            path = folder / f"{name}{'-dark' if theme == 'dark' else ''}.svg"
            path.write_text(drawn(name, theme), encoding="utf-8")
            written.append(path)
    return written


def _seen(observation: tw.simulator.Observation) -> Pipeline:
    assert observation.pipeline is not None
    return observation.pipeline
