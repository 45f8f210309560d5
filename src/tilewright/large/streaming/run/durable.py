"""Finished tiles become durable on a thread of their own: storing the next one does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from ..plan.grid import Tile


class Durable:
    """Calls ``flush``, then ``note`` of each tile that was stored before, on a thread of its own.

    On a slow disk one flush serves all the tiles that were stored during the previous flush. An error is passed to
    ``failed`` at once, and raised by the next call of ``stored``, or by ``close``.
    """

    def __init__(
        self,
        flush: Callable[[], None],
        note: Callable[[Tile], None],
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._flush, self._note, self._failed = flush, note, failed
        self._waiting: queue.SimpleQueue[Tile | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="durable")
        self._thread.start()

    def stored(self, tile: Tile) -> None:
        """Call this when a tile was stored; it is noted when it is on the disk."""
        if self._error is not None:
            raise self._error
        self._waiting.put(tile)

    def close(self) -> None:
        """Wait until every tile that was stored is noted. Raises the error of the thread."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            for tiles in self._batches():
                self._flush()
                for tile in tiles:
                    self._note(tile)
        except BaseException as error:  # raised again by the thread that stores
            self._error = error
            self._failed(error)

    def _batches(self) -> Iterator[list[Tile]]:
        """The tiles that are waiting, each time anew, until None is in the queue."""
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            ended = None in batch
            if tiles := [tile for tile in batch if tile is not None]:
                yield tiles
