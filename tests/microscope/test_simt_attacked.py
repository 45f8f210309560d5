"""What was once wrong in the microscope: groups of a warp, loads that compilers add, polls, overlapping arguments."""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.cuda_sources import HEAD, compiled, execute, made
from tilewright.errors import OperandError, UsageError
from tilewright.records.source_rows import source_rows
from tilewright.simulator import simulate
from tilewright.simulator.assembly import disassembly
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.program import link
from tilewright.simulator.assembly.ptxas import PtxAccess, match_accesses, ptx_accesses
from tilewright.simulator.microscope import sample_blocks, why_sample_may_mislead

X = np.arange(64, dtype=np.int32)
T = np.arange(32)
HALF = "(t & 16 ? 0xffff0000u : 0xffffu)"


def kinds(source: str, args: list[Any], grid: Any = 1, block: Any = 32) -> list[str]:
    return [f.kind for f in execute(source, args, grid, block).findings]


# ---- groups of a warp, each with its mask


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("__reduce_add_sync(m, x[t])", np.repeat([120, 376], 16)),
        ("__reduce_max_sync(m, x[t])", np.repeat([15, 31], 16)),
        ("__ballot_sync(m, x[t] & 1)", np.repeat([0xAAAA, 0xAAAA0000 - (1 << 32)], 16)),
        ("__any_sync(m, t == 31)", T >> 4),
        ("__all_sync(m, t < 16)", 1 - (T >> 4)),
        ("__match_any_sync(m, 7)", np.repeat([0xFFFF, 0xFFFF0000 - (1 << 32)], 16)),
        ("__shfl_sync(m, x[t], 3, 16)", (T & 16) + 3),
    ],
)
def test_halves_of_a_warp_with_masks_of_their_own(expression: str, right: np.ndarray) -> None:
    source = f"{HEAD}(const int* x, int* y) {{ int t = threadIdx.x; unsigned m = {HALF}; y[t] = {expression}; }}"
    run = execute(source, [X[:32], np.zeros(32, np.int32)], 1, 32)
    assert run.findings == []
    np.testing.assert_array_equal(run.arrays[1], right)


EXCHANGE = "{ __shared__ int s[32]; int t = threadIdx.x; s[t] = x[t]; __syncwarp(%s); y[t] = s[t ^ %d]; }"


@pytest.mark.parametrize(("mask", "far", "found"), [(HALF, 16, ["race"]), (HALF, 8, []), ("~0u", 16, [])])
def test_a_warp_barrier_orders_its_group(mask: str, far: int, found: list[str]) -> None:
    assert kinds(f"{HEAD}(const int* x, int* y) {EXCHANGE % (mask, far)}", [X[:32], np.zeros(32, np.int32)]) == found


@pytest.mark.parametrize("sync", ["__syncwarp();", "__syncthreads();", f"__syncwarp({HALF}); __syncwarp();"])
def test_groups_join_again(sync: str) -> None:
    body = f"{{ __shared__ int s[32]; int t = threadIdx.x; s[t] = x[t]; __syncwarp({HALF}); {sync} y[t] = s[t ^ 16]; }}"
    assert kinds(f"{HEAD}(const int* x, int* y) {body}", [X[:32], np.zeros(32, np.int32)]) == []


@pytest.mark.parametrize(
    "call", ["__syncwarp(0xffff)", "y[t] = __ballot_sync(0xffff, x[t])", "y[t] = __shfl_sync(0xffff, x[t], 0)"]
)
def test_a_mask_that_leaves_out_who_executes_it(call: str) -> None:
    source = f"{HEAD}(const int* x, int* y) {{ int t = threadIdx.x; %s {call}; }}"
    args = [X[:32], np.zeros(32, np.int32)]
    (found,) = execute(source % "", args, 1, 32).findings
    assert (found.kind, found.thread) == ("divergent barrier", (16, 0, 0))
    assert "its mask (0x0000ffff) leaves out the thread" in found.text
    assert kinds(source % "if (t < 16)", args) == []


# ---- what compilers load besides

GUARDED = (
    HEAD
    + """(const int* x, int* y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  int v = t + 7;
  if (t < %d) v = s[5];
  y[t] = v;
}"""
)
VECTOR = (
    HEAD
    + """(float* y) {
  __shared__ float4 s[32];
  int t = threadIdx.x;
  s[t].x = t; s[t].y = t; s[t].z = t;
  __syncthreads();
  y[t] = s[31 - t].x + s[31 - t].y + s[31 - t].%s;
}"""
)
EITHER = (
    HEAD
    + """(const int* x, int* y, int c) {
  __shared__ int a[2], b[2];
  int t = threadIdx.x;
  if (c) { if (t < 2) a[t] = x[t]; } else { if (t < 2) b[t] = x[t]; }
  __syncthreads();
  y[t] = c %s 0 ? a[1] : b[1];
}"""
)


