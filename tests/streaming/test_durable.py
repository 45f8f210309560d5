"""Tiles are flushed to the disk while others are computed: each is noted after a flush that began after it was stored."""

from __future__ import annotations

import threading
import time

import pytest

from tilewright.large.streaming.plan.grid import Tile
from tilewright.large.streaming.run.computation import TileFlusher

TILES = [Tile(i, 0) for i in range(50)]


def test_every_tile_is_noted_after_a_flush_of_its_own() -> None:
    stored: list[Tile] = []
    flushed: set[Tile] = set()
    noted: list[Tile] = []

    def flush() -> None:
        before = list(stored)
        time.sleep(0.002)
        flushed.update(before)

    def note(tile: Tile) -> None:
        assert tile in flushed, "noted before it was on the disk"
        noted.append(tile)

    flusher = TileFlusher(flush, note)
    for tile in TILES:
        stored.append(tile)
        flusher.stored(tile)
        time.sleep(0.0005)
    flusher.close()
    assert noted == TILES


def test_a_slow_disk_flushes_once_for_many() -> None:
    flushes, going = [0], threading.Event()

    def flush() -> None:
        flushes[0] += 1
        going.wait(10)

    noted: list[Tile] = []
    flusher = TileFlusher(flush, noted.append)
    for tile in TILES:
        flusher.stored(tile)
    going.set()
    flusher.close()
    assert noted == TILES
    assert flushes[0] <= 3


@pytest.mark.parametrize("where", ["flush", "note"])
def test_what_goes_wrong_is_raised(where: str) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    flusher = TileFlusher(fail if where == "flush" else lambda: None, fail)

    def store() -> None:
        for tile in TILES:
            flusher.stored(tile)
            time.sleep(0.01)

    with pytest.raises(OSError, match="the disk is full"):
        store()
    with pytest.raises(OSError, match="the disk is full"):
        flusher.close()


def test_nothing_stored_is_nothing_flushed() -> None:
    def never() -> None:
        raise AssertionError("nothing is to be flushed")

    TileFlusher(never, lambda tile: None).close()
