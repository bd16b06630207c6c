"""A failed attempt: counted, explained, tried again later, and at last FAILED."""

import pytest

from jobqueue.exceptions import JobLost, ResultError
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import cancel, claim, fail, fail_many, reap, retry
from tests.app.tasks import Unprintable
from tests.factories import claim_one, expire, job, make_due, make_job, make_jobs, now, row, set_columns, state
from tests.marks import finding

pytestmark = pytest.mark.django_db


def test_the_first_failure_waits_about_5_seconds():
    job_id = make_job()
    assert fail(claim_one(), error="disk full") is Job.Status.READY
    after = job(job_id)
    assert (after.status, after.attempts, after.last_error) == (Job.Status.READY, 1, "disk full")
    assert 3.9 <= (after.run_at - after.updated_at).total_seconds() <= 6.1
    assert after.wait_reason
    assert after.finished_at is None


@pytest.mark.parametrize(
    ("attempts", "middle"), [(0, 5), (1, 10), (2, 20), (5, 160), (9, 2560), (10, 3600), (20, 3600)]
)
def test_the_kth_failure_waits_within_its_window(attempts, middle):
    job_id = make_job(attempts=attempts)
    fail(claim_one(), error="x")
    waited = (job(job_id).run_at - job(job_id).updated_at).total_seconds()
    assert middle * 0.8 - 0.1 <= waited <= min(3600, middle * 1.2) + 0.1


def test_a_failed_job_is_not_claimed_before_its_time():
    job_id = make_job()
    fail(claim_one(), error="x")
    assert claim("q", worker="w") == []
    make_due(job_id)
    assert claim_one().attempt == 2


def lose():
    """The worker of the job that is due dies, as its supervisor sees it; whether the job is due at once."""
    lease = claim_one()
    fail(lease, error=JobLost("its worker process was killed"))
    return job(lease.job_id).run_at == lease.run_at


@finding("item-2")
def test_a_run_that_was_lost_is_due_at_once_the_first_time_and_after_the_back_off_from_the_second_on():
    job_id = make_job()
    before = job(job_id).run_at
    assert lose()
    after = job(job_id)
    assert (after.status, after.attempts, after.crashes, after.run_at) == (Job.Status.READY, 1, 1, before)
    assert not lose()
    assert 7.9 <= (job(job_id).run_at - job(job_id).updated_at).total_seconds() <= 12.1


@finding("item-2")
def test_a_failure_does_not_make_the_first_loss_a_second_one():
    make_job()
    fail(claim_one(), error="x", delay_seconds=0)
    assert lose()


def test_a_loss_that_nobody_saw_is_a_first_one_too():
    make_job()
    expire(claim_one())
    reap()
    assert not lose()


@finding("item-2")
def test_each_life_of_a_job_has_a_first_loss():
    job_id = make_job()
    assert lose()
    fail(claim_one(), error="x", retry=False)
    assert retry(job_id)
    assert lose()
    assert not lose()
    set_columns(job_id, status=Job.Status.FAILED)
    assert retry(job_id)
    assert lose()


def test_a_loss_at_the_last_attempt_is_the_end():
    job_id = make_job(max_attempts=1)
    lose()
    assert (state(job_id), job(job_id).crashes) == ("FAILED", 1)


@pytest.mark.parametrize("seconds", [0, 0.5, 1234])
def test_a_given_delay_replaces_the_back_off(seconds):
    job_id = make_job()
    before = now()
    fail(claim_one(), error="x", delay_seconds=seconds)
    since = (now() - before).total_seconds()
    assert seconds <= (job(job_id).run_at - before).total_seconds() + 0.002 <= seconds + since + 0.004


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_a_job_that_always_fails_starts_exactly_max_attempts_times(most):
    job_id = make_job(max_attempts=most)
    starts = 0
    while leases := claim("q", worker="w"):
        starts += 1
        assert leases[0].attempt == starts
        status = fail(leases[0], error="x", delay_seconds=0)
        assert status is (Job.Status.FAILED if starts == most else Job.Status.READY)
    after = job(job_id)
    assert (starts, after.attempts, after.status) == (most, most, Job.Status.FAILED)
    assert after.finished_at is not None
    assert after.wait_reason is None


