"""ack, fail, snooze, release and heartbeat: by the holder, and by somebody who no longer is."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.exceptions import LeaseLost, ResultError
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import (
    ack,
    ack_many,
    cancel,
    claim,
    fail,
    fail_many,
    heartbeat,
    heartbeat_many,
    reap,
    release,
    release_many,
    snooze,
    snooze_many,
)  # fmt: skip
from tests.factories import (
    claim_one,
    expire,
    job,
    lease_with,
    make_job,
    make_jobs,
    now,
    row,
    seconds_from_now,
    set_columns,
    state,
    undone,
)
from tests.patience import wait_until

pytestmark = pytest.mark.django_db

VERBS = {
    "ack": lambda lease: ack(lease, result={"late": True}),
    "fail": lambda lease: fail(lease, error="late"),
    "snooze": lambda lease: snooze(lease, delay_seconds=5),
    "release": release,
    "heartbeat": lambda lease: heartbeat(lease, lease_seconds=600),
}
BATCHES = {
    "ack_many": lambda leases: ack_many(leases, results=[{"late": True}] * len(leases)),
    "fail_many": lambda leases: fail_many(leases, error="late"),
    "release_many": release_many,
    "snooze_many": lambda leases: snooze_many(leases, delay_seconds=5, reason="late"),
    "heartbeat_many": lambda leases: heartbeat_many(leases, lease_seconds=600),
}


def reaped_and_ready(lease):
    expire(lease)
    assert reap().total == 1


def claimed_by_another(lease):
    reaped_and_ready(lease)
    claim_one(worker="other")


def done_by_another(lease):
    reaped_and_ready(lease)
    ack(claim_one(worker="other"), result={"mine": 1})


def released(lease):
    release(lease)


def acked(lease):
    ack(lease, result={"mine": 1})


def failed(lease):
    fail(lease, error="mine")


def dead(lease):
    expire(lease)
    set_columns(lease.job_id, max_attempts=1)
    assert reap().dead == 1


def canceled(lease):
    reaped_and_ready(lease)
    assert cancel(lease.job_id)


LOSSES = [reaped_and_ready, claimed_by_another, done_by_another, released, acked, failed, dead, canceled]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_that_lost_its_lease_changes_nothing(verb, lose):
    make_job()
    stale = claim_one(worker="stale")
    lose(stale)
    before, history = row(stale.job_id), JobAttempt.objects.count()
    with pytest.raises(LeaseLost, match=str(stale.job_id)):
        VERBS[verb](stale)
    assert row(stale.job_id) == before
    assert JobAttempt.objects.count() == history


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("verb", BATCHES)
def test_a_batch_settles_what_is_held_and_returns_what_was_lost(verb, lose):
    make_job()
    stale = claim_one(worker="stale")
    lose(stale)
    make_jobs(2, "r")
    held = claim("r", 2, worker="w")
    before, held_before = row(stale.job_id), [row(lease.job_id) for lease in held]
    assert BATCHES[verb]([held[0], stale, held[1]]) == [stale]
    assert row(stale.job_id) == before
    assert all(row(lease.job_id) != old for lease, old in zip(held, held_before, strict=True))


def let_clock_go_on():
    """SQLite's has milliseconds."""
    before = now()
    wait_until(lambda: now() > before, what="another instant")


@pytest.mark.parametrize("lose", LOSSES)
def test_an_ack_of_one_claim_tells_which_of_its_leases_was_lost(lose):
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    lose(leases[1])
    before = row(leases[1].job_id)
    let_clock_go_on()
    assert ack_many(leases) == [leases[1]]
    assert row(leases[1].job_id) == before
    assert (state(leases[0].job_id), state(leases[2].job_id)) == ("DONE", "DONE")


def test_a_batch_may_be_a_generator():
    make_jobs(2)
    leases = claim("q", 2, worker="w")
    assert ack_many((lease for lease in leases), results=(n for n in (1, 2))) == []
    assert [job(lease.job_id).result for lease in leases] == [1, 2]


def test_a_lease_that_was_acked_before_is_lost_to_the_batch_that_acks_it_again():
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    ack(leases[0], result=1)
    let_clock_go_on()
    assert ack_many(leases, results=[2, 2, 2]) == [leases[0]]
    assert [job(lease.job_id).result for lease in leases] == [1, 2, 2]
    assert ack_many(leases) == leases


def test_an_ack_that_is_repeated_after_an_error_counts_what_the_first_one_wrote():
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    reap_one = leases[2]
    ack_many(leases[:2])
    expire(reap_one)
    reap()
    assert ack_many(leases, again=True) == [reap_one]


def test_two_leases_of_one_job_in_a_batch_are_told_apart():
    make_job()
    old = claim_one()
    expire(old)
    reap()
    new = claim_one()
    assert ack_many([new, old], results=["new", "old"]) == [old]
    assert job(new.job_id).result == "new"


def test_large_results_are_sent_in_several_statements():
    make_jobs(5)
    leases = claim("q", 5, worker="w")
    with CaptureQueriesContext(connection) as captured:
        assert ack_many(leases, results=["x" * 900_000] * 5) == []
    assert len([query for query in captured.captured_queries if query["sql"].startswith("UPDATE")]) == 3


@pytest.mark.parametrize("verb", BATCHES)
def test_a_batch_of_nothing_does_nothing(verb):
    assert BATCHES[verb]([]) == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("changes", [{"token": b"x" * 16}, {"token": b"\x00" * 16}, {"job_id": 2**40}], ids=str)
def test_a_forged_lease_is_refused(verb, changes):
    make_job()
    lease = claim_one()
    before = row(lease.job_id)
    with pytest.raises(LeaseLost):
        VERBS[verb](lease_with(lease, **changes))
    assert row(lease.job_id) == before


