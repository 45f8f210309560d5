"""Determines how many threads a product may use: the number that the caller sets, else that of the environment
variables, else that of the system.

The number of threads never changes the bits of a result, only the time. A small product uses fewer threads.
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
    """Set the most threads that a product of this process may use.

    The number of threads never changes the bits of a result, only the time.

    Parameters
    ----------
    count : int or None
        The most threads of a product, from 1 to 4096. The number of threads may be larger than the number of CPUs.
        None restores the default: ``$TILEWRIGHT_NUM_THREADS``, else ``$OMP_NUM_THREADS``, else all usable CPUs. The
        default is never more than the CPUs that the affinity mask and the cgroup quota leave to this process.

    Raises
    ------
    UsageError
        ``count`` is neither None nor an integer from 1 to 4096.

    See Also
    --------
    use_threads : Sets the number of threads within a ``with`` block.
    get_threads : Returns the number of threads that applies.

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
    """Within a ``with`` block, set the most threads that a product may use, for the current thread or asyncio task
    alone.

    ``with`` blocks of ``use_threads`` may be nested: the number of the innermost block applies, and when this block
    ends, the previous number applies again. Inside the block ``set_threads`` has no effect. A thread that is started
    in the block does not inherit the number; a function that is run by ``asyncio.to_thread`` does.

    Parameters
    ----------
    count : int
        The most threads of a product, from 1 to 4096.

    Raises
    ------
    UsageError
        ``count`` is not an integer from 1 to 4096.

    See Also
    --------
    set_threads : Sets the number of threads for the process.
    get_threads : Returns the number of threads that applies.

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
    """Return the most threads that a product may use if it is started now in this thread.

    Returns
    -------
    int
        The number that ``use_threads`` or ``set_threads`` set, else the default. A small product uses fewer threads.

    Raises
    ------
    UsageError
        ``$TILEWRIGHT_NUM_THREADS`` is not a positive integer.

    See Also
    --------
    set_threads : Sets the number of threads for the process.
    use_threads : Sets the number of threads within a ``with`` block.

    Examples
    --------
    >>> import tilewright as tw
    >>> tw.get_threads() >= 1
    True
    """
    return of_this_context.get() or of_the_process or min(len(affinity(ROOT) or ()) or MOST, most_by_default())


def why_threads() -> str:
    """Return a text that says what determines the number that ``get_threads`` returns."""
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
    """Return the name of the environment variable that sets the number of threads, and this number; two times None if
    no variable sets the number.

    The function raises UsageError for an invalid ``$TILEWRIGHT_NUM_THREADS``, and ignores an invalid
    ``$OMP_NUM_THREADS``.
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
    """Return the most threads that a product may use by default, if the affinity mask allows that many. The affinity
    mask is read later, for each product, because thread pools may pin a worker to some CPUs.

    The environment variables are read once per process, as BLAS libraries do. A later change of a variable affects
    only child processes."""
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
