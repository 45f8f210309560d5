"""Parameters of CUDA kernels, as their headers declare them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .expression import RESERVED

#: How the name of a macro looks.
MACRO = r"[A-Z][A-Z0-9_]*"


class WrongHeaderError(Exception):
    """A header that is missing or wrong; the message does not name the file yet."""


@dataclass(frozen=True)
class Parameter:
    """A number of the kernel that can be chosen: its default and the values it may take."""

    name: str
    default: int
    values: tuple[int, ...] | range

    @property
    def rule(self) -> str:
        """The values that it may have, as text."""
        if isinstance(self.values, range):
            step = f" in steps of {self.values.step}" if self.values.step > 1 else ""
            return f"from {self.values[0]} to {self.values[-1]}{step}"
        return f"one of {', '.join(map(str, self.values))}"


def parameter_of(name: str, table: Any) -> Parameter:
    """The parameter that a header describes by this table. Raises WrongHeaderError."""
    key = f"params.{name}"
    if not re.fullmatch(MACRO, name) or name in RESERVED:
        raise WrongHeaderError(f"{key}: a parameter becomes a macro, so its name must be capitals, such as TILE")
    if not isinstance(table, dict) or not (
        set(table) <= {"default", "values"} or set(table) <= {"default", "min", "max", "step"}
    ):
        rule = "{ default = 32, values = [8, 16, 32] } or { default = 32, min = 8, max = 64, step = 8 }"
        raise WrongHeaderError(f"{key} must look like {rule}, got {table!r}")
    for part, value in table.items():
        numbers, rule = (value, "a list of whole numbers") if part == "values" else ([value], "a whole number")
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            raise WrongHeaderError(f"{key}.{part} must be {rule}, got {value!r:.80}")
        if any(abs(number) >= 1 << 31 for number in numbers):
            raise WrongHeaderError(f"{key}.{part} must be below 2^31, because it becomes an int of the source")
    for part in ("default",) if "values" in table else ("default", "min", "max"):
        if part not in table:
            raise WrongHeaderError(f"{key}.{part} is missing")
    step = table.get("step", 1)
    if step < 1:
        raise WrongHeaderError(f"{key}.step must be at least 1, got {step}")
    values = tuple(table["values"]) if "values" in table else range(table["min"], table["max"] + 1, step)
    if table["default"] not in values:
        raise WrongHeaderError(f"{key}.default must be one of its allowed values, got {table['default']}")
    return Parameter(name, table["default"], values)
