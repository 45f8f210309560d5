"""Small kernels in PTX, at least one for every opcode of the microscope, to be run on a GPU and in the microscope.

``record_opcodes.py`` runs them on a GPU and keeps what they write; ``test_simt_h200.py`` replays them. NumPy is all
they need. Inputs come from a raw stream of bits, so that they are the same wherever they are made.

>>> from opcode_cases import CASES
>>> CASES["add.f32"].rows[0]
'add.rn.f32 {d}, {a}, {b}'
"""

from . import atomic, bits, compare, control, convert, floating, integer, matrix, memory, warp
from .case import Case, Within

_FILES = (integer, bits, floating, compare, convert, memory, atomic, warp, matrix, control)

#: Every case by name.
CASES: dict[str, Case] = {}
for _file in _FILES:
    for _case in _file.cases():
        if _case.name in CASES:
            raise ValueError(f"two cases are called {_case.name}")
        CASES[_case.name] = _case

__all__ = ["CASES", "Case", "Within"]
