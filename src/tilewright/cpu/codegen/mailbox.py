"""Layouts of the arrays of words by which threads in machine code and Python communicate: mailboxes, calls, and sets of
processors."""

from __future__ import annotations

import sys

from ...host.machine import target_arch

#: By processor, the numbers of system calls that the C library offers through ``syscall`` alone, or did not always offer.
SYSTEM_CALLS = {"x86_64": {"futex": 202, "gettid": 186}, "aarch64": {"futex": 98, "gettid": 178}}
#: Whether threads can sleep in machine code here.
HAS_FUTEX = sys.platform == "linux" and sys.maxsize == 2**63 - 1 and target_arch() in SYSTEM_CALLS
#: Words of a set of processors: 1024 of them.
SET_WORDS = 16

#: States, and flags of a call's address.
AWAY, STANDING, SLEEPING = 0, 1, 2
RUNNING, FLAGS = 1, 7
#: Words of a mailbox: its state; whether the owner should stop standing by; a number for the set of processors on which the
#: owner may run, and the one on which it runs; how many calls in a row it did not begin; its bell; the owner's number in the
#: system, and its seat, the processor on which it is to wake. They fill a cache line, to avoid false sharing. Then the set.
STATE, LEAVE, ALLOWED, PROCESSOR, MISSED, BELL, THREAD, SEAT, SET = 0, 1, 2, 3, 4, 5, 6, 7, 8
MAILBOX_WORDS = SET + SET_WORDS
#: What is added to a bell: to wake the owner, and to call it back to Python.
RING, CALL_BACK = 1, (1 << 32) + 1
#: Words of a call: address of the code, itemsize of the operands, then the arrays a, b, c (address, shape, strides), the
#: workspace and the counters (address, size); the itemsizes of C and of the workspace; whether a thread failed. Then, for
#: the wake-up tree: address of an array of the addresses of mailboxes, their number (0 until all is posted), the next one,
#: and the set of processors that are taken by threads of this call.
CODE, ITEMSIZE, ARRAYS, ITEMSIZE_OF_C, ITEMSIZE_OF_SPACE, FAILED = 0, 1, 2, 21, 22, 23
BOXES, POSTED, NEXT, TAKEN = 24, 25, 26, 27
WORDS = TAKEN + SET_WORDS
