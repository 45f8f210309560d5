"""Threads that wait in machine code, without Python: a thread posts a call of machine code in the mailbox of another
thread, which then runs it.

A mailbox is a cache line of 64-bit words that belongs to one thread, its owner. A call is an array of words that
belongs to a caller: the address of a ``team`` kernel and its arguments. Owners wait in two ways. For a while after a
call, owners of mailboxes stand by, which means that they poll their mailbox. After standing by for a while, owners
sleep until a word of the mailbox changes (``cpu.codegen.affinity``), and a caller that posts a call must have them
woken.

**States.** One word of the mailbox, ``STATE``, holds the mailbox's whole state. Addresses of calls are multiples of 8,
so the lowest bits of ``STATE`` are free for flags. Every change of the state is one compare-and-exchange (acquire and
release). So if two threads try to change the state at the same time, one attempt fails. The changes are:

    AWAY ⇄ STANDING ⇄ SLEEPING → AWAY     by the owner; AWAY: it runs Python code, or waits for its inbox in Python
    STANDING ⇄ call                       by a caller: it posts, and takes back a call that has not begun
    SLEEPING ⇄ call + SLEEPING            by a caller: it posts, has the owner woken, and takes back
    call, call + SLEEPING → call + RUNNING → STANDING (or AWAY)     by the owner: it begins and ends

A mailbox serves one caller at a time, and callers need no other claim on the owner. A caller never waits for an owner
that has not begun: the caller computes all work that other threads do not take, and takes back its call when no work is
left. A caller does wait for an owner that has begun, so no thread works for a call that has returned.

**The bell.** A sleeping owner does not read its state. So a second word of the mailbox, ``BELL``, counts the owner's
wake-ups: the lower half counts all wake-ups, and the upper half counts those by which Python calls the owner back. To
*ring* is to add 1 to ``BELL`` (acquire and release) and then to wake the thread that sleeps on it. The count of
wake-ups is never reduced or reset.

The owner repeats three steps: (1) It reads ``BELL`` (acquire). (2) It reads ``STATE``, and compares the upper half of
``BELL`` with the count that it had read before it looked into its inbox. (3) If there is nothing to do, it sleeps as
long as the lower half of ``BELL`` is what it read in step 1.

**No wake-up is lost.** A thread that has work for an owner first writes the work to the owner's state or inbox, and
then rings. Either the addition to ``BELL`` or the owner's comparison in step 3 comes first, because Linux compares and
sleeps under one lock. Suppose that the addition to ``BELL`` comes first. If step 1 has read the new number, step 2 sees
the work that was written before it (acquire and release). If step 1 has read the old number, the comparison in step 3
finds another number, and the owner repeats the steps. If the comparison in step 3 comes first, the owner is already
queued when the waking thread looks for it, and is woken.

No wake-up is lost with any number of rings, by any thread, for any call. So a thread may ring on behalf of another
thread, and may ring more often than needed: an owner that finds no work stands by for a while and sleeps again.

If an owner is never woken for a call, only time is lost, because the caller computes the whole call and takes it back.
Only jobs in Python wait for an owner, and ``Worker.give`` itself rings for each job, whatever the state is. (After 2³²
rings between steps 1 and 3 the lower half of ``BELL`` has the same value again. But the overflow of the lower half of
``BELL`` adds 1 to the upper half, so the owner returns to Python, finds an empty inbox and comes back.)

**The wake-up tree.** To wake another thread, a thread spends some microseconds. So a caller makes only a few wake-ups.
Each owner that begins a call makes as many further wake-ups for the call as the caller did, and then computes; a
counter in the call distributes the mailboxes among the waking threads. Each owner wakes on its seat, a processor other
than the caller's, which the caller chooses and the waking thread sets. Without a seat, Linux would wake an owner on the
caller's processor, where it cannot run before the caller sleeps. Once an owner runs, Linux may move it to another
processor. An owner's seat affects only speed: it may be set late, and is undone the next time that the owner wakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from .affinity import (
    add_to_set,
    allow,
    allow_only,
    allowed,
    is_in_set,
    processor_here,
    processors,
    sleep_while,
    thread_here,
    wake,
)
from .atomics import _element, fetch_add, load, offer_processor, pause
from .mailbox import (
    ALLOWED,
    ARRAYS,
    AWAY,
    BELL,
    BOXES,
    CODE,
    FAILED,
    FLAGS,
    ITEMSIZE,
    ITEMSIZE_OF_C,
    ITEMSIZE_OF_SPACE,
    LEAVE,
    MISSED,
    NEXT,
    POSTED,
    PROCESSOR,
    RING,
    RUNNING,
    SEAT,
    SET,
    SET_WORDS,
    SLEEPING,
    STANDING,
    STATE,
    TAKEN,
    THREAD,
    WORDS,
)
from .vectors import I8, I64

#: An owner that misses so many calls stands by on a processor that is busy: it is to be woken on another one.
_MOST_MISSED = 16
#: How many owners a thread wakes for a call. On two virtual machines a wake-up took the thread that made it 5 and 20 µs, and
#: the owner began after 46 and 60 µs: so fifteen of them begin after two levels of the tree instead of three.
_WAKES = 4
#: Reads of the state of a running kernel before a waiting thread offers its processor to others.
_PATIENCE = 20000


@intrinsic
def _replace(typingctx: Any, words: Any, index: Any, expected: Any, new: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _element(context, builder, signature, args)
        exchanged = builder.cmpxchg(word, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(exchanged, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), codegen


@intrinsic
def _call_team(typingctx: Any, words: Any) -> Any:  # noqa: ARG001
    """Call the compiled kernel of a call; returns whether it ran to its end, for it may find no memory.

    Arrays of int64 stand for any dtype: only their pointers are passed.
    """
    kinds = [types.Array(types.int64, 2, "A")] * 3 + [types.Array(types.int64, 1, "C")] * 2

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        box = context.make_array(signature.args[0])(context, builder, args[0]).data

        def word(at: int) -> Any:
            return builder.load(builder.gep(box, [I64(at)]))

        def pointer(
            at: int, kind: Any
        ) -> Any:  # loaded as a pointer: of a converted integer LLVM cannot tell the target
            return builder.load(builder.bitcast(builder.gep(box, [I64(at)]), kind.as_pointer()))

        values: list[Any] = []
        at, sizes = ARRAYS, [word(place) for place in (ITEMSIZE, ITEMSIZE, ITEMSIZE_OF_C, ITEMSIZE_OF_SPACE)]
        for kind, itemsize in zip(kinds, [*sizes, I64(8)], strict=True):
            view = context.make_array(kind)(context, builder)
            axes = kind.ndim
            shape = [word(at + 1 + axis) for axis in range(axes)]
            strides = [word(at + 1 + axes + axis) for axis in range(axes)] if axes == 2 else [itemsize]
            populate_array(
                view,
                data=pointer(at, view.data.type),
                shape=cgutils.pack_array(builder, shape),
                strides=cgutils.pack_array(builder, strides),
                itemsize=itemsize,
                meminfo=None,
            )
            values.append(view._getvalue())
            at += 5 if axes == 2 else 2
        function = context.call_conv.get_function_type(types.none, kinds).as_pointer()
        status, _ = context.call_conv.call_function(builder, pointer(CODE, function), types.none, kinds, values)
        return status.is_ok

    return types.boolean(words), codegen


@intrinsic
def _words_at(typingctx: Any, words: Any, index: Any, flags: Any) -> Any:  # noqa: ARG001
    """The words to which ``words[index]`` points, after ``flags`` were subtracted from it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Loaded as a pointer: of a converted integer LLVM cannot tell the target.
        place = builder.bitcast(_element(context, builder, signature, args), I8.as_pointer().as_pointer())
        array = context.make_array(signature.return_type)(context, builder)
        populate_array(
            array,
            data=builder.bitcast(builder.gep(builder.load(place), [builder.neg(args[2])]), I64.as_pointer()),
            shape=cgutils.pack_array(builder, [I64(WORDS)]),
            strides=cgutils.pack_array(builder, [I64(8)]),
            itemsize=I64(8),
            meminfo=None,
        )
        return array._getvalue()

    return types.int64[::1](words, types.intp, types.intp), codegen


