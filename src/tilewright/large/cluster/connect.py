"""Connects to a Dask cluster that the caller names by a client, an address, or a number of workers on this machine."""

from __future__ import annotations

import collections
import contextlib
import importlib
import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

from ...cpu.runtime.stop import Stopped, current_stop
from ...errors import ClusterError, UnavailableError, UsageError, how_to_install
from ...host.machine import machine

#: Seconds to wait for a scheduler, for the first worker, and for an answer of the scheduler.
CONNECT_S, WORKER_S, SCHEDULER_S = 30.0, 60.0, 60.0
#: Seconds between two looks at the workers while none is there.
STEP_S = 0.2
#: What an error says of a product into a file; the error where the scheduler is lost.
RESUME = "finished tiles are kept, and resume continues"
SCHEDULER_LOST = f"the scheduler was lost or restarted: {RESUME}"
#: Code that each worker of "local:4" runs when it has started. A terminal sends Ctrl-C to all processes: it is for the
#: client, which ends the workers.
_IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
#: What Dask said last of processes that ended, of the workers of "local:4".
_endings: collections.deque[str] = collections.deque(maxlen=1)


@contextlib.contextmanager
def connected(cluster: Any) -> Iterator[Any]:
    """Yield a Dask client that is connected to ``cluster``.

    ``cluster`` is a client of the caller, which stays open; the address of a scheduler, such as "tcp://host:8786"; or
    "local:4" for a new cluster of four processes on this machine, which ends with the ``with`` block. Raises
    UnavailableError if Dask is not installed, UsageError if ``cluster`` is a text of another form, and ClusterError if
    the scheduler does not answer or has no workers.
    """
    distributed = need_distributed()
    with contextlib.ExitStack() as stack:
        client = cluster if isinstance(cluster, distributed.Client) else _opened(cluster, distributed, stack)
        _refuse_unusable(client)
        until = time.monotonic() + WORKER_S
        while not workers_alive(client):
            if time.monotonic() > until:
                raise ClusterError(f"{_name(client)} has no workers: start some, then multiply again")
            wait_unless_stopped(STEP_S)
        yield client


def workers_alive(client: Any, seconds: float = SCHEDULER_S) -> frozenset[str]:
    """Return the addresses of the workers that the scheduler knows.

    Raises ClusterError if the scheduler does not answer within ``seconds`` or the connection to it is lost.
    """
    if client.status != "running":  # with a lost connection all tasks are lost
        raise ClusterError(SCHEDULER_LOST)
    try:
        return frozenset(client.nthreads(callback_timeout=seconds))
    except (OSError, RuntimeError, AttributeError):
        raise ClusterError(f"the scheduler does not answer: {RESUME}") from None


def last_heard(client: Any) -> dict[str, float]:
    """Return the time, by the scheduler's clock, of the last message that the scheduler got from each running
    worker.
    """
    found = client.scheduler_info(n_workers=-1).get("workers", {})
    return {address: each.get("last_seen", 0.0) for address, each in found.items() if each.get("status") == "running"}


def why_ended() -> str:
    """Return the end of an error message about a lost worker: how the last worker process of this machine ended, or a hint
    to read the workers' logs.
    """
    return f": {_endings[-1]}" if _endings else ": their logs say why"


def when_ended(client: Any, future: Any, tell: Callable[[Any], None]) -> None:
    """Call ``tell`` soon after a task has ended, on the thread of the client.

    ``tell`` gets the task's result, the exception that the task raised, or a ``CancelledError`` if the task was
    cancelled.
    """

    async def wait() -> None:
        try:
            result = await client.gather(future, asynchronous=True)
        except BaseException as error:
            result = error
        tell(result)

    client.loop.add_callback(wait)


def wait_unless_stopped(seconds: float) -> None:
    """Wait for ``seconds`` seconds. Raises Stopped if an interrupt stops the product during the wait."""
    asked = threading.Event()
    with current_stop().tells(asked.set):
        if asked.wait(seconds):
            raise Stopped


def _refuse_unusable(client: Any) -> None:
    # The loop of an asynchronous client is the caller's, which waits here. The property ``asynchronous`` says it there only.
    if getattr(client, "_asynchronous", False):
        raise UsageError("cluster is an asynchronous client: give one that was made without asynchronous=True")
    if client.status != "running":
        raise ClusterError(f"the client's connection to its scheduler is {client.status}: make another client")


def need_distributed() -> Any:
    """Return the module ``distributed``. Raises UnavailableError if ``distributed`` is not installed."""
    try:
        import distributed
    except ImportError:
        raise UnavailableError(f"a cluster needs Dask, which is not installed: {how_to_install('cluster')}") from None
    return distributed