@pytest.mark.parametrize("verb", ["ack", "fail", "snooze", "release"])
def test_leaving_processing_clears_the_lease(verb):
    make_job()
    lease = claim_one()
    VERBS[verb](lease)
    after = row(lease.job_id)
    assert [after[c] for c in ("locked_by", "lock_token", "locked_at", "lock_until")] == [None] * 4
    assert after["fence"] == 1


@pytest.mark.parametrize("verb", ["ack", "fail", "snooze", "release"])
def test_a_lapsed_lease_that_nobody_reaped_may_still_settle(verb):
    make_job()
    lease = claim_one()
    expire(lease)
    VERBS[verb](lease)
    assert state(lease.job_id) == ("DONE" if verb == "ack" else "READY")


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, {"a": [1, "é😀"]}, 1.5, "text"], ids=repr)
def test_ack_stores_the_result_and_the_time(result):
    make_job()
    lease = claim_one()
    assert ack(lease, result=result) is None
    done = job(lease.job_id)
    assert (done.status, done.result, done.attempts) == (Job.Status.DONE, result, 0)
    assert -60 < seconds_from_now(done.finished_at) <= 0.002


def test_a_result_of_none_is_null_also_in_a_mixed_batch():
    ids = make_jobs(3)
    leases = claim("q", 3, worker="w")
    assert ack_many(leases, results=[None, {"a": 1}, 0]) == []
    assert [row(i)["result"] is None for i in ids] == [True, False, False]
    assert [job(i).result for i in ids] == [None, {"a": 1}, 0]


class Unreadable(dict):
    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


@pytest.mark.parametrize(
    "result",
    [float("nan"), "\x00", "\ud800", object(), {1: 2}, 2**70, "x" * 1_048_577, Unreadable(a=1)],
    ids=ascii,
)
def test_a_result_that_cannot_be_stored_leaves_the_lease(result):
    make_job()
    lease = claim_one()
    before = row(lease.job_id)
    with pytest.raises(ResultError):
        ack(lease, result=result)
    with pytest.raises(ResultError):
        ack_many([lease], results=[result])
    assert row(lease.job_id) == before


@pytest.mark.parametrize("seconds", [0, 0.5, 60, 3600])
def test_snooze_gives_back_for_later_without_an_attempt(seconds):
    make_job()
    lease = claim_one()
    snooze(lease, delay_seconds=seconds)
    after = job(lease.job_id)
    assert (after.status, after.attempts) == (Job.Status.READY, 0)
    assert seconds - 30 < seconds_from_now(after.run_at) <= seconds


def test_snooze_many_gives_back_for_later_and_ends_what_was_to_be_canceled():
    ids = make_jobs(3)
    leases = claim("q", 3, worker="w")
    assert cancel(ids[1])
    assert snooze_many(leases, delay_seconds=600, reason="not now") == []
    assert [state(i) for i in ids] == ["READY", "CANCELED", "READY"]
    for job_id in (ids[0], ids[2]):
        assert (job(job_id).attempts, job(job_id).wait_reason) == (0, "not now")
        assert 570 < seconds_from_now(job(job_id).run_at) <= 600


def test_release_gives_back_at_once_and_keeps_run_at():
    job_id = make_job()
    run_at = job(job_id).run_at
    release(claim_one())
    assert (job(job_id).run_at, job(job_id).attempts, state(job_id)) == (run_at, 0, "READY")
    assert claim_one().attempt == 1


def test_heartbeat_extends_the_lease_by_the_databases_clock():
    make_job()
    lease = claim_one(lease_seconds=60)
    until = heartbeat(lease, lease_seconds=600)
    assert until == job(lease.job_id).lock_until
    assert 540 < seconds_from_now(until) <= 600
    assert until.utcoffset() == timedelta(0)


def test_heartbeat_keeps_a_jobs_own_longer_lease():
    make_job(lease_seconds=600)
    assert seconds_from_now(heartbeat(claim_one(), lease_seconds=10)) > 540


@pytest.mark.parametrize("verb", [heartbeat, None])
def test_a_lease_that_ran_out_cannot_be_renewed_even_if_nobody_reaped_it(verb):
    make_job()
    lease = claim_one()
    expire(lease)
    before = row(lease.job_id)
    if verb:
        with pytest.raises(LeaseLost):
            verb(lease, lease_seconds=60)
    else:
        assert heartbeat_many([lease], lease_seconds=60) == [lease]
    assert row(lease.job_id) == before


def test_heartbeat_many_renews_leases_of_several_claims():
    make_jobs(4)
    leases = claim("q", 2, worker="a", lease_seconds=60) + claim("q", 2, worker="b", lease_seconds=60)
    assert heartbeat_many(leases, lease_seconds=600) == []
    assert all(seconds_from_now(job(lease.job_id).lock_until) > 500 for lease in leases)


@pytest.mark.parametrize("verb", ["ack", "release", "heartbeat_many", "ack_many"])
def test_finishing_is_a_single_statement(verb):
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    with CaptureQueriesContext(connection) as captured:
        VERBS[verb](leases[0]) if verb in VERBS else BATCHES[verb](leases)
    # A batch may open a transaction around it.
    sent = [query["sql"] for query in captured.captured_queries if "job_queue" in query["sql"]]
    assert [statement.split()[0] for statement in sent] == ["UPDATE"]


def test_settling_joins_the_callers_transaction():
    make_job()
    lease = claim_one()
    with undone():
        ack(lease)
    assert state(lease.job_id) == "PROCESSING"


def test_a_settled_dedupe_key_is_left_alone():
    make_job(dedupe_key=b"k")
    lease = claim_one()
    ack(lease)
    assert bytes(row(lease.job_id)["dedupe_key"]) == b"k"