# An intrinsic is called without its first parameter, which type checkers cannot know.
replace: Callable[..., bool] = _replace
call_team: Callable[..., bool] = _call_team
words_at: Callable[..., np.ndarray] = _words_at


# ---- the owner -------------------------------------------------------------------------------------------------------


def stand_by(mailbox: np.ndarray, looks: int, at_first: int, called: int, sleeps: bool) -> int:
    """Run posted calls until Python calls the owner back. Returns the number of calls.

    ``called`` is the number of times that Python had called the owner back before the owner looked into its inbox. The
    owner sleeps when ``looks`` consecutive reads of the state have found no call; before the first call, ``at_first``
    reads count instead. If ``sleeps`` is False, this function returns instead of sleeping. After a fifth of the
    ``looks`` reads, the owner yields its processor to other waiting threads before each further read.
    """
    allowed(mailbox, SET)
    mailbox[ALLOWED], mailbox[PROCESSOR], mailbox[THREAD] = processors(), processor_here(), thread_here()
    mailbox[MISSED], mailbox[LEAVE] = 0, 0
    replace(mailbox, STATE, AWAY, STANDING)
    calls, left = 0, at_first
    while True:
        bell = load(mailbox, BELL)  # before the state
        state = load(mailbox, STATE)
        if state > SLEEPING:
            if replace(mailbox, STATE, state, state - (state & FLAGS) + RUNNING):
                state = _run(mailbox, called)
                calls, left = calls + 1, looks
                if state == AWAY:
                    return calls
        elif bell >> 32 != called:
            if replace(mailbox, STATE, state, AWAY):
                return calls
        elif state == SLEEPING:
            sleep_while(mailbox, BELL, bell)
            rung = load(mailbox, BELL)
            if rung != bell and rung >> 32 == called:  # else Python has chosen the processor
                allow(mailbox, SET)  # it runs on its seat: from now on the scheduler may move it
                mailbox[PROCESSOR], mailbox[MISSED], mailbox[LEAVE] = processor_here(), 0, 0
                replace(mailbox, STATE, SLEEPING, STANDING)
                left = looks
        elif left > 0 and not load(mailbox, LEAVE):
            pause()
            left -= 1
            here = processor_here()
            if mailbox[PROCESSOR] != here:
                mailbox[PROCESSOR] = here
            if left < 4 * looks // 5:
                offer_processor()
        elif replace(mailbox, STATE, STANDING, SLEEPING if sleeps else AWAY) and not sleeps:
            return calls