def wait_until_ended(futures: Sequence[Any]) -> None:
    """Wait until all tasks of ``futures`` have ended.

    Raises the error of the first task that failed, ClusterError if the connection to the scheduler was lost, and
    Stopped if an interrupt stops the product. After an error all futures are released, so that the cluster cancels the
    tasks. This function does not use Dask's own ``wait``, because ``wait`` needs a current client, and the caller may
    have none.
    """
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    try:
        with current_stop().tells(lambda: ended.put(None)):
            for _ in futures:
                _raise_unless_finished(ended.get())
    except BaseException:
        for future in futures:
            future.release()
        raise


def _raise_unless_finished(future: Any) -> None:
    if future is None:
        raise Stopped
    if future.status == "error":
        raise future.exception()
    if future.status != "finished":
        raise ClusterError(SCHEDULER_LOST)


def result_of(client: Any, future: Any) -> Any:
    """Wait for a task and return its result in this process. Raises the task's error, and Stopped if an interrupt stops the
    product.
    """
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    when_ended(client, future, ended.put)
    with current_stop().tells(lambda: ended.put(Stopped())):
        result = ended.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _opened(cluster: Any, distributed: Any, stack: contextlib.ExitStack) -> Any:
    if hasattr(cluster, "scheduler_address"):  # a cluster object, as LocalCluster or SLURMCluster
        try:
            return stack.enter_context(distributed.Client(cluster, set_as_default=False))
        except RuntimeError as error:
            raise ClusterError(f"the cluster cannot be used: {error}") from None
    text = str(cluster)
    if match := re.fullmatch(r"local:([1-9]\d{0,3})", text):
        stack.enter_context(_same_environment())
        # Workers would look at their stacks every 10 ms, which in CPython before 3.11.9 now and then deadlocks with a thread
        # that ends (python/cpython#106883).
        dask = importlib.import_module("dask")
        stack.enter_context(dask.config.set({"distributed.worker.profile.enabled": False}))
        stack.enter_context(_endings_noted())
        local = stack.enter_context(_local_cluster(int(match[1]), distributed))
        return stack.enter_context(distributed.Client(local, set_as_default=False))
    if text.startswith("local:") or not re.fullmatch(r"(\w+://)?[^\s:/]+:\d+", text):
        raise UsageError(f"cluster {text!r}: must be an address such as tcp://host:8786, or local:4 for processes here")
    stack.enter_context(_silent("distributed.client", "distributed.batched"))
    try:
        return stack.enter_context(distributed.Client(text, timeout=CONNECT_S, set_as_default=False))
    except ValueError as error:
        raise UsageError(f"cluster {text!r}: {error}") from None
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"no scheduler answers at {text} ({type(error).__name__}): start it, or correct the address"
        ) from None


def _local_cluster(workers: int, distributed: Any) -> Any:
    """So many worker processes on this machine, which are waited for as long as they live."""
    try:
        with _interrupts_blocked():
            return distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=_threads(workers),
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,  # what workers say of each other as they end
                preload=_IGNORE_INTERRUPTS,
            )
    except (RuntimeError, OSError) as error:
        raise ClusterError(f"a worker of local:{workers} did not start ({error}){why_ended()}") from None


@contextlib.contextmanager
def _endings_noted() -> Iterator[None]:
    """Notes what Dask's nannies, which live in this process, say of worker processes that end."""

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (said := record.getMessage()).startswith("Worker process"):
                _endings.append(said)

    logger, noting = logging.getLogger("distributed.nanny"), Noting()
    before = logger.level, logger.propagate
    _endings.clear()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(noting)
    try:
        yield
    finally:
        logger.removeHandler(noting)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Without the tracebacks that these loggers write when a scheduler is lost: the error says it in a line."""
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes and threads that are started within it receive no Ctrl-C, nor does this thread: an interrupt that comes
    while a worker starts would end that worker, and Dask would print tracebacks of it."""
    resource_tracker.ensure_running()  # the first process that ``multiprocessing`` starts would unblock them again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _same_environment() -> Iterator[None]:
    """Undo, in the end, what Dask does to this process's environment when it starts others.

    It sets OMP_NUM_THREADS to 1, after which every later product of this process would use one thread.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) | set(before):
            if name not in before:
                del os.environ[name]
            elif os.environ.get(name) != before[name]:
                os.environ[name] = before[name]


def _threads(workers: int) -> int:
    """Threads of each of several workers on this machine."""
    return max(1, machine().usable_cores // workers)


def _name(client: Any) -> str:
    return str(client.scheduler_info().get("address", "the cluster"))
