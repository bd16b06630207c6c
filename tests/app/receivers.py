"""Receivers of Django Tasks' signals in worker processes: they tell what they get, and then misbehave if asked to."""

import os
import sys
import time
from contextvars import ContextVar

from jobqueue.base.compat import signals
from jobqueue.signals import job_done
from tests.app import tasks

_begun = ContextVar("begun", default="nothing")


def connect(kind):
    """`kind`: tell, or several of raise, exit, hang, slow, pause and open, with commas; or done and one of them."""
    if kind.startswith("done "):
        misbehave = globals()[f"_{kind.partition(' ')[2]}"]
        job_done.connect(lambda job_id, **_: on_done(job_id, misbehave), weak=False)
        return
    signals.task_started.connect(on_started, weak=False)
    signals.task_started.connect(on_started_async, weak=False)
    signals.task_finished.connect(on_finished, weak=False)
    for name in kind.split(",") if kind != "tell" else ():
        misbehave = globals()[f"_{name}"]
        signals.task_started.connect(lambda m=misbehave, **_: m("started"), weak=False)
        signals.task_finished.connect(lambda m=misbehave, **_: m("finished"), weak=False)


def on_started(sender, task_result, **_):
    _begun.set(task_result.id)
    _tell("started", sender, task_result)


async def on_started_async(sender, task_result, **_):
    _tell("awaited", sender, task_result)


def on_done(job_id, misbehave):
    with open(tasks.LOG, "a") as log:
        log.write(f"done {job_id}\n")
    misbehave("finished")


def on_finished(sender, task_result, **_):
    _tell("finished", sender, task_result)


def _tell(event, sender, result):
    from jobqueue.models import Job

    error = sys.exc_info()[0]
    state = "-"
    if event == "finished":
        state = Job.Status(Job.objects.values_list("status", flat=True).get(pk=result.id)).name
    words = [event, result.id, result.status, state, sender.__name__, error.__name__ if error else "-", _begun.get()]
    words += [str(result.attempts), str(len(result.errors)), str(result.enqueued_at <= result.started_at)]
    fd = os.open(tasks.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(words) + "\n").encode())
    os.close(fd)


def _raise(when):
    raise ValueError(f"no, not when {when}")


def _exit(when):
    sys.exit(f"away when {when}")


def _hang(when):
    if when == "finished":
        time.sleep(600)


def _slow(when):
    if when == "finished":
        time.sleep(0.01)


def _pause(when):
    if when == "started":
        # Until a limit ends it.
        until = time.monotonic() + 600
        while time.monotonic() < until:
            time.sleep(0.02)


def _open(when):
    from django.db import connection, transaction

    transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
