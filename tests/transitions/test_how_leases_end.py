"""What is said of a lease that ends is what became of its job."""

from types import SimpleNamespace

import pytest

from jobqueue import signals
from jobqueue.exceptions import LockNotAcquired
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import cancel, claim, fail, release, release_held, release_many, snooze
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.attempt import Attempt
from tests.factories import claim_one, make_job, make_jobs, state
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def heard():
    """What was said: (signal, job id, and of an attempt how it ended)."""
    said, receivers = [], []
    for name in ("job_canceled", "job_parked", "attempt_ended", "lease_lost", "job_failed"):

        def receive(said_by=name, **facts):
            said.append((said_by, facts["job_id"], *([facts["outcome"]] if "outcome" in facts else [])))

        getattr(signals, name).connect(receive)
        receivers.append((name, receive))
    yield said
    for name, receive in receivers:
        getattr(signals, name).disconnect(receive)


def asked_to_cancel():
    make_job()
    lease = claim_one()
    assert cancel(lease.job_id)
    return lease


ENDS = {
    "snooze": lambda lease: snooze(lease, delay_seconds=5),
    "release": release,
    "release_many": lambda lease: release_many([lease]),
    "release_held": lambda lease: release_held(lease.job_id),
}


@finding("A17")
@pytest.mark.parametrize("verb", ENDS)
def test_a_job_that_was_asked_to_cancel_and_is_given_back_is_announced_as_canceled(verb, heard):
    lease = asked_to_cancel()
    ENDS[verb](lease)
    assert state(lease.job_id) == "CANCELED"
    assert heard == [("job_canceled", lease.job_id)]


def test_only_those_of_a_group_that_were_asked_to_cancel_are_announced(heard):
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    cancel(leases[1].job_id)
    assert release_many(leases) == []
    assert [state(lease.job_id) for lease in leases] == ["READY", "CANCELED", "READY"]
    assert heard == [("job_canceled", leases[1].job_id)]


def test_a_job_that_is_put_off_is_announced_as_parked(heard):
    make_job()
    lease = claim_one()
    assert snooze(lease, delay_seconds=5) is Job.Status.READY
    assert heard == [("job_parked", lease.job_id)]


def outcome_of(lease, error):
    attempt = Attempt(lease, lambda: False)
    with attempt:
        raise error
    return attempt.outcome()


def counts():
    return SimpleNamespace(finished=0, failed=0, lost=0)


@finding("A17")
def test_a_run_that_would_wait_for_a_lock_but_was_asked_to_cancel_is_told_as_canceled(heard):
    lease = asked_to_cancel()
    assert settle([outcome_of(lease, LockNotAcquired("busy"))], counts()) == []
    assert state(lease.job_id) == "CANCELED"
    assert heard == [("job_canceled", lease.job_id), ("attempt_ended", lease.job_id, "canceled")]


@finding("A17")
def test_a_failure_that_was_written_by_a_try_without_an_answer_is_told_as_a_failure(heard):
    make_job()
    lease = claim_one()
    slot, error = counts(), ValueError("boom")
    fail(lease, error=error)
    heard.clear()
    assert settle([outcome_of(lease, error)], slot, again=True) == []
    assert (slot.failed, slot.lost) == (1, 0)
    assert heard == [("job_failed", lease.job_id), ("attempt_ended", lease.job_id, "retry")]
    assert JobAttempt.objects.filter(job_id=lease.job_id).count() == 1


@finding("A17")
def test_a_run_that_was_put_off_by_a_try_without_an_answer_is_told_as_parked(heard):
    make_job()
    lease = claim_one()
    slot = counts()
    outcome = outcome_of(lease, LockNotAcquired("busy"))
    snooze(lease, delay_seconds=5, reason="busy")
    heard.clear()
    assert settle([outcome], slot, again=True) == []
    assert slot.lost == 0
    assert heard == [("job_parked", lease.job_id), ("attempt_ended", lease.job_id, "parked")]


def test_a_failure_that_is_repeated_after_another_claim_is_what_it_was_then(heard):
    make_job()
    lease = claim_one()
    fail(lease, error="boom", delay_seconds=0)
    assert claim_one().fence == lease.fence + 1
    heard.clear()
    assert fail(lease, error="boom", delay_seconds=0, again=True) is Job.Status.READY
    assert heard == [("job_failed", lease.job_id)]
