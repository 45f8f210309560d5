"""How many threads a product may use: what the caller sets, else the environment, else what the system allows.

The number never changes a result's bits, only its time. Few products use all of them: a small one runs on one thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import os
import re
import threading
from collections.abc import Iterator, Mapping

from ..errors import UsageError
from .machine import machine
from .system import ROOT, affinity

#: Read in this order. OMP_NUM_THREADS may be a list, one number for each level of nesting: the first number is taken.
VARIABLES = ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS")
#: The largest number that is accepted: a typing error must not start a million threads.
MOST = 4096
#: The name of the threads that share a product. In their contexts the limit is 1: a product that is started in such a thread
#: uses no other.
WORKER = "tilewright"

#: What ``use_threads`` and ``set_threads`` set. The C front reads both, and ``most_by_default``, as ``get_threads`` does.
of_this_context: contextvars.ContextVar[int | None] = contextvars.ContextVar("tilewright_threads", default=None)
of_the_process: int | None = None


def set_threads(count: int | None) -> None:
    """Let every product of this process use ``count`` threads at most.

    The number never changes a result's bits, only its time.

    Parameters
    ----------
    count : int or None
        The most threads of a product, from 1 to 4096; it may be more than there are CPUs. None returns to the
        default: ``$TILEWRIGHT_NUM_THREADS``, else ``$OMP_NUM_THREADS``, and never more than the CPUs that affinity
        mask and cgroup quota leave this process.

    Raises
    ------
    UsageError
        ``count`` is no such number.

    Examples
    --------
    >>> import tilewright as tw
    >>> tw.set_threads(1)
    >>> tw.get_threads()
    1
    >>> tw.set_threads(None)
    """
    global of_the_process
    of_the_process = None if count is None else _checked(count)


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Within a ``with`` block, let products use ``count`` threads at most, only in this thread or asyncio task.

    Blocks nest: the innermost applies, and its end restores the number from before. ``set_threads`` has no effect
    inside. A thread that is started in the block does not inherit it (``asyncio.to_thread`` does).

    Parameters
    ----------
    count : int
        The most threads of a product, from 1 to 4096.

    Raises
    ------
    UsageError
        ``count`` is no such number.

    Examples
    --------
    >>> import tilewright as tw
    >>> with tw.use_threads(1):
    ...     tw.get_threads()
    1
    """
    token = of_this_context.set(_checked(count))
    try:
        yield
    finally:
        of_this_context.reset(token)


def get_threads() -> int:
    """How many threads a product may use that is started now in this thread.

    Returns
    -------
    int
        What ``use_threads`` or ``set_threads`` set, else the default. Few products use all of them: a small one
        runs on one thread.

    Raises
    ------
    UsageError
        ``$TILEWRIGHT_NUM_THREADS`` is not a positive number.

    Examples
    --------
    >>> import tilewright as tw
    >>> tw.get_threads() >= 1
    True
    """
    return of_this_context.get() or of_the_process or min(len(affinity(ROOT) or ()) or MOST, most_by_default())


def why_threads() -> str:
    """What determines ``get_threads``, as text."""
    if threading.current_thread().name == WORKER:
        return "inside another product's thread"
    if of_this_context.get():
        return "use_threads"
    if of_the_process:
        return "set_threads"
    allowed, why = machine().usable_cores, machine().usable_why
    if 0 < (mask := len(affinity(ROOT) or ())) < allowed:
        allowed, why = mask, "what the affinity mask allows"
    name, count = environment_threads()
    return f"${name}" if count and count < allowed else why


def environment_threads(environ: Mapping[str, str] | None = None) -> tuple[str, int] | tuple[None, None]:
    """The variable that applies and its number, or None twice.

    Raises UsageError for an invalid ``$TILEWRIGHT_NUM_THREADS``; an invalid ``$OMP_NUM_THREADS`` is ignored.
    """
    environ = os.environ if environ is None else environ
    for name in VARIABLES:
        text = environ.get(name, "").strip()
        match = re.match(r"\+?0*([1-9]\d*)\s*(,|$)", text)
        if match:
            return name, min(int(match[1]), MOST)
        if text and name == VARIABLES[0]:
            raise UsageError(f"${name} must be a positive number, got {text!r}")
    return None, None


@functools.cache
def most_by_default() -> int:
    """The default, where the affinity mask allows that many: that may change, for pools pin their workers. The environment
    is read once per process, as BLAS libraries do: a later change affects only child processes."""
    cores = machine().usable_cores
    return min(environment_threads()[1] or cores, cores)


def _checked(count: object) -> int:
    try:
        number = 0 if isinstance(count, bool) else operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if not 1 <= number <= MOST:
        raise UsageError(f"threads must be a whole number from 1 to {MOST}, got {count!r}")
    return number
