"""What a GPU counts of tensor-core instructions, and how long they take: ``record_wgmma.py OUT.jsonl`` (Hopper, with ncu).

One kernel for each type, N, layout of the operands in shared memory and source of A: a block of one warpgroup executes
``REPEATS`` instructions that depend on nothing but each other's accumulators. Each line of the record has the counters of
one kernel, divided by nothing, and the cycles between its first instruction and the end of its last, by the clock of the
multiprocessor. ``mma.sync`` is there too, by one warp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.gpu.runtime.nvrtc import compile_source, compiler
from tilewright.lab.explain.measure import profile_launches
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.lab.inputs.environment import environment

REPEATS = 64
COUNTERS = (
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "sm__pipe_tensor_cycles_active.sum",
    "sm__inst_executed_pipe_tensor_op_dmma.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum",
    "l1tex__lsuin_requests_op_gmma.sum",
)
#: Type of the operands → k of an instruction, type of the sum, and what follows the operands (without transposition of A if
#: it is in registers).
WGMMA = {
    "bf16": (16, "f32", "p, 1, 1, 0, 0"),
    "f16": (16, "f16", "p, 1, 1, 0, 0"),
    "tf32": (8, "f32", "p, 1, 1"),
    "e4m3": (32, "f32", "p, 1, 1"),
    "s8": (32, "s32", "p"),
}
WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256)
#: Layout → mode, leading and stride offset of a descriptor in 16-byte units; columns of k are neighbours.
LAYOUTS = {
    "128B": (1, 1, 64),
    "64B": (2, 1, 32),
    "32B": (3, 1, 16),
    "none": (0, 8, 16),
    "none, rows of 8 at a distance of 1,152 bytes": (0, 8, 72),
}
MMA = (
    ("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 4, 2),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", 4, 2, 1),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 4, 2),
    ("m16n8k16.row.col.f16.f16.f16.f16", 2, 4, 2),
    ("m16n8k32.row.col.s32.s8.s8.s32", 4, 4, 2),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 4, 4, 2),
)


def wgmma_kernel(name: str, kind: str, n: int, layout: str, registers: bool) -> str:
    """A kernel of ``REPEATS`` instructions of one form."""
    k, total, tail = WGMMA[kind]
    count = n // 4 if total == "f16" else n // 2
    letter, typed = ("f", "float") if total == "f32" else ("r", "unsigned")
    mode, leading, stride = LAYOUTS[layout]
    sums = ", ".join(f"%{i}" for i in range(count))
    if registers:
        a, tail = (
            f"{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}",
            tail.removesuffix(", 0") if k == 16 else tail,
        )
        inputs, b = '"r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(of_b)', f"%{count + 4}"
    else:
        a, b, inputs = f"%{count}", f"%{count + 1}", '"l"(of_a), "l"(of_b)'
    shape = f"m64n{n}k{k}.{total}.{kind}.{kind}"
    line = f"{{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {a}, {b}, {tail};}}"
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    return f"""
extern "C" __global__ void __launch_bounds__(128) {name}(long long* cycles, unsigned* sums)
{{
    extern __shared__ __align__(1024) unsigned char tile[];
    for (int i = threadIdx.x; i < {SHARED} / 4; i += 128) ((unsigned*)tile)[i] = 0x3c003c00u ^ (i * 2654435761u >> 22);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned long long at = (unsigned long long)__cvta_generic_to_shared(tile);
    unsigned long long shape = {leading}ull << 16 | {stride}ull << 32 | {mode}ull << 62;
    unsigned long long of_a = shape | (at & 0x3ffff) >> 4, of_b = shape | ((at + {B_AT}) & 0x3ffff) >> 4;
    unsigned a0 = threadIdx.x, a1 = a0 * 3, a2 = a0 * 5, a3 = a0 * 7;
    {typed} d[{count}] = {{}};
    long long begun = clock64();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll 4
    for (int i = 0; i < {REPEATS}; i++)
        asm volatile("{line}" : {outputs} : {inputs});
    asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    long long ended = clock64();
    unsigned sum = 0;
    for (int i = 0; i < {count}; i++) sum += (unsigned)d[i];
    if (threadIdx.x == 0) *cycles = ended - begun;
    sums[threadIdx.x] = sum;
}}"""


#: Bytes of shared memory: A has 64 rows, B up to 256, in groups of 8 that begin up to 1,152 bytes apart.
B_AT, SHARED = 10240, 10240 + 32 * 1152


def mma_kernel(name: str, form: str, d: int, a: int, b: int) -> str:
    """A kernel of ``REPEATS`` mma.sync of one form."""
    letter, typed = ("f", "float") if form.endswith("f32") else ("r", "unsigned")
    sums = ", ".join(f"%{i}" for i in range(d))
    of_a = ", ".join(f"%{d + i}" for i in range(a))
    of_b = ", ".join(f"%{d + a + i}" for i in range(b))
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(d))
    inputs = ", ".join(f'"r"(threadIdx.x * {2 * i + 1})' for i in range(a + b))
    return f"""
