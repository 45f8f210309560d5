"""What a GPU counts of each form of ``mma.sync``, and how long it takes: ``record_mma.py OUT.jsonl`` (Hopper, with ncu).

Two kernels for each form: a warp executes ``REPEATS`` instructions, each with an A of its own, and each of which needs the
sum of the one before it (``chains`` 1), or of which four neighbours are independent (``chains`` 4). A line of the record has
the counters of one kernel, the cycles between its first instruction and the end of its last, and the tensor-core
instructions of its binary.
Exits with 1 if the instructions counted are no multiple of ``REPEATS``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilewright.gpu.runtime.nvrtc import compile_source, compiler
from tilewright.lab.explain.measure import profile_launches
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.lab.inputs.environment import environment
from tilewright.simulator.assembly.disassembly import disassemble, parse_sass
from tilewright.simulator.ops.tensor_core import PACKED

REPEATS = 64
COUNTERS = (
    *(f"sm__inst_executed_pipe_tensor{kind}.sum" for kind in ("", "_op_hmma", "_op_imma", "_op_dmma")),
    *(f"sm__pipe_tensor{kind}_cycles_active.sum" for kind in ("", "_op_hmma", "_op_imma", "_op_dmma")),
)
#: Type of A and B → the shapes (m, k), the types of the sum, and what ends the name of the instruction.
FORMS = {
    "f16": (((16, 8), (16, 16)), ("f32", "f16"), ("",)),
    "bf16": (((16, 8), (16, 16)), ("f32",), ("",)),
    "tf32": (((16, 4), (16, 8)), ("f32",), ("",)),
    "f64": (((8, 4), (16, 4), (16, 8), (16, 16)), ("f64",), ("",)),
    **dict.fromkeys(("e4m3", "e5m2"), (((16, 16), (16, 32)), ("f32", "f16"), ("",))),
    **dict.fromkeys(("s8", "u8"), (((8, 16), (16, 16), (16, 32)), ("s32",), ("",))),
    **dict.fromkeys(("s4", "u4"), (((8, 32), (16, 32), (16, 64)), ("s32",), ("",))),
    "b1": (((8, 128), (16, 128), (16, 256)), ("s32",), (".and.popc", ".xor.popc")),
}  # fmt: skip
CHAINS = (1, 4)


def kernel(name: str, form: str, sums: tuple[str, str, int], a: int, b: int, chains: int) -> str:
    """A kernel of ``REPEATS`` instructions of one form; ``sums``: constraint, type and number of their registers."""
    letter, typed, d = sums
    operands = "d" if typed == "double" else "r"
    places = [", ".join(f"%{i}" for i in range(first, first + n)) for first, n in ((0, d), (d, a), (d + a, b))]
    outputs = ", ".join(f'"+{letter}"(d[i % {chains}][{i}])' for i in range(d))
    inputs = ", ".join(f'"{operands}"(x[{i}]{" + i" if not i else ""})' for i in range(a + b))
    line = f"mma.sync.aligned.{form} {{{places[0]}}}, {{{places[1]}}}, {{{places[2]}}}, {{{places[0]}}};"
    return f"""
extern "C" __global__ void __launch_bounds__(32) {name}(long long* cycles, double* sums, const unsigned* seeds)
{{
    {typed} d[{chains}][{d}];
    for (int i = 0; i < {chains * d}; i++) d[i % {chains}][i / {chains}] = i + threadIdx.x;
    {"double" if operands == "d" else "unsigned"} x[{a + b}];
    for (int i = 0; i < {a + b}; i++) x[i] = seeds[threadIdx.x + i];
    long long begun = clock64();
    #pragma unroll
    for (int i = 0; i < {REPEATS}; i++)
        asm volatile("{line}" : {outputs} : {inputs});
    double sum = 0;
    for (int i = 0; i < {chains * d}; i++) sum += d[i % {chains}][i / {chains}];
    long long ended = clock64();
    if (threadIdx.x == 0) *cycles = ended - begun;
    sums[threadIdx.x] = sum;
}}"""


def forms() -> Iterator[tuple[str, int, str]]:
    """The name of each instruction, the number of chains, and the kernel's source."""
    number = 0
    for kind, (shapes, totals, ends) in FORMS.items():
        for m, k in shapes:
            for total in totals:
                for end in ends:
                    form = f"m{m}n8k{k}.row.col.{total}.{kind}.{kind}.{total}{end}"
                    letter, typed = {"f32": ("f", "float"), "f64": ("d", "double")}.get(total, ("r", "int"))
                    sums = letter, typed, m // (8 if total == "f16" else 4)
                    each = 4 * PACKED[kind]
                    for chains in CHAINS:
                        number += 1
                        yield form, chains, kernel(f"k{number}", form, sums, m * k // (8 * each), k // each, chains)


def main() -> int:
    rows = list(forms())
    compiled = compile_source("\n".join(source for *_, source in rows), name="mma_forms.cu", arch="sm_90a")
    code = parse_sass(disassemble(compiled.cubin))
    seeds = np.arange(64, dtype=np.uint32) * np.uint32(2654435761)
    launches = [
        StoredLaunch(f"k{number}", 1, 32, (np.zeros(1, np.int64), np.zeros(32), seeds), 0)
        for number in range(1, len(rows) + 1)
    ]
    wrong = 0
    profiles = profile_launches(compiled, launches, COUNTERS, lines=False)
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        head = environment(operands="patterns of bits", command="python benchmarks/record_mma.py OUT.jsonl") | {
            "compiler": compiler(),
            "repeats": REPEATS,
        }
        file.write(json.dumps({"kind": "mma.sync", "schema": 1, "environment": head}) + "\n")
        for number, ((form, chains, _), profile) in enumerate(zip(rows, profiles, strict=True), 1):
            binary = Counter(ins.opcode for ins in code[f"k{number}"] if "MMA" in ins.opcode.split(".")[0])
            cycles = int(profile.arrays[0][0])
            row = {"form": form, "chains": chains, "cycles": cycles, "binary": binary, "counters": profile.counters}
            file.write(json.dumps(row) + "\n")
            counts = [round(value / REPEATS, 2) for value in profile.counters.values() if value]
            executed = profile.counters.get(COUNTERS[0], 0)
            wrong += executed < REPEATS or executed % REPEATS != 0
            print(form, chains, round(cycles / REPEATS, 1), *counts, *binary)
    print(f"{wrong} of {len(rows)} kernels did not count a multiple of {REPEATS} instructions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
