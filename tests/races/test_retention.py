"""Pruning beside other sessions: it waits for nobody, and takes nothing that they are changing."""

import threading

import pytest
from django.db import connections, transaction

from jobqueue.models import Job
from jobqueue.retention.deletion import delete_jobs
from tests.marks import committed
from tests.patience import wait_until
from tests.retention.helpers import ended, kept, left, prune
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock")]


class Holder(threading.Thread):
    """Another session that has locked a job until it is told to go on."""

    def __init__(self, job_id):
        super().__init__()
        self.job_id, self.locked, self.go_on = job_id, threading.Event(), threading.Event()

    def run(self):
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=self.job_id)
            self.locked.set()
            self.go_on.wait()
        connections.close_all()


def test_a_job_that_another_session_has_locked_stays_and_nobody_waits(settings):
    kept(settings, done="7d")
    first, held, last = (ended("DONE", 8, attempts=1) for _ in range(3))
    holder = Holder(held)
    holder.start()
    wait_until(holder.locked.is_set, what="the lock of the other session")
    try:
        assert prune() == 2
        assert left() == [held]
    finally:
        holder.go_on.set()
        holder.join()
    assert prune() == 1
    assert {first, last} & {*left()} == set()


def test_two_pruners_delete_each_job_once(settings):
    kept(settings, done="7d")
    jobs = {ended("DONE", 8): None for _ in range(40)}
    for job in Job.objects.filter(pk__in=jobs):
        jobs[job.pk] = job.finished_at
    gone, start = [], threading.Barrier(2)

    def work():
        start.wait()
        for begin in range(0, 40, 5):
            ids = [*jobs][begin : begin + 5]
            gone.extend(delete_jobs({one: jobs[one] for one in ids}, Job.Status.DONE, using="default"))
        connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gone) == len({*gone})
    # Those that one has skipped because the other had locked them are deleted by that one.
    assert {*gone} == {*jobs}
    assert left() == []
