"""Ctrl-C during a long product: Python can raise it only between steps of Python, and machine code takes none.

So the caller of a long product does not compute. It waits, which Ctrl-C interrupts, and then tells the threads to stop by
the counters through which they share out the work: every counter is set to STOP, after which nothing is left to take and
everything waited for is there. What they still write is inside C and the workspace, and C is lost anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from ..threads import Standby, Team

#: Far above every count of jobs, and so small that a kernel may multiply it by the size of a block without overflow.
STOP = 1 << 40
#: Operations from which a product is long: a second or two of a fast core. Below, the few milliseconds that it may take to
#: wake one thread more, on a processor that is taken, are not worth it.
LONG = 400_000_000_000


def run_stoppable(
    team: Team,
    job: Callable[[], None],
    counters: np.ndarray,
    flops: int,
    call: np.ndarray | None = None,
    standby: Standby | None = None,
) -> None:
    """Run ``job`` on every thread of the team; Ctrl-C ends a long product soon, a short one when it is done.

    ``call`` says the same job to workers that stand by (``Team.rally``). Raises KeyboardInterrupt when nobody writes to C or
    the workspace any more.
    """
    if flops < LONG or threading.current_thread() is not threading.main_thread():
        team.rally(job, call, standby)
        return
    finished: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        try:
            job()
        finally:
            finished.put(None)

    def watch() -> None:
        for _ in range(team.threads):
            finished.get()

    Team(team.threads + 1).run([watch] + [work] * team.threads, stop=lambda: counters.fill(STOP))
