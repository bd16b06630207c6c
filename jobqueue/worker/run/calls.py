"""Threads in which coroutine jobs make synchronous calls, above all the ORM's: no call meets what another one left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from asgiref.sync import AsyncToSync
from django.db import close_old_connections

from jobqueue.exceptions import TransactionLeftOpen
from jobqueue.worker.shared.cleanup import clean_connections, drop_open_transactions


class CallThreads(ThreadPoolExecutor):
    """Each call must end the transactions it opens: an open one is undone, and the call raises TransactionLeftOpen.

    Jobs share these threads and so their connections; what one leaves open would swallow the writes of the others.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As every executor does."""
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
    """For thread-sensitive calls, Django's default: one thread, so one connection per alias, for all coroutine jobs."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="coroutine-calls")
        self._used = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As every executor does."""
        self._used = True
        return super().submit(fn, *args, **kwargs)

    def job_ended(self, *, last: bool) -> None:
        """Let connections that are broken or have reached CONN_MAX_AGE go, as job threads do after every job.

        After the `last` one that ran, clean the others too: while jobs run, they share what is set in a session.
        """
        if self._used:
            self._used = not last
            super().submit(clean_connections if last else close_old_connections)


class AnyThread(CallThreads):
    """For calls that may run in any thread: the next one may be anybody's, so connections are cleaned after each."""

    def _clean(self) -> list[str]:
        dropped = drop_open_transactions()
        clean_connections()
        return dropped


def serve_calls(loop: asyncio.AbstractEventLoop) -> OneThread:
    """Give `loop` its threads for synchronous calls; the one for thread-sensitive calls."""
    thread = OneThread()
    # asgiref looks here for the thread of a loop's thread-sensitive calls before it falls back to one of its own. Its
    # public way, ThreadSensitiveContext(executor=...), is newer than what Django 5.2 asks for.
    executors: Any = AsyncToSync.loop_thread_executors
    executors[loop] = thread
    loop.set_default_executor(AnyThread(thread_name_prefix="coroutine-any"))
    return thread
