"""The time that a pipelined kernel is predicted to take, from its stages: launch, fill, steady state, epilogue.

Blocks run in generations: as many at once as the multiprocessors hold, until all have run. A block starts and waits until
its first copies arrive (fill), takes turns with the others on the units of its multiprocessor and on the memories (steady
state), and writes its last tile (epilogue). Where a multiprocessor holds several blocks, each fills and drains while others
compute, so fill and epilogue are then a part of what the steady state must hide, but for the first and the last.

In the steady state every unit has its work, and would alone take as long as its bound. Besides, the kernel waits: each round
of copies takes the latency of memory. Units whose times are alike hinder each other, because none is always busy: the
steady state takes the fourth root of the sum of the fourth powers of all times. Of two equal ones this is 19 % more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...records.explanation import TimePart
from ...simulator.gpus import GpuModel, PipelineRates
from ...simulator.occupancy import occupancy
from .pipeline_work import PipelineWork

#: The exponent with which the times of several units add up: 1 is one after the other, infinity is no hindrance. Of whole
#: numbers, 4 is nearest to the times of the asynchronous kernels of the tests; every other figure is a rate of the card.
EXPONENT = 4
#: Other units are named if they alone take at least this share of the time of the one that limits.
_NAMED = 0.6


def predicted_time(work: PipelineWork, card: GpuModel) -> list[TimePart]:
    """The parts of the time of a launch that follows others of the same kernel, so that operands that fit are in L2.

    Empty where the rates of the card were not measured, or a block does not fit.
    """
    most = occupancy(card, work.threads, work.registers, work.shared_bytes).blocks
    if card.rates is None or not most or not work.blocks:
        return []
    return _Launch(work, card, card.rates, most).parts()


@dataclass(frozen=True)
class _Launch:
    """The work of a launch on a card whose multiprocessors hold ``most`` of its blocks."""

    work: PipelineWork
    card: GpuModel
    rates: PipelineRates
    most: int

    # ---- how the blocks are spread

    @property
    def resident(self) -> int:
        """Blocks at once on the busiest multiprocessor."""
        return min(self.most, self._on_each)

    @property
    def generations(self) -> int:
        return math.ceil(self.work.blocks / (self.card.sms * self.most))

    @property
    def _on_each(self) -> int:
        return math.ceil(self.work.blocks / self.card.sms)

    @property
    def exposed(self) -> int:
        """How many fills and epilogues nothing hides: of several blocks, the others work meanwhile."""
        return self.generations if self.resident == 1 else 1

    # ---- seconds

    @property
    def cycle(self) -> float:
        """Of a clock cycle; where tensor cores work, the clock is lower."""
        mhz = self.rates.tensor_clock_mhz if self.work.tensor_cycles else self.card.clock_mhz
        return 1e-6 / (mhz or math.inf)

    @property
    def far(self) -> bool:
        """Whether the operands do not fit in the L2 cache."""
        return self.work.operand_bytes > self.rates.l2_bytes

    @property
    def latency(self) -> float:
        return self.rates.l2_latency + (self.rates.memory_latency if self.far else 0)

    @property
    def fill(self) -> float:
        return self.rates.block_start + self.latency

    @property
    def drain(self) -> float:
        """Until the last tiles of all blocks at once are written."""
        at_once = min(self.work.blocks, self.card.sms * self.resident)
        return at_once * self.work.written / (self.rates.l2_write_gbs * 1e9)

    @property
    def own_instructions(self) -> float:
        """In which a warp of a block issues its instructions, each of which needs the one before."""
        warps = -(-self.work.threads // 32)
        return self.work.instructions / warps * self.rates.instruction_cycles * self.cycle

    def units(self) -> dict[str, float]:
        """The seconds in which each unit alone would do its work, and those that the blocks wait."""
        work, rates, quarters = self.work, self.rates, self.card.limits.sub_partitions
        blocks = self._on_each * work.busiest
        read = work.blocks * (work.copied + work.loaded)
        again = max(0.0, read - work.read_bytes)  # bytes that several blocks read
        l2 = (read - again) / rates.l2_first_gbs + again / rates.l2_gbs
        if self.resident > 1:
            l2 += work.blocks * work.written / rates.l2_write_gbs
        times = {
            "tensor cores": blocks * work.tensor_cycles / quarters * self.cycle,
            "L1 and shared memory": blocks * work.turns * self.cycle,
            "issue": blocks * work.instructions / quarters * self.cycle,
            "L2 cache": l2 * 1e-9,
            "starts of blocks": self._on_each * rates.block_interval,
            "latency": self.waits(),
        }
        if work.groups:  # a group's own products, and between them the hand-over of stages
            own = work.tensor_cycles / quarters / work.groups * self.cycle + work.phases * rates.hand_over
            times["tensor cores"] = max(times["tensor cores"], self.generations * own * work.busiest)
        if work.rounds > 1:
            times["dependent instructions"] = self.generations * self.own_instructions
        if self.far:  # each byte once: that some come again, when L2 has lost them, is not known
            times["device memory"] = work.operand_bytes / (rates.memory_gbs * 1e9)
        return times

    def waits(self) -> float:
        """The seconds that blocks wait for memory, all generations one after the other, without what is exposed."""
        rounds = max(0.0, self.work.rounds * self.work.busiest - 1)
        waits = self.generations * rounds * (self.latency + self.rates.hand_over)
        if self.work.rounds <= 1:  # load, compute and store: one after the other
            waits += self.generations * self.own_instructions
        return waits + (self.generations - self.exposed) * (self.fill + self.rates.l2_latency)

    # ---- parts

    def parts(self) -> list[TimePart]:
        """The parts, in their order."""
        times = self.units()
        steady = sum(seconds**EXPONENT for seconds in times.values()) ** (1 / EXPONENT)
        drain = self.rates.l2_latency if self.resident > 1 else self.rates.l2_latency + self.drain
        each = f"{self.exposed} generations of blocks, each " if self.exposed > 1 else ""
        return [
            TimePart("launch", self.rates.launch, "from one launch to the next"),
            TimePart("fill", self.exposed * self.fill, each + self._fill_words()),
            TimePart("steady state", steady, _steady_words(times)),
            TimePart("epilogue", self.exposed * drain, f"{each}until the last tiles of all blocks at once are written"),
        ]

    def _fill_words(self) -> str:
        place = "device memory" if self.far else "the L2 cache"
        start, wait = 1e6 * self.rates.block_start, 1e6 * self.latency
        return f"{start:.2f} µs until a block asks for data, {wait:.2f} µs until they come from {place}"


def _steady_words(times: dict[str, float]) -> str:
    """The unit that limits, and those that take nearly as long."""
    (first, longest), *others = sorted(times.items(), key=lambda item: -item[1])
    near = [f"{name} {1e6 * seconds:,.1f}" for name, seconds in others if seconds >= _NAMED * longest]
    return f"bound by {first}: alone {1e6 * longest:,.1f} µs" + (f"; {', '.join(near)} µs" if near else "")