@pytest.mark.parametrize(("threads", "found"), [(32, []), (33, ["race"])])
def test_a_load_that_is_turned_down(threads: int, found: list[str]) -> None:
    """NVVM loads for all threads and selects: one that selects what another warp wrote is still named."""
    source = GUARDED % threads
    assert "selp" in compiled(source)
    assert kinds(source, [X, np.zeros(64, np.int32)], block=64) == found


@pytest.mark.parametrize(("compare", "found"), [("!=", []), ("==", ["unwritten read"])])
def test_of_two_loads_the_one_selected(compare: str, found: list[str]) -> None:
    assert kinds(EITHER % compare, [X, np.zeros(64, np.int32), 0], block=64) == found


@pytest.mark.parametrize(("element", "found"), [("z", []), ("w", ["unwritten read"])])
def test_an_element_of_a_vector_that_nobody_reads(element: str, found: list[str]) -> None:
    assert kinds(VECTOR % element, [np.zeros(32, np.float32)]) == found


PADDED = (
    HEAD
    + """(S* y) {
  __shared__ S s[32];
  int t = threadIdx.x;
  %s s[t].b = t;
  __syncthreads();
  y[t] = s[31 - t];
}"""
)


@pytest.mark.parametrize(("first", "found"), [("s[t].a = t;", []), ("", ["unwritten read"])])
def test_bytes_that_pad_a_structure_may_be_copied(first: str, found: list[str]) -> None:
    assert kinds("struct S { char a; int b; };\n" + PADDED % first, [np.zeros(64, np.int32)]) == found


# ---- waiting


@pytest.mark.parametrize(("count", "found"), [(64, []), (96, ["endless wait"])])
def test_the_last_warp_counts_as_whole_at_a_named_barrier(count: int, found: list[str]) -> None:
    body = f'{{ __shared__ int s[64]; int t = threadIdx.x; s[t] = x[t]; asm volatile("bar.sync 1, {count};" ::: "memory"); y[t] = s[47 - t]; }}'
    assert kinds(f"{HEAD}(const int* x, int* y) {body}", [X, np.zeros(64, np.int32)], block=48) == found


@pytest.mark.parametrize(
    "poll",
    ["atomicAdd(f, 0)", "atomicMax(f, 0)", "atomicSub(f, 0)", "atomicInc((unsigned*)f + 1, 0), *(volatile int*)f"],
)
def test_any_atomic_may_poll(poll: str) -> None:
    source = f"{HEAD}(int* f) {{ if (threadIdx.x == 0) {{ atomicAdd(f, 1); while (({poll}) < gridDim.x); }} }}"
    assert kinds(source, [np.zeros(2, np.int32)], 132, 256) == []


# ---- samples


def test_choices_differ_in_several_blocks_between() -> None:
    for size in range(5, 300):
        some = sample_blocks((size, 1, 1))
        first, second = (dict(zip(some.blocks.tolist(), w.tolist(), strict=True)) for w in some.weights)
        assert sum(first.values()) == sum(second.values()) == size
        for parity in (0, 1):
            assert sum(w for b, w in first.items() if b % 2 == parity) == len(range(parity, size, 2))
        for fewer in range(1, size) if size > 8 else ():  # work that only the first few blocks do
            told = [sum(w for b, w in choice.items() if b < fewer) for choice in (first, second)]
            assert told == [fewer, fewer] or told[0] != told[1]


def test_doubt_about_blocks_that_share_out_work() -> None:
    def asked(body: str) -> str:
        return why_sample_may_mislead(link(parse_ptx(compiled(f"{HEAD}(int* x, int* y) {{ {body} }}")), "k"))

    assert "atom" in asked("y[atomicAdd(x, 1)] = 1;")
    assert "ld.volatile" in asked("while (*(volatile int*)x == 0); y[0] = 1;")
    assert asked("atomicAdd(x, 1); y[0] = 1;") == ""
    assert asked("__shared__ int s; s = 0; __syncthreads(); y[atomicAdd(&s, 1)] = 1;") == ""


# ---- arguments and sources