@nb.njit(nogil=True)
def _run(mailbox: np.ndarray, called: int) -> int:
    """Run the call that has begun; returns the state after it."""
    mailbox[MISSED] = 0
    running = load(mailbox, STATE)
    call = words_at(mailbox, STATE, RUNNING)
    _wake_sleepers(call, running - RUNNING)
    if not call_team(call):
        call[FAILED] = 1
    state = STANDING if load(mailbox, BELL) >> 32 == called else AWAY
    replace(mailbox, STATE, running, state)
    return state


# ---- those who post --------------------------------------------------------------------------------------------------


@nb.njit(nogil=True)
def _seat(mailbox: np.ndarray, taken: np.ndarray, at: int) -> None:
    """Choose the processor on which a sleeping owner is to wake: where it ran last, or else any, but none that is taken."""
    last, seat = mailbox[PROCESSOR], -1
    for number in range(-1, 64 * SET_WORDS):
        processor = last if number < 0 else number
        if is_in_set(mailbox, SET, processor) and not is_in_set(taken, at, processor):
            seat = processor
            break
    add_to_set(taken, at, seat)
    mailbox[SEAT] = seat


def post(mailbox: np.ndarray, call: np.ndarray, address: int, wakes: bool) -> int:
    """Post a call, which is stored at ``address``, to a mailbox. Returns the owner's state, which is STANDING, or
    SLEEPING if the owner must be woken, or AWAY if the call was not posted. A call is not posted if the owner has
    another call, or if the owner sleeps and the caller wakes no threads.

    A call is also not posted if the owner stands by on the caller's processor, where it could not run before the caller
    sleeps. An owner on the caller's processor is told to leave, so that it can be woken on another processor.
    """
    state = load(mailbox, STATE)
    if state == SLEEPING and wakes and replace(mailbox, STATE, SLEEPING, address + SLEEPING):
        _seat(mailbox, call, TAKEN)
        return SLEEPING
    if state != STANDING:
        return AWAY
    here = processor_here()
    if mailbox[PROCESSOR] == here and here >= 0:
        mailbox[LEAVE] = 1
    if load(mailbox, LEAVE) or not replace(mailbox, STATE, STANDING, address):
        return AWAY
    add_to_set(call, TAKEN, mailbox[PROCESSOR])
    return STANDING


