"""What ``--param`` takes, and which combinations of parameters a kernel allows."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UsageError, did_you_mean
from ...kernels.cuda_kernel import CudaKernel

#: Most combinations of a kernel's parameters in one run of the bench; the tuner draws from more.
MOST_SETS = 1000

#: Values to try of each parameter.
Values = Mapping[str, Sequence[int]]


def parse_params(texts: Iterable[str]) -> dict[str, list[int]]:
    """``NAME=NUMBER`` or ``NAME=NUMBER,NUMBER`` as ``--param`` takes it: the values of each name. Raises UsageError.

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
    """Raises UsageError for a parameter that none of the kernels has."""
    known = {name for kernel in kernels for name in kernel.tunable}
    for name in params:
        if name not in known:
            hint = did_you_mean(name, known) if known else "they have none"
            raise UsageError(f"param {name!r}: none of the chosen kernels has it; {hint}")


def asked_sets(kernel: Any, params: Values) -> int:
    """The number of combinations of ``params``; parameters that the kernel does not have are ignored."""
    return math.prod(len(values) for name, values in params.items() if name in kernel.tunable)


def param_sets(kernel: Any, params: Values) -> list[dict[str, int]]:
    """The combinations of ``params`` that the kernel allows. Parameters that it does not have are ignored; if none are left,
    the only combination is empty.

    Raises UsageError for a value that the kernel never takes, for more combinations than ``MOST_SETS``, and where none is
    allowed: then with the reason for the first.

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
    """Raises UsageError for a combination that a CUDA kernel's header, or every GPU, refuses. The CPU has no such rules."""
    if isinstance(kernel, CudaKernel):
        kernel.launch(1, 1, 1, **chosen)


def with_cached(kernel: Any, cached: Mapping[str, int] | None, chosen: dict[str, int]) -> dict[str, int]:
    """``chosen``, and for other parameters ``cached``, the tuner's; only ``chosen`` if the kernel does not allow both."""
    both = {**(cached or {}), **chosen}
    try:
        check_set(kernel, both)
    except UsageError:
        return chosen
    return both
