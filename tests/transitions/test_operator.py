"""What people do to jobs: every verb in every state."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job
from jobqueue.transitions import (
    ack,
    cancel,
    claim,
    discard,
    fail,
    reap,
    release,
    release_held,
    retry,
    run_again,
    snooze,
)
from tests.factories import (
    claim_one,
    expire,
    job,
    make_in_state,
    make_job,
    now,
    row,
    seconds_from_now,
    set_columns,
    state,
)

pytestmark = pytest.mark.django_db

STATES = ["READY", "PROCESSING", "DONE", "FAILED", "CANCELED"]
VERBS = {"cancel": cancel, "retry": retry, "discard": discard, "release": release_held}
# verb -> {state it acts on: state afterwards}; everywhere else it answers False and writes nothing
TABLE = {
    "cancel": {"READY": "CANCELED", "PROCESSING": "PROCESSING"},
    "retry": {"FAILED": "READY", "CANCELED": "READY"},
    "discard": {"READY": "CANCELED", "FAILED": "CANCELED"},
    "release": {"PROCESSING": "READY"},
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_acts_on_its_states_and_leaves_the_others_alone(verb, name):
    job_id = make_in_state(name)
    before = row(job_id)
    expected = TABLE[verb].get(name)
    assert VERBS[verb](job_id) is (expected is not None)
    if expected is None:
        assert row(job_id) == before
    else:
        assert state(job_id) == expected
        assert row(job_id) != before


@pytest.mark.parametrize("verb", VERBS)
def test_the_answer_to_a_second_call_is_false_unless_the_state_allows_it(verb):
    name = next(iter(TABLE[verb]))
    job_id = make_in_state(name)
    assert VERBS[verb](job_id)
    assert VERBS[verb](job_id) is False


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_id_may_be_text(verb):
    job_id = make_in_state(next(iter(TABLE[verb])))
    assert VERBS[verb](str(job_id)) is True


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_canceled_job_has_an_end_and_is_not_claimed(verb):
    job_id = make_job()
    assert VERBS[verb](job_id)
    assert -60 < seconds_from_now(job(job_id).finished_at) <= 0.002
    assert claim("q", worker="w") == []


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_delayed_a_gated_and_a_parked_job_can_be_canceled(verb):
    for columns in ({"run_at": UtcNowPlus(3600)}, {"gate": 1}, {"wait_reason": "parked", "run_at": UtcNowPlus(60)}):
        job_id = make_job(**columns)
        assert VERBS[verb](job_id)
        assert (state(job_id), job(job_id).wait_reason) == ("CANCELED", None)


def test_cancel_asks_a_running_job_and_leaves_its_lease():
    job_id = make_job()
    lease = claim_one()
    assert cancel(job_id)
    after = job(job_id)
    assert (after.status, bytes(after.lock_token)) == (Job.Status.PROCESSING, lease.token)
    assert -60 < seconds_from_now(after.cancel_requested_at) <= 0.002


def test_a_running_job_that_finishes_all_the_same_is_done():
    job_id = make_job()
    lease = claim_one()
    cancel(job_id)
    ack(lease, result=1)
    assert state(job_id) == "DONE"


ENDS = {
    "fail": lambda lease: fail(lease, error="x"),
    "release": release,
    "snooze": lambda lease: snooze(lease, delay_seconds=0),
    "reap": lambda lease: (expire(lease), reap()),
    "release_held": lambda lease: release_held(lease.job_id),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_was_asked_to_cancel_never_runs_again(end):
    job_id = make_job()
    lease = claim_one()
    assert cancel(job_id)
    ENDS[end](lease)
    assert state(job_id) == "CANCELED"
    assert claim("q", worker="w") == []


def test_discard_takes_a_dead_letter_out():
    job_id = make_in_state("FAILED")
    assert list(Job.objects.dead().values_list("pk", flat=True)) == [job_id]
    assert discard(job_id)
    assert not Job.objects.dead().exists()


@pytest.mark.parametrize("name", ["FAILED", "CANCELED"])
def test_retry_gives_a_fresh_allowance_and_keeps_the_count(name):
    job_id = make_job(max_attempts=2)
    if name == "FAILED":
        for _ in range(2):
            fail(claim_one(), error="x", delay_seconds=0)
    else:
        cancel(job_id)
    spent, epoch = job(job_id).attempts, job(job_id).epoch
    assert state(job_id) == name
    assert retry(job_id)
    after = job(job_id)
    assert (after.attempts, after.max_attempts, after.epoch, after.finished_at) == (spent, spent + 2, epoch + 1, None)
    assert seconds_from_now(after.run_at) <= 0.002
    starts = 0
    while leases := claim("q", worker="w"):
        starts += 1
        fail(leases[0], error="x", delay_seconds=0)
    assert (starts, state(job_id)) == (2, "FAILED")


def test_retry_again_and_again_never_grows_the_allowance():
    job_id = make_job(max_attempts=3)
    for round_ in range(1, 4):
        while leases := claim("q", worker="w"):
            fail(leases[0], error="x", delay_seconds=0)
        assert (job(job_id).attempts, state(job_id)) == (3 * round_, "FAILED")
        assert retry(job_id)


def test_retry_forgets_an_old_wish_to_cancel():
    job_id = make_job()
    lease = claim_one()
    cancel(job_id)
    fail(lease, error="x")
    assert state(job_id) == "CANCELED"
    assert retry(job_id)
    ack(claim_one())
    assert state(job_id) == "DONE"


def test_retry_makes_a_delayed_job_due_now():
    job_id = make_job()
    fail(claim_one(), error="x", delay_seconds=3600)
    attempts, most = job(job_id).attempts, job(job_id).max_attempts
    assert retry(job_id)
    assert (job(job_id).attempts, job(job_id).max_attempts) == (attempts, most)
    assert claim_one().job_id == job_id


def test_retry_of_a_due_job_is_false():
    assert retry(make_job()) is False


def test_retry_at_the_upper_end_of_max_attempts_still_works():
    job_id = make_job(max_attempts=2**31 - 1, attempts=2**31 - 2)
    lease = claim_one()
    assert fail(lease, error="x") is Job.Status.FAILED
    assert retry(job_id)
    assert state(job_id) == "READY"


def test_release_takes_the_lease_away_and_the_old_holder_is_refused():
    job_id = make_job()
    run_at = job(job_id).run_at
    stale = claim_one()
    assert release_held(job_id)
    assert (state(job_id), job(job_id).attempts, job(job_id).run_at) == ("READY", 0, run_at)
    before = row(job_id)
    for verb in (ack, release):
        with pytest.raises(LeaseLost):
            verb(stale)
    assert row(job_id) == before
    assert claim_one().fence == stale.fence + 1


def test_an_operators_verb_leaves_no_orphan_columns():
    for name in STATES:
        for verb in VERBS.values():
            verb(make_in_state(name, queue=f"{name}-queue"))
            Job.objects.filter(status=0).update(gate=1)
    for found in Job.objects.exclude(status=1):
        assert (found.locked_by, found.lock_token, found.lock_until) == (None, None, None)


def test_cancel_then_retry_keeps_fence_growing():
    job_id = make_job()
    release(claim_one())
    cancel(job_id)
    retry(job_id)
    assert claim_one().fence == 2
    set_columns(job_id, lock_until=UtcNowPlus(-1))
    reap()
    assert claim_one().fence == 3


def test_a_copy_has_what_says_how_the_old_job_ran_and_not_what_belonged_to_its_life():
    same = {"priority": 4, "task": "shop.tasks.send", "lease_seconds": 90.0, "ordering_key": b"o"}
    same |= {"concurrency_key": b"c", "dependency": "stripe"}
    own = {"dedupe_key": b"k", "expires_at": now() + timedelta(hours=1), "unique_mode": 2, "unique_seconds": 5.0}
    old = make_job(payload={"n": 1}, **same, **own, max_attempts=9, allowance=3)
    assert discard(old)
    found = job(run_again(old))
    assert (found.queue, found.payload, found.max_attempts) == ("q", {"n": 1}, 3)
    assert {name: getattr(found, name) for name in same} == same
    assert [getattr(found, name) for name in own] == [None, None, 0, None]
