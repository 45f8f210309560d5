"""The inner loop of a kernel, found and counted in machine code: of texts, and of kernels compiled for this machine."""

from __future__ import annotations

import pytest

from tilewright.host.machine import machine
from tilewright.kernels.catalog import catalog
from tilewright.lab.explain.cpu_counts import InnerLoop, inner_loop, read_loop

#: A loop of multiply-adds with a load in an operand, a store, an address, a prefetch; one that is longer; one of copies.
X86 = """
	.text
.LBB0_1:
	vmovups	(%rsi), %ymm1
	vmovups	%ymm1, (%rdi)
	jne	.LBB0_1
.LBB0_2:
	prefetcht0	512(%rax)
	vbroadcastss	(%rcx), %ymm2
	vfmadd231ps	(%rax), %ymm2, %ymm0
	vfmadd231ps	%ymm3, %ymm2, %ymm1
	vmovups	%ymm4, 64(%rdx)
	leaq	32(%rax), %rax
	decq	%r8
	jne	.LBB0_2
	vzeroupper
	retq
.LBB0_3:
	vfmadd231ps	(%rax), %ymm2, %ymm0
	vfmadd231ps	%ymm3, %ymm2, %ymm1
	prefetchw	(%r9)
	prefetchw	64(%r9)
	addq	$32, %rax
	addq	$32, %rbx
	addq	$32, %rcx
	cmpq	%rax, %r8
	jl	.LBB0_3
"""
ARM = """
.LBB0_4:
	prfm	pldl1keep, [x1, #512]
	ldp	q0, q1, [x1], #32
	ld1r	{ v2.4s }, [x2]
	fmla	v3.4s, v0.4s, v2.s[0]
	fmla	v4.4s, v1.4s, v2.s[0]
	str	q3, [x4]
	subs	x3, x3, #1
	b.ne	.LBB0_4
"""


def test_a_loop_is_read_from_the_assembly_of_x86_and_arm() -> None:
    assert read_loop(X86) == InnerLoop(multiplies=2, loads=2, prefetches=1, instructions=8)
    assert read_loop(ARM) == InnerLoop(multiplies=2, loads=2, prefetches=1, instructions=8)
    assert InnerLoop(2, 2, 1, 8).reads == 3


def test_without_a_loop_that_multiplies_there_is_none() -> None:
    assert read_loop("L1:\n\tvmovups\t(%rsi), %ymm1\n\tjne\tL1") is None
    assert read_loop("L1:\n\tvfmadd231ps\t(%rax), %ymm2, %ymm0\n\tjne\tL2") is None
    assert read_loop("") is None


def test_kernels_that_are_not_compiled_have_none() -> None:
    assert inner_loop(catalog()["cpu/strassen"], "float32") is None


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(not {"avx2", "neon"} & set(machine().isa), reason="counts vectors of AVX2, AVX-512 or NEON")
@pytest.mark.parametrize("name", ["cpu/packed", "cpu/register_tile"])
def test_the_tile_loads_each_step_what_the_model_says(name: str) -> None:
    kernel = catalog()[name]
    mr, nv = kernel.params["mr"], kernel.params["nv"]
    loop = inner_loop(kernel, "float32")
    assert loop is not None
    steps, rest = divmod(loop.multiplies, mr * nv)
    assert (steps >= 1, rest) == (True, 0)
    assert mr + nv <= loop.loads / steps < mr + nv + 1, "S1.10: an element of each row and the vectors of a row of B"
    assert loop.instructions < 2 * loop.multiplies
