"""The rounds in which the copies of a block arrive: how often it waits for memory, and with how many bytes under way.

A round begins when no thread of any block can go on before bytes arrive; then all copies under way arrive. So the bytes of
a round are what a block has under way at once, and each round costs a kernel the latency of memory once: a ring of four
stages, of which consumers hold one, has rounds of three stages.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockRounds:
    """What the blocks that copied have in common.

    Of a mean block: ``rounds``, and ``phases``, the phases of mbarriers that copies completed; ``first``, the bytes of its
    first round, ``under_way``, the typical bytes of the later ones (of the first, if there is no other), ``bytes``, those
    of all. ``most`` are the bytes of the block that has most.
    """

    blocks: int = 0
    rounds: float = 0.0
    phases: float = 0.0
    first: float = 0.0
    under_way: float = 0.0
    bytes: float = 0.0
    most: int = 0


class CopyRounds:
    """Collects the rounds of a launch, by block."""

    def __init__(self) -> None:
        self._bytes: dict[int, list[int]] = defaultdict(list)
        self._phases: Counter[int] = Counter()

    def add(self, coming: Iterable[tuple[int, int, int]]) -> None:
        """One round: the block, the place of the mbarrier and the bytes of each copy.

        >>> rounds = CopyRounds()
        >>> for stages in ((0, 1, 2, 3), (0, 1, 2), (3, 0, 1), (2,)):
        ...     rounds.add((7, place, 100) for place in stages)
        >>> rounds.of_blocks()
        BlockRounds(blocks=1, rounds=4, phases=11, first=400, under_way=300, bytes=1100, most=1100)
        """
        sums: Counter[int] = Counter()
        places = set()
        for block, place, nbytes in coming:
            if nbytes:
                sums[block] += nbytes
                places.add((block, place))
        for block, nbytes in sums.items():
            self._bytes[block].append(nbytes)
        self._phases.update(block for block, _ in places)

    def of_blocks(self) -> BlockRounds:
        """The rounds of the blocks that ran."""
        found = list(self._bytes.values())
        if not found:
            return BlockRounds()
        totals = [sum(each) for each in found]
        later = [nbytes for each in found for nbytes in each[1:]]
        return BlockRounds(
            blocks=len(found),
            rounds=statistics.mean(map(len, found)),
            phases=statistics.mean(self._phases.values()),
            first=statistics.mean(each[0] for each in found),
            under_way=statistics.median(later or [each[0] for each in found]),
            bytes=statistics.mean(totals),
            most=max(totals),
        )
