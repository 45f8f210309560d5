"""Waits at mbarriers that never end: which warps wait for which phase, and what the phase lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..assembly.instructions import Instruction
from .mbarriers import Mbarrier, Mbarriers
from .values import Ints

#: An instruction that waits, its lanes, and for each lane the offset of its barrier and the parity.
EndlessWait: TypeAlias = tuple[Instruction, Ints, Ints, Ints]


def report_endless(mbarriers: Mbarriers, waits: Sequence[EndlessWait], others: int) -> None:
    """Report waits that never end: the instructions with their lanes, the offsets of their barriers, and parities; and that
    ``others``, a number of threads, wait at barriers of their blocks."""
    of_block, blocks = mbarriers.threads.of_block, set()
    for wait in waits if mbarriers.log is not None else ():
        note_waiting(mbarriers, "stuck", wait)
    for ins, lanes, offsets, parities in waits:
        block = int(of_block[lanes[0]])
        blocks.add(block)
        here = lanes[of_block[lanes] == block]
        meanwhile = [_who_waits(mbarriers, block, *wait) for wait in waits if wait[0] is not ins]
        meanwhile += [f"{others} threads wait at __syncthreads() or another barrier of their block"] * bool(others)
        also = "; ".join(filter(None, meanwhile))
        own = _who_waits(mbarriers, block, ins, lanes, offsets, parities)
        who = "1 thread of the block waits" if here.size == 1 else f"{here.size} threads of the block wait"
        text = f"{who} for ever: {own}{'. Meanwhile ' * bool(also)}{also}"
        mbarriers.report("endless wait", ins, here, text)
    for barrier in mbarriers.at.values():
        if barrier.block in blocks:
            mbarriers.report_bytes(barrier)
            mbarriers.report_waits(barrier)


def note_waiting(mbarriers: Mbarriers, what: str, wait: EndlessWait) -> None:
    """Record in the log that lanes wait, or for ever, each at its barrier."""
    ins, lanes, offsets, parities = wait
    assert mbarriers.log is not None
    for offset in np.unique(offsets).tolist():
        some = offsets == offset
        if offset in mbarriers.at:
            mbarriers.log.at(what, ins, mbarriers.at[offset], lanes[some], int(parities[np.argmax(some)]))


def _who_waits(mbarriers: Mbarriers, block: int, ins: Instruction, lanes: Ints, offsets: Ints, parities: Ints) -> str:
    """Which warps of a block wait for which phases at one instruction."""
    here, texts = mbarriers.threads.of_block[lanes] == block, []
    for offset in np.unique(offsets[here]).tolist():
        some = here & (offsets == offset)
        warps = np.unique(mbarriers.threads.tid[lanes[some]] // 32).tolist()
        wait = "waits" if len(warps) == 1 else "wait"
        where = f"at {ins.place(ins)}{_caller(ins)} for"
        missing = _missing(mbarriers, mbarriers.at[offset], int(parities[np.argmax(some)]), warps[0])
        texts.append(f"{_warps(warps)} {wait} {where} {missing}")
    more = f"; and {len(texts) - 4} more barriers" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


def _missing(mbarriers: Mbarriers, barrier: Mbarrier, parity: int, warp: int) -> str:
    """What the current phase of a barrier lacks, and phases that a warp has missed."""
    text = f"phase {barrier.phase} (parity {parity}) of {mbarriers.words(barrier)}, which lacks "
    text += f"{barrier.pending} of {barrier.count} arrivals" if barrier.pending else ""
    if barrier.bytes:
        text += " and " if barrier.pending else ""
        text += f"{barrier.bytes:,} bytes" if barrier.bytes > 0 else "nothing, but too many bytes have arrived"
        text += f" ({barrier.expected:,} expected, {barrier.received:,} arrived)"
    last = barrier.waited.get(warp, -1)
    if last < barrier.phase - 1:
        waited = f"for none after phase {last}" if last >= 0 else "for none"
        text += f"; of its {barrier.phase} completed phases warp {warp} waited {waited} (overtaken, or a wrong parity)"
    return text


def _caller(ins: Instruction) -> str:
    """The line from which the function of an instruction is called, as text; empty if it was not inlined."""
    return f" (called from line {ins.inlined_at.line})" if ins.inlined_at and ins.inlined_at.line else ""


def _warps(numbers: list[int]) -> str:
    """``warp 3``, or ``warps 4 to 7``."""
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"warps {numbers[0]} to {numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"
