"""Run each job as soon as it is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from django.db import connections

from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import AfterCommit, in_open_transaction
from jobqueue.models import Job
from jobqueue.signals import job_enqueued
from jobqueue.testing.draining import Drained
from jobqueue.testing.leases import take_lease
from jobqueue.testing.runs import discover_tasks, run


@contextmanager
def run_inline(*, using: str | None = None) -> Iterator[Drained]:
    """Within the block, every due job that is enqueued runs in this thread as soon as it is committed.

    Outside a transaction it runs before enqueue() returns, otherwise when your outermost atomic() block ends; after a
    rollback it does not run. A test case's own transaction does not count. Jobs that a job enqueues run after that job.
    Delayed jobs and retries stay READY; drain() runs them. As in production, enqueue() does not raise what a job
    raises; the end of the block raises the first error. Yields a Drained, to which each run is added.
    """
    alias = alias_of(using)
    discover_tasks()
    inline = _Inline(alias)
    connection = connections[alias]
    job_enqueued.connect(inline.on_enqueued)
    try:
        with patch.object(connection, "savepoint_commit", inline.after(connection.savepoint_commit)):
            yield inline.drained
            inline.release()
    finally:
        job_enqueued.disconnect(inline.on_enqueued)
    inline.drained.raise_error()


class _Inline:
    def __init__(self, using: str) -> None:
        self._using = using
        self._ready: deque[int] = deque()
        self._running = False
        self.drained = Drained([])

    def on_enqueued(self, job_id: int, using: str, **_: object) -> None:
        """Receives job_enqueued, which is sent after the commit: run the job now, or after the one that is running."""
        if using != self._using:
            return
        self._ready.append(job_id)
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._run(self._ready.popleft())
        finally:
            self._running = False

    def after(self, commit: Callable[[str], None]) -> Callable[[str], None]:
        """savepoint_commit() of the connection, wrapped: in a test case the end of the outermost one is the commit."""

        def savepoint_commit(sid: str) -> None:
            commit(sid)
            if not in_open_transaction(self._using):
                self.release()

        return savepoint_commit

    def release(self) -> None:
        """Send the signals of what was committed within the test case's transaction; leave the calls of others."""
        if in_open_transaction(self._using):
            return
        connection = connections[self._using]
        calls = [entry for entry in connection.run_on_commit if isinstance(entry[1], AfterCommit)]
        connection.run_on_commit = [
            entry for entry in connection.run_on_commit if not isinstance(entry[1], AfterCommit)
        ]
        for _, call, *_ in calls:
            call()

    def _run(self, job_id: int) -> None:
        if not Job.objects.using(self._using).due().filter(pk=job_id).exists():
            return
        lease = take_lease(job_id, using=self._using)
        if lease is not None:
            self.drained.runs.append(run(lease))
