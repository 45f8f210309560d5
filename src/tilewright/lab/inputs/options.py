"""Parses the options of measurements: ``--sizes``, ``--param`` and times. Checks parameters against those that a kernel
allows. Examples of sizes are ``512,1000``, ``16:4096:x2``, ``100:500:+100`` and ``6x2000x2000``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UsageError, did_you_mean
from ...kernels.cuda_kernel import CudaKernel

# ---- sizes and times -------------------------------------------------------------------------------------------------

Shape = tuple[int, int, int]
#: A small size whose three sides differ, and which no usual tile divides. A kernel that has no guards at edges, or that
#: confuses m, n and k, can be right at many squares and is wrong at this size.
ODD_SIZE = (33, 37, 29)

#: The most sizes in one run, and the largest size. A text with more or larger sizes is assumed to be a typing error.
MOST_SIZES = 1000
LARGEST = 10**9

_RULE = "a size is N, MxNxK, FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, and several are joined by commas"


def is_odd(m: int, n: int, k: int) -> bool:
    """Whether a product of this size reveals the same mistakes of a kernel as ``ODD_SIZE``: its sides differ, and 8
    divides none of them.

    >>> is_odd(33, 37, 29), is_odd(64, 64, 64), is_odd(33, 37, 32)
    (True, False, False)
    """
    return len({m, n, k}) == 3 and all(side % 8 for side in (m, n, k))


def parse_sizes(text: str) -> list[Shape]:
    """Parse sizes; returns the shapes (m, n, k) in the order given, each once. Raises UsageError if the text is no list
    of sizes.

    >>> parse_sizes("16:64:x2,6x2000x4")
    [(16, 16, 16), (32, 32, 32), (64, 64, 64), (6, 2000, 4)]
    """
    shapes: dict[Shape, None] = {}
    for item in text.split(","):
        shapes |= dict.fromkeys(_item(item.strip()))
    if len(shapes) > MOST_SIZES:
        raise UsageError(f"sizes {text!r}: at most {MOST_SIZES} sizes in one run, got {len(shapes)}")
    return list(shapes)


def _item(item: str) -> list[Shape]:
    if re.fullmatch(r"\d+", item):
        return [_cube(_size(item))]
    if match := re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)", item):
        m, n, k = (_size(text) for text in match.groups())
        return [(m, n, k)]
    if match := re.fullmatch(r"(\d+):(\d+):([x+]?)(\d+(?:\.\d+)?)", item):
        first, last, kind, step = match.groups()
        return [_cube(n) for n in _range(item, _size(first), _size(last), kind or "+", float(step))]
    raise UsageError(f"sizes {item!r}: {_RULE}")


def _size(text: str) -> int:
    if len(text) > 10 or int(text) > LARGEST:
        raise UsageError(f"sizes: a size is at most {LARGEST:,}, got {text:.40}")
    return int(text)


def _cube(n: int) -> Shape:
    return (n, n, n)


def _range(item: str, first: int, last: int, kind: str, step: float) -> list[int]:
    if first > last:
        raise UsageError(f"sizes {item!r}: the first size must not exceed the last")
    if (kind == "x" and (step <= 1 or first == 0)) or (kind == "+" and step < 1):
        raise UsageError(f"sizes {item!r}: the range never ends; a factor must exceed 1, a step be at least 1")
    sizes: list[int] = []
    size = float(first)
    while size <= last:
        if len(sizes) == MOST_SIZES:
            raise UsageError(f"sizes {item!r}: at most {MOST_SIZES} sizes in one run; take a larger factor or step")
        sizes.append(round(size))
        size = size * step if kind == "x" else size + step
    return sizes


_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


def parse_seconds(name: str, text: str) -> float:
    """Parse a time as ``--limit`` and ``--budget`` take it; returns seconds. ``name`` is the option. Raises UsageError
    if the text is no time.

    >>> parse_seconds("limit", "500ms"), parse_seconds("limit", "2 min")
    (0.5, 120.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{name} must be a time such as 10s, 500ms or 2min, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


# ---- parameters ------------------------------------------------------------------------------------------------------

#: The most combinations of a kernel's parameters in one run of the bench. The tuner draws from more.
MOST_SETS = 1000

#: The values to try for each parameter.
Values = Mapping[str, Sequence[int]]


def parse_params(texts: Iterable[str]) -> dict[str, list[int]]:
    """Parse ``NAME=NUMBER`` or ``NAME=NUMBER,NUMBER`` as ``--param`` takes it; returns the values for each name. Raises
    UsageError if a text has another form.

    >>> parse_params(["TILE=8,16,8", "ROWS=2"])
    {'TILE': [8, 16], 'ROWS': [2]}
    """
    params: dict[str, list[int]] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(0*[1-9]\d{0,17}(?:\s*,\s*0*[1-9]\d{0,17})*)\s*", text, re.ASCII)
        if match is None:
            raise UsageError(f"param must be NAME=NUMBER with a positive whole number, such as leaf=1024, got {text!r}")
        params[match[1]] = list(dict.fromkeys(int(number) for number in match[2].split(",")))
    return params


def check_names(params: Iterable[str], kernels: Iterable[Any]) -> None:
    """Raise UsageError for a parameter that none of the kernels has."""
    known = {name for kernel in kernels for name in kernel.tunable}
    for name in params:
        if name not in known:
            hint = did_you_mean(name, known) if known else "they have none"
            raise UsageError(f"param {name!r}: none of the chosen kernels has it; {hint}")


def asked_sets(kernel: Any, params: Values) -> int:
    """The number of combinations of ``params``; parameters that the kernel does not have are ignored."""
    return math.prod(len(values) for name, values in params.items() if name in kernel.tunable)


def param_sets(kernel: Any, params: Values) -> list[dict[str, int]]:
    """The combinations of ``params`` that the kernel allows. Parameters that the kernel does not have are ignored. If
    the kernel has none of the parameters, the only combination is empty.

    Raises UsageError for a value that the kernel never takes, and for more combinations than ``MOST_SETS``. If the
    kernel allows none of the combinations, the error of the first combination is raised.

    >>> from tilewright.kernels.catalog import cuda_catalog
    >>> param_sets(cuda_catalog()["cuda/register_rows"], {"ROWS": [8, 16], "TILE": [8, 16]})
    [{'ROWS': 8, 'TILE': 8}, {'ROWS': 8, 'TILE': 16}, {'ROWS': 16, 'TILE': 16}]
    """
    asked = asked_sets(kernel, params)
    if asked > MOST_SETS:
        raise UsageError(f"param: at most {MOST_SETS:,} combinations in one run, got {asked:,} of {kernel.name}")
    own = {name: values for name, values in params.items() if name in kernel.tunable}
    _check_values(kernel, own)
    allowed: list[dict[str, int]] = []
    refused: UsageError | None = None
    for values in itertools.product(*own.values()):
        chosen = dict(zip(own, values, strict=True))
        try:
            check_set(kernel, chosen)
        except UsageError as error:
            refused = refused or error
        else:
            allowed.append(chosen)
    if refused is not None and not allowed:
        raise refused
    return allowed


def _check_values(kernel: Any, params: Values) -> None:
    for parameter in kernel.parameters if isinstance(kernel, CudaKernel) else ():
        for value in params.get(parameter.name, ()):
            if value not in parameter.values:
                raise UsageError(f"{kernel.name}: {parameter.name} must be {parameter.rule}, got {value}")


def check_set(kernel: Any, chosen: Mapping[str, int]) -> None:
    """Raise UsageError for a combination that a CUDA kernel's header forbids, or that no GPU can launch. For kernels on
    the CPU, no combination is forbidden."""
    if isinstance(kernel, CudaKernel):
        kernel.launch(1, 1, 1, **chosen)


def with_cached(kernel: Any, cached: Mapping[str, int] | None, chosen: dict[str, int]) -> dict[str, int]:
    """The parameters ``chosen``, and the tuner's ``cached`` values for all others. If the kernel does not allow this
    combination, the result is only ``chosen``."""
    both = {**(cached or {}), **chosen}
    try:
        check_set(kernel, both)
    except UsageError:
        return chosen
    return both
