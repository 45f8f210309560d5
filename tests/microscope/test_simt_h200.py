"""Every opcode of the microscope against an NVIDIA H200: ``data/opcodes-h200.npz``, recorded by ``record_opcodes.py``.

Results are compared bit by bit, NaNs too. Approximate instructions and sums of tensor cores may differ by as much as
the case says and why (``Case.within``).

To record anew
--------------
The file keeps a hash of each case's PTX, launch and inputs, so that a case that is new or changed fails
``test_the_recording_is_of_these_cases`` until all are recorded again, on an H200:

1. Take along ``record_opcodes.py`` and ``opcode_cases/``; nothing else of the repository is needed. There, have Python
   3.11 or newer with NumPy, CuPy and cuda.core (``pip install cupy-cuda13x cuda-core``), and a driver that knows PTX 8.4.
2. ``python record_opcodes.py opcodes-h200.npz``: minutes. It exits with 1 and lists the cases that do not assemble, hang
   or fail; mend or drop those, for a recording with such cases fails the tests. ``--only mma`` tries some out alone.
3. Copy the file over ``tests/data/opcodes-h200.npz`` and run ``pytest tests/microscope/test_simt_h200.py``. A failure names
   the instruction, the element, what the microscope made and what the GPU made. Find the rule (``ptxas`` and ``nvdisasm``
   show which instructions a line of PTX becomes) and mend ``simulator/ops``; widen ``within`` only where the PTX ISA
   leaves the result open. What is wrong for a known reason goes into ``WRONG``.

Another GPU needs a file of its own: NaNs, corners of approximations and sums of tensor cores differ between them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.opcode_cases import CASES, Case, Within
from support.tensor_core_cases import CASES as TENSOR_CASES
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.ops import TABLE, entry, opcodes

RECORD = Path(__file__).parents[1] / "data" / "opcodes-h200.npz"

#: Opcodes and entries of the table that no recording can hold, and why.
UNRECORDED: dict[tuple[str, str], str] = {
    ("trap", ""): "it ends the kernel with an error and takes the GPU's context along, so that nothing comes back",
    (
        "mbarrier",
        "b64",
    ): "the bits of a barrier are the microscope's own; record_asynchronous.py runs kernels that use it",
    ("vprintf", ""): "it is a call: what a GPU prints goes to the terminal",
    **dict.fromkeys(
        [
            *((name, kind) for name in ("mapa", "getctarank") for kind in ("u32", "u64")),
            *(("st.async", kind) for kind in ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")),
            *(("red.async", kind) for kind in ("u32", "s32", "u64", "b32")),
        ],
        "record_clusters.py has its cases: a launch with clusters",
    ),
}
#: Cases that come out wrong for a reason that is known.
WRONG: dict[str, str] = {}


@functools.cache
def recording() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Metadata, and the bytes that each case wrote on the GPU."""
    if not RECORD.exists():
        pytest.fail(f"{RECORD} is missing: record it on a GPU with `python benchmarks/record_opcodes.py {RECORD}`")
    with np.load(RECORD) as file:
        outputs = {name: file[name].tobytes() for name in file.files if name != "metadata"}
        return json.loads(str(file["metadata"])), outputs


@functools.cache
def replay(name: str) -> bytes:
    """What a case writes in the microscope, which must find nothing wrong with it."""
    case = CASES[name]
    run = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments), RunOptions(shared_bytes=case.shared))
    assert not run.findings
    return b"".join(np.asarray(run.arrays[o]).tobytes() for o in case.outputs)


def differences(case: Case, made: bytes, recorded: bytes) -> list[str]:
    """Where results differ more than the case allows: the instruction, the element and both values."""
    if len(made) != len(recorded):
        return [f"{len(made)} bytes instead of {len(recorded)}"]
    dtype = np.asarray(case.arguments[case.outputs[0]]).dtype
    if case.within and case.within.kind in ("f16", "bf16"):
        dtype = np.dtype(np.uint16)
    mine, theirs = (np.frombuffer(b, dtype) for b in (made, recorded))
    wrong = mine != theirs
    if case.within:
        wrong &= ~close(mine, theirs, case.within)
    shape = np.asarray(case.arguments[case.outputs[0]]).shape
    places = [np.unravel_index(i, shape) if mine.size == np.prod(shape) else (i,) for i in np.flatnonzero(wrong)[:8]]
    found = [f"at {tuple(map(int, p))}" for p in places]
    return [
        f"{text}{row_of(case, place)}: {mine[i]:#x} instead of {theirs[i]:#x}; {wrong.sum()} of {wrong.size} differ"
        for text, place, i in zip(found, places, np.flatnonzero(wrong), strict=False)
    ]


