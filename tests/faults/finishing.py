"""Walks over all moments of a job that uses finish(): its worker dies, or loses the database, at each in turn."""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from contextlib import suppress
from types import SimpleNamespace

from django.db import Error, connection, connections

from jobqueue.models import Job
from jobqueue.transitions import claim, reap
from jobqueue.worker.child.outcomes import settle
from tests.app.models import Account
from tests.factories import expire, make_due, run_lease, state
from tests.faults.conftest import kill
from tests.faults.moments import cut_at
from tests.patience import wait_until
from tests.settings import VENDOR

PASSED, KILLED = 0, -signal.SIGKILL


def work(worker):
    """What a worker does: claim one job, run it, write how it ended; whether there was a job."""
    for lease in claim("default", worker=worker):
        settle([run_lease(lease)], SimpleNamespace(finished=0, failed=0, lost=0))
        return True
    return False


def killed_process(number, worker="first"):
    """A real process that works once and gets SIGKILL at this moment; its exit status."""
    connections.close_all()
    with warnings.catch_warnings():
        # Other tests may have left idle threads; the child uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 70  # anything but 0
        try:
            with cut_at(number, lambda *_: os.kill(os.getpid(), signal.SIGKILL), threads=True):
                work(worker)
            status = PASSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def lose_connection(wrapper, after):
    """The server ends the session; when the statement has been executed, its answer is lost with it."""
    cursor = wrapper.connection.cursor()
    cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
    (session,) = cursor.fetchone()
    kill(session)
    if after:
        with wrapper.wrap_database_errors:
            try:
                wrapper.connection.cursor().execute("SELECT 1")
            except wrapper.Database.OperationalError:
                if VENDOR != "postgres":
                    raise
                # The server refuses this SELECT with 57P01, which says that it was not done. Of a statement that was
                # done and whose answer was lost, libpq says this.
                words = "consuming input failed: server closed the connection unexpectedly"
                raise wrapper.Database.OperationalError(words) from None


def disconnected(number):
    """A job thread that works once and loses its connection at this moment; whether it came to that, and where."""
    lost, moments = [], []

    def lose(wrapper, after):
        lost.append(True)
        lose_connection(wrapper, after)

    def in_thread():
        connection.ensure_connection()
        with cut_at(number, lose, threads=True) as passed:
            # As a worker: what comes out of a claim or of the settling is for a later look.
            with suppress(Error):
                work("first")
        moments.extend(passed)
        connections.close_all()

    # Its own: a job thread gives up connections that are in doubt, and this one's belongs to the test runner.
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    return bool(lost), moments[number - 1] if lost else ""


def begin():
    """Empty tables, and the account that sums up."""
    Job.objects.all().delete()
    Account.objects.all().delete()
    Account.objects.create(owner="all")


def recover(job_id):
    """What the rest of the system does until the job has ended: reap, wait out the back-off, work."""

    def step():
        if state(job_id) == "PROCESSING":
            expire(job_id)
            reap()
        elif state(job_id) == "READY":
            make_due(job_id)
            work("second")
        return state(job_id) in ("DONE", "FAILED", "CANCELED")

    wait_until(step, what="the job's end")


def check(job_id, owner, where):
    """DONE, and the effect is there once; how often it is there."""
    total = Account.objects.get(owner="all").balance
    rows = Account.objects.filter(owner=owner).count()
    assert (state(job_id), rows, total) == ("DONE", 1, 1), where
    assert Job.objects.get(pk=job_id).lock_token is None
    return rows


def walk(task, cut):
    """Cut at moment 1, 2, 3 ... until the job passes untouched; what stopped it each time, and the effects then."""
    stops, effects = [], []
    while True:
        begin()
        job_id = int(task.enqueue("ada").id)
        stopped, where = cut(len(stops) + 1)
        if not stopped:
            check(job_id, "ada", "untouched")
            return stops, effects
        stops.append(where)
        recover(job_id)
        effects.append(check(job_id, "ada", f"cut at moment {len(stops)}: {where}"))


def by_sigkill(number):
    """For walk(): the process is killed."""
    status = killed_process(number)
    assert status in (PASSED, KILLED)
    return status == KILLED, f"SIGKILL at {number}"
