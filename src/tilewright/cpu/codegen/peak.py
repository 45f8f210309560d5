"""Generates a loop of multiply-adds alone, which measures the highest rate of a core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import I32, Vectors, bits_of


def fma_chains(chains: int, vector_bits: int) -> Callable[..., None]:
    """Return an intrinsic ``run(steps, x)`` that does only fused multiply-adds, to measure the arithmetic peak of a
    core.

    ``x`` points to two float32 or float64 scalars: the multiplier and the addend. The multiplier is overwritten at the
    end, so that the compiler cannot remove the loop. Each step does ``chains`` independent vector FMAs, with all
    operands in registers.
    """

    @intrinsic
    def run(typingctx: Any, steps: Any, x: Any) -> Any:  # noqa: ARG001
        signature = types.void(types.intp, x)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scalar = context.get_data_type(signature.args[1].dtype)
            _emit(Vectors(builder, scalar, vector_bits // bits_of(scalar)), chains, *args)
            return context.get_dummy_value()

        return signature, codegen

    return run


def _emit(vectors: Vectors, count: int, steps: Any, x: Any) -> None:
    """acc ← acc·x[0] + x[1] for ``count`` independent accumulators."""
    builder = vectors.builder
    factor = vectors.broadcast(builder.load(x))
    addend = vectors.broadcast(builder.load(builder.gep(x, [steps.type(1)])))
    before = builder.block
    loop, done = builder.append_basic_block("fma.loop"), builder.append_basic_block("fma.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(steps.type)
    chains = [builder.phi(vectors.vector) for _ in range(count)]
    updated = [vectors.multiply_add(chain, factor, addend) for chain in chains]
    following = builder.add(step, steps.type(1))
    step.add_incoming(steps.type(0), before)
    step.add_incoming(following, loop)
    for r, (chain, new) in enumerate(zip(chains, updated, strict=True)):
        start = ir.Constant(vectors.vector, [float(r)] * vectors.lanes)  # equal chains would be merged into one
        chain.add_incoming(start, before)
        chain.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
    builder.position_at_end(done)
    total = updated[0]
    for chain in updated[1:]:
        total = vectors.add(total, chain)
    builder.store(builder.extract_element(total, I32(0)), x)
