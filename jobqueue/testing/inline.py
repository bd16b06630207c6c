"""Jobs that run as soon as they are committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.db import connections

from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.models import Job
from jobqueue.signals import job_enqueued
from jobqueue.testing.draining import Drained
from jobqueue.testing.leases import take_lease
from jobqueue.testing.runs import discover_tasks, run


@contextmanager
def run_inline(*, using: str | None = None) -> Iterator[Drained]:
    """Within the block, every job that is enqueued and due runs in this thread as soon as it is committed.

    With no transaction of your own open that is before enqueue() returns, otherwise when your outermost atomic() block
    ends; after a rollback it never runs. A test case's own transaction does not count. Jobs that jobs enqueue run after
    them. Delayed jobs and retries stay READY: drain() runs those. The code that enqueues sees no error of a job, as in
    production; the end of the block raises the first one. Gives a Drained that grows.
    """
    alias = alias_of(using)
    discover_tasks()
    inline = _Inline(alias)
    connection = connections[alias]
    job_enqueued.connect(inline.hear)
    try:
        with patch.object(connection, "savepoint_commit", inline.after(connection.savepoint_commit)):
            yield inline.drained
            inline.release()
    finally:
        job_enqueued.disconnect(inline.hear)
    inline.drained.raise_error()


class _Inline:
    def __init__(self, using: str) -> None:
        self._using = using
        self._ready: deque[int] = deque()
        self._running = False
        self.drained = Drained([])

    def hear(self, job_id: int, using: str, **_: Any) -> None:
        """A job was added; its transaction may still be open."""
        if using != self._using:
            return
        call = _Call(self, job_id)
        if in_open_transaction(using):
            # Where Django keeps it, it is forgotten when the block that it belongs to is rolled back.
            connections[using].on_commit(call)
        else:
            call()

    def after(self, commit: Any) -> Any:
        """The connection's way to end a savepoint; the outermost one in a test case is the commit of the code's own."""

        def savepoint_commit(sid: str) -> None:
            commit(sid)
            if not in_open_transaction(self._using):
                self.release()

        return savepoint_commit

    def release(self) -> None:
        """Run what was committed within the test case's transaction. Other calls of on_commit stay where they are."""
        if in_open_transaction(self._using):
            return
        connection = connections[self._using]
        calls = [entry for entry in connection.run_on_commit if isinstance(entry[1], _Call)]
        connection.run_on_commit = [entry for entry in connection.run_on_commit if not isinstance(entry[1], _Call)]
        for _, call, *_ in calls:
            call()

    def commit(self, job_id: int) -> None:
        """Run the job, or later if another one runs now."""
        self._ready.append(job_id)
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._run(self._ready.popleft())
        finally:
            self._running = False

    def _run(self, job_id: int) -> None:
        if not Job.objects.using(self._using).due().filter(pk=job_id).exists():
            return
        lease = take_lease(job_id, using=self._using)
        if lease is not None:
            self.drained.runs.append(run(lease))


class _Call:
    """What is registered with on_commit for one job."""

    def __init__(self, inline: _Inline, job_id: int) -> None:
        self._inline, self._job_id = inline, job_id
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        self._inline.commit(self._job_id)
