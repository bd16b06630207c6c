"""Threads in which synchronous calls of asynchronous code run: of coroutine jobs, and of jobs with their own loop.

Django and asgiref would make threads of their own, whose connections nobody cleans from job to job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, reset_queries

from jobqueue.exceptions import TransactionLeftOpen
from jobqueue.worker.shared.cleanup import clean_connections, drop_open_transactions, left_open

#: how long the end of a job waits for a call that it has left running
LEFT_RUNNING_SECONDS = 5.0


class CallThreads(ThreadPoolExecutor):
    """Threads for synchronous calls. A call that leaves a transaction open raises TransactionLeftOpen; it is undone.

    Jobs share these threads and their connections: an open transaction would contain the writes of other jobs.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            value = fn(*args, **kwargs)
        except BaseException:
            self._clean()
            raise
        if aliases := self._clean():
            raise TransactionLeftOpen(aliases)
        return value

    def _clean(self) -> list[str]:
        return drop_open_transactions()


class OneThread(CallThreads):
    """For thread-sensitive calls, Django's default: all coroutine jobs share one thread and a connection per alias."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="coroutine-calls")
        self._used = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._used = True
        return super().submit(fn, *args, **kwargs)

    def job_ended(self, *, last: bool) -> None:
        """Close connections that are broken or have reached CONN_MAX_AGE, as job threads do after every job.

        After the `last` running job, clean the other connections too; running jobs share the settings of a session.
        """
        if self._used:
            self._used = not last
            super().submit(clean_connections if last else _close_old)


def _close_old() -> None:
    reset_queries()
    close_old_connections()


class AnyThread(CallThreads):
    """For calls that may run in any thread. The next call may be of another job, so each cleans its connections."""

    def _clean(self) -> list[str]:
        dropped = drop_open_transactions()
        clean_connections()
        return dropped


class JobThread(ThreadPoolExecutor):
    """For the thread-sensitive calls of a plain job that runs an event loop, as asyncio.run() does.

    Each job thread has one, which starts with the first call. Its connections are cleaned when the job has ended.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="job-calls")
        self._used = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._used = True
        return super().submit(fn, *args, **kwargs)

    def left_open(self) -> list[str]:
        """The aliases of its connections in which a transaction has begun. [] if a call still runs: it may end it."""
        with suppress(TimeoutError):
            return list(self.submit(left_open).result(LEFT_RUNNING_SECONDS)) if self._used else []
        return []

    def job_ended(self) -> bool:
        """Clean its connections; False if a call still runs, after which they are cleaned. Give the thread up then."""
        if not self._used:
            return True
        cleaned, self._used = self.submit(clean_connections), False
        with suppress(TimeoutError):
            cleaned.result(LEFT_RUNNING_SECONDS)
        if not cleaned.done():
            self.shutdown(wait=False)
        return cleaned.done()


_own = threading.local()


@contextmanager
def own_calls() -> Iterator[None]:
    """A block in which a plain job runs: calls that leave an event loop of its own run in a thread of this thread."""
    _own.thread = thread = getattr(_own, "thread", None) or JobThread()
    context = ThreadSensitiveContext()
    threads: Any = SyncToAsync.context_to_thread_executor
    threads[context] = thread
    token = SyncToAsync.thread_sensitive_context.set(context)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        threads.pop(context, None)
        if not thread.job_ended():
            _own.thread = None


def check_transactions() -> None:
    """Raise TransactionLeftOpen if the body that has returned in this thread left a transaction open."""
    thread = getattr(_own, "thread", None)
    if aliases := left_open() or (thread.left_open() if thread is not None else []):
        raise TransactionLeftOpen(aliases, "the job")


def checked(func: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`func`, followed by check_transactions()."""

    def call(argument: Any) -> Any:
        value = func(argument)
        check_transactions()
        return value

    return call


def serve_other_threads() -> None:
    """Have calls from event loops in all other threads of this process, as of subscribers, run in a thread of ours."""
    SyncToAsync.single_thread_executor = AnyThread(max_workers=1, thread_name_prefix="other-calls")


def after_fork() -> None:
    """Forget the threads, which do not exist in a forked process; asgiref makes others."""
    SyncToAsync.context_to_thread_executor.clear()
    SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
    _own.thread = None
