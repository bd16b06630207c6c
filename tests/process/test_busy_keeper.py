"""Whatever else a keeper has to do, and whatever it waits for, the leases of its living children are renewed."""

import random
import time
from datetime import timedelta

import pytest

from jobqueue.models import Job, JobAttempt, Worker
from tests.app import tasks
from tests.factories import job, now, seconds_from_now, wait_until
from tests.marks import committed, finding
from tests.patience import patient
from tests.process.harness import SHORT
from tests.process.probe import renewed, starts
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = committed


def lapse(count):
    """`count` leases that have run out, each of another worker: so many statements end them."""
    until = now() - timedelta(minutes=1)
    common = {"queue": "lost", "status": Job.Status.PROCESSING, "payload": {}, "lock_until": until}
    rows = (
        Job(locked_by=f"gone:{n}", lock_token=random.randbytes(16), locked_at=until, run_at=until, **common)
        for n in range(count)
    )
    Job.objects.bulk_create(rows, batch_size=500)


def kept_for(job_id, seconds):
    """For so long the lease has not run out at any look."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert seconds_from_now(job(job_id).lock_until) > 0, "the lease of a living worker has run out"
        time.sleep(0.1)


@finding("A7")
def test_a_mass_of_lapsed_leases_takes_no_lease_from_the_worker_that_reaps_them(start, evidence, gate):
    lapse(2_000)
    job_id = tasks.gated.enqueue(str(gate)).id
    # Shorter than it takes to end all of those, on a busy machine too. Where there is one writer, renewals wait for a
    # batch: it is a small one, or a busy machine would take so long for it that the keeper seems to hang.
    options = ("--queues", "default", "--lease", f"{patient(1)}s", "--heartbeat", "1s")
    start("runworker", *options, JOBQUEUE_TEST_REAP_BATCH="100")
    starts(evidence)
    wait_until(lambda: JobAttempt.objects.exists(), what="reaping")
    while Job.objects.expired().exclude(pk=job_id).exists():
        kept_for(job_id, 0.5)
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