@pytest.mark.parametrize("most", [1, 3])
def test_fail_many_counts_the_same(most):
    ids = make_jobs(3, max_attempts=most)
    starts = 0
    while leases := claim("q", 10, worker="w"):
        starts += len(leases)
        assert fail_many(leases, error="x", delay_seconds=0) == []
    assert starts == 3 * most
    assert {state(i) for i in ids} == {"FAILED"}


def test_a_result_that_cannot_be_stored_is_dead_at_once():
    job_id = make_job()
    assert fail(claim_one(), error=ResultError("not JSON")) is Job.Status.FAILED
    after = job(job_id)
    assert (after.status, after.cause, after.result, after.attempts) == (Job.Status.FAILED, "format", None, 1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("text", "unknown"),
        (ValueError("x"), "data"),
        (ConnectionError("x"), "dependency"),
        (MemoryError(), "resource"),
        (SystemExit(), "unknown"),
    ],
)
def test_the_cause_is_kept(error, cause):
    job_id = make_job()
    fail(claim_one(), error=error)
    assert job(job_id).cause == cause


STRANGE = [
    Unprintable(),
    ValueError("\x00"),
    ValueError("\ud800"),
    ValueError("😀" * 100_000),
    ValueError("x" * 5_000_000),
    SystemExit(1),
    KeyboardInterrupt(),
    ExceptionGroup("g", [Unprintable()]),
    "",
    "\x00",
    "\ud800",
    "x" * 1_000_000,
    "😀" * 70_000,
    "é" * 40_000,
]


@pytest.mark.parametrize("error", STRANGE, ids=lambda e: type(e).__name__)
def test_every_error_can_be_stored_on_every_database(error):
    job_id = make_job()
    assert fail(claim_one(), error=error) is Job.Status.READY
    assert job(job_id).last_error
    assert JobAttempt.objects.get(job_id=job_id).error


def test_every_failed_attempt_leaves_a_row():
    job_id = make_job(max_attempts=3)
    for number in range(3):
        fail(claim_one(worker=f"w{number}"), error=ValueError(f"no {number}"), delay_seconds=0)
    rows = list(JobAttempt.objects.filter(job_id=job_id).order_by("id"))
    assert [(r.attempt, r.fence, r.worker, r.cause, r.error_class) for r in rows] == [
        (n + 1, n + 1, f"w{n}", "data", "builtins.ValueError") for n in range(3)
    ]
    assert all("no" in r.error for r in rows)
    assert all(r.started_at <= r.ended_at for r in rows)


def test_a_refused_fail_leaves_no_row():
    make_job()
    lease = claim_one()
    fail(lease, error="x", delay_seconds=0)
    assert fail_many([lease], error="y") == [lease]
    assert JobAttempt.objects.count() == 1


def test_a_failed_job_that_was_asked_to_cancel_ends_canceled():
    job_id = make_job()
    lease = claim_one()
    assert cancel(job_id)
    assert fail(lease, error="x") is Job.Status.CANCELED
    assert (state(job_id), job(job_id).attempts) == ("CANCELED", 1)


def test_the_back_off_is_a_setting(settings):
    settings.JOBQUEUE = {"BACKOFF_BASE_SECONDS": 100, "BACKOFF_FACTOR": 3, "BACKOFF_CAP_SECONDS": 250}
    job_id = make_job(attempts=1)
    fail(claim_one(), error="x")
    assert 200 <= (job(job_id).run_at - job(job_id).updated_at).total_seconds() <= 250


def test_a_failure_leaves_queue_payload_and_key_alone():
    job_id = make_job(dedupe_key=b"k", priority=4)
    before = row(job_id)
    fail(claim_one(), error="x")
    after = row(job_id)
    for column in ("id", "queue", "priority", "payload", "dedupe_key", "created_at", "max_attempts", "task", "result"):
        assert after[column] == before[column]
