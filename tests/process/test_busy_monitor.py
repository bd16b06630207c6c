"""Whatever else a monitor has to do, and whatever it waits for, the leases of its living children are renewed."""

import random
from datetime import timedelta

import pytest

from jobqueue.models import Job, JobAttempt, Worker
from tests.app import tasks
from tests.factories import job, now, seconds_from_now
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import SHORT
from tests.process.probe import renewed, starts
from tests.races.actors import holding
from tests.settings import FULL, VENDOR

pytestmark = committed
LAPSED = 60_000 if FULL else 1_500


def lapse(count):
    """`count` leases that have run out, each of another worker: so many statements end them."""
    until = now() - timedelta(minutes=1)
    common = {"queue": "lost", "status": Job.Status.PROCESSING, "payload": {}, "lock_until": until}
    rows = (
        Job(locked_by=f"gone:{n}", lock_token=random.randbytes(16), locked_at=until, run_at=until, **common)
        for n in range(count)
    )
    Job.objects.bulk_create(rows, batch_size=500)


@pytest.mark.timeout(1500)
@finding("A7")
def test_a_mass_of_lapsed_leases_takes_no_lease_from_the_worker_that_reaps_them(start, evidence, gate):
    lapse(LAPSED)
    job_id = tasks.gated.enqueue(str(gate)).id
    # Small batches, so that renewals come between them; where there is one writer, they are small anyway.
    options = ("--queues", "default", "--lease", "60s", "--heartbeat", "0.2s")
    start("runworker", *options, JOBQUEUE_TEST_REAP_BATCH="100")
    starts(evidence)
    wait_until(lambda: JobAttempt.objects.exists(), what="reaping")
    ends = set()

    def all_are_reaped():
        ends.add(end := job(job_id).lock_until)
        assert seconds_from_now(end) > 0, "the lease of a living worker has run out"
        return not Job.objects.lapsed().exclude(pk=job_id).exists()

    while Job.objects.lapsed().exclude(pk=job_id).exists():
        left = Job.objects.lapsed().count()
        wait_until(lambda: all_are_reaped() or Job.objects.lapsed().count() < left, what="progress")  # noqa: B023
    assert len(ends) > 1, "it was not renewed before the end of the reaping"
    assert (job(job_id).fence, job(job_id).attempts, len(evidence.read("start"))) == (1, 0, 1)


def lock_worker_rows():
    assert list(Worker.objects.select_for_update())


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")
@finding("A7")
def test_rows_of_workers_that_somebody_has_locked_take_no_lease_from_a_job(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    start("runworker", *SHORT)
    starts(evidence)
    with holding(lock_worker_rows):
        renewed(job_id, 4)
    assert (job(job_id).fence, len(evidence.read("start"))) == (1, 1)


def test_a_worker_says_how_far_apart_its_heartbeats_are(start):
    start("runworker", "--lease", "600s")
    assert wait_until(lambda: Worker.objects.first(), what="a worker").heartbeat_seconds == 150