def row_of(case: Case, place: tuple[Any, ...]) -> str:
    """The instruction whose result it is, where each row of the output is one."""
    shape = np.asarray(case.arguments[case.outputs[0]]).shape
    return f" of {case.rows[int(place[0])]}" if len(place) == 2 and len(case.rows) == shape[0] else ""


def floats(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).astype(np.float64)


def close(mine: np.ndarray, theirs: np.ndarray, within: Within) -> np.ndarray:
    """Whether finite results lie within the bounds; NaNs must be NaNs, and infinities the same."""
    a, b = floats(mine, within.kind), floats(theirs, within.kind)
    mantissa, least = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "f64": (52, -1022)}[within.kind]
    with np.errstate(all="ignore"):
        size = np.maximum(np.frexp(b)[1] - 1, least)
        bound = within.ulp * np.ldexp(1.0, size - mantissa) + within.absolute + within.relative * np.abs(b)
        near = np.abs(a - b) <= bound
    return np.where(np.isfinite(a) & np.isfinite(b), near, (a == b) | (np.isnan(a) & np.isnan(b)))


def known(name: str) -> Any:
    """A case's name, marked where it is known to come out wrong: it fails the test once it does not."""
    marks = [pytest.mark.xfail(reason=WRONG[name], strict=True)] if name in WRONG else []
    return pytest.param(name, marks=marks)


@pytest.mark.slow_cases("ld.param")
@pytest.mark.parametrize("name", [known(name) for name in CASES])
def test_as_the_gpu_does(name: str) -> None:
    _, outputs = recording()
    assert name in outputs, f"{name} was not recorded"
    wrong = differences(CASES[name], replay(name), outputs[name])
    assert not wrong, "\n".join(wrong)


def test_the_recording_is_of_these_cases() -> None:
    metadata, outputs = recording()
    assert not metadata["failed"]
    assert set(outputs) == set(CASES)
    changed = [name for name, case in CASES.items() if metadata["cases"][name] != case.digest()]
    assert not changed, "these cases are no longer what was recorded"
    assert "H200" in metadata["gpu"]


def entries(case: Case) -> set[tuple[str, str]]:
    """Entries of the table that a case uses; control instructions, which have none, by name."""
    code = [ins for function in parse_ptx(case.ptx).functions.values() for ins in function.code]
    return {entry(ins) or (ins.parts[0], "") for ins in code}


def recorded_apart() -> list[Case]:
    """One case of each opcode of tensor cores, which ``test_tensor_cores.py`` compares with a recording of its own."""
    first = {name.split(".")[0]: case for name, case in TENSOR_CASES.items()}
    return list(first.values())


@pytest.mark.slow
def test_every_opcode_is_recorded() -> None:
    """Nothing is in the table that was not run on the GPU, but for what is listed with its reason."""
    _, outputs = recording()
    used = {key for name in CASES if name in outputs for key in entries(CASES[name])}
    used |= {key for case in recorded_apart() for key in entries(case)}
    control = {(name, "") for name in opcodes()} - {(name, "") for name, _ in TABLE}
    for key, why in UNRECORDED.items():
        print(f"not recorded: {'.'.join(key).rstrip('.')}: {why}")
    assert not (set(TABLE) | control) - used - set(UNRECORDED)
    assert not used & set(UNRECORDED)


@pytest.mark.parametrize("name", ["add.f32", "atom.global.f16", "mma.m16n8k16.row.col.s32.s8.u8.s32", "cp.async.16"])
def test_one_flipped_bit_is_rejected(name: str) -> None:
    made = bytearray(replay(name))
    assert not differences(CASES[name], bytes(made), bytes(made))
    made[len(made) // 2] ^= 1
    assert len(differences(CASES[name], replay(name), bytes(made))) == 1


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.within])
def test_a_result_beyond_its_bounds_is_rejected(name: str) -> None:
    """Each finite result in turn, moved by four times what its case allows."""
    case, made = CASES[name], replay(name)
    assert case.within is not None
    kind = case.within.kind
    bits = np.frombuffer(made, {"f16": "u2", "bf16": "u2", "f32": "u4", "f64": "u8"}[kind])
    x = floats(bits, kind)
    one = int(np.flatnonzero(np.isfinite(x) & (np.abs(x) > 0.1) & (np.abs(x) < 1e4))[0])
    moved = np.float64(x[one] + 1.5 * abs(x[one]) + 4 * case.within.absolute)
    other = bits.copy()
    other[one] = {
        "f16": lambda: moved.astype(np.float16).view(np.uint16),
        "bf16": lambda: moved.astype(np.float32).view(np.uint32) >> np.uint32(16),
        "f32": lambda: moved.astype(np.float32).view(np.uint32),
        "f64": lambda: moved.view(np.uint64),
    }[kind]()
    assert len(differences(case, made, other.tobytes())) == 1
