"""How an instruction interacts with other threads: reads what they wrote, writes, fences, or is executed by a whole warp."""

from __future__ import annotations

from collections.abc import Iterable

from .instructions import Instruction

_ORDERED = {"volatile", "acquire", "relaxed", "acq_rel", "mmio"}


def loads_anew(ins: Instruction) -> bool:
    """Whether an instruction reads what other threads may have just written: an ordered load, an atomic, or a wait."""
    name = ins.parts[0]
    return is_mbarrier_wait(ins) or name == "atom" or (name == "ld" and bool(_ORDERED & set(ins.parts)))


def is_mbarrier_wait(ins: Instruction) -> bool:
    """Whether an instruction waits for a phase of an mbarrier; both forms may take any time."""
    return ins.parts[0] == "mbarrier" and bool({"try_wait", "test_wait"} & set(ins.parts))


def synchronises_grid(code: Iterable[Instruction]) -> bool:
    """Whether a kernel uses the workspace by which all blocks of a cooperative launch meet: ``%envreg1`` and ``%envreg2``
    have its address."""
    return any(operand in ("%envreg1", "%envreg2") for ins in code for operand in ins.operands)


def is_ordered(ins: Instruction) -> bool:
    """Whether an instruction accesses memory in an order that others may rely on: an atomic, a volatile or ordered access,
    or an operation on a barrier object."""
    return ins.parts[0] in ("atom", "red", "mbarrier") or bool((_ORDERED | {"release", "complete_tx"}) & set(ins.parts))


def stores(ins: Instruction) -> bool:
    """Whether an instruction writes memory, except ``atom``: the value that it returns shows whether memory changed."""
    name = ins.parts[0]
    if name == "mbarrier":
        return not loads_anew(ins)
    return name in ("st", "red", "cp", "stmatrix", "wgmma", "multimem") or name.startswith("tcgen")


def only_reads(ins: Instruction) -> bool:
    """Whether an instruction leaves global memory unchanged."""
    copies_in = ins.opcode.startswith("cp.async") and "global.shared" not in ins.opcode
    return copies_in or ins.opcode.startswith(("ld", "prefetch"))


def fences(ins: Instruction) -> bool:
    """Whether an instruction makes earlier writes visible to other threads: a fence, or a release."""
    if ins.parts[0] in ("mbarrier", "barrier") or ins.parts[:2] in (("fence", "proxy"), ("fence", "mbarrier_init")):
        return False
    return ins.parts[0] in ("fence", "membar") or bool({"release", "acq_rel"} & set(ins.parts[1:]))


def is_collective(ins: Instruction) -> bool:
    """Whether the lanes of a warp execute an instruction together (``.sync``); barriers of a block do not count."""
    return "sync" in ins.parts and (ins.parts[0] not in ("bar", "barrier") or "warp" in ins.parts)


def is_warp_barrier(ins: Instruction) -> bool:
    """Whether an instruction is ``bar.warp.sync``."""
    return ins.parts[0] in ("bar", "barrier") and "warp" in ins.parts


def is_warpgroup_wide(ins: Instruction) -> bool:
    """Whether the four warps of a warpgroup execute an instruction together."""
    return ins.parts[:2] == ("wgmma", "mma_async")