def settle(mailbox: np.ndarray, call: int) -> None:
    """Take back a call if it was posted and has not begun. If the owner has begun the call, wait until the call has
    ended."""
    state = load(mailbox, STATE)
    if state == call + SLEEPING and replace(mailbox, STATE, state, SLEEPING):
        return
    if state == call and replace(mailbox, STATE, state, STANDING):
        mailbox[MISSED] += 1
        if mailbox[MISSED] >= _MOST_MISSED:
            mailbox[LEAVE] = 1
        return
    reads = 0
    while load(mailbox, STATE) == call + RUNNING:
        pause()
        reads += 1
        if reads > _PATIENCE:
            offer_processor()


def ring(mailbox: np.ndarray, amount: int) -> None:
    """Wake the owner of a mailbox if it sleeps. With CALL_BACK the woken owner returns to Python."""
    fetch_add(mailbox, BELL, amount)
    wake(mailbox, BELL)


_ring = nb.njit(nogil=True)(ring)


@nb.njit(nogil=True)
def _ring_at_seat(mailbox: np.ndarray) -> None:
    if mailbox[SEAT] >= 0:
        allow_only(mailbox[THREAD], mailbox[SEAT])
    _ring(mailbox, RING)


@nb.njit(nogil=True)
def _wake_sleepers(call: np.ndarray, address: int) -> None:
    """Wake the next owners to which this call, at ``address``, was posted while they slept; those then wake others."""
    woken, posted, boxes = 0, load(call, POSTED), words_at(call, BOXES, 0)
    while woken < _WAKES and load(call, NEXT) < posted:
        at = fetch_add(call, NEXT, 1)
        if at < posted:
            mailbox = words_at(boxes, at, 0)
            if load(mailbox, STATE) == address + SLEEPING:
                _ring_at_seat(mailbox)
                woken += 1


def rouse(mailbox: np.ndarray, taken: np.ndarray) -> bool:
    """Wake the owner if it sleeps, so that it stands by on a processor that is not in the set ``taken``.

    Returns False if only Python can reach the owner. Returns False also if Python must move the owner to another
    processor: one on which this thread may run, or one that is less busy."""
    state = load(mailbox, STATE)
    if state == AWAY or mailbox[ALLOWED] != processors() or (state == STANDING and load(mailbox, LEAVE)):
        return False
    if state == SLEEPING:
        _seat(mailbox, taken, 0)
        _ring_at_seat(mailbox)
    return True


def publish(call: np.ndarray, address: int, boxes: int) -> None:
    """Let the threads of a call wake the owners of the mailboxes ``boxes``, to which the call was posted. The calling
    thread wakes the first of these owners."""
    fetch_add(call, POSTED, boxes)
    _wake_sleepers(call, address)


def run_call(call: np.ndarray) -> bool:
    """Run this thread's part of a call. Returns False if this thread could not allocate its memory."""
    return call_team(call)
