"""Linux's permission to use the tile registers of Intel AMX."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

#: arch_prctl on x86-64, its request for a part of the processor's state, and the number of the tiles' data.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@functools.cache
def may_use_tiles() -> bool:
    """Whether this process may use tile registers: Linux gives them, 8 KiB of state for each thread, only on request.

    The request is made once. It holds for all threads of the process, and for processes that it forks. It fails on a system
    older than Linux 5.16, where a filter of system calls forbids it, and if a thread's stack for signals is too small.
    """
    return sys.platform == "linux" and sys.maxsize > 2**32 and granted(ctypes.CDLL(None, use_errno=True).syscall)


def granted(syscall: Callable[..., int]) -> bool:
    """Whether ``syscall``, C's function, grants the request.

    >>> granted(lambda *numbers: -1)
    False
    """
    return syscall(*map(ctypes.c_long, (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))) == 0
