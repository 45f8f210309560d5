"""Which logical processors a thread may run on, and on which one it runs."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable


@functools.cache
def _sched_getcpu() -> Callable[[], int] | None:
    try:
        return ctypes.CDLL(None).sched_getcpu  # in glibc and musl; nothing like it on macOS
    except (AttributeError, OSError, TypeError):
        return None


def allowed_processors() -> set[int] | None:
    """The processors that this thread may run on, None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def processor_here() -> int | None:
    """The logical processor that this thread runs on now, None where the system does not say."""
    getcpu = _sched_getcpu()
    return getcpu() if getcpu is not None and hasattr(os, "sched_setaffinity") else None
