"""What an instruction does to other threads: whether it reads what they wrote, writes, fences, or needs their company."""

from __future__ import annotations

from .instructions import Instruction

_ORDERED = {"volatile", "acquire", "relaxed", "acq_rel", "mmio"}


def loads_anew(ins: Instruction) -> bool:
    """Whether an instruction looks at what other threads may have written meanwhile."""
    name = ins.parts[0]
    waits = name == "mbarrier" and ("try_wait" in ins.parts or "test_wait" in ins.parts)
    return waits or name == "atom" or (name == "ld" and bool(_ORDERED & set(ins.parts)))


def stores(ins: Instruction) -> bool:
    """Whether an instruction changes memory; an atomic that does tells it by its own result."""
    name = ins.parts[0]
    if name == "mbarrier":
        return not loads_anew(ins)
    return name in ("st", "red", "cp", "stmatrix", "wgmma", "multimem") or name.startswith("tcgen")


def only_reads(ins: Instruction) -> bool:
    """Whether an instruction leaves global memory as it is."""
    copies_in = ins.opcode.startswith("cp.async") and "global.shared" not in ins.opcode
    return copies_in or ins.opcode.startswith(("ld", "prefetch"))


def fences(ins: Instruction) -> bool:
    """Whether others may learn of what came before: a fence, or an access that releases."""
    return ins.parts[0] in ("fence", "membar") or bool({"release", "acq_rel"} & set(ins.parts[1:]))


def is_collective(ins: Instruction) -> bool:
    """Whether a warp executes an instruction together (``.sync``); block barriers are not meant."""
    return "sync" in ins.parts and (ins.parts[0] not in ("bar", "barrier") or "warp" in ins.parts)


def is_warp_barrier(ins: Instruction) -> bool:
    """Whether an instruction is ``bar.warp.sync``."""
    return ins.parts[0] in ("bar", "barrier") and "warp" in ins.parts