extern "C" __global__ void __launch_bounds__(32) {name}(long long* cycles, unsigned* sums)
{{
    {typed} d[{d}] = {{}};
    long long begun = clock64();
    #pragma unroll
    for (int i = 0; i < {REPEATS}; i++)
        asm volatile("mma.sync.aligned.{form} {{{sums}}}, {{{of_a}}}, {{{of_b}}}, {{{sums}}};" : {outputs} : {inputs});
    long long ended = clock64();
    unsigned sum = 0;
    for (int i = 0; i < {d}; i++) sum += (unsigned)d[i];
    if (threadIdx.x == 0) *cycles = ended - begun;
    sums[threadIdx.x] = sum;
}}"""


def forms() -> Iterator[tuple[dict[str, Any], str, int]]:
    """What is counted: the facts of a record, the kernel's source, and its threads."""
    number = 0
    for kind in WGMMA:
        for n in WIDTHS:
            for layout in LAYOUTS:
                for registers in (False, True):
                    if registers and layout != "128B":
                        continue
                    facts = {
                        "instruction": "wgmma",
                        "type": kind,
                        "n": n,
                        "layout": layout,
                        "a": "registers" if registers else "shared memory",
                    }
                    number += 1
                    yield facts, wgmma_kernel(f"k{number}", kind, n, layout, registers), 128
    for form, d, a, b in MMA:
        number += 1
        yield {"instruction": "mma.sync", "form": form}, mma_kernel(f"k{number}", form, d, a, b), 32


def main() -> int:
    rows = list(forms())
    compiled = compile_source("\n".join(source for _, source, _ in rows), name="wgmma_forms.cu", arch="sm_90a")
    launches = [
        StoredLaunch(
            f"k{number}", 1, threads, (np.zeros(1, np.int64), np.zeros(128, np.uint32)), SHARED if threads == 128 else 0
        )
        for number, (_, _, threads) in enumerate(rows, 1)
    ]
    profiles = profile_launches(compiled, launches, COUNTERS, lines=False)
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        head = environment(operands="patterns of bits", command="python benchmarks/record_wgmma.py OUT.jsonl") | {
            "compiler": compiler(),
            "repeats": REPEATS,
        }
        file.write(json.dumps({"kind": "tensor instructions", "schema": 1, "environment": head}) + "\n")
        for (facts, _, _), profile in zip(rows, profiles, strict=True):
            cycles = int(profile.arrays[0][0])
            file.write(json.dumps(facts | {"cycles": cycles, "counters": profile.counters}) + "\n")
            if facts.get("layout") == "128B" or facts["instruction"] != "wgmma":
                print(*facts.values(), cycles / REPEATS, *(value / REPEATS for value in profile.counters.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