def test_arguments_that_overlap() -> None:
    source = f"{HEAD}(const float* a, float* b) {{ b[threadIdx.x] = a[threadIdx.x]; }}"
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(UsageError, match="overlap"):
        execute(source, [x[:-1], x[1:]], 1, 32)
    assert kinds(source, [x[:32], x[32:]]) == []
    assert kinds(source, [x[::2], x[1::2]]) == []
    reads = f"{HEAD}(const float* a, const float* b, float* c) {{ c[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x]; }}"
    assert kinds(reads, [x[:-1], x[1:], np.zeros(32, np.float32)]) == []


def test_the_same_array_twice_is_one_however_it_lies() -> None:
    source = f"{HEAD}(const float* a, float* b) {{ b[threadIdx.x] = a[11 - threadIdx.x] + 1; }}"
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    run = execute(source, [turned, turned], 1, 12)
    assert [f.kind for f in run.findings] == ["race"]
    np.testing.assert_array_equal(run.arrays[0], run.arrays[1])


@pytest.mark.parametrize("fields", [[("a", "O"), ("b", "i4")], [("a", "g")], [("a", [("b", "M8[s]")], 2)]])
def test_structures_of_what_no_gpu_has(fields: Any) -> None:
    with pytest.raises(OperandError, match="numbers that a GPU has"):
        execute(f"{HEAD}(int* x) {{ x[0] = 1; }}", [np.zeros(2, fields)], 1, 1)


def test_a_half_as_a_number() -> None:
    source = f"#include <cuda_fp16.h>\n{HEAD}(half a, half* y) {{ *y = a; }}"
    assert execute(source, [np.float16(2), np.zeros(1, np.float16)], 1, 1).arrays[1] == [2]


@pytest.mark.parametrize(
    ("call", "said"),
    [("call f, (p)", "takes 2 and returns 0 values, called with 1 and 0"), ("call (p), ", "names no function")],
)
def test_calls_that_make_no_sense(call: str, said: str) -> None:
    text = f""".version 8.0
.target sm_80
.address_size 64
.func f(.param .b32 a, .param .b32 b) {{ ret; }}
.visible .entry k(.param .u64 x) {{ .param .b32 p; {call}; ret; }}"""
    with pytest.raises(UsageError, match=said):
        simulate(text, "k", 1, 1, [np.zeros(1, np.int32)])


def test_lines_end_where_the_compiler_says() -> None:
    assert [row.text for row in source_rows("a\x0cb\u2028c\x85\nd\r\ne\n", [], [])] == ["a\x0cb\u2028c\x85", "d", "e"]


# ---- what the binary does instead


def looping(index: int, base: str, offset: int, loop: bool = False) -> PtxAccess:
    return PtxAccess(index, "k.cu", 7, "shared", "ld", (base,), offset, 4, loop)


def test_which_of_two_runs_is_fused_is_said_to_be_unknown() -> None:
    """One line inlined at two places, of which ptxas fuses one."""
    both = [looping(i, base, 4 * i % 16) for i, base in enumerate("aaaabbbb")]
    lone = [made("LDS", 16 * i) for i in range(4)]
    machine = match_accesses(both, [*lone, made("LDS.128", 64)])
    assert "which of several similar accesses the machine fuses" in machine.notes[0]
    assert not match_accesses(both[:4], [made("LDS.128")]).notes
    assert not match_accesses(both, [made("LDS.128"), made("LDS.128", 16)]).notes


def test_a_load_moved_out_of_its_loop() -> None:
    label = ".text.f:\n.L_x_1:\n"
    lds = '//## File "k.cu", line 7\n  /*0010*/ LDS R4, [R2] ;\n'
    bra = "  /*0020*/ @P0 BRA `(.L_x_1) ;\n"
    inside = disassembly.parse_sass(label + lds + bra)["f"]
    before = disassembly.parse_sass(".text.f:\n" + lds + ".L_x_1:\n  /*0018*/ NOP ;\n" + bra)["f"]
    assert not match_accesses([looping(3, "a", 0, loop=True)], inside).notes
    assert "in a loop, the machine before or after" in match_accesses([looping(3, "a", 0, loop=True)], before).notes[0]
    assert not match_accesses([looping(3, "a", 0)], before).notes
    both = ".visible .entry k(.param .u64 p) { .reg .b32 %r<9>; .reg .pred %p<2>; "
    both += "ld.shared.u32 %r1, [%r2]; $L: ld.shared.u32 %r3, [%r2]; @%p1 bra $L; ret; }"
    found = ptx_accesses(link(parse_ptx(f".version 8.4\n.target sm_90\n.address_size 64\n{both}"), "k"))
    assert [access.loop for access in found] == [False, True]
