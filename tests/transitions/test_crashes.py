"""Lost runs: the task's on_crash, and the quarantine of a job that kills its workers."""

import pytest
from django.test import override_settings

from jobqueue import signals, task
from jobqueue.exceptions import InvalidType, InvalidValue, JobLost
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import cancel, claim, discard, fail_many, reap, release, retry
from tests.factories import claim_one, expire, job, make_due, make_job, set_columns, state
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


def works():
    """The body of the tasks below."""


def enqueued(on_crash, **fields):
    return int(task(queue_name="q", on_crash=on_crash, **fields)(works).using(priority=0).enqueue().id)


def lapse(job_id):
    """Its lease runs out."""
    assert len(claim("q", worker="w")) == 1
    expire(job_id)
    return reap()


def die(job_id):
    """The monitor sees its process die."""
    assert fail_many(claim("q", worker="w"), error=JobLost("its process was killed by SIGSEGV")) == []


CRASHES = pytest.mark.parametrize("crash", [lapse, die])


@CRASHES
def test_a_lost_run_is_retried_by_default(crash):
    job_id = enqueued("retry")
    crash(job_id)
    found = job(job_id)
    assert (state(job_id), found.gate, found.attempts, found.crashes, found.options) == ("READY", 0, 1, 1, None)


@CRASHES
def test_a_task_may_fail_after_a_crash(crash):
    said = []

    def dead(cause, **_):
        said.append(str(cause))

    job_id = enqueued("fail", max_attempts=5)
    signals.job_dead.connect(dead)
    try:
        crash(job_id)
    finally:
        signals.job_dead.disconnect(dead)
    found = job(job_id)
    assert (state(job_id), found.cause, found.attempts, found.wait_reason) == ("FAILED", "lost", 1, None)
    assert said == ["lost"]


@CRASHES
def test_a_task_may_hold_its_jobs_after_a_crash_until_somebody_decides(crash):
    job_id = enqueued("hold", max_attempts=5)
    crash(job_id)
    found = job(job_id)
    assert (state(job_id), found.gate, found.cause, found.attempts) == ("READY", 2, "lost", 1)
    assert found.wait_reason.startswith("held: ")
    assert JobAttempt.objects.filter(job_id=job_id).count() == 1
    assert claim("q", worker="w") == []
    assert retry(job_id)
    assert (job(job_id).gate, job(job_id).wait_reason) == (0, None)
    assert [lease.job_id for lease in claim("q", worker="w")] == [job_id]


@CRASHES
def test_whoever_listens_for_parked_jobs_is_told_of_a_held_one(crash):
    said = []

    def parked(job_id, reason, **_):
        said.append((job_id, reason))

    held, other = enqueued("hold"), enqueued("retry")
    signals.job_parked.connect(parked)
    try:
        crash(held)
        crash(other)
    finally:
        signals.job_parked.disconnect(parked)
    assert said == [(held, job(held).wait_reason)]


@pytest.mark.parametrize("end", [discard, cancel])
def test_a_held_job_that_was_discarded_runs_when_it_is_retried(end):
    job_id = enqueued("hold", max_attempts=5)
    lapse(job_id)
    assert end(job_id)
    assert state(job_id) == "CANCELED"
    assert retry(job_id)
    assert claim_one().job_id == job_id


@CRASHES
@pytest.mark.parametrize(("on_crash", "left"), [("fail", "FAILED"), ("hold", "READY")])
def test_a_row_of_plain_sql_follows_its_task(crash, on_crash, left):
    enqueued(on_crash)
    Job.objects.all().delete()
    job_id = make_job(task=f"{works.__module__}.works", payload={"args": [], "kwargs": {}})
    crash(job_id)
    assert (state(job_id), job(job_id).gate) == (left, 2 if on_crash == "hold" else 0)


def test_a_held_job_keeps_the_later_ones_of_its_key_waiting():
    made = task(queue_name="q", on_crash="hold", ordering_key="k")(works)
    first, second = int(made.enqueue().id), int(made.enqueue().id)
    lapse(first)
    assert claim("q", worker="w") == []
    assert retry(first)
    lease = claim_one()
    assert lease.job_id == first
    assert [job(second).gate, state(second)] == [1, "READY"]


def test_a_held_job_that_was_canceled_is_next_of_its_key_when_it_is_retried():
    job_id = int(task(queue_name="q", on_crash="hold", ordering_key="k")(works).enqueue().id)
    lapse(job_id)
    # By another program, which does not remove its entry in the lane.
    set_columns(job_id, status=Job.Status.CANCELED, finished_at=job(job_id).created_at)
    assert retry(job_id)
    assert (job(job_id).gate, job(job_id).wait_reason) == (0, None)
    assert claim_one().job_id == job_id


@pytest.mark.parametrize("on_crash", ["retry", "fail", "hold"])
def test_a_deploy_costs_no_attempt_whatever_on_crash_says(on_crash):
    job_id = enqueued(on_crash)
    release(claim_one())
    assert (state(job_id), job(job_id).attempts, job(job_id).crashes, job(job_id).gate) == ("READY", 0, 0, 0)


@CRASHES
def test_a_job_that_kills_its_worker_in_every_attempt_is_failed_and_marked(crash):
    job_id = enqueued("retry", max_attempts=2)
    crash(job_id)
    assert (state(job_id), job(job_id).wait_reason == "quarantined") == ("READY", False)
    crash(job_id)
    assert (state(job_id), job(job_id).wait_reason, job(job_id).attempts) == ("FAILED", "quarantined", 2)
    assert retry(job_id)
    assert job(job_id).wait_reason is None


@CRASHES
@override_settings(JOBQUEUE={"QUARANTINE_CRASHES": 2})
def test_a_setting_may_quarantine_it_earlier_and_a_retry_begins_anew(crash):
    job_id = enqueued("retry", max_attempts=9)
    for _ in range(2):
        crash(job_id)
        set_columns(job_id, run_at=job(job_id).created_at)
    assert (state(job_id), job(job_id).wait_reason, job(job_id).attempts) == ("FAILED", "quarantined", 2)
    assert retry(job_id)
    crash(job_id)
    assert state(job_id) == "READY"
    make_due(job_id)
    crash(job_id)
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")


def test_a_job_that_also_fails_otherwise_is_failed_without_the_mark():
    from jobqueue.transitions import fail

    job_id = make_job(max_attempts=2)
    fail(claim_one(), error="boom", delay_seconds=0)
    lapse(job_id)
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", None)


def test_options_that_plain_sql_has_written_do_not_stop_the_reaper():
    for options in ([1], {"on_crash": 7}, "x", {"on_crash": ["hold"]}):
        job_id = make_job(options=options)
        lapse(job_id)
        assert state(job_id) == "READY"
        assert Job.objects.filter(pk=job_id).delete()


def test_a_wrong_on_crash_is_refused_with_the_name_of_the_task():
    with pytest.raises(InvalidValue, match=r"test_crashes\.works: on_crash must be one of retry, fail, hold"):
        enqueued("explode")
    with pytest.raises(InvalidType, match=r"using\(\) has no field 'on_crash'"):
        task(works).using(on_crash="fail")
