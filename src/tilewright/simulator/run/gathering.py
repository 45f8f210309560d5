"""Instructions that threads of a warp execute together (``.sync``): lanes that arrive early wait for the others.

The instruction's mask names the threads that must arrive; without a mask, the whole warp must. Threads that have left the
kernel are not waited for. Lanes may meet at different ``bar.warp.sync`` of the program, but only at the same instruction of
any other kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..assembly.effects import is_warp_barrier, is_warpgroup_wide
from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.values import Ints, per_lane
from ..ops.warp import WHOLE_WARP, companions

_MASKED = ("shfl", "vote", "match", "redux", "elect", "bar")
Bits = NDArray[np.uint32]


class Gathering:
    """The lanes of a batch that wait for others of their warp."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.bit = np.uint32(1) << lanes.lane.astype(np.uint32)
        self.warps = int(lanes.base_warp[-1]) + 1
        self.alive = self.bits(lanes.every)  # lanes that have not left the kernel
        self.waiting: dict[int, tuple[Instruction, Ints]] = {}  # by segment

    def clear(self) -> None:
        """Forget all lanes that wait or left: new blocks start."""
        self.alive = self.bits(self.lanes.every)
        self.waiting.clear()

    def bits(self, lanes: Ints) -> Bits:
        """Lanes as one mask per warp."""
        return np.bincount(self.lanes.base_warp[lanes], self.bit[lanes], self.warps).astype(np.uint32)

    def leave(self, lanes: Ints) -> None:
        """Note that these lanes left the kernel: others no longer wait for them."""
        self.alive &= ~self.bits(lanes)

    def admit(self, at: int, ins: Instruction, lanes: Ints) -> list[tuple[int, Ints]]:
        """Lanes arrive at an instruction; returns the lanes that may execute now, by segment. The others wait."""
        if at in self.waiting:
            lanes = np.union1d(lanes, self.waiting.pop(at)[1])
        if is_warpgroup_wide(ins):
            return self._admit_warpgroups(at, ins, lanes)
        if self._whole(lanes):
            return [(at, lanes)]
        self.waiting[at] = (ins, lanes)
        return self._release(
            [p for p, (i, _) in self.waiting.items() if p == at or (is_warp_barrier(ins) and is_warp_barrier(i))]
        )

    def _admit_warpgroups(self, at: int, ins: Instruction, lanes: Ints) -> list[tuple[int, Ints]]:
        """``admit`` for an instruction that four warps execute together."""
        group = self.lanes.of_block[lanes] * 8 + self.lanes.tid[lanes] // 128
        complete = np.bincount(group)[group] == 128
        if not complete.all():
            self.waiting[at] = (ins, lanes[~complete])
        return [(at, lanes[complete])] if complete.any() else []

    def give_up(self) -> list[tuple[int, Ints]]:
        """No more lanes can arrive: release those whose condition holds, otherwise all, and report it."""
        go = self._release([at for at, (ins, _) in self.waiting.items() if is_warp_barrier(ins)])
        for at in [at for at, (ins, _) in self.waiting.items() if not is_warp_barrier(ins)]:
            go += self._release([at])
        if go:
            return go
        released, self.waiting = self.waiting, {}
        for ins, lanes in released.values():
            absent = int(self._missing([(ins, lanes)])[0][0])
            count = absent.bit_count()
            text = f"waits for {count} other threads of its warp that never arrive (mask {absent:#010x}): {ins.text}"
            self.lanes.reports.report("divergent barrier", ins, lanes, np.ones(lanes.size, bool), None, text)
        return [(at, lanes) for at, (_, lanes) in released.items()]

    def _release(self, places: list[int]) -> list[tuple[int, Ints]]:
        """Of the lanes at these segments, which may meet one another, those whose companions have all arrived."""
        groups = [(at, *self.waiting.pop(at)) for at in places]
        go = []
        for (at, ins, lanes), absent in zip(groups, self._missing([group[1:] for group in groups]), strict=True):
            if (absent == 0).any():
                go.append((at, lanes[absent == 0]))
            if (absent != 0).any():
                self.waiting[at] = (ins, lanes[absent != 0])
        return go

    def _missing(self, groups: list[tuple[Instruction, Ints]]) -> list[Bits]:
        """For each lane the mask of the lanes of its warp that must still arrive; lanes with the same mask meet."""
        if not groups:
            return []
        lanes = np.concatenate([group for _, group in groups])
        masks = np.concatenate([self._masks(ins, group) for ins, group in groups])
        warps = self.lanes.base_warp[lanes]
        _, meeting = np.unique(warps << 32 | masks, return_inverse=True)
        present = np.bincount(meeting, self.bit[lanes]).astype(np.uint32)
        absent = masks.astype(np.uint32) & self.alive[warps] & ~present[meeting]
        return np.split(absent, np.cumsum([group.size for _, group in groups])[:-1])

    def meet(self, groups: Sequence[tuple[Instruction, Ints | None]]) -> None:
        """These lanes pass warp barriers, each with the lanes of its warp that have the same mask, at any of them."""
        masks = np.full(self.lanes.size, WHOLE_WARP, np.int64)
        every = self.lanes.every
        for ins, some in groups:
            masks[every if some is None else some] = self._masks(ins, every if some is None else some)
        for ins, some in groups:
            meeting = companions(ins, self.lanes, masks, some)
        if len(groups) == 1:
            self.lanes.sync_warp(groups[0][1], meeting)
            return
        lanes = np.sort(np.concatenate([every if some is None else some for _, some in groups]))
        self.lanes.sync_warp(lanes, np.unique(self.lanes.base_warp[lanes] << 32 | masks[lanes], return_inverse=True)[1])

    def _masks(self, ins: Instruction, lanes: Ints) -> Ints:
        if ins.parts[0] not in _MASKED or not ins.operands:
            return np.full(lanes.size, WHOLE_WARP, np.int64)
        mask = self.lanes.source(ins.operands[-1], "u32", ins)
        return per_lane(mask, lanes).astype(np.int64)

    def _whole(self, lanes: Ints) -> bool:
        """Whether lanes are whole warps: the common case."""
        if self.lanes.threads % 32 or lanes.size % 32:
            return False
        rows = lanes.reshape(-1, 32)
        return bool((rows[:, 31] - rows[:, 0] == 31).all() and (rows[:, 0] % 32 == 0).all())
