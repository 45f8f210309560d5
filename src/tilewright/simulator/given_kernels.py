"""Reads the kernel that the caller of the microscope passes: a text, a file, or an object of a library that has
compiled a kernel.

| given | taken of it |
| --- | --- |
| CUDA C++ or PTX | the text; one line that ends in ``.cu``, ``.cuh`` or ``.ptx`` is a path, as ``pathlib.Path`` is |
| Triton's compiled kernel | its PTX, binary, threads, shared memory; the pointers to scratch memory that it adds |
| a kernel of ``torch.compile`` | the compiled kernel of Triton in it |
| CuPy's ``RawKernel`` | its source and the name of its function |
| Numba's dispatcher | the PTX of its only specialisation |
| an object with ``__ptx__`` (CuTe DSL), or ``ptx`` | that text |

Numba passes an array as seven kernel parameters: two pointers that only Numba uses, size, item size, data, shape and
strides. ``passed`` does the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..gpu.runtime.nvrtc import Compiled, compiled_of
from .assembly.instructions import Function, Variable
from .machine.arguments import dimensions, is_pointer
from .machine.tensor_map import TensorMap


@dataclass(frozen=True)
class Passed:
    """The values of a kernel's parameters. ``places`` has, for each argument of the caller, its position among the
    kernel's parameters, or None if the kernel does not get the argument."""

    values: list[Any]
    places: list[int | None]

    def positions(self, outputs: Sequence[int]) -> Sequence[int]:
        """Convert positions of arguments to positions of parameters. Invalid positions stay unchanged, because later
        checks report them."""
        if self.places == list(range(len(self.values))) or isinstance(outputs, str):
            return outputs
        known = dict(enumerate(self.places))
        return [place if (place := known.get(output)) is not None else output for output in outputs]

    def of_caller(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays of the kernel's parameters, in the order of the caller's arguments."""
        return [None if place is None else arrays[place] for place in self.places]

    def renumbered(self, text: str) -> str:
        """Replace the number of each parameter in a text by the number of the caller's argument."""
        numbers = {place: argument for argument, place in enumerate(self.places) if place is not None}
        return re.sub(
            r"\bargument (\d+)\b", lambda found: f"argument {numbers.get(int(found[1]), int(found[1]))}", text
        )


@dataclass(frozen=True)
class GivenKernel:
    """A kernel that a caller passed: its text, the name of its file, the name of the function if the caller chose one,
    its binary if there is one, and the dynamic shared memory that it needs.

    Three fields are for Triton's kernels: the ``types`` of the arguments ("constexpr" for a constant of the compiler),
    the layouts of arguments that are ``descriptors`` of tensors, and the bytes of scratch memory that each block gets.
    """

    text: str
    name: str
    kernel: str | None = None
    compiled: Compiled | None = None
    shared_bytes: int = 0
    types: tuple[str, ...] = ()
    descriptors: tuple[Mapping[str, Any], ...] = ()
    scratch_bytes: int = 0

    @property
    def is_ptx(self) -> bool:
        """Whether the text is PTX."""
        return is_ptx(self.text)

    def passed(self, args: Sequence[Any], entry: Function, grid: int | Sequence[int]) -> Passed:
        """Return the values of the kernel's parameters, made from a caller's arguments."""
        every = len(self.types) == len(args)
        types = list(self.types) if every else [kind for kind in self.types if kind != "constexpr"]
        types += [""] * (len(args) - len(types))
        own = [
            (i, value, kind) for i, (value, kind) in enumerate(zip(args, types, strict=False)) if kind != "constexpr"
        ]
        described, params = iter(self.descriptors), entry.params
        spread = [
            _as_described(value, next(described)) if kind.startswith("tensordesc") else
            _as_numba(value) if len(own) < len(params) and not self.types else [value]
            for _, value, kind in own
        ]  # fmt: skip
        if not self.types and sum(map(len, spread)) != len(params):
            spread = [[value] for _, value, _ in own]
        places: list[int | None] = [None] * len(args)
        values: list[Any] = []
        for (argument, value, kind), several in zip(own, spread, strict=True):
            of_numba = len(several) > 1 and isinstance(value, np.ndarray) and not kind
            places[argument] = len(values) + (DATA_OF_NUMBA if of_numba else 0)
            values += several
        return Passed([*values, *self._added(params[len(values) :], grid)], places)

    def _added(self, params: Sequence[Variable], grid: int | Sequence[int]) -> list[Any]:
        """The pointers to scratch memory that Triton adds; none for other PTX, whose missing arguments are refused."""
        of_triton = "Generated by LLVM NVPTX Back-End" in self.text and len(params) <= 2
        if not of_triton or not all(map(is_pointer, params)):
            return []
        blocks = math.prod(dimensions("grid", grid))
        scratch = np.zeros(self.scratch_bytes * blocks, np.uint8) if self.scratch_bytes else None
        return [scratch, None][: len(params)]


#: The position of the data pointer among the parameters of a Numba array.
DATA_OF_NUMBA = 4


def _as_numba(value: Any) -> list[Any]:
    if not isinstance(value, np.ndarray):
        return [value]
    return [None, None, value.size, value.itemsize, value, *value.shape, *value.strides]


def _as_described(value: Any, described: Mapping[str, Any]) -> list[Any]:
    """A descriptor of a tensor as Triton passes it: a tensor map, the shape, and the strides in elements."""
    if not isinstance(value, np.ndarray):
        return [value]
    swizzle = (0, 32, 64, 128)[described["swizzle"]]
    strides = [stride // value.itemsize for stride in value.strides]
    return [TensorMap(value, described["block_size"], swizzle=swizzle), *value.shape, *strides]


def is_ptx(text: str) -> bool:
    """Whether a text is PTX.

    >>> is_ptx(".version 8.0"), is_ptx("__global__ void k() {}")
    (True, False)
    """
    return re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) is not None


def given_kernel(source: Any) -> GivenKernel:
    """Read a kernel from the object that a caller passed; the module's docstring lists the kinds of objects.

    Raises UsageError for a file that cannot be read, for machine code, and for an object that has neither PTX nor source.
    """
    if isinstance(source, bytes | bytearray):
        source = _decoded(bytes(source))
    if isinstance(source, Path) or (
        isinstance(source, str) and re.fullmatch(r"[^\n]*\.(?:cuh?|ptx|cubin|fatbin)", source)
    ):
        return GivenKernel(read_source(source), str(source))
    if isinstance(source, str):
        return GivenKernel(source, "kernel.ptx" if is_ptx(source) else "kernel.cu")
    return _of_library(source)


def read_source(path: str | Path) -> str:
    """Read the text of a file of CUDA C++ or PTX. Raises UsageError if the file cannot be read, or is machine code."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from None
    return _decoded(data, f"{path}: ")


def _decoded(data: bytes, where: str = "") -> str:
    if data.startswith((b"\x7fELF", b"\x50\xed\x55\xba")):
        raise UsageError(
            f"{where}is machine code, which is not run here: give its PTX (nvcc -ptx, or cuobjdump -ptx if it was built in)"
        )
    try:
        return data.decode("utf-8-sig").rstrip("\0")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}cannot be read as text: {error}") from None


def _of_library(source: Any) -> GivenKernel:
    kind = f"{type(source).__module__}.{type(source).__name__}"
    for name in ("kernel", "bin"):  # what torch.compile keeps around Triton's kernel
        if (inside := getattr(source, name, None)) is not None and hasattr(inside, "asm"):
            return _of_library(inside)
    results = getattr(source, "compile_results", None)
    if isinstance(results, list) and results:
        if len(results) > 1:
            raise UsageError(f"{kind} has {len(results)} compiled kernels: give one of its compile_results")
        return _of_library(results[0])
    asm = getattr(source, "asm", None)
    if asm is not None and "ptx" in asm:
        return _of_triton(source)
    if isinstance(getattr(source, "code", None), str) and isinstance(getattr(source, "name", None), str):  # CuPy
        return GivenKernel(source.code, "kernel.cu", source.name)
    if hasattr(source, "inspect_asm"):  # Numba
        found = source.inspect_asm()
        texts = list(found.values()) if isinstance(found, dict) else [found]
        if len(texts) == 1:
            return GivenKernel(texts[0], "kernel.ptx")
        raise UsageError(f"{kind} has {len(texts)} specialisations: give the PTX of one, from its inspect_asm()")
    for name in ("__ptx__", "ptx"):
        text = getattr(source, name, None)
        text = _decoded(text) if isinstance(text, bytes) else text
        if isinstance(text, str) and is_ptx(text):
            return GivenKernel(text, "kernel.ptx")
    raise UsageError(
        f"source must be CUDA C++ or PTX, a path, or a compiled kernel that has its PTX, given {kind}: "
        "compile it first, and keep its PTX"
    )


def _of_triton(source: Any) -> GivenKernel:
    asm, facts = source.asm, source.metadata
    name = str(getattr(facts, "name", "kernel"))
    file, cubin = f"{name}.ptx", asm.get("cubin")
    target = re.search(r"^\s*\.target\s+(sm_\w+)", asm["ptx"], re.MULTILINE)
    arch = target[1] if target else "sm_90"
    types = getattr(getattr(source, "src", None), "signature", {}) or {}
    return GivenKernel(
        asm["ptx"],
        file,
        name,
        compiled_of(file, arch, asm["ptx"], cubin) if cubin else None,
        shared_bytes=int(getattr(facts, "shared", 0) or 0),
        types=tuple(map(str, types.values())),
        descriptors=tuple(getattr(facts, "tensordesc_meta", None) or ()),
        scratch_bytes=int(getattr(facts, "global_scratch_size", 0) or 0),
    )
